"""A transformer block: products with what follows them become one kernel each, and the rest stays torch's.

RMS norms, attention, a SwiGLU and residuals, as recent language models have them. The page that `explain` writes shows
the graph with its kernels: ``python examples/22_transformer_block.py --page block.html`` keeps it.

Run ``python examples/22_transformer_block.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import pycutlass.pytorch


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each token takes from those before it."""
        batch, tokens, features = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, features // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, features))
        return y


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each behind a norm and beside a residual."""

    def __init__(self, features: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.RMSNorm(features), nn.RMSNorm(features)
        self.attention = Attention(features, heads)
        self.gate, self.up = (nn.Linear(features, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens for the next block."""
        x = x + self.attention(self.first_norm(x))
        h = self.second_norm(x)
        y: torch.Tensor = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return y


def main() -> None:
    """Partition a block, print what was taken, and compare it with torch."""
    parser = argparse.ArgumentParser(description="A transformer block with kernels of PyCUTLASS.")
    parser.add_argument("--page", help="where the page about it is written")
    parser.add_argument("--tune", action="store_true", help="measure the kernels first, which needs a GPU")
    flags = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    device = "cuda" if is_gpu else "cpu"
    features, hidden, heads, batch, tokens = (2048, 5632, 16, 8, 1024) if is_gpu else (64, 176, 4, 2, 16)
    torch.manual_seed(0)
    block = Block(features, hidden, heads).to(device, torch.bfloat16).eval()
    x = torch.randn(batch, tokens, features, device=device, dtype=torch.bfloat16)

    # All regions are taken here, also those that are too small to gain anything.
    partitioned = pycutlass.pytorch.partition(block, x, options={"min_gain": 0})
    if flags.tune:
        print(pycutlass.pytorch.tune(partitioned))
    explained = pycutlass.pytorch.explain(partitioned)
    print(explained)
    fused = {name.partition("_")[0] for region in partitioned.regions for name in region.fused}
    assert {"silu", "mul", "add"} <= fused, f"the gate and the residuals are not in kernels: {partitioned}"

    with torch.no_grad():
        ours, theirs, exact = partitioned(x), block(x), block.double()(x.double())
    errors = [float((each.double() - exact).abs().max() / exact.abs().max()) for each in (ours, theirs)]
    print(f"largest error beside float64: {errors[0]:.1e} with our kernels, {errors[1]:.1e} with torch's")
    assert errors[0] < 2 * errors[1] + 1e-3, "our kernels compute something else"
    if flags.page:
        print("written:", explained.save(flags.page))
    print("Passed.")


if __name__ == "__main__":
    main()
