"""What becomes of a description: the generated C++, the build report, and the machine instructions.

The C++ is what both compilers read; the report says what the device compiler made of it; the instruction mix shows that
the tensor cores are fed the way the description asks for: HMMA (or HGMMA on Hopper) multiplies, LDGSTS (or UTMALDG)
copies tiles to shared memory in the background. Then the kernel is run and its result compared.

Run ``python examples/03_inspect_kernel.py``, and with ``--hopper`` for a Hopper-native kernel, which takes longer to
compile. The instruction mix needs nvdisasm or cuobjdump: from the CUDA toolkit, or ``pip install
nvidia-cuda-nvdisasm``. `pycutlass inspect` shows the same of any kernel in the cache.
"""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
from ml_dtypes import bfloat16

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
from pycutlass.errors import NotCompiledError, ToolkitError
from pycutlass.report import BuildReport
from pycutlass.toolkit import instruction_mix

M, N, K = 256, 128, 192
# What such a kernel must contain: multiplication on tensor cores, and asynchronous copies.
EXPECTED = {"sm80": {"HMMA", "LDGSTS"}, "sm90": {"HGMMA", "UTMALDG"}}


def main() -> None:
    """Print everything there is to see of one kernel, and check what it computes."""
    parser = argparse.ArgumentParser(description="Show what becomes of a kernel's description.")
    parser.add_argument("--hopper", action="store_true", help="a Hopper-native kernel, built for sm_90a")
    hopper = parser.parse_args().hopper
    operation = describe(hopper)
    [artifact] = pycutlass.compiler.add_module([operation], target="sm_90a" if hopper else None)

    heading("Generated C++")
    print(operation.emit())
    heading(f"Build report for {artifact.target}")
    for what, value in dataclasses.asdict(BuildReport.from_json(artifact.report)).items():
        print(f"{what.replace('_', ' '):>20}  {value}")
    tile = operation.tile_description
    stages = tile.stages or "as many as fit"
    print(f"{'pipeline stages':>20}  {stages}, each of {tile.stage_bytes():,} bytes of shared memory")
    heading("Machine instructions")
    show_instructions(artifact.cubin, EXPECTED["sm90" if hopper else "sm80"])
    heading("Result")
    check(operation)
    print("Passed.")


def describe(hopper: bool) -> GemmOperationUniversal:
    """Describe a bf16 GEMM in one of the two families."""
    bf16, f32 = cutlass.bfloat16, cutlass.float32
    A = TensorDescription(bf16, cutlass.RowMajor, 8)
    B = TensorDescription(bf16, cutlass.ColumnMajor, 8)
    epilogue = LinearCombination(bf16, 8, f32, f32)
    if hopper:
        instruction = MathInstruction(None, bf16, bf16, f32, cutlass.OpClass.TensorOp)
        tile = TileDescription([128, 128, 64], None, None, instruction, cluster_shape=[2, 1])
        return GemmOperationUniversal(90, tile, A, B, A, epilogue)
    instruction = MathInstruction([16, 8, 16], bf16, bf16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    return GemmOperationUniversal(80, tile, A, B, A, epilogue)


def heading(title: str) -> None:
    """Begin a section."""
    print(f"\n{title}\n{'-' * len(title)}")


def show_instructions(cubin: bytes, expected: set[str]) -> None:
    """Print how often each instruction occurs; exit if one that the description asks for does not."""
    try:
        mix = instruction_mix(cubin)
    except ToolkitError as error:
        if not error.absent:
            raise
        print(error)
        return
    for name in sorted(expected & mix.keys()):
        print(f"{name:>12} {mix[name]:6}  <- what the description asks for")
    for name, count in mix.most_common(16):
        print(f"{name:>12} {count:6}")
    print(f"{'all':>12} {mix.total():6}")
    if missing := expected - mix.keys():
        raise SystemExit(f"Failed: the kernel has no {' and no '.join(sorted(missing))}")


def check(operation: GemmOperationUniversal) -> None:
    """Run the kernel on fresh numbers; exit unless every element is within its roundings to bf16 and in f32."""
    rng = np.random.default_rng()
    A, B = rng.standard_normal((M, K)).astype(bfloat16), rng.standard_normal((N, K)).astype(bfloat16).T
    D = np.full((M, N), np.nan, bfloat16)  # an element that the kernel leaves alone is noticed
    try:
        arguments = GemmArguments(operation=operation, problem_size=cutlass.gemm.GemmCoord(M, N, K), A=A, B=B, D=D)
    except NotCompiledError as error:
        print(f"Not run on this GPU: {error}")
        return
    operation.run(arguments)
    arguments.sync()

    A, B, D = (array.astype(float) for array in (A, B, D))
    allowed = 2.0**-8 * abs(A @ B) + K * 2.0**-23 * (abs(A) @ abs(B))
    used = (abs(D - A @ B) / allowed).max()
    print(f"largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not A x B")


if __name__ == "__main__":
    main()
