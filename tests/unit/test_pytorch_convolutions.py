"""Operators of torch for convolutions: what they compute, gradients of gradients, and the kernels that are lacking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from marks import thorough_but
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional, grad
from torch_operators import ACTIVATIONS, numbers, ops, passes_opcheck

from pycutlass.errors import ArgumentError


@dataclass(frozen=True)
class Case:
    """A convolution of images of 5 x 6."""

    channels: int
    filters: int
    groups: int = 1
    taps: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def geometry(self) -> tuple[Any, ...]:
        return list(self.stride), list(self.padding), list(self.dilation), self.groups

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, bias = numbers(2, self.channels, 5, 6, dtype=dtype), numbers(self.filters, dtype=dtype)
        return x, numbers(self.filters, self.channels // self.groups, *self.taps, dtype=dtype), bias

    def __str__(self) -> str:
        return "-".join(str(each) for each in vars(self).values())


CASES = [
    Case(2, 4),
    Case(3, 4, stride=(2, 2)),
    Case(4, 4, groups=2, padding=(0, 1)),
    Case(4, 4, groups=4, stride=(2, 1)),
    Case(3, 4, stride=(2, 2), padding=(2, 2), dilation=(2, 2)),
    Case(3, 4, taps=(1, 1), padding=(0, 0)),
    Case(2, 2, taps=(3, 1), stride=(2, 1), padding=(1, 0)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d(case: Case) -> None:
    x, weight, bias = case.tensors()
    made = ops.conv2d(x, weight, bias, *case.geometry)
    torch.testing.assert_close(made, functional.conv2d(x, weight, bias, *case.geometry))
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert gradcheck(lambda *tensors: ops.conv2d(*tensors, *case.geometry), (x, weight, bias))
    assert gradgradcheck(lambda *tensors: ops.conv2d(*tensors, *case.geometry), (x, weight, bias), fast_mode=True)
    assert passes_opcheck(ops.conv2d.default, x, weight, bias, *case.geometry)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_operators(case: Case) -> None:
    x, weight, _ = case.tensors()
    dy = functional.conv2d(x, weight, None, *case.geometry).detach().requires_grad_()
    of_input = ops.conv2d_input(x.shape, weight, dy, *case.geometry)
    of_weight = ops.conv2d_weight(x, weight.shape, dy, *case.geometry)
    torch.testing.assert_close(of_input, grad.conv2d_input(x.shape, weight, dy, *case.geometry))
    torch.testing.assert_close(of_weight, grad.conv2d_weight(x, weight.shape, dy, *case.geometry))
    for made in (of_input, of_weight):
        assert made.is_contiguous(memory_format=torch.channels_last)
    assert passes_opcheck(ops.conv2d_input.default, list(x.shape), weight, dy, *case.geometry)
    assert passes_opcheck(ops.conv2d_weight.default, x, list(weight.shape), dy, *case.geometry)


@pytest.mark.parametrize("activation", thorough_but(("relu", "gelu"), [each for each in ACTIVATIONS if each]))
def test_activations(activation: str) -> None:
    case = CASES[0]
    x, weight, bias = case.tensors()
    for given in (bias, None):
        exact = ACTIVATIONS[activation](functional.conv2d(x, weight, given, *case.geometry))

        def computed(*tensors: Any) -> Any:
            return ops.conv2d(*tensors, *case.geometry, activation)

        torch.testing.assert_close(computed(x, weight, given), exact)
        assert gradcheck(computed, (x, weight, given))
    assert passes_opcheck(ops.conv2d.default, x, weight, bias, *case.geometry, activation)


def test_the_slope_is_an_operator_of_its_own() -> None:
    case = CASES[1]
    x, weight, bias = (each.detach() for each in case.tensors())
    t = functional.conv2d(x, weight, bias, *case.geometry).requires_grad_()
    exact = functional.gelu(t)
    output, slope = ops.conv2d_with_slope(x, weight, bias, *case.geometry, "gelu")
    torch.testing.assert_close(output, exact)
    torch.testing.assert_close(slope, torch.autograd.grad(exact.sum(), t)[0])
    assert passes_opcheck(ops.conv2d_with_slope.default, x, weight, bias, *case.geometry, "gelu")
    with pytest.raises(ArgumentError, match=r"conv2d_with_slope is for 'gelu', .* call conv2d"):
        ops.conv2d_with_slope(x, weight, bias, *case.geometry, "tanh")


# Types below float64 have no kernel for some strides, nor for the slope in float32 and in groups.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_other_types(case: Case, dtype: torch.dtype) -> None:
    given = case.tensors(dtype)
    exact = [each.detach().double().requires_grad_() for each in given]
    made = ops.conv2d(*given, *case.geometry, "gelu")
    wanted = functional.gelu(functional.conv2d(*exact, *case.geometry))
    dy = numbers(*made.shape, dtype=dtype).detach()
    rounding = 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(made.double(), wanted, rtol=rounding, atol=rounding)
    found = torch.autograd.grad(made, given, dy)
    for ours, theirs in zip(found, torch.autograd.grad(wanted, exact, dy.double()), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=rounding, atol=4 * rounding)


@pytest.mark.parametrize("shape", [(0, 4, 5, 6), (1, 4, 5, 6), (2, 4, 3, 3), (2, 1, 3, 3)], ids=str)
def test_memory_of_odd_images(shape: tuple[int, ...]) -> None:
    """Where an extent is 1 or 0, other strides mean the same; what torch traces has those that kernels write."""
    x, weight = numbers(*shape), numbers(1, shape[1], 3, 3)
    assert ops.conv2d(x, weight).shape == functional.conv2d(x, weight).shape
    assert passes_opcheck(ops.conv2d.default, x, weight)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_that_do_not_fit_are_called_as_torch_calls_them(device: str) -> None:
    def made(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    refused = {
        r"input must have four dimensions, \(N, C, H, W\); got shape \(4, 5, 5\)": (made(4, 5, 5), made(4, 4, 3, 3)),
        r"weight of shape \(4, 3, 3, 3\) do not fit groups=1": (made(1, 4, 5, 5), made(4, 3, 3, 3)),
        r"with padding=\(0, 0\) is smaller than weight": (made(1, 4, 2, 5), made(4, 4, 3, 3)),
        r"bias must be of \(4,\), a number for each column of the result; got shape \(3,\)": (
            made(1, 4, 5, 5),
            made(4, 4, 3, 3),
            made(3),
        ),
        r"input is float32 and weight is float16": (made(1, 4, 5, 5), made(4, 4, 3, 3).half()),
    }
    for message, tensors in refused.items():
        with pytest.raises(ArgumentError, match=message):
            ops.conv2d(*tensors)
    geometries: dict[str, tuple[Any, ...]] = {
        r"stride must be two integers of 1 or more, got \(0, 1\)": ((0, 1),),
        r"padding must be two integers of 0 or more, got \(1, -1\)": ((1, 1), (1, -1)),
        r"dilation must be two integers of 1 or more, got \(0, 0\)": ((1, 1), (0, 0), (0, 0)),
        r"dilation must be two integers of 1 or more, got \(1, 1, 1\)": ((1, 1), (0, 0), (1, 1, 1)),
        "groups must be 1 or more, got 0": ((1, 1), (0, 0), (1, 1), 0),
    }
    for message, geometry in geometries.items():
        with pytest.raises(ArgumentError, match=message):
            ops.conv2d(made(1, 4, 5, 5), made(4, 4, 3, 3), None, *geometry)
    with pytest.raises(ArgumentError, match=r"grad_output must be of \(1, 4, 3, 3\), the output of such a convolution"):
        ops.conv2d_input((1, 4, 5, 5), made(4, 4, 3, 3), made(1, 4, 2, 3))
    # Of an odd number of channels, for whose gradients no kernel has a stride.
    with pytest.raises(ArgumentError, match=r"grad_output must be of \(1, 3, 2, 2\), the output of such a convolution"):
        ops.conv2d_input((1, 3, 5, 5), made(3, 3, 3, 3).half(), made(1, 3, 4, 2).half(), (2, 2))
    with pytest.raises(ArgumentError, match=r"stride must be two integers of 1 or more, got \(2, 0\)"):
        ops.conv2d_input((1, 3, 5, 5), made(3, 3, 3, 3).half(), made(1, 3, 2, 2).half(), (2, 0))
    with pytest.raises(ArgumentError, match=r"grad_output must be of \(1, 4, 3, 3\), the output of such a convolution"):
        ops.conv2d_weight(made(1, 4, 5, 5), (4, 4, 3, 3), made(1, 4, 2, 3))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_there_may_be_no_images(dtype: torch.dtype, activation: str) -> None:
    given = numbers(0, 2, 6, 5, dtype=dtype), numbers(4, 2, 3, 3, dtype=dtype), numbers(4, dtype=dtype)
    made = ops.conv2d(*given, [1, 1], [1, 1], [1, 1], 1, activation)
    assert made.shape == (0, 4, 6, 5)
    for gradient, each in zip(torch.autograd.grad(made.sum(), given), given, strict=True):
        torch.testing.assert_close(gradient, torch.zeros_like(each))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_swapped_operands_of_gradients_are_said(device: str) -> None:
    x, weight, dy = (torch.ones(shape, device=device) for shape in ((1, 3, 5, 5), (4, 3, 3, 3), (1, 4, 3, 3)))
    with pytest.raises(
        ArgumentError, match=r"input of shape \(1, 4, 3, 3\) and weight_size \(4, 3, 3, 3\).* swap input"
    ):
        ops.conv2d_weight(dy, weight.shape, x)
    with pytest.raises(
        ArgumentError, match=r"input_size \(1, 3, 5, 5\) .* weight of shape \(1, 4, 3, 3\).* swap weight"
    ):
        ops.conv2d_input(x.shape, dy, weight)
    with pytest.raises(ArgumentError, match=r"weight_size must have four dimensions, .*; got \(4, 3, 3\)$"):
        ops.conv2d_weight(x, (4, 3, 3), dy)
    with FakeTensorMode() as mode, pytest.raises(ArgumentError, match="swap input and grad_output"):
        ops.conv2d_weight(mode.from_tensor(dy), weight.shape, mode.from_tensor(x))
