"""Biases: vectors that stand for a matrix of equal lines, told from whole matrices and checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import shape_of
from pycutlass.library import TensorDescription
from pycutlass.operands.operand import Matrix
from pycutlass.operands.refusals import check_element, refusal, rule_of, viewed
from pycutlass.tensor import TensorView

__all__ = ["check_bias", "is_vector", "vector", "vector_of"]


def vector(
    name: str,
    description: TensorDescription,
    tensor: Any,
    rows: int,
    columns: int,
    batch: int = 1,
    *,
    written: bool = False,
) -> Matrix:
    """Return a bias: a vector along the contiguous direction of the layout, which stands for equal lines of a matrix.

    It has `columns` elements for RowMajor, `rows` for ColumnMajor; in a batch also (batch, elements). Those of what is
    `written` must lie apart.

    Raises
    ------
    ArgumentTypeError, ArgumentError, AlignmentError
        As for `matrix`.
    """
    line = columns if description.is_row_major else rows
    view = viewed(name, description, tensor, (line,) if batch == 1 else (batch, line))
    return vector_of(name, description, view, rows, columns, batch, written=written)


def vector_of(
    name: str,
    description: TensorDescription,
    view: TensorView,
    rows: int,
    columns: int,
    batch: int = 1,
    *,
    written: bool = False,
) -> Matrix:
    """Return the bias whose tensor, in memory or to come, looks like `view`: as `vector` does."""
    ld, batch_stride, broken = rule_of(description).check_vector(
        view.pointer, view.shape, view.strides, rows, columns, batch, written
    )
    result = Matrix(name, description, view, rows, columns, ld, batch, batch_stride)
    check_element(result, broken)
    if broken:
        raise refusal(result, broken)
    return result


def is_vector(description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1) -> bool:
    """Return whether `tensor` has the elements of a bias and not those of a whole matrix.

    Raises
    ------
    ArgumentError
        It may be either: one matrix that a batch shares has the shape of biases where the batch is as large as it.
    """
    shape = shape_of(tensor)
    if shape is None:
        return False
    line = columns if description.is_row_major else rows
    elements = math.prod(shape)
    if batch > 1 and len(shape) == 2:
        as_matrix, as_biases = tuple(shape) == (rows, columns), tuple(shape) == (batch, line)
        if as_matrix and as_biases:
            raise ArgumentError(
                f"operand C of shape {tuple(shape)} may be one matrix that all {batch} problems share, or a bias for "
                f"each of them: say bias=False or bias=True"
            )
        if as_matrix or as_biases:
            return as_biases
    if elements == rows * columns * batch or (elements == rows * columns and len(shape) == 2):
        return False
    return elements in (line, line * batch)


def check_bias(bias: Any) -> bool | None:
    """Return what arguments were given as `bias`, whether C is one; raise ArgumentTypeError for the bias itself."""
    if bias is not None and not isinstance(bias, bool | np.bool_):
        raise ArgumentTypeError(
            f"bias says whether C is a bias: it is True, False or None (each tensor tells), got {type(bias).__name__}. "
            f"Pass the bias itself as C, or to an epilogue function by its name, as in epilogue={{'bias': ...}}"
        )
    return None if bias is None else bool(bias)
