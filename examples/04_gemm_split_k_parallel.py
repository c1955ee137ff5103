"""A GEMM of few results and long sums, in slices: parallel split-K and an activation, D = gelu(alpha * A x B + bias).

A small D makes few threadblocks with much to do each. In ``Mode.GemmSplitKParallel`` every slice of K writes its f32
sums to a workspace, and a ``ReductionOperation`` adds them up, applies scalars, bias and activation once, and rounds
once. K need not be divisible by the slices: the last one is shorter. Each result is compared with the same in f64.

Run ``python examples/04_gemm_split_k_parallel.py``. Without a GPU the kernels are compiled for an A100, and the
operations' meaning is executed on the host, where slices make no difference.
"""

from __future__ import annotations

from math import erf, sqrt

import numpy as np

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    LinearCombination,
    LinearCombinationGeneric,
    MathInstruction,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    TileDescription,
    cutlass,
    gelu,
)

M, N, K = 128, 192, 4000
ALPHA = 0.02
Mode = cutlass.gemm.Mode


def main() -> None:
    """Compute one product in one slice, in even ones and in uneven ones."""
    gemm, reduction = describe()
    # With a reduction beside it, the GEMM's kernel that writes f32 sums is compiled as well.
    pycutlass.compiler.add_module([gemm, reduction])

    rng = np.random.default_rng()
    A, B = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((N, K)).astype(np.float16).T
    bias = rng.standard_normal(N).astype(np.float16)
    for slices in (1, 4, 7):
        D = np.full((M, N), np.nan, np.float16)  # an element that the kernels leave alone is noticed
        # Neither D nor scalars: this launch writes the workspace, and ptr_D is its address.
        arguments = GemmArguments(gemm, (M, N, K), A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=slices)
        ends = ReductionArguments(
            operation=reduction,
            problem_size=[M, N],
            partitions=slices,
            workspace=arguments.ptr_D,
            destination=D,
            source=bias,
            output_op=reduction.epilogue_type(ALPHA, 1.0),
        )
        gemm.run(arguments)
        reduction.run(ends)
        ends.sync()
        compare(A, B, bias, D, slices)
    print("Passed.")


def describe() -> tuple[GemmOperationUniversal, ReductionOperation]:
    """Describe the product, and what becomes of its sums: the activation belongs to the reduction."""
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    row_major = TensorDescription(f16, cutlass.RowMajor, 8)
    column_major = TensorDescription(f16, cutlass.ColumnMajor, 8)
    gemm = GemmOperationUniversal(80, tile, row_major, column_major, row_major, LinearCombination(f16, 8, f32, f32))
    reduction = ReductionOperation(
        shape=cutlass.MatrixCoord(4, 256),
        C=row_major,
        element_accumulator=f32,
        epilogue_functor=LinearCombinationGeneric(gelu(f32), f16, 8, f32, f32),
        count=8,
    )
    return gemm, reduction


def compare(A: np.ndarray, B: np.ndarray, bias: np.ndarray, D: np.ndarray, slices: int) -> None:
    """Exit unless each element is within its rounding to f16 and the roundings of a sum of K products in f32."""
    A, B, bias, D = (array.astype(float) for array in (A, B, bias, D))
    x = ALPHA * (A @ B) + bias
    exact = 0.5 * x * (1 + np.vectorize(erf)(x * sqrt(0.5)))
    sizes = ALPHA * (abs(A) @ abs(B)) + abs(bias)
    allowed = (
        2.0**-11 * abs(exact) + 2.0**-23 * (K + 8) * sizes + 2.0**-24
    )  # the last for results below f16's normal ones
    used = (abs(D - exact) / allowed).max()
    print(f"{slices} slices: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not gelu(alpha * A x B + bias)")


if __name__ == "__main__":
    main()
