"""Operators for a product with something added: ``addmm``, and one that returns what backward needs as well."""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.plan.matmul import matmul as product
from pycutlass.pytorch.activations import (
    activation_of,
    check_has_derivative,
    check_has_slope,
    of_sum,
    takes_functions,
    with_slope,
)
from pycutlass.pytorch.operators import below_autograd, define, differentiable, plain, without_gradient
from pycutlass.pytorch.shapes import check_addend, check_equal_types, check_matrix, product_shape, result_dtype
from pycutlass.pytorch.targets import Expected, copied_to
from pycutlass.pytorch.variants import define_out, define_outs

__all__ = ["ADDMM", "ADDMM_WITH_SLOPE"]

Tensor = torch.Tensor


def _addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    activation: str | None = None,
    out: Tensor | None = None,
) -> Any:
    named, a, b = activation_of(activation, mat1.dtype), plain(mat1), plain(mat2)
    _check(input, mat1, mat2)
    c = None if beta == 0 else _addend(input, a, b)  # torch reads nothing of `input` then
    if named is not None and named.is_function:
        how, inputs, c = _parts(c, alpha, beta)
        function = of_sum(str(activation), *how)
        return product(a, b, c, epilogue=function, epilogue_inputs=inputs or None, out=out, allow_copy=True)
    options: dict[str, Any] = {"alpha": alpha, "epilogue": None if named is None else named.kind}
    options |= {} if c is None else {"beta": beta}
    return product(a, b, c, **options, out=out, allow_copy=True)


def _addmm_with_slope(
    input: Tensor | None,
    mat1: Tensor,
    mat2: Tensor,
    activation: str,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    named = check_has_slope("addmm", activation)
    a, b = plain(mat1), plain(mat2)
    _check(input, mat1, mat2)
    c: Any = None if input is None or beta == 0 else _addend(input, a, b)
    if not takes_functions(a):
        scalars = {"alpha": alpha} if c is None else {"alpha": alpha, "beta": beta}
        found = named.applied(product(a, b, c, **scalars, allow_copy=True))
        return found if out is None else copied_to(out, *found)
    new = (product_shape(mat1, mat2), result_dtype("mat1", mat1.dtype))
    into, slope = (None, mat1.new_empty(new[0], dtype=new[1])) if out is None else out
    how, inputs, c = _parts(c, alpha, beta)
    function, inputs = with_slope(activation, *how), {"slope": slope, **inputs}
    return product(a, b, c, epilogue=function, epilogue_inputs=inputs, out=into, allow_copy=True), slope


def _parts(c: Any, alpha: Any, beta: Any) -> tuple[tuple[str | None, bool], dict[str, Any], Any]:
    """Return what tells sums apart as `with_slope` is told, what its function is given by name, and C beside that."""
    addend = None if c is None else "bias" if c.dim() == 1 else "c"
    scaled = not (_is_one(alpha) and (c is None or _is_one(beta)))
    inputs: dict[str, Any] = {}
    if scaled:
        inputs |= {"alpha": alpha} if c is None else {"alpha": alpha, "beta": beta}
    if addend == "bias":
        return (addend, scaled), {**inputs, "bias": c.contiguous()}, None
    return (addend, scaled), inputs, c


def _fake_addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, activation: str | None = None
) -> Tensor:
    activation_of(activation, mat1.dtype)
    _check(input, mat1, mat2)
    return mat1.new_empty(product_shape(mat1, mat2), dtype=result_dtype("mat1", mat1.dtype))


def _fake_with_slope(
    input: Tensor | None, mat1: Tensor, mat2: Tensor, activation: str, *, beta: Any = 1, alpha: Any = 1
) -> tuple[Tensor, Tensor]:
    one, other = _expected_with_slope(input, mat1, mat2, activation, beta=beta, alpha=alpha)
    return mat1.new_empty(one.shape, dtype=one.dtype), mat1.new_empty(other.shape, dtype=other.dtype)


