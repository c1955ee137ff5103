"""`compile_many`: results one by one, failures among them, and what happens to the compilers when nobody wants more."""

from __future__ import annotations

import gc
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from descriptions import ampere
from trivial_kernels import ON_THE_STACK, Operation, environment, write_script

import pycutlass
from pycutlass import compiler, cutlass, toolkit
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.compiler import session, tools
from pycutlass.errors import (
    ArgumentError,
    ArgumentTypeError,
    BuildReportError,
    CompileError,
    NotCompiledError,
    ToolkitError,
)
from pycutlass.report import NO_PROBLEMS

pytestmark = pytest.mark.usefixtures("private_session")


class Builds:
    """Builds that end when they are told to, and how many there are at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.running = self.most = 0
        self._gates: dict[str, threading.Event] = {}
        self._lock, self._build = threading.Lock(), session.build
        monkeypatch.setattr(session, "build", self)

    def hold(self, *names: str) -> None:
        self._gates.update((name, threading.Event()) for name in names)

    def let_go(self, *names: str) -> None:
        for name in names:
            self._gates[name].set()

    def __call__(self, source: Any, *rest: Any) -> Artifact:
        with self._lock:
            self.begun.append(source.name)
            self.running += 1
            self.most = max(self.most, self.running)
        if source.name in self._gates:
            assert self._gates[source.name].wait(30)
        try:
            return self._build(source, *rest)
        finally:
            with self._lock:
                self.running -= 1


@pytest.fixture
def held(monkeypatch) -> Builds:
    return Builds(monkeypatch)


def outcome(result: Artifact | CompileError) -> str:
    return result.name if isinstance(result, Artifact) else type(result).__name__


def test_results_come_as_they_get_done_and_the_cached_ones_first(held, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "4")
    compiler.add_module([Operation("c"), Operation("d")])
    held.hold("a", "b")
    results = compiler.compile_many([Operation(name) for name in "abcd"])
    assert [(done.position, outcome(done.result)) for done in (next(results), next(results))] == [(2, "c"), (3, "d")]
    held.let_go("b")
    assert outcome(next(results).result) == "b", "a is not done"
    held.let_go("a")
    last = next(results)
    assert (last.position, last.operation.name, last.target, outcome(last.result)) == (0, "a", "sm_80", "a")
    assert last.operation.artifacts == {"sm_80": last.result}
    assert list(results) == []


def test_failures_are_results_and_what_compiles_is_kept(builds):
    operations = [Operation("bad", body="bad_name;"), Operation("good"), Operation("worse", body="worse_name;")]
    results = {done.operation.name: done for done in compiler.compile_many(operations)}
    assert "bad_name" in results["bad"].result.log and "worse_name" in results["worse"].result.log
    assert isinstance(results["bad"].result, CompileError) and results["bad"].operation.artifacts == {}
    assert results["good"].operation.artifacts == {"sm_80": results["good"].result}
    assert [entry.name for entry in KernelCache().entries()] == ["good"]
    assert sorted(builds) == ["bad", "good", "worse"]


def test_equal_operations_are_built_once_and_each_has_its_result(builds):
    operations = [Operation("a"), Operation("a"), Operation("b"), Operation("a")]
    results = sorted(compiler.compile_many(operations), key=lambda done: done.position)
    assert sorted(builds) == ["a", "b"]
    assert [(done.position, done.operation is operations[done.position]) for done in results] == [
        (number, True) for number in range(4)
    ]
    assert [outcome(done.result) for done in results] == ["a", "a", "b", "a"]
    assert all(set(operation.artifacts) == {"sm_80"} for operation in operations)


def test_nothing_begins_before_the_first_result_is_asked_for(held):
    results = compiler.compile_many([Operation("a")])
    results.close()
    del results
    compiler.compile_many([Operation("b")])
    gc.collect()
    assert held.begun == [] and list(compiler.compile_many([])) == []


def test_no_more_at_once_than_there_are_places(held, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "2")
    assert len(list(compiler.compile_many([Operation(f"k{number}") for number in range(6)]))) == 6
    assert held.most <= 2 and len(held.begun) == 6


def test_compilers_go_on_while_the_caller_looks_at_a_result(held, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "1")
    results = compiler.compile_many([Operation("a"), Operation("b")])
    next(results)
    deadline = time.monotonic() + 30
    while len(KernelCache().entries()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert outcome(next(results).result) == "b"


def slow_compilers(monkeypatch: pytest.MonkeyPatch, folder: Path, slow: str) -> Any:
    """Have the device compiler take a minute for kernels whose name begins with `slow`; return the processes' ids."""
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    command = found.device.command

    def delayed(source: Path, *rest: Any) -> list[str]:
        wait = f"echo $$ >> {folder / 'pids'}; exec sleep 60"
        real = shlex.join(command(source, *rest))
        return ["sh", "-c", f"if grep -q {slow} {source}; then {wait}; fi; exec {real}"]

    monkeypatch.setattr(found.device, "command", delayed)
    monkeypatch.setattr(session, "_find_tools", lambda cache: found)

    def running(count: int) -> list[int]:
        deadline = time.monotonic() + 30
        while not (folder / "pids").exists() or len((folder / "pids").read_text().split()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return [int(text) for text in (folder / "pids").read_text().split()]

    return running


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", ["closed", "dropped", "interrupted"])
def test_compilers_are_stopped_where_nobody_wants_more(how, tmp_path, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "4")
    running = slow_compilers(monkeypatch, tmp_path, "slow")
    operations = [Operation("quick"), *(Operation(f"slow_{number}") for number in range(5))]
    results = compiler.compile_many(operations)
    assert outcome(next(results).result) == "quick"
    pids = running(2)
    started = time.monotonic()
    if how == "closed":
        results.close()
    elif how == "dropped":
        del results
    else:
        with pytest.raises(KeyboardInterrupt):
            results.throw(KeyboardInterrupt())
    assert time.monotonic() - started < 20
    assert all(is_gone(pid) for pid in pids)
    assert len(running(1)) <= len(pids) + 2, "no other one starts"
    assert [entry.name for entry in KernelCache().entries()] == ["quick"], "what has compiled stays"
    assert all(operation.artifacts == {} for operation in operations[1:])


def test_another_failure_than_a_compilers_stops_the_others_and_is_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "2")
    running = slow_compilers(monkeypatch, tmp_path, "slow")
    build = session.build

    def broken(source: Any, *rest: Any) -> Artifact:
        if source.name == "broken":
            running(1)
            raise ToolkitError("the compiler has gone")
        return build(source, *rest)

    monkeypatch.setattr(session, "build", broken)
    with pytest.raises(ToolkitError, match="the compiler has gone"):
        list(compiler.compile_many([Operation("slow"), Operation("broken")]))
    assert all(is_gone(pid) for pid in running(1))


