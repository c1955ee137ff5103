"""Convolutions: problem sizes, their enumerations, and the implicit matrix product that a convolution is.

Operands A, B and C by operator: fprop takes activation, filter, output; dgrad takes output gradient, filter,
activation gradient; wgrad takes output gradient, activation, filter gradient.
"""

import importlib as _importlib
from typing import Any as _Any

from pycutlass._core import (
    Conv2dProblemSize,
    IteratorAlgorithm,
    SplitKMode,
    StrideSupport,
    implicit_gemm_problem_size,
    implicit_gemm_tensor_a_extent,
    implicit_gemm_tensor_a_size,
    implicit_gemm_tensor_b_extent,
    implicit_gemm_tensor_b_size,
    implicit_gemm_tensor_c_extent,
    implicit_gemm_tensor_c_size,
)
from pycutlass._core import ConvMode as Mode
from pycutlass._core import ConvOperator as Operator

__all__ = [
    "Conv2dProblemSize",
    "IteratorAlgorithm",
    "Mode",
    "Operator",
    "SplitKMode",
    "StrideSupport",
    "implicit_gemm_problem_size",
    "implicit_gemm_tensor_a_extent",
    "implicit_gemm_tensor_a_size",
    "implicit_gemm_tensor_b_extent",
    "implicit_gemm_tensor_b_size",
    "implicit_gemm_tensor_c_extent",
    "implicit_gemm_tensor_c_size",
]


def __getattr__(name: str) -> _Any:
    """Return what a name of the original stands for: its references to tensors, and what permutes them."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module("pycutlass.compat").cutlass_name(__name__, name)
