"""Which convolution problems a kernel can compute, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pycutlass import _core
from pycutlass.enums import GroupMode, StrideSupport
from pycutlass.epilogue import Epilogue, Port
from pycutlass.epilogue.fast_clamp import for_any_sums
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operands.conv_operand import ConvOperand, Extent
from pycutlass.operands.convolutions import channel_bias_of, conv_tensor_of, is_channel_bias
from pycutlass.operands.epilogue import packed_port
from pycutlass.operation.narrower import narrower
from pycutlass.operation.support import Support, why_not_selected
from pycutlass.remedies import EpilogueName
from pycutlass.spec import TensorSpec, view_of
from pycutlass.tensor import TensorView

__all__ = [
    "ROLES",
    "Conv2dSupport",
    "Described",
    "byte_limit",
    "check_operands",
    "extent_of",
    "launched_size",
    "operand_of",
    "output",
    "outputs",
    "port_operand_of",
    "products",
    "takes_bias",
    "why_never",
    "why_not",
]

_Operator, _Algorithm = _core.ConvOperator, _core.IteratorAlgorithm
_FEW = (_Algorithm.fixed_channels, _Algorithm.few_channels)


#: What users call the operands of each direction.
ROLES = {
    _Operator.fprop: {"A": "activation", "B": "filter", "C": "source", "D": "output"},
    _Operator.dgrad: {"A": "output gradient", "B": "filter", "C": "source", "D": "activation gradient"},
    _Operator.wgrad: {"A": "output gradient", "B": "activation", "C": "source", "D": "filter gradient"},
}
_EXTENTS = {
    "A": _core.implicit_gemm_tensor_a_extent,
    "B": _core.implicit_gemm_tensor_b_extent,
    "C": _core.implicit_gemm_tensor_c_extent,
    "D": _core.implicit_gemm_tensor_c_extent,
}


@dataclass(frozen=True)
class Conv2dSupport(Support):
    """The answer of ``operation.supports(problem_size)``: true, or false with a reason.

    Examples
    --------
    >>> from pycutlass.operation.conv2d_support import Conv2dSupport
    >>> bool(Conv2dSupport("")), bool(Conv2dSupport("R=33 is more than 32"))
    (True, False)
    """


class Described(Protocol):
    """What the rules read of a Conv2dOperation."""

    A: TensorDescription
    B: TensorDescription
    C: TensorDescription
    conv_kind: Any
    iterator_algorithm: Any
    tile_description: TileDescription
    stride_support: StrideSupport
    epilogue_functor: Epilogue
    group_mode: GroupMode | None

    @property
    def is_strided_dgrad(self) -> bool:
        """Whether this is dgrad for strides above 1."""

    @property
    def is_interleaved(self) -> bool:
        """Whether channels are stored in groups of 32."""


def why_not(operation: Described, p: _core.Conv2dProblemSize) -> str:
    """Return why `operation` cannot compute problem `p` whatever the tensors hold, or an empty text where it can."""
    return why_never(operation, p) or _sums(operation, p) or why_never(operation, launched_size(operation, p))


def why_never(operation: Described, p: _core.Conv2dProblemSize) -> str:
    """Return why `operation` cannot compute problem `p` for any tensors, or an empty text where it may."""
    if not isinstance(p, _core.Conv2dProblemSize):
        raise ArgumentTypeError(
            f"problem_size must be a cutlass.conv.Conv2dProblemSize, got {type(p).__name__}: pass "
            f"cutlass.conv.Conv2dProblemSize(N=1, H=8, W=8, C=64, K=64, R=3, S=3), say, or "
            f"pycutlass.conv2d_problem_size(activation, filter)"
        )
    rules = (_extents, _groups, _channels, _algorithm, _strides, _slices, _reductions, _sizes, _selections)
    return next((reason for reason in (rule(operation, p) for rule in rules) if reason), "")


def extent_of(name: str, operation: Described, p: _core.Conv2dProblemSize) -> Extent:
    """Return the extent of an operand, (N, H, W, C) or (K, R, S, C)."""
    n, h, w, c = _EXTENTS[name](operation.conv_kind, p)
    return n, h, w, c


def check_operands(operation: Described, p: _core.Conv2dProblemSize, given: Mapping[str, Any]) -> None:
    """Raise where a tensor does not fit; `given` are TensorSpecs or tensors under some of A, B, C and D.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Something does not fit.
    """
    for name, tensor in given.items():
        view, wanted = view_of(name, tensor), operand_of(name, operation, p)
        if name == "C" and 0 not in wanted.extent and takes_bias(operation, view, wanted.extent, None):
            channel_bias_of(name, wanted.description, view, wanted.extent)
        else:
            conv_tensor_of(wanted, view)


def operand_of(name: str, operation: Described, p: _core.Conv2dProblemSize, bias: bool | None = None) -> ConvOperand:
    """Return what a tensor is to be as operand `name`; `bias` says whether C is one."""
    role, extent = ROLES[operation.conv_kind][name], extent_of(name, operation, p)
    description = {"A": operation.A, "B": operation.B}.get(name, operation.C)
    is_packed = operation.conv_kind is _Operator.wgrad and name in ("C", "D")
    instead = _or_bias(operation, extent, bias) if name == "C" else ""
    return ConvOperand(name, role, description, extent, byte_limit(operation, name), is_packed, instead)


def port_operand_of(port: Port, operation: Described, p: _core.Conv2dProblemSize) -> ConvOperand:
    """Return what a tensor of the epilogue is to be that has the extent of D."""
    description = TensorDescription(port.tag, _core.TensorNHWC, port.alignment)
    wanted, written = operand_of("D", operation, p), port in operation.epilogue_functor.outputs
    name = EpilogueName(port.name, written, port.form)
    return replace(wanted, name=name, role="tensor of the epilogue", description=description)


def takes_bias(operation: Described, tensor: Any, extent: Extent, said: bool | None) -> bool:
    """Return whether C is taken as a bias: as was `said`, or as its number of elements tells."""
    wanted = is_channel_bias(tensor, extent) if said is None else said
    if wanted and (operation.conv_kind is _Operator.wgrad or operation.is_interleaved):
        what = "a filter gradient" if operation.conv_kind is _Operator.wgrad else "TensorNC32HW32"
        raise ArgumentError(
            f"C has one element for each channel, and {what} takes no bias: {_expanded(operation, tensor, extent)}"
        )
    return wanted


def _expanded(operation: Described, tensor: Any, extent: Extent) -> str:
    """Return what to pass in place of a bias: its elements as often as there are pixels, packed in the layout of C."""
    n, h, w, c = extent
    of_groups = (n, c // 32, h, w, 32), (1, c // 32, 1, 1, 32)
    shape, channels = of_groups if operation.is_interleaved else (extent, (1, 1, 1, c))
    library = "spec" if isinstance(tensor, TensorView) else view_of("C", tensor).library
    if library == "torch":
        return f"pass C.reshape({channels}).expand({shape}).reshape(-1)"
    module = {"numpy": "np", "cupy": "cupy"}.get(library)
    if module is None:
        return f"give a tensor of shape {shape}"
    return f"pass {module}.broadcast_to(C.reshape({channels}), {shape}).reshape(-1)"


def _or_bias(operation: Described, extent: Extent, said: bool | None) -> str:
    """Return what messages about C say of a bias, for operations that take one."""
    if operation.conv_kind is _Operator.wgrad or operation.is_interleaved:
        return ""
    return f", or {extent[3]} as a bias" + (", which bias=False rules out" if said is False else "")


def output(operation: Described, p: _core.Conv2dProblemSize) -> TensorSpec:
    """Return the D of a problem, packed: (N, H, W, C), or (K, R, S, C) for a filter; interleaved layouts flat."""
    n, h, w, c = extent_of("D", operation, p)
    shape = (n * h * w * c,) if operation.is_interleaved else (n, h, w, c)
    return TensorSpec(shape, operation.C.type.dtype_name)


def outputs(operation: Described, p: _core.Conv2dProblemSize) -> dict[str, TensorSpec]:
    """Return D and what the epilogue writes beside it, packed, by name: a matrix as D is, others as of its pixels."""
    made, product = {"D": output(operation, p)}, _core.implicit_gemm_problem_size(operation.conv_kind, p)
    for port in operation.epilogue_functor.outputs:
        is_whole = port.form == "matrix"
        beside = packed_port(port, product.m(), product.n(), 1, is_batched=False)
        made[port.name] = TensorSpec(made["D"].shape, port.tag) if is_whole else beside
    return made


def products(operation: Described, p: _core.Conv2dProblemSize) -> int:
    """Return how many products each sum has."""
    return _core.implicit_gemm_problem_size(operation.conv_kind, p).k()


def launched_size(operation: Described, p: _core.Conv2dProblemSize) -> _core.Conv2dProblemSize:
    """Return the problem of a launch: where the user's sums have no products, it has the least that a sum can."""
    size = p.reset_split_k_slices(p.split_k_slices)
    if products(operation, p) or 0 in extent_of("D", operation, size):
        return size
    if operation.conv_kind is _Operator.wgrad:
        size.N = 1
    else:
        described = (operation.A, operation.B)
        channels = size.groups * max(max(each.alignment, each.order.interleave) for each in described)
        setattr(size, "C" if operation.conv_kind is _Operator.fprop else "K", channels)
    return size


