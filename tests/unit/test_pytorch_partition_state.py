"""Partitions under another state than that of their capture: gradients, autocast, other types."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pycutlass import errors
from pycutlass.pytorch import Options, partition

Tensor = torch.Tensor
ALL = Options(min_gain=0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class PartlyWithoutGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            rows = 2 * x.shape[0]
            y = torch.tanh(self.first(x))
            z = self.second(x)
        return torch.relu(y * self.second(x) + self.first(x).detach()) + z * rows, y


def gradients(made: nn.Module, own: nn.Module, x: Tensor) -> list[Any]:
    given = x.clone().requires_grad_()
    first, second = made(given)
    assert first.requires_grad and not second.requires_grad
    return [*torch.autograd.grad(first.square().sum(), (given, *own.parameters()), allow_unused=True)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_end_where_the_model_has_none(dynamic: bool) -> None:
    model, x = PartlyWithoutGradients().double().eval(), some(4, 8)
    made = partition(model, x, dynamic=dynamic, options=ALL)
    assert made.counts == {"mm": 4}
    for got, expected in zip(gradients(made, model, x), gradients(model, model, x), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_program_stays_as_it_is() -> None:
    model, x = PartlyWithoutGradients().double().eval(), some(4, 8)
    program = torch.export.export(model, (x,))
    before = str(program.graph)
    made = partition(program, options=ALL)
    assert str(program.graph) == before
    torch.testing.assert_close(gradients(made, model, x), gradients(model, model, x))


@pytest.mark.parametrize("bias", [False, True])
def test_other_types_need_another_partition(bias: bool) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8, bias=bias), nn.ReLU()).eval().requires_grad_(False), torch.ones(4, 8)
    for dtype in (torch.bfloat16, torch.float64):
        made = partition(copy.deepcopy(model), x, options=ALL).to(dtype)
        with pytest.raises(errors.ArgumentError, match=r"was of torch\.float32 when .* partition it again"):
            made(x.to(dtype))


def test_autocast_is_that_of_the_capture() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval().requires_grad_(False), torch.randn(4, 8)
    apart = partition(model, x, options=ALL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = partition(model, x, options=ALL)
        for made in (apart, inside):
            got, expected = made(x), model(x)
            assert got.dtype is expected.dtype is torch.bfloat16
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    assert inside.regions[0].problem.a.dtype == "bfloat16"
    assert apart(x).dtype is torch.float32 and inside(x).dtype is torch.bfloat16
    inside.pycutlass_0.plain = None  # which is not called outside, where the casts are in the graph
    assert inside(x).dtype is torch.bfloat16


def test_devices_without_autocast() -> None:
    made = partition(nn.Linear(8, 8, device="meta").eval(), torch.empty(4, 8, device="meta"), options=ALL)
    assert made.counts == {"mm": 1}
    with torch.no_grad():
        assert made(torch.empty(4, 8, device="meta")).shape == (4, 8)
