"""Random operands of products, and what these are in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["K", "M", "N", "close", "integers", "positive", "product", "random"]

RNG = np.random.default_rng(11)
M, N, K = 12, 16, 32


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def integers(*shape: int) -> Any:
    return RNG.integers(-8, 9, shape).astype(np.int8)


def positive(*shape: int, dtype: Any = np.float32) -> Any:
    return (0.5 + RNG.random(shape)).astype(dtype)


def product(a: Any, b: Any) -> Any:
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


def close(got: Any, exact: Any, dtype: Any = np.float32) -> None:
    tolerance = {np.float16: 4e-3, np.float32: 2e-5, np.float64: 1e-12}[dtype]
    assert got.shape == exact.shape and got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=tolerance, atol=16 * tolerance)
