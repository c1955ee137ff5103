"""Any grouped GEMM kernel from the command line, with the flags of the original's ``customizable/gemm_grouped.py``.

Describes, compiles and runs one kernel on a group of products of random numpy arrays, and compares the results with the
products in f64. The sizes are read from a file with M, N, K in each line. For example f16 on tensor cores, with the
schedule made on the host, a bias and ReLU::

    python examples/gemm_grouped.py -i 16 8 16 -ta float16 -tb float16 -tc float32 -tacc float32 -op TensorOp \\
        -b 128 128 32 -s 3 -w 2 2 1 -la RowMajor -aa 8 -lb ColumnMajor -ab 8 -lc ColumnMajor -ac 4 \\
        -p grouped_gemm_problem_size.csv -alpha 2.0 -beta 1.0 -pm Host -bias -activ relu

Interleaved layouts take int8 and sizes whose N and K are multiples of 32. Without options it runs f32 products on CUDA
cores. Without a GPU the kernel is compiled for an A100, and the operation's meaning is executed on the host.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

import pycutlass
from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    MathInstruction,
    MathOperation,
    SchedulerMode,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import PyCutlassError

HERE = Path(__file__).parent
ELEMENTS = ("float64", "float32", "float16", "bfloat16", "tfloat32", "int32", "int8")
LAYOUTS = ("RowMajor", "ColumnMajor", "RowMajorInterleaved32", "ColumnMajorInterleaved32")
FUNCTORS = ("LinearCombination", "FastLinearCombinationClamp", "LinearCombinationClamp")
SWIZZLES = (*(f"IdentitySwizzle{size}" for size in (1, 2, 4, 8)), "HorizontalSwizzle")
ACTIVATIONS = ("identity", "relu", "leaky_relu", "tanh", "sigmoid", "silu", "hardswish", "gelu", "gelu_tanh")

Sizes = list[tuple[int, int, int]]


def flags() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    three = {"type": int, "nargs": 3, "metavar": ("M", "N", "K")}
    add("-i", "--instruction_shape", default=[1, 1, 1], help="of one instruction (%(default)s)", **three)
    add("-ta", "--element_a", default="float32", choices=ELEMENTS)
    add("-tb", "--element_b", default="float32", choices=ELEMENTS)
    add("-tc", "--element_c", default="float32", choices=ELEMENTS)
    add("-tacc", "--element_acc", default="float32", choices=ELEMENTS, help="accumulator")
    add("-m", "--math", default="multiply_add", choices=[each.name for each in MathOperation])
    add("-op", "--opcode", default="Simt", choices=["Simt", "TensorOp"])
    add("-b", "--threadblock_shape", default=[128, 128, 8], help="tile of a threadblock (%(default)s)", **three)
    add("-s", "--stages", default=4, type=int, help="of the pipeline (%(default)s)")
    add("-w", "--warp_count", default=[4, 2, 1], help="warps of a threadblock (%(default)s)", **three)
    add("-cc", "--compute_capability", default=80, type=int, help="family of the kernel (%(default)s)")
    for operand in "abc":
        add(f"-l{operand}", f"--layout_{operand}", default="RowMajor", choices=LAYOUTS)
        add(f"-a{operand}", f"--alignment_{operand}", default=1, type=int)
    add("-te", "--element_epilogue", default="float32", choices=ELEMENTS, help="type that the epilogue computes in")
    add("-ep", "--epilogue_functor", default="LinearCombination", choices=FUNCTORS)
    add("-sw", "--swizzling_functor", default="IdentitySwizzle1", choices=SWIZZLES)
    add(
        "-p",
        "--problem_size_dir",
        default="grouped_gemm_problem_size.csv",
        type=Path,
        help="file of M, N, K (%(default)s)",
    )
    add("-alpha", "--alpha", default=1.0, type=float)
    add("-beta", "--beta", default=0.0, type=float)
    add("-pm", "--precompute_mode", default="Device", choices=["Device", "Host"], help="who makes the schedule")
    add(
        "-bias",
        "--bias",
        action="store_true",
        help="every C is a vector along the rows of D; its columns for ColumnMajor",
    )
    add("-activ", "--activation_function", default="identity", choices=ACTIVATIONS)
    add("-activ_arg", "--activation_args", default=[], type=float, nargs="+", help="such as leaky_relu's slope")
    add("--print_cuda", action="store_true", help="print the generated C++")
    return parser.parse_args()


def main() -> None:
    """Go the whole way with the kernel that the flags describe."""
    args = flags()
    sizes = read_sizes(args.problem_size_dir)
    operation = describe(args, max(k for _, _, k in sizes))
    if args.print_cuda:
        print(operation.emit())
    pycutlass.compiler.add_module([operation])

    A, B, C, D = arrays(operation, sizes, args.bias)
    targets = [declared(operation.C, each) for each in D]
    scalars = [args.alpha, args.beta, *args.activation_args]
    arguments = GemmGroupedArguments(
        operation,
        [cutlass.gemm.GemmCoord(*size) for size in sizes],
        [declared(operation.A, each) for each in A],
        [declared(operation.B, each) for each in B],
        C if args.bias else [declared(operation.C, each) for each in C],
        targets,
        output_op=operation.epilogue_type(*scalars),
        bias=args.bias,
    )
    operation.run(arguments)
    arguments.sync()
    D = [undeclared(operation.C, target, *like.shape) for target, like in zip(targets, D, strict=True)]
    used = max(error(operation, *operands, scalars) for operands in zip(A, B, C, D, strict=True))
    print(f"{operation.procedural_name()}, {len(sizes)} problems: largest error is {used:.2f} of what is allowed")
    if not used <= 1:
        raise SystemExit("Failed: a D is not its product")
    print("Passed.")


def read_sizes(path: Path) -> Sizes:
    """Return the sizes in a file of comma-separated values, which may lie beside this program."""
    with (path if path.exists() else HERE / path).open(newline="") as file:
        return [(int(m), int(n), int(k)) for m, n, k in csv.reader(file)]


def describe(args: argparse.Namespace, largest_k: int) -> GemmOperationGrouped:
    """Describe the operation."""
    element = {name: getattr(cutlass, getattr(args, f"element_{name}")) for name in ("a", "b", "c", "acc")}
    math = MathOperation[args.math]
    if (args.element_a, args.opcode, math) == ("int8", "TensorOp", MathOperation.multiply_add):
        math = MathOperation.multiply_add_saturate  # int8 tensor cores saturate; the original's commands do not say so
    opcode = cutlass.OpClass.__members__[args.opcode]
    instruction = MathInstruction(args.instruction_shape, element["a"], element["b"], element["acc"], opcode, math)
    tile = TileDescription(args.threadblock_shape, args.stages, args.warp_count, instruction)
    A, B, C = (
        TensorDescription(
            element[name], getattr(cutlass, getattr(args, f"layout_{name}")), getattr(args, f"alignment_{name}")
        )
        for name in "abc"
    )
    swizzle, mode = getattr(cutlass, args.swizzling_functor), SchedulerMode[args.precompute_mode]
    epilogue = functor(args, C, largest_k)
    return GemmOperationGrouped(args.compute_capability, tile, A, B, C, epilogue, swizzle, precompute_mode=mode)


def functor(args: argparse.Namespace, C: TensorDescription, largest_k: int) -> Any:
    """Describe the epilogue: an activation takes the place of the functor that was chosen."""
    accumulator, compute = getattr(cutlass, args.element_acc), getattr(cutlass, args.element_epilogue)
    if args.activation_function != "identity":
        activation = getattr(pycutlass, args.activation_function)(compute)
        return pycutlass.LinearCombinationGeneric(activation, C.element, C.alignment, accumulator, compute)
    if args.epilogue_functor == "FastLinearCombinationClamp":
        fast = pycutlass.FastLinearCombinationClamp(C.element, C.alignment)
        if largest_k <= (fast.max_k or 0):
            return fast
        print(f"a K is larger than {fast.max_k}: LinearCombinationClamp instead of FastLinearCombinationClamp")
        return pycutlass.LinearCombinationClamp(C.element, C.alignment, accumulator, compute)
    return getattr(pycutlass, args.epilogue_functor)(C.element, C.alignment, accumulator, compute)


def arrays(operation: GemmOperationGrouped, sizes: Sizes, bias: bool) -> list[list[np.ndarray]]:
    """Return random matrices A, B and C, and D full of NaN (or of the least integer)."""
    rng = np.random.default_rng()

    def random(description: TensorDescription, rows: int, columns: int) -> np.ndarray:
        values = rng.standard_normal((rows, columns))
        if description.type.is_integer:
            values = rng.integers(-4, 5, (rows, columns))
        return values.astype(description.type.dtype)

    A = [random(operation.A, m, k) for m, _, k in sizes]
    B = [random(operation.B, k, n) for _, n, k in sizes]
    C = [random(operation.C, m, n) for m, n, _ in sizes]
    if bias:
        C = [random(operation.C, 1, n if operation.C.is_row_major else m)[0] for m, n, _ in sizes]
    dtype = operation.C.type.dtype
    poison = np.iinfo(dtype).min if operation.C.type.is_integer else np.nan
    return [A, B, C, [np.full((m, n), poison, dtype) for m, n, _ in sizes]]


def declared(description: TensorDescription, matrix: np.ndarray) -> np.ndarray:
    """Return a matrix in the declared layout: by rows, by columns, or flat in groups of 32."""
    if description.layout is cutlass.ColumnMajorInterleaved32:
        return pycutlass.interleave_columns(matrix)
    if description.layout is cutlass.RowMajorInterleaved32:  # B, whose columns an interleaved kernel reads reordered
        return pycutlass.reorder_column(pycutlass.interleave_rows(matrix))
    return np.asarray(matrix, order="C" if description.is_row_major else "F")


def undeclared(description: TensorDescription, array: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return what `declared` made as a matrix of `rows` x `columns`."""
    if description.layout is cutlass.ColumnMajorInterleaved32:
        return pycutlass.deinterleave_columns(array, rows, columns)
    return array


