"""Functions of `pycutlass.epilogue` on plain arrays: what they compute is what functions made of them compute."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pycutlass
from pycutlass import epilogue
from pycutlass.epilogue import relu, where

REDUCED = ("sum", "max", "min", "absmax", "sum_of_squares", "logsumexp")


def _drawn(dtype: Any) -> Any:
    random = np.random.default_rng(0)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, (4, 600), dtype, endpoint=True)
    return (random.standard_normal((4, 600)) * 30 + 100).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_arrays_are_those_of_functions(name: str, dtype: Any) -> None:
    reduce, x = getattr(epilogue, name), _drawn(dtype)
    is_single = np.dtype(dtype).kind not in "iu" and np.dtype(dtype).itemsize <= 4

    def both(accum: Any) -> Any:
        return {"D": accum, "columns": reduce(accum, axis=0), "rows": reduce(accum, axis=1)}

    made = pycutlass.epilogue_function(both).numpy(x.astype(np.float64))
    for axis, output in enumerate(("columns", "rows")):
        found = reduce(x, axis=axis)
        assert found.dtype == (np.float32 if is_single else np.float64)
        np.testing.assert_allclose(found, made[output], rtol=1e-6 if is_single else 1e-14)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: epilogue.abs(x),
        lambda x: epilogue.maximum(x, 200),
        lambda x: epilogue.clamp(x, -200, 0.5),
        lambda x: where(np.asarray(x) > 0, x, 300),
        lambda x: epilogue.softplus(x),
    ],
)
def test_integers_do_not_wrap(function: Any) -> None:
    x = np.array([[-128, -1, 0, 127]], np.int8)
    found = function(x)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, function(x.astype(np.float64)))


def test_a_slope_of_integers_is_a_fraction() -> None:
    assert pycutlass.leaky_relu.numpy([-10, 2]).tolist() == [-2.0, 2.0]
    assert pycutlass.leaky_relu.numpy(np.array([-10, 2], np.int8), 0.5).tolist() == [-5.0, 2.0]
    assert relu.numpy(np.array([-10, 2], np.int8)).dtype == np.int8  # which kernels of integers have


def test_sums_of_tiles_do_not_lose_what_is_small() -> None:
    ones = np.ones((1, 1, 4096), np.float16)
    assert pycutlass.reduction_op(ones, "row", "Add", 4096).tolist() == [4096.0]
    assert pycutlass.reduction_op(100 * ones, "row", "Add", 4096).tolist() == [409600.0]
