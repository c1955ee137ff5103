"""How much shared memory an Ampere-style kernel takes, to the byte: what CUTLASS's headers lay out, in numbers.

The tests compare it with the size of the structures themselves.
"""

from __future__ import annotations

from pycutlass.families.parts import Tensor, Tile

__all__ = ["epilogue_bytes", "grouped_bytes", "kernel_bytes", "mainloop_bytes", "simt_padding", "simt_threads"]

#: C that is written by epilogues of two fragments at once, by accumulator (default_epilogue_tensor_op.h).
_TWO_FRAGMENTS = {("f32", "f32", 4), ("f32", "f16", 8), ("s32", "f16", 8), ("s32", "bf16", 8)}


def simt_threads(tile: Tile) -> tuple[int, int]:
    """Return how the 32 threads of a SIMT warp divide its tile along M and N.

    Those of a tall tile lie the other way in kernels of two stages (default_mma_core_simt.h, default_mma_core_sm80.h).
    """
    m, n, _ = tile.warp_shape
    return (8, 4) if tile.stages == 2 and m > n else (4, 8)


def kernel_bytes(tile: Tile, A: Tensor, B: Tensor, C: Tensor) -> int:
    """Return the shared memory of an Ampere-style kernel in bytes: first the mainloop has it, then the epilogue."""
    return -(-max(mainloop_bytes(tile, A, B), epilogue_bytes(tile, C)) // 16) * 16


def mainloop_bytes(tile: Tile, A: Tensor, B: Tensor) -> int:
    """Return the bytes of an Ampere-style pipeline: its stages, with room between lines that SIMT kernels turn."""
    stage = tile.stage_bytes()
    if not tile.math_instruction.is_tensor_op:
        padding = simt_padding(tile) * tile.threadblock_shape[2]
        turned = [*([A] if A.is_row_major else []), *([] if B.is_row_major else [B])]
        stage += sum(operand.type.bytes_of(padding) for operand in turned)
    return (tile.stages or 2) * stage


def epilogue_bytes(tile: Tile, C: Tensor) -> int:
    """Return the bytes through which accumulators go to other threads (epilogue/threadblock/epilogue_base.h)."""
    if C.order.interleave > 1:
        return 1  # they don't
    instruction = tile.math_instruction
    accumulator = instruction.accumulator
    columns = tile.threadblock_shape[1]
    m, _, k = tile.warp_count or (1, 1, 1)
    fragments = 1
    if instruction.is_tensor_op:
        rows, padding = 8, 256 // accumulator.bits
        if k == 1 and (accumulator.short, C.type.short, C.alignment) in _TWO_FRAGMENTS:
            fragments = 2
    else:
        threads = simt_threads(tile)
        most = 4 if instruction.a.is_integer else 128 // instruction.a.bits
        rows, padding = threads[0], 4 * min(most, tile.warp_shape[1] // threads[1]) + 1
    return accumulator.bytes_of(rows * m * k * fragments * (columns + padding))


def simt_padding(tile: Tile) -> int:
    """Return the elements between the lines of an operand that a SIMT kernel turns in shared memory."""
    k, bits = tile.threadblock_shape[2], tile.math_instruction.a.bits
    if tile.stages != 2:
        return k // 32  # default_mma_core_sm80.h
    return 32 // k // (bits // 32) if bits >= 32 else 32 // k * (32 // bits)  # default_mma_core_simt.h


def grouped_bytes(kernel: int, threads: int, scheduled: bool) -> int:
    """Return the shared memory of a group in bytes, whose problems take `kernel` bytes each.

    Where the host has `scheduled` the tiles, each thread looks one up, of 8 bytes (grouped_problem_visitor.h).
    """
    return -(-(kernel + (8 * threads if scheduled else 1)) // 16) * 16
