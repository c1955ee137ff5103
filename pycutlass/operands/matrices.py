"""Matrices that the user gave, checked against what the operation was described with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pycutlass.errors import ArgumentError
from pycutlass.library import TensorDescription
from pycutlass.operands.operand import Matrix
from pycutlass.operands.refusals import check_element, refusal, rule_of, viewed
from pycutlass.remedies import EpilogueName, is_target, may_be_bias
from pycutlass.tensor import TensorView

__all__ = ["empty_matrix", "empty_matrix_of", "matrix", "matrix_of"]


def matrix(
    name: str,
    description: TensorDescription,
    tensor: Any,
    rows: int,
    columns: int,
    batch: int = 1,
    *,
    written: bool = False,
) -> Matrix:
    """Return operand `name` of `rows` x `columns`, checked.

    A tensor of two dimensions must have these extents and strides of the declared layout; a leading dimension larger
    than the extent is honoured. In a batch it has three, (batch, rows, columns), with any step between the matrices,
    or two, which all the batch shares. A flat tensor must have exactly as many elements, packed in the declared
    layout. A raw pointer is packed. Matrices of what is `written`, as D always is, must lie apart.

    Raises
    ------
    ArgumentTypeError
        Another element type, or no tensor at all.
    ArgumentError
        Extents or strides that do not fit.
    AlignmentError
        Pointer, extent or leading dimension less aligned than described.
    """
    shape = (rows, columns) if batch == 1 else (batch, rows, columns)
    view = viewed(name, description, tensor, shape)
    return matrix_of(name, description, view, rows, columns, batch, written=written)


def matrix_of(
    name: str,
    description: TensorDescription,
    view: TensorView,
    rows: int,
    columns: int,
    batch: int = 1,
    *,
    written: bool = False,
) -> Matrix:
    """Return the operand whose tensor, in memory or to come, looks like `view`: as `matrix` does."""
    rule, folds = rule_of(description), isinstance(name, EpilogueName) or name[0] != "B"
    ld, batch_stride, broken = rule.check_matrix(
        view.pointer, view.shape, view.strides, rows, columns, batch, written or name == "D", folds
    )
    result = Matrix(name, description, view, rows, columns, ld, batch, batch_stride)
    check_element(result, broken)
    if broken:
        raise refusal(result, broken)
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
    shape = (rows, columns) if batch == 1 else (batch, rows, columns)
    return empty_matrix_of(name, description, viewed(name, description, tensor, shape), rows, columns, batch)


def empty_matrix_of(
    name: str, description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int = 1
) -> Matrix:
    """Return the operand whose tensor, in memory or to come, looks like `view`: as `empty_matrix` does."""
    packed = Matrix(name, description, view, rows, columns, 0, batch)
    check_element(packed, "shape" if is_target(name) else "")
    packed = replace(packed, batch=1)
    shape = view.shape
    if shape is not None and not may_be_bias(name):
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
