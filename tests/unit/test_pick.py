"""The pick without measuring: beside what was measured on an H200, the same everywhere, quick, with clear errors."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_gemms import described, tnt

import pycutlass
from pycutlass import cutlass
from pycutlass.compiler.choice import choose_target
from pycutlass.device import Device
from pycutlass.epilogue import Source, fusions
from pycutlass.errors import ArgumentError, ArgumentTypeError, DeviceError
from pycutlass.plan import Candidate, GemmKind, candidates, pick, ranking, second_opinion
from pycutlass.plan.constants import Constants, constants_of
from pycutlass.plan.model import Model
from pycutlass.plan.pick import _summation as summation

H200 = Device(0, "NVIDIA H200", 90, 132)
H100 = Device(0, "NVIDIA H100 80GB HBM3", 90, 132)
A100 = Device(0, "NVIDIA A100-SXM4-80GB", 80, 108)
L40S = Device(0, "NVIDIA L40S", 89, 142)
UNKNOWN = Device(0, "NVIDIA of another kind", 120, 170)
ALL = (H200, A100, L40S, UNKNOWN)


@pytest.mark.parametrize("gpu", ALL, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("size", [(1, 4096, 4096), (16, 4096, 4096), (777, 1000, 512), (4096, 4096, 4096)])
def test_ranked_candidates_take_the_problem(gpu: Device, size: tuple[int, int, int]) -> None:
    ranked = ranking(tnt(), *size, gpu=gpu)
    assert ranked[0].candidate == pick(tnt(), *size, gpu=gpu)
    # Kernels for few rows or columns come last where there are many of both.
    later = [min(size[:2]) > 8 and each.candidate.operation.tile_description.is_gemv for each in ranked]
    times = [each.microseconds for each in ranked]
    assert [*zip(later, times, strict=True)] == sorted(zip(later, times, strict=True))
    assert all(math.isfinite(time) and time > 0 for time in times)
    assert all(each.waves >= 1 and each.note.startswith("limited by ") for each in ranked)
    for each in ranked:
        assert each.candidate.operation.supports(each.candidate.size(*size))


@pytest.mark.parametrize("corrected", [False, True])
def test_longer_problems_take_longer(corrected: bool) -> None:
    """Each kernel by the terms of the model; with what was learned, those that come into question."""
    whole = tuple(candidate for candidate in candidates(tnt(), 90) if not candidate.operation.is_stream_k)
    constants = constants_of(H200)
    model = Model(tnt(), whole, constants if corrected else dataclasses.replace(constants, correction=None))
    for m, n, k in ((64, 512, 512), (1000, 3000, 1600), (8192, 8192, 8192)):
        small = model.predict(m, n, k).microseconds
        in_question = small <= (1.5 * small.min() if corrected else math.inf)
        assert in_question.sum() >= 10
        longer = model.predict(m, n, 2 * k).microseconds
        assert (longer >= small)[in_question].all()  # GEMV tiles that are longer than both K take the same time
        assert np.mean((longer > small)[in_question]) > 0.9
        assert (model.predict(2 * m, 2 * n, k).microseconds >= small)[in_question].all()
        assert (model.predict(m, n, k, 3).microseconds >= small)[in_question].all()


@pytest.mark.parametrize("gpu", [H200, H100])
def test_no_faster_than_memory_and_tensor_cores(gpu: Device) -> None:
    constants = constants_of(gpu)
    model = Model(tnt(), candidates(tnt(), 90), constants)
    for m, n, k in ((1, 28672, 8192), (128, 8192, 8192), (4096, 4096, 4096)):
        least = max(
            2 * (m * k + k * n + m * n) / (constants.dram_gb_per_s * 1e3),
            m * n * k / (constants.macs_per_cycle["f16"] * constants.sm_count * constants.clock_ghz * 1e3),
        )
        assert (model.predict(m, n, k).microseconds > least).all()


def test_few_rows_take_kernels_for_few_rows() -> None:
    for m in (1, 2, 8, 16):
        tile = pick(tnt(), m, 4096, 4096, gpu=H200).operation.tile_description
        assert min(tile.threadblock_shape[:2]) <= 16


def without_strips(constants: Constants) -> Constants:
    return dataclasses.replace(constants, gemv={**constants.gemv, "strided": 0.0})


def test_gemv_kernels_read_narrow_strips_of_long_rows_slowly() -> None:
    a = pycutlass.TensorSpec((2, 4096), "float16")
    kinds = [
        pycutlass.Gemm(a, pycutlass.TensorSpec((4096, 24576), "float16", strides)).kind
        for strides in (None, (1, 4096))  # by rows, and along K
    ]
    longer: dict[bool, list[float]] = {True: [], False: []}
    for kind in kinds:
        listed = [each for each in candidates(kind, 90) if each.operation.tile_description.is_gemv]
        listed = [each for each in listed if not each.operation.swap_ab]
        constants = constants_of(H200)
        models = [Model(kind, listed, each) for each in (constants, without_strips(constants))]
        slow, quick = (model.predict(2, 24576, 4096).microseconds for model in models)
        for each, ratio in zip(listed, slow / quick, strict=True):
            is_narrow = kind is kinds[0] and each.operation.tile_description.threadblock_shape[1] < 128
            longer[is_narrow].append(float(ratio))
    assert set(longer[False]) == {1.0} and min(longer[True]) >= 1.0 and max(longer[True]) > 1.1


def test_long_k_is_divided() -> None:
    assert pick(tnt(), 512, 512, 65536, gpu=H200).split_k_slices > 1
    assert pick(tnt(), 8192, 8192, 512, gpu=H200).split_k_slices == 1


def test_a_batch_is_one_launch() -> None:
    chosen = pick(tnt(), 512, 512, 512, batch=16, gpu=H200)
    assert chosen.split_k_slices == 1
    assert chosen.operation.supports(chosen.size(512, 512, 512, 16))
    alone, together = (ranking(tnt(), 512, 512, 512, batch, H200)[0].microseconds for batch in (1, 64))
    assert alone < together < 64 * alone


@pytest.mark.parametrize("given", [3, True, "yes"])
def test_what_says_whether_kernels_are_compiled_is_a_function(given: Any) -> None:
    said = f"is_compiled must be a function of a candidate .*, got {given!r}: leave it out"
    with pytest.raises(ArgumentTypeError, match=said):
        pick(tnt(), 256, 256, 256, gpu=H200, is_compiled=given)


def test_one_that_is_compiled_is_preferred_where_it_adds_up_alike() -> None:
    def near(size: tuple[int, int, int]) -> tuple[list[Candidate], list[Candidate]]:
        """Return those as fast as the best that add up as it does, and those that do not."""
        first, *others = ranking(tnt(), *size, gpu=H200)
        fast = [each.candidate for each in others if each.microseconds <= 1.01 * first.microseconds]
        alike = [each for each in fast if summation(each) == summation(first.candidate)]
        return alike, [each for each in fast if each not in alike]

    sizes = ((m, n, k) for m in range(512, 4096, 64) for n in (512, 768) for k in (8192, 32768))
    size = next(size for size in sizes if all(near(size)))
    (alike, unlike), ranked = near(size), ranking(tnt(), *size, gpu=H200)
    best = ranked[0]
    assert pick(tnt(), *size, gpu=H200, is_compiled=lambda each: each == alike[-1]) == alike[-1]
    assert pick(tnt(), *size, gpu=H200, is_compiled=lambda each: each in unlike) == best.candidate
    far = {each.candidate for each in ranked if each.microseconds > 1.01 * best.microseconds}
    assert pick(tnt(), *size, gpu=H200, is_compiled=far.__contains__) == best.candidate


def test_the_pick_is_the_same_in_every_process() -> None:
    sizes = [(1, 4096, 4096), (333, 1024, 4096), (4096, 4096, 4096)]
    script = (
        "from recorded_gemms import tnt\nfrom pycutlass.device import Device\nfrom pycutlass.plan import pick\n"
        f"print([pick(tnt(), *size, gpu=Device(0, 'NVIDIA H200', 90, 132)).name for size in {sizes}])"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str([pick(tnt(), *size, gpu=H200).name for size in sizes])


def test_a_query_takes_microseconds() -> None:
    """In units of a logarithm of all candidates, of some 5 us, since machines differ and do other work meanwhile."""
    pick(tnt(), 64, 64, 64, gpu=H200)
    values = np.arange(1.0, 1 + len(candidates(tnt(), 90)))
    spans, units = [], []
    for m in range(8, 808, 8):
        start = time.perf_counter()
        pick(tnt(), m, 4096, 4096, gpu=H200)
        between = time.perf_counter()
        np.log(values)
        spans.append(between - start)
        units.append(time.perf_counter() - between)
    print(f"{min(spans) * 1e6:.0f} us, {min(spans) / min(units):.0f} logarithms")
    assert min(spans) < 400 * min(units)


def test_a_problem_that_no_kernel_takes_is_explained() -> None:
    with pytest.raises(ArgumentError, match=r"no kernel takes 64x64x60 \(M x N x K\).*alignment 8") as refused:
        pick(tnt(), 64, 64, 60, gpu=H200)
    assert "must be a multiple of that, got 60. Pad the tensor with 4 columns of zeros" in str(refused.value)
    assert ranking(tnt(), 64, 64, 60, gpu=H200) == ()
    kind = described(cutlass.float_e4m3, cutlass.bfloat16, "tnt", pycutlass.MathOperation.multiply_add_fast_accum)
    with pytest.raises(ArgumentError, match="there is no kernel for GEMMs of this kind") as refused:
        pick(kind, 64, 64, 64, gpu=A100)
    assert "GemmKind" not in str(refused.value)
    assert str(refused.value).endswith(f"The kind has {kind}")
    assert str(kind) == (
        "A of cutlass.float_e4m3 in cutlass.RowMajor, aligned to 16 elements, B of cutlass.float_e4m3 in "
        "cutlass.ColumnMajor, aligned to 16 elements, C and D of cutlass.bfloat16 in cutlass.RowMajor, aligned to 8 "
        "elements; cutlass.float_e4m3 is multiplied by cutlass.float_e4m3 (multiply_add_fast_accum), summed up in "
        f"cutlass.float32, and the epilogue is {kind.epilogue!r}"
    )


@pytest.mark.parametrize(
    ("size", "gpu", "error"),
    [
        ((-1, 64, 64), H200, ArgumentError),
        ((64, 64, 64.5), H200, ArgumentTypeError),
        ((64, 64, 64), 0, ArgumentTypeError),
    ],
)
def test_other_arguments_are_refused(size: tuple[Any, ...], gpu: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        pick(tnt(), *size, gpu=gpu)
    with pytest.raises(ArgumentError):
        ranking(tnt(), 64, 64, 64, batch=0, gpu=H200)


def test_without_a_gpu_the_target_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycutlass.device.available", lambda: False)
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    assert pick(tnt(), 512, 512, 512).operation.is_sm90
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_80")
    assert not pick(tnt(), 512, 512, 512).operation.is_sm90
    monkeypatch.delenv("PYCUTLASS_TARGET")
    with pytest.raises(DeviceError, match="PYCUTLASS_TARGET"):
        pick(tnt(), 512, 512, 512)


def with_epilogue(epilogue: Any) -> GemmKind:
    return dataclasses.replace(tnt(), epilogue=epilogue)


def test_what_an_epilogue_reads_and_writes_takes_memory_time() -> None:
    """Matrices beside D count, and so does a C that is always read; of D behind pairs of columns there is half."""
    f16, f32 = cutlass.float16, cutlass.float32
    m, n, k, rate = 4096, 8192, 64, constants_of(H200).dram_gb_per_s * 1e3
    plain = ranking(tnt(), m, n, k, gpu=H200)[0]

    def memory(kind: GemmKind) -> float:
        model = Model(kind, (plain.candidate,), constants_of(H200))
        return float(model.predict(m, n, k).memory[0])

    def difference(epilogue: Any) -> float:
        return (memory(with_epilogue(epilogue)) - memory(tnt())) * rate / (m * n)

    @pycutlass.epilogue_function
    def with_source(accum: Any, c: Source) -> Any:
        return accum + c

    assert difference(fusions.bias_gelu(f16, 8)) == pytest.approx(0)
    assert difference(fusions.bias_residual_gelu(f16, 8)) == pytest.approx(2)
    assert difference(fusions.bias_residual_gelu(f16, 8, residual=f32)) == pytest.approx(4)
    assert difference(with_source(f16, 8)) == pytest.approx(2)
    assert difference(fusions.swiglu(f16, 8)) == pytest.approx(-1)


@pytest.mark.parametrize("gpu", [H200, A100])
@pytest.mark.parametrize("size", [(8, 4096, 4096), (300, 1000, 776), (4096, 8192, 512)])
def test_an_epilogue_of_vectors_has_the_kernel_of_a_linear_combination(gpu: Device, size: tuple[int, int, int]) -> None:
    """Where kernels of both take it: a bias and GELU hardly move anything."""
    plain, biased = tnt(), with_epilogue(fusions.bias_gelu(cutlass.float16, 8))
    of_both = [each.choice() for each in candidates(biased, gpu.compute_capability)]
    ranked = (each.candidate.choice() for each in ranking(plain, *size, gpu=gpu))
    best = next(choice for choice in ranked if choice in of_both)
    assert pick(biased, *size, gpu=gpu).choice() == best


@pytest.mark.parametrize("named", ["nonsense", "sm90", "sm_80a", "90"])
def test_a_target_that_is_none_is_refused_as_compilers_refuse_it(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setattr("pycutlass.device.available", lambda: False)
    monkeypatch.setenv("PYCUTLASS_TARGET", named)
    with pytest.raises(ArgumentError) as by_compilers:
        choose_target(pick(tnt(), 512, 512, 512, gpu=H200).operation.source())
    spec = pycutlass.TensorSpec
    plans = (
        lambda: pick(tnt(), 512, 512, 512),
        lambda: pycutlass.Gemm(spec((64, 64), "float16"), spec((64, 64), "float16")).candidate,
        lambda: pycutlass.Conv2d(spec((1, 8, 8, 8), "float16"), spec((8, 3, 3, 8), "float16")).candidate,
        lambda: pycutlass.GroupedGemm([spec((64, 64), "float16")], [spec((64, 64), "float16")]).candidate,
        lambda: pycutlass.matmul(np.ones((8, 8), np.float16), np.ones((8, 8), np.float16)),
    )
    for plan in plans:
        with pytest.raises(ArgumentError) as by_plans:
            plan()
        assert str(by_plans.value) == str(by_compilers.value)


def fake_heuristics(*kernels: dict[str, int]) -> types.ModuleType:
    """Return a module like nvMatmulHeuristics that answers with these kernels."""

    class Interface:
        def __init__(self, **given: Any) -> None:
            assert set(given) == {"backend", "flags", "load_discovery_implicitly", "gpu"}

        def createBackend(self, target: str) -> str:
            return target

        def makeNvMatmulHeuristicsProblem(self, m: int, n: int, k: int, layout: str, batch: int) -> tuple[Any, ...]:
            assert layout == "TN_ROW_MAJOR"
            return m, n, k, batch

        def getEx(self, problem: Any, count: int, backend: str, *, precision: str) -> list[dict[str, Any]]:
            assert precision == "HSH"
            return [{"kernel": types.SimpleNamespace(**kernel)} for kernel in kernels]

    module = types.ModuleType("nvMatmulHeuristics")
    module.NvMatmulHeuristicsTarget = {"CUTLASS3": "CUTLASS3"}  # type: ignore[attr-defined]
    module.NvMatmulHeuristicsFlags = types.SimpleNamespace(PERF_MODEL_BASED_AUTO_TUNING=1)  # type: ignore[attr-defined]
    module.NvMatmulHeuristicsMatmulLayout = {"TN_ROW_MAJOR": "TN_ROW_MAJOR"}  # type: ignore[attr-defined]
    module.NvMatmulHeuristicsInterfaceEx = Interface  # type: ignore[attr-defined]
    return module


def named(m: int, n: int, k: int, cluster: tuple[int, int]) -> dict[str, int]:
    extents = {"cta_tile_m": m, "cta_tile_n": n, "cta_tile_k": k}
    return {**extents, "cluster_m": cluster[0], "cluster_n": cluster[1], "split_k": 1}


def test_a_second_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    size = (4096, 4096, 4096)
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)  # what importing it would do where it is missing
    assert second_opinion(tnt(), *size, gpu=H200) is None
    answered = fake_heuristics(named(7, 7, 7, (1, 1)), named(128, 192, 64, (2, 1)))
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", answered)
    chosen = second_opinion(tnt(), *size, gpu=H200)
    assert isinstance(chosen, Candidate)
    assert chosen.operation.tile_description.threadblock_shape == (128, 192, 64)
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", fake_heuristics(named(7, 7, 7, (1, 1))))
    assert second_opinion(tnt(), *size, gpu=H200) is None


def test_predictions_are_arrays_in_the_order_of_candidates() -> None:
    found = candidates(tnt(), 90)
    prediction = Model(tnt(), found, constants_of(H200)).predict(256, 256, 256)
    assert prediction.microseconds.shape == prediction.waves.shape == (len(found),)
    assert np.isfinite(prediction.microseconds).all()
