"""Any Conv2d kernel from the command line, with the flags of the original's ``customizable/conv2d.py``.

Describes, compiles and runs one convolution on random numpy arrays, and compares the result with torch's convolution in
f64. For example a strided data gradient on tensor cores::

    python examples/conv2d.py -co dgrad -ia optimized -st Strided -sw StridedDgradIdentitySwizzle1 \\
        -i 16 8 16 -ta float16 -tb float16 -tc float16 -tacc float32 -op TensorOp -b 128 128 64 -s 3 -w 2 2 1 \\
        -aa 8 -ab 8 -ac 8 -nhwc 1 27 27 256 -krsc 512 3 3 256 -pad 1 1 1 1 -stride 2 1 -dilation 1 1

Without options it runs an f32 forward convolution on CUDA cores. It needs torch. Without a GPU the kernel is compiled
for the compute capability given, and the operation's meaning is executed on the host.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch.nn import functional, grad

import pycutlass
from pycutlass import (
    Conv2dArguments,
    Conv2dOperation,
    MathInstruction,
    MathOperation,
    ReductionArguments,
    ReductionOperation,
    StrideSupport,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import PyCutlassError

ELEMENTS = ("float64", "float32", "float16", "bfloat16", "tfloat32", "int32", "int8")
FUNCTORS = ("LinearCombination", "FastLinearCombinationClamp", "LinearCombinationClamp")
SWIZZLES = (
    *(f"IdentitySwizzle{size}" for size in (1, 2, 4, 8)),
    "HorizontalSwizzle",
    *(f"StridedDgrad{name}" for name in ("IdentitySwizzle1", "IdentitySwizzle4", "HorizontalSwizzle")),
)
ACTIVATIONS = ("identity", "relu", "leaky_relu", "tanh", "sigmoid", "silu", "hardswish", "gelu")
conv = cutlass.conv


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
    add("-cc", "--compute_capability", default=80, type=int)
    layouts = ("TensorNHWC", "TensorNC32HW32", "TensorC32RSK32")
    for operand in "abc":
        add(f"-l{operand}", f"--layout_{operand}", default="TensorNHWC", choices=layouts)
        add(f"-a{operand}", f"--alignment_{operand}", default=1, type=int)
    add("-te", "--element_epilogue", default="float32", choices=ELEMENTS, help="type that the epilogue computes in")
    add("-ep", "--epilogue_functor", default="LinearCombination", choices=FUNCTORS)
    add("-sw", "--swizzling_functor", choices=SWIZZLES, help="by default the first that fits")
    add("-co", "--conv_kind", default="fprop", choices=[each.name for each in conv.Operator])
    add("-st", "--stride_support", default="Strided", choices=["Strided", "Unity"])
    add("-ia", "--iterator_algorithm", default="analytic", choices=[each.name for each in conv.IteratorAlgorithm])
    add("-sm", "--split_k_mode", default="Serial", choices=["Serial", "Parallel"])
    add("-k", "--split_k_slices", default=1, type=int)
    add("-nhwc", default=[1, 16, 16, 32], type=int, nargs=4, metavar=("N", "H", "W", "C"), help="of the activation")
    add("-krsc", default=[64, 3, 3, 32], type=int, nargs=4, metavar=("K", "R", "S", "C"), help="of the filter")
    add("-pad", default=[0, 0, 0, 0], type=int, nargs=4, help="before and after, along H and along W")
    add("-stride", default=[1, 1], type=int, nargs=2, metavar=("H", "W"))
    add("-dilation", default=[1, 1], type=int, nargs=2, metavar=("H", "W"))
    add("-alpha", "--alpha", default=1.0, type=float)
    add("-beta", "--beta", default=0.0, type=float)
    add("-bias", "--bias", action="store_true", help="C is a vector of one element for each channel")
    add("-activ", "--activation_function", default="identity", choices=ACTIVATIONS)
    add("-activ_arg", "--activation_args", default=[], type=float, nargs="+", help="such as leaky_relu's slope")
    add("--print_cuda", action="store_true", help="print the generated C++")
    return parser.parse_args()


def main() -> None:
    """Go the whole way with the kernel that the flags describe."""
    args = flags()
    operation = describe(args)
    if args.split_k_slices > 1 and not operation.splits_k:  # as a command of the original's asks of a strided dgrad
        print(f"this kernel cannot split K: 1 slice instead of {args.split_k_slices}")
        args.split_k_slices = 1
    operations: list[Any] = [operation]
    if args.split_k_mode == "Parallel":
        operations.append(reduction(args, operation))
    if args.print_cuda:
        print(operation.rt_module.emit())
    pycutlass.compiler.add_module(operations)

    try:
        size = problem(args)
    except ValueError as refusal:
        raise SystemExit(f"There is no such problem: {refusal}") from None
    support = operation.supports(size)
    if not support:
        raise SystemExit(f"The kernel cannot compute this problem: {support.reason}")
    A, B, C, D = arrays(args, operation, size)
    given = [declared(each, description) for each, description in zip((A, B), (operation.A, operation.B), strict=True)]
    source = C if args.bias else declared(C, operation.C)
    target = declared(D, operation.C)
    scalars = [args.alpha, args.beta, *args.activation_args]
    if args.split_k_mode == "Parallel":
        parallel(operations, size, given, source, target, scalars, args.bias)
    else:
        arguments = Conv2dArguments(
            operation, size, *given, source, target, operation.epilogue_type(*scalars), bias=args.bias
        )
        operation.run(arguments)
        arguments.sync()
    compare(operation, size, (A, B, C), undeclared(target, operation.C), scalars)
    print("Passed.")


def describe(args: argparse.Namespace) -> Conv2dOperation:
    """Describe the operation."""
    element = {name: getattr(cutlass, getattr(args, f"element_{name}")) for name in ("a", "b", "c", "acc", "epilogue")}
    instruction = MathInstruction(
        args.instruction_shape,
        element["a"],
        element["b"],
        element["acc"],
        cutlass.OpClass.__members__[args.opcode],
        MathOperation[args.math],
    )
    # SIMT kernels load and store single elements. The original's commands say 4, of which it took no notice.
    widest = 1 if args.opcode == "Simt" else 128
    A, B, C = (
        TensorDescription(
            element[name],
            getattr(cutlass, getattr(args, f"layout_{name}")),
            min(getattr(args, f"alignment_{name}"), widest),
        )
        for name in "abc"
    )
    return Conv2dOperation(
        conv.Operator[args.conv_kind],
        conv.IteratorAlgorithm[args.iterator_algorithm],
        args.compute_capability,
        TileDescription(args.threadblock_shape, args.stages, args.warp_count, instruction),
        A,
        B,
        C,
        StrideSupport[args.stride_support],
        functor(args, C),
        None if args.swizzling_functor is None else getattr(cutlass, args.swizzling_functor),
    )


def functor(args: argparse.Namespace, C: TensorDescription) -> Any:
    """Describe the epilogue: an activation takes the place of the functor that was chosen."""
    accumulator, compute = getattr(cutlass, args.element_acc), getattr(cutlass, args.element_epilogue)
    if args.activation_function != "identity":
        activation = getattr(pycutlass, args.activation_function)(compute)
        return pycutlass.LinearCombinationGeneric(activation, C.element, C.alignment, accumulator, compute)
    if args.epilogue_functor == "FastLinearCombinationClamp":
        return pycutlass.FastLinearCombinationClamp(C.element, C.alignment)
    return getattr(pycutlass, args.epilogue_functor)(C.element, C.alignment, accumulator, compute)


def reduction(args: argparse.Namespace, operation: Conv2dOperation) -> ReductionOperation:
    """Describe the reduction of parallel split-K, which applies the epilogue."""
    count = operation.C.alignment
    return ReductionOperation(
        shape=cutlass.MatrixCoord(4, 32 * count),
        C=operation.C,
        element_accumulator=getattr(cutlass, args.element_acc),
        element_compute=getattr(cutlass, args.element_epilogue),
        epilogue_functor=operation.epilogue_functor,
        count=count,
    )


def problem(args: argparse.Namespace) -> Any:
    """Return the problem size, in the original's form."""
    return conv.Conv2dProblemSize(
        cutlass.Tensor4DCoord(*args.nhwc),
        cutlass.Tensor4DCoord(*args.krsc),
        cutlass.Tensor4DCoord(*args.pad),
        cutlass.MatrixCoord(*args.stride),
        cutlass.MatrixCoord(*args.dilation),
        conv.Mode.cross_correlation,
        args.split_k_slices,
        1,
    )


