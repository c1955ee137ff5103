"""Operators for convolutions of images, and for their gradients. All results are channels_last, as kernels write them.

Each of the three is the gradient of the others, so gradients of gradients are computed by them as well.
"""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.plan import convolutions
from pycutlass.pytorch.activations import activation_of, check_has_derivative, check_has_slope, of_sum, with_slope
from pycutlass.pytorch.images import Geometry, check_gradient, new_images, spread, takes_stride
from pycutlass.pytorch.operators import below_autograd, define, differentiable, plain, without_gradient
from pycutlass.pytorch.shapes import check_equal_types, result_dtype
from pycutlass.pytorch.targets import Expected, copied_to
from pycutlass.pytorch.variants import define_out, define_outs

__all__ = ["CONV2D", "CONV2D_INPUT", "CONV2D_WEIGHT"]

Tensor = torch.Tensor
_GEOMETRY = "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1"


def _options(given: tuple[Any, ...]) -> tuple[Geometry, str | None]:
    """Return what a convolution takes behind its tensors."""
    return Geometry(*given[:4]), given[4] if len(given) > 4 else None


def _conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, *given: Any, out: Tensor | None = None) -> Any:
    geometry, activation = _options(given)
    named, bias = activation_of(activation, input.dtype), plain(bias)
    options = {**geometry.options, "epilogue": None if named is None else named.kind, "out": out, "allow_copy": True}
    if named is not None and named.is_function:
        options["epilogue"] = of_sum(str(activation), None if bias is None else "bias")
        options["epilogue_inputs"] = None if bias is None else {"bias": bias.contiguous()}
        bias = None
    return convolutions.conv2d(plain(input), plain(weight), bias=bias, **options)


def _fake_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, *given: Any) -> Tensor:
    geometry, activation = _options(given)
    activation_of(activation, input.dtype)
    check_equal_types(input, weight, ("input", "weight"))
    dtype = result_dtype("input", input.dtype)
    return new_images(input, geometry.output(input.shape, weight.shape, bias, dtype), dtype)


def _conv2d_with_slope(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    name: str,
    *,
    out: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    named = check_has_slope("conv2d", name)
    geometry, bias = Geometry(stride, padding, dilation, groups), plain(bias)
    dtype = result_dtype("input", input.dtype)
    # Kernels for several groups, or for float32 on CUDA cores, take no epilogue function.
    if geometry.groups != 1 or input.dtype is torch.float32:
        pixels = _conv2d(input, weight, bias, *geometry.given).permute(0, 2, 3, 1)
        output, slope = (each.permute(0, 3, 1, 2) for each in named.applied(pixels))
        return (output, slope) if out is None else copied_to(out, output, slope)
    shape = geometry.output(input.shape, weight.shape, bias, dtype)
    into, slope = (None, new_images(input, shape, dtype)) if out is None else out
    inputs = {"slope": slope} if bias is None else {"slope": slope, "bias": bias.contiguous()}
    epilogue = with_slope(name, None if bias is None else "bias")
    options = {**geometry.options, "epilogue": epilogue, "epilogue_inputs": inputs}
    return convolutions.conv2d(plain(input), plain(weight), out=into, allow_copy=True, **options), slope


def _fake_with_slope(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: Any, name: str
) -> tuple[Tensor, Tensor]:
    one, other = _expected_with_slope(input, weight, bias, stride, padding, dilation, groups, name)
    return new_images(input, one.shape, one.dtype), new_images(input, other.shape, other.dtype)


def _expected_with_slope(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: Any, name: str
) -> list[Expected]:
    check_has_slope("conv2d", name)
    check_equal_types(input, weight, ("input", "weight"))
    dtype = result_dtype("input", input.dtype)
    shape = Geometry(stride, padding, dilation, groups).output(input.shape, weight.shape, bias, dtype)
    return 2 * [Expected("", shape, dtype, is_images=True)]


def _conv2d_input(input_size: Any, weight: Tensor, grad_output: Tensor, *given: Any, out: Tensor | None = None) -> Any:
    geometry, grad = Geometry(*given), plain(grad_output)
    size = tuple(int(each) for each in input_size)
    _check_gradient(size, weight, grad, geometry)  # pixels are spread by shapes that fit
    if not takes_stride(geometry, size, weight):
        grad, geometry = spread(geometry, size, weight.shape, grad)
    return convolutions.conv2d_input(grad, plain(weight), size, **geometry.options, out=out, allow_copy=True)


def _fake_conv2d_input(input_size: Any, weight: Tensor, grad_output: Tensor, *given: Any) -> Tensor:
    _check_gradient(input_size, weight, grad_output, Geometry(*given))
    return new_images(grad_output, tuple(input_size), result_dtype("grad_output", grad_output.dtype))


def _check_gradient(input_size: Any, weight: Tensor, grad_output: Tensor, geometry: Geometry) -> None:
    """Raise ArgumentError unless a gradient is that of the output of such a convolution."""
    check_equal_types(grad_output, weight, ("grad_output", "weight"))
    names = ("input_size", "weight of shape")
    check_gradient(geometry, input_size, weight.shape, grad_output, names, swapped="weight")


def _conv2d_weight(input: Tensor, weight_size: Any, grad_output: Tensor, *given: Any, out: Tensor | None = None) -> Any:
    size, options = tuple(int(each) for each in weight_size), Geometry(*given).options
    return convolutions.conv2d_weight(plain(grad_output), plain(input), size, **options, out=out, allow_copy=True)


def _fake_conv2d_weight(input: Tensor, weight_size: Any, grad_output: Tensor, *given: Any) -> Tensor:
    check_equal_types(grad_output, input, ("grad_output", "input"))
    names = ("input of shape", "weight_size")
    check_gradient(Geometry(*given), input.shape, weight_size, grad_output, names, swapped="input")
    return new_images(grad_output, tuple(weight_size), result_dtype("grad_output", grad_output.dtype))


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, activation: str | None
    ) -> Any:
        check_has_derivative(activation)
        named, kept = activation_of(activation), None
        with below_autograd():
            if named is not None and named.slope is not None:
                output, kept = CONV2D_WITH_SLOPE(input, weight, bias, *geometry.given, activation)
            else:
                output = CONV2D(input, weight, bias, *geometry.given, activation)
                kept = None if named is None else output
        ctx.named, ctx.geometry = named, geometry
        ctx.save_for_backward(input, weight, bias, kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, weight, bias, kept = ctx.saved_tensors
        given = ctx.geometry.given
        if ctx.named is not None:
            grad = ctx.named.gradient(grad, kept, lambda: CONV2D(input, weight, bias, *given))
        of_input = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_input = CONV2D_INPUT(input.shape, weight, grad, *given)
        if ctx.needs_input_grad[1]:
            of_weight = CONV2D_WEIGHT(input, weight.shape, grad, *given)
        if ctx.needs_input_grad[2]:
            of_bias = grad.sum((0, 2, 3))
        return of_input, of_weight, of_bias, None, None


class _Conv2dInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_size: Any, weight: Tensor, grad_output: Tensor, geometry: Geometry) -> Any:
        ctx.given = geometry.given
        ctx.save_for_backward(weight, grad_output)
        with below_autograd():
            return CONV2D_INPUT(input_size, weight, grad_output, *geometry.given)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        weight, grad_output = ctx.saved_tensors
        of_weight = of_grad = None
        if ctx.needs_input_grad[1]:
            of_weight = CONV2D_WEIGHT(grad, weight.shape, grad_output, *ctx.given)
        if ctx.needs_input_grad[2]:
            of_grad = CONV2D(grad, weight, None, *ctx.given)
        return None, of_weight, of_grad, None


