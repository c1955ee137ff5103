"""Options of launches: on how many multiprocessors a kernel runs, and with which priority."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from cuda.bindings import driver
from descriptions import COLUMN, ROW
from hopper_classes import described, of_tma
from hopper_launches import TORCH, integers, matrix

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    MathInstruction,
    ReductionArguments,
    ReductionOperation,
    SchedulerMode,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import ArgumentError

F16, F32 = cutlass.float16, cutlass.float32
STREAM_K = cutlass.ThreadblockSwizzleStreamK
#: By name, with the threadblocks of a cluster.
SINGLES: dict[str, tuple[GemmOperationUniversal, int]] = {
    "cooperative": (described(C=of_tma("f16")), 1),
    "pingpong, cluster of 2": (described(C=of_tma("f16"), cluster=(2, 1), schedule=KernelSchedule.Pingpong), 2),
    "by columns, cluster of 4": (described(layouts=(COLUMN, ROW), C=of_tma("f16", COLUMN), cluster=(2, 2)), 4),
    "stream-K": (described(C=of_tma("f16"), swizzle=STREAM_K), 1),
    "stream-K, cluster of 2": (described(C=of_tma("f16"), swizzle=STREAM_K, cluster=(1, 2)), 2),
    "swapped": (described(C=of_tma("f16"), shape=(64, 16, 64), swap_ab=True), 1),
}
REDUCTION = ReductionOperation(
    cutlass.MatrixCoord(4, 256), of_tma("f16"), F32, epilogue_functor=LinearCombination(F16, 8, F32, F32), count=8
)


def _ampere_group(mode: SchedulerMode) -> GemmOperationGrouped:
    row, column = TensorDescription(F16, ROW, 8), TensorDescription(F16, COLUMN, 8)
    instruction = MathInstruction([16, 8, 16], F16, F16, F32, cutlass.OpClass.TensorOp)
    tile = TileDescription([128, 64, 32], 3, [2, 2, 1], instruction)
    return GemmOperationGrouped(80, tile, row, column, row, LinearCombination(F16, 8, F32, F32), precompute_mode=mode)


def _hopper_group() -> GemmOperationGrouped:
    single = described(C=of_tma("f16"), cluster=(2, 1))
    return GemmOperationGrouped(90, single.tile_description, single.A, single.B, single.C, single.epilogue_functor)


GROUPS: dict[str, tuple[GemmOperationGrouped, int]] = {
    "Ampere-style, device": (_ampere_group(SchedulerMode.Device), 1),
    "Ampere-style, host": (_ampere_group(SchedulerMode.Host), 1),
    "Hopper-native": (_hopper_group(), 2),
}
GROUP_SIZES = [(304, 136, 72), (0, 64, 64), (8, 1032, 256), (520, 264, 0), (136, 144, 528)]


@pytest.fixture(scope="module", autouse=True)
def compiled_at_once() -> None:
    partial, _ = SINGLES["cooperative"]
    pycutlass.compiler.add_module([each for each, _ in SINGLES.values()] + [each for each, _ in GROUPS.values()])
    pycutlass.compiler.add_module([partial, REDUCTION])


@functools.cache
def multiprocessors() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def limits(least: int) -> list[int]:
    """The least and a few that clusters do not divide, all, and more than there are."""
    return [least, least + 1, *(each for each in (7, 19, 61) if each > least), multiprocessors(), 1000]


def threadblocks(arguments: Any) -> int:
    x, y, z = arguments.launch_config.grid
    return int(x * y * z)


def poisoned(operation: Any, m: int, n: int) -> torch.Tensor:
    return matrix(getattr(operation, "D", operation.C), torch.full((m, n), float("nan"), device="cuda"))


@pytest.mark.parametrize("size", [(1032, 520, 264), (264, 272, 4104)])
@pytest.mark.parametrize("name", SINGLES)
def test_a_kernel_keeps_to_its_multiprocessors(name: str, size: tuple[int, int, int]) -> None:
    (operation, least), (m, n, k) = SINGLES[name], size
    a, b = integers(m, k), integers(k, n)
    A, B, exact = matrix(operation.A, a), matrix(operation.B, b), (a @ b).half()
    for limit in limits(least):
        D = poisoned(operation, m, n)
        arguments = GemmArguments(operation, size, A, B, None, D, sm_count=limit)
        assert arguments.sm_count == limit
        assert least <= threadblocks(arguments) <= min(limit, multiprocessors())
        for _ in range(2):
            operation.run(arguments)
        arguments.sync()
        assert torch.equal(D, exact), limit
        other = poisoned(operation, m, n)
        arguments.update(D=other)
        assert threadblocks(arguments) <= limit
        operation.run(arguments)
        arguments.sync()
        assert torch.equal(other, exact), limit
    with pytest.raises(ArgumentError, match="too few"):
        GemmArguments(operation, size, A, B, None, D, sm_count=least - 1)


@pytest.mark.parametrize("slices", [2, 5])
def test_slices_of_k_on_few_multiprocessors(slices: int) -> None:
    operation, (m, n, k) = SINGLES["stream-K"][0], (272, 144, 2064)
    a, b = integers(m, k), integers(k, n)
    for limit in limits(1):
        D = poisoned(operation, m, n)
        A, B = matrix(operation.A, a), matrix(operation.B, b)
        arguments = GemmArguments(operation, (m, n, k), A, B, None, D, split_k_slices=slices, sm_count=limit)
        operation.run(arguments)
        arguments.sync()
        assert torch.equal(D, (a @ b).half()), limit


def test_a_batch_and_partial_sums_on_few_multiprocessors() -> None:
    operation, (m, n, k) = SINGLES["cooperative"][0], (264, 272, 512)
    a, b = integers(3, m, k), integers(3, k, n)
    D = matrix(operation.C, torch.full((3, m, n), float("nan"), device="cuda"))
    A, B = matrix(operation.A, a), matrix(operation.B, b)
    mode = cutlass.gemm.Mode
    arguments = GemmArguments(operation, (m, n, k), A, B, None, D, mode.Batched, batch=3, sm_count=5)
    assert threadblocks(arguments) == 5
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(D, (a @ b).half())

    result = poisoned(operation, m, n)
    sums = GemmArguments(
        *(operation, (m, n, k), A[0], B[0], None, None, mode.GemmSplitKParallel),
        split_k_slices=4,
        sm_count=5,
        launch_priority=-1,
    )
    assert threadblocks(sums) == 5
    ending = ReductionArguments(REDUCTION, (m, n), 4, sums.ptr_D, result, launch_priority=-1)
    operation.run(sums)
    REDUCTION.run(ending)
    ending.sync()
    assert torch.equal(result, (a[0] @ b[0]).half())


def group(operation: GemmOperationGrouped) -> tuple[list[Any], list[Any], list[Any]]:
    a = [integers(m, k) for m, _, k in GROUP_SIZES]
    b = [integers(k, n) for _, n, k in GROUP_SIZES]
    exact = [(x @ y).half() for x, y in zip(a, b, strict=True)]
    return [matrix(operation.A, x) for x in a], [matrix(operation.B, y) for y in b], exact


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_keeps_to_its_multiprocessors(name: str) -> None:
    operation, least = GROUPS[name]
    A, B, exact = group(operation)
    for limit in limits(least):
        D = [poisoned(operation, m, n) for m, n, _ in GROUP_SIZES]
        arguments = GemmGroupedArguments(operation, GROUP_SIZES, A, B, None, D, sm_count=limit, launch_priority=-1)
        assert arguments.sm_count == limit
        assert threadblocks(arguments) <= min(limit, multiprocessors())
        operation.run(arguments)
        arguments.sync()
        assert all(map(torch.equal, D, exact)), limit
        # Other sizes: the problems in another order.
        others = [poisoned(operation, m, n) for m, n, _ in GROUP_SIZES[::-1]]
        arguments.update(problem_sizes=GROUP_SIZES[::-1], A=A[::-1], B=B[::-1], D=others)
        assert threadblocks(arguments) <= min(limit, multiprocessors())
        operation.run(arguments)
        arguments.sync()
        assert all(map(torch.equal, others, exact[::-1])), limit


def test_priorities_of_this_gpu_are_taken_and_others_refused() -> None:
    torch.cuda.init()
    error, least, greatest = driver.cuCtxGetStreamPriorityRange()  # of which PyTorch uses a part
    assert error == driver.CUresult.CUDA_SUCCESS
    for name in ("cooperative", "stream-K"):
        operation, (m, n, k) = SINGLES[name][0], (264, 272, 520)
        a, b = integers(m, k), integers(k, n)
        A, B = matrix(operation.A, a), matrix(operation.B, b)
        for priority in range(greatest, least + 1):
            D = poisoned(operation, m, n)
            arguments = GemmArguments(operation, (m, n, k), A, B, None, D, launch_priority=priority)
            assert arguments._execution.call.launch_priority == arguments.launch_priority == priority
            operation.run(arguments)
            arguments.sync()
            assert torch.equal(D, (a @ b).half())
            arguments.update(output_op=operation.epilogue_type(2.0))
            assert arguments._execution.call.launch_priority == priority
            operation.run(arguments)
            arguments.sync()
            assert torch.equal(D, (2 * (a @ b)).half())
        for priority, near in ((greatest - 1, greatest), (least + 1, least)):
            with pytest.raises(ArgumentError, match=f"use launch_priority={near}"):
                GemmArguments(operation, (m, n, k), A, B, None, D, launch_priority=priority)


def test_an_ampere_style_kernel_has_a_priority_and_no_limit() -> None:
    row, column = TensorDescription(F16, ROW, 8), TensorDescription(F16, COLUMN, 8)
    single = _ampere_group(SchedulerMode.Device)
    functor = LinearCombination(F16, 8, F32, F32)
    operation = GemmOperationUniversal(80, single.tile_description, row, column, row, functor)
    pycutlass.compiler.add_module([operation])
    a, b = integers(136, 72), integers(72, 264)
    A, B, D = matrix(row, a), matrix(column, b), poisoned(operation, 136, 264)
    arguments = GemmArguments(operation, (136, 264, 72), A, B, None, D, launch_priority=-1)
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(D, (a @ b).half())
    with pytest.raises(ArgumentError, match="a threadblock for each tile"):
        GemmArguments(operation, (136, 264, 72), A, B, None, D, sm_count=4)


@pytest.mark.parametrize("name", ["cooperative", "stream-K", "pingpong, cluster of 2"])
def test_a_graph_keeps_both(name: str) -> None:
    (operation, least), (m, n, k) = SINGLES[name], (520, 272, 1032)
    a, b = integers(m, k), integers(k, n)
    A, B, D = matrix(operation.A, a), matrix(operation.B, b), poisoned(operation, m, n)
    arguments = GemmArguments(operation, (m, n, k), A, B, None, D, sm_count=least + 3, launch_priority=-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
        operation.run(arguments)
    for _ in range(3):
        D.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(D, (a @ b).to(TORCH["f16"]))


def test_two_halves_of_a_gpu_at_the_same_time() -> None:
    """Each of two streams has its own multiprocessors, and results are those of kernels that have all."""
    half, (m, n, k) = multiprocessors() // 2, (1032, 1040, 1032)
    operations = [SINGLES["cooperative"][0], SINGLES["stream-K"][0]]
    a, b = integers(m, k), integers(k, n)
    A, B = (matrix(operations[0].A, a), matrix(operations[0].B, b))
    results = [poisoned(each, m, n) for each in operations]
    streams = [torch.cuda.Stream() for _ in operations]
    calls = [
        GemmArguments(each, (m, n, k), A, B, None, D, sm_count=half)
        for each, D in zip(operations, results, strict=True)
    ]
    torch.cuda.synchronize()
    for _ in range(50):
        for operation, call, stream in zip(operations, calls, streams, strict=True):
            operation.run(call, stream)
    torch.cuda.synchronize()
    assert all(torch.equal(D, (a @ b).half()) for D in results)
