"""Extents and modes of matrix products."""

import importlib as _importlib
from typing import Any as _Any

from pycutlass._core import GemmCoord
from pycutlass._core import GemmMode as Mode

__all__ = ["GemmCoord", "Mode"]


def __getattr__(name: str) -> _Any:
    """Return what a name of the original stands for: its references to tensors, and what permutes them."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module("pycutlass.compat").cutlass_name(__name__, name)
