"""Hopper-native GEMMs, one for each class of types, layouts, schedules and epilogues."""

from __future__ import annotations

from typing import Any

from descriptions import COLUMN, ROW, TAG, TENSOR_OP
from epilogue_functions import biased

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
from pycutlass.families.sm90_register_a import loads_a
from pycutlass.types import element

__all__ = ["ARRAYS", "CLASSES", "described", "of_tma"]

F16, F32 = cutlass.float16, cutlass.float32
STREAM_K = cutlass.ThreadblockSwizzleStreamK
FAST = MathOperation.multiply_add_fast_accum
PINGPONG, COOPERATIVE = KernelSchedule.Pingpong, KernelSchedule.Cooperative


def of_tma(short: str, layout: Any = ROW) -> TensorDescription:
    return TensorDescription(TAG[short], layout, 128 // element(TAG[short]).bits)


def described(
    a: str = "f16",
    b: str | None = None,
    accumulator: str = "f32",
    layouts: Any = (ROW, COLUMN),
    shape: tuple[int, int, int] | None = None,
    C: TensorDescription | None = None,
    D: TensorDescription | None = None,
    *,
    cluster: tuple[int, int] = (1, 1),
    schedule: KernelSchedule | None = None,
    stages: int | None = None,
    swizzle: Any = cutlass.IdentitySwizzle1,
    operation: MathOperation = MathOperation.multiply_add,
    functor: Any = None,
    swap_ab: bool = False,
) -> GemmOperationUniversal:
    """Return a Hopper-native GEMM."""
    b = b or a
    math = MathInstruction(None, TAG[a], TAG[b], TAG[accumulator], TENSOR_OP, operation)
    tile = TileDescription(
        shape or (128, 128, 1024 // element(TAG[a]).bits), stages, None, math, cluster, kernel_schedule=schedule
    )
    C = C or of_tma(accumulator)
    D = D or C
    functor = functor or LinearCombination(D.element, D.alignment, TAG[accumulator], F32)
    A, B = of_tma(a, layouts[0]), of_tma(b, layouts[1])
    return GemmOperationUniversal(90, tile, A, B, C, functor, swizzle, D, swap_ab)


def to_int32() -> LinearCombination:
    return LinearCombination(cutlass.int32, 4, cutlass.int32, cutlass.int32)


CLASSES: dict[str, GemmOperationUniversal] = {
    "A by columns, C and D by columns": described(layouts=(COLUMN, COLUMN), C=of_tma("f16", COLUMN)),
    "B by rows, pingpong": described(
        layouts=(ROW, ROW), C=of_tma("bf16"), D=of_tma("bf16"), a="bf16", schedule=PINGPONG
    ),
    "neither along K, cluster of 8": described(layouts=(COLUMN, ROW), C=of_tma("f16"), cluster=(4, 2)),
    "f16 sums": described("f16", None, "f16", C=of_tma("f16"), shape=(128, 256, 64)),
    "C and D of other types, by columns": described(C=of_tma("f16", COLUMN), D=of_tma("f32", COLUMN)),
    "tf32": described("tf32", schedule=PINGPONG),
    "tf32 to f16 by columns": described("tf32", C=of_tma("f16", COLUMN), shape=(128, 160, 32)),
    "int8": described("s8", None, "s32", functor=to_int32()),
    "int8 to int8": described("s8", None, "s32", C=of_tma("s8"), shape=(64, 128, 128), schedule=PINGPONG),
    "int8 to int8 by columns": described("s8", None, "s32", C=of_tma("s8", COLUMN)),
    "uint8 x int8": described("u8", "s8", "s32", cluster=(2, 1), functor=to_int32()),
    "int8 x uint8 to uint8": described("s8", "u8", "s32", C=of_tma("u8"), shape=(64, 96, 128), schedule=PINGPONG),
    "uint8 to uint8 by columns": described("u8", None, "s32", C=of_tma("u8", COLUMN)),
    "a function of uint8": described(
        "u8", None, "s32", C=of_tma("u8"), functor=biased(cutlass.uint8, 16, cutlass.int32)
    ),
    "tf32, A by columns": described("tf32", layouts=(COLUMN, COLUMN), shape=(128, 96, 64), cluster=(2, 1)),
    "tf32, B by rows": described("tf32", layouts=(ROW, ROW), C=of_tma("f16"), shape=(64, 96, 32), schedule=PINGPONG),
    "tf32, neither along K": described("tf32", layouts=(COLUMN, ROW), C=of_tma("f32", COLUMN), cluster=(1, 2)),
    "tf32, neither along K, pingpong": described(
        "tf32", layouts=(COLUMN, ROW), shape=(64, 160, 32), stages=3, cluster=(2, 2), schedule=PINGPONG
    ),
    "tf32, A by columns, a function by columns": described(
        "tf32", layouts=(COLUMN, COLUMN), C=of_tma("f16", COLUMN), functor=biased(F16, 8)
    ),
    "stream-K of a function, tf32, B by rows": described(
        "tf32", layouts=(ROW, ROW), C=of_tma("f16"), functor=biased(F16, 8), swizzle=STREAM_K
    ),
    "int8, A by columns, pingpong": described(
        "s8", None, "s32", layouts=(COLUMN, COLUMN), C=of_tma("s8"), shape=(64, 48, 256), schedule=PINGPONG
    ),
    "uint8 x int8, B by rows": described("u8", "s8", "s32", layouts=(ROW, ROW), shape=(128, 64, 128), cluster=(2, 1)),
    "int8 x uint8, A by columns, slices of 20 lines": described(
        "s8", "u8", "s32", layouts=(COLUMN, COLUMN), C=of_tma("f16"), shape=(128, 80, 128), cluster=(4, 1), stages=3
    ),
    "bytes, neither along K": described("s8", "u8", "s32", layouts=(COLUMN, ROW), functor=to_int32(), cluster=(2, 2)),
    "bytes of floats, neither along K, pingpong": described(
        "e4m3", layouts=(COLUMN, ROW), C=of_tma("bf16"), stages=3, operation=FAST, schedule=PINGPONG
    ),
    "bytes, neither along K, two squares": described(
        "u8", None, "s32", layouts=(COLUMN, ROW), shape=(128, 256, 128), C=of_tma("f16", COLUMN), swap_ab=True
    ),
    "e4m3 x e5m2, neither along K": described("e4m3", "e5m2", layouts=(COLUMN, ROW), C=of_tma("bf16"), operation=FAST),
    "e5m2, B by rows, to e4m3": described("e5m2", layouts=(ROW, ROW), C=of_tma("e4m3"), operation=FAST),
    "e4m3 x e5m2": described("e4m3", "e5m2", C=of_tma("bf16")),
    "e5m2 x e4m3, fast, to e4m3": described("e5m2", "e4m3", C=of_tma("e4m3"), shape=(128, 256, 128), operation=FAST),
    "e4m3 to e5m2 by columns": described("e4m3", C=of_tma("e5m2", COLUMN), schedule=PINGPONG, operation=FAST),
    "144 columns": described(C=of_tma("f16"), shape=(128, 144, 64), schedule=PINGPONG),
    "stream-K": described(C=of_tma("f16"), swizzle=STREAM_K),
    "stream-K of a function": described(C=of_tma("f16"), swizzle=STREAM_K, functor=biased(F16, 8)),
    "swapped, 8 columns": described(C=of_tma("f16"), shape=(64, 8, 64), swap_ab=True),
    "swapped, e4m3": described("e4m3", C=of_tma("bf16"), shape=(64, 16, 128), operation=FAST, swap_ab=True),
    "swapped, a function": described(C=of_tma("f16"), shape=(128, 32, 64), functor=biased(F16, 8), swap_ab=True),
    "swapped, by columns": described(C=of_tma("f32", COLUMN), shape=(64, 32, 64), swap_ab=True),
    "a function to e4m3": described("e4m3", C=of_tma("e4m3"), functor=biased(cutlass.float_e4m3, 16), operation=FAST),
    "a function to int8": described("f16", C=of_tma("s8"), functor=biased(cutlass.int8, 16), schedule=PINGPONG),
    "ReLU of the transposed": described(
        layouts=(COLUMN, ROW),
        C=of_tma("f16"),
        shape=(128, 96, 64),
        functor=LinearCombinationGeneric(relu(F32), F16, 8, F32, F32),
        swap_ab=True,
    ),
    "three warp groups": described(C=of_tma("f16"), shape=(192, 96, 64), cluster=(1, 2), schedule=COOPERATIVE),
    "three warp groups, C and D of other types, by columns": described(
        layouts=(COLUMN, ROW),
        C=of_tma("f16", COLUMN),
        D=of_tma("f32", COLUMN),
        shape=(192, 160, 64),
        cluster=(2, 2),
        schedule=COOPERATIVE,
    ),
    "three warp groups, C by columns, D by rows": described(
        C=of_tma("f16", COLUMN), D=of_tma("f16"), shape=(192, 192, 64), cluster=(1, 2), schedule=COOPERATIVE
    ),
    "three warp groups, 256 bytes of K": described(
        C=of_tma("f16"), shape=(192, 48, 128), cluster=(1, 8), schedule=COOPERATIVE
    ),
    "three warp groups, f16 sums": described("f16", None, "f16", shape=(192, 256, 64), schedule=COOPERATIVE),
    "three warp groups, tf32, swapped": described(
        "tf32", C=of_tma("f16"), shape=(192, 64, 32), cluster=(2, 1), schedule=COOPERATIVE, swap_ab=True
    ),
    "three warp groups, int8 to int8": described(
        "s8", None, "s32", C=of_tma("s8"), shape=(192, 128, 128), schedule=COOPERATIVE
    ),
    "three warp groups, e4m3 x e5m2": described(
        "e4m3", "e5m2", C=of_tma("bf16"), shape=(192, 96, 128), cluster=(1, 4), schedule=COOPERATIVE
    ),
    "three warp groups, e5m2, fast, to e4m3 by columns": described(
        "e5m2", C=of_tma("e4m3", COLUMN), shape=(192, 96, 128), operation=FAST, schedule=COOPERATIVE
    ),
    "three warp groups, a function": described(
        C=of_tma("f16"), shape=(192, 192, 64), cluster=(2, 1), functor=biased(F16, 8), schedule=COOPERATIVE
    ),
}


def _is_along_k(operation: GemmOperationUniversal) -> bool:
    parts = operation.family.parts_of(operation)
    return not loads_a(parts.A, parts.B)


#: Those that have a kernel for Mode.Array.
ARRAYS = {
    name: each
    for name, each in CLASSES.items()
    if not name.startswith(("stream-K", "three warp groups")) and _is_along_k(each)
}
