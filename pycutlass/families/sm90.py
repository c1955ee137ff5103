"""The table of Hopper-native kernels: CUTLASS's 3.x API, TMA and wgmma, for compute capability 90 alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.calls import member_meant, shown
from pycutlass.enums import KernelSchedule, SchedulerMode
from pycutlass.errors import DescriptionError
from pycutlass.families.parts import Epilogue, Gemm, Math, Product, Shape, Tensor, Tile
from pycutlass.families.table import (
    SHARED_MEMORY_LIMIT,
    Family,
    KernelFamily,
    check_family,
    check_matrix,
    nearest_multiple,
)
from pycutlass.log import say_once

__all__ = [
    "CLEAN_ACCUMULATORS",
    "SM90",
    "SM90_THREADS",
    "accumulator_registers",
    "chosen_stages",
    "kernel_bytes",
    "stages_of",
]

#: Registers of the 240 of a Hopper-native kernel's thread that sums can have, and those with which ptxas spills none.
#: Built with CUDA 13.0 for C of 16 bits, 192 were clean, 208 spilled a few bytes, and from 216 on ptxas made each wgmma
#: wait for the one before. C of 32 bits has more of its own: 168 were clean, 176 almost, 192 spilled.
_MAX_ACCUMULATORS, CLEAN_ACCUMULATORS = 224, 192
#: What the TMA copies is aligned to, and what an instruction takes along K, in bytes.
_TMA_BYTES, _WGMMA_DEPTH = 16, 32
#: Threads of a threadblock: one producer warp group and two consumers, under either schedule.
SM90_THREADS = 384
#: Bytes of the barriers of a pipeline's stage (one that it is full, one that it is empty), and of a tensor map.
_BARRIERS, _TENSOR_MAP = 16, 128
#: What the scheduler of a Hopper-native group has: barriers of 8 stages, and as many answers of 16 bytes.
_SCHEDULER, _ANSWERS = 8 * _BARRIERS, 8 * 16
#: Shared memory that a kernel can have, in bytes (cutlass/arch/arch.h, sm90_smem_capacity_bytes).
_LIMIT = SHARED_MEMORY_LIMIT[90]
_Mode = _core.GemmMode


@dataclass(frozen=True, eq=False)
class _Sm90(KernelFamily):
    """Kernels of which each tile is computed by warp groups, and that run on compute capability 90 alone."""

    _beside = ", those of the epilogue included,"

    def _why_not(self, math: Math) -> str:
        if reason := super()._why_not(math):
            return reason
        kinds: dict[str, list[str]] = {}
        for row in self.products:
            kinds.setdefault(row.accumulator, []).append(row.a if row.a == row.b else f"{row.a} x {row.b}")
        multiplied = ", or ".join(f"{' or '.join(types)} and accumulate in {sums}" for sums, types in kinds.items())
        return (
            f"{self.name} kernels, whose instruction_shape is None, multiply {multiplied}, by OpClass.TensorOp and "
            f"multiply_add; got {math.a} and {math.accumulator} by {math.opcode_class.name} and "
            f"{math.math_operation.name}. Give an instruction_shape, and leave out cluster_shape, for an Ampere-style "
            f"kernel."
        )

    def check_tile(self, tile: Tile) -> None:
        """Raise DescriptionError where warp groups cannot have the tile."""
        instruction = tile.math_instruction
        if not instruction.is_tensor_op:
            raise DescriptionError("a Hopper-native kernel needs OpClass.TensorOp; leave out cluster_shape for Simt")
        m, n, k = tile.cluster_shape or (1, 1, 1)
        if k != 1 or m not in (1, 2) or n not in (1, 2):
            raise DescriptionError(f"cluster_shape must be 1 or 2 along M and N, got {[m, n, k]}")
        if instruction.instruction_shape is not None:
            raise DescriptionError(
                f"the instruction of a Hopper-native kernel follows from its tile: give instruction_shape=None, or "
                f"leave out cluster_shape; got {list(instruction.instruction_shape)}"
            )
        schedule = tile.kernel_schedule
        if not isinstance(schedule, KernelSchedule):
            near = member_meant(schedule, KernelSchedule, "KernelSchedule")
            raise DescriptionError(f"kernel_schedule must be a KernelSchedule, got {shown(schedule)}{near}")
        if tile.warp_count is not None:
            raise DescriptionError(
                "a Hopper-native kernel has fixed warp groups: give warp_count=None, or leave out cluster_shape"
            )
        self._check_extents(tile, schedule)
        if tile.stages is not None and (type(tile.stages) is not int or tile.stages < 2):
            raise DescriptionError(f"stages must be None (as many as fit) or at least 2, got {shown(tile.stages)}")

    def _check_extents(self, tile: Tile, schedule: KernelSchedule) -> None:
        m, n, k = tile.threadblock_shape
        if m not in self.schedules[schedule]:
            other = next((other for other, rows in self.schedules.items() if m in rows), None)
            raise DescriptionError(
                f"threadblock_shape M={m} does not fit {schedule!r}, which takes "
                f"{', '.join(map(str, self.schedules[schedule]))}" + ("" if other is None else f"; {other!r} takes {m}")
            )
        if n % 16 or not 16 <= n <= 256:
            raise DescriptionError(
                f"threadblock_shape N={n} must be a multiple of 16 from 16 to 256 (the epilogue stores 16 at once); "
                f"the nearest is {min(256, max(16, nearest_multiple(n, 16)))}"
            )
        widest = max(tile.math_instruction.a, tile.math_instruction.b, key=lambda operand: operand.bits)
        step = _WGMMA_DEPTH * 8 // widest.bits
        if k % step:
            raise DescriptionError(
                f"threadblock_shape K={k} must be a multiple of {step} for {widest}; "
                f"the nearest is {nearest_multiple(k, step)}"
            )
        registers = accumulator_registers(tile)
        if registers > _MAX_ACCUMULATORS:
            raise DescriptionError(
                f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {schedule!r}, which has "
                f"{_MAX_ACCUMULATORS} to give at most, and {CLEAN_ACCUMULATORS} without spills: use at most "
                f"{CLEAN_ACCUMULATORS * n // registers // 16 * 16} columns"
            )

    def schedule_of(self, rows: int) -> KernelSchedule:
        """Return the schedule of a tile that names none."""
        return KernelSchedule.Pingpong if rows == 192 or rows < 128 else KernelSchedule.Cooperative

    def check_apart(self, C: Tensor, D: Tensor) -> None:
        """Check a D that is described apart from C."""
        for name, operand in (("C", C), ("D", D)):
            check_matrix(name, operand)
            if operand.order.interleave > 1 or operand.type.short not in self.apart:
                raise DescriptionError(
                    f"where D is described apart from C, both are RowMajor or ColumnMajor, of {', '.join(self.apart)}; "
                    f"got {name} {operand.order} of {operand.type}"
                )
            _check_alignment(name, operand)

    def check_parts(self, kernel: Gemm) -> None:
        """Check compute capability, layouts, alignments and epilogue; say where registers will spill."""
        tile, A, B, C, D = kernel.tile_description, kernel.A, kernel.B, kernel.C, kernel.D
        if kernel.compute_capability not in self.shared_memory:
            raise DescriptionError(
                f"a tile with a cluster_shape makes a Hopper-native kernel, which needs compute_capability=90; got "
                f"{kernel.compute_capability}. Leave out cluster_shape for an Ampere-style kernel."
            )
        allowed = tile.math_instruction.product.layouts
        if (A.layout, B.layout) not in allowed or (C == D and C.layout is not _core.RowMajor):
            raise DescriptionError(
                f"Hopper-native kernels take A RowMajor, B ColumnMajor and C RowMajor; got {A.order}, {B.order} and "
                f"{C.order}"
            )
        for name, operand in (("A", A), ("B", B), *([("C", C)] if C == D else [])):
            _check_alignment(name, operand)
        check_family(kernel.epilogue_functor, self.gemm)
        _warn_of_spills(tile, D)

    def check_group(self, swizzle: type[Any], mode: SchedulerMode) -> None:
        """Check that a group leaves it to the kernel who takes which tile, and when."""
        if mode is not SchedulerMode.Device:
            raise DescriptionError(
                "a Hopper-native group finds its tiles as it goes: use precompute_mode=SchedulerMode.Device, or "
                "describe an Ampere-style kernel (stages and warp_count, no cluster_shape)"
            )
        if swizzle is not _core.IdentitySwizzle1:
            raise DescriptionError(
                f"a Hopper-native group has no swizzle: use cutlass.IdentitySwizzle1, got cutlass.{swizzle.__name__}"
            )

    def shared_bytes(
        self,
        tile: Tile,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        *,
        group: SchedulerMode | None = None,
        epilogue: Epilogue | None = None,
    ) -> int:
        """Return the bytes of shared memory; of a kernel that has 2 stages where fewer than that would fit."""
        beside = 0 if epilogue is None else epilogue.shared_bytes(self.gemm, tile)
        stages = max(2, stages_of(tile, C, grouped=group is not None, D=D))
        if beside and tile.stages is None:
            stages = 2  # CUTLASS takes as many as fit
        return kernel_bytes(tile, C, stages, grouped=group is not None, D=D) + beside

    def tag(self, compute_capability: int) -> int:
        """Return the compute capability that the C++ is tagged with: 90."""
        return 90

    def gemm_text(self, kernel: Gemm) -> str:
        """Return the C++ of a GEMM, without the line that names the kernel."""
        return self._text(kernel, kernel.tile_description.stages, "gemm_sm90.h", "GemmSm90")

    def group_text(self, kernel: Gemm, mode: SchedulerMode) -> str:
        """Return the C++ of a group of which each problem is a GEMM, without the line that names the kernel."""
        # CUTLASS may choose one stage too many for a group.
        tile = kernel.tile_description
        stages = stages_of(tile, kernel.C, grouped=True)
        chosen = tile.stages is None and stages == chosen_stages(tile, kernel.C, grouped=True)
        return self._text(kernel, None if chosen else stages, "gemm_grouped_sm90.h", "GemmGroupedSm90")

    def _text(self, kernel: Gemm, stages: int | None, header: str, template: str) -> str:
        """Return the C++ of a kernel; without `stages`, CUTLASS chooses how many there are."""
        tile, functor = kernel.tile_description, kernel.epilogue_functor
        schedule = tile.kernel_schedule or KernelSchedule.Cooperative
        written = "" if kernel.D == kernel.C else f",\n    {kernel.D.cpp}"
        return (
            f'#include "pycutlass/{header}"\n\n'
            f"{functor.definitions(self.gemm) if functor.is_tree else ''}"
            f"using Operation = pycutlass::{template}<\n"
            f"    {kernel.A.cpp},\n"
            f"    {kernel.B.cpp},\n"
            f"    {kernel.C.cpp},\n"
            f"    {tile.math_instruction.accumulator.cpp}, {_static_shape(tile.threadblock_shape)},\n"
            f"    {_static_shape(tile.cluster_shape or (1, 1, 1))},\n"
            f"    {functor.cpp(self.gemm, kernel.C.type)},\n"
            f"    pycutlass::{schedule.name}, {stages or 0}{written}>;\n"
        )


def _static_shape(shape: Shape) -> str:
    """Return a shape in CuTe's C++."""
    return f"cute::Shape<{', '.join(f'cute::Int<{extent}>' for extent in shape)}>"


