"""Tiles of Ampere-style kernels that are near one which is refused."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from itertools import islice

from pycutlass.errors import DescriptionError
from pycutlass.families.ampere.outputs import with_other_warps
from pycutlass.families.parts import Shape, Tile, changed
from pycutlass.families.table import nearest_multiple

__all__ = ["divided", "near"]

#: Other tiles that are tried for a message: it should come at once where many tiles are tried for other reasons.
_TRIED = 40


def divided(tile: Tile, extent: int, step: int) -> str:
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
