"""Biases: vectors that stand for a matrix of equal lines, told from whole matrices and checked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import shape_of
from pycutlass.library import TensorDescription
from pycutlass.operands.checks import check_alignment, check_batch_stride, check_dtype
from pycutlass.operands.operand import Matrix
from pycutlass.tensor import TensorView, wrap

__all__ = ["check_bias", "is_vector", "vector", "vector_of"]


def vector(name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1) -> Matrix:
    """Return a bias: a vector along the contiguous direction of the layout, which stands for equal lines of a matrix.

    It has `columns` elements for RowMajor, `rows` for ColumnMajor; in a batch also (batch, elements).

    Raises
    ------
    ArgumentTypeError, ArgumentError, AlignmentError
        As for `matrix`.
    """
    return vector_of(name, description, wrap(name, tensor), rows, columns, batch)


def vector_of(
    name: str, description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int = 1
) -> Matrix:
    """Return the bias whose tensor, in memory or to come, looks like `view`: as `vector` does."""
    check_dtype(name, description, view)
    result = Matrix(name, description, view, rows, columns, 0, batch, 0)
    if view.shape is not None and view.strides is not None:
        result = _bias(result, view.shape, view.strides)
        check_batch_stride(result, result.ld, result.batch_stride)
    check_alignment(result)
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
            f"Pass the bias itself as C."
        )
    return None if bias is None else bool(bias)


def _bias(bias: Matrix, shape: tuple[int, ...], strides: tuple[int, ...]) -> Matrix:
    # Of ColumnMajor it could be (1, M), which is a batch of one vector as well.
    if bias.description.is_row_major and bias.rows == bias.columns != 1 and shape[-2:] == (bias.line, 1):
        raise ArgumentError(
            f"a bias {bias.name} of RowMajor is a row of {bias.line} elements that stands for all rows; got shape "
            f"{tuple(shape)}, a column, which is as long. Pass {bias.name}.reshape(-1) if it is that row."
        )
    # Singleton dimensions say nothing: (N,), (1, N) and (batch, 1, N) are taken alike.
    kept = [(extent, step) for extent, step in zip(shape, strides, strict=True) if extent != 1]
    one, many = (bias.line, 1), (bias.batch * bias.line, 1)
    if kept == [one] or (not kept and bias.line == 1):
        return bias
    if bias.batch > 1:
        if kept == [many]:
            return replace(bias, batch_stride=bias.line)
        vectors = kept if bias.line > 1 else [*kept, one]
        if len(vectors) == 2 and vectors[0][0] == bias.batch and vectors[1] == one:
            return replace(bias, batch_stride=vectors[0][1])
    or_many = f", or ({bias.batch}, {bias.line})" if bias.batch > 1 else ""
    raise ArgumentError(
        f"a bias {bias.name} must be a contiguous vector of {bias.line} elements{or_many}, {bias.bias_direction}; got "
        f"shape {tuple(shape)} with strides {tuple(strides)}"
    )
