"""A two-layer perceptron in two kernels, bias and activation included: each layer is activation(A x B + bias).

An activation is part of the epilogue, so the sums never leave the registers before it. A bias takes the place of C: a
vector of N elements where C is stored by rows, of M elements where it is stored by columns. The first layer keeps one
sample a row; the second is computed transposed, one sample a column, and its leaky ReLU gets its slope at launch. Both
are compared with torch in f64.

Run ``python examples/08_activations_and_bias.py``. It needs torch. Without a GPU the kernels are compiled for an A100,
and the operations' meaning is executed on the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    LinearCombinationGeneric,
    MathInstruction,
    TensorDescription,
    TileDescription,
    cutlass,
    gelu_tanh,
    leaky_relu,
)

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 200, 256, 384, 64
SLOPE = 0.125
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
f16, f32 = cutlass.float16, cutlass.float32
BY_ROWS, BY_COLUMNS = (TensorDescription(f16, layout, 8) for layout in (cutlass.RowMajor, cutlass.ColumnMajor))


def main() -> None:
    """Compute both layers on torch's current stream, and compare each with torch."""
    first, second = layer(BY_ROWS, gelu_tanh(f32)), layer(BY_COLUMNS, leaky_relu(f32))
    pycutlass.compiler.add_module([first, second])

    x = random(SAMPLES, INPUTS)
    W1, b1 = random(HIDDEN, INPUTS) / 16, random(HIDDEN)
    W2, b2 = random(OUTPUTS, HIDDEN) / 16, random(OUTPUTS)
    h, y = poisoned(SAMPLES, HIDDEN), poisoned(SAMPLES, OUTPUTS)

    # h = gelu(x W1^T + b1), by rows.
    launch(first, (SAMPLES, HIDDEN, INPUTS), x, W1.T, b1, h, first.epilogue_type(1.0, 1.0))
    # y^T = leaky_relu(W2 h^T + b2), by columns: y itself is stored by rows, as torch has it.
    launch(second, (OUTPUTS, SAMPLES, HIDDEN), W2, h.T, b2, y.T, second.epilogue_type(1.0, 1.0, SLOPE))

    # CUTLASS computes tanh with the GPU's own instruction, whose error is about 2**-10.5.
    compare("gelu", x, W1, b1, h, lambda sums: functional.gelu(sums, approximate="tanh"), 2.0**-9)
    compare("leaky_relu", h, W2, b2, y, lambda sums: functional.leaky_relu(sums, SLOPE), 0.0)
    print("Passed.")


def layer(C: TensorDescription, activation: Any) -> GemmOperationUniversal:
    """Describe one layer: scalars, bias and activation in f32, then one rounding to f16."""
    instruction = MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([64, 64, 32], 4, [2, 2, 1], instruction)
    epilogue = LinearCombinationGeneric(activation, f16, 8, f32, f32)
    return GemmOperationUniversal(80, tile, BY_ROWS, BY_COLUMNS, C, epilogue)


def launch(operation: GemmOperationUniversal, size: Any, A: Any, B: Any, bias: Any, D: Any, scalars: Any) -> None:
    """Launch one layer. That C is a bias is seen from its number of elements; ``bias=True`` insists on it."""
    arguments = GemmArguments(operation, size, A=A, B=B, C=bias, D=D, output_op=scalars, bias=True)
    operation.run(arguments)


def random(*shape: int) -> torch.Tensor:
    """Return fresh normal numbers."""
    return torch.randn(shape, device=DEVICE).half()


def poisoned(*shape: int) -> torch.Tensor:
    """Return NaNs, so that an element which a kernel leaves alone is noticed."""
    return torch.full(shape, float("nan"), dtype=torch.float16, device=DEVICE)


def compare(
    what: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    y: torch.Tensor,
    activation: Any,
    approximated: float,
) -> None:
    """Exit unless each element is within its rounding to f16, those of its sum, and the activation's approximation."""
    x, weight, bias, y = x.double(), weight.double(), bias.double(), y.double()
    sums = x @ weight.T + bias
    exact = activation(sums)
    sizes = x.abs() @ weight.abs().T + bias.abs()
    allowed = 2.0**-11 * exact.abs() + (x.shape[1] + 8) * 2.0**-23 * sizes + approximated * (1 + sums.abs())
    used = ((y - exact).abs() / (allowed + 2.0**-24)).max().item()
    print(f"{what} on {DEVICE}: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: the layer is not activation(x W^T + bias)")


if __name__ == "__main__":
    main()
