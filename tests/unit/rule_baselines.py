"""Parts of valid GEMMs, of all kinds of kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from descriptions import COLUMN, ROW, TAG, mixed_parts, native_parts, parts
from gemv_classes import gemv

from pycutlass import (
    LinearCombination,
    LinearCombinationClamp,
    MathOperation,
    TensorDescription,
    cutlass,
)

__all__ = [
    "BASELINES",
    "COLUMNS32",
    "FAST_F16",
    "ROWS32",
    "functor",
    "gemv_parts",
    "int8",
    "int8_simt",
    "int8_turing_interleaved",
    "interleaved",
    "tensor",
    "tile",
    "turing",
    "with_c_of",
]

ROWS32, COLUMNS32 = cutlass.RowMajorInterleaved32, cutlass.ColumnMajorInterleaved32


def tensor(short: str, layout: Any = ROW, alignment: int = 1) -> TensorDescription:
    return TensorDescription(TAG[short], layout, alignment)


def functor(
    output: str, length: int, accumulator: str = "f32", compute: str = "f32", kind: Any = LinearCombination
) -> Any:
    return kind(TAG[output], length, TAG[accumulator], TAG[compute])


def int8(
    output: str = "s32", layouts: tuple[Any, Any, Any] = (ROW, COLUMN, ROW), stages: int = 3, **changes: Any
) -> dict[str, Any]:
    """Return the parts of an int8 kernel on tensor cores."""
    options = {"instruction": (16, 8, 32), "tile": (128, 128, 64), "stages": stages, **changes}
    made = parts("f16", layouts, types=("s8", "s32", output), math=MathOperation.multiply_add_saturate, **options)
    if output == "s8":
        made["epilogue_functor"] = functor("s8", made["C"].alignment, "s32", kind=LinearCombinationClamp)
    return made


def int8_simt() -> dict[str, Any]:
    """Return the parts of an int8 kernel on CUDA cores."""
    made = parts("f32_simt", types=("s8", "s32", "s32"), instruction=(1, 1, 4), tile=(64, 64, 32), warps=(2, 2, 1))
    made["tile_description"] = replace(made["tile_description"], stages=2)
    made["A"], made["B"] = tensor("s8", ROW, 4), tensor("s8", COLUMN, 4)
    return made


def gemv_parts() -> dict[str, Any]:
    """Return the parts of a GEMV."""
    operation = gemv()
    names = ("compute_capability", "tile_description", "A", "B", "C", "epilogue_functor")
    return {name: getattr(operation, name) for name in names}


def interleaved() -> dict[str, Any]:
    """Return the parts of an int8 kernel on interleaved operands."""
    made = int8("s8", (COLUMNS32, ROWS32, COLUMNS32), stages=6, tile=(64, 64, 64))
    return made | {
        "C": tensor("s8", COLUMNS32, 8),
        "epilogue_functor": functor("s8", 8, "s32", kind=LinearCombinationClamp),
    }


def turing() -> dict[str, Any]:
    """Return the parts of a kernel on Turing's tensor cores."""
    return parts("f16", capability=75, instruction=(16, 8, 8), stages=2)


def with_c_of(alignment: int, made: dict[str, Any]) -> dict[str, Any]:
    """Return the parts with another alignment of C."""
    output = made["C"].type.short
    return made | {"C": tensor(output, made["C"].layout, alignment), "epilogue_functor": functor(output, alignment)}


def int8_turing_interleaved(shape: tuple[int, int, int], warps: tuple[int, int, int]) -> dict[str, Any]:
    """Return the parts of an interleaved kernel for Turing."""
    made = int8("s8", (COLUMNS32, ROWS32, COLUMNS32), 2, capability=75, instruction=(8, 8, 16), tile=shape, warps=warps)
    return interleaved() | {name: made[name] for name in ("compute_capability", "tile_description")}


FAST_F16 = MathOperation.multiply_add_fast_f16
BASELINES: dict[str, dict[str, Any]] = {
    "f16": parts(),
    "f16 by columns": parts("f16", (COLUMN, ROW, ROW)),
    "f16 accumulated in f16": parts("f16_acc16"),
    "f32": parts("f32"),
    "f64": parts("f64"),
    "simt": parts("f32_simt"),
    "int8": int8(),
    "int8 clamped": int8("s8"),
    "int8 simt": int8_simt(),
    "interleaved": interleaved(),
    "mixed": mixed_parts(),
    "turing": turing(),
    "turing int8": int8(capability=75, instruction=(8, 8, 16), stages=2),
    "turing simt": parts("f32_simt", capability=75, stages=2),
    "hopper": native_parts(),
    "hopper e4m3": native_parts((128, 128, 128), operand="e4m3"),
    "hopper tf32": native_parts((128, 128, 32), operand="tf32"),
    "gemv": gemv_parts(),
}


def tile(baseline: str, **changes: Any) -> dict[str, Any]:
    return {"tile_description": replace(BASELINES[baseline]["tile_description"], **changes)}
