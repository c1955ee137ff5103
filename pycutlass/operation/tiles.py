"""Tiles that a GEMM or a convolution can have."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from functools import lru_cache
from typing import Any

from pycutlass.calls import public
from pycutlass.enums import KernelSchedule
from pycutlass.epilogue import Epilogue
from pycutlass.errors import ArgumentTypeError, DescriptionError
from pycutlass.families import GEMV, SM90
from pycutlass.families.gemv import gemv_shapes
from pycutlass.families.parts import changed
from pycutlass.families.sm90_products import accumulator_registers, clean_beside
from pycutlass.families.sm90_register_a import spills
from pycutlass.library import MathInstruction, TileDescription
from pycutlass.log import silent
from pycutlass.operation.checked_parts import check_capability
from pycutlass.operation.conv2d import Conv2dOperation
from pycutlass.operation.gemm import GemmOperationUniversal

__all__ = ["native_operations_among", "of_results", "planes_of_results", "tile_descriptions"]

#: Bytes of K in a tile, and threadblocks of a cluster, of the Hopper-native tiles that are listed.
_DEPTHS, _CLUSTERS = (128, 256), ((1, 1), (2, 1), (1, 2), (2, 2))
#: The same where A and B are loaded by cp.async.
_CP_ASYNC_DEPTHS, _CP_ASYNC_CLUSTERS = (128, 64), ((1, 1),)
_ROWS = {KernelSchedule.Cooperative: (256, 192, 128), KernelSchedule.Pingpong: (192, 128, 64)}
_COLUMNS = (256, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16, 8)
#: Rows, columns and warps along both of the Ampere-style tiles, with bytes of K and stages.
_AMPERE_TILES = (
    *((256, 128, 4, 2), (128, 256, 2, 4), (256, 64, 4, 1), (64, 256, 1, 4), (128, 128, 2, 2)),
    *(
        (128, 64, 2, 2),
        (64, 128, 2, 2),
        (64, 64, 2, 2),
        (128, 32, 2, 1),
        (32, 128, 1, 2),
        (64, 32, 2, 1),
        (32, 64, 1, 2),
    ),
)
_AMPERE_DEPTHS, _AMPERE_STAGES = (64, 128), (3, 4, 5, 2)
_SIMT_DEPTHS = (32, 64)
_TENSOR_OP_TILES = tuple(
    (*tile, depth, stages) for depth, stages, tile in itertools.product(_AMPERE_DEPTHS, _AMPERE_STAGES, _AMPERE_TILES)
)
#: The same of float32 on CUDA cores, with the bytes of K and the stages by which each was the fastest somewhere.
#: Threads have 64 sums at most: with 128 they wait for operands longer than they multiply. Of 512 threads each has too
#: few registers for an epilogue function as well.
_SIMT_TILES = (
    *((256, 128, 4, 4, 32, 2), (256, 128, 4, 4, 64, 2), (128, 128, 4, 2, 32, 4), (128, 128, 4, 2, 64, 4)),
    *((128, 64, 2, 2, 32, 2), (64, 128, 2, 2, 32, 4), (64, 128, 2, 2, 32, 2), (64, 64, 2, 2, 32, 2)),
    *((32, 64, 1, 2, 32, 2), (32, 64, 1, 2, 32, 4)),
    *((128, 32, 4, 1, 32, 4), (64, 32, 2, 1, 32, 4)),  # for few columns, which were not measured
)
#: Of tiles of other extents, for epilogue functions with results of tiles: the extents that are left open, warps along
#: rows and columns, and how many sums a thread has: on CUDA cores at most 64 where enough warps divide an extent.
_OPEN_EXTENTS, _WARPS_OF_RESULTS = (128, 64), ((4, 2), (2, 4), (2, 2), (4, 1), (1, 4), (2, 1), (1, 2))
_SUMS_OF_RESULTS, _SUMS_OF_SIMT, _DIVIDED = range(16, 129), range(16, 65), 32
_MOST_WARPS_OF_FUNCTIONS, _MOST_WARPS = 8, 16
#: Warps of GEMV tiles along N and K, and how many bytes a thread has on their way to it at a time.
_GEMV_WARPS, _GEMV_BYTES = ((4, 1), (8, 1), (2, 2), (1, 4), (1, 8)), (64, 128)


@public
def tile_descriptions(
    like: GemmOperationUniversal | Conv2dOperation, compute_capability: int | None = None
) -> tuple[TileDescription, ...]:
    """Return the tiles that an operation of the same types, layouts and epilogue can have, in a fixed order.

    Each makes a valid description together with what else `like` has. Of Hopper-native tiles those are listed whose
    sums leave the epilogue enough registers; a function that computes much may spill all the same, which build reports
    say. Larger tiles come first. The list is not all that descriptions accept, but what is worth trying.

    Parameters
    ----------
    like : GemmOperationUniversal or Conv2dOperation
        With the operands, the epilogue and the swizzle. Its own tile gives the math instruction alone.
    compute_capability : int, optional
        90 for Hopper-native tiles, 80, 86, 87 or 89 for Ampere-style ones; by default that of `like`. A GEMV kernel has
        tiles of as many rows with any, and a convolution Ampere-style ones.

    Returns
    -------
    tuple of TileDescription
        Empty where the family lacks the instruction, a layout, an alignment or the epilogue.

    Raises
    ------
    ArgumentTypeError
        `like` is neither a GemmOperationUniversal nor a Conv2dOperation.
    DescriptionError
        There are no kernels for `compute_capability`.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> f16 = cutlass.float16
    >>> instruction = pycutlass.MathInstruction(None, f16, f16, cutlass.float32, cutlass.OpClass.TensorOp)
    >>> tile = pycutlass.TileDescription([128, 128, 64], None, None, instruction, cluster_shape=[1, 1])
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> column = pycutlass.TensorDescription(f16, cutlass.ColumnMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, cutlass.float32, cutlass.float32)
    >>> operation = pycutlass.GemmOperationUniversal(90, tile, row, column, row, functor)
    >>> tiles = pycutlass.tile_descriptions(operation)
    >>> tiles[0].procedural_name(), tile in tiles
    ('256x192_64xauto', True)
    """
    if not isinstance(like, GemmOperationUniversal | Conv2dOperation):
        raise ArgumentTypeError(
            f"like must be a GemmOperationUniversal or a Conv2dOperation, got {type(like).__name__}; for a group, pass "
            f"the GEMM that one of its problems is"
        )
    capability = check_capability(like.compute_capability if compute_capability is None else compute_capability)
    with silent():  # about tiles that are tried
        if isinstance(like, Conv2dOperation):
            return tuple(tile for tile in _ampere(like) if _is_taken_by_conv(like, capability, tile))
        native = capability in SM90.shared_memory
        drawn = _gemv(like) if like.family is GEMV else _native(like) if native else _ampere(like)
        return tuple(tile for tile in drawn if _with_tile(like, capability, tile) is not None)


def native_operations_among(like: GemmOperationUniversal, places: Container[Any]) -> tuple[GemmOperationUniversal, ...]:
    """Return the operation with each Hopper-native tile that is in `places`: the others are not even described.

    The tiles are those of `tile_descriptions`, and a few that spill a little and are the fastest all the same. A place
    is a schedule, rows, columns, and the two extents of a cluster.
    """
    capability = next(iter(SM90.shared_memory))
    with silent():
        made = (_with_tile(like, capability, tile) for tile in _native(like, places))
        return tuple(operation for operation in made if operation is not None)


def swizzled(operation: GemmOperationUniversal, swizzling_functor: Any) -> GemmOperationUniversal:
    """Return a Hopper-native operation of whole tiles with another identity swizzle.

    The swizzle is no part of its code, so nothing that was checked is checked again.
    """
    if operation.swizzling_functor is swizzling_functor:
        return operation
    made = object.__new__(GemmOperationUniversal)
    fields = {name: getattr(operation, name) for name in (*operation._FIELDS, *operation._FURTHER)}
    made._describe(**fields | {"swizzling_functor": swizzling_functor})
    return made


def of_results(epilogue: Epilogue, rows: int, columns: int) -> bool:
    """Return whether tiles of so many rows and columns may be those that an epilogue has results of.

    Either way round, as kernels of the transposed problem have them: a description says which way it is. False of an
    epilogue without such results.
    """
    return any(m in (None, rows) and n in (None, columns) for m, n in _extents_of_results(epilogue))


def planes_of_results(epilogue: Epilogue) -> tuple[tuple[tuple[int, int], tuple[int, int, int]], ...]:
    """Return rows and columns, and warps, of the Ampere-style tiles that an epilogue may have results of."""
    listed = tuple(tile for tile in _AMPERE_TILES if of_results(epilogue, *tile[:2]))
    return tuple(((m, n), (across, down, 1)) for m, n, across, down in (*listed, *_further(epilogue)))


def _extents_of_results(epilogue: Epilogue) -> set[tuple[int | None, int | None]]:
    """Return rows and columns of tiles that an epilogue has results of, either way round; None where any will do."""
    asked: dict[bool, int] = {}
    for port in epilogue.outputs:
        if port.tile:
            along_row = port.form == "row_tiles"
            asked[along_row] = port.tile * (2 if along_row and port.halved else 1)
    rows, columns = asked.get(False), asked.get(True)
    return {(rows, columns), (columns, rows)} if asked else set()


def _further(epilogue: Epilogue, is_simt: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """Yield rows, columns and warps along both of tiles that are not listed, for results of tiles of such extents."""
    for rows, columns in sorted(_extents_of_results(epilogue), key=str):
        planes = itertools.product((rows,) if rows else _OPEN_EXTENTS, (columns,) if columns else _OPEN_EXTENTS)
        for (m, n), (across, down) in itertools.product(planes, _WARPS_OF_RESULTS):
            is_divided = m % _DIVIDED == n % _DIVIDED == 0
            if m * n // (32 * across * down) in (_SUMS_OF_SIMT if is_simt and is_divided else _SUMS_OF_RESULTS):
                yield m, n, across, down


def _native(like: GemmOperationUniversal, places: Container[Any] | None = None) -> Iterator[TileDescription]:
    """Yield Hopper-native tiles, the largest first."""
    math = _instruction(like, None)
    if math is None:
        return
    cp_async, direct = SM90.copies_of(like)
    parts = SM90.parts_of(like)
    depths, clusters = (_CP_ASYNC_DEPTHS, _CP_ASYNC_CLUSTERS) if cp_async else (_DEPTHS, _CLUSTERS)
    for schedule, depth in itertools.product(_ROWS, depths):
        shapes = itertools.product(_ROWS[schedule], _COLUMNS)
        for (m, n), cluster in itertools.product(sorted(shapes, key=lambda shape: -shape[0] * shape[1]), clusters):
            if places is not None and (schedule, m, n, *cluster) not in places:
                continue
            try:
                tile = _native_tile((m, n, depth * 8 // math.a.bits), math, (*cluster, 1), schedule)
            except DescriptionError:
                continue
            clean = clean_beside(tile, parts.epilogue, parts.D, direct=direct, cp_async=cp_async)
            if accumulator_registers(tile) <= clean and not spills(tile, parts, much=places is not None):
                yield tile


@lru_cache(maxsize=4096)  # of a few instructions: kernels with other epilogues ask for the same hundreds again
def _native_tile(
    shape: tuple[int, int, int], math: MathInstruction, cluster: tuple[int, int, int], schedule: KernelSchedule
) -> TileDescription:
    return TileDescription(shape, None, None, math, cluster, schedule)


def _ampere(like: GemmOperationUniversal | Conv2dOperation) -> Iterator[TileDescription]:
    """Yield Ampere-style tiles, the largest first."""
    shapes = ((16, 8, 32), (16, 8, 16), (16, 8, 8), (8, 8, 4), (8, 8, 16), (1, 1, 1), (1, 1, 4))
    own = like.tile_description.math_instruction.instruction_shape
    math = next((found for shape in (own, *shapes) if shape and (found := _instruction(like, shape))), None)
    if math is None:
        return
    wider = max(math.a.bits, math.b.bits)
    for m, n, across, down, depth, stages in _ampere_tiles(like.epilogue_functor, math):
        try:
            yield TileDescription((m, n, depth * 8 // wider), stages, (across, down, 1), math)
        except DescriptionError:
            continue


def _ampere_tiles(epilogue: Epilogue, math: MathInstruction) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield rows, columns, warps along both, bytes of K and stages of Ampere-style tiles.

    They are those that are listed for all kernels, and for results of tiles of other extents further ones.
    """
    listed = _TENSOR_OP_TILES
    if not math.is_tensor_op and math.a.short == "f32":
        most = _MOST_WARPS_OF_FUNCTIONS if epilogue.is_tree else _MOST_WARPS
        listed = tuple(tile for tile in _SIMT_TILES if tile[2] * tile[3] <= most)
    yield from listed
    if any(of_results(epilogue, *tile[:2]) for tile in listed):
        return
    depths = _AMPERE_DEPTHS if math.is_tensor_op else _SIMT_DEPTHS
    further = tuple(_further(epilogue, not math.is_tensor_op))
    for depth, stages, tile in itertools.product(depths, _AMPERE_STAGES, further):
        yield (*tile, depth, stages)


