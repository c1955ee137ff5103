"""What to use in place of an Ampere-style tile that is refused: tiles near it that work, or another alignment of C."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import with_alignments
from pycutlass.families.parts import Shape, Tensor, Tile, changed
from pycutlass.families.table import nearest_multiple
from pycutlass.log import is_silent

__all__ = ["divided", "near", "with_other_warps", "writable"]

#: Other tiles that are tried for a message: it should come at once where many tiles are tried for other reasons.
_TRIED = 40
_WARP = 32  # threads
_MOST_ACCUMULATORS = 128  # of a thread, beyond which registers spill


def divided(tile: Tile) -> str:
    """Return the nearest warp_count by which the instruction divides a tile of usual extents, else the nearest tile."""
    shape = tile.math_instruction.instruction_shape or (1, 1, 1)
    warps = tile.warp_count or (1, 1, 1)
    axes = list(zip("MNK", tile.threadblock_shape, warps, shape, strict=True))
    nearest: list[int] = []
    extents: list[set[int]] = []
    for _, size, count, one in axes:
        dividing = [number for number in range(1, 33) if size % (number * one) == 0]
        nearest.append(min(dividing, key=lambda number: abs(number - count), default=0))
        steps = [one * count, 2 * one * count, 16 * count, 32 * count] if size % (count * one) else []
        extents.append({nearest_multiple(size, step) for step in steps if step % (one * count) == 0} or {size})
    usual = all(not size & (size - 1) for _, size, count, one in axes if size % (count * one))
    if usual and all(nearest) and _is_tile(tile, warp_count=tuple(nearest)):
        return f"; use warp_count {nearest}"
    shapes = sorted(
        itertools.product(*extents),
        key=lambda found: sum(abs(a - b) for a, b in zip(found, tile.threadblock_shape, strict=True)),
    )
    found = next((each for each in shapes if _is_tile(tile, threadblock_shape=each)), None)
    if found is None:
        return ""
    others = [new for (_, old, _, _), new in zip(axes, found, strict=True) if new != old]
    return f"; the nearest is {others[0]}" if len(others) == 1 else f"; use threadblock_shape {list(found)}"


def _is_tile(tile: Tile, **fields: Any) -> bool:
    try:
        changed(tile, **fields)
    except DescriptionError:
        return False
    return True


def near(tile: Tile, works: Callable[[Tile], bool]) -> Iterator[str]:
    """Yield other warps and another shape of which each alone makes a tile that works, if there are such near by.

    Where there is neither, both together. Nothing is looked for where nobody reads it, which takes milliseconds.
    """
    if is_silent():
        return

    def first(others: Iterator[Tile]) -> Tile | None:
        return next(filter(works, itertools.islice(others, _TRIED)), None)

    with_warps, with_extents = first(with_other_warps(tile)), first(_with_other_extents(tile))
    if with_warps is not None:
        yield f"warp_count {list(with_warps.warp_count or ())}"
    if with_extents is not None:
        yield f"threadblock_shape {list(with_extents.threadblock_shape)}"
    if with_warps is with_extents is None:
        both = first(_with_less_depth(tile))
        if both is not None:
            yield f"threadblock_shape {list(both.threadblock_shape)} and warp_count {list(both.warp_count or ())}"


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


def _with_less_depth(tile: Tile) -> Iterator[Tile]:
    """Yield the tile with a half or a quarter of K and as many warps, fewer of them along K."""
    m, n, k = tile.threadblock_shape
    total = tile.num_threads // _WARP
    counts = [(rows, total // rows, 1) for rows in range(1, total + 1) if total % rows == 0]
    for depth, count in itertools.product((k // 2, k // 4), sorted(counts, key=lambda count: abs(count[0] - count[1]))):
        try:
            yield changed(tile, threadblock_shape=(m, n, depth), warp_count=count)
        except DescriptionError:
            continue


def writable(tile: Tile, C: Tensor, loads: Callable[[Tile], bool], writes: Callable[[Tile, Tensor], bool]) -> list[str]:
    """Return changes by which a tile can be written to C: each is enough, or all together where none is.

    Other warps or columns come first: a lower alignment makes every access of C narrower.

    Parameters
    ----------
    loads, writes : callable
        Whether the mainloop, and the epilogue, work with another tile: no other one is recommended.
    """
    others = [other for other in with_other_warps(tile) if loads(other)]
    found = [f"use warp_count {list(other.warp_count or ())}" for other in others if writes(other, C)][:1]
    if not found:
        same_warps = (other for other in _with_other_columns(tile) if other.warp_count == tile.warp_count)
        usable = (other for other in same_warps if loads(other) and writes(other, C))
        found = [f"use threadblock_shape {list(other.threadblock_shape)}" for other in itertools.islice(usable, 1)]
    if loads(tile):  # it may take too much shared memory whatever C is
        found += [with_alignments({"C": alignment}) for alignment in _alignments(tile, C, writes)[:1]]
    if found:
        return found
    others += [other for other in _with_other_columns(tile) if loads(other)]
    all_together = ((other, alignments[0]) for other in others if (alignments := _alignments(other, C, writes)))
    return [
        f"use threadblock_shape {list(other.threadblock_shape)} and warp_count {list(other.warp_count or ())}, "
        f"{with_alignments({'C': alignment})}"
        for other, alignment in all_together
    ][:1] or ["use another threadblock_shape"]


def _alignments(tile: Tile, C: Tensor, writes: Callable[[Tile, Tensor], bool]) -> list[int]:
    """Return the alignments of C that work, widest first."""
    free = tile.math_instruction.is_tensor_op and C.order.interleave == 1
    known = (16, 8, 4, 2, 1) if free else (C.alignment,)
    described = (changed(C, alignment=alignment) for alignment in known if alignment * C.type.bits <= 128)
    return [operand.alignment for operand in described if writes(tile, operand)]


def with_other_warps(tile: Tile) -> Iterator[Tile]:
    """Yield the same tile with other warps, as many or fewer, which share A and B as evenly as the present ones.

    Twice as many come first where the threads have more accumulators than fit in registers.
    """
    total = tile.num_threads // _WARP
    counts = [(m, n, k) for m, n, k in itertools.product(range(1, total + 1), repeat=3) if total % (m * n * k) == 0]
    counts.sort(key=lambda count: (-math.prod(count), count[2]))
    rows, columns, _ = tile.threadblock_shape
    if rows * columns > _MOST_ACCUMULATORS * tile.num_threads:
        twice = [(m, 2 * total // m, 1) for m in range(1, 2 * total + 1) if 2 * total % m == 0]
        counts = [*sorted(twice, key=lambda count: abs(count[0] - count[1])), *counts]
    for count in counts:
        try:
            yield changed(tile, warp_count=count)
        except DescriptionError:
            continue


def _with_other_columns(tile: Tile) -> Iterator[Tile]:
    """Yield the same tile with more or fewer columns, nearest first: with its warps, and with none side by side."""
    m, n, k = tile.threadblock_shape
    warps = tile.warp_count or (1, 1, 1)
    counts = warps, (warps[0], 1, 1), (tile.num_threads // _WARP, 1, 1)
    for columns, warps in itertools.product(sorted((64, 128, 256), key=lambda columns: abs(columns - n)), counts):
        try:
            yield changed(tile, threadblock_shape=(m, columns, k), warp_count=warps)
        except DescriptionError:
            continue
