"""Functions that an epilogue function calls, beside operators and activations. They compute on arrays, too.

They are found in `pycutlass.epilogue` and are in no ``import *``, since `abs`, `round`, `sum`, `min` and `max` are
names of Python's own. Arrays of integers are computed as float64, since integers would wrap, and all others in their
type. Reductions of arrays are computed in float64; results are float32 of float32 and narrower floats, else float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pycutlass.calls import public, shown
from pycutlass.epilogue.arrays import numbers
from pycutlass.epilogue.graph import Value, reduced_tiles
from pycutlass.epilogue.nodes import NODES, REDUCTIONS
from pycutlass.epilogue.pairs import pairs
from pycutlass.epilogue.places import where_called
from pycutlass.epilogue.top_k import top_k
from pycutlass.epilogue.traced import Reduced, Traced, applied, check_known
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.integers import as_int
from pycutlass.types import ELEMENT_OF_TAG, element

__all__ = [
    "abs",
    "absmax",
    "cast",
    "ceil",
    "clamp",
    "erf",
    "exp",
    "exp2",
    "floor",
    "log",
    "logsumexp",
    "max",
    "maximum",
    "min",
    "minimum",
    "pairs",
    "round",
    "rsqrt",
    "softplus",
    "sqrt",
    "sum",
    "sum_of_squares",
    "top_k",
    "where",
]

#: Types that a value can be rounded to on its way.
_CAST = ("f16", "bf16", "f32", "f64", "s8", "u8", "s32", "e4m3", "e5m2")


#: What `minimum` and `maximum` are.
_OF_TWO = {"min": "lesser", "max": "greater"}


def _node(name: str, *operands: Any) -> Any:
    """Return a node applied to values of a function, or to arrays."""
    if any(isinstance(each, Traced | Reduced) for each in operands):
        if not any(isinstance(each, Traced) for each in operands):
            next(each for each in operands if isinstance(each, Reduced))._refuse()
        return applied(NODES[name], *operands)
    arrays = [_array(name, each) for each in operands]
    kinds = zip(NODES[name].takes, arrays, strict=True)
    return NODES[name].numpy(*(_in_fractions(each) if kind == "n" else each for kind, each in kinds))


def _array(function: str, given: Any) -> Any:
    """Return what a function is given as an array of numbers."""
    return numbers(f"what {function} is given", given, widens=False)


def _in_fractions(array: Any) -> Any:
    """Return an array of numbers as functions compute with it: integers would wrap, and become float64."""
    return array.astype(np.float64) if array.dtype.kind in "iub" else array


@public
def abs(x: Any) -> Any:
    """Return the absolute value of `x`."""
    return _node("abs", x)


@public
def floor(x: Any) -> Any:
    """Return the largest integer that is not above `x`."""
    return _node("floor", x)


@public
def ceil(x: Any) -> Any:
    """Return the least integer that is not below `x`."""
    return _node("ceil", x)


@public
def round(x: Any) -> Any:
    """Return the integer that is nearest to `x`, of two the even one."""
    return _node("round", x)


@public
def exp(x: Any) -> Any:
    """Return e to the power of `x`."""
    return _node("exp", x)


@public
def exp2(x: Any) -> Any:
    """Return 2 to the power of `x`."""
    return _node("exp2", x)


@public
def log(x: Any) -> Any:
    """Return the natural logarithm of `x`."""
    return _node("log", x)


@public
def sqrt(x: Any) -> Any:
    """Return the square root of `x`."""
    return _node("sqrt", x)


@public
def rsqrt(x: Any) -> Any:
    """Return 1 / sqrt(x)."""
    return _node("rsqrt", x)


@public
def erf(x: Any) -> Any:
    """Return the error function of `x`."""
    return _node("erf", x)


@public
def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)), without overflow."""
    return _node("softplus", x)


@public
def minimum(x: Any, y: Any) -> Any:
    """Return the lesser of `x` and `y`; NaN where either is."""
    return _node("minimum", x, y)


@public
def maximum(x: Any, y: Any) -> Any:
    """Return the greater of `x` and `y`; NaN where either is."""
    return _node("maximum", x, y)


@public
def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    """Return `x` limited to `low` and `high`, of which one may be left out; NaN stays."""
    if low is None and high is None:
        raise DescriptionError(f"{where_called()}clamp takes low, high or both")
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


@public
def where(condition: Any, x: Any, y: Any) -> Any:
    """Return `x` where `condition` holds, else `y`."""
    return _node("where", condition, x, y)


