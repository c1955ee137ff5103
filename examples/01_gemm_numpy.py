"""f32 GEMMs on flat numpy arrays, in the style of CUTLASS's Python scripts: on CUDA cores, and on tensor cores in tf32.

Memory pool, description, compilation, arguments, launch, synchronisation: one after the other. numpy arrays are copied
to the GPU when the arguments are made, and D comes back with ``arguments.sync()``. Both results are compared with
numpy's product in f64, and their errors show what tf32 costs.

Run ``python examples/01_gemm_numpy.py``. Without a GPU the kernels are compiled for an A100, and the operations'
meaning is executed on the host.
"""

from __future__ import annotations

import numpy as np

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

M, N, K = 256, 192, 320
ALPHA, BETA = 1.25, -0.5


def main() -> None:
    """Go the whole way, once for two kernels."""
    # Memory management: 64 MiB at once, 1 GiB at most. Without this call a pool is made at first use.
    pycutlass.get_memory_pool(init_pool_size=2**26, max_pool_size=2**30)

    # Operation description. SIMT kernels load single elements, tensor cores 16 bytes (four elements) at a time.
    f32 = cutlass.float32
    simt_instruction = MathInstruction([1, 1, 1], f32, f32, f32, cutlass.OpClass.Simt)
    tf32_instruction = MathInstruction([16, 8, 8], f32, f32, f32, cutlass.OpClass.TensorOp)
    simt = gemm(TileDescription([128, 128, 8], 4, [4, 2, 1], simt_instruction), alignment=1)
    tf32 = gemm(TileDescription([128, 128, 16], 4, [2, 2, 1], tf32_instruction), alignment=4)

    # Compilation: both kernels in parallel, each from the cache where it is there.
    pycutlass.compiler.add_module([simt, tf32])

    # Operands: flat, packed in the layouts that gemm() describes.
    rng = np.random.default_rng()
    tensor_A = rng.standard_normal(M * K).astype(np.float32)
    tensor_B = rng.standard_normal(N * K).astype(np.float32)
    tensor_C = rng.standard_normal(M * N).astype(np.float32)

    # Both operands of tf32 keep 10 of their 23 bits, rounded: an error of 2**-11 each.
    for operation, operand_error in ((simt, 0.0), (tf32, 2.0**-10 + 2.0**-22)):
        tensor_D = np.full(M * N, np.nan, np.float32)  # an element that the kernel leaves alone is noticed
        arguments = GemmArguments(
            operation=operation,
            problem_size=cutlass.gemm.GemmCoord(M, N, K),
            A=tensor_A,
            B=tensor_B,
            C=tensor_C,
            D=tensor_D,
            output_op=operation.epilogue_type(ALPHA, BETA),
            gemm_mode=cutlass.gemm.Mode.Gemm,
        )
        operation.run(arguments)
        arguments.sync()
        print(f"{operation.procedural_name()}: ", end="")
        compare(tensor_A, tensor_B, tensor_C, tensor_D, operand_error)
    print("Passed.")


def gemm(tile: TileDescription, alignment: int) -> GemmOperationUniversal:
    """Complete a description: A and C by rows, B by columns."""
    A = TensorDescription(cutlass.float32, cutlass.RowMajor, alignment)
    B = TensorDescription(cutlass.float32, cutlass.ColumnMajor, alignment)
    epilogue_functor = LinearCombination(cutlass.float32, alignment, cutlass.float32, cutlass.float32)
    return GemmOperationUniversal(80, tile, A, B, A, epilogue_functor, cutlass.IdentitySwizzle1)


def compare(
    tensor_A: np.ndarray, tensor_B: np.ndarray, tensor_C: np.ndarray, tensor_D: np.ndarray, operand_error: float
) -> None:
    """Exit unless each element is within the roundings of its operands and of a sum of K products in f32."""
    A, C, D = (tensor.astype(float).reshape(M, -1) for tensor in (tensor_A, tensor_C, tensor_D))
    B = tensor_B.astype(float).reshape(N, K).T
    error = abs(D - (ALPHA * (A @ B) + BETA * C))
    sizes = abs(ALPHA) * (abs(A) @ abs(B)) + abs(BETA) * abs(C)
    used = (error / ((operand_error + (K + 4) * 2.0**-23) * sizes)).max()
    print(f"largest error is {error.max():.1e}, {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not alpha * A x B + beta * C")


if __name__ == "__main__":
    main()
