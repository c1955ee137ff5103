"""Operators for convolutions of images, and for their gradients. All results are channels_last, as kernels write them.

Each of the three is the gradient of the others, so gradients of gradients are computed by them as well.
"""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.plan import convolutions
from pycutlass.pytorch.activations import activation_of, check_has_slope, with_slope
from pycutlass.pytorch.images import Geometry, check_images, new_images, spread, takes_stride
from pycutlass.pytorch.operators import below_autograd, define, differentiable, plain, without_gradient
from pycutlass.pytorch.shapes import check_equal_types, result_dtype

__all__ = ["CONV2D", "CONV2D_INPUT", "CONV2D_WEIGHT"]

Tensor = torch.Tensor
_GEOMETRY = "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1"


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: Any = 1,
    activation: str | None = None,
) -> Any:
    named = activation_of(activation)
    options = Geometry(stride, padding, dilation, groups).options
    options |= {"bias": plain(bias), "epilogue": None if named is None else named.kind}
    return convolutions.conv2d(plain(input), plain(weight), allow_copy=True, **options)


def _fake_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: Any = 1,
    activation: str | None = None,
) -> Tensor:
    activation_of(activation)
    check_equal_types(input, weight, ("input", "weight"))
    shape = Geometry(stride, padding, dilation, groups).output(input.shape, weight.shape, bias)
    return new_images(input, shape, result_dtype("input", input.dtype))


def _conv2d_with_slope(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    activation: str,
) -> tuple[Tensor, Tensor]:
    check_has_slope("conv2d", activation)
    geometry, bias = Geometry(stride, padding, dilation, groups), plain(bias)
    slope = new_images(input, geometry.output(input.shape, weight.shape, bias), input.dtype)
    inputs = {"slope": slope} if bias is None else {"slope": slope, "bias": bias.contiguous()}
    epilogue = with_slope(activation, None if bias is None else "bias")
    options = {**geometry.options, "epilogue": epilogue, "epilogue_inputs": inputs}
    return convolutions.conv2d(plain(input), plain(weight), allow_copy=True, **options), slope


def _fake_with_slope(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    activation: str,
) -> tuple[Tensor, Tensor]:
    check_has_slope("conv2d", activation)
    check_equal_types(input, weight, ("input", "weight"))
    shape = Geometry(stride, padding, dilation, groups).output(input.shape, weight.shape, bias)
    return new_images(input, shape, input.dtype), new_images(input, shape, input.dtype)


def _conv2d_input(
    input_size: Any,
    weight: Tensor,
    grad_output: Tensor,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: Any = 1,
) -> Any:
    geometry, grad = Geometry(stride, padding, dilation, groups), plain(grad_output)
    if not takes_stride(geometry, input_size, weight):
        grad, geometry = spread(geometry, input_size, weight.shape, grad)
    size = tuple(int(each) for each in input_size)
    return convolutions.conv2d_input(grad, plain(weight), size, **geometry.options, allow_copy=True)


def _fake_conv2d_input(
    input_size: Any,
    weight: Tensor,
    grad_output: Tensor,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: Any = 1,
) -> Tensor:
    check_equal_types(grad_output, weight, ("grad_output", "weight"))
    shape = Geometry(stride, padding, dilation, groups).output(input_size, weight.shape, None)
    check_images("grad_output", grad_output, shape)
    return new_images(grad_output, tuple(input_size), result_dtype("grad_output", grad_output.dtype))


def _conv2d_weight(
    input: Tensor,
    weight_size: Any,
    grad_output: Tensor,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: Any = 1,
) -> Any:
    geometry = Geometry(stride, padding, dilation, groups)
    size = tuple(int(each) for each in weight_size)
    return convolutions.conv2d_weight(plain(grad_output), plain(input), size, **geometry.options, allow_copy=True)


