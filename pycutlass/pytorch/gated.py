"""The operator for a gated layer, ``silu(input @ gate.T) * (input @ up.T)``, with its gradients.

The second product multiplies by the first while its sums are still in registers. Weights stay two tensors, as
checkpoints have them: one product of both, whose columns lie in turn, needs them interleaved in memory.
"""

# mypy: disable-error-code="valid-type,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from pycutlass.epilogue import Tensor as TensorOf
from pycutlass.epilogue import epilogue_function, sigmoid, silu
from pycutlass.errors import ArgumentError
from pycutlass.plan.matmul import matmul
from pycutlass.pytorch.activations import gradient_of_silu, takes_functions
from pycutlass.pytorch.operators import below_autograd, define, differentiable, plain, without_gradient
from pycutlass.pytorch.products import LINEAR, MATMUL
from pycutlass.pytorch.shapes import check_equal_types, check_matrix, product_shape, result_dtype, rows_of
from pycutlass.pytorch.sums import ADDMM
from pycutlass.pytorch.targets import Expected, copied_to
from pycutlass.pytorch.variants import define_outs

__all__ = ["SWIGLU"]

Tensor = torch.Tensor


@epilogue_function
def _gated(accum: Any, up: TensorOf) -> Any:
    return silu(accum) * up


@epilogue_function
def _gated_with_slopes(accum: Any, up: TensorOf) -> Any:
    share, activated = sigmoid(accum), silu(accum)
    return {"D": activated * up, "of_gate": (share + accum * share * (1 - share)) * up, "of_up": activated}


def _swiglu(input: Tensor, gate_weight: Tensor, up_weight: Tensor, *, out: list[Tensor] | None = None) -> Any:
    shape = _shape(input, gate_weight, up_weight)
    rows = rows_of(plain(input))
    up = matmul(rows, plain(up_weight).T, allow_copy=True)
    gate = plain(gate_weight).T
    into = None if out is None else rows_of(out[0])
    if not takes_functions(rows):
        activated = matmul(rows, gate, epilogue=silu, allow_copy=True)
        return torch.mul(activated, up, out=into).view(shape)
    made = matmul(rows, gate, epilogue=_gated, epilogue_inputs={"up": up}, out=into, allow_copy=True)
    return made.view(shape)


def _expected(input: Tensor, gate_weight: Tensor, up_weight: Tensor) -> list[Expected]:
    return [Expected("", _shape(input, gate_weight, up_weight), result_dtype("input", input.dtype))]


def _fake(input: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Tensor:
    return input.new_empty(_shape(input, gate_weight, up_weight), dtype=result_dtype("input", input.dtype))


def _swiglu_with_slopes(
    input: Tensor, gate_weight: Tensor, up_weight: Tensor, *, out: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    shape = _shape(input, gate_weight, up_weight)
    rows = rows_of(plain(input))
    up = matmul(rows, plain(up_weight).T, allow_copy=True)
    gate = plain(gate_weight).T
    if not takes_functions(rows):
        sums = matmul(rows, gate, allow_copy=True)
        activated = functional.silu(sums)
        found = activated * up, gradient_of_silu(up, sums), activated
        first, second, third = (each.view(shape) for each in found)
        return (first, second, third) if out is None else copied_to(out, first, second, third)
    into = None if out is None else rows_of(out[0])
    of_gate, of_up = (torch.empty_like(up) for _ in range(2)) if out is None else map(rows_of, out[1:])
    inputs = {"up": up, "of_gate": of_gate, "of_up": of_up}
    made = matmul(rows, gate, epilogue=_gated_with_slopes, epilogue_inputs=inputs, out=into, allow_copy=True)
    return made.view(shape), of_gate.view(shape), of_up.view(shape)


def _expected_with_slopes(input: Tensor, gate_weight: Tensor, up_weight: Tensor) -> list[Expected]:
    return 3 * _expected(input, gate_weight, up_weight)


def _fake_with_slopes(input: Tensor, gate_weight: Tensor, up_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape, dtype = _shape(input, gate_weight, up_weight), result_dtype("input", input.dtype)
    return input.new_empty(shape, dtype=dtype), input.new_empty(shape, dtype=dtype), input.new_empty(shape, dtype=dtype)


def _shape(input: Tensor, gate_weight: Tensor, up_weight: Tensor) -> tuple[Any, ...]:
    """Return the shape of the result, or raise ArgumentError where weights do not fit."""
    for name, weight in (("gate_weight", gate_weight), ("up_weight", up_weight)):
        check_matrix(name, weight)
        check_equal_types(input, weight, ("input", name))
    if not input.dtype.is_floating_point:
        raise ArgumentError(f"input is of {input.dtype}, and a gate is computed in fractions: convert it")
    if gate_weight.shape != up_weight.shape:
        raise ArgumentError(
            f"gate_weight of shape {tuple(gate_weight.shape)} and up_weight of shape {tuple(up_weight.shape)} must "
            f"have the same shape"
        )
    return product_shape(input, gate_weight.T, ("input", "gate_weight.T"))


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Any:
        with below_autograd():
            output, of_gate, of_up = SWIGLU_WITH_SLOPES(input, gate_weight, up_weight)
        ctx.save_for_backward(input, gate_weight, up_weight, of_gate, of_up)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, gate_weight, up_weight, of_gate, of_up = ctx.saved_tensors
        if torch.is_grad_enabled():  # the slopes are no constants where backward is to be differentiated
            gate, up = LINEAR(input, gate_weight), LINEAR(input, up_weight)
            gate, up = gradient_of_silu(grad * up, gate), grad * functional.silu(gate)
        else:
            gate, up = grad * of_gate, grad * of_up
        gate, up = (rows_of(each) for each in (gate, up))
        rows = rows_of(input)
        of_input = of_gate_weight = of_up_weight = None
        if ctx.needs_input_grad[0]:  # the second product adds the first
            of_input = ADDMM(MATMUL(up, up_weight), gate, gate_weight).view(input.shape)
        if ctx.needs_input_grad[1]:
            of_gate_weight = MATMUL(gate.T, rows)
        if ctx.needs_input_grad[2]:
            of_up_weight = MATMUL(up.T, rows)
        return of_input, of_gate_weight, of_up_weight


SWIGLU = define("swiglu(Tensor input, Tensor gate_weight, Tensor up_weight) -> Tensor", _swiglu, _fake, repeats=True)
SWIGLU_WITH_SLOPES = define(
    "swiglu_with_slopes(Tensor input, Tensor gate_weight, Tensor up_weight) -> (Tensor, Tensor, Tensor)",
    _swiglu_with_slopes,
    _fake_with_slopes,
    repeats=True,
)
define_outs(SWIGLU, _swiglu, _expected)
define_outs(SWIGLU_WITH_SLOPES, _swiglu_with_slopes, _expected_with_slopes, ("out", "of_gate", "of_up"))
without_gradient(SWIGLU_WITH_SLOPES)
differentiable(SWIGLU, _SwiGLU, lambda input, gate_weight, up_weight: (input, gate_weight, up_weight))
