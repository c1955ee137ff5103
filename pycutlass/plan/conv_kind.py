"""What convolutions have in common that the same kernels compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycutlass import _core, cutlass
from pycutlass.calls import public, shown
from pycutlass.enums import GroupMode, MathOperation, StrideSupport
from pycutlass.epilogue import Epilogue
from pycutlass.errors import ArgumentError
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operation import Conv2dOperation
from pycutlass.plan.kind import Multiplied
from pycutlass.plan.kinds import (
    Wanted,
    accumulator_of,
    check_epilogue,
    check_types,
    epilogue_of,
    is_gated,
    loads_singly,
    multiplied,
)
from pycutlass.types import Element

__all__ = ["Conv2dKind", "conv_kind_of"]


@public
@dataclass(frozen=True)
class Conv2dKind(Multiplied):
    """Everything about a convolution but its problem and its kernel.

    Parameters
    ----------
    direction : cutlass.conv.Operator
        ``fprop``, ``dgrad`` or ``wgrad``.
    A, B, C : TensorDescription
        Types and alignments of the operands, all of layout ``TensorNHWC``; D is as C.
    element_a, element_b, element_accumulator : element types of ``cutlass``
        What is multiplied and summed: for tensors of float32, ``cutlass.float32`` or ``cutlass.tfloat32``.
    math_operation : MathOperation
        What one multiply-add does.
    epilogue : Epilogue
        What happens to the sums.
    is_grouped : bool
        Whether channels are in groups: A has the channels of all, and the alignments are those of one.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import Conv2dKind
    >>> f16, f32, conv = cutlass.float16, cutlass.float32, cutlass.conv
    >>> nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> math = pycutlass.MathOperation.multiply_add
    >>> kind = Conv2dKind(conv.Operator.fprop, nhwc, nhwc, nhwc, f16, f16, f32, math, functor)
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], kind.instruction([16, 8, 16]))
    >>> kind.operation(tile, conv.IteratorAlgorithm.optimized).conv_kind is conv.Operator.fprop
    True
    """

    direction: _core.ConvOperator
    A: TensorDescription
    B: TensorDescription
    C: TensorDescription
    element_a: Any
    element_b: Any
    element_accumulator: Any
    math_operation: MathOperation
    epilogue: Epilogue
    is_grouped: bool = False

    @property
    def D(self) -> TensorDescription:
        """The description of D, which is that of C."""
        return self.C

    @property
    def loads_singly(self) -> bool:
        """Whether kernels load and store single elements, whatever the alignment is."""
        return loads_singly(self.A.type, self.element_a, self.math_operation)

    def operation(
        self,
        tile: TileDescription,
        algorithm: _core.IteratorAlgorithm,
        stride_support: StrideSupport = StrideSupport.Strided,
        swizzling_functor: Any = None,
        group_mode: GroupMode | None = None,
    ) -> Conv2dOperation:
        """Return the kernel with a tile.

        Raises
        ------
        DescriptionError
            There is none.
        """
        return Conv2dOperation(
            *(self.direction, algorithm, 80, tile, self.A, self.B, self.C),
            *(stride_support, self.epilogue, swizzling_functor, group_mode),
        )

    def __str__(self) -> str:
        operands = self._in_words({"A": self.A, "B": self.B, "C and D": self.C})
        return f"{self.direction.name}{' of channels in groups' if self.is_grouped else ''}, with {operands}"


def conv_kind_of(
    direction: _core.ConvOperator,
    a: Element,
    b: Element,
    alignments: tuple[int, int, int],
    wanted: Wanted,
    is_grouped: bool,
) -> Conv2dKind:
    """Return the kind of convolution of operands of types `a` and `b`.

    Parameters
    ----------
    direction : cutlass.conv.Operator
        Which of the three.
    a, b : Element
        Types of A and B.
    alignments : tuple of 3 int
        Elements that channels, pixels and addresses of A, B, and of C and D are multiples of.
    wanted : Wanted
        What the caller asks for.
    is_grouped : bool
        Whether channels are in groups.

    Raises
    ------
    ArgumentError
        Types that are not multiplied with each other.
    DescriptionError
        An epilogue that cannot be computed or written so.
    """
    check_types(a, b)
    check_epilogue(wanted.epilogue)
    if is_gated(wanted.epilogue):
        raise ArgumentError(
            f"the epilogue {shown(wanted.epilogue)} combines pairs of columns, and kernels of convolutions write all "
            f"channels: combine them behind the convolution, or use pycutlass.matmul where the filter is one pixel"
        )
    out, accumulator = wanted.output(a), accumulator_of(a, wanted)
    element_a, element_b, math = multiplied(a, b, wanted.precision)
    singly = loads_singly(a, element_a, math)
    if singly:
        alignments = (1, 1, 1)
    # 16 bytes are the widest access.
    of_a, of_b, of_c = (min(each, 128 // of.bits) for each, of in zip(alignments, (a, b, out), strict=True))
    if direction is _core.ConvOperator.wgrad and of_b == 1:
        of_c = 1  # the gradient of weights has the channels of the activation, and kernels store what they load
    epilogue, written = epilogue_of(wanted.epilogue, out, of_c, accumulator, a.dtype_name if singly else "")
    A, B, C = (
        TensorDescription(of.tag, cutlass.TensorNHWC, alignment)
        for of, alignment in ((a, of_a), (b, of_b), (out, written))
    )
    return Conv2dKind(direction, A, B, C, element_a, element_b, accumulator.tag, math, epilogue, is_grouped)
