"""The building blocks of a kernel's description: math instruction, tile and tensors.

They are frozen values. They are checked by the table of their family when they are made, so that what exists is valid;
what only the whole operation can tell (alignment against the tile, shared memory of the target) is checked with that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from pycutlass import _core
from pycutlass.calls import meant, public, shown
from pycutlass.enums import KernelSchedule, MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.families import AMPERE, GEMV, SM90, KernelFamily, Product
from pycutlass.families.sm90_products import accumulator_registers
from pycutlass.families.sm90_warp_groups import threads
from pycutlass.integers import as_int, items_of, several
from pycutlass.log import say_once
from pycutlass.types import Element, Layout, element, layout

__all__ = ["MathInstruction", "TensorDescription", "TileDescription", "Value"]

_OPERATION_CPP = {
    MathOperation.multiply_add: "cutlass::arch::OpMultiplyAdd",
    MathOperation.multiply_add_saturate: "cutlass::arch::OpMultiplyAddSaturate",
    MathOperation.multiply_add_fast_f16: "cutlass::arch::OpMultiplyAddFastF16",
    MathOperation.multiply_add_fast_bf16: "cutlass::arch::OpMultiplyAddFastBF16",
    MathOperation.multiply_add_fast_f32: "cutlass::arch::OpMultiplyAddFastF32",
    MathOperation.multiply_add_fast_accum: "cutlass::arch::OpMultiplyAddFastAccum",
    MathOperation.multiply_add_mixed_input_upcast: "cutlass::arch::OpMultiplyAddMixedInputUpcast",
}

_OPERATION_TAGS = {
    MathOperation.multiply_add_fast_f16: "f16",
    MathOperation.multiply_add_fast_bf16: "bf16",
    MathOperation.multiply_add_fast_f32: "3xtf32",
    MathOperation.multiply_add_fast_accum: "fastaccum",
}

#: What an extent is not counted beyond without a second look: Python prints no integer of any size.
_MOST = 2**31

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
        M, N, K of one instruction. None for Hopper-native kernels, by TensorOp, and for GEMV kernels, by Simt, whose
        instruction follows from the tile.
    element_a, element_b, element_accumulator : element types of ``cutlass``
        Types of the operands and of the accumulator. Operands of two types are e4m3 and e5m2, or int8 and uint8,
        which Hopper-native kernels multiply; or float16 or bfloat16 and int8 or uint8 in either order, which
        Ampere-style kernels multiply by ``multiply_add_mixed_input_upcast``.
    opcode_class : cutlass.OpClass
        TensorOp or Simt.
    math_operation : MathOperation
        What one multiply-add does. Tensor cores saturate int8 in Ampere-style kernels, also where it is called
        ``multiply_add``, and wrap around in Hopper-native ones.

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
            object.__setattr__(self, "instruction_shape", _triple("instruction_shape", self.instruction_shape))
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
            family=AMPERE if self.instruction_shape is not None else GEMV if self.opcode_class == _SIMT else SM90,
        )
        adds = self.math_operation is MathOperation.multiply_add
        if of_tensor_cores and a.is_integer and b.is_integer and adds and self.instruction_shape is not None:
            # mma.sync has one way to add up integers; the original's scripts call it by either name.
            object.__setattr__(self, "math_operation", MathOperation.multiply_add_saturate)
        self.__dict__["operator_cpp"] = _OPERATION_CPP[self.math_operation]
        object.__setattr__(self, "product", self.family.product_of(self))

    @property
    def is_over_f32(self) -> bool:
        """Whether tensors of f32 may be described with this instruction, which rounds them to its own type."""
        return self.math_operation in self.product.over_f32

    def procedural_name(self) -> str:
        """Return accumulator, instruction and operation as in CUTLASS's kernel names: ``s16816`` or ``s1688bf16``."""
        shape = "".join(map(str, self.instruction_shape or ())) if self.is_tensor_op else ""
        return f"{self.accumulator.letter}{shape}{_OPERATION_TAGS.get(self.math_operation, '')}"

    def __repr__(self) -> str:
        shape = None if self.instruction_shape is None else list(self.instruction_shape)
        elements = ", ".join(str(element(e)) for e in (self.element_a, self.element_b, self.element_accumulator))
        opcode = f"cutlass.OpClass.{self.opcode_class.name}"
        return f"MathInstruction({shape}, {elements}, {opcode}, {self.math_operation!r})"


