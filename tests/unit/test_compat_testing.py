"""The original's testbeds on the host: what is right is said to be, and so is what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from pycutlass import (
    Conv2dOperation,
    GemmOperationUniversal,
    LinearCombination,
    MathInstruction,
    StrideSupport,
    TensorDescription,
    TileDescription,
    compiler,
    cutlass,
)
from pycutlass.compat import testing
from pycutlass.compat.testing import conv2d, gemm
from pycutlass.errors import ArgumentError

F16, F32 = cutlass.float16, cutlass.float32
MATH = MathInstruction([16, 8, 16], F16, F16, F32, cutlass.OpClass.TensorOp)
TILE = TileDescription([64, 64, 32], 3, [2, 2, 1], MATH)
ROW, COLUMN, NHWC = (
    TensorDescription(F16, order, 8) for order in (cutlass.RowMajor, cutlass.ColumnMajor, cutlass.TensorNHWC)
)
FUNCTOR = LinearCombination(F16, 8, F32, F32)
CONV = cutlass.conv
SIZE = cutlass.gemm.GemmCoord(40, 72, 256)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's reference needs no kernels."""
    monkeypatch.setattr(compiler, "add_module", lambda operations: [])


def gemm_launcher(**named: Any) -> testing.GemmUniversalLauncher:
    return testing.GemmUniversalLauncher(GemmOperationUniversal(80, TILE, ROW, COLUMN, ROW, FUNCTOR), **named)


def run_conv(mode: Any, slices: int) -> Any:
    operation = Conv2dOperation(
        *(CONV.Operator.fprop, CONV.IteratorAlgorithm.optimized, 80, TILE, NHWC, NHWC, NHWC),
        *(StrideSupport.Strided, FUNCTOR),
    )
    size = CONV.Conv2dProblemSize(1, 8, 8, 16, 8, 3, 3, pad_h=1, pad_w=1).reset_split_k_slices(slices)
    return testing.Conv2dLauncher(operation).run(size, mode, 2.0, 2.0)


GEMMS = [(cutlass.gemm.Mode.Gemm, 1), (cutlass.gemm.Mode.Gemm, 2), (cutlass.gemm.Mode.GemmSplitKParallel, 3)]
CONVOLUTIONS = [(CONV.SplitKMode.Serial, 1), (CONV.SplitKMode.Parallel, 2)]


@pytest.mark.parametrize(("mode", "slices"), GEMMS)
def test_gemms(mode: Any, slices: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = gemm_launcher()
    assert launcher.run(mode, SIZE, slices, 1.0, 2.0) is True and not capsys.readouterr().out
    right = gemm.ReferenceModule.run
    monkeypatch.setattr(gemm.ReferenceModule, "run", lambda *given: right(*given) + 1)
    assert launcher.run(mode, SIZE, slices, 1.0, 2.0) is False
    assert capsys.readouterr().out.startswith(
        f"wrong: M, N, K = 40, 72, 256 in {mode} with {slices} slices by cutlass_"
    )


@pytest.mark.parametrize(("mode", "slices"), CONVOLUTIONS)
def test_convolutions(
    mode: Any, slices: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_conv(mode, slices) is True and not capsys.readouterr().out
    right = conv2d.Conv2dReferenceModule.run
    monkeypatch.setattr(conv2d.Conv2dReferenceModule, "run", lambda *given: right(*given) + 1)
    assert run_conv(mode, slices) is False
    said = capsys.readouterr().out
    assert said.startswith("wrong: ") and f" in {mode} by cutlass_" in said


def test_a_launcher_that_measures_returns_milliseconds() -> None:
    launcher = gemm_launcher(profiling=True, verification=False, warmup_iterations=1, iterations=2)
    assert 0 < launcher.run(cutlass.gemm.Mode.Gemm, SIZE) < 10_000


def test_the_profiler_of_cutlass_is_refused_with_what_measures_instead() -> None:
    launcher = gemm_launcher()
    with pytest.raises(ArgumentError) as caught:
        launcher.run_cutlass_profiler(cutlass.gemm.Mode.Gemm, SIZE, batch_count=1, alpha=1.0, beta=0.0)
    remedy = "GemmUniversalLauncher(operation, profiling=True).run(...)"
    assert remedy in str(caught.value) and launcher.operation.procedural_name() in str(caught.value)
