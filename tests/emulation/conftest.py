"""Emulated kernels need a host compiler and no GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "unit")]  # for emulator.py, and the descriptions of the unit tests


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What compiles kernels for the host and runs them, with its headers compiled once for all workers."""
    from emulator import Emulator  # which are only found with the path above
    from run_wide import made_once

    common = made_once(tmp_path_factory, "emulated-headers", lambda directory: Emulator(directory).prepare())
    return Emulator(tmp_path_factory.mktemp("emulation"), common)
