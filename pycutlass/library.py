"""The building blocks of a kernel's description beside its math instruction: tile and tensors.

Both are frozen values. They check themselves when they are made, so that what exists is valid; what only the
whole operation can tell (alignment against the tile, shared memory of the target) is checked by the operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pycutlass.calls import member_meant, public, shown
from pycutlass.enums import KernelSchedule
from pycutlass.errors import DescriptionError
from pycutlass.instruction import MathInstruction, triple
from pycutlass.integers import items_of, whole
from pycutlass.log import say_once
from pycutlass.types import Element, Layout, element, layout

__all__ = ["CLEAN_ACCUMULATORS", "TensorDescription", "TileDescription"]

#: Rows of a Hopper-native tile, by schedule: warp groups have multiples of 64.
_NATIVE_ROWS = {
    KernelSchedule.Cooperative: (128, 256),
    KernelSchedule.Pingpong: (64, 128, 192, 256),
}
#: Registers of the 240 of a Hopper-native kernel's thread that sums can have, and those with which ptxas spills none.
#: Built with CUDA 13.0 for C of 16 bits, 192 were clean, 208 spilled a few bytes, and from 216 on ptxas made each wgmma
#: wait for the one before. C of 32 bits has more of its own: 168 were clean, 176 almost, 192 spilled.
_MOST_ACCUMULATORS, CLEAN_ACCUMULATORS = 224, 192


@public
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
        Hopper-native kernels only; by default cooperative where the tile has 128 or 256 rows, else pingpong.

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
        object.__setattr__(self, "threadblock_shape", triple("threadblock_shape", self.threadblock_shape))
        if not isinstance(self.math_instruction, MathInstruction):
            raise DescriptionError(f"math_instruction must be a MathInstruction, got {shown(self.math_instruction)}")
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
        object.__setattr__(self, "warp_count", triple("warp_count", self.warp_count))
        stages = whole(self.stages)
        if stages is None or stages < 2:
            raise DescriptionError(f"stages must be an integer of at least 2, got {shown(self.stages)}")
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
                    f"instruction_shape {axis}={step}; {self._divided(axis, extent, count, step)}"
                )
        if self.math_instruction.is_tensor_op:
            self._check_tensor_op_warp()
        else:
            self._check_simt_warp()

    def _divided(self, axis: str, extent: int, count: int, step: int) -> str:
        """Return the nearest warp_count that makes a tile if the extent is a usual one, else the nearest extent."""
        shape = self.math_instruction.instruction_shape or (1, 1, 1)
        nearest = []
        for size, warps, one in zip(self.threadblock_shape, self.warp_count or (1, 1, 1), shape, strict=True):
            dividing = [number for number in range(1, 33) if size % (number * one) == 0]
            nearest.append(min(dividing, key=lambda number: abs(number - warps), default=0))
        with contextlib.suppress(DescriptionError):
            m, n, k = nearest
            if m * n * k and not extent & (extent - 1):
                return f"use warp_count {list(replace(self, warp_count=(m, n, k)).warp_count or ())}"
        return f"the nearest is {_nearest_multiple(extent, count * step)}"

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
            schedule = KernelSchedule.Pingpong if m == 192 or m < 128 else KernelSchedule.Cooperative
            object.__setattr__(self, "kernel_schedule", schedule)
        if not isinstance(schedule, KernelSchedule):
            near = member_meant(schedule, KernelSchedule, "KernelSchedule")
            raise DescriptionError(f"kernel_schedule must be a KernelSchedule, got {shown(schedule)}{near}")
        if self.warp_count is not None:
            raise DescriptionError(
                "a Hopper-native kernel has fixed warp groups: give warp_count=None, or leave out cluster_shape"
            )
        self._check_native_extents(m, n, k, schedule)
        if self.stages is not None:
            stages = whole(self.stages)
            if stages is None or stages < 2:
                raise DescriptionError(f"stages must be None (as many as fit) or at least 2, got {shown(self.stages)}")
            object.__setattr__(self, "stages", stages)

    def _check_native_extents(self, m: int, n: int, k: int, schedule: KernelSchedule) -> None:
        allowed_m = _NATIVE_ROWS[schedule]
        if m not in allowed_m:
            other = next((other for other, rows in _NATIVE_ROWS.items() if m in rows), None)
            raise DescriptionError(
                f"threadblock_shape M={m} does not fit {schedule!r}, which takes {', '.join(map(str, allowed_m))}"
                + ("" if other is None else f"; {other!r} takes {m}")
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
        registers = self.accumulator_registers
        if registers > _MOST_ACCUMULATORS:
            raise DescriptionError(
                f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {schedule!r}, which has "
                f"{_MOST_ACCUMULATORS} to give at most, and {CLEAN_ACCUMULATORS} without spills: use at most "
                f"{CLEAN_ACCUMULATORS * n // registers // 16 * 16} columns"
            )

    @property
    def accumulator_registers(self) -> int:
        """Registers of a Hopper-native kernel's thread that hold sums, of the 128 threads of each warp group."""
        m, n, _ = self.threadblock_shape
        return m * n // (256 if self.kernel_schedule is KernelSchedule.Cooperative else 128)

    def __repr__(self) -> str:
        warps = None if self.warp_count is None else list(self.warp_count)
        text = f"{list(self.threadblock_shape)}, {self.stages}, {warps}, {self.math_instruction!r}"
        if self.is_native:
            text += f", {list(self.cluster_shape or ())}, {self.kernel_schedule!r}"
        return f"TileDescription({text})"


@public
@dataclass(frozen=True)
class TensorDescription:
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

    def __post_init__(self) -> None:
        described, _ = element(self.element), layout(self.layout)
        object.__setattr__(self, "element", described.tag)
        alignment = whole(self.alignment)
        if alignment is None or alignment < 1 or alignment & (alignment - 1):
            raise DescriptionError(f"alignment must be a power of two of elements, got {shown(self.alignment)}")
        most = 128 // described.bits
        if alignment > most:
            say_once(
                f"alignment {alignment} of {described} is more than one access of 128 bits holds: it is taken as {most}"
            )
        object.__setattr__(self, "alignment", min(alignment, most))

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


def _cluster(values: Iterable[int]) -> tuple[int, int, int]:
    items = items_of(values, 3) or ()
    return triple("cluster_shape", (*items, 1) if len(items) == 2 else values)


def _nearest_multiple(value: int, step: int) -> int:
    return max(step, (value + step // 2) // step * step)
