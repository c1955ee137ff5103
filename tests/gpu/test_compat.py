"""The original's names on a GPU: testbeds, the timer, device memory."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import pycutlass
from pycutlass import (
    Conv2dOperation,
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    LinearCombination,
    MathInstruction,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass import test as testbeds

f16, f32 = cutlass.float16, cutlass.float32
TILE = TileDescription(
    [128, 128, 32], 3, [2, 2, 1], MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
)
ROW, COLUMN, NHWC = (
    TensorDescription(f16, layout, 8) for layout in (cutlass.RowMajor, cutlass.ColumnMajor, cutlass.TensorNHWC)
)
FUNCTOR = LinearCombination(f16, 8, f32, f32)


def test_device_cc_is_that_of_the_gpu() -> None:
    assert pycutlass.utils.device.device_cc() == pycutlass.device_cc() >= 75


def test_gemms_and_groups() -> None:
    gemm = GemmOperationUniversal(80, TILE, ROW, COLUMN, ROW, FUNCTOR)
    assert testbeds.test_all_gemm(gemm, "universal")
    grouped = GemmOperationGrouped(80, TILE, ROW, COLUMN, ROW, FUNCTOR, cutlass.BatchedIdentitySwizzle)
    assert testbeds.TestbedGrouped(grouped).run(12)
    assert pycutlass.get_allocated_size() == 0


@pytest.mark.parametrize("kind", list(cutlass.conv.Operator), ids=str)
def test_convolutions(kind: cutlass.conv.Operator) -> None:
    algorithm = cutlass.conv.IteratorAlgorithm.optimized
    unity = cutlass.conv.StrideSupport.unity
    assert testbeds.test_all_conv2d(Conv2dOperation(kind, algorithm, 80, TILE, NHWC, NHWC, NHWC, unity, FUNCTOR))


def test_fewer_outputs_than_there_are() -> None:
    for kind in cutlass.conv.Operator:
        algorithm, unity = cutlass.conv.IteratorAlgorithm.optimized, cutlass.conv.StrideSupport.unity
        launcher = testbeds.Conv2dLauncher(Conv2dOperation(kind, algorithm, 80, TILE, NHWC, NHWC, NHWC, unity, FUNCTOR))
        for p, q in ((5, 6), (6, 5), (1, 1)):  # of 7 x 7
            assert launcher.run(cutlass.conv.Conv2dProblemSize(N=2, H=9, W=9, C=16, K=8, R=3, S=3, P=p, Q=q)), kind


def test_a_launcher_measures() -> None:
    gemm = GemmOperationUniversal(80, TILE, ROW, COLUMN, ROW, FUNCTOR)
    launcher = testbeds.GemmUniversalLauncher(gemm, profiling=True, warmup_iterations=5, iterations=20)
    milliseconds = launcher.run(cutlass.gemm.Mode.Gemm, cutlass.gemm.GemmCoord(1024, 1024, 1024))
    assert 0.001 < milliseconds < 100


def test_the_timer_counts_the_gpus_time() -> None:
    import torch

    timer, tensor = testbeds.GpuTimer(), torch.ones(1, device="cuda")
    timer.start()
    torch.cuda._sleep(10_000_000)  # cycles
    timer.stop_and_wait()
    assert timer.duration() > 1
    assert tensor.item() == 1


def test_device_memory() -> None:
    module = importlib.import_module("pycutlass.memory_manager")
    before = module.get_allocated_size()
    buffer = module.todevice([1.0, 2.0, 3.0])
    assert module.get_allocated_size() > before
    back = np.zeros(3, np.float32)
    from pycutlass import _core

    _core.copy_to_host(back, buffer.pointer, buffer.stream)
    buffer.stream.synchronize()
    assert back.tolist() == [1.0, 2.0, 3.0]
    del buffer
    assert module.get_allocated_size() == before


def test_the_fast_clamp_knows_nothing_of_memory_on_the_gpu() -> None:
    import torch

    s8 = cutlass.int8
    math = MathInstruction([16, 8, 32], s8, s8, cutlass.int32, cutlass.OpClass.TensorOp)
    row, column = TensorDescription(s8, cutlass.RowMajor, 16), TensorDescription(s8, cutlass.ColumnMajor, 16)
    functor = pycutlass.FastLinearCombinationClamp(s8, 16)
    tile = TileDescription([128, 128, 64], 3, [2, 2, 1], math)
    operation = GemmOperationUniversal(80, tile, row, column, row, functor)
    pycutlass.compiler.add_module([operation])
    k, D = 512, np.zeros((16, 16), np.int8)
    ones = np.ones((16, k), np.int8)
    arguments = GemmArguments(operation, (16, 16, k), ones, ones.T, None, D)
    operation.run(arguments)
    arguments.sync()
    assert (D == 127).all()
    held = torch.ones((16, k), dtype=torch.int8, device="cuda")
    with pytest.raises(pycutlass.errors.ArgumentError, match="host memory alone"):
        GemmArguments(
            operation, (16, 16, k), held, held.T, None, torch.zeros((16, 16), dtype=torch.int8, device="cuda")
        )
