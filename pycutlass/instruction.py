"""The math instruction of a kernel, and the table of those that there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.calls import meant, public, shown
from pycutlass.enums import MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.integers import items_of, several
from pycutlass.types import Element, element

__all__ = ["NO_VOLTA", "MathInstruction", "triple"]

#: Why nothing is described for Volta, whose users may name its instruction or its compute capability.
NO_VOLTA = "Volta (compute capability 70) is no target of CUDA 13"


_OPERATION_CPP = {
    MathOperation.multiply_add: "cutlass::arch::OpMultiplyAdd",
    MathOperation.multiply_add_saturate: "cutlass::arch::OpMultiplyAddSaturate",
    MathOperation.multiply_add_fast_f16: "cutlass::arch::OpMultiplyAddFastF16",
    MathOperation.multiply_add_fast_bf16: "cutlass::arch::OpMultiplyAddFastBF16",
    MathOperation.multiply_add_fast_f32: "cutlass::arch::OpMultiplyAddFastF32",
}

_FAST = (
    MathOperation.multiply_add_fast_f16,
    MathOperation.multiply_add_fast_bf16,
    MathOperation.multiply_add_fast_f32,
)


@dataclass(frozen=True)
class _Valid:
    """One row of the guide's table of valid combinations.

    Operations of `over_f32` are for tensors of f32, which they round to the type that the instruction names.
    """

    opcode_class: Any
    a: str
    accumulator: str
    shape: tuple[int, int, int]
    operations: tuple[MathOperation, ...] = (MathOperation.multiply_add,)
    over_f32: tuple[MathOperation, ...] = ()

    def __str__(self) -> str:
        operations = "/".join(operation.name for operation in self.operations)
        opcode = self.opcode_class.name
        return f"{opcode} {self.a} x {self.a} -> {self.accumulator}, {list(self.shape)}, {operations}"


#: M of wgmma, the instruction of Hopper-native kernels; mma has 16 at most.
_NATIVE_ROWS = 64
#: Volta's tensor cores multiply f16 by this instruction alone, and no other GPU's do.
_VOLTA_SHAPE = (8, 8, 4)
_TENSOR_OP, _SIMT = _core.OpClass.TensorOp, _core.OpClass.Simt
_VALID = (
    _Valid(_TENSOR_OP, "f64", "f64", (8, 8, 4)),
    _Valid(_TENSOR_OP, "f32", "f32", (16, 8, 8), (MathOperation.multiply_add, *_FAST)),
    _Valid(_TENSOR_OP, "tf32", "f32", (16, 8, 8), over_f32=(MathOperation.multiply_add,)),
    _Valid(_TENSOR_OP, "f16", "f32", (16, 8, 8), over_f32=(MathOperation.multiply_add_fast_f16,)),
    _Valid(_TENSOR_OP, "f16", "f16", (16, 8, 8)),
    _Valid(_TENSOR_OP, "bf16", "f32", (16, 8, 8), over_f32=(MathOperation.multiply_add_fast_bf16,)),
    _Valid(_TENSOR_OP, "f16", "f16", (16, 8, 16)),
    _Valid(_TENSOR_OP, "f16", "f32", (16, 8, 16)),
    _Valid(_TENSOR_OP, "bf16", "f32", (16, 8, 16)),
    _Valid(_TENSOR_OP, "s8", "s32", (16, 8, 32), (MathOperation.multiply_add_saturate,)),
    _Valid(_SIMT, "f64", "f64", (1, 1, 1)),
    _Valid(_SIMT, "f32", "f32", (1, 1, 1)),
    _Valid(_TENSOR_OP, "s8", "s32", (8, 8, 16), (MathOperation.multiply_add_saturate,)),
    _Valid(_SIMT, "s8", "s32", (1, 1, 4)),
)


@public
@dataclass(frozen=True)
class MathInstruction:
    """The instruction that one warp (or, for SIMT, one thread) executes.

    Parameters
    ----------
    instruction_shape : sequence of 3 int, or None
        M, N, K of one instruction. None for Hopper-native kernels, whose instruction follows from the tile.
    element_a, element_b, element_accumulator : element types of ``cutlass``
        Types of the operands and of the accumulator.
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
    opcode_class: Any = _SIMT
    math_operation: MathOperation = MathOperation.multiply_add

    def __post_init__(self) -> None:
        if self.instruction_shape is not None:
            object.__setattr__(self, "instruction_shape", triple("instruction_shape", self.instruction_shape))
        if not isinstance(self.opcode_class, _core.OpClass):
            near = meant(self.opcode_class, {each.name: f"cutlass.OpClass.{each.name}" for each in _core.OpClass})
            raise DescriptionError(f"opcode_class must be a cutlass.OpClass, got {shown(self.opcode_class)}{near}")
        if not isinstance(self.math_operation, MathOperation):
            near = meant(self.math_operation, {each.name: f"MathOperation.{each.name}" for each in MathOperation})
            raise DescriptionError(f"math_operation must be a MathOperation, got {shown(self.math_operation)}{near}")
        for name in ("element_a", "element_b", "element_accumulator"):
            object.__setattr__(self, name, element(getattr(self, name)).tag)
        a, b = element(self.element_a), element(self.element_b)
        if self.is_tensor_op and a.is_integer and self.math_operation is MathOperation.multiply_add:
            # Tensor cores have one way to add up integers; the original's scripts call it by either name.
            object.__setattr__(self, "math_operation", MathOperation.multiply_add_saturate)
        if a is not b:
            raise DescriptionError(f"element_a and element_b must be the same type, got {a} and {b}")
        self._check_table(a.short, element(self.element_accumulator).short)

    def _check_table(self, a: str, accumulator: str) -> None:
        rows = [row for row in _VALID if row.opcode_class == self.opcode_class and row.a == a]
        if any(
            row.accumulator == accumulator
            and self.instruction_shape in (None, row.shape)
            and self.math_operation in (*row.operations, *row.over_f32)
            for row in rows
        ):
            return
        shape = None if self.instruction_shape is None else list(self.instruction_shape)
        wanted = f"{self.opcode_class.name} {a} x {a} -> {accumulator}, {shape}, {self.math_operation.name}"
        nearest = rows or [row for row in _VALID if row.a == a] or list(_VALID)
        choices = "; ".join(str(row) for row in nearest)
        if self.instruction_shape is not None and self.instruction_shape[0] == _NATIVE_ROWS:
            choices += "; None for a Hopper-native kernel, whose instruction follows from its tile"
        reason = ""
        if self.is_tensor_op and a == "f16" and self.instruction_shape == _VOLTA_SHAPE:
            reason = f": {shape} of {self.a} is Volta's, and {NO_VOLTA}. Newer GPUs have others"
        raise DescriptionError(f"there is no math instruction {wanted}{reason}. Nearest valid choices: {choices}")

    @property
    def a(self) -> Element:
        """Type of the operands."""
        return element(self.element_a)

    @property
    def accumulator(self) -> Element:
        """Type of the accumulator."""
        return element(self.element_accumulator)

    @property
    def is_tensor_op(self) -> bool:
        """Whether tensor cores compute."""
        return bool(self.opcode_class == _TENSOR_OP)

    @property
    def is_over_f32(self) -> bool:
        """Whether tensors of f32 may be described with this instruction, which rounds them to its own type."""
        return any(self._is_row(row) and self.math_operation in row.over_f32 for row in _VALID)

    @property
    def is_fast(self) -> bool:
        """Whether the operation rounds or splits its operands, which are f32."""
        return self.math_operation in _FAST

    def _is_row(self, row: _Valid) -> bool:
        described = (self.opcode_class, self.a.short, self.accumulator.short, self.instruction_shape)
        return described == (row.opcode_class, row.a, row.accumulator, row.shape)

    @property
    def operator_cpp(self) -> str:
        """The math operator's tag in C++."""
        return _OPERATION_CPP[self.math_operation]

    def __repr__(self) -> str:
        shape = None if self.instruction_shape is None else list(self.instruction_shape)
        elements = ", ".join(str(element(e)) for e in (self.element_a, self.element_b, self.element_accumulator))
        opcode = f"cutlass.OpClass.{self.opcode_class.name}"
        return f"MathInstruction({shape}, {elements}, {opcode}, {self.math_operation!r})"


def triple(name: str, values: Iterable[int]) -> tuple[int, int, int]:
    """Return M, N, K of a shape; raise DescriptionError, naming it, where they are not three positive integers."""
    extents = several(values, 3)
    if extents is None or min(extents) < 1:
        given = shown(list(items_of(values, 3) or ()) or values)
        raise DescriptionError(f"{name} must be three positive integers [M, N, K], got {given}")
    m, n, k = extents
    return m, n, k
