"""Elements smaller than a byte, and operands of two types: sizes are counted in bits, each operand has its own type.

No kernel has either yet, so both are added to the tables here, as a new kernel would be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from descriptions import COLUMN, ROW, SIMT, TENSOR_OP, native_parts, parts
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import (
    GemmOperationUniversal,
    LinearCombination,
    MathInstruction,
    MathOperation,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import ArgumentTypeError, DescriptionError
from pycutlass.families import AMPERE, SM90, Product
from pycutlass.families.ampere.family import mainloop_bytes
from pycutlass.families.ampere.simt import simt_padding
from pycutlass.launch.grouped import operand_rule
from pycutlass.operands import matrix_of
from pycutlass.operands.overlaps import span
from pycutlass.tensor import TensorView
from pycutlass.types import ELEMENT_OF_TAG, ELEMENTS, Element

SATURATE = MathOperation.multiply_add_saturate


class Int4:
    """The tag of four bits."""


S4 = Element(Int4, "int4", "s4", 4, "cutlass::int4b_t", "int8", "i", -1)


@pytest.fixture
def four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the type, and products of it with int8 to both families."""
    monkeypatch.setitem(ELEMENT_OF_TAG, Int4, S4)
    for family, shape, layouts in (
        (AMPERE, (16, 8, 32), ((ROW, COLUMN),)),
        (AMPERE, (1, 1, 4), ((ROW, COLUMN),)),
        (SM90, None, ((ROW, COLUMN),)),
    ):
        opcode = SIMT if shape == (1, 1, 4) else TENSOR_OP
        operations = (SATURATE,) if opcode is TENSOR_OP else (MathOperation.multiply_add,)
        row = Product(opcode, "s4", "s8", "s32", shape, layouts, 4, operations)
        monkeypatch.setitem(family._rows, (opcode, Int4, cutlass.int8, cutlass.int32, shape), row)


def instruction(shape: Any = (16, 8, 32), opcode: Any = TENSOR_OP) -> MathInstruction:
    operation = SATURATE if opcode is TENSOR_OP else MathOperation.multiply_add
    return MathInstruction(shape, Int4, cutlass.int8, cutlass.int32, opcode, operation)


@given(st.sampled_from([*ELEMENTS, S4]), st.integers(0, 10**9))
def test_bytes_hold_all_bits_and_no_more(row: Element, count: int) -> None:
    assert 0 <= row.bytes_of(count) * 8 - row.bits * count < 8


@pytest.mark.usefixtures("four_bits")
def test_an_alignment_is_whole_bytes() -> None:
    with pytest.raises(DescriptionError, match=r"alignment 1 of cutlass\.int4 is 4 bits.*use at least 2"):
        TensorDescription(Int4, ROW, 1)
    assert [TensorDescription(Int4, ROW, each).alignment_bytes for each in (2, 4, 32, 64)] == [1, 2, 16, 16]
    assert TensorDescription(Int4, ROW, 64).alignment == 32


@pytest.mark.usefixtures("four_bits")
def test_the_bytes_of_an_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of 6 elements, 8 apart."""
    described = TensorDescription(Int4, ROW, 2)
    view = TensorView(0x1000, "int8", (3, 6), (8, 1), 0, "torch", None)
    matrix = matrix_of("A", described, view, 3, 6)
    assert (matrix.bytes, matrix.packed_bytes) == (4 + 4 + 3, 9)
    assert span(matrix) == (0x1000, 11, 3, 4)
    with pytest.raises(ArgumentTypeError, match=r"operand A is described as cutlass\.int4, of 4 bits.*host memory"):
        matrix_of("A", described, replace(view, device=None, library="numpy"), 3, 6)
    monkeypatch.setattr("pycutlass._core.OperandRule", lambda *rule: rule)
    assert operand_rule("A", matrix, None) == (True, 4, 2, False, False), "an update looks at each tensor itself"


@pytest.mark.usefixtures("four_bits")
def test_a_stage_has_operands_of_two_sizes() -> None:
    tile = TileDescription([128, 64, 64], 3, [2, 2, 1], instruction())
    assert tile.stage_bytes() == 128 * 64 // 2 + 64 * 64
    native = TileDescription([128, 64, 64], 3, None, instruction(None), [1, 1])
    assert native.stage_bytes() == tile.stage_bytes()
    A, B = TensorDescription(Int4, ROW, 32), TensorDescription(cutlass.int8, COLUMN, 16)
    assert mainloop_bytes(tile, A, B) == 3 * tile.stage_bytes()
    turned = TileDescription([64, 64, 32], 2, [2, 2, 1], instruction((1, 1, 4), SIMT))
    padding = simt_padding(turned) * 32
    assert padding and mainloop_bytes(turned, A, B) == 2 * (64 * 32 // 2 + 64 * 32 + padding // 2 + padding)


@pytest.mark.usefixtures("four_bits")
def test_each_operand_has_its_own_type() -> None:
    """Where a table has a row for the two."""
    A, B = TensorDescription(Int4, ROW, 32), TensorDescription(cutlass.int8, COLUMN, 16)
    C = TensorDescription(cutlass.int32, ROW, 4)
    functor = LinearCombination(cutlass.int32, 4, cutlass.int32, cutlass.float32)
    tile = TileDescription([128, 64, 128], 3, [2, 2, 1], instruction())
    operation = GemmOperationUniversal(80, tile, A, B, C, functor)
    text = operation.emit()
    assert "Tensor<cutlass::int4b_t, cutlass::layout::RowMajor, 32>" in text and "Tensor<int8_t" in text
    assert "gemm_s4xs8_s32_" in operation.procedural_name()
    for wrong, words in (((B, B), "operand A is cutlass.int8, the math"), ((A, A), "operand B is cutlass.int4, the")):
        with pytest.raises(DescriptionError, match=f"{words}.* instruction multiplies"):
            GemmOperationUniversal(80, tile, wrong[0], replace(wrong[1], layout=COLUMN), C, functor)


@pytest.mark.parametrize("baseline", [parts(), native_parts()], ids=["Ampere-style", "Hopper-native"])
def test_types_that_differ_are_refused_by_the_family(baseline: dict[str, Any]) -> None:
    math = baseline["tile_description"].math_instruction
    with pytest.raises(DescriptionError) as caught:
        replace(math, element_b=cutlass.bfloat16)
    family = "Ampere-style" if math.instruction_shape else "Hopper-native"
    words = ["must be the same type, got cutlass.float16 and cutlass.bfloat16", f"{family} kernels", "convert one"]
    assert all(word in str(caught.value) for word in words), str(caught.value)
