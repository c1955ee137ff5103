"""A model whose page has everything: products, batches, convolutions, what is left, and text that is no markup."""

from __future__ import annotations

import torch
from torch import nn

import pycutlass.pytorch

__all__ = ["Everything", "explained"]


class Everything(nn.Module):
    """Convolution, attention-like products of batches, a gated product and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        self.up, self.gate, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.conv(images).relu()
        x = x.flatten(2).transpose(1, 2)
        x = torch.softmax(x @ x.mT, -1) @ x
        h = self.norm(x)
        y: torch.Tensor = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))  # <script>evil = 1</script>
        return y


def explained(**options: object) -> pycutlass.pytorch.Explanation:
    """Return the explanation of the model for any number of images, for an H200."""
    torch.manual_seed(0)
    images = torch.randn(4, 8, 6, 6, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    model = Everything().to(torch.bfloat16).eval()
    return pycutlass.pytorch.explain(model, (images,), True, options={"sm": 90, "min_gain": 0}, **options)
