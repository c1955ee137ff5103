"""A checked operand: what all kinds have, and one matrix in memory or a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.library import TensorDescription
from pycutlass.remedies import EpilogueName
from pycutlass.tensor import TensorView

__all__ = ["Matrix", "Operand"]

_TENSOR, _VECTOR = _core.FORMS["tensor"], _core.FORMS["vector"]


class Operand(Protocol):
    """A checked tensor: what the user gave as A, B, C or D."""

    @property
    def name(self) -> str:
        """A, B, C or D."""

    @property
    def description(self) -> TensorDescription:
        """Element type, layout and alignment."""

    @property
    def view(self) -> TensorView:
        """The memory."""

    @property
    def parts(self) -> Sequence[Operand]:
        """What it is made of, with a tensor each."""

    @property
    def ld(self) -> int:
        """Leading dimension in elements."""

    @property
    def batch_stride(self) -> int:
        """Step between matrices of a batch in elements."""

    @property
    def form(self) -> int:
        """What it is in a call record: one of `_core.FORMS`."""

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""

    @property
    def packed_ld(self) -> int:
        """Leading dimension of a contiguous copy."""

    @property
    def packed_batch_stride(self) -> int:
        """Batch stride of a contiguous copy."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of a contiguous copy."""

    def packed(self) -> NDArray[Any]:
        """Return host memory as contiguous bytes in the declared layout."""

    def unpack(self, packed: NDArray[Any]) -> None:
        """Write contiguous bytes in the declared layout into host memory."""

    def addresses(self, base: int) -> list[int] | None:
        """Return the table of addresses that the kernel wants, given that of a packed copy; None for plain operands."""

    def host_array(self) -> NDArray[Any]:
        """Return host memory as an array of matrices."""

    def store(self, values: NDArray[Any]) -> None:
        """Write an array of the shape of `host_array` to host memory."""


@dataclass(frozen=True)
class Matrix:
    """A checked operand: one matrix, or a batch of them at a constant stride.

    Attributes
    ----------
    name : str
        A, B, C or D.
    description : TensorDescription
        Its element type, layout and alignment.
    view : TensorView
        The memory.
    rows, columns : int
        Extents of one matrix.
    ld : int
        Leading dimension in elements: the step between rows (RowMajor), columns (ColumnMajor) or groups of 32 columns
        or rows (interleaved). 0 for a vector, which stands for a matrix of equal lines.
    batch : int
        Number of matrices.
    batch_stride : int
        Step between them in elements; 0 where all are the same one.
    """

    name: str
    description: TensorDescription
    view: TensorView
    rows: int
    columns: int
    ld: int
    batch: int = 1
    batch_stride: int = 0

    @property
    def parts(self) -> tuple[Matrix, ...]:
        """What it is made of, with a tensor each."""
        return (self,)

    @property
    def form(self) -> int:
        """What it is in a call record."""
        return _TENSOR if self.ld else _VECTOR

    @property
    def line(self) -> int:
        """Elements that are adjacent: a row, a column or a group of interleaved ones."""
        order = self.description.order
        extent = self.columns if order.is_row_major else self.rows
        return extent * order.interleave

    @property
    def bias_direction(self) -> str:
        """What an element of a bias stands for, in words for messages: the layout of C decides, not that of D."""
        if self.description.order.name.startswith("Tensor"):
            return "one for each channel"
        across, along = ("column", "row") if self.description.is_row_major else ("row", "column")
        why = "" if isinstance(self.name, EpilogueName) else f", as {self.name} is {along}-major"
        return f"one for each {across}{why}"

    @property
    def lines(self) -> int:
        """Lines in memory, a leading dimension apart; one for a vector."""
        if self.ld == 0:
            return 1
        order = self.description.order
        return (self.rows if order.is_row_major else self.columns) // order.interleave

    @property
    def matrices(self) -> int:
        """Matrices in memory, a batch stride apart."""
        return self.batch if self.batch_stride else 1

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        elements = (self.matrices - 1) * self.batch_stride + (self.lines - 1) * self.ld + self.line
        return self.description.type.bytes_of(elements)

    @property
    def packed_ld(self) -> int:
        """Leading dimension of a contiguous copy."""
        return self.line if self.ld else 0

    @property
    def packed_batch_stride(self) -> int:
        """Batch stride of a contiguous copy."""
        return self.lines * self.line if self.batch_stride else 0

    @property
    def packed_bytes(self) -> int:
        """Bytes of a contiguous copy."""
        return self.description.type.bytes_of(self.matrices * self.lines * self.line)

    def host_array(self) -> NDArray[Any]:
        """Return host memory as an array of shape (batch, rows, columns), without a copy; (rows, columns) alone."""
        return self._as_matrices(self._host_lines())

    def store(self, values: NDArray[Any]) -> None:
        """Write an array of the shape of `host_array` to host memory."""
        order = self.description.order
        values = values.reshape(self.matrices, self.rows, self.columns)
        lines: NDArray[Any] = values if order.is_row_major else values.transpose(0, 2, 1)
        if order.interleave > 1:
            lines = lines.reshape(self.matrices, self.lines, order.interleave, -1).transpose(0, 1, 3, 2)
        self._host_lines()[...] = lines.reshape(self.matrices, self.lines, self.line)

    def addresses(self, base: int) -> None:
        """Return None: the kernel gets the address itself, not a table of addresses."""

    def packed(self) -> NDArray[Any]:
        """Return host memory as contiguous bytes in the declared layout."""
        return np.ascontiguousarray(self._host_lines()[: self.matrices]).reshape(-1).view(np.uint8)

    def unpack(self, packed: NDArray[Any]) -> None:
        """Write contiguous bytes in the declared layout into host memory."""
        values = packed.view(self.description.type.dtype)
        self._host_lines()[...] = values.reshape(self.matrices, self.lines, self.line)

    def _host_lines(self) -> NDArray[Any]:
        """Host memory as an array of shape (matrices, lines, line)."""
        shape, strides = (self.matrices, self.lines, self.line), (self.batch_stride, self.ld, 1)
        return self.view.host_array(shape, strides, self.description.type.dtype)

    def _as_matrices(self, lines: NDArray[Any]) -> NDArray[Any]:
        order = self.description.order
        if order.interleave > 1:
            groups = lines.reshape(self.matrices, self.lines, self.line // order.interleave, order.interleave)
            lines = groups.transpose(0, 1, 3, 2).reshape(self.matrices, -1, self.line // order.interleave)
        values = lines if order.is_row_major else lines.transpose(0, 2, 1)
        if self.batch == 1:
            return np.asarray(values[0])
        return np.broadcast_to(values, (self.batch, *values.shape[1:])) if self.matrices == 1 else values
