"""Convolutions compute what they mean, by their own C++ on the host.

Strided dgrad first of all, whose iterators no other kernel has: each tile is of pixels that lie a stride apart.
"""

from __future__ import annotations

from typing import Any

import pytest
from convolutions import STRIDED, UNITY, conv, dgrad, f16, f32, fprop, wgrad
from descriptions import SIMT
from emulator import Emulator
from marks import thorough_but

pytestmark = pytest.mark.compile

SMALL: dict[str, Any] = {"shape": (64, 64, 32)}
KERNELS = {
    "strided dgrad, analytic": conv(dgrad, "analytic", (f16, f32, f32), stride=STRIDED, **SMALL),
    "strided dgrad, optimized": conv(dgrad, "optimized", alignments=(8, 4, 2), stride=STRIDED, **SMALL),
    "strided dgrad on CUDA cores": conv(dgrad, "optimized", (f32,) * 3, stride=STRIDED, opcode=SIMT),
    "dgrad of stride 1": conv(dgrad, "optimized", stride=UNITY, **SMALL),
    "fprop": conv(fprop, "optimized", **SMALL),
    "wgrad of two stages": conv(wgrad, "analytic", alignments=(2, 4, 8), stages=2, **SMALL),
}
#: Those that run each time: test_functions.py has dgrad of stride 1 and fprop as well.
USUAL = ("strided dgrad, optimized", "wgrad of two stages")


@pytest.mark.parametrize("name", thorough_but(USUAL, KERNELS))
def test_a_convolution_computes_what_it_means(name: str, emulator: Emulator) -> None:
    right, said = emulator.run_convolution(KERNELS[name])
    assert right, said
