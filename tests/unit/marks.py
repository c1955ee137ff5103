"""Which cases of a test run each time, and which are left to `make thorough`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["thorough", "thorough_but"]


def thorough(*case: Any) -> Any:
    """Leave a case to `make thorough`."""
    return pytest.param(*case, marks=pytest.mark.thorough)


def thorough_but(usual: Collection[Any], every: Iterable[Any]) -> list[Any]:
    """Leave all cases but the usual ones to `make thorough`; a tuple has the values of several parameters."""
    every = list(every)
    assert set(usual) <= set(every), f"{set(usual) - set(every)} are no cases"
    return [each if each in usual else thorough(*(each if isinstance(each, tuple) else [each])) for each in every]
