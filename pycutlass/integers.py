"""Numbers of every library, read in one place: what an object raises when asked is the cause of our exception."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from pycutlass.errors import ArgumentError, ArgumentTypeError

__all__ = ["as_int", "attribute", "items_of", "real", "several", "shape_of"]

_BITS = 128  # nothing counted here needs as many; an integer may have any number, which Python would not even print
_NO_ITEMS = (str, bytes, bytearray, Mapping, Set)  # one can walk along them, though not to find M, N and K


def as_int(value: Any, name: str = "") -> int | None:
    """Return `value` as an int where it is an integer of any library and no truth value, else None.

    `name` is what the user calls it, for the exception.

    Raises
    ------
    ArgumentError
        It is beyond anything that is counted.
    ArgumentTypeError
        Its own ``__index__`` raised something else than a TypeError, which is how an object says that it is none.
    """
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    except Exception as error:
        raise _asked(value, "integer") from error
    if number.bit_length() > _BITS:
        what = f"an integer of {number.bit_length():,} bits"
        raise ArgumentError(
            f"{f'{name} is ' if name else ''}{what}{',' if name else ' is'} beyond anything that is counted here"
        )
    return number


def attribute(value: Any, name: str) -> Any:
    """Return an attribute of what may be anything; None where there is none, or asking for it raises."""
    try:
        return getattr(value, name, None)
    except Exception:  # of whoever wrote the class; what is needed is not there
        return None


def items_of(values: Any, most: int) -> tuple[Any, ...] | None:
    """Return the items of an ordered collection, no more than `most` and one; None where it is no such thing.

    Raises
    ------
    ArgumentTypeError
        Walking along it raised something else than a TypeError.
    """
    if isinstance(values, _NO_ITEMS):
        return None
    try:
        return tuple(itertools.islice(values, most + 1))  # a generator may have no end
    except TypeError:
        return None
    except Exception as error:
        raise _asked(values, "items") from error


def several(values: Any, count: int) -> tuple[int, ...] | None:
    """Return `count` integers, M, N and K perhaps, or None where `values` are something else."""
    items = items_of(values, count)
    if items is None or len(items) != count:
        return None
    numbers = tuple(number for number in map(as_int, items) if number is not None)
    return numbers if len(numbers) == count else None


def shape_of(tensor: Any) -> tuple[int, ...] | None:
    """Return the shape of what may be a tensor, and is not checked yet; None where it has none."""
    try:
        shape = tensor.shape
    except Exception:  # whoever checks the tensor says what is wrong
        return None
    return tuple(shape) if isinstance(shape, tuple) else None  # torch has a class of its own


def real(value: Any, name: str = "") -> float | None:
    """Return `value` as a float where it is a real number of any library, else None.

    `name` is what the user calls it, for the exception.

    Text, dates, durations and complex numbers are no real numbers, though NumPy makes floats of them.

    Raises
    ------
    ArgumentError
        It is beyond float64, and no infinity.
    ArgumentTypeError
        Its own ``__float__`` raised something unexpected.
    """
    if type(value) is float:
        return value
    if attribute(value, "__float__") is None or isinstance(value, np.ma.MaskedArray):
        return None if (number := as_int(value)) is None else float(number)
    dtype = attribute(value, "dtype")
    is_complex = isinstance(value, complex) or attribute(dtype, "is_complex") is True
    if is_complex or isinstance(value, str | bytes) or attribute(dtype, "kind") in ("c", "m", "M", "U", "S"):
        return None  # NumPy would warn, and leave the imaginary part out, or the unit
    try:
        found = float(value.detach() if attribute(value, "requires_grad") is True else value)
        if math.isinf(found) and bool(value != found):  # of a type with a larger exponent
            raise OverflowError
        return found
    except (TypeError, ValueError):
        return None
    except OverflowError:
        what = f"an int of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__}"
        must = f"{name} is beyond float64: it must be less than 1.8e+308 in magnitude, got {what}"
        raise ArgumentError(must if name else f"{what} is beyond float64") from None
    except Exception as error:
        raise _asked(value, "number") from error


def _asked(value: Any, what: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{type(value).__name__} raised an exception when it was asked for its {what}")
