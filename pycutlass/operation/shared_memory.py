"""How much shared memory a kernel takes, to the byte: what CUTLASS's headers lay out, in numbers.

The tests compare it with the size of the structures themselves.
"""

from __future__ import annotations

import math

from pycutlass.enums import KernelSchedule
from pycutlass.library import TensorDescription, TileDescription

__all__ = [
    "NATIVE_LIMIT",
    "ampere_bytes",
    "chosen_stages",
    "epilogue_bytes",
    "grouped_bytes",
    "mainloop_bytes",
    "native_bytes",
    "native_stages",
    "simt_padding",
    "simt_threads",
]

#: Shared memory that a Hopper-native kernel can have, in bytes (cutlass/arch/arch.h, sm90_smem_capacity_bytes).
NATIVE_LIMIT = 227 << 10
#: Bytes of the barriers of a pipeline's stage (one that it is full, one that it is empty), and of a tensor map.
_BARRIERS, _TENSOR_MAP = 16, 128
#: What the scheduler of a Hopper-native group has: barriers of 8 stages, and as many answers of 16 bytes.
_SCHEDULER, _ANSWERS = 8 * _BARRIERS, 8 * 16
#: C that is written by epilogues of two fragments at once, by accumulator (default_epilogue_tensor_op.h).
_TWO_FRAGMENTS = {("f32", "f32", 4), ("f32", "f16", 8), ("s32", "f16", 8), ("s32", "bf16", 8)}


def simt_threads(tile: TileDescription) -> tuple[int, int]:
    """Return how the 32 threads of a SIMT warp divide its tile along M and N.

    Those of a tall tile lie the other way in kernels of two stages (default_mma_core_simt.h, default_mma_core_sm80.h).
    """
    m, n, _ = tile.warp_shape
    return (8, 4) if tile.stages == 2 and m > n else (4, 8)


def ampere_bytes(tile: TileDescription, A: TensorDescription, B: TensorDescription, C: TensorDescription) -> int:
    """Return the shared memory of an Ampere-style kernel in bytes: first the mainloop has it, then the epilogue."""
    return _up(max(mainloop_bytes(tile, A, B), epilogue_bytes(tile, C)), 16)


def mainloop_bytes(tile: TileDescription, A: TensorDescription, B: TensorDescription) -> int:
    """Return the bytes of an Ampere-style pipeline: its stages, with room between lines that SIMT kernels turn."""
    stage = tile.stage_bytes()
    if not tile.math_instruction.is_tensor_op:
        turned = A.is_row_major + (not B.is_row_major)
        stage += turned * simt_padding(tile) * tile.threadblock_shape[2] * tile.math_instruction.a.bits // 8
    return (tile.stages or 2) * stage