class _Conv2dWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight_size: Any, grad_output: Tensor, geometry: Geometry) -> Any:
        ctx.given = geometry.given
        ctx.save_for_backward(input, grad_output)
        with below_autograd():
            return CONV2D_WEIGHT(input, weight_size, grad_output, *geometry.given)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, grad_output = ctx.saved_tensors
        of_input = of_grad = None
        if ctx.needs_input_grad[0]:
            of_input = CONV2D_INPUT(input.shape, grad, grad_output, *ctx.given)
        if ctx.needs_input_grad[2]:
            of_grad = CONV2D(input, grad, None, *ctx.given)
        return of_input, None, of_grad, None


CONV2D = define(
    f"conv2d(Tensor input, Tensor weight, Tensor? bias=None, {_GEOMETRY}, str? activation=None) -> Tensor",
    _conv2d,
    _fake_conv2d,
    repeats=True,
)
CONV2D_WITH_SLOPE = define(
    "conv2d_with_slope(Tensor input, Tensor weight, Tensor? bias, SymInt[2] stride, SymInt[2] padding, "
    "SymInt[2] dilation, SymInt groups, str activation) -> (Tensor, Tensor)",
    _conv2d_with_slope,
    _fake_with_slope,
    repeats=True,
)
CONV2D_INPUT = define(
    f"conv2d_input(SymInt[] input_size, Tensor weight, Tensor grad_output, {_GEOMETRY}) -> Tensor",
    _conv2d_input,
    _fake_conv2d_input,
    repeats=True,
)
CONV2D_WEIGHT = define(
    f"conv2d_weight(Tensor input, SymInt[] weight_size, Tensor grad_output, {_GEOMETRY}) -> Tensor",
    _conv2d_weight,
    _fake_conv2d_weight,
    repeats=True,
)
define_out(CONV2D, _conv2d, _fake_conv2d, "input")
define_out(CONV2D_INPUT, _conv2d_input, _fake_conv2d_input, "weight")
define_out(CONV2D_WEIGHT, _conv2d_weight, _fake_conv2d_weight, "input")
define_outs(CONV2D_WITH_SLOPE, _conv2d_with_slope, _expected_with_slope, ("out", "slope"))
without_gradient(CONV2D_WITH_SLOPE)
differentiable(CONV2D, _Conv2d, lambda input, weight, bias=None, *given: (input, weight, bias, *_options(given)))
differentiable(CONV2D_INPUT, _Conv2dInput, lambda size, weight, grad, *given: (size, weight, grad, Geometry(*given)))
differentiable(CONV2D_WEIGHT, _Conv2dWeight, lambda input, size, grad, *given: (input, size, grad, Geometry(*given)))
