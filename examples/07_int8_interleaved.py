"""An int8 GEMM whose operands are stored in groups of 32 columns or rows: D = clamp(alpha * A x B + beta * C).

A, C and D are ``ColumnMajorInterleaved32`` and B is ``RowMajorInterleaved32``, so that a tensor core's int8 operands
come from memory in whole lines. The kernel stores D straight from registers and therefore reads B with its columns
permuted: ``reorder_column`` does that once for a weight, on the device that it is on. The result has to be equal to
torch's product to the bit.

Run ``python examples/07_int8_interleaved.py``. It needs torch. Without a GPU the kernel is compiled for an A100, and
the operation's meaning is executed on the host.
"""

from __future__ import annotations

import torch

import pycutlass
from pycutlass import (
    FastLinearCombinationClamp,
    GemmArguments,
    GemmOperationUniversal,
    MathInstruction,
    MathOperation,
    TensorDescription,
    TileDescription,
    cutlass,
    deinterleave_columns,
    interleave_columns,
    interleave_rows,
    reorder_column,
)

M, N, K = 160, 224, 256  # N and K in groups of 32; FastLinearCombinationClamp holds for K of at most 256
ALPHA, BETA = 0.25, 2.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Pack, launch, unpack and compare."""
    operation = describe()
    pycutlass.compiler.add_module([operation])

    A, B, C = random(M, K), random(K, N), random(M, N)
    weight = reorder_column(interleave_rows(B))
    D = torch.full((M * N,), -128, dtype=torch.int8, device=DEVICE)
    arguments = GemmArguments(
        operation=operation,
        problem_size=cutlass.gemm.GemmCoord(M, N, K),
        A=interleave_columns(A),
        B=weight,
        C=interleave_columns(C),
        D=D,
        output_op=operation.epilogue_type(ALPHA, BETA),
    )
    operation.run(arguments)
    compare(operation, A, B, C, deinterleave_columns(D, M, N))
    print("Passed.")


def describe() -> GemmOperationUniversal:
    """Describe the kernel: 16 bytes of A and B at a time, 8 of C and D."""
    int8, int32 = cutlass.int8, cutlass.int32
    instruction = MathInstruction(
        [16, 8, 32], int8, int8, int32, cutlass.OpClass.TensorOp, MathOperation.multiply_add_saturate
    )
    tile = TileDescription([64, 64, 64], 6, [2, 2, 1], instruction)
    A = TensorDescription(int8, cutlass.ColumnMajorInterleaved32, 16)
    B = TensorDescription(int8, cutlass.RowMajorInterleaved32, 16)
    C = TensorDescription(int8, cutlass.ColumnMajorInterleaved32, 8)
    return GemmOperationUniversal(80, tile, A, B, C, FastLinearCombinationClamp(int8, 8))


def random(rows: int, columns: int) -> torch.Tensor:
    """Return fresh integers, so large that some results have to be clamped."""
    return torch.randint(-5, 6, (rows, columns), dtype=torch.int8, device=DEVICE)


def compare(
    operation: GemmOperationUniversal, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, D: torch.Tensor
) -> None:
    """Exit unless each element is exact: scalars that are powers of two leave one rounding, to even."""
    exact = ALPHA * (A.double() @ B.double()) + BETA * C.double()
    clamped = ((exact < -128) | (exact > 127)).sum().item()
    wrong = (D != exact.round().clamp(-128, 127)).sum().item()
    print(f"{operation.procedural_name()} on {DEVICE}: {wrong} of {M * N} elements are wrong, {clamped} are clamped")
    if wrong:
        raise SystemExit("Failed: D is not clamp(alpha * A x B + beta * C)")


if __name__ == "__main__":
    main()