def _check_alignment(name: str, operand: Tensor) -> None:
    if operand.alignment_bytes != _TMA_BYTES:
        raise DescriptionError(
            f"TMA needs 16-byte alignment: operand {name} of {operand.type} needs alignment "
            f"{8 * _TMA_BYTES // operand.type.bits}, got {operand.alignment}"
        )


def accumulator_registers(tile: Tile) -> int:
    """Return the registers of a thread that hold sums, of the 128 threads of each warp group."""
    m, n, _ = tile.threadblock_shape
    return m * n // (256 if tile.kernel_schedule is KernelSchedule.Cooperative else 128)


def _warn_of_spills(tile: Tile, D: Tensor) -> None:
    """Log a warning where a tile leaves the epilogue too few registers."""
    registers = accumulator_registers(tile)
    clean = CLEAN_ACCUMULATORS - (24 if D.type.bits > 16 else 0)
    if registers > clean:
        m, n, _ = tile.threadblock_shape
        say_once(
            f"a {m}x{n} tile needs {registers} accumulator registers in each thread under {tile.kernel_schedule!r}, "
            f"and beyond {clean} of them for C of {D.type} the kernel may be slower: registers spill, and from 216 on "
            f"instructions wait for each other; {clean * n // registers // 16 * 16} columns are the most that do not"
        )