def byte_limit(operation: Described, name: str) -> int:
    """Return how many bytes operand `name` must stay below.

    CUTLASS computes offsets in 32 bits: in bytes for most kernels, in bits of A and B where channels are few
    (cutlass/conv/threadblock/conv2d_fprop_*_tile_access_iterator_few_channels.h).
    """
    return 2**28 if operation.iterator_algorithm in _FEW and name in ("A", "B") else 2**31


def _extents(operation: Described, p: _core.Conv2dProblemSize) -> str:
    for axis, size, taps, pad, stride, dilation, given in (
        ("P", p.H, p.R, p.pad_h, p.stride_h, p.dilation_h, p.P),
        ("Q", p.W, p.S, p.pad_w, p.stride_w, p.dilation_w, p.Q),
    ):
        follows = (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
        if given > follows:  # fewer are the first of them: CUTLASS's own formula is one short where there is dilation
            return (
                f"{axis}={given} is more than the problem has, ({size} + 2 * {pad} - {dilation} * ({taps} - 1) - 1) // "
                f"{stride} + 1 = {follows}: leave P and Q out to have them computed"
            )
    return ""


def _groups(operation: Described, p: _core.Conv2dProblemSize) -> str:
    if operation.group_mode is None:
        if p.groups == 1:
            return ""
        has_modes = operation.conv_kind is _Operator.fprop and not operation.epilogue_functor.is_tree
        modes = "describe fprop with a group_mode, or " if has_modes else ""
        return (
            f"groups={p.groups}: this kernel computes one group; {modes}launch once for each group, on slices of the "
            f"channels (pixels may be further apart than their channels)"
        )
    tile, filters = operation.tile_description.threadblock_shape[1], p.K // p.groups
    if not filters:  # the output is empty
        return ""
    if operation.group_mode is GroupMode.SingleGroup and filters % tile:
        multiple = "" if tile % filters else "use MultipleGroup with the analytic algorithm, or "
        return (
            f"GroupMode.SingleGroup takes a number of filters in each group that is a multiple of the tile's N={tile}, "
            f"got K / groups = {filters}: {multiple}launch once for each group with a kernel without group_mode"
        )
    if operation.group_mode is GroupMode.MultipleGroup and tile % filters:
        single = "use SingleGroup, or " if filters % tile == 0 else ""
        return (
            f"GroupMode.MultipleGroup takes a number of filters in each group that divides the tile's N={tile}, got "
            f"K / groups = {filters}: {single}launch once for each group with a kernel without group_mode"
        )
    return ""


def _channels(operation: Described, p: _core.Conv2dProblemSize) -> str:
    if operation.is_interleaved and (p.C % 32 or p.K % 32):
        return f"TensorNC32HW32 groups channels by 32: C and K must be multiples of that, got C={p.C} and K={p.K}"
    channels = {_Operator.fprop: "CCK", _Operator.dgrad: "KCC", _Operator.wgrad: "KCC"}[operation.conv_kind]
    for name, operand, axis in zip("ABC", (operation.A, operation.B, operation.C), channels, strict=True):
        count, what = getattr(p, axis), f"{axis}="
        if p.groups > 1 and axis == "C":
            count, what = count // p.groups, "C / groups = "
        if count % operand.alignment:
            alike = [each for each, along in zip("ABC", channels, strict=True) if along == axis]
            remedy = narrower(operation, dict.fromkeys(alike, count & -count), name)
            return (
                f"{what}{count} must be a multiple of {operand.alignment}, the alignment of operand {name}: pad the "
                f"channels{f', or {remedy}' if remedy else ''}"
            )
    return ""


def _algorithm(operation: Described, p: _core.Conv2dProblemSize) -> str:
    algorithm = operation.iterator_algorithm
    if algorithm is _Algorithm.optimized and operation.conv_kind is not _Operator.wgrad and max(p.R, p.S) > 32:
        return f"the optimized algorithm takes filters of at most 32 x 32, got R={p.R} and S={p.S}: use analytic"
    if algorithm is _Algorithm.fixed_channels and operation.A.alignment != p.C:
        return (
            f"fixed_channels takes as many channels as the alignment of A and B, {operation.A.alignment}, got C={p.C}: "
            f"use few_channels or optimized"
        )
    return ""


def _strides(operation: Described, p: _core.Conv2dProblemSize) -> str:
    strides = f"stride_h={p.stride_h} and stride_w={p.stride_w}"
    if operation.stride_support is StrideSupport.Unity:
        if (p.stride_h, p.stride_w) == (1, 1):
            return ""
        if operation.epilogue_functor.is_tree:
            return (
                f"the epilogue {operation.epilogue_functor!r} takes the pixels of D in their order, and strided dgrad "
                f"writes them in another one, got {strides}: use LinearCombination or LinearCombinationGeneric with "
                f"StrideSupport.Strided"
            )
        return f"stride_support is Unity, got {strides}: describe the operation with StrideSupport.Strided"
    if not operation.is_strided_dgrad:
        return ""
    if (p.dilation_h, p.dilation_w) != (1, 1):
        return (
            f"strided dgrad knows no dilation, got dilation_h={p.dilation_h} and dilation_w={p.dilation_w}: "
            f"StrideSupport.Unity does, for strides of 1"
        )
    if p.mode == _core.ConvMode.convolution and (p.stride_h > p.R or p.stride_w > p.S):
        # strided_dgrad_starting_coords (cutlass/conv/conv2d_problem_size.h) misses a row, and takes another one twice.
        return f"strided dgrad in Mode.convolution takes strides up to the filter, got {strides} with R={p.R}, S={p.S}"
    return ""


def _slices(operation: Described, p: _core.Conv2dProblemSize) -> str:
    slices = p.split_k_slices
    if slices == 1:
        return ""
    if operation.epilogue_functor.is_tree:
        return f"the epilogue {operation.epilogue_functor!r} takes whole sums, got split_k_slices={slices}: use 1"
    if operation.is_strided_dgrad:
        return (
            f"strided dgrad does not split K, got split_k_slices={slices}: StrideSupport.Unity does, for strides of 1"
        )
    if operation.iterator_algorithm in _FEW:
        return f"{operation.iterator_algorithm.name} kernels do not split K, got split_k_slices={slices}: use optimized"
    if operation.is_interleaved or operation.group_mode is not None:
        what = "TensorNC32HW32" if operation.is_interleaved else repr(operation.group_mode)
        return f"kernels of {what} do not split K, got split_k_slices={slices}"
    if slices > 65535:
        return f"split_k_slices must be at most 65535, the extent of a grid along z; got {slices}"
    return ""


def _reductions(operation: Described, p: _core.Conv2dProblemSize) -> str:
    reduced = [port.name for port in operation.epilogue_functor.outputs if port.form != "matrix"]
    if reduced and 0 in extent_of("D", operation, p):
        return f"D has no elements that {', '.join(reduced)} could be made of: leave such problems out"
    return ""


def _selections(operation: Described, p: _core.Conv2dProblemSize) -> str:
    called = {_Operator.fprop: "K", _Operator.dgrad: "C", _Operator.wgrad: "R * S * C"}[operation.conv_kind]
    return why_not_selected(operation, _core.implicit_gemm_problem_size(operation.conv_kind, p).n(), called)


def _sizes(operation: Described, p: _core.Conv2dProblemSize) -> str:
    try:
        _core.implicit_gemm_problem_size(operation.conv_kind, p)
    except ValueError as error:
        return str(error)
    for name, operand, elements in (
        ("A", operation.A, _core.implicit_gemm_tensor_a_size(operation.conv_kind, p)),
        ("B", operation.B, _core.implicit_gemm_tensor_b_size(operation.conv_kind, p)),
        ("C", operation.C, _core.implicit_gemm_tensor_c_size(operation.conv_kind, p)),
    ):
        size, limit = operand.type.bytes_of(elements), byte_limit(operation, name)
        if size >= limit:
            return f"operand {name} would have {size:,} bytes, and must have less than {limit:,}: split the batch"
    return ""


def _sums(operation: Described, p: _core.Conv2dProblemSize) -> str:
    functor = operation.epilogue_functor
    products = _core.implicit_gemm_problem_size(operation.conv_kind, p).k()
    if functor.max_k is None or products <= functor.max_k:
        return ""
    return (
        f"{type(functor).__name__} holds for sums of at most {functor.max_k} products, got R * S * C = {products}; "
        f"more are taken where arrays in host memory are small enough: use {for_any_sums(functor)}"
    )
