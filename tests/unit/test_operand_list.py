"""Tensors that a group takes in place of others without a closer look: only what the closer look takes, as it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import TensorDescription, _core, cutlass
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError
from pycutlass.launch.grouped import operand_rule
from pycutlass.operands import Matrix, is_vector, matrix, vector
from pycutlass.operands.overlaps import span

TYPES = {torch.float16: cutlass.float16, torch.float32: cutlass.float32, torch.int8: cutlass.int8}
extents = st.integers(0, 40) | st.sampled_from([8, 16, 32, 64])


@st.composite
def operands(draw: st.DrawFn) -> tuple[str, TensorDescription, bool | None, list[torch.Tensor], list[int]]:
    """Return a letter, a description, the arguments' bias, tensors that may or may not fit, and their sizes."""
    dtype = draw(st.sampled_from(list(TYPES)))
    layout = draw(st.sampled_from([cutlass.RowMajor, cutlass.ColumnMajor]))
    description = TensorDescription(TYPES[dtype], layout, draw(st.sampled_from([1, 2, 4, 8])))
    letter, bias = draw(st.sampled_from("ABCD")), draw(st.sampled_from([None, True, False]))
    tensors, sizes = [], []
    for _ in range(draw(st.integers(1, 3))):
        rows, columns = draw(extents), draw(extents)
        sizes += [rows, columns, 0]
        tensors.append(draw(tensors_like(rows, columns, dtype, description)))
    return letter, description, bias, tensors, sizes


@st.composite
def tensors_like(draw: st.DrawFn, rows: int, columns: int, dtype: Any, description: TensorDescription) -> torch.Tensor:
    line, lines = (columns, rows) if description.is_row_major else (rows, columns)
    if draw(st.integers(0, 3)) == 0:  # a bias, or what is none
        lines, step = 1, draw(st.integers(1, 2))
        memory = torch.zeros(line * step + 16, dtype=dtype)
        return memory[draw(st.integers(0, 9)) :][: line * step : step]
    pitch = draw(st.sampled_from([line, line, line + 8, line + 3, 0]))
    offset, step = draw(st.sampled_from([0, 0, 8, 1])), draw(st.sampled_from([1, 1, 1, 2]))
    memory = torch.zeros((lines + 1) * (pitch + 1) * step + (columns + rows) * step + offset + 64, dtype=dtype)
    strides = (pitch * step, step) if description.is_row_major else (step, pitch * step)
    wrong = draw(st.sampled_from([0, 0, 0, 1]))
    return memory.as_strided((rows + wrong * bool(rows), columns), strides, offset)


def closer_look(letter: str, description: TensorDescription, bias: bool | None, tensor: Any, m: int, n: int) -> Matrix:
    takes_bias = bias if letter == "C" else False
    if is_vector(description, tensor, m, n) if takes_bias is None else takes_bias:
        return vector(letter, description, tensor, m, n)
    return matrix(letter, description, tensor, m, n)


@given(operands())
def test_what_is_taken_is_what_the_closer_look_sees(drawn) -> None:
    letter, description, bias, tensors, sizes = drawn
    like = Matrix(letter, description, None, 1, 1, 1)
    rule = operand_rule(letter, like, bias)
    taken = _core.read_operands(rule, tensors[0], tuple(tensors), sizes)
    for number, tensor in enumerate(tensors):
        rows, columns = sizes[3 * number : 3 * number + 2]
        if not rows or not columns:
            fits = tuple(tensor.shape) == (rows, columns)
            if taken is not None:
                assert fits and taken[number][1] == 0
            continue
        try:
            seen = closer_look(letter, description, bias, tensor, rows, columns)
        except (ArgumentError, ArgumentTypeError, AlignmentError):
            assert taken is None
            return
        if taken is not None:
            assert taken[number] == (*span(seen), seen.ld)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1), st.booleans(), st.integers(0, 8))
def test_matrices_and_their_slices_are_taken(sizes, row_major, slack) -> None:
    def make(rows: int, columns: int) -> torch.Tensor:
        if row_major:
            return torch.zeros(rows, columns + slack, dtype=torch.float16)[:, :columns]
        return torch.zeros(columns, rows + slack, dtype=torch.float16)[:, :rows].T

    tensors = tuple(make(*size) for size in sizes)
    rule = _core.OperandRule(row_major, 16, 1, True, False)
    taken = _core.read_operands(rule, tensors[0], tensors, [extent for size in sizes for extent in (*size, 0)])
    assert [entry[0] for entry in taken] == [tensor.data_ptr() for tensor in tensors]
    lines = [tensor.stride(0 if row_major else 1) for tensor in tensors]
    one = [(size[0] if row_major else size[1]) == 1 for size in sizes]
    lengths = [size[1] if row_major else size[0] for size in sizes]
    assert [entry[4] for entry in taken] == [
        length if alone else step for step, alone, length in zip(lines, one, lengths, strict=True)
    ]


def test_what_takes_a_closer_look() -> None:
    rule, like = _core.OperandRule(True, 16, 8, True, False), torch.zeros(8, 8, dtype=torch.float16)

    def taken(tensor: Any, rows: int = 8, columns: int = 8) -> bool:
        return _core.read_operands(rule, like, (tensor,), [rows, columns, 0]) is not None

    assert taken(like.clone())
    assert taken(torch.zeros(16, 24, dtype=torch.float16), 16, 24)
    for other in (
        like.float(),
        like.clone().view(torch.bfloat16),
        like.to("meta"),
        torch.nn.Parameter(like.clone()),
        like.numpy(),
        like.T,
        like.reshape(-1),
        like.reshape(1, 8, 8),
        torch.zeros(8, 12, dtype=torch.float16)[:, :8],
        torch.zeros(9, 8, dtype=torch.float16).reshape(-1)[1:65].view(8, 8),
        torch.zeros(1, 8, dtype=torch.float16).expand(8, 8),
        like.to_sparse(),
        0x1000,
        None,
    ):
        assert not taken(other), other
    assert _core.read_operands(rule, np.zeros((8, 8), np.float16), (np.zeros((8, 8), np.float16),), [8, 8, 0]) is None
    assert _core.read_operands(rule, like, (like, like), [8, 8, 0]) is None


@pytest.mark.parametrize("rows", [2, 1])
def test_a_bias_is_a_vector_where_there_are_lines_to_repeat(rows: int) -> None:
    vector_, matrix_ = torch.zeros(8), torch.zeros(rows, 8)
    for bias, tensor, taken in ((None, vector_, rows > 1), (None, matrix_, True), (True, matrix_, False)):
        rule = operand_rule("C", Matrix("C", TensorDescription(cutlass.float32, cutlass.RowMajor), None, 1, 1, 1), bias)
        entries = _core.read_operands(rule, tensor, (tensor,), [rows, 8, 0])
        assert (entries is not None) == taken
        if taken:
            assert entries[0][4] == (0 if tensor is vector_ else 8)


def test_views_that_are_to_be_negated_are_not_taken() -> None:
    column = torch.full((8, 1), 1 + 2j).conj().imag
    assert column.is_neg()
    matrices, biases = _core.OperandRule(True, 32, 1, True, False), _core.OperandRule(True, 32, 1, False, True)
    for like, rule, given_ in ((torch.zeros(8, 1), matrices, column), (torch.zeros(1), biases, column[0])):
        assert _core.read_operands(rule, like, (like,), [8, 1, 0]) is not None
        assert _core.read_operands(rule, like, (given_,), [8, 1, 0]) is None
