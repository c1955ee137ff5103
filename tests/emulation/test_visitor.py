"""Kernels whose epilogue is a tree of visitors compute what they mean, by their own C++ on the host."""

from __future__ import annotations

import pytest
from descriptions import parts
from emulator import Emulator
from extra_epilogue import ExtraEpilogue

from pycutlass import GemmOperationUniversal, cutlass

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_a_tensor_a_vector_and_a_second_output(kind: str, emulator: Emulator) -> None:
    described = parts(kind, tile=(64, 64, 32 if kind == "f16" else 16))
    functor = ExtraEpilogue(described["C"].element, cutlass.float32, described["C"].alignment)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    right, said = emulator.run_visitor(operation)
    assert right, said
