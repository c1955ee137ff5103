"""What epilogue functions compute on in NumPy: arrays of numbers, of the shapes that kernels take."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.epilogue.graph import Input
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import real
from pycutlass.remedies import MARKERS

__all__ = ["numbers", "placed"]

Array = NDArray[Any]


def numbers(name: str, given: Any, *, widens: bool = True) -> Array:
    """Return an array of numbers, which whoever gave it may have in any library that NumPy reads.

    Types of ml_dtypes become float64 where it `widens`.

    Raises
    ------
    ArgumentTypeError
        Something else.
    """
    if isinstance(given, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{name} is a masked array, whose mask would be lost: pass {name}.filled(0), for example"
        )
    try:
        array = np.asarray(given)
        if array.dtype.kind in "fiub":
            return array
        if array.dtype.kind == "O":  # integers of any size, and whatever else is a number
            array = np.array([real(each) for each in array.flat]).reshape(array.shape)
        if array.dtype.kind not in "cOSUMm":  # of ml_dtypes
            return array.astype(np.float64) if widens else array
        kind, error = f" of {array.dtype}" if array.dtype.kind in "cMm" else "", None
    except Exception as raised:  # of the array's library, or of NumPy
        kind, error = f": {raised}" if isinstance(raised, ArgumentError) else "", raised
    remedy = f": pass {name}.detach().cpu().float()" if type(given).__module__ == "torch" else ""
    raise ArgumentTypeError(f"{name} must be an array of numbers, got {type(given).__name__}{kind}{remedy}") from error


def placed(function: str, parameter: Input, given: Array, accumulator: tuple[int, ...]) -> Array:
    """Return what is given for a parameter in the shape in which it goes with an accumulator of shape (..., M, N).

    It is taken in the shapes in which kernels take it, of a batch with as many matrices as the accumulator has.

    Raises
    ------
    ArgumentError
        It has another shape.
    """
    if parameter.form == "scalar":
        if given.ndim:
            remedy = f": pass {parameter.name}.item()" if given.size == 1 else ""
            raise ArgumentError(
                f"{parameter.name} of {function} is a Scalar, one number for all of a launch; got an array of shape "
                f"{given.shape}{remedy}"
            )
        return given
    found = _placed(parameter, given, accumulator)
    if found is None:
        raise ArgumentError(_refusal(function, parameter, given, accumulator))
    return found


def _inner(parameter: Input, accumulator: tuple[int, ...]) -> tuple[int, int]:
    """Return the extents, for one matrix, of what goes with it."""
    rows, columns = accumulator[-2:]
    columns = columns // 2 if parameter.halved else columns
    return {"row": (1, columns), "column": (rows, 1), "number": (1, 1)}.get(parameter.form, (rows, columns))


def _packed(parameter: Input, accumulator: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what goes with one matrix."""
    inner = _inner(parameter, accumulator)
    return inner if parameter.form in ("matrix", "source") else (math.prod(inner),)


def _placed(parameter: Input, given: Array, accumulator: tuple[int, ...]) -> Array | None:
    """Return what is given in the shape in which it goes with the accumulator; None where kernels do not take it."""
    batch, inner, packed = accumulator[:-2], _inner(parameter, accumulator), _packed(parameter, accumulator)
    if given.shape == packed:
        return given.reshape(inner)
    if given.shape == (*batch, *packed) or (parameter.form == "number" and given.shape == batch):
        return given.reshape(*batch, *inner)
    if not given.size or 0 in accumulator:
        return None
    # Kernels have one dimension of a batch, while an accumulator may have several.
    outer, shape = len(batch), given.shape
    if outer > 1 and shape[:outer] == batch:
        if math.prod(shape[outer:]) != math.prod(inner):  # with one dimension it might be one matrix's
            return None
        shape = (math.prod(batch), *shape[outer:])
    if not _fits(parameter, shape, math.prod(batch), accumulator):
        if parameter.form == "source":  # which may be a bias as well
            return _placed(replace(parameter, form="row"), given, accumulator)
        return None
    return given.reshape(inner if given.size == math.prod(inner) else (*batch, *inner))


def _fits(parameter: Input, shape: tuple[int, ...], batch: int, accumulator: tuple[int, ...]) -> bool:
    """Return whether a kernel takes a packed tensor of `shape`."""
    rows, columns = accumulator[-2:]
    if parameter.form == "number":
        rows, columns = 1, 1
    columns = columns // 2 if parameter.halved else columns
    rule = _core.OperandRule(parameter.form != "column", 64, 1)
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    check = rule.check_matrix if parameter.form in ("matrix", "source") else rule.check_vector
    return not check(0, shape, strides, rows, columns, batch)[2]


def _refusal(function: str, parameter: Input, given: Array, accumulator: tuple[int, ...]) -> str:
    """Return what is said of a shape that kernels do not take."""
    name, form, batch = parameter.name, parameter.form, accumulator[:-2]
    packed = _packed(parameter, accumulator)
    got = f"where the accumulator has {accumulator}; got {given.shape}"
    if form == "number":
        many = f"of shape {batch}, or " if batch else ""
        said = f"a number for each matrix of the batch, {many}a single one"
    else:
        each = f" or, with one for each matrix of the batch, {(*batch, *packed)}" if batch else ""
        said = f"a {form}, of shape {packed}{each}"
    return f"{name} of {function} is {said} {got}{_remedy(parameter, given, accumulator)}"


def _remedy(parameter: Input, given: Array, accumulator: tuple[int, ...]) -> str:
    """Return what to do about a shape that kernels do not take, where something else is meant."""
    name, form = parameter.name, parameter.form
    if not given.size or 0 in accumulator:
        return ""
    if parameter.halved and _placed(replace(parameter, halved=False), given, accumulator) is not None:
        return f". It is combined with what pairs returns, which has {accumulator[-1] // 2} columns"
    if form == "row" and given.shape[-2:] == (accumulator[-1], 1):  # where M is N: else it is taken
        shape = ", ".join(map(str, (*given.shape[:-2], -1)))
        return (
            f". It is one column, which is as long as a row here: pass {name}.reshape({shape}) if it is that row, and "
            f"write {name}: Column for one element for each row"
        )
    batch = (math.prod(accumulator[:-2]),)
    if form in ("row", "column") and batch != (1,) and given.shape == (*_packed(parameter, accumulator), *batch):
        return f". Pass {name}.T"
    if not given.ndim:
        return f". For a single number write {name}: Scalar"
    for other in ("row", "column", "matrix", "number"):
        if other != form and _placed(replace(parameter, form=other), given, accumulator) is not None:
            return f". For an array of that shape write {name}: {MARKERS[other]}"
    return ""
