"""Kernels whose epilogue is a tree of visitors compute what they mean, by their own C++ on the host."""

from __future__ import annotations

from typing import Any

import pytest
from convolutions import UNITY, dgrad, f16, f32, fprop, wgrad
from descriptions import parts
from emulator import Emulator
from extra_epilogue import ExtraEpilogue
from extra_operations import convolution
from marks import thorough_but

from pycutlass import GemmOperationUniversal, cutlass

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_a_tensor_a_vector_and_a_second_output(kind: str, emulator: Emulator) -> None:
    described = parts(kind, tile=(64, 64, 32 if kind == "f16" else 16))
    functor = ExtraEpilogue(described["C"].element, cutlass.float32, described["C"].alignment)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    right, said = emulator.run_visitor(operation)
    assert right, said


SMALL: dict[str, Any] = {"shape": (64, 64, 32)}
CONVOLUTIONS = {
    "fprop": convolution(fprop, **SMALL),
    "fprop, analytic": convolution(fprop, "analytic", alignments=(8, 4, 2), swizzle=cutlass.IdentitySwizzle4, **SMALL),
    "fprop of few channels": convolution(fprop, "few_channels", alignments=(2, 2, 8), shape=(64, 64, 64)),
    "fprop of fixed channels": convolution(fprop, "fixed_channels", alignments=(4, 4, 8), **SMALL),
    "fprop, K shared by warps": convolution(fprop, shape=(64, 64, 64), warps=(2, 1, 2)),
    "dgrad": convolution(dgrad, stride=UNITY, **SMALL),
    "wgrad": convolution(wgrad, **SMALL),
    "wgrad to f32": convolution(wgrad, "analytic", (f16, f32, f32), alignments=(8, 2, 4), **SMALL),
}
#: Those that run each time. Other iterators of fprop, and dgrad, run in test_functions.py, but for fixed channels.
USUAL = ("fprop of few channels", "wgrad to f32")


@pytest.mark.parametrize("name", thorough_but(USUAL, CONVOLUTIONS))
def test_convolutions_as_well(name: str, emulator: Emulator) -> None:
    right, said = emulator.run_convolution(CONVOLUTIONS[name])
    assert right, said