def error(
    operation: GemmOperationGrouped, A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray, scalars: list[float]
) -> float:
    """Return the largest error of one product in units of the roundings of operands, sum and output; inf for NaN."""
    A, B, C = (each.astype(np.float64) for each in (A, B, C))
    if C.ndim == 1 and not operation.C.is_row_major:
        C = C[:, None]
    functor, math = operation.epilogue_functor, operation.tile_description.math_instruction
    values = functor.epilogue_type(*scalars).values
    sizes = abs(values[0]) * (abs(A) @ abs(B)) + abs(values[1] * C)
    exact = functor.reference(A @ B, C, values, np.dtype(np.float64))
    relative = A.shape[-1] * math.accumulator.epsilon + 4 * functor.compute.epsilon + operand_error(math)
    allowed = 1.2 * relative * sizes + functor.output.epsilon * abs(exact)  # no activation is steeper than 1.13
    allowed += 0.501 if functor.output.is_integer else 0.0
    if functor.activation is not None:
        relative, absolute = functor.activation.error(functor.compute)
        allowed += absolute + relative * sizes
    used = (abs(D.astype(np.float64) - exact) / np.maximum(allowed, np.finfo(np.float64).tiny)).max(initial=0.0)
    return float(np.nan_to_num(used, nan=np.inf))  # max() takes no notice of NaN


def operand_error(math: MathInstruction) -> float:
    """Return the relative error of a product whose two operands are rounded, or cut, on the way to the multipliers."""
    if not math.is_tensor_op or math.a.bits != 32:
        return 0.0
    kept = {MathOperation.multiply_add_fast_bf16: 7, MathOperation.multiply_add_fast_f32: 20}
    return 2.0 ** (1 - kept.get(math.math_operation, 10))


if __name__ == "__main__":
    try:
        main()
    except PyCutlassError as refusal:  # not every choice of flags is a kernel; the message says why, and what would be
        raise SystemExit(f"{type(refusal).__name__}: {refusal}") from None
