"""Hopper-native GEMMs of operands that TMA cannot copy, one for each way that they are copied in."""

from __future__ import annotations

from typing import Any

from descriptions import COLUMN, ROW, TAG, TENSOR_OP
from epilogue_functions import biased, gated, linear, reduced, residual, several

from pycutlass import (
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    LinearCombinationGeneric,
    MathInstruction,
    MathOperation,
    TensorDescription,
    TileDescription,
    cutlass,
    relu,
)
from pycutlass.types import element

__all__ = ["FUNCTIONS", "UNALIGNED", "unaligned"]

F16, F32 = cutlass.float16, cutlass.float32
PINGPONG, COOPERATIVE = KernelSchedule.Pingpong, KernelSchedule.Cooperative


def unaligned(
    a: str = "f16",
    alignments: tuple[int, int, int] = (2, 2, 1),
    accumulator: str = "f32",
    layouts: Any = (ROW, COLUMN, ROW),
    shape: tuple[int, int, int] | None = None,
    output: str = "f16",
    D: TensorDescription | None = None,
    *,
    b: str | None = None,
    cluster: tuple[int, int] = (1, 1),
    schedule: KernelSchedule | None = None,
    stages: int | None = None,
    swizzle: Any = cutlass.IdentitySwizzle1,
    functor: Any = None,
    swap_ab: bool = False,
) -> GemmOperationUniversal:
    """Return a Hopper-native GEMM with these alignments of A, B and C, which D is like."""
    fast = element(TAG[a]).is_float8
    operation = MathOperation.multiply_add_fast_accum if fast else MathOperation.multiply_add
    math = MathInstruction(None, TAG[a], TAG[b or a], TAG[accumulator], TENSOR_OP, operation)
    shape = shape or (128, 128, 1024 // element(TAG[a]).bits)
    tile = TileDescription(shape, stages, None, math, cluster, kernel_schedule=schedule)
    kinds = TAG[a], TAG[b or a], TAG[output]
    A, B, C = (TensorDescription(*of) for of in zip(kinds, layouts, alignments, strict=True))
    D = D or C
    compute = TAG[accumulator] if accumulator == "s32" and output == "s32" else F32
    functor = functor or LinearCombination(D.element, D.alignment, TAG[accumulator], compute)
    return GemmOperationUniversal(90, tile, A, B, C, functor, swizzle, D, swap_ab)


UNALIGNED: dict[str, GemmOperationUniversal] = {
    # TMA loads A and B, threads write D.
    "D of any alignment": unaligned(alignments=(8, 8, 1), cluster=(2, 1)),
    "D by columns, pingpong": unaligned(
        alignments=(8, 8, 1), layouts=(COLUMN, ROW, COLUMN), output="f32", schedule=PINGPONG
    ),
    "D of pairs, stream-K": unaligned(alignments=(8, 8, 2), swizzle=cutlass.ThreadblockSwizzleStreamK),
    "C apart": unaligned(
        alignments=(8, 8, 1), layouts=(ROW, COLUMN, COLUMN), output="f32", D=TensorDescription(F16, ROW, 8)
    ),
    "int8 to int8": unaligned("s8", (16, 16, 1), "s32", output="s8", schedule=PINGPONG),
    "three warp groups": unaligned(alignments=(8, 8, 1), shape=(192, 96, 64), cluster=(2, 1), schedule=COOPERATIVE),
    # cp.async loads them.
    "4 bytes": unaligned(),
    "8 bytes, pingpong": unaligned(alignments=(4, 4, 4), shape=(64, 96, 64), schedule=PINGPONG),
    "neither along K": unaligned("bf16", (2, 4, 2), layouts=(COLUMN, ROW, COLUMN), output="bf16"),
    "A alone": unaligned(alignments=(2, 8, 8), layouts=(ROW, ROW, ROW), output="f32", stages=3),
    "f16 sums": unaligned(alignments=(8, 2, 1), accumulator="f16", shape=(256, 64, 32)),
    "tf32": unaligned("tf32", (1, 2, 1), output="f32", schedule=PINGPONG, shape=(64, 64, 32)),
    "int8": unaligned("s8", (4, 8, 1), "s32", output="s32"),
    "e4m3 x e5m2": unaligned("e4m3", (8, 4, 2), b="e5m2", output="e5m2", shape=(128, 64, 64)),
    "C and D apart": unaligned(
        "bf16", (2, 2, 1), layouts=(ROW, COLUMN, COLUMN), output="f32", D=TensorDescription(cutlass.bfloat16, ROW, 2)
    ),
    "swapped, 8 columns": unaligned(alignments=(2, 2, 1), shape=(64, 8, 64), swap_ab=True),
    "ReLU": unaligned(functor=LinearCombinationGeneric(relu(F32), F16, 1, F32, F32)),
}

#: The same with epilogue functions, by the name of the function.
FUNCTIONS: dict[str, GemmOperationUniversal] = {
    "biased": unaligned(functor=biased(F16, 1)),
    "biased, by columns": unaligned(alignments=(8, 8, 1), layouts=(ROW, COLUMN, COLUMN), functor=biased(F16, 1)),
    "biased, swapped": unaligned(functor=biased(F16, 1), swap_ab=True, shape=(64, 32, 64), schedule=PINGPONG),
    "linear": unaligned(alignments=(8, 8, 1), functor=linear(F16, 1)),
    "linear, of pairs": unaligned(alignments=(2, 2, 2), functor=linear(F16, 2), schedule=PINGPONG, shape=(64, 64, 64)),
    "residual": unaligned(alignments=(2, 2, 8), functor=residual(F16, 8)),
    "several": unaligned(alignments=(8, 8, 1), functor=several(F16, 1)),
    "several, swapped": unaligned(functor=several(F16, 1), swap_ab=True, shape=(128, 32, 64)),
    "reduced": unaligned(alignments=(8, 8, 1), functor=reduced(F16, 1)),
    "reduced by three warp groups": unaligned(
        alignments=(8, 8, 1), functor=reduced(F16, 1), shape=(192, 64, 64), schedule=COOPERATIVE
    ),
    "reduced by cp.async": unaligned(functor=reduced(F16, 1), shape=(128, 32, 64)),
    "gated": unaligned(alignments=(2, 2, 2), functor=gated(F16, 2)),
}
