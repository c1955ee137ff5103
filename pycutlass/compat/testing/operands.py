"""Operands of testbeds: integers that are so small that every sum of products is exact, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.errors import PyCutlassError
from pycutlass.memory import get_allocated_size
from pycutlass.types import Element

__all__ = ["largest", "nothing_left", "small_integers"]


def largest(operand: Element, accumulator: Element, of_convolution: bool) -> int:
    """Return the magnitude up to which operands are drawn, so that sums stay exact in the accumulator's type."""
    if operand.bits <= 8:
        return 1
    if operand.bits == 16:
        return 2 if of_convolution and accumulator.bits <= 16 else 4
    return 7 if of_convolution else 8


def small_integers(generator: np.random.Generator, count: int, kind: Element, most: int) -> NDArray[Any]:
    """Return `count` integers from -`most` to `most` in the dtype of `kind`."""
    return generator.integers(-most, most, count, endpoint=True).astype(kind.dtype)


@contextmanager
def nothing_left(what: str) -> Iterator[None]:
    """Raise where what is done inside, a run of `what`, leaves memory of the pool in use."""
    before = get_allocated_size()
    yield
    left = get_allocated_size() - before
    if left:
        raise PyCutlassError(f"{left} bytes of the memory pool are still in use after {what}")
