"""What D is for a problem, without memory for it; where `supports` refuses the problem, `output` gives its reason."""

from __future__ import annotations

from typing import Any

import pytest
from convolutions import conv, fprop
from descriptions import ampere, hopper, parts

import pycutlass
from pycutlass import GemmOperationGrouped, cutlass
from pycutlass.errors import ArgumentError

HALF = ampere("f16")
GROUP = GemmOperationGrouped(80, HALF.tile_description, HALF.A, HALF.B, HALF.C, HALF.epilogue_functor)


@pytest.mark.parametrize(
    ("operation", "problem", "said"),
    [
        (HALF, (16, 24, 12), "operand A is described with alignment 8"),
        (HALF, (16, -8, 8), "M, N and K from 0"),
        (HALF, (2**31 - 8, 8, 8), "leave"),
        (hopper(), (16, 24, 12), "operand A is described with alignment"),
        (conv(fprop, "optimized"), cutlass.conv.Conv2dProblemSize(1, 8, 8, 12, 8, 3, 3), "multiple of 8"),
        (pycutlass.ReductionOperation(cutlass.MatrixCoord(4, 256), HALF.C, cutlass.float32, count=8),
         (4, 12), "alignment 8"),
    ],
)  # fmt: skip
def test_there_is_no_output_of_what_is_not_supported(operation: Any, problem: Any, said: str) -> None:
    support = operation.supports(problem)
    assert not support and said in support.reason, support.reason
    with pytest.raises(ArgumentError) as caught:
        operation.output(problem)
    assert str(caught.value) == support.reason


def test_there_are_no_outputs_of_a_group_that_is_not_supported() -> None:
    sizes = [(8, 16, 8), (8, 16, 3)]
    support = GROUP.supports(sizes)
    with pytest.raises(ArgumentError) as caught:
        GROUP.outputs(sizes)
    assert not support and str(caught.value) == support.reason


def test_outputs_of_groups_and_columns() -> None:
    column = (cutlass.ColumnMajor, cutlass.RowMajor, cutlass.ColumnMajor)
    assert GemmOperationGrouped(**parts("f16", column, alignment=4)).outputs([(8, 16, 4), (4, 4, 4)]) == [
        pycutlass.TensorSpec((8, 16), "float16", (1, 8)),
        pycutlass.TensorSpec((4, 4), "float16", (1, 4)),
    ]
    assert ampere("f16", column).output((8, 16, 8)) == pycutlass.TensorSpec((8, 16), "float16", (1, 8))