def _gemv(like: GemmOperationUniversal) -> tuple[TileDescription, ...]:
    """Return GEMV tiles of as many rows, those of the fewest columns first."""
    tile, B = like.tile_description, GEMV.parts_of(like).B
    return _gemv_tiles(tile.threadblock_shape[0], tile.math_instruction, B.type.bits, B.is_row_major)


@lru_cache(maxsize=64)  # as above
def _gemv_tiles(rows: int, math: MathInstruction, bits: int, by_rows: bool) -> tuple[TileDescription, ...]:
    """Return the same for elements of B of so many bits, and whether these lie by rows."""
    shapes = [
        (shape, warps)
        for warps in ((1, *each) for each in _GEMV_WARPS)
        for shape in gemv_shapes(rows, warps, bits, by_rows)
    ]
    found: list[TileDescription] = []
    for shape, warps in sorted(shapes, key=lambda each: (each[0][1], each[0][2])):
        made = TileDescription(shape, None, warps, math, kernel_schedule=KernelSchedule.Gemv)
        lines = shape[1] // warps[1] * bits // 8  # bytes that a warp has side by side, where B is row-major
        in_flight = shape[1] * shape[2] * bits // 8 // made.num_threads
        if in_flight in _GEMV_BYTES and (not by_rows or 32 <= lines <= 256):
            found.append(made)
    return tuple(found)


def _instruction(
    like: GemmOperationUniversal | Conv2dOperation, shape: tuple[int, int, int] | None
) -> MathInstruction | None:
    """Return the instruction of the same types with another shape; None where there is none."""
    try:
        return changed(like.tile_description.math_instruction, instruction_shape=shape)
    except DescriptionError:
        return None


def _with_tile(like: GemmOperationUniversal, capability: int, tile: TileDescription) -> GemmOperationUniversal | None:
    """Return the operation with another tile; None where the family lacks it."""
    swap_ab = like.swap_ab if tile.family in (SM90, GEMV) else False
    operands = (like.A, like.B, like.C, like.epilogue_functor, like.swizzling_functor, like.D)
    try:
        return GemmOperationUniversal(capability, tile, *operands, swap_ab)
    except DescriptionError:
        return None


def _is_taken_by_conv(like: Conv2dOperation, capability: int, tile: TileDescription) -> bool:
    try:
        like.replace(compute_capability=capability, tile_description=tile)
    except DescriptionError:
        return False
    return True
