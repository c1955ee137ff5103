"""Activations with as many digits as it takes, and what theirs are compared with."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
from descriptions import BY_SHORT_NAME
from numpy.typing import NDArray

import pycutlass

#: The activations with functions that are computed, and a formula of each. The others compare and multiply.
FORMULAS: dict[str, Any] = {
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "hardswish": lambda x: x * min(max(x + 3, mpmath.mpf(0)), mpmath.mpf(6)) / 6,
    "gelu": lambda x: x / 2 * mpmath.erfc(-x / mpmath.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + mpmath.exp(-mpmath.sqrt(8 / mpmath.pi) * (x + mpmath.mpf(0.044715) * x**3))),
}
BOUNDED = [getattr(pycutlass, name) for name in FORMULAS]


def points(short: str) -> NDArray[Any]:
    """Return numbers of a type: small, large, of either sign, and where something happens."""
    rng = np.random.default_rng(0)
    spread = np.concatenate(
        [
            rng.normal(0, 1, 300),
            rng.uniform(-20, 20, 300),
            rng.uniform(-120, 0, 120) if short != "f16" else rng.uniform(-12, 0, 120),
            np.exp2(rng.uniform(-14, 6, 64)) * rng.choice([-1, 1], 64),
            [0.0, -0.0, 3.0, -3.0, 6.0, -6.0, 1.0, -1.0, 11.5, -11.5, 20.0, -20.0, -88.0, -10.5, 60000.0, -60000.0],
        ]
    )
    return spread.astype(BY_SHORT_NAME[short].dtype)


def exact_of(activation: Any, x: NDArray[Any]) -> list[Any]:
    """Return the activation of each number, with 40 digits."""
    with mpmath.workdps(40):
        return [FORMULAS[activation.__name__](mpmath.mpf(float(each))) for each in x]


def too_wrong(activation: Any, short: str, x: NDArray[Any], found: NDArray[Any]) -> list[str]:
    """Return which results are further from the truth than the activation states."""
    relative, absolute = activation.error(BY_SHORT_NAME[short])
    kept = np.finfo(x.dtype)
    # f16 is computed in f32, where the same numbers have all their digits.
    least = float(kept.smallest_subnormal) * (0.51 if short == "f16" else 128)
    bad = []
    with mpmath.workdps(40):
        for each, right, got in zip(x, exact_of(activation, x), found, strict=True):
            if short == "f32":  # a factor that is no normal number may be 0
                least = float(kept.smallest_normal) * max(1.0, abs(float(each)))
            bound = relative * abs(right) + absolute + least
            if not abs(mpmath.mpf(float(got)) - right) <= bound:
                bad.append(f"{activation.__name__}({each!r}) is {mpmath.nstr(right, 12)}, got {got!r}")
    return bad
