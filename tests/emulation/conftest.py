"""Emulated kernels need a host compiler and no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "unit")]  # for emulator.py, and the descriptions of the unit tests
