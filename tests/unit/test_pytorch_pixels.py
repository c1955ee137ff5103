"""Regions of convolutions with filters of one pixel, which are products of pixels and filters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import pycutlass.pytorch


class Pointwise(nn.Module):
    def __init__(self, stride: int, padding: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 32, 1, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(32)
        nn.init.normal_(self.bn.running_mean)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.bn(self.conv(x)) + y)


@pytest.mark.parametrize(
    ("stride", "padding", "channels", "kind"), [(1, 0, 16, "mm"), (2, 0, 16, "conv2d"), (1, 1, 16, "conv2d"),
                                                (1, 0, 6, "conv2d")]
)  # fmt: skip
def test_which_are_products(stride: int, padding: int, channels: int, kind: str) -> None:
    torch.manual_seed(0)
    model = Pointwise(stride, padding, channels).eval().half().to(memory_format=torch.channels_last)
    x = torch.randn(2, channels, 6, 4).half().to(memory_format=torch.channels_last)
    with torch.no_grad():
        y = torch.randn_like(model.conv(x))
        made = pycutlass.pytorch.partition(model, (x, y), options={"min_gain": 0})
        found, wanted = made(x, y), model.double()(x.double(), y.double())
    (region,) = made.regions
    assert region.problem.kind == kind
    assert len(region.fused) >= 3  # batch norm, sum and activation
    if kind == "mm":
        assert region.problem.size == (48, 32, channels)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2, atol=1e-2)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_any_number_of_images() -> None:
    model = Pointwise(1, 0, 16).eval().half().to(memory_format=torch.channels_last)
    x, y = (torch.randn(3, c, 4, 4).half().to(memory_format=torch.channels_last) for c in (16, 32))
    count = torch.export.Dim("count", min=2, max=64)
    made = pycutlass.pytorch.partition(model, (x, y), dynamic=({0: count}, {0: count}), options={"min_gain": 0})
    (region,) = made.regions
    assert region.problem.kind == "mm"
    assert region.problem.bound(**{region.problem.symbols[0]: 5}).size == (80, 32, 16)
    with torch.no_grad():
        for n in (2, 7):
            given = torch.randn(n, 16, 4, 4).half(), torch.randn(n, 32, 4, 4).half()
            torch.testing.assert_close(made(*given), model(*given), rtol=1e-2, atol=1e-2)
