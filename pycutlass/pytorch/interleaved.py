"""The operator for a gated layer whose two weights lie in turn, so that one kernel computes both products and the gate.

Rows of the weight are those of gate and up by turns: gate[0], up[0], gate[1], and so on.
"""

# mypy: disable-error-code="operator"
# Activations are classes, which trace where they are called with a value of an epilogue function.

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from pycutlass.epilogue import epilogue_function, pairs, sigmoid, silu
from pycutlass.errors import ArgumentError
from pycutlass.plan.matmul import matmul
from pycutlass.pytorch.activations import gradient_of_silu, takes_functions
from pycutlass.pytorch.operators import below_autograd, define, differentiable, plain, without_gradient
from pycutlass.pytorch.products import LINEAR, MATMUL
from pycutlass.pytorch.shapes import check_equal_types, check_matrix, product_shape, result_dtype, rows_of
from pycutlass.pytorch.targets import Expected, copied_to
from pycutlass.pytorch.variants import define_outs

__all__ = ["INTERLEAVED_SWIGLU", "interleave", "taken_apart"]

Tensor = torch.Tensor
_COLUMNS = 4  # what the columns of both products are a multiple of, where a kernel combines pairs of them


@epilogue_function
def _gated(accum: Any) -> Any:
    gate, up = pairs(accum)
    return silu(gate) * up


@epilogue_function
def _gated_with_slopes(accum: Any) -> Any:
    gate, up = pairs(accum)
    share, activated = sigmoid(gate), silu(gate)
    return {"D": activated * up, "of_gate": (share + gate * share * (1 - share)) * up, "of_up": activated}


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Return two weights of (out, in) as one whose rows are theirs by turns."""
    return torch.stack((gate, up), dim=1).flatten(0, 1)


def taken_apart(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of gate and up, views of one whose rows are theirs by turns."""
    return weight[0::2], weight[1::2]


def _swiglu(input: Tensor, weight: Tensor, *, out: list[Tensor] | None = None) -> Any:
    shape = _shape(input, weight)
    rows, turned = rows_of(plain(input)), plain(weight).T
    into = None if out is None else rows_of(out[0])
    if not _has_kernel(rows, weight):
        gate, up = _products(rows, turned)
        return torch.mul(functional.silu(gate), up, out=into).view(shape)
    return matmul(rows, turned, epilogue=_gated, out=into, allow_copy=True).view(shape)


def _expected(input: Tensor, weight: Tensor) -> list[Expected]:
    return [Expected("", _shape(input, weight), result_dtype("input", input.dtype))]


def _expected_with_slopes(input: Tensor, weight: Tensor) -> list[Expected]:
    return 3 * _expected(input, weight)


def _fake(input: Tensor, weight: Tensor) -> Tensor:
    return input.new_empty(_shape(input, weight), dtype=result_dtype("input", input.dtype))


def _swiglu_with_slopes(
    input: Tensor, weight: Tensor, *, out: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    shape = _shape(input, weight)
    rows, turned = rows_of(plain(input)), plain(weight).T
    if not _has_kernel(rows, weight):
        gate, up = _products(rows, turned)
        activated = functional.silu(gate)
        found = activated * up, gradient_of_silu(up, gate), activated
        first, second, third = (each.view(shape) for each in found)
        return (first, second, third) if out is None else copied_to(out, first, second, third)
    into = None if out is None else rows_of(out[0])
    new = (rows.new_empty(rows.shape[0], shape[-1]) for _ in range(2))
    of_gate, of_up = new if out is None else map(rows_of, out[1:])
    slopes = {"of_gate": of_gate, "of_up": of_up}
    made = matmul(rows, turned, epilogue=_gated_with_slopes, epilogue_inputs=slopes, out=into, allow_copy=True)
    return made.view(shape), of_gate.view(shape), of_up.view(shape)


def _has_kernel(rows: Tensor, weight: Tensor) -> bool:
    """Return whether a kernel combines pairs of columns of the product: those of tensor cores do, of four columns."""
    return takes_functions(rows) and weight.shape[0] % _COLUMNS == 0


def _products(rows: Any, turned: Any) -> tuple[Tensor, Tensor]:
    """Return the products with gate and up."""
    made = matmul(rows, turned, allow_copy=True)
    return made[:, 0::2], made[:, 1::2]


def _fake_with_slopes(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape, dtype = _shape(input, weight), result_dtype("input", input.dtype)
    return input.new_empty(shape, dtype=dtype), input.new_empty(shape, dtype=dtype), input.new_empty(shape, dtype=dtype)


def _shape(input: Tensor, weight: Tensor) -> tuple[Any, ...]:
    """Return the shape of the result, or raise ArgumentError where a weight does not fit."""
    check_matrix("weight", weight)
    check_equal_types(input, weight, ("input", "weight"))
    if not input.dtype.is_floating_point or input.dtype.itemsize == 1:
        raise ArgumentError(
            f"input is of {input.dtype}, and a gate is computed in fractions of 16 bits or more: cast it"
        )
    if weight.shape[0] % 2 != 0:
        raise ArgumentError(f"weight has rows of gate and up by turns, an even number; got shape {tuple(weight.shape)}")
    *lead, columns = product_shape(input, weight.T, ("input", "weight.T"))
    return (*lead, columns // 2)


class _InterleavedSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor) -> Any:
        with below_autograd():
            output, of_gate, of_up = INTERLEAVED_SWIGLU_WITH_SLOPES(input, weight)
        ctx.save_for_backward(input, weight, of_gate, of_up)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, weight, of_gate, of_up = ctx.saved_tensors
        if torch.is_grad_enabled():  # the slopes are no constants where backward is to be differentiated
            sums = LINEAR(input, weight)
            gate, up = sums[..., 0::2], sums[..., 1::2]
            gate, up = gradient_of_silu(grad * up, gate), grad * functional.silu(gate)
        else:
            gate, up = grad * of_gate, grad * of_up
        both = rows_of(torch.stack((gate, up), dim=-1).flatten(-2))
        of_input = MATMUL(both, weight).view(input.shape) if ctx.needs_input_grad[0] else None
        of_weight = MATMUL(both.T, rows_of(input)) if ctx.needs_input_grad[1] else None
        return of_input, of_weight


INTERLEAVED_SWIGLU = define("interleaved_swiglu(Tensor input, Tensor weight) -> Tensor", _swiglu, _fake, repeats=True)
INTERLEAVED_SWIGLU_WITH_SLOPES = define(
    "interleaved_swiglu_with_slopes(Tensor input, Tensor weight) -> (Tensor, Tensor, Tensor)",
    _swiglu_with_slopes,
    _fake_with_slopes,
    repeats=True,
)
define_outs(INTERLEAVED_SWIGLU, _swiglu, _expected)
define_outs(INTERLEAVED_SWIGLU_WITH_SLOPES, _swiglu_with_slopes, _expected_with_slopes, ("out", "of_gate", "of_up"))
without_gradient(INTERLEAVED_SWIGLU_WITH_SLOPES)
differentiable(INTERLEAVED_SWIGLU, _InterleavedSwiglu, lambda input, weight: (input, weight))
