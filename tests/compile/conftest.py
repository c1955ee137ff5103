"""Tests that compile need a toolkit and no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "unit")]  # for records.py, and the descriptions of the unit tests
