"""A model of torch, partitioned into what kernels take, and compiled with them for training.

Run ``python examples/21_compile_a_model.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

import pycutlass.pytorch


class Block(nn.Module):
    """A residual block of convolutions with batch norms, and a gated layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.body = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))
        self.gate, self.up = nn.Linear(16, 32), nn.Linear(16, 32)
        self.down = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of ten classes."""
        first, second = self.norms
        x = functional.relu(first(self.stem(images)))
        x = functional.relu(second(self.body(x)) + x).mean((2, 3))
        logits: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return logits


def main() -> None:
    """Partition a model for inference, and train it with the backend of ``torch.compile``."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Block().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(4, 8, 12, 12, device=device).to(memory_format=torch.channels_last)

    made = pycutlass.pytorch.partition(model.eval(), images, dynamic=True, options={"min_gain": 0})
    print(made)
    with torch.no_grad():
        for count in (4, 7):
            given = torch.randn(count, 8, 12, 12, device=device).to(memory_format=torch.channels_last)
            torch.testing.assert_close(made(given), model(given), rtol=1e-3, atol=1e-3)

    # Every region is taken here, and torch runs the rest as it is; by default Inductor compiles it.
    classes = torch.randint(10, (4,), device=device)
    theirs, ours = (copy.deepcopy(model).train() for _ in range(2))
    compiled = torch.compile(ours, backend="pycutlass", options={"min_gain": 0, "rest": "eager"})
    losses = [trained(called, own, images, classes) for called, own in ((theirs, theirs), (compiled, ours))]
    print("loss of the model:         ", *(f"{each:.4f}" for each in losses[0]))
    print("loss of the compiled model:", *(f"{each:.4f}" for each in losses[1]))
    assert all(abs(a - b) < 1e-2 for a, b in zip(*losses, strict=True)), "the losses differ"
    print("Passed.")


def trained(called: nn.Module, own: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> list[float]:
    """Train a model for a few steps, and return the losses."""
    optimizer, losses = torch.optim.SGD(own.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(called(images), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
