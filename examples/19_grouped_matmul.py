"""Many products in one launch: lists of matrices, the experts of a mixture, and a plan for any groups.

Run ``python examples/19_grouped_matmul.py``. Without a GPU the operations' meaning is executed on the host.
"""

from __future__ import annotations

import numpy as np

import pycutlass


def main() -> None:
    """Multiply lists, route tokens to experts, take the gradient of their weights, and use a plan."""
    rng = np.random.default_rng(0)

    # Lists of matrices, each pair with extents of its own. One has no rows, and so no work.
    xs = [rng.standard_normal((m, k)).astype(np.float16) for m, k in ((3, 64), (200, 32), (0, 64))]
    ws = [rng.standard_normal((k, n)).astype(np.float16) for k, n in ((64, 48), (32, 128), (64, 16))]
    for number, d in enumerate(pycutlass.grouped_matmul(xs, ws)):
        compare(f"list, problem {number}", d, xs[number].astype(np.float64) @ ws[number])

    # A mixture of experts: the tokens of each expert lie behind those of the one before, and offs says where they end.
    experts, out, width = 4, 96, 64
    tokens = rng.standard_normal((512, width)).astype(np.float16)
    weights = rng.standard_normal((experts, out, width)).astype(np.float16)
    bias = rng.standard_normal((experts, out)).astype(np.float16)
    offs = np.array([100, 100, 300, 512], np.int32)
    groups = list(zip([0, *offs[:-1]], offs, strict=True))
    hidden = pycutlass.grouped_matmul(tokens, weights.swapaxes(1, 2), offs=offs, bias=bias, epilogue=pycutlass.relu)
    for number, (begin, end) in enumerate(groups):
        exact = np.maximum(tokens[begin:end].astype(np.float64) @ weights[number].T + bias[number], 0)
        compare(f"expert {number}", hidden[begin:end], exact)

    # The gradient of the weights divides K, which is the tokens.
    gradients = pycutlass.grouped_matmul(hidden.T, tokens, offs=offs)
    for number, (begin, end) in enumerate(groups):
        exact = hidden[begin:end].T.astype(np.float64) @ tokens[begin:end]
        compare(f"gradient {number}", gradients[number], exact)

    # A plan is for one kind of matrices, and for any groups of them.
    plan = pycutlass.GroupedGemm(tokens, weights.swapaxes(1, 2), offs=offs)
    other = plan(tokens, weights.swapaxes(1, 2), offs=[0, 256, 256, 512])
    compare("plan", other[256:], tokens[256:].astype(np.float64) @ weights[3].T)
    print(plan.explain())
    print("Passed.")


def compare(what: str, got: np.ndarray, exact: np.ndarray) -> None:
    """Print the largest error, which must be what float16 explains."""
    error = float((np.abs(got - exact) / np.maximum(1, np.abs(exact))).max(initial=0))
    assert error < 0.05, f"{what} is off by {error}"
    print(f"{what}: {got.shape}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
