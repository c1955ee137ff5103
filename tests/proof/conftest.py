"""Proofs need a host compiler and no GPU. ``make test`` runs a sample of each, ``make thorough`` the whole."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
# For host.py and others of these proofs, the kernels that the emulation draws, and the descriptions of the unit tests.
sys.path[:0] = [str(_HERE), str(_HERE.parent / "emulation"), str(_HERE.parent / "unit")]


@pytest.fixture
def drawn() -> random.Random:
    """Random numbers, whose seed is told where a test fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)
