"""Batches, interleaved layouts and bias vectors: which memory they use, and overlap."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed import COLUMN, ROW, Case, addresses, at, cases, overlaps

from pycutlass import TensorDescription, cutlass
from pycutlass.errors import ArgumentError
from pycutlass.operands import Matrix, is_vector, matrix, vector
from pycutlass.operands.convolutions import channel_bias

NAMES = ["A", "B", "C", "D"]
F16 = TensorDescription(cutlass.float16, ROW, 1)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Case, int, int]:
    """A matrix, how often it comes, and the step between two in elements: 0, inside a line's slack, or behind."""
    case = draw(cases(st.just("f16")))
    span = (max(1, case.rows if case.layout is ROW else case.columns) - 1) * case.ld + case.packed
    step = draw(st.one_of(st.just(0), st.integers(1, 3 * span)))
    return case, draw(st.integers(2, 4)), step


def in_batch(case: Case, batch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an allocation that counts up, and the batch as a view of it."""
    base = np.arange(case.span + batch * step + case.ld, dtype=np.float16)
    strides = (2 * step, 2 * case.strides[0], 2 * case.strides[1])
    shape = (batch, case.rows, case.columns)
    return base, np.lib.stride_tricks.as_strided(base[case.offset :], shape, strides)


def batch_addresses(operand: Matrix) -> list[set[int]]:
    one = addresses(operand)
    return [{address + 2 * index * operand.batch_stride for address in one} for index in range(operand.batch)]


@given(batches())
def test_a_batch_keeps_its_elements(drawn):
    case, batch, step = drawn
    base, view = in_batch(case, batch, step)
    operand = matrix("A", case.description, view, case.rows, case.columns, batch)
    assert operand.view.pointer == base.ctypes.data + 2 * case.offset
    assert operand.batch_stride == step
    assert np.array_equal(operand.host_array(), view)
    everything = set().union(*batch_addresses(operand))
    assert operand.bytes == max(everything) + 1 - min(everything)
    in_order = view if case.layout is ROW else view.transpose(0, 2, 1)
    assert operand.packed().tobytes() == (in_order if step else in_order[:1]).tobytes()


@given(batches())
def test_the_matrices_of_d_may_not_overlap_each_other(drawn):
    case, batch, step = drawn
    _, view = in_batch(case, batch, step)
    try:
        operand = matrix("D", case.description, view, case.rows, case.columns, batch)
    except ArgumentError as error:
        assert "the matrices of operand D overlap each other" in str(error)
        one = matrix("A", case.description, view, case.rows, case.columns, batch)
        each = batch_addresses(one)
        assert sum(map(len, each)) > len(set().union(*each))
    else:
        each = batch_addresses(operand)
        assert sum(map(len, each)) == len(set().union(*each))
        values = np.arange(view.size, dtype=np.float16).reshape(view.shape)
        operand.store(values)
        assert np.array_equal(view, values)


@given(batches(), batches(), st.integers(-60, 60))
def test_overlap_of_batches_is_exact(first, second, shift):
    def batched(pointer: int, drawn: tuple[Case, int, int], name: str) -> Matrix:
        case, batch, step = drawn
        one = at(pointer, case, name)
        return Matrix(name, one.description, one.view, case.rows, case.columns, case.ld, batch, step)

    target, source = batched(1 << 16, first, "D"), batched((1 << 16) + 2 * shift, second, "A")
    real = bool(set().union(*batch_addresses(target)) & set().union(*batch_addresses(source)))
    assert overlaps(target, source) == real
    assert overlaps(source, target) == real


def test_heads_of_one_buffer_do_not_overlap():
    # Queries, keys and values of 4 sequences with 6 heads of 8 elements.
    qkv = np.zeros((4, 10, 3, 6, 8), np.float16)
    for one, other in (
        (qkv[1, :, 0], qkv[1, :, 2]),
        (qkv[:, :, 0, 1], qkv[:, :, 2, 1]),
        (qkv[:, :, 1, 1], qkv[:, 5:, 1, 2]),
    ):
        target, source = (array.swapaxes(0, 1) if len(array) == 10 else array for array in (one, other))
        batch, rows, columns = target.shape
        D = matrix("D", F16, target, rows, columns, batch)
        assert not overlaps(D, matrix("A", F16, source, *source.shape[1:], len(source)))
        assert overlaps(D, matrix("A", F16, target[-1:, -1:], 1, columns))


def test_what_is_too_hard_to_prove_is_refused():
    """Lines of one in odd columns, of the other in even ones: what would have to be compared grows with both."""

    def batched(pointer: int, name: str, batch: int, step: int) -> Matrix:
        one = at(pointer, Case("f16", ROW, 2, 1, 0, 1 << 20), name)
        return Matrix(name, one.description, one.view, 2, 1, 1 << 20, batch, step)

    assert not overlaps(batched(1 << 40, "D", 1000, 6), batched((1 << 40) + 2, "A", 1000, 4 * 6))
    assert overlaps(batched(1 << 40, "D", 60_000, 6), batched((1 << 40) + 2, "A", 40_000, 4))


def test_large_batches_are_compared_fast():
    # Odd steps, so that no two distances have a divisor in common: a search that lists candidates would never end.
    def batched(pointer: int, name: str, ld: int, step: int) -> Matrix:
        view = at(pointer, Case("f16", ROW, 4093, 8, 0, ld), name)
        return Matrix(name, view.description, view.view, 4093, 8, ld, 65521, step)

    start = time.perf_counter()
    overlaps(batched(1 << 40, "D", 100_003, 1_000_000_007), batched((1 << 40) + 38, "A", 100_019, 1_000_000_009))
    assert time.perf_counter() - start < 1
    start = time.perf_counter()
    assert not overlaps(batched(1 << 40, "D", 64, 64 * 4093), batched((1 << 40) + 32, "A", 64, 64 * 4093))
    assert time.perf_counter() - start < 0.1


@given(cases(st.just("f16")), st.integers(2, 4))
def test_a_matrix_may_be_shared_by_a_batch(case, batch):
    base = np.arange(case.span, dtype=np.float16)
    view = case.view(base)
    operand = matrix("B", case.description, view, case.rows, case.columns, batch)
    assert operand.batch_stride == 0
    assert np.array_equal(operand.host_array(), np.broadcast_to(view, (batch, *view.shape)))
    with pytest.raises(ArgumentError, match="overlap each other"):
        matrix("D", case.description, view, case.rows, case.columns, batch)


@given(st.sampled_from([1, 2, 3]), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_interleaved_matrices(groups, other, batch, by_rows):
    layout = cutlass.RowMajorInterleaved32 if by_rows else cutlass.ColumnMajorInterleaved32
    rows, columns = (32 * groups, other) if by_rows else (other, 32 * groups)
    description = TensorDescription(cutlass.int8, layout, 16)
    random = np.random.default_rng()
    memory = random.integers(-128, 128, batch * rows * columns).astype(np.int8)
    operand = matrix("A", description, memory, rows, columns, batch)
    assert operand.ld == 32 * other

    index, row, column = np.indices((batch, rows, columns))
    across, along = (row, column) if by_rows else (column, row)
    places = index * rows * columns + across // 32 * operand.ld + along * 32 + across % 32
    assert np.array_equal(operand.host_array().reshape(batch, rows, columns), memory[places])

    values = random.integers(-128, 128, (batch, rows, columns)).astype(np.int8)
    operand.store(values if batch > 1 else values[0])
    assert np.array_equal(memory[places], values)


def test_interleaved_matrices_come_whole_and_flat():
    description = TensorDescription(cutlass.int8, cutlass.ColumnMajorInterleaved32, 16)
    with pytest.raises(ArgumentError, match=r"number of columns must be a multiple of 32, got 40"):
        matrix("A", description, np.zeros(160, np.int8), 4, 40)
    with pytest.raises(ArgumentError, match=r"pass pycutlass\.interleave_columns\(A\)"):
        matrix("A", description, np.zeros((4, 64), np.int8), 4, 64)


@pytest.mark.parametrize("layout", [ROW, COLUMN])
@given(st.integers(2, 5), st.integers(2, 5), st.integers(1, 3), st.booleans())
def test_a_bias_stands_for_equal_lines(layout, rows, columns, batch, many):
    description = TensorDescription(cutlass.float16, layout, 1)
    line = columns if layout is ROW else rows
    many = many and batch > 1
    bias = np.arange(line * (batch if many else 1), dtype=np.float16)
    operand = vector("C", description, bias.reshape(batch, line) if many else bias, rows, columns, batch)
    assert operand.ld == 0
    each = bias.reshape(-1, 1, line) if layout is ROW else bias.reshape(-1, line, 1)
    expected = np.broadcast_to(each, (batch, rows, columns))
    assert np.array_equal(np.broadcast_to(operand.host_array(), (batch, rows, columns)), expected)


@pytest.mark.parametrize(
    ("shape", "answer"),
    [((5,), True), ((1, 5), True), ((15,), False), ((3, 5), False), ((3,), False), ((10,), True), ((2, 5), True)],
)
def test_a_bias_is_recognised_by_its_elements(shape, answer):
    assert is_vector(F16, np.zeros(shape, np.float16), 3, 5, 2 if answer and shape != (5,) else 1) == answer


def test_a_batch_as_large_as_its_matrices_must_say_what_c_is():
    """Biases were taken for one matrix that all share, and the result was wrong without a word."""
    C = np.zeros((4, 5), np.float16)
    with pytest.raises(ArgumentError, match=r"\(4, 5\) may be one matrix .* or a bias .* bias=False or bias=True"):
        is_vector(F16, C, 4, 5, 4)
    assert not is_vector(F16, C, 4, 5, 3)
    assert is_vector(F16, C, 3, 5, 4)
    assert is_vector(F16, C, 1, 5, 4), "one line each"


def test_a_bias_of_another_length_is_refused():
    with pytest.raises(ArgumentError) as caught:
        vector("C", F16, np.zeros(7, np.float16), 3, 5)
    assert all(word in str(caught.value) for word in ("bias C", "5 elements", "(7,)"))
    assert "one for each column, as C is row-major" in str(caught.value)
    column = replace(F16, layout=cutlass.ColumnMajor)
    with pytest.raises(ArgumentError, match="vector of 3 elements, one for each row, as C is column-major"):
        vector("C", column, np.zeros(5, np.float16), 3, 5)
    with pytest.raises(ArgumentError, match="or 3 elements as a bias, one for each row, as C is column-major; got 5"):
        matrix("C", column, np.zeros(5, np.float16), 3, 5)
    channels = TensorDescription(cutlass.float16, cutlass.TensorNHWC, 1)
    with pytest.raises(ArgumentError, match="vector of 5 elements, one for each channel; got"):
        channel_bias("C", channels, np.zeros(4, np.float16), (1, 2, 2, 5))
    with pytest.raises(ArgumentError, match="contiguous vector of 5"):
        vector("C", F16, np.zeros(10, np.float16)[::2], 3, 5)
