"""The operator for operands of 16 bits with weights of int8.

Both types of 16 bits hold all numbers of int8, so that the product is that of the integers. One kernel converts them in
its registers where there is such a kernel and it is predicted to be the faster way; elsewhere they are cast for the
call, which writes and reads them once more.
"""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.errors import ArgumentError
from pycutlass.plan.matmul import matmul
from pycutlass.plan.upcast import is_faster_converted
from pycutlass.pytorch.operators import below_autograd, check_no_gradient, define, differentiable, plain
from pycutlass.pytorch.shapes import check_matrix, product_shape, result_dtype
from pycutlass.pytorch.variants import define_out
from pycutlass.tensor import wrap

__all__ = ["MIXED_MM"]

Tensor = torch.Tensor
_NAMES = ("mat_a", "mat_b")
_HALVES = (torch.float16, torch.bfloat16)
_SCALES = (torch.float32, *_HALVES)


def _mixed_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Any:
    _check(mat_a, mat_b, scale)
    scales = None if scale is None else (1.0, plain(scale))
    a, b = plain(mat_a), plain(mat_b)
    if not is_faster_converted(wrap("mat_a", a), wrap("mat_b", b)):
        b = b.to(a.dtype)
    return matmul(a, b, scales=scales, out=out, out_dtype=out_dtype, allow_copy=True)


def _fake(mat_a: Tensor, mat_b: Tensor, scale: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    shape = _check(mat_a, mat_b, scale)
    return mat_a.new_empty(shape, dtype=result_dtype("mat_a", mat_a.dtype, out_dtype))


def _check(mat_a: Tensor, mat_b: Tensor, scale: Tensor | None) -> tuple[Any, ...]:
    """Return the shape of the result; raise ArgumentError for what the operator does not take."""
    for name, matrix in zip(_NAMES, (mat_a, mat_b), strict=True):
        check_matrix(name, matrix)
    if mat_a.dtype not in _HALVES or mat_b.dtype is not torch.int8:
        raise ArgumentError(
            f"mat_a must be of torch.float16 or torch.bfloat16 and mat_b of torch.int8, got {mat_a.dtype} and "
            f"{mat_b.dtype}: operands of one type are for matmul, and two of 8 bits for scaled_mm"
        )
    rows, columns = product_shape(mat_a, mat_b, _NAMES)
    if scale is not None and tuple(scale.shape) not in ((columns,), (1, columns), (1,), ()):
        raise ArgumentError(
            f"scale must be of ({columns},) or (1, {columns}), a number for each column of mat_b, or one number; got "
            f"shape {tuple(scale.shape)}"
        )
    if scale is not None and scale.dtype not in _SCALES:
        raise ArgumentError(f"scale must be of float32, float16 or bfloat16, got {scale.dtype}: convert it")
    return rows, columns


class _MixedMm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mat_a: Tensor, mat_b: Tensor, scale: Tensor | None, out_dtype: torch.dtype | None) -> Any:
        ctx.save_for_backward(mat_b, scale)
        ctx.dtype = mat_a.dtype
        with below_autograd():
            return MIXED_MM(mat_a, mat_b, scale, out_dtype=out_dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mat_b, scale = ctx.saved_tensors
        scaled = grad if scale is None else grad * scale.reshape(-1)
        return MIXED_MM(scaled.to(ctx.dtype), mat_b.T), None, None, None


def _arranged(
    mat_a: Tensor, mat_b: Tensor, scale: Tensor | None = None, *, out_dtype: torch.dtype | None = None
) -> tuple[Any, ...]:
    check_no_gradient("pycutlass.mixed_mm.default for it", scale=scale)
    return mat_a, mat_b, scale, out_dtype


MIXED_MM = define(
    "mixed_mm(Tensor mat_a, Tensor mat_b, Tensor? scale=None, *, ScalarType? out_dtype=None) -> Tensor",
    _mixed_mm,
    _fake,
    repeats=True,
)
define_out(MIXED_MM, _mixed_mm, _fake)
differentiable(MIXED_MM, _MixedMm, _arranged)
