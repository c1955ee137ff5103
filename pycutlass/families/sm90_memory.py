"""Shared memory and stages of Hopper-native kernels, as CUTLASS's headers lay it out."""

from __future__ import annotations

import math
from functools import lru_cache

from pycutlass.enums import KernelSchedule
from pycutlass.families.parts import Tensor, Tile
from pycutlass.families.sm90_warp_groups import stored_rows
from pycutlass.families.table import SHARED_MEMORY_LIMIT

__all__ = [
    "are_laid_out",
    "chosen_stages",
    "direct_bytes",
    "direct_stages",
    "kernel_bytes",
    "lies_in_shared_memory",
    "stages_of",
    "swizzle_span",
]

#: Bytes of the barriers of a pipeline's stage (one that it is full, one that it is empty), and of a tensor map.
_BARRIERS, _TENSOR_MAP = 16, 128
#: What the scheduler of a Hopper-native group has: barriers of 8 stages, and as many answers of 16 bytes.
_SCHEDULER, _ANSWERS = 8 * _BARRIERS, 8 * 16
#: What CUTLASS's kernels for arrays, whose scheduler asks nobody, have in these places: empty objects.
_NO_SCHEDULER, _NO_ANSWERS = 16, 8
#: Shared memory that a kernel can have, in bytes (cutlass/arch/arch.h, sm90_smem_capacity_bytes).
_LIMIT = SHARED_MEMORY_LIMIT[90]
#: What tiles of A and B are aligned to, in bytes, where A goes to registers (sm90_register_a.py); None elsewhere.
Swizzles = tuple[int, int] | None


def kernel_bytes(
    tile: Tile,
    C: Tensor,
    stages: int,
    *,
    grouped: bool,
    D: Tensor | None = None,
    listed: bool = False,
    swizzles: Swizzles = None,
) -> int:
    """Return the shared memory of a Hopper-native kernel in bytes (gemm/kernel/sm90_gemm_*_warpspecialized_*.hpp).

    D is like C where it is left out; tensors are `listed` in ``Mode.Array``. `swizzles` is what tiles of A and B are
    aligned to, where A goes to registers.
    """
    epilogue, alignment, buffers = _epilogue(tile, C, D or C)
    order = 2 * _BARRIERS if tile.kernel_schedule is KernelSchedule.Pingpong else 0
    pipelines = _BARRIERS * (stages + buffers + 1) + order
    mainloop = stages * tile.stage_bytes()
    if swizzles is not None:
        (m, _, k), widest = tile.threadblock_shape, max(swizzles)
        of_a = stages * tile.math_instruction.a.bytes_of(m * k)
        mainloop = _up(_up(of_a, swizzles[1]) + mainloop - of_a, widest)
        epilogue, alignment = _up(epilogue, widest), max(alignment, widest)
    if not grouped and not listed:
        return _up(_up(pipelines + 1, alignment) + epilogue + mainloop, alignment)
    scheduler, answers = (_SCHEDULER, _ANSWERS) if grouped else (_NO_SCHEDULER, _NO_ANSWERS)
    shared = _up(mainloop, alignment) + epilogue + scheduler + pipelines + answers
    return _up(_up(shared, _TENSOR_MAP) + 5 * _TENSOR_MAP, alignment)  # A and B, C, and D of each warp group


def direct_bytes(tile: Tile, stages: int, beside: int, *, cp_async: bool) -> int:
    """Return the same of a kernel whose threads read C and write D, with `beside` bytes for its epilogue function.

    Where A and B are loaded by `cp_async`, its structures lie in another order (sm90_gemm_warpspecialized_*.hpp).
    """
    pingpong = tile.kernel_schedule is KernelSchedule.Pingpong
    mainloop, epilogue = stages * _up(tile.stage_bytes(), 1), max(1, beside)
    pipelines = _BARRIERS * stages + 2 * _BARRIERS * pingpong
    if cp_async:
        return _up(_up(_up(mainloop, 1) + epilogue, 128) + pipelines + _BARRIERS, 128)
    return _up(_up(pipelines + 2 * _BARRIERS + 1, 128) + _up(epilogue, 128) + mainloop, 128)


def direct_stages(tile: Tile, beside: int, *, cp_async: bool) -> int:
    """Return how many stages such a kernel has: as many as fit, where a tile names none."""
    if tile.stages is not None:
        return tile.stages
    stages = _LIMIT // tile.stage_bytes()
    return next(
        (
            fewer
            for fewer in range(stages, 1, -1)
            if direct_bytes(tile, fewer, beside, cp_async=cp_async) <= _LIMIT and lies_in_shared_memory(tile, fewer)
        ),
        1,
    )


