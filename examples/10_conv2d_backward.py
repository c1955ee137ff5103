"""A convolution that torch can train: forward, data gradient and weight gradient as one ``torch.autograd.Function``.

Three kernels, all in f32 on tensor cores (3xTF32, which keeps f32's accuracy): fprop, strided dgrad (which takes
strides of 1 as well) and wgrad. Two networks of two convolutions begin with the same weights and see the same images;
one convolves with PyCUTLASS, the other with torch in f64. Their losses must agree at every step.

Run ``python examples/10_conv2d_backward.py``. It needs torch. Without a GPU the kernels are compiled for an A100, and
the operations' meaning is executed on the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

import pycutlass
from pycutlass import (
    Conv2dArguments,
    Conv2dOperation,
    LinearCombination,
    MathInstruction,
    MathOperation,
    StrideSupport,
    TensorDescription,
    TileDescription,
    conv2d_problem_size,
    cutlass,
)

STEPS, RATE = 12, 0.5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def convolution(kind: Any) -> Conv2dOperation:
    """Describe the kernel of one direction."""
    f32 = cutlass.float32
    instruction = MathInstruction(
        [16, 8, 8], f32, f32, f32, cutlass.OpClass.TensorOp, MathOperation.multiply_add_fast_f32
    )
    nhwc = TensorDescription(f32, cutlass.TensorNHWC, 4)
    return Conv2dOperation(
        kind,
        cutlass.conv.IteratorAlgorithm.optimized,
        80,
        TileDescription([64, 64, 16], 3, [2, 2, 1], instruction),
        nhwc,
        nhwc,
        nhwc,
        StrideSupport.Strided,
        LinearCombination(f32, 4, f32, f32),
    )


FPROP, DGRAD, WGRAD = (convolution(kind) for kind in cutlass.conv.Operator)


class Convolution(torch.autograd.Function):
    """y = conv2d(x, w), with gradients for x and w."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
        """Convolve; everything is launched on torch's current stream."""
        x, w = nhwc(x), nhwc(w)
        ctx.size = conv2d_problem_size(x, w, stride=stride, padding=padding)
        ctx.save_for_backward(x, w)
        size = ctx.size
        return launch(FPROP, size, x, w, empty(size.N, size.K, size.P, size.Q))

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients that are asked for."""
        x, w = ctx.saved_tensors
        dy, (wants_dx, wants_dw, *_) = nhwc(dy), ctx.needs_input_grad
        dx = launch(DGRAD, ctx.size, dy, w, empty(*x.shape)) if wants_dx else None
        dw = launch(WGRAD, ctx.size, dy, x, empty(*w.shape)) if wants_dw else None
        return dx, dw, None, None


def launch(operation: Conv2dOperation, size: Any, A: torch.Tensor, B: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    """Run one direction into D. The arguments may go: torch and PyCUTLASS free memory in the order of the stream."""
    operation.run(Conv2dArguments(operation, size, A, B, None, D))
    return D


def nhwc(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` in NHWC memory, without a copy where it is so already."""
    return tensor.contiguous(memory_format=torch.channels_last)


def empty(*shape: int) -> torch.Tensor:
    """Return NaNs, so that an element which a kernel leaves alone is noticed."""
    return nhwc(torch.full(shape, float("nan"), device=DEVICE))


def main() -> None:
    """Train both networks, and compare their losses."""
    pycutlass.compiler.add_module([FPROP, DGRAD, WGRAD])
    torch.manual_seed(0)
    images, targets = torch.randn(4, 8, 12, 12, device=DEVICE), torch.randn(4, 8, 6, 6, device=DEVICE)
    weights = [0.1 * torch.randn(16, 8, 3, 3, device=DEVICE), 0.1 * torch.randn(8, 16, 3, 3, device=DEVICE)]

    ours = train(Convolution.apply, images, targets, weights)
    theirs = train(lambda x, w, *options: functional.conv2d(x, w, None, *options), *double(images, targets), weights)
    for step, (loss, exact) in enumerate(zip(ours, theirs, strict=True)):
        error = abs(loss - exact) / exact
        print(f"step {step}: loss {loss:.6f}, torch's in f64 {exact:.6f}, relative error {error:.1e}")
        if not error <= 1e-4:  # NaN fails as well
            raise SystemExit("Failed: the losses differ")
    if not ours[-1] < 0.7 * ours[0]:
        raise SystemExit("Failed: nothing was learnt")
    print("Passed.")


def train(convolve: Any, images: torch.Tensor, targets: torch.Tensor, weights: list[torch.Tensor]) -> list[float]:
    """Return the loss of every step of gradient descent on two convolutions with a ReLU between them."""
    first, second = (nhwc(each.to(images.dtype)).clone().requires_grad_() for each in weights)
    losses = []
    for _ in range(STEPS):
        hidden = torch.relu(convolve(images, first, 2, 1))
        loss = functional.mse_loss(convolve(hidden, second, 1, 1), targets)
        gradients = torch.autograd.grad(loss, (first, second))
        with torch.no_grad():
            for weight, gradient in zip((first, second), gradients, strict=True):
                weight -= RATE * gradient
        losses.append(loss.item())
    return losses


def double(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors in f64."""
    return [tensor.double() for tensor in tensors]


if __name__ == "__main__":
    main()
