"""Operands of a GEMM in host memory, and arguments that are valid."""

from __future__ import annotations

from typing import Any

import numpy as np
from descriptions import (
    ampere,
    poisoned,
    random_matrix,
)

from pycutlass import reference

__all__ = ["OPERANDS", "OPERATION", "K", "M", "N", "assert_close", "baseline", "matrices"]

M, N, K = 24, 40, 16
OPERANDS = ("A", "B", "C", "D")


def matrices(operation: Any, m: int = M, n: int = N, k: int = K, seed: Any = None) -> dict[str, Any]:
    """Return fresh random A, B and C, and a D full of NaN."""
    random = np.random.default_rng(seed)
    return {
        "A": random_matrix(operation.A, m, k, random.integers(2**32)),
        "B": random_matrix(operation.B, k, n, random.integers(2**32)),
        "C": random_matrix(operation.C, m, n, random.integers(2**32)),
        "D": poisoned(operation.C, m, n),
    }


def assert_close(operation: Any, D: Any, exact: Any, k: int, alpha: float = 1.0) -> None:
    relative, absolute = reference.tolerance(operation, k, max(abs(alpha), 1e-3))
    np.testing.assert_allclose(np.asarray(D).astype(np.float64), exact, rtol=relative, atol=absolute)


OPERATION = ampere("f16", alignment=8)


def baseline() -> dict[str, Any]:
    return {
        "operation": OPERATION,
        "problem_size": (M, N, K),
        **matrices(OPERATION),
        "output_op": OPERATION.epilogue_type(1.0, 1.0),
    }
