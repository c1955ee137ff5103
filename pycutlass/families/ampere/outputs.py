"""Whether an Ampere-style epilogue writes a threadblock's tile: every element once, each from its own place.

CUTLASS derives who writes what from the tile, its warps and the alignment of C. Where that does not work out, it
fails to compile, in words about iterations; or it compiles, and leaves elements out, writes into other tiles or mixes
them up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from pycutlass.calls import counted
from pycutlass.errors import DescriptionError
from pycutlass.families.ampere.simt import described
from pycutlass.families.parts import Tensor, Tile, changed

__all__ = ["remedies", "why_not_written", "with_other_warps"]

_LANES = 32
#: Adjacent rows of a warp's tile that are written at a time: half of an instruction's 16.
_ROWS = 8
#: Bytes of a row that one access of a warp covers at most, where its lanes can be spread over several rows.
_LINE_BYTES = 256
#: Elements in one access, by what tensor-core epilogues write from s32 (default_epilogue_tensor_op.h).
_FROM_S32 = {"s8": (4, 8, 16), "f16": (8,), "bf16": (8,)}


def why_not_written(tile: Tile, C: Tensor) -> str:
    """Return why the epilogue of a tensor-core kernel cannot write the tile to C; nothing where it can."""
    if C.order.interleave > 1:
        return _why_not_interleaved(tile, C.order.interleave)
    return _why_not_vectors(tile, C) or _why_not_shared(tile, C) or _why_not_rearranged(tile, C)


def _why_not_interleaved(tile: Tile, columns: int) -> str:
    """Each warp writes what it has, in whole groups of columns (interleaved_epilogue.h)."""
    if (tile.warp_count or (1, 1, 1))[2] > 1:
        return f"operand C is interleaved, which warps that share K cannot write: {described(tile)}"
    if tile.warp_shape[1] % columns:
        return (
            f"operand C is interleaved, and each warp must have whole groups of its {columns} columns, not "
            f"{tile.warp_shape[1]}: {described(tile)}"
        )
    return ""


def _why_not_vectors(tile: Tile, C: Tensor) -> str:
    if tile.math_instruction.accumulator.short != "s32":
        return ""
    allowed = _FROM_S32.get(C.type.short, (C.alignment,))
    if C.alignment in allowed:
        return ""
    return (
        f"tensor-core epilogues write {C.type} from cutlass.int32 {' or '.join(map(str, allowed))} elements at a time: "
        f"operand C has alignment {C.alignment}"
    )


def _why_not_shared(tile: Tile, C: Tensor) -> str:
    """All lanes must have work, and no two the same (output_tile_thread_map.h, OutputTileOptimalThreadMap)."""
    columns, (_, n, k) = tile.threadblock_shape[1], tile.warp_count or (1, 1, 1)
    sharing = n * k  # warps that write the same rows
    if columns % C.alignment == 0 and _covers(columns // C.alignment, C.alignment_bytes, sharing):
        return ""
    return (
        f"operand C of {C.type} with alignment {C.alignment} makes {columns / C.alignment:g} accesses of a row, and "
        f"{counted(sharing, 'warp')} along N and K, of {_LANES} accesses each, cannot share {_ROWS} such rows evenly: "
        f"{described(tile)}"
    )


def _covers(accesses: int, size: int, warps: int) -> bool:
    """Return whether `warps` cover 8 rows of so many accesses, each of `size` bytes, exactly."""
    if warps >= _ROWS:
        return warps == _ROWS and accesses % _LANES == 0
    if _ROWS % warps:
        return False
    rows, widest = _ROWS // warps, _LINE_BYTES // size
    if _LANES // widest > rows:
        width, height = _LANES // rows, rows
    else:
        width = min(accesses, _LANES, widest)
        height = min(_ROWS, _LANES // width)
    return width * height == _LANES and accesses % width == 0 and rows % height == 0


def _why_not_rearranged(tile: Tile, C: Tensor) -> str:
    """Accumulators of 32 bits pass through shared memory in another order (tile_iterator_tensor_op_mixed.h)."""
    columns, width = tile.threadblock_shape[1], tile.warp_shape[1]
    kinds = tile.math_instruction.accumulator.short, C.type.short
    if kinds == ("s32", "s8") and C.alignment > 4 and columns != 256 and (columns, C.alignment) != (128, 8):
        alone = width == columns <= 64
        fits = alone or (width == 64 and columns <= 128) or (width == 32 and columns <= 64 and C.alignment == 8)
    elif kinds in (("f32", "f16"), ("s32", "f16"), ("s32", "bf16")) and C.alignment == 8:
        fits = width == 64 or 32 % width == 0
    else:
        return ""
    if fits:
        return ""
    return (
        f"known CUTLASS bug, refused: operand C of {C.type} with alignment {C.alignment} gets wrong elements where "
        f"warps have {width} of {columns} columns: {described(tile)}"
    )


def remedies(tile: Tile, C: Tensor, loads: Callable[[Tile], bool], writes: Callable[[Tile, Tensor], bool]) -> list[str]:
    """Return changes of a tile that cannot be written to C: each is enough, or all together where none is.

    Other warps or columns come first: a lower alignment makes every access of C narrower.

    Parameters
    ----------
    loads, writes : callable
        Whether the mainloop, and the epilogue, work with another tile: no other one is recommended.
    """
    others = [other for other in with_other_warps(tile) if loads(other)]
    found = [f"warp_count {list(other.warp_count or ())}" for other in others if writes(other, C)][:1]
    if not found:
        same_warps = (other for other in _with_other_columns(tile) if other.warp_count == tile.warp_count)
        usable = (other for other in same_warps if loads(other) and writes(other, C))
        found = [f"threadblock_shape {list(other.threadblock_shape)}" for other in itertools.islice(usable, 1)]
    if loads(tile):  # it may take too much shared memory whatever C is
        found += [f"alignment {alignment} for operand C" for alignment in _alignments(tile, C, writes)[:1]]
    if found:
        return found
    others += [other for other in _with_other_columns(tile) if loads(other)]
    all_together = ((other, alignments[0]) for other in others if (alignments := _alignments(other, C, writes)))
    return [
        f"threadblock_shape {list(other.threadblock_shape)}, warp_count {list(other.warp_count or ())} and alignment "
        f"{alignment} for operand C"
        for other, alignment in all_together
    ][:1] or ["another threadblock_shape"]


def _alignments(tile: Tile, C: Tensor, writes: Callable[[Tile, Tensor], bool]) -> list[int]:
    """Return the alignments of C that work, widest first."""
    free = tile.math_instruction.is_tensor_op and C.order.interleave == 1
    known = (16, 8, 4, 2, 1) if free else (C.alignment,)
    described = (changed(C, alignment=alignment) for alignment in known if alignment * C.type.bits <= 128)
    return [operand.alignment for operand in described if writes(tile, operand)]


def with_other_warps(tile: Tile) -> Iterator[Tile]:
    """Yield the same tile with other warps, as many or fewer, which share A and B as evenly as the present ones."""
    total = tile.num_threads // _LANES
    counts = [(m, n, k) for m, n, k in itertools.product(range(1, total + 1), repeat=3) if total % (m * n * k) == 0]
    for count in sorted(counts, key=lambda count: (-math.prod(count), count[2])):
        try:
            yield changed(tile, warp_count=count)
        except DescriptionError:
            continue


def _with_other_columns(tile: Tile) -> Iterator[Tile]:
    """Yield the same tile with more or fewer columns, nearest first: with its warps, and with none side by side."""
    m, n, k = tile.threadblock_shape
    warps = tile.warp_count or (1, 1, 1)
    counts = warps, (warps[0], 1, 1), (tile.num_threads // _LANES, 1, 1)
    for columns, warps in itertools.product(sorted((64, 128, 256), key=lambda columns: abs(columns - n)), counts):
        try:
            yield changed(tile, threadblock_shape=(m, columns, k), warp_count=warps)
        except DescriptionError:
            continue