# Shared memory, as CUTLASS's headers lay it out


def kernel_bytes(tile: Tile, C: Tensor, stages: int, *, grouped: bool, D: Tensor | None = None) -> int:
    """Return the shared memory of a Hopper-native kernel in bytes (gemm/kernel/sm90_gemm_*_warpspecialized_*.hpp).

    D is like C where it is left out.
    """
    epilogue, alignment, buffers = _epilogue(tile, C, D or C)
    order = 2 * _BARRIERS if tile.kernel_schedule is KernelSchedule.Pingpong else 0
    pipelines = _BARRIERS * (stages + buffers + 1) + order
    mainloop = stages * tile.stage_bytes()
    if not grouped:
        return _up(_up(pipelines + 1, alignment) + epilogue + mainloop, alignment)
    shared = _up(mainloop, alignment) + epilogue + _SCHEDULER + pipelines + _ANSWERS
    return _up(_up(shared, _TENSOR_MAP) + 5 * _TENSOR_MAP, alignment)  # A and B, C, and D of each warp group


def stages_of(tile: Tile, C: Tensor, *, grouped: bool, D: Tensor | None = None) -> int:
    """Return how many stages a Hopper-native tile has: what CUTLASS gives to one that names none, if that fits.

    CUTLASS leaves out the scheduler of a group, and may give it one too many.
    """
    stages = tile.stages or chosen_stages(tile, C, grouped=grouped, D=D)
    if tile.stages is None and kernel_bytes(tile, C, stages, grouped=grouped, D=D) > _LIMIT:
        return stages - 1
    return stages


