"""Reductions and the partial sums that they add up."""

from __future__ import annotations

from typing import Any

from descriptions import COLUMN, ROW, ampere

from pycutlass import GemmArguments, LinearCombination, TensorDescription, cutlass

__all__ = ["described", "partial_sums"]

Mode = cutlass.gemm.Mode


def described(**changes: Any) -> dict[str, Any]:
    """Return the keywords of a reduction that is valid; each may be replaced."""
    return {
        "shape": cutlass.MatrixCoord(4, 256),
        "C": TensorDescription(cutlass.float16, ROW, 8),
        "element_accumulator": cutlass.float32,
        "epilogue_functor": LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32),
        "count": 8,
        **changes,
    }


def partial_sums(kind: str, layout: Any, size: tuple[int, int, int], slices: int, A: Any, B: Any) -> tuple[Any, Any]:
    """Return a GEMM and its arguments, whose ptr_D is a workspace."""
    operation = ampere(kind, (ROW, COLUMN, layout))
    arguments = GemmArguments(operation, size, A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=slices)
    return operation, arguments
