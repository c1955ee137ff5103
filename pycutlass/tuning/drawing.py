"""Operands of a distribution, drawn for a problem and rounded to what kernels read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from pycutlass.tuning.tunable import Array
from pycutlass.types import Element

__all__ = ["Drawing", "Operands"]

_SHIFT = 8191  # elements by which operands of one shape differ: drawing each would take the host too long


class Drawing:
    """Draws operands.

    Parameters
    ----------
    distribution : str
        One of `options.DISTRIBUTIONS`.
    seed : int
        Of all that are drawn.
    """

    def __init__(self, distribution: str, seed: int) -> None:
        self._distribution, self._random = distribution, np.random.default_rng(seed)

    def operands(self, kind: Element, shapes: Sequence[tuple[int, ...]]) -> Operands:
        """Return operands of these shapes, one for each product."""
        return Operands(shapes, {shape: self._drawn(kind, shape) for shape in dict.fromkeys(shapes)})

    def _drawn(self, kind: Element, shape: tuple[int, ...]) -> Array:
        random = self._random
        draw: dict[str, Callable[[], Array]] = {
            "normal": lambda: random.standard_normal(shape, np.float32),
            "uniform": lambda: random.uniform(-1, 1, shape).astype(np.float32),
            "integers": lambda: random.integers(-2, 3, shape).astype(np.float32),
            "zeros": functools.partial(np.zeros, shape, np.float32),
        }
        values = draw[self._distribution]()
        return kind.round(np.abs(values) if kind.short == "u8" else values)


class Operands:
    """Operands of a distribution, rounded to what is multiplied: those of one shape are shifts of each other.

    Which of two tf32 numbers CUTLASS takes that are equally near to a float32 depends on the kernel.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], drawn: dict[tuple[int, ...], Array]) -> None:
        self._shapes, self._drawn = shapes, drawn

    def values(self, number: int) -> Array:
        """Return an operand."""
        shape = self._shapes[number]
        drawn, before = self._drawn[shape], self._shapes[:number].count(shape)
        return np.roll(drawn.reshape(-1), before * _SHIFT).reshape(shape) if before else drawn
