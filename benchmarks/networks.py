"""The networks that `models` measures, written as one writes them in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Block", "Experts", "Mlp", "ResNet50"]


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Any) -> Any:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """A block of a transformer, without the attention kernel itself: what it returns stands in for it.

    RMS norm, the projections of queries, keys and values, and of the output; RMS norm, SwiGLU; a residual of each.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.norm_of_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        mixed = self.q(y) + self.k(y) * self.v(y)  # all three are read, and no attention takes time
        x = x + self.o(mixed)
        y = self.norm_of_mlp(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Experts(nn.Module):
    """A mixture of experts: the router's best `chosen` of them for each token, whose products are groups.

    Parameters
    ----------
    product : function
        Takes rows, weights of (experts, K, N) and the ends of groups, as ``torch.nn.functional.grouped_mm``.
    """

    def __init__(self, width: int, hidden: int, experts: int, chosen: int, product: Callable[..., Any]) -> None:
        super().__init__()
        self.router, self.chosen, self.experts = nn.Linear(width, experts, bias=False), chosen, experts
        self.gate, self.up = (nn.Parameter(torch.empty(experts, hidden, width)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(experts, width, hidden))
        for weight in (self.gate, self.up, self.down):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        self.product = product

    def forward(self, x: Any) -> Any:
        # In float32 whatever the rest is in: a token whose experts are others has another result.
        logits = functional.linear(x.float(), self.router.weight.float())
        shares, experts = logits.softmax(-1).topk(self.chosen)
        order = experts.flatten().argsort(stable=True)
        tokens = order // self.chosen
        # As bincount, whose extent is none that a graph knows.
        of_expert = experts.flatten().unsqueeze(1) == torch.arange(self.experts, device=x.device)
        offs = of_expert.sum(0).cumsum(0).to(torch.int32)
        rows = x[tokens]
        gate = self.product(rows, self.gate.mT, offs=offs)
        up = self.product(rows, self.up.mT, offs=offs)
        made = self.product(functional.silu(gate) * up, self.down.mT, offs=offs)
        return torch.zeros_like(x).index_add_(0, tokens, made * shares.flatten()[order].unsqueeze(-1).to(x.dtype))


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norms, a residual and ReLU."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride > 1 or channels != out
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """The residual network of 50 layers (He and others, 2015), with the stride in the 3x3 convolutions."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        layers, channels = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                layers.append(_Bottleneck(channels, width, stride if number == 0 else 1))
                channels = 4 * width
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(channels, classes)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layers(x).mean((2, 3)))
