"""Tensors of an epilogue that have the shape of a product of stacks: read and written as the result is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass.epilogue import Tensor
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
