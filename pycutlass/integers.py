"""Integers of every library: Python's, NumPy's, and whatever else counts as one."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["whole"]


def whole(value: Any) -> int | None:
    """Return `value` as an int where it is an integer of any library and no truth value, else None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