def lies_in_shared_memory(tile: Tile, stages: int | None = None) -> bool:
    """Return whether CuTe can lay out tiles of B, and so many stages of them, in shared memory."""
    _, n, k = tile.threadblock_shape
    return are_laid_out(n, k, tile.math_instruction.b.bits // 8, stages)


def are_laid_out(columns: int, depth: int, size: int, stages: int | None = None) -> bool:
    """Return whether CuTe can lay out tiles of B of so many columns and of K, of elements of `size` bytes.

    A swizzled layout consists of atoms of 8 lines, one for each of the widest spans of 128, 64 or 32 bytes that divide
    the depth of a tile; then of tiles. CuTe takes one of these out of the others only where their strides, in elements,
    are multiples of a swizzle's period or divide it evenly (cute/layout.hpp, composition). Tiles of A always do.
    """
    span = next((span for span in (128, 64, 32) if depth * size % span == 0), 0)
    if not span:
        return True
    period, stride = 8 * span, columns * span // size
    for count in (depth * size // span, stages or 1):
        steps = period // stride if period % stride == 0 else 1
        if stride % period and (period % stride or (count % steps and steps % count)):
            return False
        stride *= count
    return True


def stages_of(
    tile: Tile, C: Tensor, *, grouped: bool, D: Tensor | None = None, listed: bool = False, swizzles: Swizzles = None
) -> int:
    """Return how many stages a Hopper-native tile has: what CUTLASS gives to one that names none, if that fits.

    CUTLASS leaves out the scheduler of a group, and may give it one too many, or more than it can lay out.
    """
    if tile.stages is not None:
        return tile.stages
    stages = chosen_stages(tile, C, grouped=grouped or listed, D=D, swizzles=swizzles)
    stages -= kernel_bytes(tile, C, stages, grouped=grouped, D=D, listed=listed, swizzles=swizzles) > _LIMIT
    return next((fewer for fewer in range(stages, 1, -1) if lies_in_shared_memory(tile, fewer)), stages)


def chosen_stages(tile: Tile, C: Tensor, *, grouped: bool, D: Tensor | None = None, swizzles: Swizzles = None) -> int:
    """Return how many stages CUTLASS gives to a Hopper-native tile that names none (sm90_gmma_builder.inl)."""
    epilogue, alignment, buffers = _epilogue(tile, C, D or C)
    maps = 3 * _TENSOR_MAP if grouped else 0
    step = max(swizzles or (128,))
    beside = _up(_up(epilogue + maps + _BARRIERS * buffers, alignment), step)
    return (_LIMIT - beside) // (_up(tile.stage_bytes(), step) + _BARRIERS)


def _epilogue(tile: Tile, C: Tensor, D: Tensor) -> tuple[int, int, int]:
    """Return the bytes of an epilogue's tensors, their alignment, and how many buffers C has.

    C comes, and D leaves, in subtiles of up to 32 columns (epilogue/collective/builders/sm90_builder.inl). Where their
    elements have one size, of more than 8 bits, D leaves from the buffers that C has come into.
    """
    m, n, _ = tile.threadblock_shape
    matrices = ((each.type.bits, each.is_row_major) for each in (C, D))
    return _buffers(m, n, stored_rows(tile), *matrices)


@lru_cache(maxsize=256)  # asked several times of each candidate
def _buffers(m: int, n: int, rows: int, C: tuple[int, bool], D: tuple[int, bool]) -> tuple[int, int, int]:
    """Return the same for a tile of m x n of which so many rows are stored at once; bits of C and D, and if by rows."""
    columns = math.gcd(32, n)
    subtiles = (m // rows) * (n // columns)
    of_C, of_D = (-(-bits * rows * columns // 8) for bits, _ in (C, D))
    aligned = [8 * swizzle_span(bits * (columns if by_rows else rows) // 8) for bits, by_rows in (C, D)]
    alignment = max(aligned)
    if C[0] == D[0] > 8:
        buffers = max(min(subtiles, 4), min(subtiles, 2) + 1)
        tensors = buffers * of_C
    else:
        buffers = min(subtiles, 4)
        tensors = _up(_up(buffers * of_C, aligned[1]) + min(subtiles, 2) * of_D, alignment)
    return tensors + alignment, alignment, buffers  # behind the buffers an empty object of the functor's


def swizzle_span(line: int) -> int:
    """Return the bytes of the widest swizzle that divides a line of so many."""
    return next((span for span in (128, 64, 32) if line % span == 0), 16)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
