"""Products in one line, and a plan: the kernel is chosen, compiled and launched for the tensors that are there.

Run ``python examples/17_matmul.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import numpy as np

import pycutlass


def main() -> None:
    """Multiply, add and activate, and use one plan for several M."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 128), (128, 96)))
    compare("matmul", pycutlass.matmul(a, b), a.astype(np.float64) @ b)

    # A layer: the weights are (out, in), as torch keeps them, and x has any leading dimensions.
    x, w, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 5, 128), (96, 128), (96,)))
    exact = np.maximum(x.astype(np.float64) @ w.T + bias, 0)
    compare("linear", pycutlass.linear(x, w, bias, pycutlass.relu), exact)

    # Weights of int8 with a scale for each of their rows: the same kernel converts and scales them.
    scales = np.abs(w).max(1, keepdims=True).astype(np.float32) / 127
    rounded = np.rint(w / scales).astype(np.int8)
    exact = x.astype(np.float64) @ (rounded * scales.astype(np.float64)).T
    compare("linear, weights of int8", pycutlass.linear(x, rounded, scales=(1.0, scales.ravel())), exact)

    # A plan is for one N and K and for any M.
    plan = pycutlass.Gemm(a, b)
    for rows in (1, 16, 64):
        compare(f"plan, M={rows}", plan.run(a[:rows], b), a[:rows].astype(np.float64) @ b)
    print(plan.explain())
    print("Passed.")


def compare(what: str, got: np.ndarray, exact: np.ndarray) -> None:
    """Print the largest error, which must be what float16 explains."""
    error = float(np.abs(got - exact).max())
    assert error < 0.1, f"{what} is off by {error}"
    print(f"{what}: {got.shape}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
