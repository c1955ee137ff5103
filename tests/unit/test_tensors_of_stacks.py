"""Tensors of an epilogue that have the shape of a product of stacks: read and written as the result is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass import epilogue
from pycutlass.epilogue import Column, PerBatch, Row, Tensor
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu")

RNG = np.random.default_rng(11)
#: Stacks of A and B: both have the axes of the batch, or A alone.
STACKS = [((3, 1), (3, 1)), ((2, 3), (2, 3)), ((2, 3), ()), ((1, 1), (1, 1)), ((4,), ()), ((2, 2, 2), (2, 2, 2))]


@pycutlass.epilogue_function
def added(accum: Any, residual: Tensor) -> Any:
    return {"D": accum + residual, "before": accum}


@pycutlass.epilogue_function
def gated(accum: Any, residual: Tensor) -> Any:
    even, odd = pycutlass.epilogue.pairs(accum)
    return even * odd + residual


def drawn(*shape: int) -> Any:
    return RNG.integers(-3, 4, shape).astype(np.float32)


def sliced(array: Any) -> Any:
    """Return the same elements with others between the lines of the first axis."""
    wide = np.full((2 * array.shape[0], *array.shape[1:]), np.nan, array.dtype)
    wide[::2] = array
    return wide[::2]


@pytest.mark.parametrize("make", [np.ascontiguousarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize(("of_a", "of_b"), STACKS)
def test_they_have_the_shape_of_the_result(of_a: Any, of_b: Any, make: Any) -> None:
    a, b = drawn(*of_a, 4, 8), drawn(*of_b, 8, 16)
    product = a @ b
    residual, before = drawn(*product.shape), np.zeros_like(product)
    inputs = {"residual": make(residual), "before": make(before)}
    a, b = (torch.from_numpy(a), torch.from_numpy(b)) if make is torch.from_numpy else (a, b)
    result = pycutlass.matmul(a, b, epilogue=added, epilogue_inputs=inputs)
    assert tuple(result.shape) == product.shape
    np.testing.assert_array_equal(np.asarray(result), product + residual)
    np.testing.assert_array_equal(np.asarray(inputs["before"]), product)


def test_lines_of_a_batch_may_be_apart() -> None:
    a, b = drawn(3, 1, 4, 8), drawn(3, 1, 8, 16)
    residual, before = drawn(3, 1, 4, 16), np.zeros((3, 1, 4, 16), np.float32)
    inputs = {"residual": sliced(residual), "before": sliced(before)}
    result = pycutlass.matmul(a, b, epilogue=added, epilogue_inputs=inputs)
    np.testing.assert_array_equal(result, a @ b + residual)
    np.testing.assert_array_equal(inputs["before"], a @ b)


def test_of_pairs_they_have_half_the_columns() -> None:
    a, b, residual = (drawn(*shape).astype(np.float16) for shape in ((3, 2, 4, 8), (3, 2, 8, 16), (3, 2, 4, 8)))
    product = a.astype(np.float32) @ b.astype(np.float32)
    result = pycutlass.matmul(a, b, epilogue=gated, epilogue_inputs={"residual": residual})
    exact = product[..., ::2] * product[..., 1::2] + residual
    np.testing.assert_allclose(result, exact, rtol=1e-3)


def test_another_shape_is_refused() -> None:
    a, b = drawn(3, 2, 4, 8), drawn(3, 2, 8, 16)
    for shape in ((2, 3, 4, 16), (3, 2, 16, 4), (1, 2, 4, 16), (3, 1, 4, 16)):
        inputs = {"residual": drawn(*shape), "before": np.zeros((3, 2, 4, 16), np.float32)}
        with pytest.raises(ArgumentError, match=r"operand residual must have shape \(6, 4, 16\)"):
            pycutlass.matmul(a, b, epilogue=added, epilogue_inputs=inputs)


# Vectors and numbers of a stack that is multiplied by one matrix, which is one tall matrix otherwise.


@pycutlass.epilogue_function
def of_all_forms(accum: Any, row: Row, column: Column, number: PerBatch, whole: Tensor) -> Any:
    x = (accum * number + row) * column + whole
    return {
        "D": x,
        "down": epilogue.sum(x, axis=0),
        "along": epilogue.sum(x, axis=1),
        "all": epilogue.sum(x),
    }


M, N, K = 4, 16, 8
SHARED = {"row": (N,), "column": (M,), "number": (1,), "whole": (M, N)}
RESULTS = {"down": (N,), "along": (M,), "all": ()}


def of_each(batch: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the shape of what each matrix of a batch has of its own."""
    return batch if name == "number" else (*batch, *SHARED[name])


