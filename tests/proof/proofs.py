"""Descriptions and the C++ of what they make, one mainloop or epilogue for all that do the same."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descriptions import COLUMN, ROW, SIMT, TAG, TENSOR_OP
from emulator import SPELLED, Emulator

from pycutlass import MathInstruction, MathOperation, TensorDescription, TileDescription, cutlass
from pycutlass.errors import DescriptionError
from pycutlass.operation.mainloop import check_mainloop
from pycutlass.operation.outputs import check_output
from pycutlass.types import element

HERE = Path(__file__).parent
ROWS32, COLUMNS32 = cutlass.RowMajorInterleaved32, cutlass.ColumnMajorInterleaved32
#: Mainloops and epilogues of one program: each takes a compiler some tenths of a second.
TOGETHER = 60
_SATURATE = MathOperation.multiply_add_saturate
#: Operand, accumulator, instruction and compute capability of mainloops with iterators of their own. Those of bf16 are
#: those of f16, those of f32 are those of tf32.
MAINLOOPS = [
    ("f16", "f32", (16, 8, 16), 80),
    ("f16", "f32", (16, 8, 8), 80),
    ("tf32", "f32", (16, 8, 8), 80),
    ("s8", "s32", (16, 8, 32), 80),
    ("s8", "s32", (8, 8, 16), 75),
    ("f64", "f64", (8, 8, 4), 80),
]
#: Accumulator and output of epilogues with iterators of their own, with an operand and an instruction that make them.
EPILOGUES = [
    *(("f16", "f32", output, (16, 8, 16)) for output in ("f32", "f16", "bf16", "s8")),
    *(("f16", "f16", output, (16, 8, 16)) for output in ("f16", "f32")),
    *(("s8", "s32", output, (16, 8, 32)) for output in ("s32", "s8", "f32", "f16", "bf16")),
    ("s8", "s32", "s8", (8, 8, 16)),
    ("f64", "f64", "f64", (8, 8, 4)),
]


@dataclass(frozen=True)
class Mainloop:
    """A tile and the layouts of its operands."""

    kind: tuple[str, str, tuple[int, int, int], int]
    layouts: tuple[Any, Any]
    shape: tuple[int, int, int]
    warps: tuple[int, int, int]
    stages: int

    def is_accepted(self) -> bool:
        """Whether a kernel may have it."""
        operand, accumulator, instruction, capability = self.kind
        interleaved = self.layouts[0] is COLUMNS32
        math_ = MathInstruction(
            instruction,
            TAG[operand],
            TAG[operand],
            TAG[accumulator],
            TENSOR_OP,
            _SATURATE if operand == "s8" else MathOperation.multiply_add,
        )
        widest = 1 if operand == "f64" else 128 // element(TAG[operand]).bits
        A, B = (TensorDescription(TAG[operand], layout, widest) for layout in self.layouts)
        C = TensorDescription(TAG["s8"], COLUMNS32, 8) if interleaved else TensorDescription(TAG["f32"], ROW, 1)
        try:
            tile = TileDescription(self.shape, self.stages, self.warps, math_)
            check_mainloop(capability, tile, A, B, C)
            if interleaved:  # whose epilogue knows other warps alone
                check_output(tile, C, lambda other: False)
        except DescriptionError:
            return False
        return True

    @property
    def sides(self) -> tuple[Any, Any]:
        """What the iterators of A, and of B, depend on."""
        total = math.prod(self.warps)
        shared = self.kind, self.shape[2], self.warps[2], total, self.stages
        a, b = ((*shared, axis, self.layouts[axis], self.shape[axis], self.warps[axis]) for axis in (0, 1))
        return a, b

    def cpp(self) -> str:
        """Return the call that proves it."""
        operand, accumulator, instruction, _ = self.kind
        warp = [extent // count for extent, count in zip(self.shape, self.warps, strict=True)]
        layouts = ", ".join(_LAYOUTS[layout] for layout in self.layouts)
        operator = f"cutlass::arch::OpMultiplyAdd{'Saturate' if operand == 's8' else ''}"
        interleaved = ", true" if self.layouts[0] is COLUMNS32 else ""
        return (
            f"proof::mainloop<{_shape(self.shape)}, {_shape(warp)}, {_shape(instruction)}, {SPELLED[operand]}, "
            f"{layouts}, {SPELLED[accumulator]}, {self.stages}, {operator}{interleaved}>();"
        )


_LAYOUTS = {
    ROW: "cutlass::layout::RowMajor",
    COLUMN: "cutlass::layout::ColumnMajor",
    ROWS32: "cutlass::layout::RowMajorInterleaved<32>",
    COLUMNS32: "cutlass::layout::ColumnMajorInterleaved<32>",
}


@dataclass(frozen=True)
class Epilogue:
    """A tile and what is written of it."""

    kind: tuple[str, str, str, tuple[int, int, int]]
    alignment: int
    shape: tuple[int, int]
    warps: tuple[int, int, int]

    def is_accepted(self) -> bool:
        """Whether a kernel may have it, if there is a mainloop for it."""
        operand, accumulator, output, instruction = self.kind
        operation = _SATURATE if operand == "s8" else MathOperation.multiply_add
        math_ = MathInstruction(instruction, TAG[operand], TAG[operand], TAG[accumulator], TENSOR_OP, operation)
        if self.alignment * element(TAG[output]).bits > 128:
            return False
        C = TensorDescription(TAG[output], ROW, self.alignment)
        try:
            tile = TileDescription((*self.shape, 2 * instruction[2] * self.warps[2]), 3, self.warps, math_)
            check_output(tile, C, lambda other: False)
        except DescriptionError:
            return False
        return True

    def cpp(self) -> str:
        """Return the call that proves it."""
        _, accumulator, output, instruction = self.kind
        m, n, k = self.warps
        warp = (self.shape[0] // m, self.shape[1] // n, 32)
        return (
            f"proof::epilogue<{_shape((*self.shape, 32 * k))}, {_shape(warp)}, {_shape(instruction)}, "
            f"{SPELLED[accumulator]}, {SPELLED[output]}, {self.alignment}>();"
        )


@dataclass(frozen=True)
class Simt:
    """A SIMT kernel of single elements, but for its loop over K."""

    operand: str
    layouts: tuple[Any, Any]
    shape: tuple[int, int, int]
    warps: tuple[int, int, int]
    stages: int

    def is_accepted(self) -> bool:
        """Whether a kernel may have it."""
        tag = TAG[self.operand]
        A, B, C = (TensorDescription(tag, layout, 1) for layout in (*self.layouts, ROW))
        try:
            math_ = MathInstruction((1, 1, 1), tag, tag, tag, SIMT)
            tile = TileDescription(self.shape, self.stages, self.warps, math_)
            check_mainloop(80, tile, A, B, C)
            check_output(tile, C, lambda other: False)
        except DescriptionError:
            return False
        # A thread has 255 registers: with more sums than that nothing is ever built, and all here takes long.
        return math.prod(tile.warp_shape[:2]) <= 32 * 255

    def cpp(self) -> str:
        """Return the call that proves it."""
        warp = [extent // count for extent, count in zip(self.shape, self.warps, strict=True)]
        layouts = ", ".join(_LAYOUTS[layout] for layout in self.layouts)
        return (
            f"proof::simt<{_shape(self.shape)}, {_shape(warp)}, {SPELLED[self.operand]}, {layouts}, {self.stages}>();"
        )


def _shape(extents: Sequence[int]) -> str:
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, extents))}>"


Proof = Mainloop | Epilogue | Simt


def wrong(emulator: Emulator, cases: Sequence[Proof]) -> list[tuple[Proof, str]]:
    """Return those that leave out elements or mix them up, with how many of A and B, or of D."""
    found = []
    for begin in range(0, len(cases), TOGETHER):
        some = cases[begin : begin + TOGETHER]
        calls = "\n".join(f"  {case.cpp()}" for case in some)
        text = f'#include "{HERE / "simt.h"}"\n\nint main() {{\n{calls}\n}}\n'
        ended = subprocess.run([str(emulator.build(text, "-O0"))], capture_output=True, text=True, timeout=900)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        counts = ended.stdout.splitlines()
        found += [(case, count) for case, count in zip(some, counts, strict=True) if count != "0 0"]
    return found


#: Warps along M, N and K.
WARPS = [
    counts for counts in itertools.product((1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 8), (1, 2, 4)) if math.prod(counts) <= 16
]


def mainloops(drawn: random.Random, most: int | None = None) -> Iterator[Mainloop]:
    """Yield accepted mainloops in any order, of which each has an operand that none before had: all, or `most`."""
    known: set[Any] = set()
    kinds = [(kind, layouts) for kind in MAINLOOPS for layouts in _layouts_of(kind[0])]
    candidates = [
        (kind, layouts, warps, stages, k, axis)
        for (kind, layouts), warps, stages, k, axis in itertools.product(
            kinds, WARPS, (2, 3), (8, 16, 32, 64, 128, 256), (0, 1)
        )
        if (kind[3] == 80 or stages == 2) and k % (2 * kind[2][2] * warps[2]) == 0
    ]
    drawn.shuffle(candidates)
    for kind, layouts, warps, stages, k, axis in candidates:
        step, other_step = (kind[2][i] * warps[i] for i in (axis, 1 - axis))
        extents = list(range(step, 257, step))
        drawn.shuffle(extents)
        for extent in extents if most is None else extents[:2]:
            for other in (other_step * times for times in (1, 2, 4, 8, 16) if other_step * times <= 512):
                rows, columns = (extent, other) if axis == 0 else (other, extent)
                case = Mainloop(kind, layouts, (rows, columns, k), warps, stages)
                if case.sides[axis] in known or not case.is_accepted():
                    continue
                known.update(case.sides)
                yield case
                if most is not None:
                    most -= 1
                    if not most:
                        return
                break


def simt_kernels(drawn: random.Random) -> Iterator[Simt]:
    """Yield all accepted SIMT kernels of single elements, in any order."""
    extents = range(16, 257, 16)
    layouts = list(itertools.product((ROW, COLUMN), repeat=2))
    counts = [(m, n, 1) for m, n in itertools.product((1, 2, 4, 8), repeat=2) if m * n <= 16]
    cases = list(itertools.product(("f32", "f64"), layouts, extents, extents, (8, 16, 32), counts, (2, 3)))
    drawn.shuffle(cases)
    for operand, both, m, n, k, warps, stages in cases:
        case = Simt(operand, both, (m, n, k), warps, stages)
        if case.is_accepted():
            yield case


def _layouts_of(operand: str) -> list[tuple[Any, Any]]:
    if operand == "s8":
        return [(ROW, COLUMN), (COLUMNS32, ROWS32)]
    return list(itertools.product((ROW, COLUMN), repeat=2))


def epilogues(drawn: random.Random) -> Iterator[Epilogue]:
    """Yield all accepted epilogues, in any order.

    Rows come in steps of 8 of each warp, one like the other: two instructions along M are enough.
    """
    cases = [
        Epilogue(kind, alignment, (2 * kind[3][0] * warps[0], columns), warps)
        for kind, alignment, warps in itertools.product(EPILOGUES, (1, 2, 4, 8, 16), WARPS)
        for columns in range(8 * warps[1], 257, 8 * warps[1])
    ]
    drawn.shuffle(cases)
    yield from (case for case in cases if case.is_accepted())
