"""An f16 GEMM on torch tensors: D = alpha * A x B + beta * C.

A kernel is described once, compiled once, launched on torch's current stream, and launched again on other tensors with
``arguments.update``. On a Hopper GPU (compute capability 90) a Hopper-native kernel does the same: TMA, wgmma, and
clusters of two threadblocks. Every result is compared with torch's own product in f64.

Run ``python examples/00_gemm_torch.py``. It needs torch. Without a GPU the kernel is compiled for an A100, and the
operation's meaning is executed on the host.
"""

from __future__ import annotations

import torch

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

M, N, K = 512, 384, 320
ALPHA, BETA = 1.5, 0.5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Check every kernel that can run here, on a stream that is not torch's default one."""
    operations = [ampere_style()]
    if DEVICE == "cuda" and pycutlass.device_cc() == 90:
        operations.append(hopper_native())
    pycutlass.compiler.add_module(operations)
    with torch.cuda.stream(torch.cuda.Stream() if DEVICE == "cuda" else None):
        for operation in operations:
            check(operation)
    print("Passed.")


def ampere_style() -> GemmOperationUniversal:
    """Describe a kernel that runs on every GPU since the A100."""
    instruction = MathInstruction(
        [16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    )
    return gemm(80, TileDescription([128, 128, 32], 3, [2, 2, 1], instruction))


def hopper_native() -> GemmOperationUniversal:
    """Describe a Hopper kernel: `cluster_shape` asks for one, stages and warps follow from the tile."""
    instruction = MathInstruction(None, cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp)
    tile = TileDescription([128, 128, 64], None, None, instruction, cluster_shape=[2, 1])
    return gemm(90, tile)


def gemm(compute_capability: int, tile: TileDescription) -> GemmOperationUniversal:
    """Complete a description: operands in f16, scalars and sums in f32."""
    A = TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    B = TensorDescription(cutlass.float16, cutlass.ColumnMajor, 8)
    C = TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    epilogue = LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    return GemmOperationUniversal(compute_capability, tile, A, B, C, epilogue)


def check(operation: GemmOperationUniversal) -> None:
    """Launch on two sets of tensors. Launches follow torch's current stream, so nothing here has to wait."""
    A, B, C, D = random(M, K), random(N, K).T, random(M, N), poisoned(M, N)
    arguments = GemmArguments(
        operation=operation,
        problem_size=cutlass.gemm.GemmCoord(M, N, K),
        A=A,
        B=B,
        C=C,
        D=D,
        output_op=operation.epilogue_type(ALPHA, BETA),
    )
    operation.run(arguments)
    compare(operation, A, B, C, D)

    A, D = random(M, K), poisoned(M, N)
    arguments.update(A=A, D=D)
    operation.run(arguments)
    compare(operation, A, B, C, D)


def random(rows: int, columns: int) -> torch.Tensor:
    """Return fresh normal numbers."""
    return torch.randn(rows, columns, device=DEVICE).half()


def poisoned(rows: int, columns: int) -> torch.Tensor:
    """Return NaNs, so that an element which the kernel leaves alone is noticed."""
    return torch.full((rows, columns), float("nan"), dtype=torch.float16, device=DEVICE)


def compare(
    operation: GemmOperationUniversal, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, D: torch.Tensor
) -> None:
    """Exit unless each element is within its rounding to f16 and the roundings of a sum of K products in f32."""
    A, B, C, D = A.double(), B.double(), C.double(), D.double()
    exact = ALPHA * (A @ B) + BETA * C
    sizes = abs(ALPHA) * (A.abs() @ B.abs()) + abs(BETA) * C.abs()
    used = ((D - exact).abs() / (2.0**-11 * exact.abs() + K * 2.0**-23 * sizes)).max().item()
    print(f"{operation.procedural_name()} on {DEVICE}: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not alpha * A x B + beta * C")


if __name__ == "__main__":
    main()
