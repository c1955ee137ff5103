"""ResNet-50, for inference: each convolution is one kernel with its batch norm, its residual and its activation.

The model is written out, as He and others (2015) describe it, with the stride in the convolution of 3x3 ("v1.5"). Its
weights are random: what is compared is what they compute.

Run ``python examples/24_resnet50.py``. Without a GPU the operations' meaning is executed on the host, of a small image.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

import pycutlass.pytorch

BLOCKS = (3, 4, 6, 3)  # of each stage
EXPANSION = 4  # channels behind a block, in parts of those in it


class Bottleneck(nn.Module):
    """Three convolutions beside a residual, which has one of its own where its shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = EXPANSION * width
        self.first = normed(nn.Conv2d(channels, width, 1, bias=False))
        self.second = normed(nn.Conv2d(width, width, 3, stride, 1, bias=False))
        self.third = normed(nn.Conv2d(width, wide, 1, bias=False))
        changes = stride != 1 or channels != wide
        self.beside = normed(nn.Conv2d(channels, wide, 1, stride, bias=False)) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images for the next block."""
        y = self.second(self.first(x).relu()).relu()
        made: torch.Tensor = (self.third(y) + self.beside(x)).relu()
        return made


class ResNet50(nn.Module):
    """Convolutions of 7x7, 16 blocks in four stages, and a linear layer."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = normed(nn.Conv2d(3, 64, 7, 2, 3, bias=False))
        self.pool = nn.MaxPool2d(3, 2, 1)
        channels, stages = 64, list[nn.Module]()
        for stage, count in enumerate(BLOCKS):
            width = 64 << stage
            for number in range(count):
                stages.append(Bottleneck(channels, width, 2 if stage and not number else 1))
                channels = EXPANSION * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        x = self.stages(self.pool(self.stem(images).relu()))
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


def normed(convolution: nn.Conv2d) -> nn.Sequential:
    """Return a convolution with a batch norm, whose statistics are those of some training."""
    norm = nn.BatchNorm2d(convolution.out_channels)
    with torch.no_grad():
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
        norm.weight.uniform_(0.5, 1.0)
        norm.bias.normal_(0, 0.1)
    return nn.Sequential(convolution, norm)


def main() -> None:
    """Partition the model, print what was taken, and compare it with torch."""
    is_gpu = torch.cuda.is_available()
    device, batch, size = ("cuda", 64, 224) if is_gpu else ("cpu", 1, 32)
    torch.manual_seed(0)
    model = (
        ResNet50().to(device, torch.float16 if is_gpu else torch.bfloat16).eval().to(memory_format=torch.channels_last)
    )
    images = torch.randn(batch, 3, size, size, device=device).to(model.head.weight.dtype)
    images = images.to(memory_format=torch.channels_last)

    partitioned = pycutlass.pytorch.partition(model, images, options={"min_gain": 0})
    print(partitioned.counts, "regions")
    followed = Counter(" + ".join(without_numbers(region.fused)) or "nothing" for region in partitioned.regions)
    for what, count in followed.most_common():
        print(f"{count:4} followed by {what}")
    assert partitioned.counts == {"conv2d": 53, "mm": 1}, f"a product was left: {dict(partitioned.left)}"
    left = [str(node.target) for node in partitioned.graph.nodes if node.op == "call_function"]
    assert not any("batch_norm" in each or "relu" in each for each in left), "a norm or an activation is not fused"

    with torch.no_grad():
        ours, theirs, exact = partitioned(images), model(images), model.double()(images.double())
    errors = [float((each.double() - exact).abs().max() / exact.abs().max()) for each in (ours, theirs)]
    print(f"largest error beside float64: {errors[0]:.1e} with our kernels, {errors[1]:.1e} with torch's")
    assert errors[0] < 2 * errors[1] + 1e-3, "our kernels compute something else"
    print("Passed.")


def without_numbers(names: tuple[str, ...]) -> list[str]:
    """Return operators without the numbers that tell nodes of a graph apart, and without those that take results."""
    plain = [name.rstrip("0123456789").rstrip("_") for name in names]
    plain = ["batch_norm" if "batch_norm" in name else name for name in plain]  # of which torch has several
    return [name for name in plain if name != "getitem"]


if __name__ == "__main__":
    main()
