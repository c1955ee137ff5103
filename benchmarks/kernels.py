"""The kernels that are measured, described once for all benchmarks.

Kernels are kept, since what was compiled goes with the last operation that has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import pycutlass
from pycutlass import GemmOperationUniversal, KernelSchedule, ReductionOperation, cutlass

__all__ = ["COMPILED", "KINDS", "ampere", "gemv", "hopper", "plain", "small_ampere", "small_hopper", "summing"]

Triple = tuple[int, int, int]


@functools.cache
def ampere(
    tile: Triple = (128, 256, 64), stages: int = 3, warps: Triple = (2, 4, 1), swizzle: int = 1
) -> GemmOperationUniversal:
    """Return an f16 TensorOp kernel of CUTLASS 2.x: A row-major, B column-major, C row-major, f32 accumulation."""
    return plain(tile, stages, warps, swizzle)


def plain(tile: Triple, stages: int, warps: Triple, swizzle: int) -> GemmOperationUniversal:
    """Return the same, described anew: it goes with its last reference."""
    instruction = pycutlass.MathInstruction(
        (16, 8, 16), cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    )
    described = pycutlass.TileDescription(tile, stages, warps, instruction)
    return _operation(80, described, f"IdentitySwizzle{swizzle}")


@functools.cache
def hopper(
    tile: Triple,
    cluster: tuple[int, int],
    schedule: KernelSchedule,
    swizzle: int = 1,
    *,
    stream_k: bool = False,
    swap_ab: bool = False,
) -> GemmOperationUniversal:
    """Return the same GEMM as a Hopper-native kernel, of the transposed problem where A and B are swapped."""
    instruction = pycutlass.MathInstruction(
        None, cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    )
    described = pycutlass.TileDescription(tile, None, None, instruction, (*cluster, 1), schedule)
    return _operation(90, described, "ThreadblockSwizzleStreamK" if stream_k else f"IdentitySwizzle{swizzle}", swap_ab)


@functools.cache
def gemv(tile: Triple, warps: Triple) -> GemmOperationUniversal:
    """Return the same GEMM for few rows, on CUDA cores."""
    instruction = pycutlass.MathInstruction(
        None, cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.Simt
    )
    described = pycutlass.TileDescription(tile, None, warps, instruction, kernel_schedule=KernelSchedule.Gemv)
    return _operation(90, described, "IdentitySwizzle1")


@functools.cache
def summing() -> ReductionOperation:
    """Return what adds up partial sums of these kernels."""
    row = pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    functor = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    shape = cutlass.MatrixCoord(4, 256)
    return ReductionOperation(shape, row, cutlass.float32, epilogue_functor=functor, count=8, partitions_per_stage=4)


def small_ampere() -> GemmOperationUniversal:
    """Return a kernel for measuring launches."""
    return ampere((128, 128, 32), 3, (2, 2, 1))


def small_hopper() -> GemmOperationUniversal:
    """Return a kernel with a cluster for measuring launches."""
    return hopper((128, 128, 64), (2, 1), KernelSchedule.Pingpong)


def _operation(
    capability: int, tile: pycutlass.TileDescription, swizzle: str, swap_ab: bool = False
) -> GemmOperationUniversal:
    row = pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    column = pycutlass.TensorDescription(cutlass.float16, cutlass.ColumnMajor, 8)
    functor = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    swizzling = getattr(cutlass, swizzle)
    return GemmOperationUniversal(capability, tile, row, column, row, functor, swizzling, row, swap_ab)


#: Fifty small kernels, for `plain`.
KINDS = [
    (tile, stages, (2, 2, 1), swizzle)
    for tile in ((64, 64, 32), (64, 128, 32), (128, 64, 32), (128, 128, 32))
    for stages in (3, 4, 5, 6)
    for swizzle in (1, 2, 4, 8)
][:50]

#: The two whose compile time is measured; native/ has the same two in C++.
COMPILED: Mapping[str, Callable[[], GemmOperationUniversal]] = {
    "ampere": ampere,
    "hopper": lambda: hopper((128, 256, 64), (2, 1), KernelSchedule.Cooperative),
}
