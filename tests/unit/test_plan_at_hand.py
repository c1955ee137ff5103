"""Of kernels that are as fast, plans take one that is compiled already, where it adds up in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cached import REPORT
from recorded_gemms import tnt

import pycutlass
from pycutlass import compiler, device
from pycutlass.cache import Artifact, make_key
from pycutlass.compiler import session
from pycutlass.device import Device
from pycutlass.epilogue import fusions
from pycutlass.errors import ArgumentError
from pycutlass.plan import Candidate, measured, pick, ranking
from pycutlass.plan.added import Added
from pycutlass.plan.choices import Choices
from pycutlass.plan.gemm import gemm_of_kind
from pycutlass.plan.measured import generation
from pycutlass.plan.pick import _summation as summation
from pycutlass.plan.readings import range_of
from pycutlass.plan.records import problem_record
from pycutlass.trials import Database, Machine, Trial

H200 = Device(0, "NVIDIA H200", 90, 132)


def near(size: tuple[int, int, int]) -> tuple[Candidate, list[Candidate], list[Candidate]]:
    """Return the best, those as fast that add up as it does, and those that do not."""
    first, *others = ranking(tnt(), *size, gpu=H200)
    fast = [each.candidate for each in others if each.microseconds <= 1.01 * first.microseconds]
    alike = [each for each in fast if summation(each) == summation(first.candidate)]
    own = {kernel.source() for kernel in first.candidate.kernels}
    alike = [each for each in alike if not own & {kernel.source() for kernel in each.kernels}]
    return first.candidate, alike, [each for each in fast if summation(each) != summation(first.candidate)]


@pytest.fixture(scope="module")
def size() -> tuple[int, int, int]:
    sizes = ((m, n, k) for m in range(512, 4096, 64) for n in (512, 768) for k in (8192, 32768) if range_of(m) == m)
    return next(size for size in sizes if all(near(size)[1:]))


@pytest.fixture(autouse=True)
def gpu(private_session: None, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let there be an H200, and a compiler that takes no time."""
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    monkeypatch.setattr(device, "describe", lambda ordinal=0: H200)
    monkeypatch.setattr(device, "current", lambda: 0)

    def build(source: Any, target: str, tools: Any, processes: Any) -> Artifact:
        fields = tools.key_fields(source, target)
        return Artifact(make_key(fields), source.name, target, fields, b"device", b"host", dict(REPORT))

    monkeypatch.setattr(session, "build", build)
    yield
    best, alike, unlike = near(size)
    forget(best, *alike, *unlike)


def compiled(candidate: Candidate) -> None:
    """Compile a candidate in what would be another process."""
    compiler.add_module(candidate.kernels)
    forget(candidate)


def forget(*candidates: Candidate) -> None:
    for candidate in candidates:
        for kernel in candidate.kernels:
            kernel.artifacts.clear()


def chosen(size: tuple[int, int, int]) -> Candidate:
    return Choices(tnt(), size[1:], None, 0).of(size[0])


def test_it_is_taken_where_it_adds_up_alike(size: tuple[int, int, int]) -> None:
    best, alike, unlike = near(size)
    assert chosen(size) == best
    compiled(unlike[0])
    assert chosen(size) == best, "results do not depend on what is compiled"
    compiled(alike[-1])
    assert chosen(size) == alike[-1]
    assert all(kernel.artifacts for kernel in alike[-1].kernels), "and is not looked for again"
    forget(alike[-1])
    compiled(best)
    assert chosen(size) == best


def test_why_is_of_the_kernel_that_an_extent_has(size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel of the end of a range does not take an extent, what is said of it is not said of the other."""
    _, alike, _ = near(size)
    compiled(alike[-1])
    choices = Choices(tnt(), size[1:], None, 0)
    choices.of(size[0])
    assert "compiled already" in choices.why(size[0], "M")

    def refuse(candidate: Candidate, extent: int) -> None:
        raise ArgumentError("it takes no such M")

    others = Choices(tnt(), size[1:], None, 0)
    monkeypatch.setattr(others, "_require", refuse)
    others.of(size[0] - 1)
    assert "compiled already" not in others.why(size[0] - 1, "M")


def test_on_the_host_nothing_is_looked_for(size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycutlass.plan.choices.without_gpu", lambda: H200)
    best, alike, _ = near(size)
    compiled(alike[-1])
    assert Choices(tnt(), size[1:], None, None).of(size[0]) == best


@pytest.mark.parametrize(("name", "value"), [("STRICT", "1"), ("NO_COMPILE", "perhaps"), ("BACKEND", "gcc")])
def test_what_add_module_may_refuse_is_left_to_it(
    size: tuple[int, int, int], name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, alike, _ = near(size)
    compiled(alike[-1])
    monkeypatch.setenv(f"PYCUTLASS_{name}", value)
    assert chosen(size) == best


def plan_of(size: tuple[int, int, int]) -> Any:
    m, n, k = size
    return gemm_of_kind(tnt(), (m, n, k), None, 0, {}, Added(False, False, ""))


def test_a_plan_says_why_it_has_another_than_the_first(size: tuple[int, int, int]) -> None:
    best, alike, _ = near(size)
    assert f"chosen: {best.name}\n" in plan_of(size).explain()
    compiled(alike[-1])
    text = plan_of(size).explain()
    assert f"chosen: {alike[-1].name}; it is compiled already, as fast as" in text
    forget(alike[-1])
    assert f"; it is the likely fastest for M={range_of(1001):,}, the end of" in plan_of((1001, 512, 512)).explain()


def test_a_plan_says_that_a_kernel_was_measured(size: tuple[int, int, int], monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "trials.db"))
    machine = Machine(H200.name, H200.sm_count, 90, "4.2.0", "nvcc 13.0.88", "0.1.0")
    monkeypatch.setattr(measured, "machine_of", lambda ordinal: machine)
    generation.begin()
    last = ranking(tnt(), *size, gpu=H200)[-1].candidate
    times = {"time": 1.0, "low": 1.0, "high": 1.0, "rounds": 3}
    Database().add(Trial(problem_record(tnt(), *size), last.choice(), machine, **times))
    text = plan_of(size).explain()
    assert f"chosen: {last.name}; it is the fastest that was measured\n" in text
    marked = [line for line in text.splitlines() if line.startswith("*")]
    assert len(marked) == 1 and last.name in marked[0], "it is shown, however far behind it is predicted to be"
    generation.begin()


@pytest.mark.parametrize("name", ["layer_norm_statistics", "softmax_statistics", "quantize_rows"])
def test_kernels_with_sums_of_tiles_stand_for_none_of_another_tile(name: str) -> None:
    """Each tile adds up its own results, so which tiles there are decides the order."""
    spec = pycutlass.TensorSpec((1024, 1024), "float16")
    function = getattr(fusions, name)
    plan = pycutlass.Gemm(spec, pycutlass.TensorSpec((1024, 1024), "float16", (1, 1024)), epilogue=function)
    best = pick(plan.kind, 1024, 1024, 1024, gpu=H200)
    tiles: list[Any] = []

    def is_compiled(other: Candidate) -> bool:
        tiles.append(other.operation.tile_description.threadblock_shape)
        return False

    assert pick(plan.kind, 1024, 1024, 1024, gpu=H200, is_compiled=is_compiled) == best
    assert set(tiles) == {best.operation.tile_description.threadblock_shape}
