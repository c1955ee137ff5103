"""Numbers at which nodes of epilogue functions and roundings change, and what kernels may make of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pycutlass.types import Element

__all__ = ["edges", "wrong"]

#: Beyond these, what activations of f32 are right to is no share of the result (docs/guide/epilogues.md, fusion.md).
SMALL = {"gelu": 6e-9, "gelu_tanh": 6e-9, "silu": 1e-36}
#: What is no normal number of f32 may be 0, and half of the least number of f16 is a tie.
LEAST = {"f64": 0.0, "f16": 2.0**-24}


def edges(kind: Element) -> NDArray[np.float64]:
    """Return numbers of a type at which functions and roundings change."""
    sizes = [0.0, 5e-324, 1e-310, 1e-45, 1e-40, 2.0**-126, 2.0**-24, 2.0**-14, 2.0**-10, 1e-8, 0.25, 0.5, 1.0, 1.5, 2.0]
    sizes += [2.5, 3.0, 3.5, 6.0, 9.5, 20.0, 39.5, 40.5, 88.0, 90.0, 126.5, 127.5, 128.5, 240.0, 448.0, 464.0, 2049.0]
    sizes += [57344.0, 61440.0, 65504.0, 65519.0, 65520.0, 2.0**23 + 1, 2.0**24 + 1, 2.0**31 - 1, 2.0**31, 2.0**53]
    sizes += [1e30, 1e38, 3.4e38, 1e300, np.inf]
    sizes += [1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 65520 - 2.0**-20, 3 * 2.0**-25 + 2.0**-60]
    with np.errstate(over="ignore"):
        return np.unique(kind.round(np.array([*sizes, *np.negative(sizes), np.nan])).astype(np.float64))


def wrong(
    name: str, compute: Element, right_to: float, found: NDArray[np.float64], wanted: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Return where a kernel's results of a node, or of a cast, are not the reference's."""
    is_exact = name.startswith("cast")
    least = max(LEAST.get(compute.short, 2.0**-125), SMALL.get(name, 0.0) * (compute.short != "f64"))
    with np.errstate(all="ignore"):
        near = np.abs(found - wanted) <= (0 if is_exact else np.fmax(right_to * np.abs(wanted), least))
    same = near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    if is_exact or name == "remainder":
        same &= (wanted != 0) | (np.signbit(found) == np.signbit(wanted))
    return np.flatnonzero(~same)
