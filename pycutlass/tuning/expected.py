"""Between which bounds the results of a right kernel lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pycutlass.epilogue import Epilogue, FunctionEpilogue
from pycutlass.tuning.tunable import Array

__all__ = ["Bounds", "Computed", "bounds_of"]

_F64 = np.dtype(np.float64)
#: How many times the largest error that NumPy makes of a function in its own type a kernel may make: it computes the
#: same in another order, and has functions of its own for exponentials.
_SAFETY = 16.0
_REDUCED = 1e-3  # of the largest result of a reduction: rounding of elements may add up


class Computed(NamedTuple):
    """What an epilogue is given in a part of a product: the sums in f64, and the same part of all that it reads.

    All have (..., M, N), or 1 in the place of what they do not differ along.
    """

    sums: Array
    source: Array | None
    inputs: Mapping[str, Array]
    scalars: Mapping[str, float]


class Bounds(NamedTuple):
    """Exact results, and the least and the greatest that are right."""

    exact: Array
    low: Array
    high: Array

    def wrong(self, found: Array) -> Array:
        """Return where results are wrong; what is no number is right where the exact result is none."""
        right = (found >= self.low) & (found <= self.high)
        return ~(right | (np.isnan(self.exact) & np.isnan(found)))


def bounds_of(epilogue: Epilogue, given: Computed, error: tuple[float, float]) -> dict[str, Bounds]:
    """Return the bounds of D, and of the outputs of a function, by name.

    Parameters
    ----------
    epilogue : EpilogueFunctor or FunctionEpilogue
        What is computed of sums.
    given : Computed
        Of what.
    error : tuple of 2 float
        The relative and the absolute error that D may have where the epilogue hands sums on.
    """
    if isinstance(epilogue, FunctionEpilogue):
        return _of_function(epilogue, given, *error)
    exact = epilogue.evaluate(given.sums, given.source, given.scalars, {}, _F64)["D"]
    exact = epilogue.output.round(exact).astype(_F64) if epilogue.output.is_integer else exact
    allowed = error[1] + error[0] * np.abs(exact)
    return {"D": Bounds(exact, exact - allowed, exact + allowed)}


def _of_function(epilogue: FunctionEpilogue, given: Computed, relative: float, absolute: float) -> dict[str, Bounds]:
    """Return the bounds of a function's results: of what it makes of sums that are wrong by what they may be wrong.

    So a function that magnifies errors has wider bounds, and one that jumps has them where it jumps.
    """
    # What the output's rounding may change is left out: bounds are rounded to the output.
    allowed = absolute + max(0.0, relative - epilogue.output.epsilon / 2) * np.abs(given.sums)

    def at(sums: Array, dtype: Any = _F64) -> dict[str, Array]:
        return epilogue.evaluate(sums, given.source, given.scalars, given.inputs, dtype)

    with np.errstate(all="ignore"):
        exact, below, above = (at(given.sums + sign * allowed) for sign in (0, -1, 1))
        computed = at(given.sums, None)
        types = {"D": epilogue.output} | {port.name: port.type for port in epilogue.outputs}
        indices = {name for each in epilogue.graph.selections for name in each.indices}
        found = {}
        for name, values in exact.items():
            if name in indices:  # of elements that are nearly equal, any may come first
                found[name] = Bounds(values, np.zeros_like(values), np.full_like(values, given.sums.shape[-1] - 1))
                continue
            moved = np.maximum(np.abs(below[name] - values), np.abs(above[name] - values))
            slack = np.nan_to_num(moved, nan=0.0) + _SAFETY * _largest(computed[name] - values)
            slack += _REDUCED * _largest(values) if name in epilogue.graph.of_many else 0.0
            low, high = (types[name].round(values + sign * slack).astype(_F64) for sign in (-1, 1))
            found[name] = Bounds(values, low, high)
    return found


def _largest(values: Array) -> float:
    """Return the largest magnitude among numbers."""
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