@pytest.mark.parametrize("is_flat", [False, True], ids=["axes of the stack", "one axis"])
@pytest.mark.parametrize("make", [np.ascontiguousarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize("apart", [(), ("row",), ("column",), ("number",), ("whole",), tuple(SHARED)], ids=str)
@pytest.mark.parametrize("is_shared", [True, False], ids=["one B", "many B"])
def test_what_each_matrix_has_of_its_own(
    is_shared: bool, apart: tuple[str, ...], batch: tuple[int, ...], make: Any, is_flat: bool
) -> None:
    """They are of each matrix of a stack whether B is one for all of them or not."""
    a, b = drawn(*batch, M, K), drawn(*(() if is_shared else batch), K, N)
    count = int(np.prod(batch))
    given = {name: drawn(*(of_each(batch, name) if name in apart else SHARED[name])) for name in SHARED}
    results = {name: np.zeros((*batch, *shape), np.float32) for name, shape in RESULTS.items()}
    x = a @ b * (given["number"][..., None, None] if "number" in apart else given["number"])
    x = (x + given["row"].reshape(*(batch if "row" in apart else ()), 1, N)) * given["column"][..., None]
    x = x + given["whole"]

    def flat(name: str, array: Any) -> Any:
        is_of_each = name in apart or name in results
        return make(array.reshape(count, *array.shape[len(batch) :]) if is_flat and is_of_each else array)

    inputs = {name: flat(name, array) for name, array in {**given, **results}.items()}
    got = pycutlass.matmul(make(a), make(b), epilogue=of_all_forms, epilogue_inputs=inputs)
    np.testing.assert_array_equal(np.asarray(got), x)
    for name, exact in {"down": x.sum(-2), "along": x.sum(-1), "all": x.sum((-1, -2))}.items():
        np.testing.assert_array_equal(np.asarray(inputs[name]).reshape(exact.shape), exact)


@pycutlass.epilogue_function
def by_rows(accum: Any, column: Column) -> Any:
    x = accum * column
    return {"D": x, "along": epilogue.sum(x, axis=1), "down": epilogue.sum(x, axis=0)}


@pytest.mark.parametrize("shape", [(2, 3, M), (6, M), (6 * M,)], ids=str)
def test_columns_leave_a_stack_one_tall_matrix(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A number for each token of a layer costs no batch, and results of columns are of all matrices then."""
    a, w, column = drawn(2, 3, M, K), drawn(N, K), drawn(2, 3, M)
    seen, run_once = [], pycutlass.Gemm.run_once
    monkeypatch.setattr(
        pycutlass.Gemm, "run_once", lambda plan, *of, **how: seen.append(of[0]) or run_once(plan, *of, **how)
    )
    inputs = {"column": column.reshape(shape), "along": np.zeros(shape, np.float32), "down": np.zeros(N, np.float32)}
    got = pycutlass.linear(a, w, epilogue=by_rows, epilogue_inputs=inputs)
    x = a @ w.T * column[..., None]
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(inputs["along"], x.sum(-1).reshape(shape))
    np.testing.assert_array_equal(inputs["down"], x.sum((0, 1, 2)))
    assert [each.shape for each in seen] == [(6 * M, K)]


def test_columns_that_are_apart_are_of_a_batch() -> None:
    a, w, column = drawn(3, M, K), drawn(N, K), sliced(drawn(3, M))
    inputs = {"column": column, "along": np.zeros((3, M), np.float32), "down": np.zeros((3, N), np.float32)}
    got = pycutlass.linear(a, w, epilogue=by_rows, epilogue_inputs=inputs)
    x = a @ w.T * column[..., None]
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(inputs["down"], x.sum(1))


def test_a_plan_of_a_batch_takes_a_batch_by_one_matrix() -> None:
    a, w = drawn(3, M, K), drawn(K, N)
    np.testing.assert_array_equal(pycutlass.matmul(a, w, plan=pycutlass.Gemm(a, w)), a @ w)
    tall = pycutlass.Gemm(a.reshape(-1, K), w)
    np.testing.assert_array_equal(pycutlass.matmul(a, w, plan=tall), a @ w)


@pycutlass.epilogue_function
def one_row(accum: Any, given: Row) -> Any:
    return accum + given


@pycutlass.epilogue_function
def one_column(accum: Any, given: Column) -> Any:
    return accum + given


@pytest.mark.parametrize("is_shared", [True, False], ids=["one B", "many B"])
@pytest.mark.parametrize(("function", "size"), [(one_row, (4, 6)), (one_column, (6, 4))], ids=["row", "column"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 1, 1)], ids=str)
def test_axes_of_a_batch_are_no_line_of_a_matrix(shape: Any, function: Any, size: Any, is_shared: bool) -> None:
    """There are 6 matrices, and as many columns, or rows: one number for each matrix must not become one for each."""
    rows, columns = size
    a, b = drawn(2, 3, rows, 8), drawn(*(() if is_shared else (2, 3)), 8, columns)
    given = drawn(*shape)
    with pytest.raises(ArgumentError, match=r"given must be a contiguous vector of (6|36) elements"):
        pycutlass.matmul(a, b, epilogue=function, epilogue_inputs={"given": given})
    with pytest.raises(ArgumentError, match=r"given of one_(row|column) is a (row|column), of shape \(6,\)"):
        function.numpy(a @ b, given=given)


def test_axes_of_a_batch_are_no_rows_of_a_matrix_in_numpy() -> None:
    with pytest.raises(ArgumentError, match=r"residual of added is a matrix, of shape \(6, 16\)"):
        added.numpy(drawn(2, 3, 6, 16), residual=drawn(2, 3, 16))


#: Shapes of A and B of which one is a vector, so that the result lacks an axis.
OF_VECTORS = [((3, 4, 8), (8,)), ((8,), (3, 8, 16)), ((2, 3, 4, 8), (8,)), ((8,), (2, 3, 8, 16)), ((1, 4, 8), (8,))]
OF_VECTORS += [((4, 8), (8,)), ((8,), (8, 16))]


@pytest.mark.parametrize("make", [np.ascontiguousarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize(("of_a", "of_b"), OF_VECTORS)
def test_they_lack_the_axes_that_the_result_lacks(of_a: Any, of_b: Any, make: Any) -> None:
    a, b = drawn(*of_a), drawn(*of_b)
    product = np.matmul(a, b)
    residual, before = drawn(*product.shape), np.zeros_like(product)
    inputs = {"residual": make(residual), "before": make(before)}
    result = pycutlass.matmul(make(a), make(b), epilogue=added, epilogue_inputs=inputs)
    assert tuple(result.shape) == product.shape
    np.testing.assert_array_equal(np.asarray(result), product + residual)
    np.testing.assert_array_equal(np.asarray(inputs["before"]), product)


@pytest.mark.parametrize(("of_a", "of_b"), [((3, 4, 8), (8,)), ((2, 3, 4, 8), (2, 3, 8, 16)), ((8,), (2, 3, 8, 16))])
def test_lines_that_lie_otherwise_are_told_how(of_a: Any, of_b: Any) -> None:
    a, b = drawn(*of_a), drawn(*of_b)
    product = np.matmul(a, b)
    names = {"residual": np.asfortranarray(drawn(*product.shape)), "before": np.zeros_like(product, order="F")}
    for name, packed in (("residual", "before"), ("before", "residual")):
        given = names | {packed: np.ascontiguousarray(names[packed])}
        with pytest.raises(ArgumentError, match=rf"operand {name} .* by one step: ") as refused:
            pycutlass.matmul(a, b, epilogue=added, epilogue_inputs=given)
        ending = r"(?: and read the result from there|\. With allow_copy=True it is copied\.)?$"
        remedy = re.search(rf"by one step: (?:pass|make \w+ as) (.*?){ending}", str(refused.value))
        assert remedy, refused.value
        given[name] = eval(remedy[1], {"np": np, **names})
        result = pycutlass.matmul(a, b, epilogue=added, epilogue_inputs=given)
        np.testing.assert_array_equal(result, product + given["residual"])
        np.testing.assert_array_equal(given["before"], product)
