"""The modes of a GEMM on the host: batches at any step, arrays of tensors, bias vectors and slices of K.

Values are small integers and scalars powers of two, so every result is exact and compared to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from descriptions import LAYOUTS, ROW, ampere, as_torch, hopper
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pycutlass import (
    GemmArguments,
    ReductionArguments,
    ReductionOperation,
    cutlass,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
Array = NDArray[Any]
SIMT = {layouts: ampere("f32_simt", layouts) for layouts in LAYOUTS}

extents = st.integers(1, 7)
layouts_ = st.sampled_from(LAYOUTS)
seeds = st.integers(0, 2**32)
scalars_ = st.sampled_from([(1.0, 0.0), (0.0, 1.0), (-2.0, 0.5), (0.5, -1.0), (0.0, 0.0)])

#: How a batch of matrices may lie in memory; the last three are one matrix for all.
WRITABLE = ("packed", "padded", "side by side", "flat")
SHARED = ("shared", "broadcast", "flat shared")
VECTORS = ("vector", "vectors", "padded vectors", "vectors as rows", "broadcast vector")


def integers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def product(A: Array, B: Array) -> Array:
    # In integers: a BLAS may raise floating-point flags for elements that it computes beyond the matrix.
    return (A.astype(np.int64) @ B.astype(np.int64)).astype(np.float32)


def place(values: Array, form: str, row_major: bool) -> tuple[Any, Array]:
    """Return `values` of (batch, rows, columns) in memory of that form, and all of that memory."""
    lines = values if row_major else values.transpose(0, 2, 1)
    batch, count, width = lines.shape
    if form == "side by side":  # heads of an attention layer
        base = np.full((count, batch, width + 1), np.nan, np.float32)
        view = base[:, :, :width].transpose(1, 0, 2)
    else:
        pad = 2 if form == "padded" else 0
        base = np.full((batch, count + pad, width + pad), np.nan, np.float32)
        view = base[:, pad:, :width]
    view[...] = lines
    if form in ("shared", "flat shared", "broadcast"):
        view = view[0]
    if form == "broadcast":
        view = np.broadcast_to(view, (batch, count, width))
    if form.startswith("flat"):
        return view.reshape(-1), base
    return (view if row_major else view.swapaxes(-1, -2)), base


def place_bias(values: Array, form: str) -> Any:
    """Return `values` of (batch, line) in memory of that form."""
    batch, line = values.shape
    if form == "vector":
        return values[0].copy()
    if form == "broadcast vector":
        return np.broadcast_to(values[0], (batch, line))
    base = np.full((batch, line + 3), np.nan, np.float32)
    view = base[:, :line]
    view[...] = values
    return {"vectors": values.copy(), "padded vectors": view, "vectors as rows": view[:, None, :]}[form]


def source(operation: Any, form: str, batch: int, m: int, n: int, seed: int) -> tuple[Any, Array]:
    """Return a C of that form, and what it means as an array (batch, m, n)."""
    row_major = operation.C.is_row_major
    if form in VECTORS:
        values = integers(seed, batch, n if row_major else m)
        if form in ("vector", "broadcast vector"):
            values[:] = values[0]
        return place_bias(values, form), np.broadcast_to(
            values[:, None] if row_major else values[:, :, None], (batch, m, n)
        )
    values = integers(seed, batch, m, n)
    if form in SHARED:
        values[:] = values[0]
    return place(values, form, row_major)[0], values


@given(st.data(), layouts_, st.tuples(extents, extents, extents), st.integers(1, 4), seeds, scalars_, st.booleans())
def test_batches_anywhere_in_memory(data, layouts, size, batch, seed, scalars, as_tensors):
    operation, (m, n, k) = SIMT[layouts], size
    form = {name: data.draw(st.sampled_from(WRITABLE + SHARED), name) for name in "AB"}
    form["C"] = data.draw(st.sampled_from(WRITABLE + SHARED + VECTORS), "C")
    form["D"] = data.draw(st.sampled_from(WRITABLE), "D")
    A, B = integers(seed, batch, m, k), integers(seed + 1, batch, k, n)
    for name, values in (("A", A), ("B", B)):
        if form[name] in SHARED:
            values[:] = values[0]
    C, C_values = source(operation, form["C"], batch, m, n, seed + 2)
    D, memory = place(np.full((batch, m, n), np.nan, np.float32), form["D"], operation.C.is_row_major)
    given_ = [place(A, form["A"], operation.A.is_row_major)[0], place(B, form["B"], operation.B.is_row_major)[0], C, D]
    writable = all(each.flags.writeable for each in given_)
    arguments = GemmArguments(
        operation,
        size,
        *(map(as_torch, given_) if as_tensors and writable else given_),
        Mode.Batched,
        batch=batch,
        bias=form["C"] in VECTORS,
        output_op=operation.epilogue_type(*scalars),
    )
    operation.run(arguments)
    exact = scalars[0] * product(A, B) + scalars[1] * C_values
    expected_memory = place(exact, form["D"], operation.C.is_row_major)[1]
    np.testing.assert_array_equal(memory, expected_memory)  # what lies between the matrices is left alone


@given(st.data(), layouts_, st.tuples(extents, extents, extents), st.integers(1, 5), seeds, scalars_)
def test_arrays_of_tensors_anywhere_in_memory(data, layouts, size, batch, seed, scalars):
    operation, (m, n, k) = SIMT[layouts], size
    shapes = {"A": (operation.A, m, k), "B": (operation.B, k, n), "C": (operation.C, m, n), "D": (operation.C, m, n)}
    lists: dict[str, list[Any]] = {}
    values: dict[str, Array] = {}
    for index, (name, (description, rows, columns)) in enumerate(shapes.items()):
        form = data.draw(st.sampled_from(("packed", "padded", "flat")), name)
        values[name] = integers(seed + index, batch, rows, columns)
        if name == "D":
            values[name] *= np.nan
        each = [place(one[None], form, description.is_row_major)[0] for one in values[name]]
        lists[name] = [one if one.ndim == 1 else one[0] for one in each]
        if name in "AB" and data.draw(st.booleans(), f"one {name} for all"):
            lists[name], values[name] = [lists[name][0]] * batch, np.broadcast_to(values[name][0], values[name].shape)
    bias = data.draw(st.booleans(), "bias")
    if bias:
        line = n if operation.C.is_row_major else m
        vectors = integers(seed + 9, batch, line)
        lists["C"] = list(vectors)
        values["C"] = vectors[:, None] if operation.C.is_row_major else vectors[:, :, None]
    as_sequence = data.draw(st.sampled_from((list, tuple)), "sequence")
    arguments = GemmArguments(
        operation,
        size,
        *(as_sequence(lists[name]) for name in "ABCD"),
        Mode.Array,
        batch=batch,
        bias=bias,
        output_op=operation.epilogue_type(*scalars),
    )
    operation.run(arguments)
    exact = scalars[0] * product(values["A"], values["B"]) + scalars[1] * values["C"]
    for one, right in zip(lists["D"], exact, strict=True):
        flat = right.reshape(-1) if operation.C.is_row_major else right.T.reshape(-1)
        np.testing.assert_array_equal(one, flat if one.ndim == 1 else right)


# Bias vectors


@pytest.mark.parametrize("layouts", LAYOUTS[:2], ids=["by rows", "by columns"])
@pytest.mark.parametrize("mode", [Mode.Gemm, Mode.Batched, Mode.Array])
@pytest.mark.parametrize("bias", [None, True])
def test_a_bias_is_recognised(layouts, mode, bias):
    operation, (m, n, k), batch = SIMT[layouts], (6, 10, 3), 1 if mode == Mode.Gemm else 4
    line = n if operation.C.is_row_major else m
    vectors = integers(1, batch, line)
    forms: list[Any] = [list(vectors)] if mode == Mode.Array else [vectors[0], vectors[0][None]]
    if mode == Mode.Batched:
        forms += [vectors, vectors[:, None]]
    for C in forms:
        A, B = integers(2, batch, m, k), integers(3, batch, k, n)
        D = np.full((batch, m, n), np.nan, np.float32)
        laid = {
            name: place(each, "packed", getattr(operation, description).is_row_major)[0]
            for name, each, description in (("A", A, "A"), ("B", B, "B"), ("D", D, "C"))
        }
        taken = {Mode.Gemm: lambda each: each[0], Mode.Batched: lambda each: each, Mode.Array: list}[mode]
        arguments = GemmArguments(
            operation,
            (m, n, k),
            taken(laid["A"]),
            taken(laid["B"]),
            C,
            taken(laid["D"]),
            mode,
            batch=batch,
            bias=bias,
            output_op=operation.epilogue_type(1.0, 1.0),
        )
        operation.run(arguments)
        own = len(C) == batch and batch > 1
        values = vectors if own else np.broadcast_to(vectors[0], vectors.shape)
        added = values[:, None] if operation.C.is_row_major else values[:, :, None]
        np.testing.assert_array_equal(laid["D"], product(A, B) + added)


def test_a_bias_of_one_element_for_each_problem_may_have_a_step():
    operation, vectors = SIMT[(ROW, ROW, ROW)], integers(1, 3, 4)
    A, B, D = integers(2, 3, 5, 2), integers(3, 3, 2, 1), np.empty((3, 5, 1), np.float32)
    output_op = operation.epilogue_type(1.0, 1.0)
    operation.run(
        GemmArguments(
            operation, (5, 1, 2), A, B, vectors[:, 1:2], D, Mode.Batched, batch=3, bias=True, output_op=output_op
        )
    )
    np.testing.assert_array_equal(D, product(A, B) + vectors[:, None, 1:2])


def test_a_bias_may_be_denied():
    operation = SIMT[LAYOUTS[0]]
    A, B, D = integers(1, 4, 4), integers(2, 4, 4), np.empty((4, 4), np.float32)
    output_op = operation.epilogue_type(1.0, 1.0)
    with pytest.raises(ArgumentError, match=r"operand C must have .* 4 x 4 = 16|exactly 4 x 4 = 16"):
        GemmArguments(operation, (4, 4, 4), A, B, np.ones(4, np.float32), D, bias=False, output_op=output_op)


@pytest.mark.parametrize(
    "C",
    [np.ones(5, np.float32), np.ones(20, np.float32)[::2], np.ones((10, 1), np.float16), np.ones((2, 10), np.float32)],
    ids=["another length", "a step", "another type", "two vectors"],
)
def test_what_is_no_bias_is_refused(C):
    operation = SIMT[LAYOUTS[0]]
    A, B, D = integers(1, 6, 3), integers(2, 3, 10), np.empty((6, 10), np.float32)
    with pytest.raises((ArgumentError, ArgumentTypeError), match="C"):
        GemmArguments(operation, (6, 10, 3), A, B, C, D, bias=True, output_op=operation.epilogue_type(1.0, 1.0))


@pytest.mark.parametrize("many", [False, True])
def test_hopper_kernels_take_a_bias(many):
    operation, rng = hopper(), np.random.default_rng()
    A, B = (rng.integers(-4, 5, (3, 16, 16)).astype(np.float16) for _ in range(2))
    C, D = rng.integers(-4, 5, (3, 16) if many else 16).astype(np.float16), np.full((3, 16, 16), np.nan, np.float16)
    output_op = operation.epilogue_type(1.0, 2.0)
    transposed = B.transpose(0, 2, 1)
    operation.run(
        GemmArguments(operation, (16, 16, 16), A, transposed, C, D, Mode.Batched, batch=3, output_op=output_op)
    )
    np.testing.assert_array_equal(D, A @ transposed + 2 * (C[:, None] if many else C))


# Slices of K


@given(
    st.data(),
    layouts_,
    st.tuples(extents, extents, st.integers(1, 120)),
    seeds,
    scalars_,
    st.sampled_from(["matrix", "bias", None]),
)
def test_slices_in_parallel_are_one_sum(data, layouts, size, seed, scalars, what):
    operation, (m, n, k) = SIMT[layouts], size
    slices = data.draw(st.integers(1, -(-k // 4)), "slices")  # a slice takes at least 16 bytes of K
    row_major = operation.C.is_row_major
    A, B = integers(seed, m, k), integers(seed + 1, k, n)
    C, C_values = source(operation, "vector" if what == "bias" else "packed", 1, m, n, seed + 2)
    C = C if what == "bias" else C[0]
    if what is None:
        C, scalars = None, (scalars[0], 0.0)
    D = place(np.full((1, m, n), np.nan, np.float32), "padded", row_major)[0][0]
    reduction = ReductionOperation(cutlass.MatrixCoord(4, 32), operation.C, cutlass.float32)
    given_ = [np.array(A, order="C" if operation.A.is_row_major else "F")]
    given_ += [np.array(B, order="C" if operation.B.is_row_major else "F")]
    arguments = GemmArguments(operation, size, *given_, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=slices)
    ends = ReductionArguments(
        reduction,
        [m, n],
        slices,
        arguments.ptr_D,
        D,
        C,
        output_op=reduction.epilogue_type(*scalars),
        bias=what == "bias",
    )
    operation.run(arguments)
    assert np.isnan(D).all()
    reduction.run(ends)
    np.testing.assert_array_equal(D, scalars[0] * product(A, B) + (scalars[1] * C_values[0] if scalars[1] else 0))

    given_[0] *= 2  # both may run again, with other values, other tensors and other scalars
    D2 = place(np.full((1, m, n), np.nan, np.float32), "packed", row_major)[0][0]
    ends.update(D=D2, output_op=reduction.epilogue_type(-1.0, 0.0))
    operation.run(arguments)
    reduction.run(ends)
    np.testing.assert_array_equal(D2, -2 * product(A, B))


@given(layouts_, st.tuples(extents, extents, st.integers(1, 60)), st.data(), seeds, scalars_)
def test_slices_in_series_are_one_sum(layouts, size, data, seed, scalars):
    operation, (m, n, k) = SIMT[layouts], size
    slices = data.draw(st.integers(1, -(-k // 4)))
    A, B, C = integers(seed, 1, m, k), integers(seed + 1, 1, k, n), integers(seed + 2, 1, m, n)
    laid = [
        place(each, "packed", description.is_row_major)[0][0]
        for each, description in ((A, operation.A), (B, operation.B), (C, operation.C), (C * np.nan, operation.C))
    ]
    arguments = GemmArguments(
        operation, size, *laid, split_k_slices=slices, output_op=operation.epilogue_type(*scalars)
    )
    for _ in range(2):
        laid[3][...] = np.nan
        operation.run(arguments)
        np.testing.assert_array_equal(laid[3], scalars[0] * product(A, B)[0] + scalars[1] * C[0])


@pytest.mark.parametrize(("kind", "step"), [("f64", 2), ("f32", 4), ("f16", 8), ("bf16", 8)])
@pytest.mark.parametrize("mode", [Mode.Gemm, Mode.GemmSplitKParallel])
def test_no_more_slices_than_k_has_parts(kind, step, mode):
    operation = ampere(kind)
    k = 5 * step
    A, B = np.zeros((8, k), operation.A.type.dtype), np.zeros((k, 8), operation.A.type.dtype, order="F")
    D = np.zeros((8, 8), operation.C.type.dtype)
    for slices in (1, 5):
        arguments = GemmArguments(operation, (8, 8, k), A, B, None, D, mode, split_k_slices=slices)
        assert arguments.split_k_slices == slices
    with pytest.raises(ArgumentError, match=f"K={k} has 5 parts of {step} elements.*at most 5, got 6"):
        GemmArguments(operation, (8, 8, k), A, B, None, D, mode, split_k_slices=6)


def test_an_array_does_not_change_with_the_callers_list():
    operation = SIMT[(ROW, ROW, ROW)]
    A, B = [np.full((4, 6), i, np.float32) for i in range(3)], [np.ones((6, 5), np.float32) for _ in range(3)]
    D = [np.empty((4, 5), np.float32) for _ in range(3)]
    given_ = list(A)
    arguments = GemmArguments(operation, (4, 5, 6), given_, B, None, D, Mode.Array, batch=3)
    given_.clear()
    arguments.update(D=D)
    operation.run(arguments)
    assert [each[0, 0] for each in D] == [0.0, 6.0, 12.0]


def test_an_array_in_one_tensor():
    operation, batch = SIMT[(ROW, ROW, ROW)], 3
    A, B, D = integers(1, batch, 4, 6), integers(2, batch, 6, 5), np.full((batch, 4, 5), np.nan, np.float32)
    vectors = integers(3, batch, 5)
    for C, added in ((None, 0), (vectors, vectors[:, None])):
        for form in (lambda x: x, lambda x: x.reshape(-1), torch.from_numpy):
            D[...] = np.nan
            output_op = operation.epilogue_type(1.0, 0.0 if C is None else 1.0)
            operands = (form(A), form(B), C, form(D))
            operation.run(GemmArguments(operation, (4, 5, 6), *operands, Mode.Array, batch=batch, output_op=output_op))
            np.testing.assert_array_equal(D, product(A, B) + added)


def test_one_matrix_is_an_array_of_one_and_of_no_more():
    operation = SIMT[(ROW, ROW, ROW)]
    A, B, C = integers(1, 3, 6), integers(2, 6, 5), integers(3, 3, 5)
    D, output_op = np.full((3, 5), np.nan, np.float32), operation.epilogue_type(1.0, 1.0)
    operation.run(GemmArguments(operation, (3, 5, 6), A, B, C, D, Mode.Array, batch=1, output_op=output_op))
    np.testing.assert_array_equal(D, A.astype(int) @ B.astype(int) + C)
    with pytest.raises(ArgumentTypeError, match=r"operand C in Mode\.Array must be a list of 3"):  # not three vectors
        GemmArguments(
            operation,
            (3, 5, 6),
            [A] * 3,
            [B] * 3,
            C,
            np.empty((3, 3, 5), np.float32),
            Mode.Array,
            batch=3,
            output_op=output_op,
        )
