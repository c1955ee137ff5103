"""An f64 GEMM on cupy arrays, with alpha in device memory: D = alpha * A x B + beta * C.

The launch follows cupy's current stream. Alpha lives on the GPU, where another kernel may have computed it, and is read
when the GEMM runs. C and D are stored by columns, so they are arrays in Fortran order. The result is compared with
numpy's product in extended precision.

Run ``python examples/02_gemm_cupy.py``. Where cupy or a GPU is missing it says so and goes on with numpy arrays.
"""

from __future__ import annotations

import contextlib
from typing import Any

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

M, N, K = 192, 160, 144
BETA = 0.75


def main() -> None:
    """Describe, compile, launch on a stream of cupy's, and compare."""
    operation = describe()
    pycutlass.compiler.add_module([operation])
    xp, stream = array_library()

    rng = np.random.default_rng()
    A, B, C = (rng.standard_normal(shape) for shape in ((M, K), (K, N), (M, N)))
    alpha = np.array(rng.standard_normal())
    with stream:
        D = xp.full((M, N), np.nan, order="F")  # an element that the kernel leaves alone is noticed
        arguments = GemmArguments(
            operation=operation,
            problem_size=cutlass.gemm.GemmCoord(M, N, K),
            A=xp.asarray(A),
            B=xp.asarray(B),
            C=xp.asarray(C, order="F"),
            D=D,
            output_op=operation.epilogue_type(xp.asarray(alpha), BETA),
        )
        operation.run(arguments)
        result = D if xp is np else xp.asnumpy(D)  # on the same stream, so behind the launch
    compare(A, B, C, alpha, result)
    print("Passed.")


def describe() -> GemmOperationUniversal:
    """Describe a kernel on f64 tensor cores: A and B by rows, C and D by columns."""
    f64 = cutlass.float64
    instruction = MathInstruction([8, 8, 4], f64, f64, f64, cutlass.OpClass.TensorOp)
    tile = TileDescription([64, 64, 16], 4, [2, 2, 1], instruction)
    A, B = TensorDescription(f64, cutlass.RowMajor), TensorDescription(f64, cutlass.RowMajor)
    C = TensorDescription(f64, cutlass.ColumnMajor)
    return GemmOperationUniversal(80, tile, A, B, C, LinearCombination(f64, 1, f64, f64))


def array_library() -> tuple[Any, Any]:
    """Return cupy and a stream of its own, or numpy and nothing, saying why."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        print("cupy is not installed (pip install 'pycutlass[cupy]'): going on with numpy arrays.")
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(f"cupy has no GPU ({error}): going on with numpy arrays.")
    else:
        return cupy, cupy.cuda.Stream(non_blocking=True)
    return np, contextlib.nullcontext()


def compare(A: Any, B: Any, C: Any, alpha: Any, D: Any) -> None:
    """Exit unless each element of `D` is within the roundings of a sum of K products in f64."""
    A, B, C, alpha = (array.astype(np.longdouble) for array in (A, B, C, alpha))
    exact = alpha * (A @ B) + BETA * C
    sizes = abs(alpha) * (abs(A) @ abs(B)) + BETA * abs(C)
    used = (abs(D - exact) / ((K + 4) * 2.0**-52 * sizes)).max()
    print(f"largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not alpha * A x B + beta * C")


if __name__ == "__main__":
    main()
