"""Operands of a distribution, drawn for a problem and rounded to what kernels read."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from pycutlass.tuning.tunable import Array
from pycutlass.types import Element

__all__ = ["Drawing", "Operands"]

_SHIFT = 8191  # elements by which operands of one shape differ: drawing each would take the host too long
#: Elements that are drawn at most, for the same reason: larger operands repeat them. A prime number, so that no two
#: tiles of an operand begin alike, whatever its extents.
_MOST_DRAWN = 4_194_301


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

    def operands(self, kind: Element, shapes: Sequence[tuple[int, ...]], by_rows: bool = True) -> Operands:
        """Return operands of these shapes, one for each product, which lie by rows or by columns in memory."""
        return Operands(shapes, {shape: self._drawn(kind, shape) for shape in dict.fromkeys(shapes)}, by_rows)

    def _drawn(self, kind: Element, whole: tuple[int, ...]) -> Array:
        """Return an operand with its elements in the order of memory, in its shape."""
        random, count = self._random, math.prod(whole)
        shape = whole if count <= _MOST_DRAWN else (_MOST_DRAWN,)
        draw: dict[str, Callable[[], Array]] = {
            "normal": lambda: random.standard_normal(shape, np.float32),
            "uniform": lambda: random.uniform(-1, 1, shape).astype(np.float32),
            "integers": lambda: random.integers(-2, 3, shape).astype(np.float32),
            "zeros": functools.partial(np.zeros, shape, np.float32),
        }
        values = draw[self._distribution]()
        rounded = kind.round(np.abs(values) if kind.short == "u8" else values)
        return rounded if count <= _MOST_DRAWN else np.resize(rounded, whole)


class Operands:
    """Operands of a distribution, rounded to what is multiplied: those of one shape are shifts of each other.

    Which of two tf32 numbers CUTLASS takes that are equally near to a float32 depends on the kernel.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], drawn: dict[tuple[int, ...], Array], by_rows: bool = True
    ) -> None:
        self._shapes, self._drawn, self._by_rows = shapes, drawn, by_rows

    def values(self, number: int) -> Array:
        """Return an operand: one that lies by columns as a view of its memory."""
        shape = self._shapes[number]
        drawn, before = self._drawn[shape], self._shapes[:number].count(shape)
        stored = np.roll(drawn.reshape(-1), before * _SHIFT).reshape(shape) if before else drawn
        if self._by_rows:
            return stored
        return stored.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)