def epilogue_bytes(tile: TileDescription, C: TensorDescription) -> int:
    """Return the bytes through which accumulators go to other threads (epilogue/threadblock/epilogue_base.h)."""
    if C.order.interleave > 1:
        return 1  # they don't
    instruction = tile.math_instruction
    bits = instruction.accumulator.bits
    columns = tile.threadblock_shape[1]
    m, _, k = tile.warp_count or (1, 1, 1)
    fragments = 1
    if instruction.is_tensor_op:
        rows, padding = 8, 256 // bits
        if k == 1 and (instruction.accumulator.short, C.type.short, C.alignment) in _TWO_FRAGMENTS:
            fragments = 2
    else:
        threads = simt_threads(tile)
        most = 4 if instruction.a.is_integer else 128 // instruction.a.bits
        rows, padding = threads[0], 4 * min(most, tile.warp_shape[1] // threads[1]) + 1
    return rows * m * k * fragments * (columns + padding) * bits // 8


def simt_padding(tile: TileDescription) -> int:
    """Return the elements between the lines of an operand that a SIMT kernel turns in shared memory."""
    k, bits = tile.threadblock_shape[2], tile.math_instruction.a.bits
    if tile.stages != 2:
        return k // 32  # default_mma_core_sm80.h
    return 32 // k // (bits // 32) if bits >= 32 else 32 // k * (32 // bits)  # default_mma_core_simt.h


def grouped_bytes(kernel: int, threads: int, scheduled: bool) -> int:
    """Return the shared memory of a group in bytes, whose problems take `kernel` bytes each, Ampere-style.

    Where the host has `scheduled` the tiles, each thread looks one up, of 8 bytes (grouped_problem_visitor.h).
    """
    return _up(kernel + (8 * threads if scheduled else 1), 16)


def native_bytes(
    tile: TileDescription, C: TensorDescription, stages: int, *, grouped: bool, D: TensorDescription | None = None
) -> int:
    """Return the shared memory of a Hopper-native kernel in bytes (gemm/kernel/sm90_gemm_*_warpspecialized_*.hpp).

    D is like C where it is left out.
    """
    epilogue, alignment, buffers = _native_epilogue(tile, C, D or C)
    order = 2 * _BARRIERS if tile.kernel_schedule is KernelSchedule.Pingpong else 0
    pipelines = _BARRIERS * (stages + buffers + 1) + order
    mainloop = stages * tile.stage_bytes()
    if not grouped:
        return _up(_up(pipelines + 1, alignment) + epilogue + mainloop, alignment)
    shared = _up(mainloop, alignment) + epilogue + _SCHEDULER + pipelines + _ANSWERS
    return _up(_up(shared, _TENSOR_MAP) + 5 * _TENSOR_MAP, alignment)  # A and B, C, and D of each warp group


def native_stages(
    tile: TileDescription, C: TensorDescription, *, grouped: bool, D: TensorDescription | None = None
) -> int:
    """Return how many stages a Hopper-native tile has: what CUTLASS gives to one that names none, if that fits.

    CUTLASS leaves out the scheduler of a group, and may give it one too many.
    """
    stages = tile.stages or chosen_stages(tile, C, grouped=grouped, D=D)
    if tile.stages is None and native_bytes(tile, C, stages, grouped=grouped, D=D) > NATIVE_LIMIT:
        return stages - 1
    return stages


def chosen_stages(
    tile: TileDescription, C: TensorDescription, *, grouped: bool, D: TensorDescription | None = None
) -> int:
    """Return how many stages CUTLASS gives to a Hopper-native tile that names none (sm90_gmma_builder.inl)."""
    epilogue, alignment, buffers = _native_epilogue(tile, C, D or C)
    maps = 3 * _TENSOR_MAP if grouped else 0
    beside = _up(_up(epilogue + maps + _BARRIERS * buffers, alignment), 128)
    return (NATIVE_LIMIT - beside) // (_up(tile.stage_bytes(), 128) + _BARRIERS)


def _native_epilogue(tile: TileDescription, C: TensorDescription, D: TensorDescription) -> tuple[int, int, int]:
    """Return the bytes of an epilogue's tensors, their alignment, and how many buffers C has.

    C comes, and D leaves, in subtiles of up to 32 columns (epilogue/collective/builders/sm90_builder.inl). Where their
    elements have one size, D leaves from the buffers that C has come into.
    """
    m, n, _ = tile.threadblock_shape
    rows = 64 if tile.kernel_schedule is KernelSchedule.Pingpong else 128
    columns = math.gcd(32, n)
    subtiles = (m // rows) * (n // columns)
    of_C, of_D = (rows * columns * operand.type.bits // 8 for operand in (C, D))
    aligned_C, aligned_D = (_swizzle_bytes(operand, rows, columns) for operand in (C, D))
    alignment = max(aligned_C, aligned_D)
    if C.type.bits == D.type.bits:
        buffers = max(min(subtiles, 4), min(subtiles, 2) + 1)
        tensors = buffers * of_C
    else:
        buffers = min(subtiles, 4)
        tensors = _up(_up(buffers * of_C, aligned_D) + min(subtiles, 2) * of_D, alignment)
    return tensors + alignment, alignment, buffers  # behind the buffers an empty object of the functor's


def _swizzle_bytes(operand: TensorDescription, rows: int, columns: int) -> int:
    """Return the alignment of a swizzled layout in bytes: it comes round every 8 lines."""
    return 8 * min((columns if operand.is_row_major else rows) * operand.type.bits // 8, 128)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
