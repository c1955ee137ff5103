"""One token through a layer of a language model: products of a vector and a matrix, which take as long as reading it.

The first multiplies a row of f16 by a weight that lies along K, with bias and SiLU in an epilogue function; the second
one of int8, with scales for each column; the third has few columns in place of rows, `swap_ab`. Every result is
compared with numpy's product in f64.

Run ``python examples/14_gemv.py``. Without a GPU the kernels are compiled for an A100, and the operations' meaning is
executed on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    MathInstruction,
    TensorDescription,
    TileDescription,
    cutlass,
    device,
)
from pycutlass.epilogue import Row, silu

f16, f32, int8, int32 = cutlass.float16, cutlass.float32, cutlass.int8, cutlass.int32


@pycutlass.epilogue_function
def biased_silu(accum: Any, bias: Row) -> Any:
    """SiLU of the product with a bias."""
    return silu(accum + bias)


@pycutlass.epilogue_function
def dequantized(accum: Any, scale: Row) -> Any:
    """The product of integers, with a scale for each column."""
    return accum * scale


def main() -> None:
    """Describe the three kernels, compile them, and check what they compute."""
    up = describe(f16, [1, 8, 1024], biased_silu(f16, 1, f32))
    of_int8 = describe(int8, [1, 8, 2048], dequantized(f16, 1, int32, scale=f32))
    columns = describe(f16, [4, 8, 1024], LinearCombination(f16, 1, f32, f32), swap_ab=True)
    target = None if device.available() else "sm_80"
    pycutlass.compiler.add_module([up, of_int8, columns], target=target)

    rng, N, K = np.random.default_rng(), 1000, 2048
    A, B = rng.standard_normal((1, K)).astype(np.float16), rng.standard_normal((N, K)).astype(np.float16).T
    bias = rng.standard_normal(N).astype(np.float16)
    sums = A.astype(float) @ B.astype(float) + bias
    check("f16 with bias and SiLU", run(up, A, B, bias=bias), sums / (1 + np.exp(-sums)))

    A, B = rng.integers(-9, 10, (1, K), np.int8), rng.integers(-9, 10, (N, K), np.int8).T
    scale = rng.random(N).astype(np.float32) / 64
    check("int8 with scales", run(of_int8, A, B, scale=scale), (A.astype(int) @ B.astype(int)) * scale)

    A, B = rng.standard_normal((N, K)).astype(np.float16), rng.standard_normal((3, K)).astype(np.float16).T
    check("3 columns", run(columns, A, B), A.astype(float) @ B.astype(float))
    print("Passed.")


def describe(operand: Any, threadblock_shape: list[int], functor: Any, **options: Any) -> GemmOperationUniversal:
    """Describe a product of row-major A and column-major B, both of `operand`, with a row-major D of f16."""
    instruction = MathInstruction(None, operand, operand, functor.accumulator.tag, cutlass.OpClass.Simt)
    tile = TileDescription(threadblock_shape, None, [1, 4, 1], instruction, kernel_schedule=KernelSchedule.Gemv)
    alignment = 16 if operand is int8 else 8  # elements in 16 bytes
    A = TensorDescription(operand, cutlass.RowMajor, alignment)
    B = TensorDescription(operand, cutlass.ColumnMajor, alignment)
    C = TensorDescription(f16, cutlass.RowMajor, 1)
    return GemmOperationUniversal(80, tile, A, B, C, functor, **options)


def run(operation: GemmOperationUniversal, A: Any, B: Any, **tensors: Any) -> Any:
    """Return D of a launch."""
    D = np.full((A.shape[0], B.shape[1]), np.nan, np.float16)  # an element that the kernel leaves alone is noticed
    arguments = GemmArguments(operation, (*D.shape, A.shape[1]), A, B, None, D, epilogue=tensors or None)
    operation.run(arguments)
    arguments.sync()
    return D


def check(name: str, found: Any, exact: Any) -> None:
    """Exit unless every element is as close as rounding to f16 allows."""
    error = abs(found.astype(float) - exact).max()
    print(f"{name}, {found.shape[0]} x {found.shape[1]}: largest error {error:.2g}")
    if not np.allclose(found.astype(float), exact, rtol=2.0**-10, atol=2e-3):
        raise SystemExit(f"Failed: {name}")


if __name__ == "__main__":
    main()
