"""Matrix operands: which memory an operand uses, what is refused, and overlap, against a model that lists addresses."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from descriptions import BY_SHORT_NAME, TAG
from hypothesis import assume, given
from hypothesis import strategies as st
from placed import COLUMN, ROW, Case, addresses, at, cases, extents, layouts, numpy_of, overlaps, shorts, torch_of

from pycutlass import TensorDescription, cutlass
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError
from pycutlass.operands import matrix
from pycutlass.operands.overlaps import check_overlap
from pycutlass.tensor import TensorView

NAMES = ["A", "B", "C", "D"]
F16 = TensorDescription(cutlass.float16, ROW, 1)

names = st.sampled_from(NAMES)


# Which memory an operand uses


@pytest.mark.parametrize("library", [numpy_of, torch_of])
@given(cases(), names)
def test_views_keep_their_elements(library, case, name):
    dtype = BY_SHORT_NAME[case.short].dtype
    base = np.arange(case.span).astype(dtype)
    tensor = library(base, case)
    operand = matrix(name, case.description, tensor, case.rows, case.columns)

    expected = np.lib.stride_tricks.as_strided(
        base[case.offset :], (case.rows, case.columns), tuple(step * dtype.itemsize for step in case.strides)
    )
    assert operand.view.pointer == base.ctypes.data + case.offset * dtype.itemsize
    assert np.array_equal(operand.host_array(), expected)
    assert operand.host_array().dtype == dtype
    lines = case.rows if case.layout is ROW else case.columns
    assert operand.ld == (case.ld if lines > 1 else case.packed)  # one line has no step
    assert operand.bytes == max(addresses(operand)) + 1 - min(addresses(operand))
    assert (operand.line, operand.lines) == (case.packed, lines)

    packed = operand.packed()
    assert packed.dtype == np.uint8
    in_order = expected if case.layout is ROW else expected.T
    assert packed.tobytes() == in_order.tobytes()


@pytest.mark.parametrize("library", [numpy_of, torch_of])
@given(cases())
def test_writing_touches_nothing_else(library, case):
    dtype = BY_SHORT_NAME[case.short].dtype
    base = np.zeros(case.span, dtype)
    operand = matrix("D", case.description, library(base, case), case.rows, case.columns)
    values = np.arange(1, case.rows * case.columns + 1).astype(dtype)
    operand.unpack(values.view(np.uint8))

    order = values.reshape((case.rows, case.columns), order="C" if case.layout is ROW else "F")
    expected = np.zeros(case.span, dtype)
    for row, column in itertools.product(range(case.rows), range(case.columns)):
        expected[case.offset + row * case.strides[0] + column * case.strides[1]] = order[row, column]
    assert base.tobytes() == expected.tobytes()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@given(shorts, layouts, extents, extents, names)
def test_flat_tensors_are_packed_in_the_declared_layout(library, short, layout, rows, columns, name):
    description = TensorDescription(TAG[short], layout, 1)
    base = np.arange(rows * columns).astype(description.type.dtype)
    tensor: Any = base
    if library == "torch":
        whole = Case(short, ROW, 1, rows * columns, 0, rows * columns)
        tensor = torch_of(base, whole).reshape(-1)
    operand = matrix(name, description, tensor, rows, columns)
    assert operand.ld == (columns if layout is ROW else rows)
    assert np.array_equal(operand.host_array(), base.reshape((rows, columns), order="C" if layout is ROW else "F"))


@given(shorts, layouts, extents, extents)
def test_raw_pointers_are_packed_and_of_any_type(short, layout, rows, columns):
    description = TensorDescription(TAG[short], layout, 1)
    operand = matrix("A", description, 0x7F0000001000, rows, columns)
    assert operand.view.pointer == 0x7F0000001000
    assert operand.ld == (columns if layout is ROW else rows)


@given(st.lists(extents, min_size=0, max_size=4), extents, extents, names)
def test_other_shapes_are_refused(shape, rows, columns, name):
    assume(tuple(shape) not in ((rows, columns), (rows * columns,)))
    # Leading dimensions are rows, too, but for B: its rows are what is added up.
    ones = all(extent == 1 for extent in shape[:-2])
    assume(len(shape) < 3 or shape[-1] != columns or (name == "B" and not ones) or np.prod(shape[:-1]) != rows)
    with pytest.raises(ArgumentError) as caught:
        matrix(name, F16, np.zeros(shape, np.float16), rows, columns)
    words = str(caught.value)
    assert f"operand {name}" in words
    wanted = f"{rows} x {columns} = {rows * columns} elements" if len(shape) == 1 else f"({rows}, {columns})"
    assert wanted in words
    assert (str(shape[0]) if len(shape) == 1 else str(tuple(shape))) in words


@given(cases(), names)
def test_the_other_layout_is_refused_with_the_remedy(case, name):
    assume(case.rows > 1 and case.columns > 1)
    description = TensorDescription(TAG[case.short], COLUMN if case.layout is ROW else ROW, 1)
    base = np.zeros(case.span, description.type.dtype)
    with pytest.raises(ArgumentError) as caught:
        matrix(name, description, case.view(base), case.rows, case.columns)
    words = [f"operand {name}", description.order.name, str(case.strides), "To fix it, "]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "describe " not in str(caught.value), "an operation alone knows whether it can be described so"
    offered = caught.value.text(name, True)
    assert f", or describe {name} as {'RowMajor' if case.layout is ROW else 'ColumnMajor'}." in offered


@pytest.mark.parametrize("layout", [ROW, COLUMN])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_remedy_for_the_other_layout_works(layout, library):
    wrong = np.zeros((3, 5), np.float16, order="F" if layout is ROW else "C")
    description = TensorDescription(cutlass.float16, layout, 1)
    if library == "numpy":
        right: Any = np.ascontiguousarray(wrong) if layout is ROW else np.ascontiguousarray(wrong.T).T
    else:
        tensor = torch.from_numpy(wrong)
        right = tensor.contiguous() if layout is ROW else tensor.T.contiguous().T
    assert matrix("A", description, right, 3, 5).ld == (5 if layout is ROW else 3)


# What is refused: one valid baseline, one thing changed

BASELINE = np.zeros((4, 8), np.float16)


def broadcast() -> Any:
    return np.broadcast_to(np.zeros(8, np.float16), (4, 8))


REFUSED: list[tuple[Any, type[Exception], list[str]]] = [
    (BASELINE.astype(np.float32), ArgumentTypeError, ["must be float16", "numpy tensor of float32", "describe"]),
    (BASELINE.astype(ml_dtypes.bfloat16), ArgumentTypeError, ["must be float16", "bfloat16"]),
    (torch.zeros(4, 8), ArgumentTypeError, ["must be float16", "torch tensor of float32"]),
    (torch.zeros(4, 8, dtype=torch.bfloat16), ArgumentTypeError, ["must be float16", "bfloat16"]),
    (torch.zeros(4, 8, dtype=torch.int16), ArgumentTypeError, ["must be float16", "int16"]),
    (BASELINE.astype(">f2"), ArgumentTypeError, ["big-endian", "np.ascontiguousarray(A, np.float16)"]),
    (BASELINE.T, ArgumentError, ["(4, 8)", "(8, 4)"]),
    (np.zeros((2, 4, 8), np.float16), ArgumentError, ["(4, 8)", "(2, 4, 8)", "Mode.Batched, batch=2"]),
    (np.zeros((), np.float16), ArgumentError, ["(4, 8)", "()"]),
    (np.zeros(31, np.float16), ArgumentError, ["4 x 8 = 32 elements", "31"]),
    (np.zeros(64, np.float16)[::2], ArgumentError, ["flat", "contiguous", "step of 2"]),
    (np.zeros((4, 16), np.float16)[:, ::2], ArgumentError, ["step of 1 along columns", "(16, 2)"]),
    (np.zeros((4, 8), np.float16)[:, ::-1], ArgumentError, ["step of 1 along columns", "(8, -1)"]),
    (np.zeros((4, 8), np.float16)[::-1], ArgumentError, ["leading dimension", "-8", "reversed", "ANEW"]),
    (broadcast(), ArgumentError, ["leading dimension", "overlaps itself", "(0, 1)", "ANEW"]),
    (torch.zeros(8, dtype=torch.float16).expand(4, 8), ArgumentError, ["overlaps itself", "(0, 1)"]),
    (
        torch.zeros(20, dtype=torch.float16).as_strided((4, 8), (4, 1)),
        ArgumentError,
        ["leading dimension", "is 4", "8 contiguous elements"],
    ),
    ([[0.0] * 8] * 4, ArgumentTypeError, ["torch, numpy or cupy", "list"]),
    (None, ArgumentTypeError, ["torch, numpy or cupy", "NoneType"]),
    (0, ArgumentTypeError, ["address 0"]),
    (-16, ArgumentTypeError, ["address -16"]),
    (torch.zeros(4, 8, dtype=torch.float16).to_sparse(), ArgumentTypeError, ["dense", "to_dense()"]),
    (torch.zeros(4, 8, dtype=torch.float16, device="meta"), ArgumentTypeError, ["meta device", "no memory"]),
    (torch.zeros(4, 8, dtype=torch.complex64).conj().imag, ArgumentTypeError, ["negative", "resolve_neg()"]),
]


#: Remedies that are copies.
COPIES = ("np.ascontiguousarray(A, np.float16)", "to_dense()", "resolve_neg()")


def test_the_baseline_is_valid():
    assert matrix("A", F16, BASELINE, 4, 8).ld == 8


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tensor", "kind", "words"), REFUSED, ids=[str(row[2]) for row in REFUSED])
def test_one_wrong_thing_is_named(name, tensor, kind, words):
    # Nobody would read a copy of what is written.
    anew = "read the result from there" if name == "D" else f"Pass np.ascontiguousarray({name}"
    if name == "D":
        words = ["ANEW" if word in COPIES else word for word in words]
    with pytest.raises(kind) as caught:
        matrix(name, F16, tensor, 4, 8)
    assert all(
        word.replace("ANEW", anew).replace("(A,", f"({name},") in str(caught.value) for word in [name, *words]
    ), str(caught.value)


def test_steps_that_are_no_multiple_of_the_element_are_refused():
    fields = np.zeros((4, 8), np.dtype([("value", np.float16), ("flag", np.int8)]))
    with pytest.raises(ArgumentTypeError, match=r"operand B has strides \(24, 3\)"):
        matrix("B", F16, fields["value"], 4, 8)


def test_leading_dimensions_have_32_bits():
    base = np.zeros(1, np.float16)
    wide = np.lib.stride_tricks.as_strided(base, (2, 1), (2**32, 2))  # 2**31 elements apart; nothing is read
    with pytest.raises(ArgumentError, match=r"leading dimension of operand C is 2,147,483,648.*less than"):
        matrix("C", F16, wide, 2, 1)


def test_one_line_has_no_step():
    # Libraries put anything in the stride of an extent of 1.
    base = np.zeros(64, np.float16)
    for strides in ((0, 2), (2, 2), (-64, 2), (2**40, 2)):
        line = np.lib.stride_tricks.as_strided(base[32:], (1, 8), strides)
        assert matrix("A", F16, line, 1, 8).ld == 8


def test_one_column_may_be_strided():
    base = np.zeros((6, 5), np.float16)
    for column in (base[:, 2:3], base[:, 2::9], base[:, ::-1][:, 2:3]):  # its own step means nothing
        operand = matrix("A", F16, column, 6, 1)
        assert (operand.ld, operand.view.pointer) == (5, base.ctypes.data + 4)


# Alignment


@given(cases(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 15))
def test_alignment(case, alignment, shift):
    described = TensorDescription(TAG[case.short], case.layout, alignment)
    size = described.type.bits // 8
    pointer = 0x7F0000001000 + shift * size
    strides = case.strides
    view = TensorView(pointer, described.type.dtype_name, (case.rows, case.columns), strides, None, "numpy", None)
    lines = case.rows if case.layout is ROW else case.columns
    ld = case.ld if lines > 1 else case.packed
    fits = case.packed % described.alignment == 0 and ld % described.alignment == 0 and shift % described.alignment == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pycutlass.operands.refusals.look_at", lambda name, tensor: view)
        if fits:
            assert matrix("A", described, None, case.rows, case.columns).ld == ld
            return
        with pytest.raises(AlignmentError) as caught:
            matrix("A", described, None, case.rows, case.columns)
    assert f"operand A is described with alignment {described.alignment}" in str(caught.value)


ALIGNED = TensorDescription(cutlass.float16, ROW, 8)
MISALIGNED: list[tuple[Any, tuple[int, int], list[str]]] = [
    (np.zeros((4, 12), np.float16), (4, 12), ["number of columns", "12", "Pad"]),
    (np.zeros((4, 20), np.float16)[:, :16], (4, 16), ["leading dimension", "20", 'np.array(A, order="C")']),
]


@pytest.mark.parametrize(("tensor", "size", "words"), MISALIGNED, ids=["extent", "leading dimension"])
def test_misalignment_is_explained_and_the_remedy_works(tensor, size, words):
    with pytest.raises(AlignmentError) as caught:
        matrix("A", ALIGNED, tensor, *size)
    assert all(word in str(caught.value) for word in ["operand A", "alignment 8", *words]), str(caught.value)
    assert matrix("A", TensorDescription(cutlass.float16, ROW, 4), tensor, *size).columns == size[1]
    if words[0] == "leading dimension":
        assert matrix("A", ALIGNED, np.array(tensor, order="C"), *size).ld == size[1]


def test_a_misaligned_address_is_explained():
    base = np.zeros(64 + 8, np.float16)
    start = next(i for i in range(8) if (base.ctypes.data + 2 * i) % 16 == 0)
    assert matrix("A", ALIGNED, base[start : start + 64], 8, 8).ld == 8
    shifted = base[(start + 1) % 8 : (start + 1) % 8 + 64]
    with pytest.raises(AlignmentError) as caught:
        matrix("A", ALIGNED, shifted, 8, 8)
    words = [
        "operand A",
        "alignment 8",
        "multiple of 16 bytes",
        hex(shifted.ctypes.data),
        'Pass np.array(A, order="C")',
    ]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.fits == 1


# Overlap


@given(cases(), cases(), st.integers(-80, 80))
def test_overlap_is_exact(first, second, shift):
    target, source = at(4096, first, "D"), at(4096 + shift, second)
    assert overlaps(target, source) == bool(addresses(target) & addresses(source))
    assert overlaps(source, target) == bool(addresses(target) & addresses(source))


@given(cases(), cases())
def test_memory_one_behind_the_other_is_accepted_and_one_shared_byte_is_not(first, second):
    target = at(4096, first, "D")
    source = at(4096 + target.bytes, second)
    assert not overlaps(target, source)
    assert not overlaps(source, target)
    source = at(4096 + target.bytes - 1, second)
    assert overlaps(target, source)
    assert overlaps(source, target)


@given(cases(), cases(), st.integers(0, 60), st.integers(1, 12))
def test_overlap_is_exact_where_lines_are_equally_far_apart(first, second, shift, pitch):
    # Column ranges of one matrix, for example D beside A in one allocation.
    pitch = max(pitch, first.packed, second.packed)
    short = first.short
    first, second = (Case(short, c.layout, c.rows, c.columns, 0, pitch) for c in (first, second))
    size = BY_SHORT_NAME[short].bits // 8
    target, source = at(4096, first, "D"), at(4096 + shift * size, second)
    assert overlaps(target, source) == bool(addresses(target) & addresses(source))
    assert overlaps(source, target) == bool(addresses(target) & addresses(source))


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 5), layouts)
def test_one_line_between_the_lines_of_another_operand_is_accepted(lines, width, other, gap, line, layout):
    # D is a single row in the columns that A leaves free; NumPy tells nothing of the step of a single row.
    base = np.zeros((lines, width + gap + other), np.float16)
    line %= lines
    A = base[:, :width]
    D = base[line : line + 1, width + gap :]
    turned = (lambda array: array) if layout is ROW else (lambda array: array.T)
    description = TensorDescription(cutlass.float16, layout, 1)
    source = matrix("A", description, turned(A), *turned(A).shape)
    target = matrix("D", description, turned(D), *turned(D).shape)
    assert not overlaps(target, source)
    assert not overlaps(source, target)


@given(shorts, shorts, extents, extents)
def test_separate_allocations_are_accepted(first, second, rows, columns):
    left, right = (np.zeros((rows, columns), BY_SHORT_NAME[short].dtype) for short in (first, second))
    operands = [
        matrix(name, TensorDescription(TAG[short], ROW, 1), array, rows, columns)
        for name, short, array in (("D", first, left), ("A", second, right))
    ]
    assert not overlaps(*operands)


def test_an_overlap_is_explained():
    base = np.zeros((6, 8), np.float16)
    target, source = matrix("D", F16, base[:4], 4, 8), matrix("B", F16, base[2:], 4, 8)
    with pytest.raises(ArgumentError) as caught:
        check_overlap(target, source)
    words = ["D overlaps B", hex(base.ctypes.data), hex(base.ctypes.data + 32), "64 bytes", "memory of its own"]
    assert all(word in str(caught.value) for word in words), str(caught.value)
