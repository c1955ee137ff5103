"""SIMT kernels: whether CUDA cores load, multiply and write a tile; and what tensor cores ask of one as well.

CUTLASS derives who loads, reads and writes what from tile, warps, layouts and stages, and says little where that does
not work out.
"""

from __future__ import annotations

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import check_alignments
from pycutlass.families.parts import Tensor, Tile

__all__ = [
    "check_accesses",
    "check_simt",
    "check_steps",
    "described",
    "refuse_sliced_k",
    "sides",
    "simt_padding",
    "simt_threads",
    "why_not_written",
]

_LANES = 32
#: Accesses of one thread to one tile, for which CUTLASS keeps a bit each (predicated_tile_access_iterator.h).
_MAX_ACCESSES = 64


def check_simt(tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> None:
    """Check that CUDA cores can load and multiply the tile."""
    math = tile.math_instruction
    wanted = math.product.alignment
    if not math.a.is_integer:
        refuse_sliced_k(tile)  # warp/mma_simt_tile_iterator.h
    elif tile.stages != 2:
        raise DescriptionError(f"int8 SIMT kernels have 2 stages, got {tile.stages}")
    if not A.alignment == B.alignment == wanted or C.alignment != 1:
        _refuse_alignments(tile, A, B, C)
    check_steps(tile)
    m, n, _ = tile.warp_shape
    lanes, most = [], 4 if math.a.is_integer else 128 // math.a.bits  # that a thread takes at once
    for axis, extent, along in zip("MN", (m, n), simt_threads(tile), strict=True):
        of_thread = extent // along
        lanes.append(min(most, of_thread))
        if of_thread % lanes[-1]:  # as the iterators of a warp assert (gemm/warp/mma_simt_tile_iterator.h)
            raise DescriptionError(
                f"each thread of a SIMT warp tile of {m}x{n} has {of_thread} elements along {axis}, which it takes "
                f"{lanes[-1]} at a time: make the warp tile's {axis}={extent} a multiple of {along * lanes[-1]} by "
                f"another threadblock_shape or warp_count"
            )
    for name, operand, side, along_k in sides(A, B, C):
        _check_simt_loads(name, operand, tile, side, along_k)
        check_accesses(name, operand, tile, side)
        if along_k and not math.a.is_integer:
            _check_simt_transpose(name, operand, tile, lanes[side])


def _refuse_alignments(tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> None:
    math, wanted = tile.math_instruction, tile.math_instruction.product.alignment or 1
    loaded = "single elements" if wanted == 1 else f"{wanted} elements at a time"
    check_alignments(
        f"SIMT kernels of {math.a} load {loaded} and store single ones",
        {"A": (A, wanted), "B": (B, wanted), "C": (C, 1)},
    )


def simt_threads(tile: Tile) -> tuple[int, int]:
    """Return how the 32 threads of a SIMT warp divide its tile along M and N.

    Those of a tall tile lie the other way in kernels of two stages (default_mma_core_simt.h, default_mma_core_sm80.h).
    """
    m, n, _ = tile.warp_shape
    return (8, 4) if tile.stages == 2 and m > n else (4, 8)


def simt_padding(tile: Tile) -> int:
    """Return the elements between the lines of an operand that a SIMT kernel turns in shared memory."""
    k, bits = tile.threadblock_shape[2], tile.math_instruction.a.bits
    if tile.stages != 2:
        return k // 32  # default_mma_core_sm80.h
    return 32 // k // (bits // 32) if bits >= 32 else 32 // k * (32 // bits)  # default_mma_core_simt.h


def _check_simt_loads(name: str, operand: Tensor, tile: Tile, axis: int, along_k: bool) -> None:
    """Check that all threads can share the tile of an operand evenly (cutlass/transform/pitch_linear_thread_map.h)."""
    rows, k = tile.threadblock_shape[axis], tile.threadblock_shape[2]
    step, threads = operand.alignment, tile.num_threads  # int8 is loaded in blocks of 4x4
    contiguous, lines = (k // step, rows // step) if along_k else (rows // step, k // step)
    in_a_line = threads < contiguous and not contiguous % threads and not along_k
    in_several = not threads % contiguous and not lines % (threads // contiguous)
    if (rows % step or k % step) or not (in_a_line or in_several):
        unit = "elements" if step == 1 else f"blocks of {step}x{step} elements"
        raise DescriptionError(
            f"the {rows}x{k} tile of operand {name} has {lines} lines of {contiguous} {unit}, which {tile.num_threads} "
            f"threads cannot share evenly: use another warp_count, or extents that are powers of two"
        )


def _check_simt_transpose(name: str, operand: Tensor, tile: Tile, lane: int) -> None:
    """Check the padding by which an operand that is contiguous along K is turned in shared memory."""
    k, padding = tile.threadblock_shape[2], simt_padding(tile)
    if padding % lane:
        remedy = "K=8" if tile.stages == 2 else "K below 32"
        raise DescriptionError(
            f"operand {name} is contiguous along K, and SIMT kernels of {tile.stages} stages turn it in shared memory "
            f"with {padding} elements between lines for threadblock_shape K={k}, where a thread reads {lane} at once: "
            f"use {remedy}"
        )


def why_not_written(tile: Tile) -> str:
    """Return why the epilogue cannot write the tile; nothing where it can.

    Each warp writes whole rows, single elements side by side (default_thread_map_simt.h).
    """
    (rows, _), (_, n, k) = simt_threads(tile), tile.warp_count or (1, 1, 1)
    if tile.threadblock_shape[1] % _LANES:
        return (
            f"the warps of a SIMT kernel write {_LANES} adjacent elements of operand C at a time, and N must be a "
            f"multiple of that: {described(tile)}"
        )
    if rows % (n * k):
        return (
            f"the warps of a SIMT kernel write {rows} rows of operand C at a time, which {n * k} warps along "
            f"N and K cannot share evenly: {described(tile)}"
        )
    return ""


# Of tensor cores as well


def check_steps(tile: Tile) -> None:
    """Check that a warp's instructions along K come in pairs: it has two fragments in turn (mma_base.h)."""
    k, of_step = tile.threadblock_shape[2], (tile.math_instruction.instruction_shape or (1, 1, 1))[2]
    steps = tile.warp_shape[2] // of_step
    if steps % 2:
        step = k // steps
        fewer = f"K={k - step} or " if k > step else ""
        raise DescriptionError(
            f"a warp loads while it multiplies, in steps of two: threadblock_shape K={k} makes {steps} instructions "
            f"along K for each warp, and their number must be even; use {fewer}K={k + step}"
        )


def sides(A: Tensor, B: Tensor, C: Tensor) -> tuple[tuple[str, Tensor, int, bool], ...]:
    """Return both operands: name, description, which of the tile's M and N is theirs, whether K is contiguous.

    A column-major C is computed as the transposed problem, so that the tile's rows are those of B.
    """
    m, n = (1, 0) if C.layout is _core.ColumnMajor else (0, 1)
    return ("A", A, m, A.is_row_major), ("B", B, n, not B.is_row_major)


def refuse_sliced_k(tile: Tile) -> None:
    """Raise where warps share K: the iterators of f64 and SIMT kernels step as if one warp had all of it."""
    warps, math = tile.warp_count or (1, 1, 1), tile.math_instruction
    if warps[2] > 1:
        what = "f64 TensorOp" if math.is_tensor_op else f"SIMT {math.a}"
        raise DescriptionError(
            f"the warps of {what} kernels cannot share K: warp_count must end in 1, got {list(warps)}"
        )


def check_accesses(name: str, operand: Tensor, tile: Tile, axis: int) -> None:
    """Check that no thread has more accesses to the tile of an operand than CUTLASS keeps count of."""
    rows, k = tile.threadblock_shape[axis], tile.threadblock_shape[2]
    accesses = rows * k // operand.alignment
    if accesses // tile.num_threads > _MAX_ACCESSES:
        raise DescriptionError(
            f"the {rows}x{k} tile of operand {name} has {accesses} accesses of {operand.alignment} elements, more than "
            f"{_MAX_ACCESSES} for each of {tile.num_threads} threads: use more warps, a smaller threadblock_shape or "
            f"a wider alignment"
        )


def described(tile: Tile) -> str:
    """Return a tile in words, for messages."""
    return f"threadblock_shape is {list(tile.threadblock_shape)}, warp_count {list(tile.warp_count or ())}"