def test_an_interrupt_while_waiting_ends_the_compilers(tmp_path):
    (tmp_path / "compiler").write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 60\n")
    (tmp_path / "compiler").chmod(0o755)
    command = write_script(
        tmp_path / "interrupted.py",
        f"""
signal.signal(signal.SIGINT, signal.default_int_handler)
def job(processes):
    return processes.run([{str(tmp_path / "compiler")!r}], Path({str(tmp_path)!r}), memory=1, group="")
try:
    for number, result in schedule.run_each([("a", lambda processes: "done"), ("b", job)], Processes(2, 1)):
        print(number, result, flush=True)
except KeyboardInterrupt:
    print("interrupted")
""",
    )
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as program:
        deadline = time.monotonic() + 30
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
            assert time.monotonic() < deadline and program.poll() is None
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        output, _ = program.communicate(timeout=30)
    assert output == "0 done\ninterrupted\n"
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_strict_mode_makes_results_of_slow_kernels(monkeypatch):
    bad = Operation("bad", body=ON_THE_STACK)
    for cached in (False, True):
        results = {
            done.operation.name: done.result for done in compiler.compile_many([bad, Operation("a")], strict=True)
        }
        assert isinstance(results["bad"], BuildReportError) and "256 bytes" in str(results["bad"]), cached
        assert outcome(results["a"]) == "a" and bad.artifacts == {}
    [done] = compiler.compile_many([bad], strict=False)
    assert outcome(done.result) == "bad" and set(bad.artifacts) == {"sm_80"}


def test_several_targets_have_a_result_each():
    results = list(compiler.compile_many([Operation("a"), Operation("b")], target=["sm_80", "sm_90"]))
    assert sorted((done.operation.name, done.target) for done in results) == [
        (name, target) for name in "ab" for target in ("sm_80", "sm_90")
    ]
    assert all(done.result.target == done.target for done in results)


