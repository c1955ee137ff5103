"""GEMV kernels, one for each class of types, layouts, ways to divide a tile, and epilogues."""

from __future__ import annotations

from typing import Any

from descriptions import COLUMN, ROW, SIMT, TAG
from epilogue_functions import biased, in_other_layouts, of_batch, residual, scaled, several

from pycutlass import (
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    MathInstruction,
    TensorDescription,
    TileDescription,
    cutlass,
    relu,
)
from pycutlass.types import element

__all__ = ["CLASSES", "HEAVY", "gemv", "tile_of"]

F16, F32 = cutlass.float16, cutlass.float32


def tile_of(
    a: str, b: str | None = None, shape: tuple[int, int, int] = (1, 8, 1024), warps: tuple[int, int, int] = (1, 4, 1)
) -> TileDescription:
    """Return the tile of a GEMV."""
    instruction = MathInstruction(None, TAG[a], TAG[b or a], TAG["s32" if a == "s8" else "f32"], SIMT)
    return TileDescription(shape, None, warps, instruction, kernel_schedule=KernelSchedule.Gemv)


def gemv(
    a: str = "f16",
    b: str | None = None,
    d: str = "f16",
    shape: tuple[int, int, int] = (1, 8, 1024),
    warps: tuple[int, int, int] = (1, 4, 1),
    layout: Any = COLUMN,
    of_d: Any = ROW,
    alignment: int | None = None,
    functor: Any = None,
    *,
    swap_ab: bool = False,
    capability: int = 80,
) -> GemmOperationUniversal:
    """Return a GEMV, of which `layout` is that of the large operand as it is in the kernel."""
    tile = tile_of(a, b, shape, warps)
    math, wide = tile.math_instruction, alignment or 128 // element(TAG[a]).bits
    small, large = TensorDescription(math.element_a, ROW, wide), TensorDescription(math.element_b, layout, wide)
    if swap_ab:
        turned = ROW if layout is COLUMN else COLUMN
        large = TensorDescription(math.element_a, turned, wide)
        small = TensorDescription(math.element_b, COLUMN, wide)
    A, B = (large, small) if swap_ab else (small, large)
    D = TensorDescription(TAG[d], of_d, 1)
    functor = functor or LinearCombination(D.element, 1, math.element_accumulator, F32)
    return GemmOperationUniversal(capability, tile, A, B, D, functor, swap_ab=swap_ab)


def to_int32() -> LinearCombination:
    return LinearCombination(cutlass.int32, 1, cutlass.int32, cutlass.int32)


CLASSES: dict[str, GemmOperationUniversal] = {
    "f16": gemv(),
    "f16 of 8 rows, for Hopper": gemv(shape=(8, 16, 512), capability=90),
    "bf16, warps that divide K": gemv("bf16", d="bf16", shape=(4, 2, 4096), warps=(1, 2, 4)),
    "f16, single elements": gemv(shape=(2, 8, 512), alignment=1),
    "f32 to columns": gemv("f32", d="f32", shape=(4, 16, 256), of_d=COLUMN),
    "e4m3 x e5m2": gemv("e4m3", "e5m2", "bf16", (2, 8, 2048)),
    "e5m2, ReLU": gemv("e5m2", d="f32", shape=(1, 4, 2048), functor=LinearCombinationGeneric(relu(F32), F32, 1)),
    "int8": gemv("s8", d="s32", shape=(4, 8, 2048), functor=to_int32()),
    "int8 to int8": gemv(
        "s8", d="s8", shape=(1, 4, 4096), functor=LinearCombinationClamp(cutlass.int8, 1, cutlass.int32, F32)
    ),
    "f16 by rows": gemv(shape=(1, 64, 128), warps=(1, 1, 4), layout=ROW),
    "bf16 by rows, 8 rows, ReLU": gemv(
        "bf16",
        d="f16",
        shape=(8, 128, 32),
        warps=(1, 2, 2),
        layout=ROW,
        functor=LinearCombinationGeneric(relu(F32), F16, 1, F32, F32),
    ),
    "f32 by rows, pairs": gemv("f32", d="f32", shape=(2, 32, 64), warps=(1, 1, 2), layout=ROW, alignment=2),
    "e4m3 by rows, 8 rows": gemv("e4m3", d="f16", shape=(8, 64, 64), warps=(1, 1, 4), layout=ROW),
    "int8 by rows": gemv("s8", d="s32", shape=(2, 64, 64), warps=(1, 1, 2), layout=ROW, functor=to_int32()),
    "few columns": gemv(swap_ab=True),
    "few columns, of a matrix by columns": gemv(
        "bf16", d="f32", shape=(4, 64, 128), warps=(1, 1, 4), layout=ROW, of_d=COLUMN, swap_ab=True
    ),
    "e5m2 x e4m3, few columns": gemv("e5m2", "e4m3", "f16", (2, 8, 2048), swap_ab=True),
    "a function": gemv(shape=(4, 8, 512), functor=several(F16, 1, F32)),
    "a function to columns": gemv(shape=(2, 8, 512), of_d=COLUMN, functor=several(F16, 1, F32)),
    "a function of other layouts": gemv(shape=(4, 8, 512), functor=in_other_layouts(F16, 1, F32, COLUMN)),
    "a function of few columns": gemv(shape=(4, 8, 512), swap_ab=True, functor=scaled(F16, 1, F32)),
    "a function to e4m3": gemv("e4m3", d="e4m3", shape=(2, 8, 2048), functor=biased(cutlass.float_e4m3, 1, F32)),
    "a function of batches": gemv(shape=(2, 8, 512), functor=of_batch(F16, 1, F32)),
    "a function of int8": gemv("s8", d="f16", shape=(2, 8, 2048), functor=residual(F16, 1, cutlass.int32)),
}

#: Those that leave a thread the fewest registers.
HEAVY: dict[str, GemmOperationUniversal] = {
    f"{kind}, {rows} rows, {columns} columns, {loads} loads": gemv(
        kind, d="f16", shape=(rows, 4 * columns, 32 * loads * 128 // element(TAG[kind]).bits)
    )
    for kind, tiles in (
        *((kind, ((8, 4, 2), (8, 2, 4), (4, 4, 4), (1, 2, 8))) for kind in ("f16", "f32")),
        ("e4m3", ((8, 4, 2), (8, 2, 4), (4, 4, 2), (1, 1, 8))),
    )
    for rows, columns, loads in tiles
} | {
    f"{kind} by rows, {rows} rows": gemv(kind, d="f16", shape=shape, warps=(1, 1, 4), layout=ROW)
    for kind, rows, shape in (("f16", 8, (8, 64, 128)), ("e4m3", 8, (8, 64, 128)), ("e4m3", 4, (4, 128, 128)))
}
