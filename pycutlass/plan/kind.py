"""What GEMMs have in common that the same kernels compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pycutlass import _core
from pycutlass.calls import counted, public
from pycutlass.enums import MathOperation, SchedulerMode
from pycutlass.epilogue import Epilogue
from pycutlass.errors import DescriptionError
from pycutlass.library import MathInstruction, TensorDescription, TileDescription
from pycutlass.operation import GemmOperationGrouped, GemmOperationUniversal
from pycutlass.types import element

__all__ = ["GemmKind", "Multiplied"]


class Multiplied:
    """What a kind says of products, whatever the operands are."""

    element_a: Any
    element_b: Any
    element_accumulator: Any
    math_operation: MathOperation
    epilogue: Epilogue

    def instruction(
        self, shape: tuple[int, int, int] | None, opcode: _core.OpClass = _core.OpClass.TensorOp
    ) -> MathInstruction:
        """Return the instruction of a shape: None for Hopper-native kernels, and by Simt for GEMV kernels.

        Raises
        ------
        DescriptionError
            There is none.
        """
        types = self.element_a, self.element_b, self.element_accumulator
        return MathInstruction(shape, *types, opcode, self.math_operation)

    @property
    def is_full_f32(self) -> bool:
        """Whether products are those of float32 itself, which tensor cores do not have."""
        return self.element_a is _core.float32 and self.math_operation is MathOperation.multiply_add

    def _in_words(self, operands: Mapping[str, TensorDescription]) -> str:
        """Return operands by their names, what is multiplied and summed up, and the epilogue, for messages."""
        a, b, sums = (element(each) for each in (self.element_a, self.element_b, self.element_accumulator))
        described = ", ".join(
            f"{name} of {each.type} in {each.order}, aligned to {counted(each.alignment, 'element')}"
            for name, each in operands.items()
        )
        return (
            f"{described}; {a} is multiplied by {b} ({self.math_operation.name}), summed up in {sums}, and the "
            f"epilogue is {self.epilogue!r}"
        )


@public
@dataclass(frozen=True)
class GemmKind(Multiplied):
    """Everything about a GEMM but its extents and its kernel.

    GEMMs of one kind are computed by the same kernels, so what is known of kernels (which there are, how fast they
    are) is kept for each kind.

    Parameters
    ----------
    A, B, C, D : TensorDescription
        Types, layouts and alignments of the operands.
    element_a, element_b, element_accumulator : element types of ``cutlass``
        What is multiplied and summed: for tensors of float32, ``cutlass.float32`` or ``cutlass.tfloat32``.
    math_operation : MathOperation
        What one multiply-add does: ``multiply_add_fast_f32`` for 3xTF32, ``multiply_add_fast_accum`` for the fast
        accumulation of 8-bit floats.
    epilogue : Epilogue
        What happens to the sums.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import GemmKind
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], kind.instruction([16, 8, 16]))
    >>> kind.operation(tile).A is row
    True
    """

    A: TensorDescription
    B: TensorDescription
    C: TensorDescription
    D: TensorDescription
    element_a: Any
    element_b: Any
    element_accumulator: Any
    math_operation: MathOperation
    epilogue: Epilogue

    def operation(
        self,
        tile: TileDescription,
        swizzling_functor: Any = _core.IdentitySwizzle1,
        swap_ab: bool = False,
    ) -> GemmOperationUniversal:
        """Return the kernel with a tile.

        Raises
        ------
        DescriptionError
            There is none.
        """
        D = None if self.D == self.C else self.D
        capability = 90 if tile.is_sm90 else 80
        A, B = self.A, self.B
        if tile.is_sm90 and self.element_a is _core.tfloat32:  # TMA rounds float32 to what it is described as
            A, B = (replace(each, element=_core.tfloat32) for each in (A, B))
        operands = A, B, self.C, self.epilogue
        return GemmOperationUniversal(capability, tile, *operands, swizzling_functor, D, swap_ab)

    def group(self, tile: TileDescription, precompute_mode: SchedulerMode) -> GemmOperationGrouped:
        """Return the kernel of groups with a tile.

        Raises
        ------
        DescriptionError
            There is none.
        """
        if self.C != self.D:
            raise DescriptionError(
                f"the kernel of a group describes C and D as one, got C={self.C} and D={self.D}: describe both alike"
            )
        capability = 90 if tile.is_sm90 else 80
        operands = self.A, self.B, self.C, self.epilogue
        return GemmOperationGrouped(capability, tile, *operands, precompute_mode=precompute_mode)

    def __str__(self) -> str:
        operands = {"A": self.A, "B": self.B}
        operands |= {"C and D": self.D} if self.C == self.D else {"C": self.C, "D": self.D}
        return self._in_words(operands)