def chosen_stages(tile: Tile, C: Tensor, *, grouped: bool, D: Tensor | None = None) -> int:
    """Return how many stages CUTLASS gives to a Hopper-native tile that names none (sm90_gmma_builder.inl)."""
    epilogue, alignment, buffers = _epilogue(tile, C, D or C)
    maps = 3 * _TENSOR_MAP if grouped else 0
    beside = _up(_up(epilogue + maps + _BARRIERS * buffers, alignment), 128)
    return (_LIMIT - beside) // (_up(tile.stage_bytes(), 128) + _BARRIERS)


def _epilogue(tile: Tile, C: Tensor, D: Tensor) -> tuple[int, int, int]:
    """Return the bytes of an epilogue's tensors, their alignment, and how many buffers C has.

    C comes, and D leaves, in subtiles of up to 32 columns (epilogue/collective/builders/sm90_builder.inl). Where their
    elements have one size, D leaves from the buffers that C has come into.
    """
    m, n, _ = tile.threadblock_shape
    rows = 64 if tile.kernel_schedule is KernelSchedule.Pingpong else 128
    columns = math.gcd(32, n)
    subtiles = (m // rows) * (n // columns)
    of_C, of_D = (operand.type.bytes_of(rows * columns) for operand in (C, D))
    aligned_C, aligned_D = (_swizzle_bytes(operand, rows, columns) for operand in (C, D))
    alignment = max(aligned_C, aligned_D)
    if C.type.bits == D.type.bits:
        buffers = max(min(subtiles, 4), min(subtiles, 2) + 1)
        tensors = buffers * of_C
    else:
        buffers = min(subtiles, 4)
        tensors = _up(_up(buffers * of_C, aligned_D) + min(subtiles, 2) * of_D, alignment)
    return tensors + alignment, alignment, buffers  # behind the buffers an empty object of the functor's


def _swizzle_bytes(operand: Tensor, rows: int, columns: int) -> int:
    """Return the alignment of a swizzled layout in bytes: it comes round every 8 lines."""
    return 8 * min(operand.type.bytes_of(columns if operand.is_row_major else rows), 128)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


SM90 = _Sm90(
    name="Hopper-native",
    products=tuple(
        Product(_core.OpClass.TensorOp, operand, operand, "f32", None, ((_core.RowMajor, _core.ColumnMajor),))
        for operand in ("f16", "bf16")
    ),
    computed={"f32": ("f32", "f16")},
    written={"f32": ("f32", "f16", "bf16", "s8")},
    apart=("f16", "bf16", "f32"),
    swizzles=(_core.IdentitySwizzle1, _core.IdentitySwizzle2, _core.IdentitySwizzle4, _core.IdentitySwizzle8),
    modes=(_Mode.Gemm, _Mode.Batched),
    splits_k=False,
    is_persistent=True,
    schedules={KernelSchedule.Cooperative: (128, 256), KernelSchedule.Pingpong: (64, 128, 192, 256)},
    shared_memory={90: SHARED_MEMORY_LIMIT[90]},
    gemm=Family.SM90_GEMM,
    group=Family.SM90_GROUP,
)