def _fake_conv2d_weight(
    input: Tensor,
    weight_size: Any,
    grad_output: Tensor,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: Any = 1,
) -> Tensor:
    check_equal_types(grad_output, input, ("grad_output", "input"))
    shape = Geometry(stride, padding, dilation, groups).output(input.shape, weight_size, None)
    check_images("grad_output", grad_output, shape)
    return new_images(grad_output, tuple(weight_size), result_dtype("grad_output", grad_output.dtype))


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: tuple[Any, ...], activation: str | None
    ) -> Any:
        named, kept = activation_of(activation), None
        with below_autograd():
            # Kernels for several groups, or for float32 on CUDA cores, take no epilogue function: where they compute,
            # backward convolves again for the slope.
            takes_function = geometry[3] == 1 and input.dtype is not torch.float32
            if named is not None and named.slope is not None and takes_function:
                output, kept = CONV2D_WITH_SLOPE(input, weight, bias, *geometry, activation)
            else:
                output = CONV2D(input, weight, bias, *geometry, activation)
                kept = None if named is None or named.slope is not None else output
        ctx.named, ctx.geometry = named, geometry
        ctx.save_for_backward(input, weight, bias, kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, weight, bias, kept = ctx.saved_tensors
        if ctx.named is not None:
            grad = ctx.named.gradient(grad, kept, lambda: CONV2D(input, weight, bias, *ctx.geometry))
        of_input = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_input = CONV2D_INPUT(input.shape, weight, grad, *ctx.geometry)
        if ctx.needs_input_grad[1]:
            of_weight = CONV2D_WEIGHT(input, weight.shape, grad, *ctx.geometry)
        if ctx.needs_input_grad[2]:
            of_bias = grad.sum((0, 2, 3))
        return of_input, of_weight, of_bias, None, None


class _Conv2dInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_size: Any, weight: Tensor, grad_output: Tensor, geometry: tuple[Any, ...]) -> Any:
        ctx.geometry = geometry
        ctx.save_for_backward(weight, grad_output)
        with below_autograd():
            return CONV2D_INPUT(input_size, weight, grad_output, *geometry)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        weight, grad_output = ctx.saved_tensors
        of_weight = of_grad = None
        if ctx.needs_input_grad[1]:
            of_weight = CONV2D_WEIGHT(grad, weight.shape, grad_output, *ctx.geometry)
        if ctx.needs_input_grad[2]:
            of_grad = CONV2D(grad, weight, None, *ctx.geometry)
        return None, of_weight, of_grad, None


class _Conv2dWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight_size: Any, grad_output: Tensor, geometry: tuple[Any, ...]) -> Any:
        ctx.geometry = geometry
        ctx.save_for_backward(input, grad_output)
        with below_autograd():
            return CONV2D_WEIGHT(input, weight_size, grad_output, *geometry)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, grad_output = ctx.saved_tensors
        of_input = of_grad = None
        if ctx.needs_input_grad[0]:
            of_input = CONV2D_INPUT(input.shape, grad, grad_output, *ctx.geometry)
        if ctx.needs_input_grad[2]:
            of_grad = CONV2D(input, grad, None, *ctx.geometry)
        return of_input, None, of_grad, None


CONV2D = define(
    f"conv2d(Tensor input, Tensor weight, Tensor? bias=None, {_GEOMETRY}, str? activation=None) -> Tensor",
    _conv2d,
    _fake_conv2d,
)
CONV2D_WITH_SLOPE = define(
    "conv2d_with_slope(Tensor input, Tensor weight, Tensor? bias, SymInt[2] stride, SymInt[2] padding, "
    "SymInt[2] dilation, SymInt groups, str activation) -> (Tensor, Tensor)",
    _conv2d_with_slope,
    _fake_with_slope,
)
CONV2D_INPUT = define(
    f"conv2d_input(SymInt[] input_size, Tensor weight, Tensor grad_output, {_GEOMETRY}) -> Tensor",
    _conv2d_input,
    _fake_conv2d_input,
)
CONV2D_WEIGHT = define(
    f"conv2d_weight(Tensor input, SymInt[] weight_size, Tensor grad_output, {_GEOMETRY}) -> Tensor",
    _conv2d_weight,
    _fake_conv2d_weight,
)


def _as_pairs(stride: Any = (1, 1), padding: Any = (0, 0), dilation: Any = (1, 1), groups: Any = 1) -> tuple[Any, ...]:
    """Return a geometry with what torch's dispatcher leaves out, which are the defaults."""
    return stride, padding, dilation, groups


def _arranged(input: Tensor, weight: Tensor, bias: Tensor | None = None, *given: Any) -> tuple[Any, ...]:
    return input, weight, bias, _as_pairs(*given[:4]), given[4] if len(given) > 4 else None


without_gradient(CONV2D_WITH_SLOPE)
differentiable(CONV2D, _Conv2d, _arranged)
differentiable(CONV2D_INPUT, _Conv2dInput, lambda size, weight, grad, *given: (size, weight, grad, _as_pairs(*given)))
differentiable(CONV2D_WEIGHT, _Conv2dWeight, lambda input, size, grad, *given: (input, size, grad, _as_pairs(*given)))
