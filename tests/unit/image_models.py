"""Small models of images, as architectures of today have them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


def conv_norm(inputs: int, outputs: int, size: int, activation: type[nn.Module] | None = nn.ReLU, **how: Any) -> Any:
    """Return a convolution that keeps its image's extents but for a stride, with a batch norm, and an activation."""
    layers = [nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **how), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *(() if activation is None else (activation(),)))


class ResNet(nn.Module):
    """A stem, a basic block, a bottleneck with a shortcut, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 8, 7, stride=2), nn.MaxPool2d(3, 2, 1))
        self.basic = nn.Sequential(conv_norm(8, 8, 3), conv_norm(8, 8, 3, None))
        self.narrow = nn.Sequential(conv_norm(8, 4, 1), conv_norm(4, 4, 3, stride=2), conv_norm(4, 16, 1, None))
        self.shortcut, self.head = conv_norm(8, 16, 1, None, stride=2), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        x = functional.relu(self.basic(x) + x, inplace=True)
        x = functional.relu(self.narrow(x) + self.shortcut(x), inplace=True)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class MobileNet(nn.Module):
    """An inverted residual: wider, by depth, and narrower again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, 3, nn.Hardswish, stride=2)
        self.block = nn.Sequential(
            conv_norm(8, 16, 1, nn.ReLU6), conv_norm(16, 16, 3, nn.ReLU6, groups=16), conv_norm(16, 8, 1, None)
        )
        self.head = nn.Sequential(nn.Linear(8, 16), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        return self.head((x + self.block(x)).mean((2, 3)))


class EfficientNet(nn.Module):
    """A block whose channels are weighed by what all pixels have of them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = conv_norm(8, 16, 1, nn.SiLU), conv_norm(16, 16, 5, nn.SiLU, groups=16)
        self.squeeze, self.excite, self.narrow = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), conv_norm(16, 8, 1, None)

    def forward(self, x: Tensor) -> Any:
        y = self.deep(self.wide(x))
        scale = functional.silu(self.squeeze(functional.adaptive_avg_pool2d(y, 1)))
        return self.narrow(y * self.excite(scale).sigmoid()) + x


class DenseNet(nn.Module):
    """Layers that see all channels before them, with norms before convolutions."""

    def __init__(self, channels: int = 8, grown: int = 4, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                *(nn.BatchNorm2d(channels + i * grown), nn.ReLU(), nn.Conv2d(channels + i * grown, 16, 1, bias=False)),
                *(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, grown, 3, padding=1, bias=False)),
            )
            for i in range(count)
        )
        self.between = nn.Sequential(nn.Conv2d(channels + count * grown, channels, 1), nn.AvgPool2d(2))

    def forward(self, x: Tensor) -> Any:
        made = [x]
        for layer in self.layers:
            made.append(layer(torch.cat(made, 1)))
        return self.between(torch.cat(made, 1))


class UNet(nn.Module):
    """A way down and up again by a transposed convolution, and images of the way down beside those of the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.below = conv_norm(3, 8, 3), nn.Sequential(nn.MaxPool2d(2), conv_norm(8, 16, 3))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.after = nn.Sequential(conv_norm(16, 8, 3), nn.Conv2d(8, 2, 1))

    def forward(self, x: Tensor) -> Any:
        y = self.before(x)
        return self.after(torch.cat((y, self.up(self.below(y))), 1))


class Inception(nn.Module):
    """Branches of several filters, long ones of one row or column among them, beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pooled = conv_norm(8, 4, 1), conv_norm(8, 4, 1)
        self.three = nn.Sequential(conv_norm(8, 4, 1), conv_norm(4, 6, 3))
        self.long = nn.Sequential(
            *(nn.Conv2d(8, 4, (1, 7), padding=(0, 3)), nn.ReLU(), nn.Conv2d(4, 4, (7, 1), padding=(3, 0)), nn.ReLU())
        )

    def forward(self, x: Tensor) -> Any:
        pooled = self.pooled(functional.avg_pool2d(x, 3, 1, 1))
        return torch.cat((self.one(x), self.three(x), self.long(x), pooled), 1)


class ConvNeXt(nn.Module):
    """A convolution by depth, then two layers of pixels with a norm before and a scale behind."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 4, stride=4)
        self.deep, self.norm = nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class VisionTransformer(nn.Module):
    """Patches as tokens behind one for the class, torch's own attention, and a head."""

    def __init__(self, width: int = 16, patch: int = 4, side: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 1 + (side // patch) ** 2, width))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.second(x))
        return self.head(x[:, 0])


class Mixer(nn.Module):
    """Layers along tokens, then along channels."""

    def __init__(self, tokens: int = 4, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 8), nn.GELU(), nn.Linear(8, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Any:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


class DiffusionBlock(nn.Module):
    """Norms of groups of channels, a code of the time that is added to each channel, and attention of pixels."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(3))
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Sequential(nn.Linear(channels, 32), nn.SiLU(), nn.Linear(32, channels))
        self.joined, self.out = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)
        self.channels = channels

    def forward(self, x: Tensor, time: Tensor) -> Any:
        rates = torch.exp(torch.arange(self.channels // 2, dtype=x.dtype) * -0.5)
        angles = time[:, None] * rates
        code = self.time(torch.cat((angles.sin(), angles.cos()), -1))
        y = self.first(functional.silu(self.norms[0](x))) + code[:, :, None, None]
        x = x + self.second(functional.silu(self.norms[1](y)))
        query, key, value = self.joined(self.norms[2](x).flatten(2)).chunk(3, 1)
        scores = torch.softmax(torch.einsum("bct,bcs->bts", query, key) * self.channels**-0.5, -1)
        return x + self.out(torch.einsum("bts,bcs->bct", scores, value)).view_as(x)
