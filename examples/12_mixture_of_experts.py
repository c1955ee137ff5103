"""The feed-forward layer of a mixture of experts in two launches, with SwiGLU fused into the first.

Each expert has three weights: ``silu(x @ gate) * (x @ up)`` goes through ``down``. The columns of gate and up are put
in turn when the model is loaded, so that one product has both side by side, and the epilogue combines `pairs` of them:
what it writes has half as many columns. Beside it lies the greatest magnitude of each row, by which a next kernel could
quantise. The second launch scales each token by what the router gave its expert, and adds a residual. Every result is
compared with torch in f64.

Run ``python examples/12_mixture_of_experts.py``. It needs torch. Without a GPU the kernels are compiled for an A100,
and the operations' meaning is executed on the host.
"""

from __future__ import annotations

from typing import Any

import torch

import pycutlass
from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    MathInstruction,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.epilogue import Column, Tensor, absmax, pairs, silu

EXPERTS, TOKENS, WIDTH, HIDDEN = 6, 200, 64, 96
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pycutlass.epilogue_function
def swiglu(accum: Any) -> Any:
    """Return the gated unit, of half as many columns as the product, and the greatest of each row."""
    gate, up = pairs(accum)
    hidden = silu(gate) * up
    return {"D": hidden, "largest": absmax(hidden, axis=1)}


@pycutlass.epilogue_function
def routed(accum: Any, weight: Column, residual: Tensor) -> Any:
    """Return what an expert says of its tokens, each with the router's weight, and the tokens themselves."""
    return accum * weight + residual


def main() -> None:
    """Go through the layer with one distribution of the tokens, then with another."""
    first, second = describe(swiglu), describe(routed)
    pycutlass.compiler.add_module([first, second])
    gate, up = ([random(WIDTH, HIDDEN) / 8 for _ in range(EXPERTS)] for _ in range(2))
    down = [random(WIDTH, HIDDEN).T / 8 for _ in range(EXPERTS)]
    in_turn = [interleaved(*both) for both in zip(gate, up, strict=True)]
    for _ in range(2):
        counts = torch.randint(0, 2 * TOKENS // EXPERTS, (EXPERTS,)).tolist()
        counts[1] = 0  # nobody asked this one
        tokens = [random(count, WIDTH) for count in counts]
        weights = [torch.rand(count, device=DEVICE).half() for count in counts]

        hidden = [torch.empty(count, HIDDEN, device=DEVICE, dtype=torch.float16) for count in counts]
        largest = [torch.empty(count, device=DEVICE) for count in counts]
        sizes = [(count, 2 * HIDDEN, WIDTH) for count in counts]
        launch(first, sizes, tokens, in_turn, hidden, {"largest": largest})

        made = [torch.empty_like(each) for each in tokens]
        sizes = [(count, WIDTH, HIDDEN) for count in counts]
        launch(second, sizes, hidden, down, made, {"weight": weights, "residual": tokens})

        for i in range(EXPERTS):
            x = tokens[i].double()
            exact = torch.nn.functional.silu(x @ gate[i].double()) * (x @ up[i].double())
            torch.testing.assert_close(hidden[i].double(), exact, rtol=1e-2, atol=1e-2)
            if counts[i]:
                torch.testing.assert_close(largest[i].double(), exact.abs().amax(1), rtol=1e-2, atol=1e-2)
            exact = exact @ down[i].double() * weights[i].double()[:, None] + x
            torch.testing.assert_close(made[i].double(), exact, rtol=2e-2, atol=2e-2)
        print(f"{sum(counts)} tokens of {EXPERTS} experts, {counts}: right")
    print("Passed.")


def describe(function: Any) -> GemmOperationGrouped:
    """Describe a product for each expert, with a function behind it."""
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([64, 64, 32], 4, [2, 2, 1], instruction)
    row_major = TensorDescription(f16, cutlass.RowMajor, 8)
    column_major = TensorDescription(f16, cutlass.ColumnMajor, 8)
    return GemmOperationGrouped(80, tile, row_major, column_major, row_major, function(f16, 8))


def interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return the columns of both in turn, in a column-major matrix."""
    return torch.stack((gate.T, up.T), dim=1).reshape(-1, gate.shape[0]).T


def launch(operation: GemmOperationGrouped, sizes: Any, A: Any, B: Any, D: Any, others: dict[str, Any]) -> None:
    """Compute all problems in one launch."""
    arguments = GemmGroupedArguments(operation, sizes, A, B, None, D, epilogue=others)
    operation.run(arguments)
    arguments.sync()


def random(rows: int, columns: int) -> torch.Tensor:
    """Return a random matrix."""
    return torch.randn(rows, columns, device=DEVICE, dtype=torch.float16)


if __name__ == "__main__":
    main()
