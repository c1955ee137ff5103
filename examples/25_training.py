"""A small training run: forward and backward products are kernels of PyCUTLASS, and the loss follows torch's.

``torch.compile(model, backend="pycutlass")`` takes regions of both graphs: what follows a product in the forward pass,
and what follows the products that gradients are made of.

Run ``python examples/25_training.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import pycutlass.pytorch


class Classifier(nn.Module):
    """Two hidden layers with a residual."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        h = nn.functional.gelu(self.first(x), approximate="tanh")
        h = h + nn.functional.silu(self.second(h))
        logits: torch.Tensor = self.head(h)
        return logits


def train(
    model: nn.Module, weights: list[nn.Parameter], x: torch.Tensor, classes: torch.Tensor, rate: float
) -> list[float]:
    """Return the losses of some steps of Adam."""
    steps = torch.optim.AdamW(weights, lr=rate)
    losses = []
    for _ in range(12):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), classes)
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train a model and its copy, one by torch and one with kernels of ours, and compare the losses."""
    is_gpu = torch.cuda.is_available()
    device = "cuda" if is_gpu else "cpu"
    rows, features, hidden, classes, rate = (4096, 512, 1024, 100, 1e-3) if is_gpu else (64, 32, 64, 10, 3e-3)
    torch.set_float32_matmul_precision("high")  # tensor cores multiply float32 as tf32, in both models
    torch.manual_seed(0)
    theirs = Classifier(features, hidden, classes).to(device)
    ours = copy.deepcopy(theirs)
    x = torch.randn(rows, features, device=device)
    y = (x @ torch.randn(features, classes, device=device)).argmax(-1)  # something that can be learned

    # Every region is taken here. The rest is Inductor's on a GPU, and stays as it is on the host.
    options = {"min_gain": 0, "rest": "inductor" if is_gpu else "eager"}
    compiled = torch.compile(ours, backend="pycutlass", options=options)
    # What is taken of the forward graph, as `partition` shows it without a gradient.
    taken = pycutlass.pytorch.partition(theirs.eval(), x, options={"min_gain": 0})
    print(taken)
    assert [len(region.fused) > 0 for region in taken.regions] == [True, True, False]

    models = (theirs.train(), theirs), (compiled, ours)
    losses = [train(model, list(of.parameters()), x, y, rate) for model, of in models]
    for number, (a, b) in enumerate(zip(*losses, strict=True)):
        print(f"step {number:2}: loss {a:.5f} by torch, {b:.5f} with our kernels")
    assert losses[0][-1] < 0.8 * losses[0][0], "nothing was learned"
    assert all(abs(a - b) < 0.01 * a for a, b in zip(*losses, strict=True)), "the losses differ"
    print("Passed.")


if __name__ == "__main__":
    main()
