"""tools/fuzz: what is compiled for a kernel's problems, in which cache, and bundles of it, with compilers left out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

pytest.importorskip("torch")

from pycutlass import compiler  # noqa: E402
from pycutlass.cache import Artifact, KernelCache, make_key  # noqa: E402
from pycutlass.compiler.choice import choose_target, portable_fields  # noqa: E402
from pycutlass.errors import CompileError  # noqa: E402
from pycutlass.report import BuildReport  # noqa: E402
from pycutlass.toolkit.find import own_headers_digest  # noqa: E402
from tools.fuzz import __main__ as command  # noqa: E402
from tools.fuzz import bundles, processes, session  # noqa: E402
from tools.fuzz.bundling import Bundling  # noqa: E402
from tools.fuzz.cases import draw_case, needed, parts  # noqa: E402
from tools.fuzz.kernels import Kernel, draw_kernel  # noqa: E402

HOPPER = ("gemm hopper",)
PROBLEMS = 5


def hopper(index: int) -> Kernel:
    return draw_kernel(18, index, HOPPER)


def of_parts(count: int) -> int:
    """Return the number of a kernel of which so many are compiled: two are with arrays, three with a reduction."""
    wanted = (index for index in range(200) if len(parts(needed(hopper(index), range(PROBLEMS)))) == count)
    return next(wanted)


def compiled(operations: Iterable[Any]) -> list[Artifact]:
    """Return what stands for compiled kernels, found by their text and the headers."""
    made = []
    for operation in operations:
        source = operation.source()
        fields = portable_fields(source, choose_target(source, "sm_90"), own_headers_digest())
        made.append(stored(fields))
    return made


def stored(fields: dict[str, str]) -> Artifact:
    report = BuildReport(1, 0, 0, 0, 0, 0, False, (), 0.0, 0.0, 6, "none").as_json()
    return Artifact(make_key(fields), fields["name"], fields["target"], fields, b"device", b"host", report)


def options(**changed: Any) -> session.Options:
    given = {"seed": 18, "seconds": 60.0, "problems": PROBLEMS, "gpus": [], "target": "sm_90", "compiles": True}
    return session.Options(**(given | {"builders": 2, "runners": 0, "families": HOPPER} | changed))


# What is compiled


def test_whatever_a_problem_launches_is_compiled() -> None:
    seen = set()
    for index in range(100):
        kernel = draw_kernel(1, index, HOPPER)
        cases = [draw_case(kernel, number, attempt) for number in range(PROBLEMS) for attempt in range(4)]
        there = parts(needed(kernel, range(PROBLEMS)))
        launched = {"array": lambda of=kernel.operation: of.array, "parallel": lambda of=kernel.operation: of.partial}
        for mode in {case.mode for case in cases}:
            assert launched.get(mode, lambda of=kernel.operation: of)() in there, (index, mode)
            seen.add(mode)
        if "array" not in {case.mode for case in cases}:
            assert not any("gemm_array" in part.procedural_name() for part in there), index
    assert seen >= {"gemm", "array", "parallel"}


def test_arrays_are_compiled_only_for_the_problems_that_have_them() -> None:
    kernel = hopper(of_parts(2))
    (of_arrays, *_) = [number for number in range(PROBLEMS) if draw_case(kernel, number).mode == "array"]
    others = [number for number in range(PROBLEMS) if draw_case(kernel, number).mode != "array"]
    assert needed(kernel, others) == [kernel.operation]
    assert needed(kernel, [of_arrays]) == [kernel.operation, kernel.operation.array]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_a_builder_makes_is_what_a_runner_gets(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    index = of_parts(count)

    def add_module(operations: list[Any], target: str | None) -> None:
        for part, artifact in zip(parts(operations), compiled(parts(operations)), strict=True):
            part.artifacts[artifact.target] = artifact

    monkeypatch.setattr(compiler, "add_module", add_module)
    made = processes._built(hopper(index), PROBLEMS, "sm_90")
    assert len({artifact.name for artifact in made}) == count
    kernel = hopper(index)
    there = parts(needed(kernel, range(PROBLEMS)))
    for part in there:  # equal operations share what is compiled
        part.artifacts.clear()
    processes.give_artifacts(kernel, made, PROBLEMS)
    assert [list(part.artifacts.values()) for part in there] == [[each] for each in made]


def test_one_case_is_run_again_with_its_kernel_of_arrays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(compiler, "add_module", lambda operations, target: asked.extend(operations))
    index = of_parts(2)
    number = next(number for number in range(PROBLEMS) if draw_case(hopper(index), number).mode == "array")
    assert command.main(["--case", f"18:{index}:{number}", "--family", *HOPPER, "--dry"]) == 0
    assert asked == [hopper(index).operation, hopper(index).operation.array]
    assert "array: right" in capsys.readouterr().out


# In which cache


class _Pool:
    """Processes that are not there, and what they were to be given."""

    def __init__(self, work: Any, arguments: Iterable[tuple[Any, ...]]) -> None:
        self.work, self.given = work, list(arguments)
        self.members: list[Any] = []

    def idle(self) -> list[Any]:
        return []

    def heard(self, seconds: float) -> list[Any]:
        return []

    def end(self) -> None:
        pass


def started(monkeypatch: pytest.MonkeyPatch, running: session.Session) -> list[tuple[Any, ...]]:
    """Return what each builder of a run that ends at once gets."""
    monkeypatch.setattr(session, "Pool", _Pool)
    monkeypatch.setattr(running, "_finished", lambda: True)
    running.run()
    assert isinstance(running._builders, _Pool)
    assert running._builders.work is processes.build
    return running._builders.given


def test_builders_keep_what_they_make_where_a_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path))
    assert started(monkeypatch, session.Session(options())) == [
        (18, HOPPER, PROBLEMS, "sm_90", str(tmp_path), False) for _ in range(2)
    ]
    monkeypatch.delenv("PYCUTLASS_CACHE_DIR")
    ((*_, directory, _), _) = started(monkeypatch, session.Session(options()))
    assert "pycutlass-fuzz-" in directory
    assert not Path(directory).exists()


# Bundles


def test_a_bundle_is_exhausted_when_all_of_it_was_asked_for_or_nothing_is_found() -> None:
    content = bundles.Content(["a", "b", "c"])
    assert content.has(["a", "b"])
    assert not content.has(["b", "c", "d"])
    assert not content.is_exhausted
    assert content.has(["c"])
    assert content.is_exhausted
    lacking = bundles.Content(["a", "b"])
    for number in range(499):
        assert not lacking.has([str(number)])
    assert not lacking.is_exhausted
    lacking.has(["?"])
    assert lacking.is_exhausted


class _Built(Bundling):
    """A run that is said to have built some kernels before it ends."""

    def _start(self) -> None:
        self._builders, self._runners = (session.Pool(processes.build, []) for _ in range(2))
        self.tally.count("gemm hopper", "kernels")
        for index in (of_parts(1), of_parts(2)):
            artifacts = compiled(parts(needed(hopper(index), range(PROBLEMS))))
            for artifact in artifacts:
                KernelCache(self._cache).put(artifact)
            self._hear_builder(SimpleNamespace(task=hopper(index)), (index, artifacts, ""))


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("named", [True, False], ids=["named cache", "no cache"])
@pytest.mark.parametrize("ends", [interrupt, lambda: True], ids=["interrupted", "out of time"])
def test_what_is_built_by_the_end_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Any, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_Built, "_finished", lambda _: ends())
    if named:
        monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "named"))
    else:
        monkeypatch.delenv("PYCUTLASS_CACHE_DIR", raising=False)
    running = _Built(options(), file=tmp_path / "kernels.zip")
    running.run()
    running.show()
    assert running.well
    taken = KernelCache(tmp_path / "there").import_(tmp_path / "kernels.zip")
    assert len(taken.added) == 3
    said = capsys.readouterr().out
    assert "3 kernels in " in said
    assert "refused\n" not in said


def test_a_build_that_made_nothing_is_not_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = Bundling(options(seconds=0.0, builders=0), file=tmp_path / "kernels.zip")
    running.run()
    assert not running.well
    assert not (tmp_path / "kernels.zip").exists()
    running._fail_build(hopper(0), str(CompileError("static assertion")))
    running._keys.add("another")
    assert not running.well
    capsys.readouterr()


def fuzzed(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Return the end of what a dry run of a bundle prints."""
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(cache))
    given = ["--seed", "18", "--family", *HOPPER, "--dry", "--bundle", str(bundle)]
    few = ["--minutes", "1.5", "--builders", "1", "--runners", "1"]
    ended = subprocess.run(
        [sys.executable, "-m", "tools.fuzz", *given, *few, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    return f"{ended.returncode}\n{ended.stdout}\n{ended.stderr if ended.returncode else ''}".strip()


def test_kernels_of_a_bundle_run_and_others_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the third of four. The second is in the cache alone, and the fourth was built of other headers."""
    first, second, third, fourth = (compiled(parts(needed(hopper(index), range(PROBLEMS)))) for index in range(4))
    stale = stored(dict(fourth[0].fields) | {"headers": "others"})
    here, there = KernelCache(tmp_path / "here"), KernelCache(tmp_path / "there")
    for artifact in (*first, *third, stale):
        here.put(artifact)
    here.export(tmp_path / "kernels.zip")
    for artifact in second:
        there.put(artifact)
    there.close()
    said = fuzzed(tmp_path / "kernels.zip", tmp_path / "there", monkeypatch)
    assert said.startswith("0\n"), said
    assert f"2 kernels were passed over, which {tmp_path / 'kernels.zip'} lacks" in said
    assert said.splitlines()[-1].split()[:6] == ["all", "2", "10", "0", "0", "0"]
    assert said.splitlines()[-1].split()[-1] == "2"
    wrong = fuzzed(tmp_path / "kernels.zip", tmp_path / "there", monkeypatch, "--seed", "4", "--kernels", "3")
    assert wrong.startswith("1\n"), wrong
    assert "3 kernels were passed over" in wrong


@pytest.mark.parametrize("words", [["--build", "a", "--bundle", "b"], ["--dry", "--no-compile", "--bundle", "b"]])
def test_a_bundle_is_built_or_taken(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(words)
    assert "not allowed with" in capsys.readouterr().err
