"""Operands of a convolution that do not fit each other: the message begins with what fits, and what to pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass.errors import ArgumentError

F32 = np.float32
RNG = np.random.default_rng(0)
X, W, GRAD = (RNG.integers(-2, 3, shape).astype(F32) for shape in ((2, 9, 7, 8), (16, 3, 3, 8), (2, 7, 5, 16)))
CHANNELS_FIRST = (0, 3, 1, 2)


def first(array: Any) -> Any:
    """Return an array as (N, C, H, W), packed."""
    return np.ascontiguousarray(array.transpose(CHANNELS_FIRST))


def of_torch(array: Any) -> Any:
    """Return a tensor of torch's order of dimensions and of kernels' order in memory."""
    return torch.from_numpy(array).permute(CHANNELS_FIRST)


def said(call: Callable[[], Any]) -> str:
    with pytest.raises(ArgumentError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (X, first(W)),
        (first(X), W),
        (first(X), first(W)),
        (of_torch(X), torch.from_numpy(W)),
        (torch.from_numpy(X), of_torch(W)),
        (torch.from_numpy(X), torch.from_numpy(W)),
    ],
)
def test_another_order_of_dimensions_is_told_first_and_fits(x: Any, w: Any) -> None:
    message = said(lambda: pycutlass.conv2d(x, w))
    what, remedy = re.match(r"(.*): pass (.*?)\. As given, w must have the channels of x", message).groups()
    for code in remedy.split(" and "):
        name = re.search(r"[xw]", code.removeprefix("np.ascontiguousarray"))[0]
        assert f"{name} of {tuple({'x': x, 'w': w}[name].shape)} is read as" in what
        found = eval(code, {"np": np, "x": x, "w": w})
        x, w = (found, w) if name == "x" else (x, found)
    got = pycutlass.conv2d(x, w)
    got = got.permute(0, 2, 3, 1).numpy() if isinstance(got, torch.Tensor) else got
    np.testing.assert_array_equal(got, pycutlass.conv2d(X, W))


def test_shapes_come_before_strides() -> None:
    x, w = torch.from_numpy(first(X)), torch.from_numpy(first(W))
    assert said(lambda: pycutlass.conv2d(x, w[:, :3])).startswith("w must have the channels of x, 8")
    assert "channels_last" in said(lambda: pycutlass.conv2d(x, w))


def test_an_operand_that_reads_either_way_is_named() -> None:
    x, w = np.ones((2, 3, 9, 7), F32), np.ones((16, 3, 3, 3), F32)
    assert "pass np.ascontiguousarray(x.transpose(0, 2, 3, 1)). w reads either way" in said(
        lambda: pycutlass.conv2d(x, w)
    )


@pytest.mark.parametrize("groups", [1, 3])
def test_groups_that_fit_are_named(groups: int, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr("pycutlass.log._said", set())
    message = said(lambda: pycutlass.conv2d(X, W[..., :2].copy(), groups=groups))
    assert message.startswith("the filter has 2 of 8 channels: pass groups=4.")
    assert not [each for each in caplog.records if "is ignored" in each.message], "of what nobody asked for"
    assert pycutlass.conv2d(X, W[..., :2].copy(), groups=4).shape == (2, 7, 5, 16)


def test_what_nothing_near_would_fit_is_told_as_it_is() -> None:
    assert said(lambda: pycutlass.conv2d(X, W[..., :3].copy())) == (
        "w must have the channels of x, 8, divided by groups=1; got 3"
    )
    assert "was read as" not in said(lambda: pycutlass.conv2d(X, W, dilation=9))
    assert "exchanged" not in said(lambda: pycutlass.conv2d_weight(X, X, W.shape))


@pytest.mark.parametrize("library", [np.asarray, of_torch])
@pytest.mark.parametrize("groups", [1, 2])
def test_exchanged_operands_of_gradients_are_told(library: Callable[[Any], Any], groups: int) -> None:
    size = (16, 3, 3, 8 // groups)
    shape = size if library is np.asarray else (16, 8 // groups, 3, 3)
    x, grad = library(X), library(GRAD)
    message = said(lambda: pycutlass.conv2d_weight(x, grad, shape, groups=groups))
    assert message.startswith(f"grad of {tuple(x.shape)} and x of {tuple(grad.shape)} fit if they are exchanged: ")
    assert tuple(pycutlass.conv2d_weight(grad, x, shape, groups=groups).shape) == shape
    with pytest.raises(ArgumentError, match=r"a of .* and b of .* fit if they are exchanged"):
        pycutlass.Conv2d(x, grad, kind="wgrad", result_size=shape, groups=groups)
    assert "exchanged" in said(lambda: pycutlass.conv2d_input(W, GRAD, X.shape))


def test_a_size_in_another_order_is_told() -> None:
    message = said(lambda: pycutlass.conv2d_input(GRAD, W, (2, 8, 9, 7)))
    assert "input_size of (2, 8, 9, 7) is read as (N, H, W, C), and fits as (N, C, H, W)" in message
    assert "pass input_size=(2, 9, 7, 8)" in message
    assert pycutlass.conv2d_input(GRAD, W, (2, 9, 7, 8)).shape == X.shape
    message = said(lambda: pycutlass.conv2d_weight(of_torch(GRAD), of_torch(X), W.shape))
    assert "pass weight_size=(16, 8, 3, 3)" in message
    message = said(lambda: pycutlass.Conv2d(pycutlass.TensorSpec((2, 8, 9, 7), "float32"), W))
    assert "pass a TensorSpec of shape (2, 9, 7, 8) as a" in message
