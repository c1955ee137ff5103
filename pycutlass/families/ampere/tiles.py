"""How the threadblock of an Ampere-style kernel is divided among its warps, and tiles that are near by."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from itertools import islice

from pycutlass.calls import shown
from pycutlass.errors import DescriptionError
from pycutlass.families.ampere.outputs import with_other_warps
from pycutlass.families.parts import Shape, Tile, changed
from pycutlass.families.table import nearest_multiple

__all__ = ["check_tile", "near"]

#: Other tiles that are tried for a message: it should come at once where many tiles are tried for other reasons.
_TRIED = 40
_MOST_THREADS = 1024


def check_tile(tile: Tile) -> None:
    """Raise DescriptionError where warps and instructions do not divide a tile."""
    if tile.kernel_schedule is not None:
        raise DescriptionError("kernel_schedule belongs to Hopper-native kernels: give a cluster_shape as well")
    if tile.warp_count is None or tile.stages is None:
        raise DescriptionError(
            "warp_count and stages may be None only for Hopper-native kernels, which name a cluster_shape"
        )
    if type(tile.stages) is not int or tile.stages < 2:
        raise DescriptionError(f"stages must be an integer of at least 2, got {shown(tile.stages)}")
    if tile.num_threads > _MOST_THREADS:
        raise DescriptionError(
            f"a threadblock has at most {_MOST_THREADS} threads; warp_count {list(tile.warp_count)} makes "
            f"{tile.num_threads}"
        )
    instruction = tile.math_instruction
    if instruction.instruction_shape is None:
        raise DescriptionError("instruction_shape may be None only for Hopper-native kernels")
    for axis, extent, count, step in zip(
        "MNK", tile.threadblock_shape, tile.warp_count, instruction.instruction_shape, strict=True
    ):
        if extent % (count * step):
            raise DescriptionError(
                f"threadblock_shape {axis}={extent} must be a multiple of warp_count {axis}={count} times "
                f"instruction_shape {axis}={step}; {_divided(tile, extent, count * step)}"
            )
    m, n, k = tile.warp_shape
    if not instruction.is_tensor_op:
        # 8x4 threads of 4x4 elements (cutlass/gemm/threadblock/default_mma_core_simt.h)
        if not (m % 16 == 0 and n % 32 == 0) and not (m % 32 == 0 and n % 16 == 0):
            raise DescriptionError(
                f"a SIMT warp tile must be a multiple of 16x32 or 32x16, got {m}x{n}; "
                f"change threadblock_shape or warp_count"
            )
        return
    # MmaTensorOp (cutlass/gemm/warp/mma_tensor_op.h) loads operands with ldmatrix in groups of two instructions
    # along K where the operand is kept by K, and the multistage mainloop needs two k-groups to overlap them.
    step = instruction.instruction_shape[2]
    if k // step < 2:
        raise DescriptionError(
            f"a warp tile needs at least 2 instructions along K to overlap loads with math: K={k} with instruction "
            f"K={step} gives {k // step}; use threadblock_shape K of at least {2 * step * tile.warp_count[2]}"
        )


def _divided(tile: Tile, extent: int, step: int) -> str:
    """Return the nearest warp_count that makes a tile if the extent is a usual one, else the nearest extent."""
    shape = tile.math_instruction.instruction_shape or (1, 1, 1)
    nearest = []
    for size, warps, one in zip(tile.threadblock_shape, tile.warp_count or (1, 1, 1), shape, strict=True):
        dividing = [number for number in range(1, 33) if size % (number * one) == 0]
        nearest.append(min(dividing, key=lambda number: abs(number - warps), default=0))
    with contextlib.suppress(DescriptionError):
        if math.prod(nearest) and not extent & (extent - 1):
            return f"use warp_count {list(changed(tile, warp_count=tuple(nearest)).warp_count or ())}"
    return f"the nearest is {nearest_multiple(extent, step)}"


def near(tile: Tile, works: Callable[[Tile], bool]) -> Iterator[str]:
    """Yield other warps and another shape of which each alone makes a tile that works, if there are such near by."""
    for other in islice(filter(works, islice(with_other_warps(tile), _TRIED)), 1):
        yield f"warp_count {list(other.warp_count or ())}"
    for other in islice(filter(works, islice(_with_other_extents(tile), _TRIED)), 1):
        yield f"threadblock_shape {list(other.threadblock_shape)}"


def _with_other_extents(tile: Tile) -> Iterator[Tile]:
    """Yield the tile with one or two of its extents changed to usual ones, the nearest first."""

    def distance(shape: Shape) -> float:
        return sum(abs(math.log2(new / old)) for new, old in zip(shape, tile.threadblock_shape, strict=True))

    m, n, k = tile.threadblock_shape
    rows = (32, 64, 96, 128, 192, 256)
    shapes = {(a, b, c) for a in (m, *rows) for b in (n, *rows) for c in (k, 8, 16, 32, 64, 128)}
    for shape in sorted(
        (shape for shape in shapes if distance(shape) <= 3), key=lambda shape: (distance(shape), shape)
    ):
        try:
            yield changed(tile, threadblock_shape=shape)
        except DescriptionError:
            continue
