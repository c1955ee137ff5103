"""Extents and modes of matrix products."""

from __future__ import annotations

from pycutlass._core import GemmCoord
from pycutlass._core import GemmMode as Mode

__all__ = ["GemmCoord", "Mode"]
