"""The rules of a convolution's parts, beside those of the matrix product that it is."""

from __future__ import annotations

from pycutlass import _core
from pycutlass.enums import GroupMode
from pycutlass.errors import DescriptionError
from pycutlass.operation.conv2d_support import Described

__all__ = ["check_algorithm", "check_groups", "check_layouts", "check_loads", "check_tree"]

_Operator, _Algorithm = _core.ConvOperator, _core.IteratorAlgorithm
#: Bits that the optimized iterators have for a thread's loads of the filter, or of wgrad's output gradient
#: (conv2d_*_filter_*_optimized.h, conv2d_wgrad_output_gradient_*_optimized.h).
_MAX_LOADS = 32
_NHWC = (_core.TensorNHWC,) * 3
_INTERLEAVED = (_core.TensorNC32HW32, _core.TensorC32RSK32, _core.TensorNC32HW32)


def check_layouts(operation: Described) -> None:
    """Check that the layouts go together, and that there is such a convolution of integers."""
    layouts = (operation.A.layout, operation.B.layout, operation.C.layout)
    math = operation.tile_description.math_instruction
    if math.a is not math.b:
        raise DescriptionError(
            f"convolutions multiply operands of one type, got {math.a} and {math.b}: convert one of them"
        )
    if math.a.is_integer and (operation.conv_kind is not _Operator.fprop or not math.is_tensor_op):
        raise DescriptionError(
            f"int8 convolution is fprop by TensorOp; got {operation.conv_kind.name} by {math.opcode_class.name}"
        )
    if layouts == _INTERLEAVED:
        if not math.a.is_integer or operation.C.type.short != "s8":
            raise DescriptionError(
                f"{operation.A.order} is for int8 fprop that writes int8; got {math.a} and {operation.C.type}"
            )
    elif layouts != _NHWC:
        raise DescriptionError(
            f"a convolution takes A, B and C of layout cutlass.TensorNHWC, or for int8 fprop TensorNC32HW32, "
            f"TensorC32RSK32 and TensorNC32HW32; got {operation.A.order}, {operation.B.order} and {operation.C.order}"
        )


def check_tree(operation: Described) -> None:
    """Check that an epilogue with visitors is for the kernel, whose D must be a plain matrix of pixels by channels."""
    wrong = []
    if not operation.tile_description.math_instruction.is_tensor_op and not operation.epilogue_functor.takes_simt:
        wrong.append(f"{operation.tile_description.math_instruction.opcode_class.name} kernels")
    if operation.is_interleaved:
        wrong.append(f"a C of {operation.C.order}")
    if operation.group_mode is not None:
        wrong.append(f"{operation.group_mode!r}")
    if operation.is_strided_dgrad:
        wrong.append("strided dgrad, which writes pixels in another order")
    if wrong:
        cores = "" if operation.epilogue_functor.takes_simt else "OpClass.TensorOp, "
        unity = ", or StrideSupport.Unity for strides of 1" if operation.is_strided_dgrad else ""
        raise DescriptionError(
            f"convolutions with the epilogue {operation.epilogue_functor!r} are for {cores}TensorNHWC, no "
            f"groups and no strided dgrad; got {' and '.join(wrong)}: use LinearCombination or "
            f"LinearCombinationGeneric{unity}"
        )


def check_algorithm(operation: Described) -> None:
    """Check that the iterator algorithm is for this kind of convolution, and computes it right."""
    algorithm, math = operation.iterator_algorithm, operation.tile_description.math_instruction
    if operation.is_strided_dgrad and operation.tile_description.stages == 2:
        raise DescriptionError(
            "strided dgrad needs 3 stages or more: CUTLASS's 2-stage mainloop gives wrong results for it (seen on "
            "an H200). Alignments below 4 bytes, which need 2 stages, are there for unity stride only."
        )
    if algorithm in (_Algorithm.analytic, _Algorithm.optimized):
        return
    if operation.conv_kind is not _Operator.fprop or not math.is_tensor_op or operation.is_interleaved:
        raise DescriptionError(
            f"{algorithm.name} is for fprop by TensorOp in TensorNHWC; got {operation.conv_kind.name} by "
            f"{math.opcode_class.name} in {operation.A.order}: use optimized or analytic"
        )
    if algorithm is _Algorithm.fixed_channels and operation.A.alignment != operation.B.alignment:
        raise DescriptionError(
            f"fixed_channels is for as many channels as the alignment, the same for both operands; got "
            f"{operation.A.alignment} for A and {operation.B.alignment} for B"
        )


def check_loads(operation: Described) -> None:
    """Check that the optimized algorithm has a bit for each load by one thread. For wgrad CUTLASS does not ask."""
    if operation.iterator_algorithm is not _Algorithm.optimized:
        return
    tile = operation.tile_description
    m, n, k = tile.threadblock_shape
    name, operand, rows = ("A", operation.A, m) if operation.conv_kind is _Operator.wgrad else ("B", operation.B, n)
    single = operand.type.bits == 64 or not tile.math_instruction.is_tensor_op
    loads = rows * k // (1 if single else 128 // operand.type.bits) // tile.num_threads
    if loads >= _MAX_LOADS:
        raise DescriptionError(
            f"the {rows}x{k} tile of operand {name} has {loads} loads for each of {tile.num_threads} threads, and "
            f"the optimized algorithm takes fewer than {_MAX_LOADS}: use more warps, a smaller threadblock_shape, "
            f"or analytic"
        )


def check_groups(operation: Described) -> None:
    """Check that there is a kernel for channels in groups."""
    kind, math = operation.conv_kind, operation.tile_description.math_instruction
    if kind is not _Operator.fprop or not math.is_tensor_op or operation.is_interleaved:
        raise DescriptionError(
            f"group_mode is for fprop by TensorOp in TensorNHWC; got {kind.name} by {math.opcode_class.name} in "
            f"{operation.A.order}: launch once for each group, on slices of the channels"
        )
    single = operation.group_mode is GroupMode.SingleGroup
    algorithms = (_Algorithm.analytic, _Algorithm.optimized) if single else (_Algorithm.analytic,)
    if operation.iterator_algorithm not in algorithms:
        known = " or ".join(algorithm.name for algorithm in algorithms)
        raise DescriptionError(f"{operation.group_mode!r} needs {known}, got {operation.iterator_algorithm.name}")
