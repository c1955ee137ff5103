"""What Hopper-native kernels multiply: the wgmma instructions, with the layouts and registers that they take."""

from __future__ import annotations

import itertools

from pycutlass import _core
from pycutlass.enums import MathOperation
from pycutlass.families.parts import Epilogue, Product, Tensor, Tile
from pycutlass.families.sm90_warp_groups import warp_groups

__all__ = [
    "PRODUCTS",
    "accumulator_registers",
    "clean_beside",
    "clean_registers",
    "has_many_sums",
    "held_ports",
    "is_fast",
    "is_one_instruction",
    "most_registers",
]

_TENSOR_OP = _core.OpClass.TensorOp
_ROW, _COLUMN = _core.RowMajor, _core.ColumnMajor
#: wgmma reads operands of 16 bits from shared memory in either order; of others see sm90_register_a.py.
_ANY = ((_ROW, _COLUMN), (_ROW, _ROW), (_COLUMN, _ROW), (_COLUMN, _COLUMN))
_FAST = MathOperation.multiply_add_fast_accum
_EITHER = (MathOperation.multiply_add, _FAST)

#: Sums of a thread beyond which kernels with a device side of our own were seen to spill (gemm_sm90.h).
_MOST_SUMS = 128

PRODUCTS = (
    Product(_TENSOR_OP, "f16", "f16", "f32", None, _ANY),
    Product(_TENSOR_OP, "bf16", "bf16", "f32", None, _ANY),
    Product(_TENSOR_OP, "f16", "f16", "f16", None, _ANY),
    Product(_TENSOR_OP, "tf32", "tf32", "f32", None, _ANY),
    *(Product(_TENSOR_OP, a, b, "s32", None, _ANY) for a, b in itertools.product(("s8", "u8"), repeat=2)),
    *(
        Product(_TENSOR_OP, a, b, "f32", None, _ANY, operations=_EITHER)
        for a, b in itertools.product(("e4m3", "e5m2"), repeat=2)
    ),
)

#: Columns of a wgmma that CUTLASS takes unless it is told to take others as well (cute/arch/mma_sm90.hpp).
_USUAL_COLUMNS = (8, 16, 32, 64, 96, 128, 192, 256)
#: Registers of the 240 of a thread that sums can have, and those with which ptxas spills none. Built with CUDA 13.0 for
#: C of 16 bits, 192 were clean, 208 spilled a few bytes, and from 216 on ptxas made each wgmma wait for the one before.
#: C of 32 bits has more of its own: 168 were clean, 176 almost, 192 spilled. D of 8 bits is stored in pairs, or one by
#: one where columns are stored: 160 and 144 were clean, 192 and 160 spilled.
_MOST, _CLEAN, _OF_WIDE, _OF_PAIRS, _OF_SINGLES = 224, 192, 24, 32, 48
#: The same of kernels that load by cp.async, whose threads have 168 registers each, consumers as well.
_MOST_OF_CP_ASYNC, _CLEAN_OF_CP_ASYNC = 144, 112
#: And of those whose threads read C, some of it ahead, and write D: 176 were clean, 192 spilled.
_CLEAN_OF_DIRECT = 176
#: Threads of three warp groups have 160 registers: with 96 of sums they were clean, also where they write D themselves,
#: and with 112 ptxas lacked registers for the instruction. Where columns of 8 or 32 bits are stored 96 spilled and 80
#: were clean.
_OF_THREE, _OF_THREE_BY_COLUMNS = 96, 80
#: How many fewer beside one, two, and more vectors and matrices of an epilogue function, whose elements are held; those
#: of 32 bits count twice. With one of 16 bits 192 were clean in a warp group that has a tile of its own, and spilled a
#: few bytes where two share one; with five 160 spilled and 144 were clean, and 192 and 160. Of D of 32 bits, 128
#: spilled with two matrices in either, and 96 and 80 were clean. Beside one, three warp groups did as one does.
_OF_PORTS = {1: (0, 16, 48), 2: (16, 32, 32), 3: (0, 16, 48)}
_OF_PORTS_BESIDE_WIDE = 16


def is_fast(tile: Tile) -> bool:
    """Return whether tensor cores alone sum up products of 8-bit floats."""
    return tile.math_instruction.math_operation is _FAST


def is_one_instruction(columns: int) -> bool:
    """Return whether CUTLASS multiplies a tile of so many columns by one instruction without being told to."""
    return columns in _USUAL_COLUMNS


def accumulator_registers(tile: Tile) -> int:
    """Return the registers of a thread that hold sums, of the 128 threads of each warp group.

    Sums of 8-bit floats are there twice: those of the last few products, which have few bits, are added to the others.
    """
    m, n, _ = tile.threadblock_shape
    elements = m * n // (128 * warp_groups(tile))
    math = tile.math_instruction
    return elements * math.accumulator.bits // 32 * (2 if math.a.is_float8 and not is_fast(tile) else 1)


def has_many_sums(tile: Tile, D: Tensor) -> bool:
    """Return whether threads have more sums of 32 bits to store than a device side of our own takes without spills."""
    m, n, _ = tile.threadblock_shape
    return m * n > _MOST_SUMS * 128 * warp_groups(tile) and D.type.bits == 32


def most_registers(tile: Tile, *, cp_async: bool = False) -> int:
    """Return how many registers of a thread sums can have."""
    if warp_groups(tile) == 3:
        return _OF_THREE
    return _MOST_OF_CP_ASYNC if cp_async else _MOST


def held_ports(epilogue: Epilogue) -> int:
    """Return how many vectors and matrices of 16 bits take as many registers as those of an epilogue function."""
    return sum(max(1, port.type.bits // 16) for port in epilogue.ports)


def clean_beside(tile: Tile, epilogue: Epilogue, D: Tensor, *, direct: bool, cp_async: bool) -> int:
    """Return with how many of them nothing spills, beside the vectors and matrices that an epilogue function has."""
    clean = clean_registers(tile, D, direct=direct, cp_async=cp_async)
    held = held_ports(epilogue)
    if not held or cp_async or tile.kernel_schedule is None:
        return clean
    fewer = _OF_PORTS[warp_groups(tile)]
    return clean - fewer[min(held, len(fewer)) - 1] - (_OF_PORTS_BESIDE_WIDE if D.type.bits > 16 else 0)


def clean_registers(tile: Tile, D: Tensor | None = None, *, direct: bool = False, cp_async: bool = False) -> int:
    """Return with how many of them nothing spills, of a kernel that writes D, as it lies in the kernel.

    `direct` is whether threads read C and write D, `cp_async` whether they load A and B.
    """
    if warp_groups(tile) == 3:
        by_columns = D is not None and D.type.bits != 16 and not D.is_row_major
        return _OF_THREE_BY_COLUMNS if by_columns else _OF_THREE
    if cp_async:
        return _CLEAN_OF_CP_ASYNC
    if direct:
        return min(_CLEAN_OF_DIRECT, clean_registers(tile, D))
    if D is None or D.type.bits == 16:
        return _CLEAN
    if D.type.bits > 16:
        return _CLEAN - _OF_WIDE
    return _CLEAN - (_OF_PAIRS if D.is_row_major else _OF_SINGLES)
