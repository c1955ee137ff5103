"""Small models of twenty architectures, at widths that are in use, for `zoo`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["IMAGES", "TOKENS"]


class _Residual(nn.Module):
    """What `inner` makes of its input, added to that."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


class _Attention(nn.Module):
    """Attention of several heads, of which some may share their keys and values."""

    def __init__(self, width: int, heads: int, of_keys: int | None = None, *, bias: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.of_keys, self.causal = heads, of_keys or heads, causal
        self.head = width // heads
        self.query, self.out = (nn.Linear(width, width, bias) for _ in range(2))
        self.key, self.value = (nn.Linear(width, self.of_keys * self.head, bias) for _ in range(2))

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        query = self.query(x).view(batch, length, self.heads, self.head).transpose(1, 2)
        key, value = (
            layer(x).view(batch, length, self.of_keys, self.head).transpose(1, 2) for layer in (self.key, self.value)
        )
        made = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=self.of_keys != self.heads
        )
        return self.out(made.transpose(1, 2).reshape(batch, length, width))


class _Gated(nn.Module):
    """A feed-forward layer with a gate."""

    def __init__(self, width: int, hidden: int, activation: Any) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down, self.activation = nn.Linear(hidden, width, bias=False), activation

    def forward(self, x: Any) -> Any:
        return self.down(self.activation(self.gate(x)) * self.up(x))


def _feed(width: int, activation: type[nn.Module] = nn.GELU, times: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, times * width), activation(), nn.Linear(times * width, width))


def _gpt() -> nn.Module:
    norms = nn.LayerNorm(1024), nn.LayerNorm(1024)
    return nn.Sequential(
        _Residual(norms[0], _Attention(1024, 16, bias=True, causal=True)), _Residual(norms[1], _feed(1024))
    )


def _bert() -> nn.Module:
    return nn.Sequential(
        _Residual(_Attention(768, 12, bias=True, causal=False)),
        nn.LayerNorm(768),
        _Residual(_feed(768)),
        nn.LayerNorm(768),
    )


def _llama() -> nn.Module:
    return nn.Sequential(
        _Residual(nn.RMSNorm(2048), _Attention(2048, 16, 4, bias=False, causal=True)),
        _Residual(nn.RMSNorm(2048), _Gated(2048, 5632, functional.silu)),
    )


def _t5() -> nn.Module:
    return nn.Sequential(
        _Residual(nn.RMSNorm(1024), _Attention(1024, 16, bias=False, causal=False)),
        _Residual(nn.RMSNorm(1024), _Gated(1024, 2816, functional.gelu)),
    )


class _Parallel(nn.Module):
    """A block whose attention and feed-forward layer read the same norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), _Attention(width, 16, 1, bias=False, causal=True)
        self.feed = _feed(width)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return x + self.attention(y) + self.feed(y)


class _Mixer(nn.Module):
    """A layer of MLP-Mixer: along tokens, and along channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.along_tokens, self.along_width = _feed(tokens), _feed(width)

    def forward(self, x: Any) -> Any:
        x = x + self.along_tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along_width(self.norms[1](x))


class _Vit(nn.Module):
    """A vision transformer of one layer, from its patches to classes."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.patches = nn.Linear(16 * 16 * 3, width)
        self.position = nn.Parameter(torch.randn(196, width) * 0.02)
        self.block, self.head = _bert_like(width), nn.Linear(width, 1000)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(self.patches(x) + self.position).mean(1))


def _bert_like(width: int) -> nn.Module:
    return nn.Sequential(
        _Residual(nn.LayerNorm(width), _Attention(width, width // 64, bias=True, causal=False)),
        _Residual(nn.LayerNorm(width), _feed(width)),
    )


class _Recommender(nn.Module):
    """DLRM's dense side: features and their interactions."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 512, 256, 128)
        self.bottom = nn.Sequential(*(_layer(a, b) for a, b in pairwise(sizes)))
        self.top = nn.Sequential(_layer(128 + 32 * 32, 1024), _layer(1024, 512), nn.Linear(512, 8))
        self.embedded = nn.Parameter(torch.randn(31, 128) * 0.1)

    def forward(self, x: Any) -> Any:
        dense = self.bottom(x)
        features = torch.cat([dense.unsqueeze(1), self.embedded.expand(len(x), -1, -1) * dense.unsqueeze(1)], 1)
        pairs = features @ features.transpose(1, 2)
        return self.top(torch.cat([dense, pairs.flatten(1)], 1))


def _layer(a: int, b: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Linear(a, b), activation())


