"""Tiles, and the C++ that proves each: mainloops, epilogues, and whole threadblocks where the two are of one kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from descriptions import COLUMN, ROW, SIMT, TAG, TENSOR_OP
from emulator import SPELLED

from pycutlass import MathInstruction, MathOperation, TensorDescription, TileDescription, cutlass
from pycutlass.errors import DescriptionError
from pycutlass.families.ampere.family import check_mainloop, why_not_written
from pycutlass.families.ampere.simt import simt_threads
from pycutlass.types import element

ROWS32, COLUMNS32 = cutlass.RowMajorInterleaved32, cutlass.ColumnMajorInterleaved32
_LAYOUTS = {
    ROW: "cutlass::layout::RowMajor",
    COLUMN: "cutlass::layout::ColumnMajor",
    ROWS32: "cutlass::layout::RowMajorInterleaved<32>",
    COLUMNS32: "cutlass::layout::ColumnMajorInterleaved<32>",
}
#: A thread has 255 registers: with more sums than that nothing is ever built, and all here takes long.
_MOST_SUMS = 32 * 255

Shape = tuple[int, int, int]


class Kind(NamedTuple):
    """What multiplies: types of operands and accumulator, instruction, compute capability, and how.

    `second` is the type of B, where it is another than that of A.
    """

    operand: str
    accumulator: str
    instruction: Shape
    capability: int = 80
    operation: MathOperation = MathOperation.multiply_add
    second: str = ""

    @property
    def operands(self) -> tuple[str, str]:
        return self.operand, self.second or self.operand

    @property
    def math(self) -> MathInstruction:
        opcode = SIMT if self.instruction[0] == 1 else TENSOR_OP
        operands = (TAG[operand] for operand in self.operands)
        return MathInstruction(self.instruction, *operands, TAG[self.accumulator], opcode, self.operation)


_SATURATE, _UPCAST = MathOperation.multiply_add_saturate, MathOperation.multiply_add_mixed_input_upcast
#: Mainloops of tensor cores with iterators of their own. Those of bf16 are those of f16, those of u8 those of s8.
MAINLOOPS = [
    F16 := Kind("f16", "f32", (16, 8, 16)),
    F16_OF_8 := Kind("f16", "f32", (16, 8, 8)),
    TF32 := Kind("tf32", "f32", (16, 8, 8)),
    Kind("f32", "f32", (16, 8, 8), 80, MathOperation.multiply_add_fast_f16),
    Kind("f32", "f32", (16, 8, 8), 80, MathOperation.multiply_add_fast_bf16),
    Kind("f32", "f32", (16, 8, 8), 80, MathOperation.multiply_add_fast_f32),
    INT8 := Kind("s8", "s32", (16, 8, 32), 80, _SATURATE),
    TURING_INT8 := Kind("s8", "s32", (8, 8, 16), 75, _SATURATE),
    F64 := Kind("f64", "f64", (8, 8, 4)),
    Kind("f16", "f32", (16, 8, 16), 80, _UPCAST, "s8"),
    Kind("s8", "f32", (16, 8, 16), 80, _UPCAST, "f16"),
]
_ACCUMULATED_IN_F16 = Kind("f16", "f16", (16, 8, 16))
#: What epilogues of tensor cores write: other types have the iterators of these.
EPILOGUES = [
    *((F16, output) for output in ("f32", "f16", "bf16", "s8")),
    *((_ACCUMULATED_IN_F16, output) for output in ("f16", "bf16", "f32")),
    *((kind, output) for kind in (INT8, TURING_INT8) for output in ("s32", "s8", "f32", "f16", "bf16")),
    (F64, "f64"),
]
#: SIMT kernels, and what their epilogues write: of one size for all types of that size.
SIMT_KERNELS = [
    (F32_SIMT := Kind("f32", "f32", (1, 1, 1)), ("f32", "f16", "s8")),
    (Kind("f64", "f64", (1, 1, 1)), ("f64",)),
    (DP4A := Kind("s8", "s32", (1, 1, 4)), ("s32", "f16", "s8")),
]


@dataclass(frozen=True)
class Mainloop:
    """A tile of tensor cores and the layouts of its operands."""

    kind: Kind
    layouts: tuple[Any, Any]
    shape: Shape
    warps: Shape
    stages: int

    def is_accepted(self) -> bool:
        """Whether a kernel may have it."""
        interleaved = self.layouts[0] is COLUMNS32
        A, B = (
            TensorDescription(TAG[operand], layout, 1 if operand == "f64" else 128 // element(TAG[operand]).bits)
            for operand, layout in zip(self.kind.operands, self.layouts, strict=True)
        )
        C = TensorDescription(TAG["s8"], COLUMNS32, 8) if interleaved else TensorDescription(TAG["f32"], ROW, 1)
        try:
            tile = TileDescription(self.shape, self.stages, self.warps, self.kind.math)
            check_mainloop(self.kind.capability, tile, A, B, C)
        except DescriptionError:
            return False
        return not (interleaved and why_not_written(tile, C))  # whose epilogue knows other warps alone

    @property
    def sides(self) -> tuple[Any, Any]:
        """What the iterators of A, and of B, depend on."""
        total = math.prod(self.warps)
        shared = self.kind, self.shape[2], self.warps[2], total, self.stages
        a, b = ((*shared, axis, self.layouts[axis], self.shape[axis], self.warps[axis]) for axis in (0, 1))
        return a, b

    def cpp(self) -> str:
        """Return the call that proves it."""
        kind = self.kind
        operands = ", ".join(
            f"{SPELLED[operand]}, {_LAYOUTS[layout]}"
            for operand, layout in zip(kind.operands, self.layouts, strict=True)
        )
        interleaved = ", true" if self.layouts[0] is COLUMNS32 else ""
        return (
            f"proof::mainloop<{_tile(self.shape, self.warps)}, {_shape(kind.instruction)}, "
            f"{operands}, {SPELLED[kind.accumulator]}, {self.stages}, {kind.math.operator_cpp}{interleaved}>();"
        )


@dataclass(frozen=True)
class Epilogue:
    """A tile of tensor cores and what is written of it."""

    kind: Kind
    output: str
    alignment: int
    shape: tuple[int, int]
    warps: Shape

    def is_accepted(self) -> bool:
        """Whether a kernel may have it, if there is a mainloop for it."""
        if self.alignment * element(TAG[self.output]).bits > 128:
            return False
        C = TensorDescription(TAG[self.output], ROW, self.alignment)
        try:
            depth = 2 * self.kind.instruction[2] * self.warps[2]
            tile = TileDescription((*self.shape, depth), 3, self.warps, self.kind.math)
        except DescriptionError:
            return False
        return not why_not_written(tile, C)

    def cpp(self) -> str:
        """Return the call that proves it."""
        shape = (*self.shape, 32 * self.warps[2])
        return (
            f"proof::epilogue<{_tile(shape, self.warps)}, {_shape(self.kind.instruction)}, "
            f"{SPELLED[self.kind.accumulator]}, {SPELLED[self.output]}, {self.alignment}>();"
        )


@dataclass(frozen=True)
class Simt:
    """A SIMT kernel."""

    kind: Kind
    output: str
    layouts: tuple[Any, Any]
    shape: Shape
    warps: Shape
    stages: int

    def is_accepted(self) -> bool:
        """Whether a kernel may have it."""
        each = self.kind.instruction[2]
        A, B = (TensorDescription(TAG[self.kind.operand], layout, each) for layout in self.layouts)
        C = TensorDescription(TAG[self.output], ROW, 1)
        try:
            tile = TileDescription(self.shape, self.stages, self.warps, self.kind.math)
            check_mainloop(80, tile, A, B, C)
        except DescriptionError:
            return False
        return not why_not_written(tile, C) and math.prod(tile.warp_shape[:2]) <= _MOST_SUMS

    @property
    def sides(self) -> tuple[Any, Any, Any]:
        """What the iterators of A, and of B, depend on; and what warps and epilogue do."""
        tile = TileDescription(self.shape, self.stages, self.warps, self.kind.math)
        threads = simt_threads(tile)
        of_thread = [extent // count for extent, count in zip(tile.warp_shape[:2], threads, strict=True)]
        shared = self.shape[2], tile.warp_shape[2], tile.num_threads, self.stages, threads, min(of_thread) > 4
        a, b = ((*shared, axis, self.layouts[axis], self.shape[axis], of_thread[axis]) for axis in (0, 1))
        return a, b, (self.shape[:2], self.warps, self.stages, self.output)

    def cpp(self) -> str:
        """Return the call that proves it."""
        kind = self.kind
        layouts = ", ".join(_LAYOUTS[layout] for layout in self.layouts)
        return (
            f"proof::simt<{_tile(self.shape, self.warps)}, {_shape(kind.instruction)}, {SPELLED[kind.operand]}, "
            f"{layouts}, {SPELLED[kind.accumulator]}, {SPELLED[self.output]}, {self.stages}>();"
        )


@dataclass(frozen=True)
class Interleaved:
    """An int8 kernel of interleaved layouts: a GEMM or a convolution."""

    kind: Kind
    shape: Shape
    warps: Shape
    stages: int
    convolution: bool

    def is_accepted(self) -> bool:
        """Whether a kernel may have it."""
        layouts = (COLUMNS32, ROWS32)
        accepted = Mainloop(self.kind, layouts, self.shape, self.warps, self.stages).is_accepted()
        return accepted and math.prod(self.shape[:2]) <= _MOST_SUMS * math.prod(self.warps[:2])

    def cpp(self) -> str:
        """Return the call that proves it."""
        return (
            f"proof::interleaved<{_tile(self.shape, self.warps)}, {_shape(self.kind.instruction)}, "
            f"cutlass::arch::Sm{self.kind.capability}, {self.stages}, {str(self.convolution).lower()}>();"
        )


Case = Mainloop | Epilogue | Simt | Interleaved


def _tile(shape: Shape, warps: Shape) -> str:
    warp = [extent // count for extent, count in zip(shape, warps, strict=True)]
    return f"{_shape(shape)}, {_shape(warp)}"


def _shape(extents: Sequence[int]) -> str:
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, extents))}>"
