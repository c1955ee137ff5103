"""The math instruction of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from pycutlass import _core
from pycutlass.calls import meant, public, shown
from pycutlass.enums import MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.families import AMPERE, SM90, KernelFamily, Product
from pycutlass.integers import items_of, several
from pycutlass.types import Element, element

__all__ = ["MathInstruction", "Value", "triple"]

_OPERATION_CPP = {
    MathOperation.multiply_add: "cutlass::arch::OpMultiplyAdd",
    MathOperation.multiply_add_saturate: "cutlass::arch::OpMultiplyAddSaturate",
    MathOperation.multiply_add_fast_f16: "cutlass::arch::OpMultiplyAddFastF16",
    MathOperation.multiply_add_fast_bf16: "cutlass::arch::OpMultiplyAddFastBF16",
    MathOperation.multiply_add_fast_f32: "cutlass::arch::OpMultiplyAddFastF32",
}

_TENSOR_OP, _SIMT = _core.OpClass.TensorOp, _core.OpClass.Simt


class Value:
    """A frozen dataclass with attributes that follow from its fields: a pickle has the fields, and is checked again."""

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the fields, and set what follows from them."""


@public
@dataclass(frozen=True)
class MathInstruction(Value):
    """The instruction that one warp (or, for SIMT, one thread) executes.

    Parameters
    ----------
    instruction_shape : sequence of 3 int, or None
        M, N, K of one instruction. None for Hopper-native kernels, whose instruction follows from the tile.
    element_a, element_b, element_accumulator : element types of ``cutlass``
        Types of the operands and of the accumulator. No kernel multiplies operands of two types.
    opcode_class : cutlass.OpClass
        TensorOp or Simt.
    math_operation : MathOperation
        What one multiply-add does. Tensor cores saturate int8, also where it is called ``multiply_add``.

    Raises
    ------
    DescriptionError
        The combination is not one that CUTLASS has; the message lists the nearest ones.

    Examples
    --------
    >>> from pycutlass import MathInstruction, cutlass
    >>> MathInstruction([16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp)
    MathInstruction([16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp, \
MathOperation.multiply_add)
    """

    instruction_shape: tuple[int, int, int] | None
    element_a: Any
    element_b: Any
    element_accumulator: Any
    opcode_class: _core.OpClass = _SIMT
    math_operation: MathOperation = MathOperation.multiply_add
    #: What follows from them: types of operands and accumulator, who multiplies, and the row of the family's table.
    a: Element = field(init=False, repr=False, compare=False)
    b: Element = field(init=False, repr=False, compare=False)
    accumulator: Element = field(init=False, repr=False, compare=False)
    is_tensor_op: bool = field(init=False, repr=False, compare=False)
    family: KernelFamily = field(init=False, repr=False, compare=False)
    product: Product = field(init=False, repr=False, compare=False)
    #: The math operator's tag in C++.
    operator_cpp: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.instruction_shape is not None:
            object.__setattr__(self, "instruction_shape", triple("instruction_shape", self.instruction_shape))
        if not isinstance(self.opcode_class, _core.OpClass):
            near = meant(self.opcode_class, {each.name: f"cutlass.OpClass.{each.name}" for each in _core.OpClass})
            raise DescriptionError(f"opcode_class must be a cutlass.OpClass, got {shown(self.opcode_class)}{near}")
        if not isinstance(self.math_operation, MathOperation):
            near = meant(self.math_operation, {each.name: f"MathOperation.{each.name}" for each in MathOperation})
            raise DescriptionError(f"math_operation must be a MathOperation, got {shown(self.math_operation)}{near}")
        a, b, accumulator = element(self.element_a), element(self.element_b), element(self.element_accumulator)
        of_tensor_cores = self.opcode_class == _TENSOR_OP
        self.__dict__.update(
            a=a,
            b=b,
            accumulator=accumulator,
            element_a=a.tag,
            element_b=b.tag,
            element_accumulator=accumulator.tag,
            is_tensor_op=of_tensor_cores,
            family=SM90 if self.instruction_shape is None else AMPERE,
        )
        if of_tensor_cores and a.is_integer and self.math_operation is MathOperation.multiply_add:
            # Tensor cores have one way to add up integers; the original's scripts call it by either name.
            object.__setattr__(self, "math_operation", MathOperation.multiply_add_saturate)
        self.__dict__["operator_cpp"] = _OPERATION_CPP[self.math_operation]
        object.__setattr__(self, "product", self.family.product_of(self))

    @property
    def is_over_f32(self) -> bool:
        """Whether tensors of f32 may be described with this instruction, which rounds them to its own type."""
        return self.math_operation in self.product.over_f32

    def __repr__(self) -> str:
        shape = None if self.instruction_shape is None else list(self.instruction_shape)
        elements = ", ".join(str(element(e)) for e in (self.element_a, self.element_b, self.element_accumulator))
        opcode = f"cutlass.OpClass.{self.opcode_class.name}"
        return f"MathInstruction({shape}, {elements}, {opcode}, {self.math_operation!r})"


def triple(name: str, values: Iterable[int]) -> tuple[int, int, int]:
    """Return M, N, K of a shape; raise DescriptionError, naming it, where they are not three positive integers."""
    if type(values) in (tuple, list):
        m, n, k = tuple(values) if len(values) == 3 else (0, 0, 0)  # type: ignore[arg-type]
        if type(m) is type(n) is type(k) is int and min(m, n, k) > 0:
            return m, n, k
    extents = several(values, 3)
    if extents is None or min(extents) < 1:
        given = shown(list(items_of(values, 3) or ()) or values)
        raise DescriptionError(f"{name} must be three positive integers [M, N, K], got {given}")
    m, n, k = extents
    return m, n, k
