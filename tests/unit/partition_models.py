"""Small models with products, and how a partition is compared with its model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pycutlass.pytorch import Options, Partition, partition

Tensor = torch.Tensor


class Function(nn.Module):
    """A function of tensors as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class GatedMlp(nn.Module):
    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class TransformerBlock(nn.Module):
    """Attention that is written out, and a gated feed-forward layer, with norms and residuals."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp, self.heads = GatedMlp(width), heads

    def forward(self, x: Tensor) -> Any:
        batch, length, width = x.shape
        y, of_head = self.first(x), width // self.heads
        query, key, value = (
            layer(y).view(batch, length, self.heads, of_head).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = torch.softmax(query @ key.transpose(-2, -1) * of_head**-0.5, -1)
        x = x + self.out((scores @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


def _norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm whose statistics and weights are none of new ones."""
    norm = nn.BatchNorm2d(channels)
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


class BasicBlock(nn.Module):
    """The block of ResNet-18."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = _norm(channels), _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + x)


class Bottleneck(nn.Module):
    """The block of ResNet-50, with another width and a stride at its shortcut."""

    def __init__(self, channels: int = 8, width: int = 4) -> None:
        super().__init__()
        out = 2 * channels
        self.reduce, self.expand = nn.Conv2d(channels, width, 1, bias=False), nn.Conv2d(width, out, 1, bias=False)
        self.spread = nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False)
        self.shortcut = nn.Conv2d(channels, out, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(map(_norm, (width, width, out, out)))

    def forward(self, x: Tensor) -> Any:
        first, second, third, fourth = self.norms
        y = functional.relu(first(self.reduce(x)))
        y = functional.relu(second(self.spread(y)))
        return functional.relu(third(self.expand(y)) + fourth(self.shortcut(x)))


class Experts(nn.Module):
    """A mixture of experts with gates, whose products are groups that are made by `product`, as torch calls it."""

    def __init__(self, product: Callable[..., Any], width: int = 16, hidden: int = 32, experts: int = 4) -> None:
        super().__init__()
        self.product, self.experts = product, experts
        self.gate, self.up = (nn.Parameter(torch.randn(experts, hidden, width) / width**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, width, hidden) / hidden**0.5)
        self.router = nn.Linear(width, experts, bias=False)

    def forward(self, x: Tensor) -> Any:
        shares, chosen = self.router(x).float().softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        ends = (chosen.flatten()[:, None] == torch.arange(self.experts, device=x.device)).sum(0).cumsum(0).int()
        rows = x[order // 2]
        gate, up = (self.product(rows, each.mT, offs=ends) for each in (self.gate, self.up))
        made = self.product(functional.silu(gate) * up, self.down.mT, offs=ends)
        return torch.zeros_like(x).index_add(0, order // 2, made * shares.flatten()[order, None].to(x.dtype))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.first(x))) + x


class Counting(nn.Module):
    """A layer that counts its calls."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.calls.add_(1)
        return torch.tanh(self.layer(x)) * self.calls


ALL = Options(min_gain=0)
HALVES = (torch.float16, torch.bfloat16)


def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def compared(model: nn.Module, made: nn.Module, *inputs: Any) -> None:
    """Check that two models make the same of inputs, which they may change; of 16 bits torch rounds on the way."""
    tensors = (*inputs, *model.parameters())
    is_coarse = any(isinstance(each, Tensor) and each.dtype in HALVES for each in tensors)
    with torch.no_grad():
        results = []
        for each in (model, made):
            torch.manual_seed(1)
            results.append(each(*copy.deepcopy(inputs)))
    expected, got = (torch.utils._pytree.tree_leaves(each) for each in results)
    assert len(expected) == len(got)
    for x, y in zip(expected, got, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        tolerance = 2e-2 if is_coarse or x.dtype in HALVES else 1e-9 if x.dtype is torch.float64 else 1e-4
        torch.testing.assert_close(y, x, rtol=tolerance, atol=tolerance / 10)


def taken(model: Any, *inputs: Any, train: bool = False, **how: Any) -> Partition:
    """Return the partition of a model, in which all regions are taken, and which computes the same."""
    model = model if isinstance(model, nn.Module) else Function(model)
    model.train(train)
    made = partition(model, inputs, options=ALL, **how)
    compared(copy.deepcopy(model), made, *inputs)
    return made


def fused(made: Partition) -> list[tuple[str, ...]]:
    return [(region.product, *region.fused) for region in made.regions]
