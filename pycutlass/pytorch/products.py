"""Operators for products of two tensors: ``matmul`` and ``linear``, with their gradients."""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.errors import PyCutlassError
from pycutlass.operands.overlaps import renamed
from pycutlass.plan.matmul import matmul as product
from pycutlass.pytorch.activations import activation_of, check_has_derivative, of_sum
from pycutlass.pytorch.operators import (
    are_plain,
    as_plain,
    below_autograd,
    check_no_gradient,
    define,
    differentiable,
    plain,
    refuse_by_name,
    was_written,
)
from pycutlass.pytorch.shapes import (
    check_bias,
    check_equal_types,
    check_matrix,
    check_out,
    product_shape,
    result_dtype,
    rows_of,
)
from pycutlass.pytorch.sums import ADDMM_WITH_SLOPE

__all__ = ["LINEAR", "MATMUL"]

Tensor = torch.Tensor


def _matmul(input: Tensor, other: Tensor, *, out_dtype: torch.dtype | None = None) -> Any:
    return product(plain(input), plain(other), out_dtype=out_dtype, allow_copy=True)


def _fake_matmul(input: Tensor, other: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    check_equal_types(input, other, ("input", "other"))
    dtype = result_dtype("input", input.dtype, out_dtype)
    return input.new_empty(product_shape(input, other), dtype=dtype)


def _matmul_out(input: Tensor, other: Tensor, *, out: Tensor) -> None:
    a, b, d = input, other, out
    if not are_plain(a, b, d):
        a, b, d = as_plain("matmul.out", input=input, other=other, out=out)
    try:
        product(a, b, out=d, allow_copy=True)
    except PyCutlassError as error:
        refuse_by_name(_fake_matmul_out, input, other, out=out)
        raise renamed(error, {"a": "input", "b": "other"}) from error.__cause__
    was_written(out)


def _fake_matmul_out(input: Tensor, other: Tensor, *, out: Tensor) -> None:
    check_no_gradient("matmul.out", input=input, other=other, out=out)
    check_equal_types(input, other, ("input", "other"))
    check_out(out, product_shape(input, other))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Any:
    return _layer(plain(input), _turned(plain(weight)), plain(bias), activation, None)


def _layer(x: Any, turned: Any, bias: Any, activation: str | None, out: Any) -> Any:
    """Return activation(x @ turned + bias)."""
    named = activation_of(activation, x.dtype)
    if named is None or not named.is_function:
        epilogue = None if named is None else named.kind
        return product(x, turned, bias=bias, epilogue=epilogue, out=out, allow_copy=True)
    inputs = None if bias is None else {"bias": bias.contiguous()}
    function = of_sum(str(activation), None if bias is None else "bias")
    return product(x, turned, epilogue=function, epilogue_inputs=inputs, out=out, allow_copy=True)


def _fake_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    dtype = result_dtype("input", input.dtype)
    return input.new_empty(_shape_of_linear(input, weight, bias, activation, dtype), dtype=dtype)


def _linear_out(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, *, out: Tensor
) -> None:
    x, w, b, d = input, weight, bias, out
    if not are_plain(x, w, d) or b is not plain(b):
        x, w, b, d = as_plain("linear.out", optional="bias", input=input, weight=weight, bias=bias, out=out)
    try:
        _layer(x, _turned(w), b, activation, d)
    except PyCutlassError as error:
        refuse_by_name(_fake_linear_out, input, weight, bias, activation, out=out)
        raise renamed(error, {"a": "input", "b": "weight"}) from error.__cause__
    was_written(out)


def _fake_linear_out(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, *, out: Tensor
) -> None:
    check_no_gradient("linear.out", input=input, weight=weight, bias=bias, out=out)
    check_out(out, _shape_of_linear(input, weight, bias, activation, out.dtype))


def _turned(weight: Any) -> Any:
    """Return weights of (out, in) as the right operand of a product."""
    check_matrix("weight", weight)
    return weight.T


def _shape_of_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, dtype: torch.dtype
) -> tuple[Any, ...]:
    activation_of(activation, input.dtype)
    turned = _turned(weight)
    check_equal_types(input, weight, ("input", "weight"))
    shape = product_shape(input, turned, ("input", "weight.T"))
    check_bias(bias, turned.shape[1], dtype)
    return shape


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, other: Tensor, out_dtype: torch.dtype | None) -> Any:
        ctx.save_for_backward(input, other)
        with below_autograd():
            return MATMUL(input, other, out_dtype=out_dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, other = ctx.saved_tensors
        grad = grad.to(input.dtype)
        # Vectors are matrices of one row, or of one column.
        a = input[None] if input.dim() == 1 else input
        b = other[:, None] if other.dim() == 1 else other
        grad = grad.unsqueeze(-1) if other.dim() == 1 else grad
        grad = grad.unsqueeze(-2) if input.dim() == 1 else grad
        of_input = of_other = None
        if ctx.needs_input_grad[0]:
            of_input = MATMUL(grad, b.mT).sum_to_size(a.shape).view(input.shape)
        if ctx.needs_input_grad[1] and b.dim() == 2:  # all rows of all matrices of A are one sum
            of_other = MATMUL(rows_of(a).T, rows_of(grad)).view(other.shape)
        elif ctx.needs_input_grad[1]:
            of_other = MATMUL(a.mT, grad).sum_to_size(b.shape)
        return of_input, of_other, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Any:
        check_has_derivative(activation)
        named, kept = activation_of(activation), None
        with below_autograd():
            if named is not None and named.slope is not None:
                shape = _shape_of_linear(input, weight, bias, activation, result_dtype("input", input.dtype))
                rows, kept = ADDMM_WITH_SLOPE(bias, rows_of(input), weight.T, activation)
                output = rows.view(shape)
            else:
                output = LINEAR(input, weight, bias, activation)
                kept = None if named is None else output
        ctx.named = named
        ctx.save_for_backward(input, weight, bias, kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, weight, bias, kept = ctx.saved_tensors
        if ctx.named is not None:
            kept = kept.view(grad.shape)
            grad = ctx.named.gradient(grad, kept, lambda: LINEAR(input, weight, bias))
        rows = rows_of(grad)
        of_input = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_input = MATMUL(grad, weight)
        if ctx.needs_input_grad[1]:
            of_weight = MATMUL(rows.T, rows_of(input))
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_input, of_weight, of_bias, None


MATMUL = define(
    "matmul(Tensor input, Tensor other, *, ScalarType? out_dtype=None) -> Tensor", _matmul, _fake_matmul, repeats=True
)
define("matmul.out(Tensor input, Tensor other, *, Tensor(a!) out) -> ()", _matmul_out, _fake_matmul_out, repeats=True)
LINEAR = define(
    "linear(Tensor input, Tensor weight, Tensor? bias=None, str? activation=None) -> Tensor",
    _linear,
    _fake_linear,
    repeats=True,
)
define(
    "linear.out(Tensor input, Tensor weight, Tensor? bias=None, str? activation=None, *, Tensor(a!) out) -> ()",
    _linear_out,
    _fake_linear_out,
    repeats=True,
)

differentiable(MATMUL, _Matmul, lambda input, other, *, out_dtype=None: (input, other, out_dtype))
differentiable(LINEAR, _Linear, lambda input, weight, bias=None, activation=None: (input, weight, bias, activation))