def arrays(args: argparse.Namespace, operation: Conv2dOperation, size: Any) -> list[np.ndarray]:
    """Return random A, B and C, and a D full of NaN (or of the least integer), in the order N, H, W, C."""
    rng = np.random.default_rng()
    kind = operation.conv_kind
    shapes = [
        tuple(extent(kind, size))
        for extent in (
            conv.implicit_gemm_tensor_a_extent,
            conv.implicit_gemm_tensor_b_extent,
            conv.implicit_gemm_tensor_c_extent,
        )
    ]
    if args.bias:
        shapes.append(shapes[2][3:])
    made = []
    for shape, described in zip(shapes, (operation.A, operation.B, operation.C, operation.C), strict=False):
        values = rng.integers(-4, 5, shape) if described.type.is_integer else rng.standard_normal(shape)
        made.append(values.astype(described.type.dtype))
    A, B, D = made[:3]
    C = made[3] if args.bias else D.copy()
    D[...] = np.iinfo(D.dtype).min if operation.C.type.is_integer else np.nan
    return [A, B, C, D]


def declared(array: np.ndarray, description: TensorDescription) -> np.ndarray:
    """Return an array (N, H, W, C) in the declared layout."""
    if description.layout is cutlass.TensorNHWC:
        return array
    n, h, w, c = array.shape
    groups = array.reshape(n, h, w, c // 32, 32)
    if description.layout is cutlass.TensorC32RSK32:  # whose kernels read it reordered
        return pycutlass.reorder_filter(groups.transpose(3, 1, 2, 0, 4))
    return np.ascontiguousarray(groups.transpose(0, 3, 1, 2, 4))


def undeclared(array: np.ndarray, description: TensorDescription) -> np.ndarray:
    """Return an array of the declared layout as (N, H, W, C)."""
    if description.layout is cutlass.TensorNHWC:
        return array
    n, groups, h, w, _ = array.shape
    return array.transpose(0, 2, 3, 1, 4).reshape(n, h, w, 32 * groups)


def parallel(
    operations: list[Any], size: Any, given: list[Any], source: Any, target: Any, scalars: list[float], bias: bool
) -> None:
    """Run the convolution, whose slices write their sums, and the reduction, which adds them up."""
    operation, ends = operations
    arguments = Conv2dArguments(operation, size, *given, split_k_mode=conv.SplitKMode.Parallel)
    product = conv.implicit_gemm_problem_size(operation.conv_kind, size)
    reduced = ReductionArguments(
        ends,
        [product.m(), product.n()],
        arguments.split_k_slices,
        arguments.ptr_D,
        target.reshape(-1),
        source.reshape(-1),
        output_op=ends.epilogue_type(*scalars),
        bias=bias,
    )
    operation.run(arguments)
    ends.run(reduced)
    reduced.sync()


def compare(
    operation: Conv2dOperation, size: Any, given: tuple[np.ndarray, ...], D: np.ndarray, scalars: list[float]
) -> None:
    """Exit unless each element is within the roundings of its operands, of a sum, of the slices, and of the output."""
    A, B, C = (each.astype(np.float64) for each in given)
    functor, math = operation.epilogue_functor, operation.tile_description.math_instruction
    scalars = list(functor.epilogue_type(*scalars).values)
    sizes = abs(scalars[0]) * convolved(operation, size, abs(A), abs(B)) + abs(scalars[1] * C)
    exact = functor.reference(convolved(operation, size, A, B), C, tuple(scalars), np.dtype(np.float64))
    products = conv.implicit_gemm_problem_size(operation.conv_kind, size).k()
    relative = products * math.accumulator.epsilon + 2 * functor.compute.epsilon + operand_error(math)
    slices = size.split_k_slices
    allowed = relative * sizes + functor.output.epsilon * (abs(exact) + (slices - 1) * sizes)
    allowed += 0.501 * slices if functor.output.is_integer else 1e-3 * (functor.activation is not None)
    used = (abs(D.astype(np.float64) - exact) / np.maximum(allowed, np.finfo(np.float64).tiny)).max()
    print(f"{operation.procedural_name()}: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not the convolution")


def operand_error(math: MathInstruction) -> float:
    """Return the relative error of a product whose two operands are rounded, or cut, on the way to the multipliers."""
    if not math.is_tensor_op or math.a.bits != 32:
        return 0.0
    kept = {MathOperation.multiply_add_fast_bf16: 7, MathOperation.multiply_add_fast_f32: 20}
    return 2.0 ** (1 - kept.get(math.math_operation, 10))


def convolved(operation: Conv2dOperation, size: Any, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return torch's convolution of arrays (N, H, W, C) in f64."""
    a, b = (torch.from_numpy(each).permute(0, 3, 1, 2) for each in (A, B))
    geometry = {
        "stride": (size.stride_h, size.stride_w),
        "padding": (size.pad_h, size.pad_w),
        "dilation": (size.dilation_h, size.dilation_w),
    }
    if operation.conv_kind is conv.Operator.fprop:
        result = functional.conv2d(a, b, **geometry)
    elif operation.conv_kind is conv.Operator.dgrad:
        result = grad.conv2d_input((size.N, size.C, size.H, size.W), b, a, **geometry)
    else:
        result = grad.conv2d_weight(b, (size.K, size.C, size.R, size.S), a, **geometry)
    return result.permute(0, 2, 3, 1).numpy()


if __name__ == "__main__":
    try:
        main()
    except PyCutlassError as refusal:  # not every choice of flags is a kernel; the message says why, and what would be
        raise SystemExit(f"{type(refusal).__name__}: {refusal}") from None
