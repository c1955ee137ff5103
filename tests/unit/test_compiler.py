"""`add_module`: targets, keys, the cache, many at once, failures. The kernels are trivial and compile in 0.2 s."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pycutlass import compiler, toolkit
from pycutlass.cache import KernelCache, make_key
from pycutlass.compiler import schedule, session, tools
from pycutlass.compiler.target import choose_target
from pycutlass.cubin import kernel_names
from pycutlass.errors import (
    ArgumentError,
    ArgumentTypeError,
    BuildReportError,
    CompileError,
    NotCompiledError,
    ToolkitError,
)
from pycutlass.source import KernelSource
from pycutlass.toolchain import Processes, StoppedError, reproduce

TEXT = """
struct Params { float *out; long count; PYCUTLASS_EXTRA };
#ifdef __CUDACC__
extern "C" __global__ void NAME(Params const params) { BODY }
#else
extern "C" __attribute__((visibility("default"))) int pycutlass_describe(unsigned *info) {
  info[0] = 1;
  info[1] = sizeof(Params);
  return 0;
}
#endif
"""
ON_THE_STACK = "volatile float local[64]; local[params.count] = 1; params.out[0] = local[params.count + 1];"


@dataclasses.dataclass
class Operation:
    name: str
    body: str = "params.out[0] = 1;"
    extra: str = ""
    compute_capability: int = 80
    native: bool = False
    artifacts: dict = dataclasses.field(default_factory=dict)

    def source(self) -> KernelSource:
        text = TEXT.replace("NAME", self.name).replace("BODY", self.body).replace("PYCUTLASS_EXTRA", self.extra)
        return KernelSource(self.name, text, self.compute_capability, self.native)


@pytest.fixture(autouse=True)
def private_session(monkeypatch, tmp_path):
    """A cache and temporary directory of the test's own, and NVRTC, which is quick."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for name in ("TARGET", "STRICT", "NO_COMPILE", "JOBS"):
        monkeypatch.delenv(f"PYCUTLASS_{name}", raising=False)
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYCUTLASS_BACKEND", "nvrtc")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(session, "_session", session._Session())
    monkeypatch.setattr("pycutlass.device.current_target", lambda: None)
    yield
    assert list((tmp_path / "tmp").iterdir()) == [], "no temporary file stays behind"
    assert list((tmp_path / "cwd").iterdir()) == [], "nothing is written into the working directory"


@pytest.fixture
def builds(monkeypatch) -> list[str]:
    """Names of the kernels that are really built."""
    names: list[str] = []
    build = session.build

    def counted(source, *rest):
        names.append(source.name)
        return build(source, *rest)

    monkeypatch.setattr(session, "build", counted)
    return names


# What a kernel is built for.


@pytest.mark.parametrize(
    ("capability", "native", "wanted", "target"),
    [
        (80, False, None, "sm_80"),
        (90, True, None, "sm_90a"),
        (80, False, "sm_90", "sm_90"),
        (80, False, "sm_90a", "sm_90a"),
        (80, False, "sm_86", "sm_86"),
        (90, True, "sm_90", "sm_90a"),
        (90, True, "sm_90a", "sm_90a"),
        (80, False, "sm_120", "sm_120"),
    ],
)
def test_targets(capability, native, wanted, target):
    assert choose_target(Operation("k", compute_capability=capability, native=native).source(), wanted) == target


@pytest.mark.parametrize(
    ("capability", "native", "wanted", "words"),
    [
        (80, False, "sm_75", ["compute capability 80", "target is sm_75", "target='sm_80'"]),
        (90, True, "sm_80", ["compute capability 90", "target is sm_80", "target='sm_90a'"]),
        (90, True, "sm_100", ["for that architecture only", "sm_100"]),
        (80, False, "sm80", ["target is 'sm80'", "sm_90a"]),
        (80, False, "compute_80", ["none"]),
    ],
)
def test_targets_that_do_not_fit(capability, native, wanted, words):
    with pytest.raises(ArgumentError) as caught:
        choose_target(Operation("k", compute_capability=capability, native=native).source(), wanted)
    assert all(word in str(caught.value) for word in words)


