"""The operator for many products at once, with its gradients, which are such products as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pycutlass.errors import ArgumentError
from pycutlass.plan.grouped_matmul import grouped_matmul
from pycutlass.pytorch.operators import below_autograd, define, differentiable, plain
from pycutlass.pytorch.shapes import check_bias, check_equal_types, result_dtype
from pycutlass.pytorch.variants import define_out

__all__ = ["GROUPED_MM", "with_names_of_torch"]

Tensor = torch.Tensor
_NAMES = {"xs": "mat_a", "ws": "mat_b"}
_ALIGNED_ROWS = 8  # of 16 bits, what kernels load at once


def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Any:
    options = {"offs": plain(offs), "bias": plain(bias), "out": out, "out_dtype": out_dtype, "allow_copy": True}
    _shape(mat_a, mat_b, offs, bias, result_dtype("mat_a", mat_a.dtype, out_dtype))
    with with_names_of_torch():
        return grouped_matmul(plain(mat_a), plain(mat_b), **options)


@contextmanager
def with_names_of_torch() -> Iterator[None]:
    """Let errors name operands as torch does: products in one line have other names."""
    try:
        yield
    except ArgumentError as error:
        raise type(error)(re.sub(r"\b(xs|ws)\b", lambda found: _NAMES[found[0]], str(error))) from error


def _fake(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check_equal_types(mat_a, mat_b, ("mat_a", "mat_b"))
    dtype = result_dtype("mat_a", mat_a.dtype, out_dtype)
    return mat_a.new_empty(_shape(mat_a, mat_b, offs, bias, dtype), dtype=dtype)


def _shape(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Any, ...]:
    """Return the shape of the result, as ``torch.nn.functional.grouped_mm`` defines it.

    Raises
    ------
    ArgumentError
        Operands that do not fit each other, or that are divided without `offs`.
    """
    a, b = tuple(mat_a.shape), tuple(mat_b.shape)
    if {len(a), len(b)} - {2, 3}:
        raise ArgumentError(f"mat_a and mat_b must have two or three dimensions, got shapes {a} and {b}")
    if offs is not None and (offs.dim() != 1 or offs.dtype not in (torch.int32, torch.int64)):
        raise ArgumentError(
            f"offs must be a vector of int32, with the end of each group; got shape {tuple(offs.shape)} of {offs.dtype}"
        )
    is_divided = len(a) == 2 or len(b) == 2
    if is_divided is (offs is None):
        raise ArgumentError(
            f"mat_a of shape {a} and mat_b of shape {b} are {'divided into' if is_divided else 'stacks of'} groups: "
            + ("pass offs, the end of each group" if is_divided else "leave offs away")
        )
    if a[-1] != b[-2]:
        raise ArgumentError(
            f"mat_a of shape {a} and mat_b of shape {b} have different K: {a[-1]} columns of mat_a and {b[-2]} rows "
            f"of mat_b"
        )
    counts = [each[0] for each in (a, b) if len(each) == 3] + ([] if offs is None else [offs.shape[0]])
    if any(each != counts[0] for each in counts):
        raise ArgumentError(
            f"mat_a of shape {a}, mat_b of shape {b} and offs have different numbers of groups, {counts}"
        )
    if bias is not None and len(a) == 3 and len(b) == 2:
        raise ArgumentError("bias has a number for each column, and groups divide the columns here: add it yourself")
    check_bias(bias, b[-1], dtype, counts[0])
    if len(a) == 2 and len(b) == 2:
        return (counts[0], a[0], b[1])
    if not is_divided:
        return (counts[0], a[1], b[2])
    return (a[-2], b[-1])


class _GroupedMm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        mat_a: Tensor,
        mat_b: Tensor,
        offs: Tensor | None,
        bias: Tensor | None,
        out_dtype: torch.dtype | None,
    ) -> Any:
        ctx.save_for_backward(mat_a, mat_b, offs)
        ctx.shape_of_bias = None if bias is None else bias.shape
        with below_autograd():
            return GROUPED_MM(mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mat_a, mat_b, offs = ctx.saved_tensors
        of_a = of_b = of_bias = None
        if ctx.needs_input_grad[3]:
            of_bias = _sums_of_groups(grad, offs).sum_to_size(ctx.shape_of_bias)
        grad = grad.to(mat_a.dtype)
        # What divides an operand divides the result or the sum, so each gradient is a form of the same operator.
        if ctx.needs_input_grad[0]:
            of_a = GROUPED_MM(grad, mat_b.mT, offs=offs)
        if ctx.needs_input_grad[1]:
            of_b = GROUPED_MM(mat_a.mT, grad, offs=offs)
        return of_a, of_b, None, of_bias, None


def _sums_of_groups(grad: Tensor, offs: Tensor | None) -> Any:
    """Return the sums of the columns of each group: those of a divided matrix by a product, which reads offs there."""
    if grad.dim() == 3:
        return grad.sum(1)
    ones = grad.new_ones(grad.shape[0], _ALIGNED_ROWS).T
    return GROUPED_MM(ones, grad, offs=offs)[:, 0]


GROUPED_MM = define(
    "grouped_mm(Tensor mat_a, Tensor mat_b, *, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None)"
    " -> Tensor",
    _grouped_mm,
    _fake,
)
define_out(GROUPED_MM, _grouped_mm, _fake)
differentiable(
    GROUPED_MM,
    _GroupedMm,
    lambda mat_a, mat_b, *, offs=None, bias=None, out_dtype=None: (mat_a, mat_b, offs, bias, out_dtype),
)
