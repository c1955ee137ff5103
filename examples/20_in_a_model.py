"""A model of torch with our layers: it is converted, trained beside what it was, and compared.

Run ``python examples/20_in_a_model.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import pycutlass.pytorch
from pycutlass.pytorch import GroupedLinear, Linear, SwiGLU


class Classifier(nn.Module):
    """Convolutions and linear layers, as many models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.body = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of ten classes."""
        x = self.body(self.stem(images).relu()).relu()
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


def main() -> None:
    """Convert a model, train it and its original, and build layers of our own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    theirs = Classifier().to(device)
    ours = copy.deepcopy(theirs)
    print(pycutlass.pytorch.convert(ours))

    images = torch.randn(8, 3, 16, 16, device=device).to(memory_format=torch.channels_last)
    classes = torch.randint(10, (8,), device=device)
    losses = [train(model, images, classes) for model in (theirs, ours)]
    print("loss of torch's layers:", *(f"{each:.4f}" for each in losses[0]))
    print("loss of our layers:    ", *(f"{each:.4f}" for each in losses[1]))
    assert all(abs(a - b) < 1e-2 for a, b in zip(*losses, strict=True)), "the losses differ"

    # Layers that torch has not: the activation in the kernel of a product, a gated layer, and experts.
    layers = nn.Sequential(Linear(64, 64, activation="gelu"), SwiGLU(64, 128)).to(device, torch.bfloat16)
    tokens = torch.randn(40, 64, device=device, dtype=torch.bfloat16)
    experts = GroupedLinear(4, 64, 32, device=device, dtype=torch.bfloat16)
    offs = torch.tensor([10, 10, 25, 40], dtype=torch.int32, device=device)
    result = experts(layers(tokens), offs)
    assert result.shape == (40, 32) and bool(result.isfinite().all())
    result.float().square().mean().backward()
    assert all(each.grad is not None for each in (*layers.parameters(), *experts.parameters()))
    print("Passed.")


def train(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> list[float]:
    """Return the losses of a few steps of gradient descent."""
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(images), classes)
        parameters = list(model.parameters())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter -= 0.1 * gradient
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