@public
def cast(x: Any, kind: Any) -> Any:
    """Return `x` rounded to an element type, and computed with as before.

    Parameters
    ----------
    x : value or array
        What is rounded: to nearest even. Integers saturate, and NaN becomes 0; float_e4m3 and float_e5m2 saturate as
        well, infinities too, and keep NaN.
    kind : element type of ``cutlass``, or a dtype of torch, NumPy or ml_dtypes
        float16, bfloat16, float32, float64, int8, uint8, int32, float_e4m3 (torch.float8_e4m3fn) or float_e5m2.

    Raises
    ------
    DescriptionError
        Another type.

    Examples
    --------
    >>> from pycutlass import cutlass
    >>> from pycutlass.epilogue import cast
    >>> cast([0.4, 1.5, 300.0], cutlass.int8)
    array([  0.,   2., 127.])
    >>> cast([0.3, 17.0, 1000.0], cutlass.float_e4m3).tolist()
    [0.3125, 16.0, 448.0]
    """
    try:
        short = element(kind).short
    except DescriptionError:
        short = ""
    if short not in _CAST:
        names = ", ".join(f"cutlass.{each.__name__}" for each in ELEMENT_OF_TAG if element(each).short in _CAST)
        raise DescriptionError(
            f"{where_called()}cast rounds to one of {names}, or a dtype of torch or NumPy with one of these names; "
            f"got {shown(kind)}"
        )
    if isinstance(x, Reduced):
        x._refuse()
    if not isinstance(x, Traced):
        values = _array("cast", x)
        return element(kind).round(values).astype(values.dtype if values.dtype.kind == "f" else np.float64)
    trace = x._trace
    if trace.is_truth(x._number):
        raise DescriptionError(f"{where_called()}cast takes numbers, and is given a condition: use where(x, 1.0, 0.0)")
    return Traced(trace, trace.add(Value("cast", (x._number,), (short,))))


def _reduce(name: str, x: Any, axis: Any, tile: Any = None) -> Any:
    if isinstance(axis, Traced | Reduced) and name in ("max", "min"):
        raise DescriptionError(
            f"{where_called()}{name} reduces one value along an axis, and is given two: the {_OF_TWO[name]} of two is "
            f"pycutlass.epilogue.{name}imum(x, y)"
        )
    check_known(name, axis=axis, tile=tile)
    number = None if axis is None else as_int(axis)
    if axis is not None and number not in (0, 1, -1, -2):
        raise DescriptionError(
            f"{where_called()}{name} takes axis=1 (one value for each row of D), axis=0 (one for each column) or "
            f"axis=None (one for all); got {shown(axis)}"
        )
    axis = None if number is None else number % 2
    extent = None if tile is None else as_int(tile)
    if tile is not None and (axis is None or extent is None or extent < 1):
        raise DescriptionError(
            f"{where_called()}{name} takes the columns (axis=1) or rows (axis=0) of a tile as tile=, a positive "
            f"integer; got axis={axis}, tile={shown(tile)}"
        )
    if isinstance(x, Reduced):
        x._refuse()
    if not isinstance(x, Traced):
        return _reduced_array(name, _array(name, x), axis, extent)
    trace = x._trace
    if trace.is_truth(x._number):
        raise DescriptionError(
            f"{where_called()}{name} takes numbers, and is given a condition: use where(x, 1.0, 0.0)"
        )
    data = (name, "" if axis is None else str(axis), *(() if extent is None else (str(extent),)))
    return Reduced(trace, trace.add(Value("reduce", (x._number,), data)), name)


def _reduced_array(name: str, x: Any, axis: int | None, tile: int | None) -> Any:
    if x.ndim < 2:
        got = f"shape {x.shape}: pass one row as x[None, :]" if x.ndim else "a single number"
        raise ArgumentError(f"{name} takes a matrix, of shape (..., M, N); got {got}")
    if not x.size:
        raise ArgumentError(f"{name} takes an array with elements, and one of shape {x.shape} has none: leave it out")
    wide = x.astype(np.float64)
    if tile is not None and axis is not None:
        made = reduced_tiles(name, wide, axis - 2, tile)
    else:
        made = np.asarray(REDUCTIONS[name].numpy(wide, (-2, -1) if axis is None else axis - 2))
    narrow = x.dtype.kind not in "iub" and x.dtype.itemsize <= np.dtype(np.float32).itemsize
    with np.errstate(over="ignore"):
        return made.astype(np.float32) if narrow else made


@public
def sum(x: Any, axis: int | None = None, *, tile: int | None = None) -> Any:
    """Return the sum of `x`: of each row (axis=1), each column (axis=0) or all of D, in each batch.

    With `tile`, which must be the columns (axis=1) or rows (axis=0) of the kernel's tile, each tile has a sum of its
    own: those of the first tile come first, so that (..., M, N) comes to (..., tiles * M), or (..., tiles * N).

    Arrays are summed up in float64. Sums are float32 of float32 and narrower floats, as in kernels, and float64
    of float64 and of integers; so are the results of all reductions.
    """
    return _reduce("sum", x, axis, tile)


@public
def max(x: Any, axis: int | None = None, *, tile: int | None = None) -> Any:
    """Return the greatest of `x`, as `sum` does the sum; NaN where there is one."""
    return _reduce("max", x, axis, tile)


@public
def min(x: Any, axis: int | None = None, *, tile: int | None = None) -> Any:
    """Return the least of `x`, as `sum` does the sum; NaN where there is one."""
    return _reduce("min", x, axis, tile)


@public
def absmax(x: Any, axis: int | None = None, *, tile: int | None = None) -> Any:
    """Return the greatest absolute value of `x`, as `sum` does the sum; NaN where there is one."""
    return _reduce("absmax", x, axis, tile)


@public
def sum_of_squares(x: Any, axis: int | None = None, *, tile: int | None = None) -> Any:
    """Return the sum of the squares of `x`, as `sum` does the sum."""
    return _reduce("sum_of_squares", x, axis, tile)


@public
def logsumexp(x: Any, axis: int | None = None, *, tile: int | None = None) -> Any:
    """Return the logarithm of the sum of exponentials of `x`, as `sum` does the sum, without overflow."""
    return _reduce("logsumexp", x, axis, tile)
