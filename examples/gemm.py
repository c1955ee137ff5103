"""Any GEMM kernel from the command line, with the flags of the original's ``customizable/gemm.py``.

Describes, compiles and runs one GEMM, or a batch of them, on random numpy arrays, and compares the result with the
product in f64. For example f16 on tensor cores, K in three slices, with bias and ReLU::

    python examples/gemm.py -i 16 8 16 -ta float16 -tb float16 -tc float32 -tacc float32 -op TensorOp \\
        -b 256 128 64 -s 3 -w 4 2 1 -la ColumnMajor -aa 8 -lb ColumnMajor -ab 8 -lc RowMajor -ac 4 \\
        -p 512 256 128 -alpha 1.0 -beta 0.5 -gm GemmSplitKParallel -k 3 -bias -activ relu

Without options it runs an f32 product on CUDA cores. Without a GPU the kernel is compiled for an A100, and the
operation's meaning is executed on the host.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    MathInstruction,
    MathOperation,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import PyCutlassError

ELEMENTS = ("float64", "float32", "float16", "bfloat16", "tfloat32", "int32", "int8")
LAYOUTS = ("RowMajor", "ColumnMajor", "RowMajorInterleaved32", "ColumnMajorInterleaved32")
FUNCTORS = ("LinearCombination", "FastLinearCombinationClamp", "LinearCombinationClamp")
SWIZZLES = (
    *(f"IdentitySwizzle{size}" for size in (1, 2, 4, 8)),
    "HorizontalSwizzle",
    "BatchedIdentitySwizzle",
    "ThreadblockSwizzleStreamK",
)
ACTIVATIONS = ("identity", "relu", "leaky_relu", "tanh", "sigmoid", "silu", "hardswish", "gelu", "gelu_tanh")
MODES = ("Gemm", "GemmSplitKParallel", "Batched", "Array")
Mode = cutlass.gemm.Mode


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
    add("-p", "--problem_size", default=[128, 128, 128], help="(%(default)s)", **three)
    add("-alpha", "--alpha", default=1.0, type=float)
    add("-beta", "--beta", default=0.0, type=float)
    add("-gm", "--gemm_mode", default="Gemm", choices=MODES)
    add("-k", "--split_k_slices", default=1, type=int)
    add("-batch", "--batch", default=1, type=int, help="problems, for Batched and Array")
    add("-bias", "--bias", action="store_true", help="C is a vector along the rows of D; its columns for ColumnMajor")
    add("-activ", "--activation_function", default="identity", choices=ACTIVATIONS)
    add("-activ_arg", "--activation_args", default=[], type=float, nargs="+", help="such as leaky_relu's slope")
    add("--print_cuda", action="store_true", help="print the generated C++")
    return parser.parse_args()


def main() -> None:
    """Go the whole way with the kernel that the flags describe."""
    args = flags()
    operation = describe(args)
    operations: list[Any] = [operation]
    if args.gemm_mode == "GemmSplitKParallel":
        operations.append(reduction(args, operation))
    if args.print_cuda:
        print("\n".join(each.emit() for each in operations))
    pycutlass.compiler.add_module(operations)

    A, B, C, D = arrays(args, operation)
    mode, scalars = Mode.__members__[args.gemm_mode], [args.alpha, args.beta, *args.activation_args]
    target = given(mode, operation.C, D)
    operands = [
        given(mode, operation.A, A),
        given(mode, operation.B, B),
        given(mode, operation.C, C, bias=args.bias),
        target,
    ]
    if mode == Mode.GemmSplitKParallel:
        split(args, operations, operands, scalars)
    else:
        arguments = GemmArguments(
            operation,
            args.problem_size,
            *operands,
            mode,
            output_op=operation.epilogue_type(*scalars),
            split_k_slices=args.split_k_slices,
            batch=args.batch,
            bias=args.bias,
        )
        operation.run(arguments)
        arguments.sync()
    compare(operation, A, B, C, matrices(operation.C, target, D), scalars, args.split_k_slices)
    print("Passed.")


def describe(args: argparse.Namespace) -> GemmOperationUniversal:
    """Describe the operation."""
    element = {name: getattr(cutlass, getattr(args, f"element_{name}")) for name in ("a", "b", "c", "acc")}
    math = MathOperation[args.math]
    if (args.element_a, args.opcode, math) == ("int8", "TensorOp", MathOperation.multiply_add):
        math = MathOperation.multiply_add_saturate  # int8 tensor cores saturate; the original's commands do not say so
    instruction = MathInstruction(
        args.instruction_shape,
        element["a"],
        element["b"],
        element["acc"],
        cutlass.OpClass.__members__[args.opcode],
        math,
    )
    A, B, C = (
        TensorDescription(
            element[name], getattr(cutlass, getattr(args, f"layout_{name}")), getattr(args, f"alignment_{name}")
        )
        for name in "abc"
    )
    tile = TileDescription(args.threadblock_shape, args.stages, args.warp_count, instruction)
    swizzle = getattr(cutlass, args.swizzling_functor)
    return GemmOperationUniversal(args.compute_capability, tile, A, B, C, functor(args, C), swizzle)


def functor(args: argparse.Namespace, C: TensorDescription) -> Any:
    """Describe the epilogue: an activation takes the place of the functor that was chosen."""
    accumulator, compute = getattr(cutlass, args.element_acc), getattr(cutlass, args.element_epilogue)
    if args.activation_function != "identity":
        activation = getattr(pycutlass, args.activation_function)(compute)
        return pycutlass.LinearCombinationGeneric(activation, C.element, C.alignment, accumulator, compute)
    if args.epilogue_functor == "FastLinearCombinationClamp":
        fast = pycutlass.FastLinearCombinationClamp(C.element, C.alignment)
        if args.problem_size[2] <= (fast.max_k or 0):
            return fast
        print(f"K is larger than {fast.max_k}: LinearCombinationClamp instead of FastLinearCombinationClamp")
        return pycutlass.LinearCombinationClamp(C.element, C.alignment, accumulator, compute)
    return getattr(pycutlass, args.epilogue_functor)(C.element, C.alignment, accumulator, compute)


def reduction(args: argparse.Namespace, operation: GemmOperationUniversal) -> ReductionOperation:
    """Describe the reduction of parallel split-K, which applies the epilogue."""
    count = operation.C.alignment
    return ReductionOperation(
        shape=cutlass.MatrixCoord(4, 32 * count),
        C=operation.C,
        element_accumulator=getattr(cutlass, args.element_acc),
        epilogue_functor=operation.epilogue_functor,
        count=count,
    )


def arrays(args: argparse.Namespace, operation: GemmOperationUniversal) -> list[np.ndarray]:
    """Return random A, B and C of shape (batch, rows, columns), and a D full of NaN (or of the least integer)."""
    rng = np.random.default_rng()
    m, n, k = args.problem_size
    shapes = [(operation.A, m, k), (operation.B, k, n), (operation.C, m, n)]
    if args.bias:
        shapes[2] = (operation.C, *((1, n) if operation.C.is_row_major else (m, 1)))
    made = []
    for described, rows, columns in shapes:
        shape = (args.batch, rows, columns)
        values = rng.integers(-4, 5, shape) if described.type.is_integer else rng.standard_normal(shape)
        made.append(values.astype(described.type.dtype))
    poison = np.iinfo(operation.C.type.dtype).min if operation.C.type.is_integer else np.nan
    return [*made, np.full((args.batch, m, n), poison, operation.C.type.dtype)]


def given(mode: Any, description: TensorDescription, array: np.ndarray, bias: bool = False) -> Any:
    """Return arrays (batch, rows, columns) in the declared layout, as the mode takes them."""
    if bias:
        declared = array.reshape(len(array), -1)
    elif description.layout is cutlass.RowMajor:
        declared = array
    elif description.layout is cutlass.ColumnMajor:
        declared = np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)
    else:
        columns = description.layout is cutlass.ColumnMajorInterleaved32
        pack = pycutlass.interleave_columns if columns else pycutlass.interleave_rows
        declared = np.stack([pack(each) for each in array])
    if mode == Mode.Array:
        return [as_read(description, each) for each in declared]
    if mode == Mode.Batched:
        return as_read(description, declared.reshape(-1) if declared.ndim == 2 else declared)
    return as_read(description, declared[0])


def as_read(description: TensorDescription, packed: np.ndarray) -> np.ndarray:
    """Return an operand as its kernel reads it: an interleaved B with its columns reordered, once for all launches."""
    if description.layout is not cutlass.RowMajorInterleaved32:
        return packed
    reordered: np.ndarray = pycutlass.reorder_column(packed)
    return reordered


def matrices(description: TensorDescription, target: Any, like: np.ndarray) -> np.ndarray:
    """Return what `given` made of D as an array (batch, rows, columns)."""
    batch, rows, columns = like.shape
    array = np.stack(target) if isinstance(target, list) else target
    if description.layout is not cutlass.ColumnMajorInterleaved32:
        return array.reshape(like.shape)
    return np.stack([pycutlass.deinterleave_columns(each, rows, columns) for each in array.reshape(batch, -1)])


def split(args: argparse.Namespace, operations: list[Any], operands: list[Any], scalars: list[float]) -> None:
    """Run the GEMM, whose slices write their sums, and the reduction, which adds them up."""
    operation, ends = operations
    A, B, C, D = operands
    arguments = GemmArguments(
        operation, args.problem_size, A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=args.split_k_slices
    )
    reduced = ReductionArguments(
        ends,
        args.problem_size[:2],
        args.split_k_slices,
        arguments.ptr_D,
        D,
        C,
        output_op=ends.epilogue_type(*scalars),
        bias=args.bias,
    )
    operation.run(arguments)
    ends.run(reduced)
    reduced.sync()


def compare(
    operation: GemmOperationUniversal,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    D: np.ndarray,
    scalars: list[float],
    slices: int,
) -> None:
    """Exit unless each element is within the roundings of its operands, of a sum, of the slices, and of the output."""
    A, B, C = (each.astype(np.float64) for each in (A, B, C))
    functor, math = operation.epilogue_functor, operation.tile_description.math_instruction
    scalars = list(functor.epilogue_type(*scalars).values)
    sizes = abs(scalars[0]) * (abs(A) @ abs(B)) + abs(scalars[1] * C)
    exact = functor.reference(A @ B, C, tuple(scalars), np.dtype(np.float64))
    relative = A.shape[-1] * math.accumulator.epsilon + 4 * functor.compute.epsilon + operand_error(math)
    allowed = 1.2 * relative * sizes  # no activation is steeper than 1.13
    allowed += functor.output.epsilon * (abs(exact) + (slices - 1) * sizes)
    allowed += 0.501 * slices if functor.output.is_integer else 0.0
    if functor.activation is not None:
        relative, absolute = functor.activation.error(functor.compute)
        allowed += absolute + relative * sizes
    used = (abs(D.astype(np.float64) - exact) / np.maximum(allowed, np.finfo(np.float64).tiny)).max()
    print(f"{operation.procedural_name()}: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not the product")


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
