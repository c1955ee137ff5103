"""Matrices in larger allocations, and a model of the memory they use that lists addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from descriptions import TAG
from hypothesis import strategies as st

from pycutlass import TensorDescription, cutlass
from pycutlass.errors import ArgumentError
from pycutlass.operands import Matrix
from pycutlass.operands.overlaps import check_overlap
from pycutlass.tensor import TensorView

__all__ = [
    "COLUMN",
    "ROW",
    "Case",
    "addresses",
    "at",
    "cases",
    "extents",
    "layouts",
    "numpy_of",
    "overlaps",
    "shorts",
    "torch_of",
]

ROW, COLUMN = cutlass.RowMajor, cutlass.ColumnMajor

shorts = st.sampled_from(["f16", "bf16", "tf32", "f32", "f64"])
layouts = st.sampled_from([ROW, COLUMN])
extents = st.integers(1, 6)


@dataclass(frozen=True)
class Case:
    """A matrix inside a larger allocation: where it starts, and the step between its lines, in elements."""

    short: str
    layout: Any
    rows: int
    columns: int
    offset: int
    ld: int

    @property
    def description(self) -> TensorDescription:
        return TensorDescription(TAG[self.short], self.layout, 1)

    @property
    def packed(self) -> int:
        return self.columns if self.layout is ROW else self.rows

    @property
    def strides(self) -> tuple[int, int]:
        return (self.ld, 1) if self.layout is ROW else (1, self.ld)

    @property
    def span(self) -> int:
        """Elements that the allocation must have."""
        return self.offset + self.rows * self.columns * self.ld + 1

    def view(self, base: np.ndarray) -> np.ndarray:
        """Return the matrix as NumPy makes it: by slicing, and transposing where columns are contiguous."""
        lines = self.rows if self.layout is ROW else self.columns
        sliced = base[self.offset : self.offset + lines * self.ld].reshape(lines, self.ld)[:, : self.packed]
        return sliced if self.layout is ROW else sliced.T


@st.composite
def cases(draw: st.DrawFn, short: Any = shorts) -> Case:
    layout, rows, columns = draw(layouts), draw(extents), draw(extents)
    packed = columns if layout is ROW else rows
    return Case(draw(short), layout, rows, columns, draw(st.integers(0, 5)), packed + draw(st.integers(0, 4)))


def numpy_of(base: np.ndarray, case: Case) -> Any:
    return case.view(base)


def torch_of(base: np.ndarray, case: Case) -> Any:
    if base.dtype == ml_dtypes.bfloat16:
        flat = torch.from_numpy(base.view(np.int16)).view(torch.bfloat16)
    else:
        flat = torch.from_numpy(base)
    return flat.as_strided((case.rows, case.columns), case.strides, case.offset)


def addresses(operand: Matrix) -> set[int]:
    """Return the address of every byte that an operand uses, element by element."""
    size = operand.description.type.bits // 8
    row_step, column_step = (operand.ld, 1) if operand.description.is_row_major else (1, operand.ld)
    starts = [
        operand.view.pointer + size * (row * row_step + column * column_step)
        for row in range(operand.rows)
        for column in range(operand.columns)
    ]
    return {start + byte for start in starts for byte in range(size)}


def at(pointer: int, case: Case, name: str = "A") -> Matrix:
    """Return an operand at an address; nothing reads it."""
    view = TensorView(pointer, None, None, None, None, "numpy", None)
    return Matrix(name, case.description, view, case.rows, case.columns, case.ld)


def overlaps(target: Matrix, source: Matrix) -> bool:
    try:
        check_overlap(target, source)
    except ArgumentError:
        return True
    return False
