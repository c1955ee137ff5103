"""A mixture of experts as a model: tokens are routed on the device, and the experts' products are one kernel.

The host knows neither how many tokens an expert gets nor waits for it: `GroupedLinear` reads the offsets where they
are. The gate and the weights of tokens are computed by the kernels of the products. The router and the shared expert
are regions, as in any model.

Run ``python examples/23_mixture_of_experts_model.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import torch
from torch import nn

import pycutlass.pytorch
from pycutlass.pytorch import GroupedLinear


class MixtureOfExperts(nn.Module):
    """Gated experts, of which each token has the best few, beside one that all tokens have."""

    def __init__(self, features: int, hidden: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(features, experts, bias=False)
        self.up, self.gate = (GroupedLinear(experts, features, hidden, bias=False) for _ in range(2))
        self.down = GroupedLinear(experts, hidden, features, bias=False)
        self.shared_up, self.shared_down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return for each token the weighted sum of its experts, and the shared one."""
        weights, order, offs = self.route(x)
        rows = x[order // self.chosen]  # of each expert one behind the other
        inner = nn.functional.silu(self.gate(rows, offs)) * self.up(rows, offs)
        outer = self.down(inner, offs) * weights.flatten()[order, None]
        shared = self.shared_down(nn.functional.gelu(self.shared_up(x)))
        y: torch.Tensor = shared.index_add(0, order // self.chosen, outer)
        return y

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return weights by token, the order of pairs of token and expert, and where each expert's rows end."""
        scores = torch.softmax(self.router(x).float(), -1)
        best = scores.topk(self.chosen)
        experts = best.indices.flatten()
        counts = (experts[:, None] == torch.arange(self.experts, device=x.device)).sum(0)
        weights = best.values / best.values.sum(-1, keepdim=True)
        return weights.to(x.dtype), experts.argsort(stable=True), counts.cumsum(0).to(torch.int32)


def by_torch(model: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """Return the same, one expert after the other."""
    weights, order, offs = model.route(x)
    y = model.shared_down(nn.functional.gelu(model.shared_up(x)))
    ends = [0, *offs.tolist()]
    for expert in range(model.experts):
        pairs = order[ends[expert] : ends[expert + 1]]
        rows = x[pairs // model.chosen]
        up, gate, down = (layer.weight[expert] for layer in (model.up, model.gate, model.down))
        inner = nn.functional.silu(rows @ gate.T) * (rows @ up.T)
        y.index_add_(0, pairs // model.chosen, (inner @ down.T) * weights.flatten()[pairs, None])
    return y


def main() -> None:
    """Partition a mixture of experts, print what was taken, and compare it with torch."""
    is_gpu = torch.cuda.is_available()
    device = "cuda" if is_gpu else "cpu"
    features, hidden, experts, tokens = (2048, 1408, 64, 4096) if is_gpu else (32, 48, 6, 40)
    torch.manual_seed(0)
    model = MixtureOfExperts(features, hidden, experts, chosen=2).to(device, torch.bfloat16).eval()
    x = torch.randn(tokens, features, device=device, dtype=torch.bfloat16)

    partitioned = pycutlass.pytorch.partition(model, x, options={"min_gain": 0})
    print(partitioned)
    assert partitioned.counts == {"mm": 3, "grouped": 3}, "a product is no region"
    followed = [region.fused for region in partitioned.regions if region.kind == "grouped"]
    assert sorted(map(len, followed)) == [0, 1, 2], "the gate and the weights of tokens are parts of products"
    print(f"3 products of {experts} experts are a kernel each, two of them with what follows")

    with torch.no_grad():
        ours, theirs = partitioned(x).float(), by_torch(model, x).float()
    # A near tie of the router may be decided otherwise, since our router is not rounded where torch's is.
    apart = ((ours - theirs).abs().amax(-1) > 0.05 * theirs.abs().max()).float().mean()
    print(f"{100 * float(apart):.1f} % of the tokens differ by more than 5 % of the largest number")
    assert float(apart) < 0.05, "the experts compute something else"
    print("Passed.")


if __name__ == "__main__":
    main()
