"""Whether there are kernels of a kind of GEMM: the first that a family accepts, which others are like."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pycutlass import _core
from pycutlass.enums import KernelSchedule
from pycutlass.errors import DescriptionError
from pycutlass.families.gemv import gemv_shapes
from pycutlass.library import MathInstruction, TileDescription
from pycutlass.operation import GemmOperationUniversal, of_results, planes_of_results
from pycutlass.plan.kind import GemmKind

__all__ = [
    "AMPERE_PLANES",
    "SIMT_SHAPES",
    "TENSOR_OP_SHAPES",
    "first_ampere",
    "first_gemv",
    "first_native",
    "has_results_of_tiles",
]

_OpClass = _core.OpClass
_PINGPONG, _COOPERATIVE = KernelSchedule.Pingpong, KernelSchedule.Cooperative
TENSOR_OP_SHAPES = ((16, 8, 32), (16, 8, 16), (16, 8, 8), (8, 8, 4))
SIMT_SHAPES = ((1, 1, 1), (1, 1, 4))
#: Rows, columns and warps of the tiles by which is seen whether there is an Ampere-style kernel.
AMPERE_PLANES = (((64, 64), (2, 2, 1)), ((128, 128), (2, 2, 1)), ((64, 32), (2, 1, 1)))
#: Warps along N and K of the GEMV tiles that are tried.
_GEMV_WARPS = ((4, 1), (8, 1), (2, 2), (1, 4))
_MOST_COLUMNS = 256  # of a Hopper-native tile


def first_native(kind: GemmKind, *, swap_ab: bool = False) -> GemmOperationUniversal | None:
    """Return a Hopper-native kernel of the kind; None where there is none, for the kind of product among others."""
    if kind.is_full_f32:
        return None  # wgmma rounds operands of f32 to tf32
    try:
        instruction = kind.instruction(None)
    except DescriptionError:
        return None
    for (schedule, rows), depth, columns in _first_places(kind):
        shape = (rows, columns, depth * 8 // instruction.a.bits)
        try:
            tile = TileDescription(shape, None, None, instruction, (1, 1, 1), schedule)
            return kind.operation(tile, swap_ab=swap_ab)
        except DescriptionError:
            continue
    return None


def _first_places(kind: GemmKind) -> Iterator[tuple[tuple[KernelSchedule, int], int, int]]:
    """Yield schedules with their rows, bytes of K, and columns of the tiles by which Hopper-native kernels are seen.

    Elements of 8 bits that do not lie along K are turned around in tiles of 128 rows and columns.
    """
    usual = (_PINGPONG, 64), (_COOPERATIVE, 128)
    if not has_results_of_tiles(kind):
        yield from itertools.product(usual, (128, 64), (64, 32, 16, 128, 8))
        return
    further = (_PINGPONG, 192), (_COOPERATIVE, 192), (_COOPERATIVE, 256)
    for place, depth, columns in itertools.product((*usual, *further), (128, 64), range(8, _MOST_COLUMNS + 1, 8)):
        if of_results(kind.epilogue, place[1], columns):
            yield place, depth, columns


def first_ampere(kind: GemmKind) -> GemmOperationUniversal | None:
    """Return an Ampere-style kernel of the kind: of tensor cores where they multiply as exactly as the kind says."""
    by_tensor_op = () if kind.is_full_f32 else [(shape, _OpClass.TensorOp) for shape in TENSOR_OP_SHAPES]
    for shape, opcode in (*by_tensor_op, *((shape, _OpClass.Simt) for shape in SIMT_SHAPES)):
        for plane, warps in (*AMPERE_PLANES, *planes_of_results(kind.epilogue)):
            for depth, stages in itertools.product((64, 128, 32), (3, 2)):  # cp.async cannot load single elements
                try:
                    instruction = kind.instruction(shape, opcode)
                    threadblock = (*plane, depth * 8 // instruction.a.bits)
                    return kind.operation(TileDescription(threadblock, stages, warps, instruction))
                except DescriptionError:
                    continue
    return None


def first_gemv(kind: GemmKind, instruction: MathInstruction, rows: int, swap_ab: bool) -> GemmOperationUniversal | None:
    """Return a GEMV kernel with so many rows; None where there is none."""
    bits = instruction.b.bits
    for warps, by_rows in itertools.product(_GEMV_WARPS, (False, True)):
        for shape in gemv_shapes(rows, (1, *warps), bits, by_rows):
            try:
                tile = TileDescription(shape, None, (1, *warps), instruction, kernel_schedule=KernelSchedule.Gemv)
                return kind.operation(tile, swap_ab=swap_ab)
            except DescriptionError:
                break  # which is about the layout, and no other shape of the same kind helps
    return None


def has_results_of_tiles(kind: GemmKind) -> bool:
    """Return whether the epilogue has results of tiles, which must have the very extents that it says."""
    return any(port.tile for port in kind.epilogue.outputs)
