"""A weight gradient, whose sums are long and whose results are few, with its sums split: serial and parallel split-K.

The gradient of a small filter sums over all pixels of all images: few threadblocks with much to do each. Split-K
divides the sums into slices for more threadblocks. Serial: the slices take turns adding to D, which is rounded to f16
after each. Parallel: every slice writes its f32 sums to a workspace, and a second kernel adds them up, rounds once and
applies the epilogue. Both are compared with the exact gradient.

Run ``python examples/11_conv2d_split_k.py``. Without a GPU the kernels are compiled for an A100, and the operations'
meaning is executed on the host, where slices make no difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pycutlass
from pycutlass import (
    Conv2dArguments,
    Conv2dOperation,
    LinearCombination,
    MathInstruction,
    ReductionArguments,
    ReductionOperation,
    StrideSupport,
    TensorDescription,
    TileDescription,
    conv2d_problem_size,
    cutlass,
)

ALPHA, BETA = 0.5, 1.0
SplitKMode = cutlass.conv.SplitKMode


def main() -> None:
    """Compute one gradient in several ways."""
    f16, f32 = cutlass.float16, cutlass.float32
    nhwc = TensorDescription(f16, cutlass.TensorNHWC, 8)
    instruction = MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    operation = Conv2dOperation(
        cutlass.conv.Operator.wgrad,
        cutlass.conv.IteratorAlgorithm.optimized,
        80,
        TileDescription([128, 64, 64], 3, [2, 2, 1], instruction),
        nhwc,
        nhwc,
        nhwc,
        StrideSupport.Strided,
        LinearCombination(f16, 8, f32, f32),
    )
    reduction = ReductionOperation(
        cutlass.MatrixCoord(4, 256), nhwc, f32, epilogue_functor=LinearCombination(f16, 8, f32, f32), count=8
    )
    # With a reduction beside it, the operation's kernel that writes f32 sums is compiled as well.
    pycutlass.compiler.add_module([operation, reduction])

    rng = np.random.default_rng()
    x, w = rng.standard_normal((4, 28, 28, 32)).astype(np.float16), np.empty((64, 3, 3, 32), np.float16)
    size = conv2d_problem_size(x, w, padding=1)
    dy = rng.standard_normal((size.N, size.P, size.Q, size.K)).astype(np.float16)
    source = rng.standard_normal(w.shape).astype(np.float16)
    exact = ALPHA * weight_gradient(dy, x) + BETA * source

    for slices in (1, 2, 7):
        D = np.full(w.shape, np.nan, np.float16)
        scalars = operation.epilogue_type(ALPHA, BETA)
        arguments = Conv2dArguments(operation, size, dy, x, source, D, scalars, SplitKMode.Serial, slices)
        operation.run(arguments)
        arguments.sync()
        compare(D, exact, size, f"serial, {slices} slices", roundings=slices)

        D = np.full(w.shape, np.nan, np.float16)
        arguments = Conv2dArguments(operation, size, dy, x, split_k_mode=SplitKMode.Parallel, split_k_slices=slices)
        product = cutlass.conv.implicit_gemm_problem_size(operation.conv_kind, size)
        m, n = product.m(), product.n()
        ends = ReductionArguments(
            operation=reduction,
            problem_size=[m, n],
            partitions=slices,
            workspace=arguments.ptr_D,
            destination=D.reshape(m, n),
            source=source.reshape(m, n),
            output_op=reduction.epilogue_type(ALPHA, BETA),
        )
        operation.run(arguments)
        reduction.run(ends)
        ends.sync()
        compare(D, exact, size, f"parallel, {slices} slices", roundings=1)
    print("Passed.")


def weight_gradient(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the gradient of a 3x3 filter with padding 1 in f64."""
    dy, padded = dy.astype(float), np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = dy.shape[1:3]
    taps = [[padded[:, r : r + height, s : s + width] for s in range(3)] for r in range(3)]
    rows = [np.stack([np.tensordot(dy, tap, ((0, 1, 2), (0, 1, 2))) for tap in row], axis=1) for row in taps]
    return np.stack(rows, axis=1)


def compare(D: np.ndarray, exact: np.ndarray, size: Any, what: str, roundings: int) -> None:
    """Exit unless each element is within its roundings to f16, and those of a sum in f32."""
    error = abs(D.astype(float) - exact)
    pixels = size.N * size.P * size.Q
    largest = 2.0**-11 * (abs(exact) + (roundings - 1) * 4 * ALPHA * pixels**0.5)
    used = (error / (largest + pixels * 2.0**-23)).max()
    print(f"{what}: mean error {error.mean():.1e}, largest {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not the gradient")


if __name__ == "__main__":
    main()
