"""Five Hopper-native GEMMs: 8-bit floats, few rows, a long K, operands not along K, and odd extents.

The first multiplies e4m3 by e4m3 and scales the sums to bf16. The second has a few rows, as when a language model makes
one token at a time: `swap_ab` computes the transposed problem, so the tile has 8 columns for them instead of 64 rows.
The third has a small D and a long K: stream-K spreads the steps of K evenly over the GPU, and ``split_k_slices``
divides K into slices. The fourth is the gradient of a layer's weights, X^T x dY in tf32, with both operands where the
layer has left them. The fifth has rows of A and B that are aligned to 4 bytes, and rows of D that are not even that:
its kernel copies them without TMA. One launch shares the GPU with others: it keeps to some of the multiprocessors, and
goes first on them. Every result is compared with numpy's product in f64.

Run ``python examples/13_hopper_gemms.py``. Without a GPU the kernels are compiled for an H100, and the operations'
meaning is executed on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    LinearCombination,
    MathInstruction,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import NotCompiledError

SCALE = 0.125


def main() -> None:
    """Describe the five kernels, compile them, and check what they compute."""
    e4m3, bf16, tf32 = cutlass.float_e4m3, cutlass.bfloat16, cutlass.tfloat32
    eight_bits = describe(e4m3, [128, 128, 128])
    few_rows = describe(bf16, [64, 8, 64], swap_ab=True)
    long_k = describe(bf16, [128, 128, 64], swizzling_functor=cutlass.ThreadblockSwizzleStreamK)
    gradient = describe(tf32, [128, 128, 32], layouts=(cutlass.ColumnMajor, cutlass.RowMajor))
    odd = describe(bf16, [128, 128, 64], alignments=(2, 1))
    print(f"few rows: {pycutlass.tile_use(few_rows, (5, 4096, 4096), sm_count=132)}")
    pycutlass.compiler.add_module([eight_bits, few_rows, long_k, gradient, odd], target="sm_90a")

    check("8-bit floats", eight_bits, (256, 384, 512), float8_e4m3fn)
    # Beside other work: on some of the multiprocessors, and before whatever else waits for one.
    check(
        "8-bit floats, 16 multiprocessors", eight_bits, (256, 384, 512), float8_e4m3fn, sm_count=16, launch_priority=-1
    )
    check("few rows", few_rows, (5, 512, 256), bfloat16)
    check("stream-K", long_k, (128, 256, 4096), bfloat16)
    check("split-K", long_k, (128, 256, 4096), bfloat16, split_k_slices=4)
    check("weight gradient", gradient, (384, 512, 250), np.float32)
    check("odd extents", odd, (301, 259, 514), bfloat16)
    print("Passed.")


def describe(
    operand: Any,
    threadblock_shape: list[int],
    layouts: tuple[Any, Any] = (cutlass.RowMajor, cutlass.ColumnMajor),
    alignments: tuple[int, int] | None = None,
    **options: Any,
) -> GemmOperationUniversal:
    """Describe a product of A and B of `operand`, by default both along K, with sums in f32 and D of bf16.

    `alignments` are those of A and B, and of D, in elements; by default what fills 16 bytes.
    """
    bf16, f32 = cutlass.bfloat16, cutlass.float32
    instruction = MathInstruction(None, operand, operand, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription(threadblock_shape, None, None, instruction, cluster_shape=[1, 1])
    loaded, stored = alignments or ({cutlass.tfloat32: 4, bf16: 8}.get(operand, 16), 8)
    A, B = (TensorDescription(operand, layout, loaded) for layout in layouts)
    C = TensorDescription(bf16, cutlass.RowMajor, stored)
    return GemmOperationUniversal(90, tile, A, B, C, LinearCombination(bf16, stored, f32, f32), **options)


def check(
    name: str, operation: GemmOperationUniversal, problem_size: tuple[int, int, int], operand: Any, **options: Any
) -> None:
    """Run a kernel on fresh numbers; exit unless every element is as close as its types allow."""
    M, N, K = problem_size
    rng = np.random.default_rng()
    A, B = rng.standard_normal((M, K)).astype(operand), rng.standard_normal((K, N)).astype(operand)
    A, B = (
        array if described.is_row_major else np.asfortranarray(array)
        for array, described in ((A, operation.A), (B, operation.B))
    )
    D = np.full((M, N), np.nan, bfloat16)  # an element that the kernel leaves alone is noticed
    output_op = operation.epilogue_type(SCALE)
    try:
        arguments = GemmArguments(operation, problem_size, A, B, None, D, output_op=output_op, **options)
    except NotCompiledError as error:
        print(f"{name}: not run on this GPU: {error}")
        return
    operation.run(arguments)
    arguments.sync()

    # D is rounded once, to 8 bits. Tensor cores keep about 14 bits while they add up a few products of 8-bit floats.
    # Operands of float32 are rounded to the 11 bits of tf32.
    A, B, D = (array.astype(float) for array in (A, B, D))
    summing = {float8_e4m3fn: 2.0**-11, np.float32: 2.0**-10}.get(operand, 0.0) + K * 2.0**-23
    exact = SCALE * (A @ B)
    allowed = 2.0**-8 * abs(exact) + summing * SCALE * (abs(A) @ abs(B))
    used = (abs(D - exact) / allowed).max()
    print(f"{name}, {M} x {N} x {K}: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not scale * A x B")


if __name__ == "__main__":
    main()
