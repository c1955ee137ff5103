"""Matrices that the user gave, checked against what the operation was described with."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, NoReturn

from pycutlass.errors import ArgumentError
from pycutlass.library import TensorDescription
from pycutlass.operands.checks import check_alignment, check_batch_stride, check_dtype
from pycutlass.operands.operand import Matrix
from pycutlass.remedies import alignment_of, interleaved, laid_out, transposed
from pycutlass.tensor import TensorView, wrap

__all__ = ["empty_matrix", "empty_matrix_of", "matrix", "matrix_of"]

_LD_LIMIT = 2**31  # CUTLASS keeps leading dimensions of its 2.x layouts in 32 bits


def matrix(name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1) -> Matrix:
    """Return operand `name` of `rows` x `columns`, checked.

    A tensor of two dimensions must have these extents and strides of the declared layout; a leading dimension larger
    than the extent is honoured. In a batch it has three, (batch, rows, columns), with any step between the matrices,
    or two, which all the batch shares. A flat tensor must have exactly as many elements, packed in the declared
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
    return matrix_of(name, description, wrap(name, tensor), rows, columns, batch)


def matrix_of(
    name: str, description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int = 1
) -> Matrix:
    """Return the operand whose tensor, in memory or to come, looks like `view`: as `matrix` does."""
    check_dtype(name, description, view)
    order = description.order
    line = (columns if order.is_row_major else rows) * order.interleave
    packed = Matrix(name, description, view, rows, columns, line, batch, rows * columns if batch > 1 else 0)
    _check_interleave(packed)
    if view.shape is None or view.strides is None:
        result = packed
    elif len(view.shape) == 1:
        result = _flat(packed)
    else:
        result = _strided(packed)
    if result.ld >= _LD_LIMIT:
        raise ArgumentError(
            f"the leading dimension of operand {name} is {result.ld:,}; CUTLASS takes less than {_LD_LIMIT:,}"
        )
    check_alignment(result)
    return result


def empty_matrix(
    name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1
) -> Matrix:
    """Return an operand without elements: neither its address nor its strides mean anything.

    Raises
    ------
    ArgumentTypeError
        Another element type, or no tensor at all.
    ArgumentError
        Other extents. A C may also be a bias.
    """
    return empty_matrix_of(name, description, wrap(name, tensor), rows, columns, batch)


def empty_matrix_of(
    name: str, description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int = 1
) -> Matrix:
    """Return the operand whose tensor, in memory or to come, looks like `view`: as `empty_matrix` does."""
    check_dtype(name, description, view)
    packed = Matrix(name, description, view, rows, columns, 0)
    shape = view.shape
    if shape is not None and name[0] not in "Cs":
        known = {(rows, columns), (0,), (1, rows, columns), (batch, rows, columns)}
        if tuple(shape) not in known and not (
            len(shape) > 2 and shape[-1] == columns and math.prod(shape[:-1]) == rows
        ):
            wanted = (rows, columns) if batch == 1 else (batch, rows, columns)
            raise ArgumentError(
                f"operand {name} must have shape {wanted}, and so no elements, for this problem size; got shape "
                f"{tuple(shape)}"
            )
    return Matrix(name, description, view, rows, columns, packed.line)


def _check_interleave(operand: Matrix) -> None:
    order = operand.description.order
    across = operand.rows if order.is_row_major else operand.columns
    if across % order.interleave:
        raise ArgumentError(
            f"operand {operand.name} is {order.name}: its number of {'rows' if order.is_row_major else 'columns'} must "
            f"be a multiple of {order.interleave}, got {across}"
        )


def _flat(packed: Matrix) -> Matrix:
    view, name = packed.view, packed.name
    assert view.shape is not None and view.strides is not None
    elements, one = packed.batch * packed.rows * packed.columns, packed.rows * packed.columns
    if view.strides[0] != 1 and view.shape[0] != 1:
        raise ArgumentError(f"a flat operand {name} must be contiguous, got a step of {view.strides[0]} elements")
    if view.shape[0] != elements:
        if view.shape[0] == one and name != "D":
            return replace(packed, batch_stride=0)
        times = f"{packed.batch} x " if packed.batch > 1 else ""
        is_bias = _is_bias(packed, view.shape[0])
        takes_bias = name[0] in "Cs" and packed.description.order.interleave == 1 and not is_bias
        or_bias = f", or {packed.line} elements as a bias, {packed.bias_direction}" if takes_bias else ""
        raise ArgumentError(
            f"a flat operand {name} must have exactly {times}{packed.rows} x {packed.columns} = {elements} elements, "
            f"packed in the declared layout{or_bias}; got {view.shape[0]}{_NO_BIAS if is_bias else ''}"
        )
    return packed


_NO_BIAS = ", the elements of a bias, and bias=False was given: leave bias out, or pass a whole matrix"


def _is_bias(packed: Matrix, elements: int) -> bool:
    """Return whether an operand with so many elements was not taken as a bias because bias=False was given."""
    return packed.name[0] in "Cs" and elements in (packed.line, packed.batch * packed.line)


