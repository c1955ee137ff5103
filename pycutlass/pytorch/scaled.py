"""The operator for products of operands of 8 bits with scales. It has no gradient, as torch's own has none."""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.plan.matmul import matmul
from pycutlass.pytorch.operators import define, plain, without_gradient
from pycutlass.pytorch.shapes import (
    check_bias,
    check_equal_types,
    check_matrix,
    product_shape,
    result_dtype,
)

__all__ = ["SCALED_MM"]

Tensor = torch.Tensor


def _scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    check_matrix("mat_a", mat_a)
    check_matrix("mat_b", mat_b)
    scales, out_dtype = (plain(scale_a), plain(scale_b)), _result(mat_a, out_dtype)
    options = {"bias": plain(bias), "scales": scales, "out_dtype": out_dtype, "allow_copy": True}
    return matmul(plain(mat_a), plain(mat_b), **options)


def _fake(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check_matrix("mat_a", mat_a)
    check_matrix("mat_b", mat_b)
    check_equal_types(mat_a, mat_b, ("mat_a", "mat_b"))
    shape = product_shape(mat_a, mat_b, ("mat_a", "mat_b"))
    check_bias(bias, mat_b.shape[1], _result(mat_a, out_dtype))
    return mat_a.new_empty(shape, dtype=_result(mat_a, out_dtype))


def _result(mat_a: Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of the result: scales are fractions, and so is a scaled product of integers."""
    if out_dtype is None and not mat_a.dtype.is_floating_point:
        out_dtype = torch.float32
    return result_dtype("mat_a", mat_a.dtype, out_dtype)


SCALED_MM = define(
    "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, *, Tensor? bias=None, "
    "ScalarType? out_dtype=None) -> Tensor",
    _scaled_mm,
    _fake,
)
without_gradient(SCALED_MM)
