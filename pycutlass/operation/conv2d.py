"""Conv2d as implicit GEMM: forward, data gradient and weight gradient, described and turned into text."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar, overload

from pycutlass import _core
from pycutlass.calls import member_meant, public, shown
from pycutlass.enums import GroupMode, StrideSupport
from pycutlass.epilogue import Epilogue, EpilogueFunctor
from pycutlass.epilogue.visit_tree import of_function
from pycutlass.errors import DescriptionError
from pycutlass.families import AMPERE, Family, KernelFamily
from pycutlass.families.epilogues import check_tiles
from pycutlass.families.other_family import as_ampere
from pycutlass.families.table import check_family, swizzle_meant
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operation import checked_parts, conv2d_rules
from pycutlass.operation.base import EARLIER, MAX_UNBOUNDED_THREADS, Operation
from pycutlass.operation.conv2d_support import Conv2dSupport, check_operands, output, outputs, why_not
from pycutlass.operation.reduction import ReductionOperation, unscaled
from pycutlass.operation.support import named_operands, supported
from pycutlass.spec import TensorSpec
from pycutlass.types import Element

__all__ = ["Conv2dOperation"]

_Operator, _Algorithm = _core.ConvOperator, _core.IteratorAlgorithm
_Member = TypeVar("_Member", bound=enum.Enum)

_KERNELS = {
    _Operator.fprop: "DefaultConv2dFprop",
    _Operator.dgrad: "DefaultConv2dDgrad",
    _Operator.wgrad: "DefaultConv2dWgrad",
}
_ALGORITHMS = {
    _Algorithm.analytic: "kAnalytic",
    _Algorithm.optimized: "kOptimized",
    _Algorithm.fixed_channels: "kFixedChannels",
    _Algorithm.few_channels: "kFewChannels",
}
#: Layouts of A and B of the matrix product that a convolution is (MmaCore in cutlass/conv/kernel/default_conv2d_*.h).
_PRODUCTS = {
    _Operator.fprop: (_core.RowMajor, _core.ColumnMajor),
    _Operator.dgrad: (_core.RowMajor, _core.RowMajor),
    _Operator.wgrad: (_core.ColumnMajor, _core.RowMajor),
}
_SWIZZLES: tuple[type[Any], ...] = (
    _core.IdentitySwizzle1,
    _core.IdentitySwizzle2,
    _core.IdentitySwizzle4,
    _core.IdentitySwizzle8,
    _core.HorizontalSwizzle,
)
_STRIDED_DGRAD_SWIZZLES: tuple[type[Any], ...] = (
    _core.StridedDgradIdentitySwizzle1,
    _core.StridedDgradIdentitySwizzle4,
)
_SIZES: dict[Any, int] = {
    _core.IdentitySwizzle2: 2,
    _core.IdentitySwizzle4: 4,
    _core.IdentitySwizzle8: 8,
    _core.StridedDgradIdentitySwizzle4: 4,
}


@partial(public, also=EARLIER)
class Conv2dOperation(Operation):
    """A convolution kernel: D = epilogue(convolution of A and B, C).

    ======  ================  =================  ==================
    kind    A                 B                  C and D
    ======  ================  =================  ==================
    fprop   activation NHWC   filter KRSC        output NPQK
    dgrad   output gradient   filter KRSC        activation gradient
    wgrad   output gradient   activation NHWC    filter gradient
    ======  ================  =================  ==================

    Parameters
    ----------
    conv_kind : cutlass.conv.Operator
        ``fprop``, ``dgrad`` or ``wgrad``.
    iterator_algorithm : cutlass.conv.IteratorAlgorithm
        ``optimized`` (filters up to 32 x 32), ``analytic`` (any), and for fprop of few channels ``fixed_channels`` (as
        many as the alignment) and ``few_channels`` (a multiple of it).
    compute_capability : int
        Kernel family: 80 (also 86, 87, 89, 90), or 75 for Turing. The original's keyword ``arch`` is taken as well.
    tile_description : TileDescription
        Threadblock tile, pipeline stages, warps and math instruction.
    A, B, C : TensorDescription
        Operands, all of layout ``TensorNHWC``; for int8 fprop also ``TensorNC32HW32``, ``TensorC32RSK32`` and
        ``TensorNC32HW32``. D shares everything with C.
    stride_support : StrideSupport or cutlass.conv.StrideSupport
        Strided (by default) or Unity, which takes strides of 1 only. It makes two different kernels of dgrad; fprop
        and wgrad have one, which takes any stride, and Unity is taken as Strided.
    epilogue_functor : Epilogue
        What happens to the accumulator: an epilogue functor, or an epilogue function.
    swizzling_functor : class of ``cutlass``, optional
        ``IdentitySwizzle1``, ``2``, ``4``, ``8`` or ``HorizontalSwizzle``; strided dgrad has swizzles of its own,
        ``StridedDgradIdentitySwizzle1`` and ``4``. By default the first that fits.
    group_mode : GroupMode, optional
        For fprop of channels in groups: SingleGroup, or with the analytic algorithm also MultipleGroup.
    element_epilogue : optional
        As for `GemmOperationUniversal`.

    Raises
    ------
    DescriptionError
        The parts do not make a kernel; the message says which two disagree and what to change.
    ArgumentTypeError
        An unknown keyword.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> instruction = pycutlass.MathInstruction(
    ...     [16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    ... )
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    >>> nhwc = pycutlass.TensorDescription(cutlass.float16, cutlass.TensorNHWC, 8)
    >>> operation = pycutlass.Conv2dOperation(
    ...     cutlass.conv.Operator.fprop, cutlass.conv.IteratorAlgorithm.optimized, 80, tile, nhwc, nhwc, nhwc,
    ...     cutlass.conv.StrideSupport.strided,
    ...     pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32),
    ... )
    >>> operation.procedural_name()[:55]
    'cutlass_sm80_tensorop_s16816fprop_optimized_f16_f16_128'
    >>> problem_size = cutlass.conv.Conv2dProblemSize(N=1, H=8, W=8, C=12, K=64, R=3, S=3)
    >>> operation.supports(problem_size).reason[:80]
    'C=12 must be a multiple of 8, the alignment of operand A: pad the channels, or d'
    """

    _FIELDS: ClassVar[tuple[str, ...]] = (
        *("conv_kind", "iterator_algorithm", "compute_capability", "tile_description", "A", "B", "C"),
        *("stride_support", "epilogue_functor", "swizzling_functor", "group_mode"),
    )
    _LAST_NEEDED = "epilogue_functor"

    @overload
    def __init__(
        self,
        conv_kind: _core.ConvOperator,
        iterator_algorithm: _core.IteratorAlgorithm,
        compute_capability: int,
        tile_description: TileDescription,
        A: TensorDescription,
        B: TensorDescription,
        C: TensorDescription,
        stride_support: StrideSupport | _core.StrideSupport,
        epilogue_functor: Epilogue,
        swizzling_functor: Any = None,
        group_mode: GroupMode | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        conv_kind: _core.ConvOperator,
        iterator_algorithm: _core.IteratorAlgorithm,
        compute_capability: int,
        tile_description: TileDescription,
        A: TensorDescription,
        B: TensorDescription,
        C: TensorDescription,
        stride_support: StrideSupport | _core.StrideSupport = StrideSupport.Strided,
        *,
        epilogue_functor: Epilogue,
        swizzling_functor: Any = None,
        group_mode: GroupMode | None = None,
    ) -> None: ...

    def __init__(
        self,
        conv_kind: _core.ConvOperator,
        iterator_algorithm: _core.IteratorAlgorithm,
        compute_capability: int,
        tile_description: TileDescription,
        A: TensorDescription,
        B: TensorDescription,
        C: TensorDescription,
        stride_support: StrideSupport | _core.StrideSupport = StrideSupport.Strided,
        # Required, as the two forms above say: Python asks for a default behind that of `stride_support`.
        epilogue_functor: Epilogue | None = None,
        swizzling_functor: Any = None,
        group_mode: GroupMode | None = None,
        *,
        element_epilogue: Any = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            self._refuse(unknown, "arch", "element_epilogue")
        self.conv_kind = _member("conv_kind", conv_kind, _Operator)
        self.iterator_algorithm = _member("iterator_algorithm", iterator_algorithm, _Algorithm)
        self.compute_capability = checked_parts.check_capability(compute_capability)
        tile = checked_parts.expect("tile_description", tile_description, TileDescription)
        A, B = checked_parts.expect("A", A, TensorDescription), checked_parts.expect("B", B, TensorDescription)
        self.tile_description = checked_parts.over_f32(tile, A, B)
        self.A = checked_parts.single_loads(tile.math_instruction, "A", A)
        self.B = checked_parts.single_loads(tile.math_instruction, "B", B)
        C = checked_parts.expect("C", C, TensorDescription)
        epilogue_functor = of_function(epilogue_functor)
        if isinstance(epilogue_functor, Epilogue):
            check_family(epilogue_functor, Family.AMPERE_CONV)
            functor: Epilogue = epilogue_functor
        else:
            functor = checked_parts.expect("epilogue_functor", epilogue_functor, EpilogueFunctor)
        if element_epilogue is not None:
            checked_parts.take_further(type(self).__name__, functor, False, element_epilogue)
        # Fprop and wgrad have one kernel each, for any stride.
        support = _stride_support(stride_support)
        self.stride_support = support if self.conv_kind is _Operator.dgrad else StrideSupport.Strided
        if self.conv_kind is _Operator.wgrad:
            C, functor = checked_parts.single_stores(tile.math_instruction, B, C, functor)
        self.C = C
        self.epilogue_functor: Epilogue = functor
        self.swizzling_functor = self._swizzle(swizzling_functor)
        self.group_mode = None if group_mode is None else checked_parts.expect("group_mode", group_mode, GroupMode)
        self._partial: Conv2dOperation | None = None
        self._check()

    # What users ask of a description

    def supports(
        self, problem_size: _core.Conv2dProblemSize, operands: Mapping[str, Any] | None = None
    ) -> Conv2dSupport:
        """Return whether the kernel can compute `problem_size`: something true, or something false with a `reason`.

        Nothing has to be compiled for that.

        Parameters
        ----------
        problem_size : cutlass.conv.Conv2dProblemSize
            The problem.
        operands : mapping, optional
            Shapes, types and strides that are to be checked as well: a TensorSpec or a tensor under some of A, B, C and
            D. Tensors need no memory.
        """
        reason = why_not(self, problem_size)
        if not reason and operands is not None:
            given = named_operands(operands)
            reason = supported(self, lambda: check_operands(self, problem_size, given), given).reason
        return Conv2dSupport(reason)

    def output(self, problem_size: _core.Conv2dProblemSize) -> TensorSpec:
        """Return the shape, type and strides of D for `problem_size`, packed, without memory for it.

        Raises
        ------
        ArgumentError
            `supports` refuses the problem; the message is its reason.
        ArgumentTypeError
            `problem_size` is something else.
        """
        self.supports(problem_size).require()
        return output(self, problem_size)

    def outputs(self, problem_size: _core.Conv2dProblemSize) -> dict[str, TensorSpec]:
        """Return D and what the epilogue writes beside it, by name, as `output` does.

        A row of a reduction or of `top_k` is a pixel with its channels, or a filter of a gradient of filters.
        """
        self.supports(problem_size).require()
        return outputs(self, problem_size)

    @property
    def family(self) -> KernelFamily:
        """The family of kernels, with its rules: convolutions are Ampere-style."""
        return AMPERE

    @property
    def is_sm90(self) -> bool:
        """False: this is a kernel of CUTLASS's 2.x API."""
        return False

    @property
    def is_strided_dgrad(self) -> bool:
        """Whether this is dgrad for strides above 1, which has kernels and swizzles of its own."""
        return self.conv_kind is _Operator.dgrad and self.stride_support is StrideSupport.Strided

    @property
    def is_interleaved(self) -> bool:
        """Whether channels are stored in groups of 32."""
        return self.A.order.interleave > 1

    @property
    def swizzle_size(self) -> int:
        """The N of IdentitySwizzleN and StridedDgradIdentitySwizzleN; 1 for other swizzles."""
        return _SIZES.get(self.swizzling_functor, 1)

    @property
    def splits_k(self) -> bool:
        """Whether the kernel can divide its sums into slices."""
        few = (_Algorithm.fixed_channels, _Algorithm.few_channels)
        undivided = self.is_strided_dgrad or self.is_interleaved or self.group_mode is not None
        undivided = undivided or self.epilogue_functor.is_tree
        return not undivided and self.iterator_algorithm not in few

    @property
    def partial(self) -> Conv2dOperation:
        """The kernel of parallel split-K: the same convolution, written unscaled in the accumulator's type."""
        if self._partial is None:
            C, functor = unscaled(self.tile_description, self.C)
            value = (*self._value()[:6], C, self.stride_support, functor, self.swizzling_functor)
            partial = Conv2dOperation(*value)
            self._partial = self if partial == self else partial
        return self._partial

    def parts(self, operations: Any) -> list[Any]:
        """Return what has to be compiled for this operation: with a reduction beside it, its partial kernel too."""
        reductions = any(isinstance(other, ReductionOperation) for other in operations)
        return [self, self.partial] if reductions and self.splits_k else [self]

    def accumulator_type(self) -> Element:
        """Return the accumulator's element type."""
        return self.tile_description.math_instruction.accumulator

    # Text

    @property
    def is_bounded(self) -> bool:
        """Whether the compiler is told how many threads will run."""
        return self.tile_description.num_threads > MAX_UNBOUNDED_THREADS

    def configuration_name(self) -> str:
        """Return the readable part of the kernel's name: family, instruction, direction, types, tile, alignments."""
        tile, math = self.tile_description, self.tile_description.math_instruction
        group = "" if self.group_mode is None else f"_{self.group_mode.name.lower()}"
        core = f"{math.procedural_name()}{self.conv_kind.name}{group}_{self.iterator_algorithm.name}"
        unity = "_unity" if self.stride_support is StrideSupport.Unity else ""
        alignments = "x".join(str(operand.alignment) for operand in (self.A, self.B, self.C))
        return (
            f"cutlass_sm{AMPERE.tag(self.compute_capability)}_{math.opcode_class.name.lower()}_{core}_{self.A.type.short}_{self.C.type.short}_"
            f"{tile.procedural_name()}_{self.A.order.short}{unity}_align{alignments}"
        )

    def body(self) -> str:
        """Return the generated C++ without the line that names the kernel."""
        header, default = "conv2d.h", f"cutlass::conv::kernel::{_KERNELS[self.conv_kind]}"
        template, definitions, functor = "Conv2d", "", self.epilogue_functor
        if functor.is_tree:
            header, template, definitions = "conv2d_visitor.h", "Conv2dVisitor", functor.definitions(Family.AMPERE_CONV)
        if self.group_mode is not None:
            header = "conv2d_group.h"
            default = f"pycutlass::GroupFprop<cutlass::conv::GroupMode::k{self.group_mode.name}>::Default"
        return (
            f'#include "pycutlass/{header}"\n\n'
            f"{definitions}"
            f"using Operation = pycutlass::{template}<\n"
            f"    {default},\n"
            f"{AMPERE.arguments_text(self)},\n"
            f"    cutlass::conv::IteratorAlgorithm::{_ALGORITHMS[self.iterator_algorithm]}, "
            f"cutlass::conv::StrideSupport::k{self.stride_support.name}>;\n"
        )

    def __repr__(self) -> str:
        kind, algorithm = self.conv_kind, self.iterator_algorithm
        spelled = f"cutlass.conv.Operator.{kind.name}, cutlass.conv.IteratorAlgorithm.{algorithm.name}"
        return super().__repr__().replace(f"{kind!r}, {algorithm!r}", spelled, 1)

    # Proof

    def _check(self) -> None:
        tile = self.tile_description
        if tile.family is not AMPERE:
            field = "kernel_schedule" if tile.cluster_shape is None else "cluster_shape"
            raise DescriptionError(
                f"convolutions are Ampere-style kernels: {as_ampere(tile, self) or f'leave out {field}'}"
            )
        conv2d_rules.check_layouts(self)
        conv2d_rules.check_algorithm(self)
        if self.group_mode is not None:
            conv2d_rules.check_groups(self)
        A, B, C = self.product
        AMPERE.check_operands(tile.math_instruction, A, B)
        check_tiles(self.epilogue_functor, tile)
        AMPERE.check_epilogue(tile.math_instruction.accumulator, C, self.epilogue_functor)
        AMPERE.check_product(self.compute_capability, tile, A, B, C)
        if self.epilogue_functor.is_tree:
            conv2d_rules.check_tree(self)
        conv2d_rules.check_loads(self)
        least = 3 if self.is_strided_dgrad else 2
        epilogue = self.epilogue_functor if self.epilogue_functor.is_tree else None
        AMPERE.check_shared_memory(self.compute_capability, tile, A, B, C, epilogue=epilogue, least_stages=least)

    @property
    def product(self) -> tuple[TensorDescription, TensorDescription, TensorDescription]:
        """The operands of the matrix product that this is."""
        layouts: tuple[Any, ...] = (*_PRODUCTS[self.conv_kind], _core.RowMajor)
        if self.is_interleaved:
            layouts = (_core.ColumnMajorInterleaved32, _core.RowMajorInterleaved32, _core.ColumnMajorInterleaved32)
        A, B, C = (
            TensorDescription(operand.element, layout, operand.alignment)
            for operand, layout in zip((self.A, self.B, self.C), layouts, strict=True)
        )
        return A, B, C

    def _swizzle(self, given: Any) -> type[Any]:
        allowed = _STRIDED_DGRAD_SWIZZLES if self.is_strided_dgrad else _SWIZZLES
        if given is None:
            return allowed[0]
        swizzle = given if isinstance(given, type) else type(given)
        if swizzle in allowed:
            return swizzle
        if swizzle is _core.StridedDgradHorizontalSwizzle:
            raise DescriptionError(
                "swizzling_functor: StridedDgradHorizontalSwizzle lacks the function that CUTLASS 4.2's strided dgrad "
                "kernel calls (get_tile_offset of a swizzle width); use cutlass.StridedDgradIdentitySwizzle1"
            )
        kind = "strided dgrad" if self.is_strided_dgrad else f"{self.stride_support.name.lower()} {self.conv_kind.name}"
        known = ", ".join(f"cutlass.{each.__name__}" for each in allowed)
        near = swizzle_meant(given, allowed)
        raise DescriptionError(f"swizzling_functor of {kind} must be one of {known}; got {shown(given)}{near}")


def _member(name: str, value: Any, kind: type[_Member]) -> _Member:
    if isinstance(value, kind):
        return value
    known = ", ".join(f"cutlass.conv.{kind.__name__}.{member.name}" for member in kind)
    near = member_meant(value, kind, f"cutlass.conv.{kind.__name__}")
    raise DescriptionError(f"{name} must be one of {known}; got {shown(value)}{near}")


def _stride_support(value: Any) -> StrideSupport:
    """Return `value` in the original's spelling; it may be in the guide's."""
    if isinstance(value, StrideSupport):
        return value
    if isinstance(value, _core.StrideSupport):
        return StrideSupport[value.name.capitalize()]
    raise DescriptionError(
        f"stride_support must be StrideSupport.Strided or StrideSupport.Unity (cutlass.conv.StrideSupport.strided or "
        f"unity); got {shown(value)}{member_meant(value, StrideSupport, 'StrideSupport')}"
    )
