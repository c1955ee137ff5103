"""Every class of Hopper-native GEMMs against sums that are exact, on problems that tiles do not divide."""

from __future__ import annotations

import pytest
import torch
from hopper_classes import CLASSES
from hopper_launches import drawn, integers, launch, matrix

import pycutlass
from pycutlass import (
    GemmArguments,
    LinearCombination,
    ReductionArguments,
    ReductionOperation,
    cutlass,
)

SIZES = [(16, 16, 16), (128, 128, 128), (272, 144, 80), (64, 528, 400), (1040, 272, 1024)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_element_is_exact(name: str, size: tuple[int, int, int]) -> None:
    pycutlass.compiler.add_module([CLASSES[name]])
    launch(CLASSES[name], size, None)


@pytest.mark.parametrize("name", CLASSES)
def test_a_batch_is_exact(name: str) -> None:
    pycutlass.compiler.add_module([CLASSES[name]])
    launch(CLASSES[name], (144, 80, 96), 3)


@pytest.mark.parametrize("slices", [2, 3, 7, 16])
@pytest.mark.parametrize("name", [name for name in CLASSES if name.startswith("stream-K")])
def test_split_sums_are_exact(name: str, slices: int) -> None:
    pycutlass.compiler.add_module([CLASSES[name]])
    for size in ((128, 128, 1024), (272, 144, 2064), (16, 16, 16384)):
        launch(CLASSES[name], size, None, split_k_slices=slices)


def test_two_streams_of_stream_k_never_wait_for_each_other() -> None:
    operation = CLASSES["stream-K"]
    pycutlass.compiler.add_module([operation])
    m, n, k = 1040, 1152, 4096
    a, b = integers(m, k).half(), integers(k, n).half().mT.contiguous().mT
    results = [torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in results]
    calls = [GemmArguments(operation, (m, n, k), a, b, None, D) for D in results]
    torch.cuda.synchronize()
    for _ in range(500):
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                operation.run(call)
    torch.cuda.synchronize()
    exact = (a.double() @ b.double()).half()
    assert all(torch.equal(D, exact) for D in results)
    graph = torch.cuda.CUDAGraph()
    results[0].fill_(float("nan"))
    with torch.cuda.graph(graph):
        operation.run(calls[0])
        operation.run(calls[0])
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(results[0], exact)


PARTIAL = ["B by rows, pingpong", "neither along K, cluster of 8", "swapped, 8 columns", "tf32"]
PARTIAL += ["tf32, A by columns", "tf32, B by rows", "int8", "uint8 x int8, B by rows", "e4m3 x e5m2"]
EQUAL = "144 columns"  # whose slices must be, as its device side is CUTLASS's
PARTIAL += ["three warp groups", "three warp groups, int8 to int8", "three warp groups, e4m3 x e5m2"]
PARTIAL.append(EQUAL)
#: Equal slices of a few elements, and slices of whole steps, of which some have one more: few tiles, and so many that
#: those of a threadblock are of different slices.
DIVIDED = (((272, 144, 768), 6), ((16, 528, 4096), 8), ((128, 128, 208), 13))
IN_STEPS = (((272, 144, 1168), 3), ((48, 336, 4176), 11), ((1040, 2064, 1040), 5), ((2064, 1040, 1488), 4))


@pytest.mark.parametrize(("size", "slices"), [*DIVIDED, *IN_STEPS])
@pytest.mark.parametrize("name", PARTIAL)
def test_partial_sums_are_exact(name: str, size: tuple[int, int, int], slices: int) -> None:
    operation, (m, n, k) = CLASSES[name], size
    D, count, sums = operation.D, operation.D.alignment, operation.tile_description.math_instruction.element_accumulator
    functor = LinearCombination(D.element, count, sums, sums if D.element is sums else cutlass.float32)
    shape = cutlass.MatrixCoord(4, 32 * count)
    reduction = ReductionOperation(shape, D, sums, epilogue_functor=functor, count=count)
    pycutlass.compiler.add_module([operation, reduction])
    if name == EQUAL and (size, slices) in IN_STEPS:
        k, slices = k // 16 * 16, next(fewer for fewer in range(slices, 0, -1) if k // 16 % fewer == 0)
    a, b = drawn(operation.A, m, k), drawn(operation.B, k, n)
    result = matrix(D, torch.full((m, n), 99.0, device="cuda"))
    A, B = matrix(operation.A, a), matrix(operation.B, b)
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    arguments = GemmArguments(operation, (m, n, k), A, B, None, result, mode, split_k_slices=slices)
    operation.run(arguments)
    reduction.run(ReductionArguments(reduction, (m, n), slices, arguments.ptr_D, result))
    torch.cuda.synchronize()
    assert torch.equal(result.double(), (a @ b).clamp(*D.type.limits).to(result.dtype).double())
