"""Hopper-native kernels with A in registers: of tf32 and 8 bits, of which A or B does not lie along K.

wgmma reads such types from shared memory along K alone. CUTLASS has a mainloop for them that loads A to registers,
which may lie either way, and turns B around in shared memory before it is multiplied. A along K beside a B that does
not is computed as the transposed problem (sm90_swap.py), where it is the other way round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NoReturn

from pycutlass import _core
from pycutlass.enums import KernelSchedule, MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.families.agreement import with_alignments
from pycutlass.families.other_family import as_ampere, is_taken, listed
from pycutlass.families.parts import Gemm, Parts, Shape, Tensor, Tile, changed
from pycutlass.families.sm90_copies import TMA_BYTES
from pycutlass.families.sm90_memory import swizzle_span
from pycutlass.families.sm90_products import accumulator_registers, clean_registers, held_ports, is_fast
from pycutlass.families.sm90_warp_groups import warp_groups

__all__ = [
    "CLEAN_BESIDE_WORDS",
    "check_register_a",
    "held_registers",
    "is_only_straight",
    "is_only_transposed",
    "loads_a",
    "nearest_shape",
    "spills",
    "swizzle_bytes",
    "turns_words",
]

_MATRICES = (_core.RowMajor, _core.ColumnMajor)
_FAST = MathOperation.multiply_add_fast_accum
#: Bytes of K in a tile: those that are turned around, and others. Four instructions, of 32 bytes each, are the least
#: (while two of them read their A, others are loaded), and all whose tiles CuTe is known to lay out.
_TURNED, _DEPTHS = 128, (128, 256)
#: Vectors and matrices of an epilogue function, counted as of 16 bits, that a warp group by itself holds beside any of
#: its sums; and the registers of sums that it has beside more.
_FEW_PORTS, _CLEAN_BESIDE_PORTS = 2, 32
#: The same of groups that turn words of B around, and of two that do so together and spill little.
CLEAN_BESIDE_WORDS, _FAST_BESIDE_WORDS = 112, 128
#: What bytes and a D of 32 bits need beside the sums and A: with 176 of both nothing spilled, and with 192 a few bytes.
_BESIDE_WIDE = 16


def loads_a(A: Tensor, B: Tensor) -> bool:
    """Return whether a kernel loads A, as it lies in the kernel, to registers."""
    return A.type.bits != 16 and A.layout in _MATRICES and not (A.is_row_major and B.layout is _core.ColumnMajor)


def is_only_transposed(A: Tensor, B: Tensor) -> bool:
    """Return whether a product is computed as the transposed problem alone."""
    return A.type.bits != 16 and A.layout is _core.RowMajor and B.layout is _core.RowMajor


def is_only_straight(A: Tensor, B: Tensor) -> bool:
    """Return whether the transposed problem of a product has no kernel."""
    return A.type.bits != 16 and A.layout is _core.ColumnMajor and B.layout is _core.ColumnMajor


def swizzle_bytes(tile: Tile, A: Tensor, B: Tensor) -> tuple[int, int] | None:
    """Return what the tiles of A and B are aligned to in shared memory; None where both are multiplied from there.

    A layout consists of atoms of 8 lines, of the widest span of 128, 64 or 32 bytes that divides a line. CUTLASS takes
    32 bytes of 32-bit elements that do not lie along K; here they are as the others (loads_sm90.h).
    """
    if not loads_a(A, B):
        return None
    (m, n, k), size = tile.threadblock_shape, A.type.bits // 8
    lines = m * size, (n if B.is_row_major else k) * size  # A is column-major in the kernel
    of_a, of_b = map(swizzle_span, lines)
    return 8 * of_a, 8 * of_b


def held_registers(tile: Tile) -> int:
    """Return the registers of a thread that hold A, of all instructions of a tile along K."""
    m, _, k = tile.threadblock_shape
    return m // warp_groups(tile) * k * tile.math_instruction.a.bits // 8 // (4 * 128)


def spills(tile: Tile, parts: Parts, *, much: bool = False) -> bool:
    """Return whether a kernel has too few registers, or by `much` too few, so that it is slow.

    Those of A are free again when D is stored. A warp group that turns bytes around by itself has been seen to spill
    with 128 of sums, the least that its tiles have; floats of 8 bits, and two groups that share the work, have not.
    Groups that turn words around have with 128 of sums, and not with 112: two that share the work keep up to 64 bytes
    elsewhere, and are the fastest all the same.
    Beside an epilogue function of two matrices of 32 bits, a warp group by itself spilled with 64, and not with 32.
    """
    registers = accumulator_registers(tile)
    if registers > clean_registers(tile, parts.D):
        return True
    if not loads_a(parts.A, parts.B):
        return False
    if turns_words(parts) and registers > CLEAN_BESIDE_WORDS:
        return not much or tile.kernel_schedule is KernelSchedule.Pingpong or registers > _FAST_BESIDE_WORDS
    if tile.kernel_schedule is KernelSchedule.Pingpong:
        turns_bytes = parts.B.is_row_major and parts.A.type.is_byte
        if turns_bytes or (held_ports(parts.epilogue) > _FEW_PORTS and registers > _CLEAN_BESIDE_PORTS):
            return True
    beside = _BESIDE_WIDE if parts.A.type.is_byte and parts.D.type.bits == 32 else 0
    return registers + held_registers(tile) + beside > clean_registers(tile)


def turns_words(parts: Parts) -> bool:
    """Return whether a kernel turns B of tf32 around, which does not lie along K."""
    return loads_a(parts.A, parts.B) and parts.B.is_row_major and parts.A.type.bits == 32


def check_register_a(kernel: Gemm, parts: Parts, by_tma: bool) -> None:
    """Check that a kernel which loads A to registers computes what it should.

    `by_tma` says whether TMA copies all operands.
    """
    A, B, tile = parts.A, parts.B, kernel.tile_description
    if not loads_a(A, B):
        return
    where = f"where A or B of {A.type} does not lie along K"
    along_k = "describe A as cutlass.RowMajor and B as cutlass.ColumnMajor"
    if not by_tma:
        _refuse_alignments(kernel, where, along_k)
    if A.type.is_float8 and not is_fast(tile):
        shape = nearest_shape(tile, B)
        with_tile = f" with threadblock_shape {list(shape)}" if shape != tile.threadblock_shape else ""
        raise DescriptionError(
            f"{where}, tensor cores alone add up products of 8-bit floats, which {_FAST!r} asks for; got multiply_add: "
            f"use that{with_tile}, or {along_k}"
        )
    wrong, shape = _wrong_of_shape(tile, B)
    if wrong:
        raise DescriptionError(
            f"{where}, a kernel {'; and it '.join(wrong)}: use threadblock_shape {list(shape)}, or {along_k}"
        )


def nearest_shape(tile: Tile, B: Tensor) -> Shape:
    """Return the shape of a tile with A in registers and such a B: its own where that will do."""
    if tile.math_instruction.a.is_float8 and not is_fast(tile):
        tile = changed(tile, math_instruction=changed(tile.math_instruction, math_operation=_FAST))
    return _wrong_of_shape(tile, B)[1]


def _refuse_alignments(kernel: Gemm, where: str, along_k: str) -> NoReturn:
    """Raise for operands that TMA cannot copy."""
    operands = {"A": kernel.A, "B": kernel.B}
    if kernel.D == kernel.C or kernel.epilogue_functor.reads_source is not False:
        operands["C"] = kernel.C
    if kernel.D != kernel.C:
        operands["D"] = kernel.D
    narrow = {name: operand for name, operand in operands.items() if operand.alignment_bytes < TMA_BYTES}
    least = {name: 8 * TMA_BYTES // operand.type.bits for name, operand in narrow.items()}
    found = listed(
        f"operand {name} of {operand.type} needs alignment {least[name]}, got {operand.alignment}"
        for name, operand in narrow.items()
    )
    ways = [with_alignments(least, "C" if kernel.D == kernel.C else "D")]
    row, column = changed(kernel.A, layout=_core.RowMajor), changed(kernel.B, layout=_core.ColumnMajor)
    if is_taken(kernel, kernel.tile_description, A=row, B=column):
        ways.append(along_k)
    if ampere := as_ampere(kernel.tile_description, kernel, swap_ab=False):
        ways.append(f"for an Ampere-style kernel {'leave out swap_ab, and ' * kernel.swap_ab}{ampere}")
    raise DescriptionError(
        f"{where}, a kernel copies all operands by TMA, which needs {TMA_BYTES}-byte alignment: {found}; "
        f"{', or '.join(ways)}"
    )


def _wrong_of_shape(tile: Tile, B: Tensor) -> tuple[list[str], Shape]:
    """Return what a tile has that a kernel with A in registers and such a B has not, and the nearest shape."""
    m, n, k = tile.threadblock_shape
    bits = B.type.bits
    depths = tuple(each * 8 // bits for each in _DEPTHS)
    turned = 32 if bits == 32 else 128
    wrong = []
    rows, columns = [m, 128], [n, *range(min(turned, 64), 257, min(turned, 64))]
    if warp_groups(tile) == 3:
        wrong.append(f"has tiles that two warp groups share, and not the three that share M={m}")
        rows = [128]
    if B.is_row_major:
        if k != depths[0]:
            wrong.append(f"turns around tiles of B of 128 bytes along K, got threadblock_shape K={k}")
        if n % turned:
            wrong.append(f"turns around {turned} columns of B at once, got threadblock_shape N={n}")
        if m % 128 and bits == 8:
            wrong.append(f"has 128 or 256 rows in a tile then, which CUTLASS lays out as it does B; got M={m}")
            rows = [128]
        depths, columns = depths[:1], [each for each in columns if each % turned == 0]
    elif k not in depths:
        wrong.append(f"has {depths[0]} or {depths[1]} elements of K in a tile, got threadblock_shape K={k}")
    return wrong, _nearest(tile, itertools.product(rows, columns, depths)) if wrong else tile.threadblock_shape


def _nearest(tile: Tile, shapes: Iterable[Shape]) -> Shape:
    """Return the shape that changes a tile the least, of those that it can have."""
    given = tile.threadblock_shape
    ranked = sorted(shapes, key=lambda shape: [abs(new - old) for new, old in zip(shape, given, strict=True)][::-1])
    for shape in ranked:
        try:
            changed(tile, threadblock_shape=shape)
        except DescriptionError:
            continue
        return shape
    return ranked[0]