def _expected_with_slope(
    input: Tensor | None, mat1: Tensor, mat2: Tensor, activation: str, *, beta: Any = 1, alpha: Any = 1
) -> list[Expected]:
    check_has_slope("addmm", activation)
    _check(input, mat1, mat2)
    return 2 * [Expected("", product_shape(mat1, mat2), result_dtype("mat1", mat1.dtype))]


def _is_one(scalar: Any) -> bool:
    return isinstance(scalar, int | float) and scalar == 1  # others are looked at, such as complex ones


def _check(input: Tensor | None, mat1: Tensor, mat2: Tensor) -> None:
    """Raise ArgumentError unless two matrices can be multiplied and `input` be added to their product."""
    check_matrix("mat1", mat1)
    check_matrix("mat2", mat2)
    check_equal_types(mat1, mat2, ("mat1", "mat2"))
    shape = product_shape(mat1, mat2, ("mat1", "mat2"))
    if input is not None:
        check_addend("input", input, shape, result_dtype("mat1", mat1.dtype))


def _addend(input: Tensor, mat1: Any, mat2: Any) -> Any:
    """Return what is added as kernels take it: a row for all rows of the product, or a matrix."""
    shape = (mat1.shape[0], mat2.shape[1])
    given: Any = plain(input)
    if given.dim() == 2 and given.shape[0] == 1:
        given = given[0]
    if given.dim() < 2:
        return given.expand(shape[1:])
    return given.expand(shape)


class _Addmm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, mat1: Tensor, mat2: Tensor, beta: Any, alpha: Any, activation: str | None
    ) -> Any:
        check_has_derivative(activation)
        named, kept = activation_of(activation), None
        with below_autograd():
            if named is not None and named.slope is not None:
                output, kept = ADDMM_WITH_SLOPE(input, mat1, mat2, activation, beta=beta, alpha=alpha)
            else:
                output = ADDMM(input, mat1, mat2, beta=beta, alpha=alpha, activation=activation)
                kept = None if named is None else output
        ctx.scalars, ctx.named = (beta, alpha), named
        ctx.save_for_backward(input, mat1, mat2, kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, mat1, mat2, kept = ctx.saved_tensors
        beta, alpha = ctx.scalars
        if ctx.named is not None:
            grad = ctx.named.gradient(grad, kept, lambda: ADDMM(input, mat1, mat2, beta=beta, alpha=alpha))
        of_input = of_mat1 = of_mat2 = None
        if ctx.needs_input_grad[0]:
            of_input = (grad if beta == 1 else grad * beta).sum_to_size(input.shape)
        scaled = grad if alpha == 1 else grad * alpha
        if ctx.needs_input_grad[1]:
            of_mat1 = torch.ops.pycutlass.matmul(scaled, mat2.T)  # of products.py, which imports this
        if ctx.needs_input_grad[2]:
            of_mat2 = torch.ops.pycutlass.matmul(mat1.T, scaled)
        return of_input, of_mat1, of_mat2, None, None, None


ADDMM = define(
    "addmm(Tensor input, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, str? activation=None) -> Tensor",
    _addmm,
    _fake_addmm,
    repeats=True,
)
ADDMM_WITH_SLOPE = define(
    "addmm_with_slope(Tensor? input, Tensor mat1, Tensor mat2, str activation, *, Scalar beta=1, Scalar alpha=1)"
    " -> (Tensor, Tensor)",
    _addmm_with_slope,
    _fake_with_slope,
    repeats=True,
)

define_out(ADDMM, _addmm, _fake_addmm, "mat1")
define_outs(
    ADDMM_WITH_SLOPE,
    _addmm_with_slope,
    _expected_with_slope,
    ("out", "slope"),
    in_place=lambda input, *_, **__: [(0, input)],
)
without_gradient(ADDMM_WITH_SLOPE)
differentiable(
    ADDMM,
    _Addmm,
    lambda input, mat1, mat2, *, beta=1, alpha=1, activation=None: (input, mat1, mat2, beta, alpha, activation),
)