def test_where_the_target_comes_from(monkeypatch):
    source = Operation("k").source()
    monkeypatch.setattr("pycutlass.device.current_target", lambda: "sm_89")
    assert choose_target(source) == "sm_89"
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_86")
    assert choose_target(source) == "sm_86"
    assert choose_target(source, "sm_90") == "sm_90"
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_75")
    with pytest.raises(ArgumentError, match="PYCUTLASS_TARGET is sm_75"):
        choose_target(source)
    monkeypatch.delenv("PYCUTLASS_TARGET")
    monkeypatch.setattr("pycutlass.device.current_target", lambda: "sm_75")
    with pytest.raises(ArgumentError, match="the present GPU is sm_75"):
        choose_target(source)


def test_an_untried_target_is_noted(caplog):
    choose_target(Operation("k").source(), "sm_100")
    assert "sm_100 is not among" in caplog.text


# One kernel.


def test_an_operation_gets_its_artifact(tmp_path):
    operation = Operation("kernel_a")
    (artifact,) = compiler.add_module([operation])
    assert operation.artifacts == {"sm_80": artifact}
    assert (artifact.name, artifact.target, artifact.key) == ("kernel_a", "sm_80", make_key(artifact.fields))
    assert kernel_names(artifact.cubin) == ("kernel_a",)
    (tmp_path / "host.so").write_bytes(artifact.host)
    info = (ctypes.c_uint32 * 2)()
    ctypes.CDLL(str(tmp_path / "host.so")).pycutlass_describe(info)
    assert list(info) == [1, 16]
    assert artifact.report["registers"] > 0 and artifact.report["cubin_bytes"] == len(artifact.cubin)
    assert artifact.report["compiler"].startswith("nvrtc 1")
    assert KernelCache().get(artifact.key) == artifact


def test_targets_of_one_operation_are_kept_apart():
    operation = Operation("kernel_a")
    compiler.add_module([operation])
    compiler.add_module([operation], target="sm_90")
    assert set(operation.artifacts) == {"sm_80", "sm_90"}
    assert operation.artifacts["sm_80"].cubin != operation.artifacts["sm_90"].cubin


@pytest.mark.parametrize("wrong", [Operation("k"), [Operation("k"), "kernel"], ["kernel"]])
def test_what_is_no_list_of_operations_is_refused(wrong):
    with pytest.raises(ArgumentTypeError, match="list of operations"):
        compiler.add_module(wrong)


def test_an_empty_module_is_nothing():
    assert compiler.add_module([]) == []


def test_equal_operations_are_compiled_once(builds):
    first, second, other = Operation("kernel_a"), Operation("kernel_a"), Operation("kernel_b")
    artifacts = compiler.add_module([first, second, other, first])
    assert sorted(builds) == ["kernel_a", "kernel_b"]
    assert [artifact.name for artifact in artifacts] == ["kernel_a", "kernel_a", "kernel_b", "kernel_a"]
    assert first.artifacts == second.artifacts


def test_kernels_of_one_name_and_different_text_live_together(builds):
    first, second = Operation("kernel_a"), Operation("kernel_a", body="params.out[0] = 2;")
    one, two = compiler.add_module([first, second])
    assert one.key != two.key and one.cubin != two.cubin and len(builds) == 2


def test_sides_that_disagree_are_refused(tmp_path):
    broken = Operation("kernel_a", extra="\n#ifdef __CUDACC__\nint more[4];\n#endif\n")
    with pytest.raises(CompileError, match=r"kernel_a.* 32 bytes .* 16\b"):
        compiler.add_module([broken])
    assert broken.artifacts == {} and KernelCache().entries() == []


# The cache.


def test_a_second_call_compiles_nothing(builds):
    compiler.add_module([Operation("kernel_a")])
    again = Operation("kernel_a")
    compiler.add_module([again])
    assert builds == ["kernel_a"] and again.artifacts["sm_80"].name == "kernel_a"


def write_script(path: Path, text: str) -> list[str]:
    """A program that begins with what this test module has."""
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_compiler import *\n{text}"
    )
    return [sys.executable, str(path)]


def environment(**more: str) -> dict[str, str]:
    root = str(Path(compiler.__file__).parents[2])
    more = {"PYCUTLASS_TARGET": "sm_80", **more}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))), **more}