def _strided(packed: Matrix) -> Matrix:
    view, name = packed.view, packed.name
    assert view.shape is not None and view.strides is not None
    if packed.description.order.interleave > 1:
        order = packed.description.order
        extents = packed.rows, packed.columns
        remedy = interleaved(name, view.library, tuple(view.shape), extents, packed.batch, order.is_row_major)
        raise ArgumentError(
            f"operand {name} is {order.name}, where {order.interleave} {'rows' if order.is_row_major else 'columns'} "
            f"are stored together; a tensor of {len(view.shape)} dimensions cannot be that: {remedy}"
        )
    shape, strides = view.shape, view.strides
    batch_stride = 0
    if len(shape) == 3 and packed.batch > 1:
        if shape[0] != packed.batch:
            _wrong_shape(packed)
        batch_stride, shape, strides = strides[0], shape[1:], strides[1:]
    if len(shape) > 2 and all(extent == 1 for extent in shape[:-2]):
        shape, strides = shape[-2:], strides[-2:]
    if len(shape) > 2 and name[0] != "B" and shape[-1] == packed.columns and math.prod(shape[:-1]) == packed.rows:
        shape, strides = (packed.rows, packed.columns), (_row_step(packed), strides[-1])
    if shape != (packed.rows, packed.columns):
        _wrong_shape(packed)
    ld = _leading_dimension(packed, strides)
    check_batch_stride(packed, ld, batch_stride)
    if (ld, batch_stride) == (packed.ld, packed.batch_stride):
        return packed
    return replace(packed, ld=ld, batch_stride=batch_stride)


def _wrong_shape(packed: Matrix) -> NoReturn:
    shape = (packed.rows, packed.columns) if packed.batch == 1 else (packed.batch, packed.rows, packed.columns)
    elements = packed.batch * packed.rows * packed.columns
    view, row_major = packed.view, packed.description.is_row_major
    assert view.shape is not None and view.strides is not None
    remark = ""
    if packed.name in ("A", "B", "C", "D") and len(view.shape) == 3 and view.shape[1:] == shape:
        remark = f". For a batch of such matrices, pass gemm_mode=cutlass.gemm.Mode.Batched, batch={view.shape[0]}"
    if _is_bias(packed, math.prod(view.shape)):
        remark = _NO_BIAS
    if len(view.shape) == 2 and view.shape[::-1] == shape:
        remedy = transposed(packed.name, view.library, view.shape, view.strides, view.dtype_name, row_major)
        remark = f": the transposed matrix. {remedy}"
    raise ArgumentError(
        f"operand {packed.name} must have shape {shape}, or be flat with {elements} elements, for this problem size; "
        f"got shape {tuple(view.shape)}{remark}"
    )


def _row_step(packed: Matrix) -> int:
    """Return how many elements rows are apart in a tensor of more than two dimensions; all but the last are rows."""
    shape, strides = packed.view.shape, packed.view.strides
    assert shape is not None and strides is not None
    kept = [(extent, step) for extent, step in zip(shape[:-1], strides[:-1], strict=True) if extent != 1]
    for (_, outer), (extent, inner) in itertools.pairwise(kept):
        if outer != extent * inner:
            raise ArgumentError(
                f"operand {packed.name} of shape {tuple(shape)} stands for a matrix of {packed.rows} rows, which must "
                f"be a constant step apart; it has strides {tuple(strides)}. Take it as a batch (Mode.Batched)."
            )
    return kept[-1][1] if kept else strides[-2]


def _fits_other_layout(packed: Matrix, step: int, other_step: int) -> bool:
    """Return whether the strides along the described direction, and across it, are those of the other layout."""
    across = packed.rows if packed.description.is_row_major else packed.columns
    bits, alignment = packed.description.type.bits, packed.description.alignment
    aligned = alignment_of(bits, packed.view.pointer, across, step) % alignment == 0
    return other_step == 1 and step >= across and aligned


def _leading_dimension(packed: Matrix, strides: tuple[int, ...]) -> int:
    name, row_major = packed.name, packed.description.is_row_major
    adjacent, ld = (strides[1], strides[0]) if row_major else (strides[0], strides[1])
    if adjacent != 1 and packed.line != 1:
        remedy = laid_out(name, packed.view.library, packed.view.shape or (), packed.view.dtype_name, row_major)
        if _fits_other_layout(packed, adjacent, ld):
            remedy += f", or describe {name} as {'ColumnMajor' if row_major else 'RowMajor'}"
        raise ArgumentError(
            f"operand {name} is described as {packed.description.order.name}, which needs a step of 1 along "
            f"{'columns' if row_major else 'rows'}; the tensor of shape {packed.view.shape} has strides "
            f"{packed.view.strides}. To fix it, {remedy}."
        )
    if packed.lines == 1:
        return packed.line  # one line: its step means nothing, and libraries put anything there
    if ld < 0:
        raise ArgumentError(
            f"the leading dimension of operand {name} is {ld}, and it must not be negative: the tensor is reversed "
            f"(strides {packed.view.strides}). Pass a copy."
        )
    if ld < packed.line:
        raise ArgumentError(
            f"the leading dimension of operand {name} is {ld}, less than its {packed.line} contiguous elements: the "
            f"tensor overlaps itself (strides {packed.view.strides}). Pass a copy."
        )
    return ld
