"""Epilogue functions of Hopper-native kernels without TMA, by their own C++ on the host."""

from __future__ import annotations

import pytest
from emulator import Emulator
from marks import thorough_but
from unaligned import FUNCTIONS

pytestmark = pytest.mark.compile


#: All others take a compiler 20 seconds each.
USUAL = ("several, swapped", "reduced")


@pytest.mark.parametrize("name", thorough_but(USUAL, FUNCTIONS))
def test_functions_beside_a_d_of_any_alignment(name: str, emulator: Emulator) -> None:
    """Of columns whose number is odd as well, and of the transposed problem."""
    right, said = emulator.run_hopper(FUNCTIONS[name])
    assert right, said