def test_a_second_process_starts_no_program_and_is_quick(tmp_path):
    compiler.add_module([Operation("kernel_a")])
    command = write_script(
        tmp_path / "second.py",
        """
import sqlite3, subprocess, time

def refuse(*args, **kwargs):
    raise AssertionError(f"a program is started: {args}")

subprocess.Popen = refuse
operation = Operation("kernel_a")
started = time.perf_counter()
compiler.add_module([operation])
seconds = time.perf_counter() - started
heavy = [name for name in sys.modules if name.split(".")[0] in {"cuda", "rich"}]
print(json.dumps({"seconds": seconds, "heavy": heavy, "targets": list(operation.artifacts)}))
""",
    )
    runs = [
        json.loads(subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    assert runs[0]["targets"] == ["sm_80"] and runs[0]["heavy"] == []
    # 10 ms on a quiet machine, and a compiler cannot run; the rest is for machines that are busy.
    assert min(run["seconds"] for run in runs) < 0.15


def test_processes_that_want_the_same_kernel_build_it_once(tmp_path):
    command = write_script(
        tmp_path / "racing.py",
        """
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
compiler.add_module([Operation("kernel_a")])
""",
    )
    running = [subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sum("compiled kernel_a for sm_80" in output for output in outputs) == 1


def test_a_cache_that_lacks_a_kernel_when_compiling_is_forbidden(monkeypatch, builds):
    compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    compiler.add_module([Operation("kernel_a")])
    with pytest.raises(NotCompiledError) as caught:
        compiler.add_module([Operation("kernel_a"), Operation("kernel_b")])
    for part in ("PYCUTLASS_NO_COMPILE", "kernel_b for sm_80", "device_compiler: nvrtc", "cutlass: 4.", "host_flags:"):
        assert part in str(caught.value)
    assert builds == ["kernel_a"]


def test_without_a_compiler_the_cache_is_searched_for_the_text(monkeypatch, builds, caplog):
    compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("CXX", "/nowhere/g++")
    found = Operation("kernel_a")
    with caplog.at_level(logging.INFO, "pycutlass"):
        compiler.add_module([found])
    assert found.artifacts["sm_80"].name == "kernel_a" and "kernels come from the cache alone" in caplog.text
    with pytest.raises(ToolkitError, match=r"(?s)/nowhere/g\+\+ .*the cache .* does not have kernel_a for sm_90"):
        compiler.add_module([found], target="sm_90")
    with pytest.raises(ToolkitError, match="kernel_b for sm_80"):
        compiler.add_module([Operation("kernel_b")])


# Every field of the key counts.


def key_of(source: KernelSource, target: str, found: tools.Tools) -> str:
    return make_key(found.key_fields(source, target))


@pytest.mark.parametrize("change", ["name", "text"])
def test_key_follows_the_kernel(change):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    source = Operation("kernel_a").source()
    other = dataclasses.replace(source, **{change: getattr(source, change) + "x"})
    assert key_of(source, "sm_80", found) != key_of(other, "sm_80", found)


@pytest.mark.parametrize(
    "field", ["cutlass", "cuda_headers", "device_compiler", "nvrtc_steps", "host_compiler", "headers"]
)
def test_key_follows_every_tool(field):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    source = Operation("kernel_a").source()
    assert found.key_fields(source, "sm_80")[field]
    before = key_of(source, "sm_80", found)
    assert key_of(source, "sm_80", found) == before
    other = dataclasses.replace(found, fields={**found.fields, field: "another"})
    assert key_of(source, "sm_80", other) != before


def test_key_follows_the_schema(monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    before = key_of(Operation("kernel_a").source(), "sm_80", found)
    monkeypatch.setattr(tools, "_SCHEMA", "next")
    assert key_of(Operation("kernel_a").source(), "sm_80", found) != before


@pytest.mark.parametrize("side", ["device", "host"])
def test_key_follows_the_flags(side, monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    source = Operation("kernel_a").source()
    before = key_of(source, "sm_80", found)
    monkeypatch.setattr(getattr(found, side), "flags", lambda target: ("-O0",))
    assert key_of(source, "sm_80", found) != before
    assert "-DNDEBUG" in tools.find_tools("nvrtc", toolkit.without_memo).device.flags("sm_80")


def test_key_follows_target_and_not_the_place_of_the_headers(monkeypatch, tmp_path):
    source = Operation("kernel_a").source()
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    assert key_of(source, "sm_80", found) != key_of(source, "sm_90", found)
    (tmp_path / "a place").symlink_to(toolkit.find_cutlass().root)
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "a place"))
    elsewhere = tools.find_tools("nvrtc", toolkit.without_memo)
    assert elsewhere.device.includes != found.device.includes
    assert key_of(source, "sm_80", elsewhere) == key_of(source, "sm_80", found)


# Which device compiler.


def test_backend_is_nvcc_where_there_is_one(monkeypatch):
    monkeypatch.delenv("PYCUTLASS_BACKEND")

    def present(memo):
        return toolkit.find_nvrtc()

    def missing(memo):
        raise ToolkitError("not here")

    monkeypatch.setattr(tools, "_FINDERS", {"nvcc": present, "nvrtc": missing})
    assert compiler.backend() == "nvcc"
    monkeypatch.setattr(tools, "_FINDERS", {"nvcc": missing, "nvrtc": present})
    assert compiler.backend() == "nvrtc"
    monkeypatch.setattr(tools, "_FINDERS", {"nvcc": missing, "nvrtc": missing})
    with pytest.raises(ToolkitError, match="there is no device compiler"):
        compiler.backend()


def test_backend_is_chosen_by_call_before_variable(monkeypatch):
    monkeypatch.setattr(tools, "_FINDERS", dict.fromkeys(["nvcc", "nvrtc"], lambda memo: toolkit.find_nvrtc()))
    monkeypatch.setenv("PYCUTLASS_BACKEND", "nvcc")
    assert compiler.backend() == "nvcc"
    compiler.nvrtc()
    assert compiler.backend() == "nvrtc"
    compiler.nvcc()
    assert compiler.backend() == "nvcc"


def test_an_unknown_backend_is_refused(monkeypatch):
    monkeypatch.setenv("PYCUTLASS_BACKEND", "clang")
    with pytest.raises(ArgumentError, match=r"one of nvcc, nvrtc; it is 'clang'"):
        compiler.add_module([Operation("kernel_a")])


def test_the_log_says_once_who_compiles(caplog):
    with caplog.at_level(logging.INFO, "pycutlass"):
        compiler.add_module([Operation("kernel_a")])
        compiler.add_module([Operation("kernel_b")])
    assert caplog.text.count("kernels are compiled by nvrtc 1") == 1


def test_an_untried_cutlass_is_noted_once(monkeypatch, caplog):
    known = toolkit.find_cutlass()
    monkeypatch.setattr(tools, "find_cutlass", lambda: dataclasses.replace(known, version="4.9.0"))
    compiler.add_module([Operation("kernel_a")])
    compiler.add_module([Operation("kernel_a")])
    assert caplog.text.count("version 4.9.0; PyCUTLASS is written for") == 1


# Failures.


def test_a_failure_has_log_source_and_command_and_leaves_nothing(tmp_path):
    operation = Operation("kernel_a", body="params.out[0] = it's wrong \\n;")
    with pytest.raises(CompileError) as caught:
        compiler.add_module([operation])
    error = caught.value
    assert "kernel_a for sm_80" in str(error) and "error" in error.log and error.source == operation.source().text
    assert f"4 | {error.source.splitlines()[3]}" in str(error)
    assert operation.artifacts == {}
    assert KernelCache().entries() == []
    assert {path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir() if path.is_file()} == {"kernels.db"}


@pytest.mark.parametrize("side", ["device", "host"])
def test_the_command_in_a_failure_reproduces_it(side, tmp_path):
    condition = "#ifdef" if side == "device" else "#ifndef"
    operation = Operation("kernel_a", extra=f"\n{condition} __CUDACC__\nint quote = 'a' + undefined_name;\n#endif\n")
    with pytest.raises(CompileError) as caught:
        compiler.add_module([operation])
    done = subprocess.run(
        ["sh", "-c", caught.value.command], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 1
    assert "undefined_name" in done.stdout + done.stderr and "undefined_name" in caught.value.log
    mended = caught.value.command.replace("'a' + undefined_name", "'a'")
    subprocess.run(["sh", "-c", mended], check=True, capture_output=True, env={**os.environ, "TMPDIR": str(tmp_path)})


def test_a_command_survives_its_own_end_mark(tmp_path):
    text = "END_OF_KERNEL\nEND_OF_KERNEL_\n$HOME `ls` \\ 'quoted'"
    shown = subprocess.run(
        ["sh", "-c", reproduce(["cat", "kernel.cu"], text)],
        check=True, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert shown.stdout == text + "\n"


def test_the_others_of_a_call_are_kept_and_every_failure_is_told(builds):
    good, bad, worse = Operation("good"), Operation("bad", body="bad_name;"), Operation("worse", body="worse_name;")
    with pytest.raises(CompileError) as caught:
        compiler.add_module([bad, good, worse])
    for part in ("2 of 3 kernels", "kernel bad for", "bad_name", "kernel worse for", "worse_name", "To reproduce"):
        assert part in str(caught.value)
    assert "bad_name" in caught.value.log and caught.value.command
    assert [entry.name for entry in KernelCache().entries()] == ["good"]
    builds.clear()
    compiler.add_module([good])
    assert builds == []


def test_a_program_that_cannot_start_is_a_toolkit_error(tmp_path):
    with pytest.raises(ToolkitError, match="/nowhere/nvcc cannot be started"):
        Processes(1, 1).run(["/nowhere/nvcc"], tmp_path, memory=1, group="")


# Strict mode.


def test_a_bad_kernel_is_logged_and_refused_in_strict_mode(caplog, builds, monkeypatch):
    operation = Operation("kernel_a", body=ON_THE_STACK)
    compiler.add_module([operation])
    assert operation.artifacts["sm_80"].report["stack_bytes"] >= 256
    assert "stack frame of 256 bytes" in caplog.text
    strict = Operation("kernel_a", body=ON_THE_STACK)
    for ask in (lambda: compiler.add_module([strict], strict=True), lambda: compiler.add_module([strict])):
        monkeypatch.setenv("PYCUTLASS_STRICT", "1")
        with pytest.raises(BuildReportError, match=r"strict mode refuses 1 of 1 kernels:\n  kernel_a: .*256 bytes"):
            ask()
    assert strict.artifacts == {}
    compiler.add_module([strict], strict=False)
    assert "sm_80" in strict.artifacts
    assert builds == ["kernel_a"], "whether a kernel is refused is not part of its key"


def test_a_good_kernel_passes_strict_mode():
    operation = Operation("kernel_a")
    compiler.add_module([operation], strict=True)
    assert "sm_80" in operation.artifacts


# Many at once.


def run_many(processes: Processes, folder: Path, count: int, memory: int) -> int:
    """Run `count` programs that last 0.15 s and return how many ran at the same time at most."""
    script = (
        "import pathlib, sys, time; mine = pathlib.Path(sys.argv[1]); mine.touch(); "
        "print(len(list(mine.parent.glob('running*')))); time.sleep(0.15); mine.unlink()"
    )
    seen: list[int] = []

    def one(number: int) -> None:
        command = [sys.executable, "-c", script, str(folder / f"running{number}")]
        status, output = processes.run(command, folder, memory=memory, group="")
        assert status == 0
        seen.append(int(output))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == count
    return max(seen)


@pytest.mark.parametrize(
    ("jobs", "memory", "needed", "most"), [(1, 100, 1, 1), (2, 100, 1, 2), (8, 10, 5, 2), (8, 1, 5, 1)]
)
def test_no_more_compilers_than_cores_and_memory_carry(tmp_path, jobs, memory, needed, most):
    assert run_many(Processes(jobs, memory), tmp_path, 5, needed) <= most


def test_jobs_variable(monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "3")
    assert schedule.make_processes().jobs == 3
    monkeypatch.delenv("PYCUTLASS_JOBS")
    assert schedule.make_processes().jobs == len(os.sched_getaffinity(0))
    for wrong in ("0", "many", "-1", "1.5"):
        monkeypatch.setenv("PYCUTLASS_JOBS", wrong)
        with pytest.raises(ArgumentError, match="PYCUTLASS_JOBS"):
            schedule.make_processes()


def test_memory_is_that_of_the_container_where_it_is_less(monkeypatch, tmp_path):
    machine = schedule._machine_memory()
    assert 1 << 20 < machine < 1 << 50
    monkeypatch.setattr(schedule, "_CONTROL_GROUP", tmp_path)
    assert schedule._available_memory() >= 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert schedule._container_memory() == schedule._UNLIMITED
    (tmp_path / "memory.max").write_text("5000\n")
    assert schedule._available_memory() == 4000


def test_stopping_kills_what_a_compiler_started_and_starts_no_more(tmp_path):
    processes = Processes(4, 100)
    outcome: list[BaseException] = []

    def one(group: str) -> None:
        try:
            script = f"sleep 60 & echo $! > {tmp_path / 'child'}; wait"
            processes.run(["sh", "-c", script], tmp_path, memory=1, group=group)
        except StoppedError as error:
            outcome.append(error)

    thread = threading.Thread(target=one, args=("kernel",))
    thread.start()
    deadline = time.monotonic() + 10
    while not ((tmp_path / "child").exists() and (tmp_path / "child").read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    processes.stop("kernel")
    thread.join(10)
    assert len(outcome) == 1
    assert not is_running(child)
    with pytest.raises(StoppedError):
        processes.run(["true"], tmp_path, memory=1, group="kernel")
    assert processes.run(["true"], tmp_path, memory=1, group="another") == (0, "")
    processes.stop()
    with pytest.raises(StoppedError):
        processes.run(["true"], tmp_path, memory=1, group="another")


def is_running(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_an_interrupt_ends_the_compilers(tmp_path):
    (tmp_path / "compiler").write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 60\n")
    (tmp_path / "compiler").chmod(0o755)
    command = write_script(
        tmp_path / "interrupted.py",
        f"""
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
def job(processes):
    return processes.run([{str(tmp_path / "compiler")!r}], Path({str(tmp_path)!r}), memory=1, group="")
try:
    schedule.run_all([("kernel_a", job), ("kernel_b", job)], Processes(1, 1))
except KeyboardInterrupt:
    print("interrupted")
""",
    )
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 30
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
            assert time.monotonic() < deadline and running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=30)
    assert output == "interrupted\n"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_one_side_that_fails_ends_the_other(monkeypatch):
    """The host side is refused at once, the device side would take a minute."""
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    monkeypatch.setattr(found.device, "command", lambda source, output, target: ["sleep", "60"])
    monkeypatch.setattr(session, "_find_tools", lambda cache: found)
    started = time.monotonic()
    with pytest.raises(CompileError, match="host compiler failed"):
        compiler.add_module([Operation("kernel_a", extra="undefined_type value;")])
    assert time.monotonic() - started < 20


def test_a_compiler_that_is_killed_is_named(monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    monkeypatch.setattr(found.device, "command", lambda source, output, target: ["sh", "-c", "kill -9 $$"])
    monkeypatch.setattr(session, "_find_tools", lambda cache: found)
    with pytest.raises(CompileError, match=r"nvrtc was killed by SIGKILL \(out of memory\? PYCUTLASS_JOBS=1"):
        compiler.add_module([Operation("kernel_a")])


def test_a_compiler_without_output_is_named(monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    monkeypatch.setattr(found.device, "command", lambda source, output, target: ["true"])
    monkeypatch.setattr(session, "_find_tools", lambda cache: found)
    with pytest.raises(CompileError, match="nvrtc made no output on kernel kernel_a"):
        compiler.add_module([Operation("kernel_a")])


def test_a_progress_bar_on_a_terminal_when_it_takes_a_while(monkeypatch, capfd):
    monkeypatch.setattr(schedule, "_PATIENCE", 0.05)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    processes = Processes(2, 1 << 40)
    jobs = [(f"kernel_{name}", lambda _: time.sleep(0.2)) for name in "ab"]
    assert schedule.run_all(jobs, processes) == [None, None]
    assert "compiling" in capfd.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    schedule.run_all(jobs, processes)
    assert capfd.readouterr().err == ""