@public
@dataclass(frozen=True)
class TileDescription(Value):
    """How a threadblock and its warps divide the problem.

    Parameters
    ----------
    threadblock_shape : sequence of 3 int
        M, N, K of the tile of one threadblock.
    stages : int or None
        Depth of the software pipeline. None, for Hopper kernels, takes as many as fit in shared memory.
    warp_count : sequence of 3 int or None
        Warps along M, N and K. None for Hopper kernels, whose warp groups follow from `kernel_schedule`.
    math_instruction : MathInstruction
        The instruction.
    cluster_shape : sequence of 2 or 3 int, optional
        Threadblocks of one cluster along M and N. Naming it asks for a Hopper-native kernel.
    kernel_schedule : KernelSchedule, optional
        Of Hopper-native kernels, by default cooperative where the tile has 128 or 256 rows, else pingpong; without a
        `cluster_shape`, ``KernelSchedule.Gemv`` asks for a GEMV kernel, of 1, 2, 4 or 8 rows.

    Raises
    ------
    DescriptionError
        The tile is not divisible by its warps or by the instruction.

    Examples
    --------
    >>> from pycutlass import MathInstruction, TileDescription, cutlass
    >>> instruction = MathInstruction(
    ...     [16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    ... )
    >>> TileDescription([128, 128, 32], 3, [2, 2, 1], instruction).num_threads
    128
    """

    threadblock_shape: tuple[int, int, int]
    stages: int | None
    warp_count: tuple[int, int, int] | None
    math_instruction: MathInstruction
    cluster_shape: tuple[int, int, int] | None = None
    kernel_schedule: KernelSchedule | None = None
    #: What follows from them: the family, threads of a threadblock, and M, N, K of the tile of one warp; that of the
    #: threadblock for Hopper kernels.
    family: KernelFamily = field(init=False, repr=False, compare=False)
    num_threads: int = field(init=False, repr=False, compare=False)
    warp_shape: tuple[int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "threadblock_shape", _triple("threadblock_shape", self.threadblock_shape))
        if not isinstance(self.math_instruction, MathInstruction):
            raise DescriptionError(f"math_instruction must be a MathInstruction, got {shown(self.math_instruction)}")
        if self.cluster_shape is not None:
            object.__setattr__(self, "cluster_shape", _cluster(self.cluster_shape))
            if self.kernel_schedule is None:
                object.__setattr__(self, "kernel_schedule", SM90.schedule_of(self.threadblock_shape[0]))
        if self.warp_count is not None:
            object.__setattr__(self, "warp_count", _triple("warp_count", self.warp_count))
        stages = as_int(self.stages)
        (m, n, k), counted = self.threadblock_shape, self.cluster_shape is None and self.warp_count
        along_m, along_n, along_k = counted or (1, 1, 1)
        self.__dict__.update(
            stages=self.stages if stages is None else stages,
            family=SM90
            if self.cluster_shape is not None
            else GEMV
            if self.kernel_schedule is KernelSchedule.Gemv
            else AMPERE,
            num_threads=32 * along_m * along_n * along_k if counted else threads(self),
            warp_shape=(m // along_m, n // along_n, k // along_k),
        )
        self.family.check_tile(self)

    @property
    def is_sm90(self) -> bool:
        """Whether this tile belongs to a Hopper-native kernel."""
        return self.cluster_shape is not None

    @property
    def is_gemv(self) -> bool:
        """Whether this tile belongs to a GEMV kernel."""
        return self.cluster_shape is None and self.kernel_schedule is KernelSchedule.Gemv

    def stage_bytes(self) -> int:
        """Return the shared memory of one pipeline stage in bytes: one tile of A and one of B."""
        m, n, k = self.threadblock_shape
        return self.math_instruction.a.bytes_of(m * k) + self.math_instruction.b.bytes_of(n * k)

    def procedural_name(self) -> str:
        """Return ``MxN_KxS``, as in CUTLASS's kernel names."""
        m, n, k = self.threadblock_shape
        return f"{m}x{n}_{k}x{self.stages or 'auto'}"

    @property
    def accumulator_registers(self) -> int:
        """Registers of a Hopper-native kernel's thread that hold sums, of the 128 threads of each warp group."""
        return accumulator_registers(self)

    def __repr__(self) -> str:
        warps = None if self.warp_count is None else list(self.warp_count)
        text = f"{list(self.threadblock_shape)}, {self.stages}, {warps}, {self.math_instruction!r}"
        if self.kernel_schedule is not None:
            text += f", {self.cluster_shape and list(self.cluster_shape)}, {self.kernel_schedule!r}"
        return f"TileDescription({text})"


@public
@dataclass(frozen=True)
class TensorDescription(Value):
    """Element type, layout and alignment of an operand.

    Parameters
    ----------
    element : element type of ``cutlass``, or a dtype of torch, NumPy or ml_dtypes
        For example ``cutlass.float16``.
    layout : layout of ``cutlass``
        ``cutlass.RowMajor`` or ``cutlass.ColumnMajor``; for convolutions ``cutlass.TensorNHWC``.
    alignment : int
        Elements that every pointer, row and leading dimension is aligned to; a power of two. More than one 128-bit
        access holds is reduced to that, as the original did, and the log says so.

    Raises
    ------
    DescriptionError
        An unknown type or layout, or an alignment that is not a power of two.

    Examples
    --------
    >>> from pycutlass import TensorDescription, cutlass
    >>> TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    """

    element: Any
    layout: Any
    alignment: int = 1
    #: What follows from them: the rows of type and layout, whether elements of a row are adjacent, bytes of alignment.
    type: Element = field(init=False, repr=False, compare=False)
    order: Layout = field(init=False, repr=False, compare=False)
    is_row_major: bool = field(init=False, repr=False, compare=False)
    alignment_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        described, order = element(self.element), layout(self.layout)
        alignment = as_int(self.alignment)
        if alignment is None or alignment < 1 or alignment & (alignment - 1):
            raise DescriptionError(f"alignment must be a power of two of elements, got {shown(self.alignment)}")
        if alignment * described.bits % 8:
            raise DescriptionError(
                f"alignment {alignment} of {described} is {alignment * described.bits} bits, and addresses are those "
                f"of bytes: use at least {8 // described.bits}"
            )
        most = 128 // described.bits
        if alignment > most:
            say_once(
                f"alignment {alignment} of {described} is more than one access of 128 bits holds: it is taken as {most}"
            )
        alignment = min(alignment, most)
        self.__dict__.update(
            element=described.tag,
            alignment=alignment,
            type=described,
            order=order,
            is_row_major=order.is_row_major,
            alignment_bytes=described.bytes_of(alignment),
        )

    @property
    def cpp(self) -> str:
        """The description in C++."""
        return f"pycutlass::Tensor<{self.type.cpp}, {self.order.cpp}, {self.alignment}>"

    def __repr__(self) -> str:
        return f"TensorDescription({self.type}, {self.order}, {self.alignment})"


def _triple(name: str, values: Iterable[int]) -> tuple[int, int, int]:
    """Return M, N, K of a shape; raise DescriptionError, naming it, where they are not three positive integers."""
    if type(values) in (tuple, list):
        m, n, k = tuple(values) if len(values) == 3 else (0, 0, 0)  # type: ignore[arg-type]
        if type(m) is type(n) is type(k) is int and min(m, n, k) > 0 and max(m, n, k) < _MOST:
            return m, n, k
    extents = several(values, 3)
    if extents is None or min(extents) < 1:
        given = shown(list(items_of(values, 3) or ()) or values)
        raise DescriptionError(f"{name} must be three positive integers [M, N, K], got {given}")
    m, n, k = extents
    return m, n, k


def _cluster(values: Iterable[int]) -> tuple[int, int, int]:
    items = items_of(values, 3) or ()
    extents = several(items, 3) if len(items) == 3 else several((*items, 1), 3)
    if extents is None or min(extents) < 1:
        raise DescriptionError(
            f"cluster_shape must be two positive integers, threadblocks along M and N, such as [2, 1]; got "
            f"{shown(list(items) or values)}"
        )
    m, n, k = extents
    return m, n, k
