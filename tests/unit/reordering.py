"""Interleaved GEMMs of int8, whose B may be reordered."""

from __future__ import annotations

from typing import Any

import numpy as np
from test_gemm_modes_refused import INTERLEAVED8

from pycutlass import GemmArguments, cutlass, deinterleave_columns, interleave_columns

__all__ = ["SIZE", "K", "M", "Mode", "N", "operands", "product"]

M, N, K = 24, 64, 96
SIZE = (M, N, K)
Mode = cutlass.gemm.Mode


def operands(seed: int = 0) -> tuple[Any, Any, Any]:
    """Return A and B as matrices, and their product in int8."""
    rng = np.random.default_rng(seed)
    A, B = rng.integers(-2, 3, (M, K)).astype(np.int8), rng.integers(-2, 3, (K, N)).astype(np.int8)
    return A, B, np.clip(A.astype(int) @ B.astype(int), -128, 127).astype(np.int8)


def product(B: Any, A: Any, **options: Any) -> Any:
    D = np.zeros(M * N, np.int8)
    arguments = GemmArguments(INTERLEAVED8, SIZE, interleave_columns(A), B, None, D, **options)
    INTERLEAVED8.run(arguments)
    arguments.sync()
    return deinterleave_columns(D, M, N)