class _Recurrent(nn.Module):
    """Four steps of a gated recurrent unit that is written out."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.of_input, self.of_state = (nn.Linear(width, 3 * width) for _ in range(2))

    def forward(self, x: Any) -> Any:
        state = torch.zeros_like(x[:, 0])
        for step in range(4):
            r, z, n = self.of_input(x[:, step]).chunk(3, -1)
            r_, z_, n_ = self.of_state(state).chunk(3, -1)
            z = torch.sigmoid(z + z_)
            state = (1 - z) * torch.tanh(n + torch.sigmoid(r + r_) * n_) + z * state
        return state


class _Graph(nn.Module):
    """Two layers of graph convolution with a dense matrix of neighbours."""

    def __init__(self, nodes: int = 2048, width: int = 512) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 64)
        self.register_buffer("neighbours", (torch.rand(nodes, nodes) < 0.05) / (0.05 * nodes))

    def forward(self, x: Any) -> Any:
        neighbours: Any = self.neighbours
        x = functional.relu(neighbours @ self.first(x))
        return neighbours @ self.second(x)


#: Of each model its name, what makes it, and the shape of its input, in bfloat16.
TOKENS: list[tuple[str, Any, tuple[int, ...]]] = [
    ("MLP", lambda: nn.Sequential(_layer(1024, 4096, nn.GELU), _layer(4096, 4096, nn.SiLU), nn.Linear(4096, 1024)),
     (2048, 1024)),
    ("autoencoder", lambda: nn.Sequential(_layer(784, 512), _layer(512, 64), _layer(64, 512), nn.Linear(512, 784)),
     (4096, 784)),
    ("GPT-2", _gpt, (4, 512, 1024)),
    ("BERT", _bert, (8, 256, 768)),
    ("Llama", _llama, (2, 512, 2048)),
    ("Llama, one token", _llama, (8, 1, 2048)),
    ("T5", _t5, (4, 256, 1024)),
    ("parallel block", lambda: _Parallel(2048), (2, 512, 2048)),
    ("MLP-Mixer", lambda: _Mixer(196, 512), (32, 196, 512)),
    ("vision transformer", _Vit, (16, 196, 768)),
    ("recommender", _Recommender, (2048, 64)),
    ("recurrent", _Recurrent, (256, 4, 1024)),
    ("graph convolution", _Graph, (2048, 512)),
]  # fmt: skip


def _conv(a: int, b: int, kernel: int = 1, *, activation: type[nn.Module] | None = nn.ReLU, **how: Any) -> nn.Module:
    layers = [nn.Conv2d(a, b, kernel, padding=kernel // 2, bias=False, **how), nn.BatchNorm2d(b)]
    return nn.Sequential(*layers, *([] if activation is None else [activation()]))


class _BasicBlock(nn.Module):
    """Of ResNet-18."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_conv(channels, channels, 3), _conv(channels, channels, 3, activation=None))

    def forward(self, x: Any) -> Any:
        return functional.relu(self.inner(x) + x)


class _Excited(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 24, 1), nn.Conv2d(channels // 24, channels, 1)

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.up(functional.silu(self.down(x.mean((2, 3), keepdim=True)))))


def _inverted(channels: int, kernel: int, activation: type[nn.Module], *more: nn.Module) -> nn.Module:
    wide = 6 * channels
    return _Residual(
        _conv(channels, wide, activation=activation),
        _conv(wide, wide, kernel, activation=activation, groups=wide),
        *more,
        _conv(wide, channels, activation=None),
    )


class _Dense(nn.Module):
    """A block of DenseNet."""

    def __init__(self, channels: int = 128, grown: int = 32, count: int = 3) -> None:
        super().__init__()
        starts = range(channels, channels + count * grown, grown)
        self.layers = nn.ModuleList(nn.Sequential(_conv(start, 128), _conv(128, grown, 3)) for start in starts)

    def forward(self, x: Any) -> Any:
        for each in self.layers:
            x = torch.cat([x, each(x)], 1)
        return x


class _Unet(nn.Module):
    """A level of a U-net: down, and up again."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first, self.inner = _conv(channels, channels, 3), _conv(channels, 2 * channels, 3, stride=2)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, 2)
        self.last = _conv(2 * channels, channels, 3)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(torch.cat([x, self.up(self.inner(x))], 1))


class _Inception(nn.Module):
    """Convolutions of several extents beside each other."""

    def __init__(self, channels: int = 256) -> None:
        super().__init__()
        self.ways = nn.ModuleList([
            _conv(channels, 64),
            nn.Sequential(_conv(channels, 96), _conv(96, 128, 3)),
            nn.Sequential(_conv(channels, 32), _conv(32, 64, 5)),
        ])  # fmt: skip

    def forward(self, x: Any) -> Any:
        return torch.cat([each(x) for each in self.ways], 1)


class _ConvNext(nn.Module):
    """A block of ConvNeXt, whose 1x1 convolutions are linear layers of pixels."""

    def __init__(self, channels: int = 256) -> None:
        super().__init__()
        self.spread = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.feed = nn.LayerNorm(channels), _feed(channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Any) -> Any:
        y = self.feed(self.norm(self.spread(x).permute(0, 2, 3, 1))) * self.scale
        return x + y.permute(0, 3, 1, 2)


#: Of each model its name, what makes it, and the shape of its input, in float16 with adjacent channels.
IMAGES: list[tuple[str, Any, tuple[int, ...]]] = [
    ("ResNet-18", lambda: nn.Sequential(_BasicBlock(128), _BasicBlock(128)), (16, 128, 28, 28)),
    ("MobileNet", lambda: _inverted(64, 3, nn.ReLU6), (32, 64, 28, 28)),
    ("EfficientNet", lambda: _inverted(80, 5, nn.SiLU, _Excited(480)), (32, 80, 28, 28)),
    ("DenseNet", _Dense, (32, 128, 28, 28)),
    ("U-net", _Unet, (8, 64, 64, 64)),
    ("Inception", _Inception, (32, 256, 28, 28)),
    ("ConvNeXt", _ConvNext, (16, 256, 28, 28)),
]
