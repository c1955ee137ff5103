"""The building blocks of a kernel's description: math instruction, tile and tensors.

All three are frozen values. They check themselves when they are made, so that what exists is valid; what only the
whole operation can tell (alignment against the tile, shared memory of the target) is checked by the operation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.enums import KernelSchedule, MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.types import Element, Layout, element, layout

__all__ = [
    "NO_VOLTA",
    "MathInstruction",
    "TensorDescription",
    "TileDescription",
    "whole",
]

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
    """One row of the guide's table of valid combinations."""

    opcode_class: Any
    a: str
    accumulator: str
    shape: tuple[int, int, int]
    operations: tuple[MathOperation, ...] = (MathOperation.multiply_add,)

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
    _Valid(_TENSOR_OP, "tf32", "f32", (16, 8, 8)),
    _Valid(_TENSOR_OP, "f16", "f32", (16, 8, 8)),
    _Valid(_TENSOR_OP, "f16", "f16", (16, 8, 8)),
    _Valid(_TENSOR_OP, "bf16", "f32", (16, 8, 8)),
    _Valid(_TENSOR_OP, "f16", "f16", (16, 8, 16)),
    _Valid(_TENSOR_OP, "f16", "f32", (16, 8, 16)),
    _Valid(_TENSOR_OP, "bf16", "f32", (16, 8, 16)),
    _Valid(_TENSOR_OP, "s8", "s32", (16, 8, 32), (MathOperation.multiply_add_saturate,)),
    _Valid(_SIMT, "f64", "f64", (1, 1, 1)),
    _Valid(_SIMT, "f32", "f32", (1, 1, 1)),
    _Valid(_TENSOR_OP, "s8", "s32", (8, 8, 16), (MathOperation.multiply_add_saturate,)),
    _Valid(_SIMT, "s8", "s32", (1, 1, 4)),
)


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
        What one multiply-add does.

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
            object.__setattr__(self, "instruction_shape", _triple("instruction_shape", self.instruction_shape))
        if not isinstance(self.opcode_class, _core.OpClass):
            raise DescriptionError(f"opcode_class must be a cutlass.OpClass, got {self.opcode_class!r}")
        if not isinstance(self.math_operation, MathOperation):
            raise DescriptionError(f"math_operation must be a MathOperation, got {self.math_operation!r}")
        a, b = element(self.element_a), element(self.element_b)
        if a is not b:
            raise DescriptionError(f"element_a and element_b must be the same type, got {a} and {b}")
        self._check_table(a.short, element(self.element_accumulator).short)

    def _check_table(self, a: str, accumulator: str) -> None:
        rows = [row for row in _VALID if row.opcode_class == self.opcode_class and row.a == a]
        if any(
            row.accumulator == accumulator
            and self.instruction_shape in (None, row.shape)
            and self.math_operation in row.operations
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
    def operator_cpp(self) -> str:
        """The math operator's tag in C++."""
        return _OPERATION_CPP[self.math_operation]

    def __repr__(self) -> str:
        shape = None if self.instruction_shape is None else list(self.instruction_shape)
        elements = ", ".join(str(element(e)) for e in (self.element_a, self.element_b, self.element_accumulator))
        opcode = f"cutlass.OpClass.{self.opcode_class.name}"
        return f"MathInstruction({shape}, {elements}, {opcode}, {self.math_operation!r})"


@dataclass(frozen=True)
class TileDescription:
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
        Hopper-native kernels only; by default cooperative where the tile has 128 rows or more.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "threadblock_shape", _triple("threadblock_shape", self.threadblock_shape))
        if not isinstance(self.math_instruction, MathInstruction):
            raise DescriptionError(f"math_instruction must be a MathInstruction, got {self.math_instruction!r}")
        if self.cluster_shape is not None:
            object.__setattr__(self, "cluster_shape", _cluster(self.cluster_shape))
            self._check_native()
        else:
            self._check_warps()

    @property
    def is_native(self) -> bool:
        """Whether this tile belongs to a Hopper-native kernel."""
        return self.cluster_shape is not None

    @property
    def num_threads(self) -> int:
        """Threads of one threadblock."""
        if self.is_native:
            return 384  # one producer warp group and two consumers, under either schedule
        m, n, k = self.warp_count or (1, 1, 1)
        return 32 * m * n * k

    @property
    def warp_shape(self) -> tuple[int, int, int]:
        """M, N, K of the tile of one warp; of the threadblock for Hopper kernels."""
        counts = self.warp_count or (1, 1, 1)
        m, n, k = (extent // count for extent, count in zip(self.threadblock_shape, counts, strict=True))
        return m, n, k

    def stage_bytes(self) -> int:
        """Return the shared memory of one pipeline stage in bytes: one tile of A and one of B."""
        m, n, k = self.threadblock_shape
        return (m + n) * k * self.math_instruction.a.bits // 8

    def procedural_name(self) -> str:
        """Return ``MxN_KxS``, as in CUTLASS's kernel names."""
        m, n, k = self.threadblock_shape
        return f"{m}x{n}_{k}x{self.stages or 'auto'}"

    def _check_warps(self) -> None:
        if self.kernel_schedule is not None:
            raise DescriptionError("kernel_schedule belongs to Hopper-native kernels: give a cluster_shape as well")
        if self.warp_count is None or self.stages is None:
            raise DescriptionError(
                "warp_count and stages may be None only for Hopper-native kernels, which name a cluster_shape"
            )
        object.__setattr__(self, "warp_count", _triple("warp_count", self.warp_count))
        stages = whole(self.stages)
        if stages is None or stages < 2:
            raise DescriptionError(f"stages must be an integer of at least 2, got {self.stages!r}")
        object.__setattr__(self, "stages", stages)
        if self.num_threads > 1024:
            raise DescriptionError(
                f"a threadblock has at most 1024 threads; warp_count {list(self.warp_count)} makes {self.num_threads}"
            )
        shape = self.math_instruction.instruction_shape
        if shape is None:
            raise DescriptionError("instruction_shape may be None only for Hopper-native kernels")
        for axis, extent, count, step in zip("MNK", self.threadblock_shape, self.warp_count, shape, strict=True):
            if extent % (count * step):
                raise DescriptionError(
                    f"threadblock_shape {axis}={extent} must be a multiple of warp_count {axis}={count} times "
                    f"instruction_shape {axis}={step}; the nearest is {_nearest_multiple(extent, count * step)}"
                )
        if self.math_instruction.is_tensor_op:
            self._check_tensor_op_warp()
        else:
            self._check_simt_warp()

    def _check_tensor_op_warp(self) -> None:
        # MmaTensorOp (cutlass/gemm/warp/mma_tensor_op.h) loads operands with ldmatrix in groups of two instructions
        # along K where the operand is kept by K, and the multistage mainloop needs two k-groups to overlap them.
        instruction_k = (self.math_instruction.instruction_shape or (1, 1, 1))[2]
        groups = self.warp_shape[2] // instruction_k
        if groups < 2:
            raise DescriptionError(
                f"a warp tile needs at least 2 instructions along K to overlap loads with math: K={self.warp_shape[2]} "
                f"with instruction K={instruction_k} gives {groups}; use threadblock_shape K of at least "
                f"{2 * instruction_k * (self.warp_count or (1, 1, 1))[2]}"
            )

    def _check_simt_warp(self) -> None:
        m, n, _ = self.warp_shape
        # 8x4 threads of 4x4 elements (cutlass/gemm/threadblock/default_mma_core_simt.h)
        if not (m % 16 == 0 and n % 32 == 0) and not (m % 32 == 0 and n % 16 == 0):
            raise DescriptionError(
                f"a SIMT warp tile must be a multiple of 16x32 or 32x16, got {m}x{n}; "
                f"change threadblock_shape or warp_count"
            )

    def _check_native(self) -> None:
        m, n, k = self.threadblock_shape
        cluster_m, cluster_n, cluster_k = self.cluster_shape or (1, 1, 1)
        if not self.math_instruction.is_tensor_op:
            raise DescriptionError("a Hopper-native kernel needs OpClass.TensorOp; leave out cluster_shape for Simt")
        if cluster_k != 1 or cluster_m not in (1, 2) or cluster_n not in (1, 2):
            raise DescriptionError(f"cluster_shape must be 1 or 2 along M and N, got {list(self.cluster_shape or ())}")
        shape = self.math_instruction.instruction_shape
        if shape is not None:
            raise DescriptionError(
                f"the instruction of a Hopper-native kernel follows from its tile: give instruction_shape=None, or "
                f"leave out cluster_shape; got {list(shape)}"
            )
        schedule = self.kernel_schedule
        if schedule is None:
            schedule = KernelSchedule.Cooperative if m >= 128 else KernelSchedule.Pingpong
            object.__setattr__(self, "kernel_schedule", schedule)
        if not isinstance(schedule, KernelSchedule):
            raise DescriptionError(f"kernel_schedule must be a KernelSchedule, got {schedule!r}")
        if self.warp_count is not None:
            raise DescriptionError(
                "a Hopper-native kernel has fixed warp groups: give warp_count=None, or leave out cluster_shape"
            )
        self._check_native_extents(m, n, k, schedule)
        if self.stages is not None:
            stages = whole(self.stages)
            if stages is None or stages < 2:
                raise DescriptionError(f"stages must be None (as many as fit) or at least 2, got {self.stages!r}")
            object.__setattr__(self, "stages", stages)

    def _check_native_extents(self, m: int, n: int, k: int, schedule: KernelSchedule) -> None:
        allowed_m = (64, 128, 192, 256) if schedule is KernelSchedule.Pingpong else (128, 256)
        if m not in allowed_m:
            raise DescriptionError(
                f"threadblock_shape M={m} does not fit {schedule!r}, which takes {', '.join(map(str, allowed_m))}"
                + ("; KernelSchedule.Pingpong takes 64" if schedule is KernelSchedule.Cooperative else "")
            )
        if n % 16 or not 16 <= n <= 256:
            raise DescriptionError(
                f"threadblock_shape N={n} must be a multiple of 16 from 16 to 256 (the epilogue stores 16 at once); "
                f"the nearest is {min(256, max(16, _nearest_multiple(n, 16)))}"
            )
        step = 256 // self.math_instruction.a.bits  # wgmma's K is 32 bytes
        if k % step:
            raise DescriptionError(
                f"threadblock_shape K={k} must be a multiple of {step} for {self.math_instruction.a}; "
                f"the nearest is {_nearest_multiple(k, step)}"
            )
        # Accumulators of one consumer warp group (128 threads) live in at most 255 registers of each thread.
        consumers = 2 if schedule is KernelSchedule.Cooperative else 1
        registers = m * n // (128 * consumers)
        if registers > 224:
            raise DescriptionError(
                f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {schedule!r}, which has "
                f"about 224 to give: use at most {224 * 128 * consumers // m // 16 * 16} columns, or the other schedule"
            )

    def __repr__(self) -> str:
        warps = None if self.warp_count is None else list(self.warp_count)
        text = f"{list(self.threadblock_shape)}, {self.stages}, {warps}, {self.math_instruction!r}"
        if self.is_native:
            text += f", {list(self.cluster_shape or ())}, {self.kernel_schedule!r}"
        return f"TileDescription({text})"


@dataclass(frozen=True)
class TensorDescription:
    """Element type, layout and alignment of an operand.

    Parameters
    ----------
    element : element type of ``cutlass``
        For example ``cutlass.float16``.
    layout : layout of ``cutlass``
        ``cutlass.RowMajor`` or ``cutlass.ColumnMajor``; for convolutions ``cutlass.TensorNHWC``.
    alignment : int
        Elements that every pointer, row and leading dimension is aligned to; a power of two. More than one 128-bit
        access holds is reduced to that, as the original did.

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

    def __post_init__(self) -> None:
        described, _ = element(self.element), layout(self.layout)
        alignment = whole(self.alignment)
        if alignment is None or alignment < 1 or alignment & (alignment - 1):
            raise DescriptionError(f"alignment must be a power of two of elements, got {self.alignment!r}")
        object.__setattr__(self, "alignment", min(alignment, 128 // described.bits))

    @property
    def type(self) -> Element:
        """The element type's row."""
        return element(self.element)

    @property
    def order(self) -> Layout:
        """The layout's row."""
        return layout(self.layout)

    @property
    def is_row_major(self) -> bool:
        """Whether the elements of a row are adjacent."""
        return self.order.is_row_major

    @property
    def alignment_bytes(self) -> int:
        """The alignment in bytes."""
        return max(1, self.alignment * self.type.bits // 8)

    def __repr__(self) -> str:
        return f"TensorDescription({self.type}, {self.order}, {self.alignment})"


def whole(value: Any) -> int | None:
    """Return `value` as an int where it is an integer of any library and no truth value, else None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _cluster(values: Iterable[int]) -> tuple[int, int, int]:
    items = _items("cluster_shape", values)
    return _triple("cluster_shape", (*items, 1) if len(items) == 2 else items)


def _triple(name: str, values: Iterable[int]) -> tuple[int, int, int]:
    items = _items(name, values)
    extents = [extent for extent in map(whole, items) if extent is not None and extent >= 1]
    if not len(items) == len(extents) == 3:
        raise DescriptionError(f"{name} must be three positive integers [M, N, K], got {list(items)!r}")
    m, n, k = extents
    return m, n, k


def _items(name: str, values: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(values)
    except TypeError:
        raise DescriptionError(f"{name} must be three positive integers [M, N, K], got {values!r}") from None


def _nearest_multiple(value: int, step: int) -> int:
    return max(step, (value + step // 2) // step * step)
