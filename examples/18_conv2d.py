"""Convolutions in one line with their gradients, and a plan: the kernel is chosen for the tensors that are there.

Run ``python examples/18_conv2d.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import numpy as np

import pycutlass


def main() -> None:
    """Convolve with bias and activation, compute both gradients, and use one plan for several numbers of images."""
    rng = np.random.default_rng(0)
    # Arrays are (N, H, W, C) and weights (K, R, S, C). Tensors of torch are (N, C, H, W), in channels_last.
    x, w, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 14, 14, 16), (32, 3, 3, 16), (32,)))
    y = pycutlass.conv2d(x, w, padding=1, bias=bias, epilogue=pycutlass.relu)
    compare("conv2d", y, np.maximum(convolved(x, w) + bias, 0))

    grad = rng.standard_normal(y.shape).astype(np.float16)
    dx = pycutlass.conv2d_input(grad, w, x.shape, padding=1)
    # The gradient of the input is a convolution of the gradient with the filter turned around.
    compare("conv2d_input", dx, convolved(grad, w[:, ::-1, ::-1].transpose(3, 1, 2, 0)))
    dw = pycutlass.conv2d_weight(grad, x, w.shape, padding=1)
    exact = np.stack([convolved(x, np.eye(16)[:, None, None, :], (i, j)) for i in range(3) for j in range(3)])
    compare("conv2d_weight", dw, np.einsum("nhwk,tnhwc->ktc", grad.astype(np.float64), exact).reshape(w.shape))

    # A plan is for images of one size, and for any number of them.
    plan = pycutlass.Conv2d(x, w, padding=1)
    for images in (1, 2):
        compare(f"plan, N={images}", plan.run(x[:images], w), convolved(x[:images], w))
    print(plan.explain())
    print("Passed.")


def convolved(x: np.ndarray, w: np.ndarray, only: tuple[int, int] | None = None) -> np.ndarray:
    """Return the convolution with a filter of 3 x 3, of which `only` one tap may be given, in float64."""
    _, h, width, _ = x.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [(i, j) for i in range(3) for j in range(3)] if only is None else [only]
    filters = [w[:, i, j] if only is None else w[:, 0, 0] for i, j in taps]
    return sum(padded[:, i : i + h, j : j + width] @ each.T for (i, j), each in zip(taps, filters, strict=True))


def compare(what: str, got: np.ndarray, exact: np.ndarray) -> None:
    """Print the largest error, which must be what float16 explains."""
    error = float(np.abs(got - exact).max())
    assert error < 0.1, f"{what} is off by {error}"
    print(f"{what}: {got.shape}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
