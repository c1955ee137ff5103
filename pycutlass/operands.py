"""A matrix operand: what the user gave, checked against what the operation was described with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError
from pycutlass.library import TensorDescription
from pycutlass.tensor import TensorView, wrap

__all__ = ["Matrix", "check_overlap", "matrix"]

_LD_LIMIT = 2**31  # CUTLASS keeps leading dimensions of its 2.x layouts in 32 bits


@dataclass(frozen=True)
class Matrix:
    """A checked operand.

    Attributes
    ----------
    name : str
        A, B, C or D.
    description : TensorDescription
        Its element type, layout and alignment.
    view : TensorView
        The memory.
    rows, columns : int
        Extents.
    ld : int
        Leading dimension in elements: the step between rows (RowMajor) or columns (ColumnMajor).
    """

    name: str
    description: TensorDescription
    view: TensorView
    rows: int
    columns: int
    ld: int

    @property
    def contiguous_extent(self) -> int:
        """Extent along which elements are adjacent."""
        return self.columns if self.description.is_row_major else self.rows

    @property
    def strided_extent(self) -> int:
        """Extent along which elements are a leading dimension apart."""
        return self.rows if self.description.is_row_major else self.columns

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        elements = (self.strided_extent - 1) * self.ld + self.contiguous_extent
        return elements * self.description.type.bits // 8

    def host_array(self) -> NDArray[Any]:
        """Return host memory as an array of shape (rows, columns), without a copy."""
        strides = (self.ld, 1) if self.description.is_row_major else (1, self.ld)
        return self.view.host_array((self.rows, self.columns), strides, self.description.type.dtype)

    def packed(self) -> NDArray[Any]:
        """Return host memory as contiguous bytes in the declared layout."""
        array = self.host_array()
        return np.ascontiguousarray(array if self.description.is_row_major else array.T).reshape(-1).view(np.uint8)

    def unpack(self, packed: NDArray[Any]) -> None:
        """Write contiguous bytes in the declared layout into host memory."""
        values = packed.view(self.description.type.dtype)
        values = values.reshape(self.strided_extent, self.contiguous_extent)
        self.host_array()[...] = values if self.description.is_row_major else values.T


def matrix(name: str, description: TensorDescription, tensor: Any, rows: int, columns: int) -> Matrix:
    """Return operand `name` of `rows` x `columns`, checked.

    A two-dimensional tensor must have these extents and strides of the declared layout; a leading dimension larger
    than the extent is honoured. A flat tensor must have exactly rows * columns elements, packed in the declared
    layout. A raw pointer is packed.

    Raises
    ------
    ArgumentTypeError
        Another element type, or no tensor at all.
    ArgumentError
        Extents or strides that do not fit.
    AlignmentError
        Pointer, extent or leading dimension less aligned than described.
    """
    view = wrap(name, tensor)
    _check_dtype(name, description, view)
    result = Matrix(name, description, view, rows, columns, _leading_dimension(name, description, view, rows, columns))
    _check_alignment(result)
    return result


def check_overlap(target: Matrix, source: Matrix) -> None:
    """Raise ArgumentError where writing `target` would change `source` while it is read."""
    width, other_width = (m.contiguous_extent * m.description.type.bits // 8 for m in (target, source))
    begin, other_begin = target.view.pointer, source.view.pointer
    if begin >= other_begin + source.bytes or other_begin >= begin + target.bytes:
        return
    pitch = target.ld * target.description.type.bits // 8
    if pitch == source.ld * source.description.type.bits // 8:
        # Two column ranges of one allocation interleave in memory without sharing an element.
        offset = (begin - other_begin) % pitch
        if offset >= other_width and offset + width <= pitch:
            return
    raise ArgumentError(
        f"{target.name} overlaps {source.name} in memory ({target.name} at {begin:#x} with {target.bytes:,} bytes, "
        f"{source.name} at {other_begin:#x} with {source.bytes:,} bytes): a GEMM cannot write over what it still "
        f"reads. Give {target.name} memory of its own."
    )


def _check_dtype(name: str, description: TensorDescription, view: TensorView) -> None:
    wanted = description.type.dtype_name
    if view.dtype_name is None or view.dtype_name == wanted:
        return
    raise ArgumentTypeError(
        f"operand {name} must be {wanted}, as the operation describes it ({description.type}); got a {view.library} "
        f"tensor of {view.dtype_name}. Convert the tensor, or describe {name} with its type."
    )


def _leading_dimension(name: str, description: TensorDescription, view: TensorView, rows: int, columns: int) -> int:
    packed = columns if description.is_row_major else rows
    if view.shape is None or view.strides is None:
        return packed
    if len(view.shape) == 1:
        return _flat(name, view, rows, columns, packed)
    if len(view.shape) != 2 or view.shape != (rows, columns):
        raise ArgumentError(
            f"operand {name} must have shape ({rows}, {columns}), or be flat with {rows * columns} elements, for this "
            f"problem size; got shape {tuple(view.shape)}"
        )
    return _from_strides(name, description, view, rows, columns, packed)


def _flat(name: str, view: TensorView, rows: int, columns: int, packed: int) -> int:
    assert view.shape is not None and view.strides is not None
    if view.shape[0] != rows * columns:
        raise ArgumentError(
            f"a flat operand {name} must have exactly {rows} x {columns} = {rows * columns} elements, packed in the "
            f"declared layout; got {view.shape[0]}"
        )
    if view.strides[0] != 1 and view.shape[0] != 1:
        raise ArgumentError(f"a flat operand {name} must be contiguous, got a step of {view.strides[0]} elements")
    return packed


def _from_strides(
    name: str, description: TensorDescription, view: TensorView, rows: int, columns: int, packed: int
) -> int:
    assert view.strides is not None
    row_major = description.is_row_major
    adjacent, ld = (view.strides[1], view.strides[0]) if row_major else (view.strides[0], view.strides[1])
    extent, lines = (columns, rows) if row_major else (rows, columns)
    if adjacent != 1 and extent != 1:
        other = "ColumnMajor" if row_major else "RowMajor"
        remedy = f"{name}.contiguous()" if row_major else f"{name}.T.contiguous().T"
        raise ArgumentError(
            f"operand {name} is described as {description.order.name}, which needs a step of 1 along "
            f"{'columns' if row_major else 'rows'}; the tensor of shape ({rows}, {columns}) has strides "
            f"{view.strides}. Pass {remedy} (for numpy: ascontiguousarray), or describe {name} as {other}."
        )
    if lines == 1:
        return packed  # one line: its step means nothing, and libraries put anything there
    if ld < extent:
        raise ArgumentError(
            f"the leading dimension of operand {name} is {ld}, less than its {extent} contiguous elements: the "
            f"tensor overlaps itself (strides {view.strides}). Pass a copy."
        )
    if ld >= _LD_LIMIT:
        raise ArgumentError(f"the leading dimension of operand {name} is {ld:,}; CUTLASS takes less than {_LD_LIMIT:,}")
    return ld


def _check_alignment(operand: Matrix) -> None:
    name, alignment = operand.name, operand.description.alignment
    row_major = operand.description.is_row_major
    extent_name = f"number of {'columns' if row_major else 'rows'}"
    for what, value in ((extent_name, operand.contiguous_extent), ("leading dimension", operand.ld)):
        if value % alignment:
            raise AlignmentError(
                f"operand {name} is described with alignment {alignment}: its {what} must be a multiple of that, got "
                f"{value}. Pad the tensor, or describe {name} with alignment {_largest_alignment(value)}."
            )
    if operand.view.pointer % operand.description.alignment_bytes:
        raise AlignmentError(
            f"operand {name} is described with alignment {alignment}, so its address must be a multiple of "
            f"{operand.description.alignment_bytes} bytes; got {operand.view.pointer:#x}. Pass a copy, or describe "
            f"{name} with a smaller alignment."
        )


def _largest_alignment(value: int) -> int:
    return value & -value