def test_an_operation_is_done_when_all_of_its_kernels_are(held, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "3")
    whole, partial = Operation("whole"), Operation("partial")
    whole.parts = lambda operations: [whole, partial]
    held.hold("partial")
    results = compiler.compile_many([whole, Operation("other")])
    assert outcome(next(results).result) == "other"
    held.let_go("partial")
    done = next(results)
    assert outcome(done.result) == "whole" and set(partial.artifacts) == {"sm_80"} == set(whole.artifacts)
    broken = Operation("broken", body="nothing_of_that_name;")
    whole, also = Operation("whole"), Operation("whole")
    whole.parts = lambda operations: [broken, whole]  # itself need not come first
    first, second = sorted(compiler.compile_many([whole, also]), key=lambda done: done.position)
    assert isinstance(first.result, CompileError) and "nothing_of_that_name" in first.result.log
    assert whole.artifacts == {} and outcome(second.result) == "whole"


def test_a_gemm_beside_a_reduction_has_its_partial_kernel(monkeypatch, held):
    """Real operations, whose kernels come from the cache."""
    operation = ampere("f32_simt")
    reduction = pycutlass.ReductionOperation(
        cutlass.MatrixCoord(4, 32), operation.C, cutlass.float32, epilogue_functor=operation.epilogue_functor, count=1
    )
    fields = {"kernel": "1"}
    made = Artifact(make_key(fields), "any", "sm_80", fields, b"", b"", dict(NO_PROBLEMS))
    monkeypatch.setattr(session.Supply, "look_up", lambda self, want: made)
    assert [done.position for done in compiler.compile_many([operation, reduction])] == [0, 1]
    assert operation.partial.artifacts == {"sm_80": made} == reduction.artifacts
    operation.artifacts.clear()
    operation.partial.artifacts.clear()
    reduction.artifacts.clear()


@pytest.mark.parametrize("why", ["no compile", "no compiler"])
def test_what_may_not_be_compiled_is_told_behind_what_the_cache_has(why, monkeypatch):
    compiler.add_module([Operation("b")])
    expected: type[Exception] = NotCompiledError
    if why == "no compile":
        monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    else:
        expected = ToolkitError

        def none(cache: KernelCache) -> tools.Tools:
            raise ToolkitError("no compiler is installed", absent=True)

        monkeypatch.setattr(session, "_find_tools", none)
    results = compiler.compile_many([Operation("a"), Operation("b"), Operation("c")])
    assert outcome(next(results).result) == "b"
    with pytest.raises(expected, match=r"a for sm_80, c for sm_80"):
        next(results)
    [done] = compiler.compile_many([Operation("b")])
    assert outcome(done.result) == "b"


def test_a_compiler_that_does_not_work_is_told_at_once(monkeypatch):
    def broken(cache: KernelCache) -> tools.Tools:
        raise ToolkitError("CUDA_HOME is wrong")

    monkeypatch.setattr(session, "_find_tools", broken)
    with pytest.raises(ToolkitError, match="CUDA_HOME is wrong"):
        next(compiler.compile_many([Operation("a")]))


@pytest.mark.parametrize(
    ("operations", "keywords", "error", "words"),
    [
        ([Operation("k"), "kernel"], {}, ArgumentTypeError, ["compile_many takes a list", "item 1 is 'kernel'"]),
        (Operation("k"), {}, ArgumentTypeError, ["write compile_many([operation])"]),
        (80, {}, ArgumentTypeError, ["compile_many takes a list", "80"]),
        ([Operation], {}, ArgumentTypeError, ["item 0 is the class Operation"]),
        ([Operation("k")], {"target": "sm_75"}, ArgumentError, ["target is sm_75"]),
        ([Operation("k")], {"target": []}, ArgumentError, ["empty list"]),
        ([Operation("k")], {"strict": 1}, ArgumentTypeError, ["strict must be True, False or None"]),
        ([Operation("k")], {"jobs": 2}, ArgumentTypeError, ["no keyword jobs"]),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_the_call(operations, keywords, error, words):
    with pytest.raises(error) as caught:  # not by the first result
        compiler.compile_many(operations, **keywords)
    assert all(word in str(caught.value) for word in words)


def test_another_builder_is_waited_for(held, monkeypatch):
    """Two iterators at once: each kernel is built once."""
    monkeypatch.setenv("PYCUTLASS_JOBS", "2")
    held.hold("a")
    gathered: list[str] = []

    def gather() -> None:
        gathered.extend(outcome(done.result) for done in compiler.compile_many([Operation("a")]))

    threads = [threading.Thread(target=gather) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    held.let_go("a")
    for thread in threads:
        thread.join(30)
    assert gathered == ["a", "a"] and held.begun == ["a"]


def test_nothing_begins_where_one_operation_cannot_be_built_for_the_target(builds):
    newer = Operation("kernel_b", compute_capability=90)
    with pytest.raises(ArgumentError, match="kernel_b is written for compute capability 90"):
        compiler.compile_many([Operation("kernel_a"), newer], target="sm_80")
    assert builds == []
