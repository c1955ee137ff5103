"""Which kernels, with which options of a launch, are worth considering for a kind of GEMM."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pycutlass import _core
from pycutlass.calls import public, shown
from pycutlass.enums import KernelSchedule, MathOperation
from pycutlass.epilogue import Epilogue
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.families import SM90
from pycutlass.integers import as_int
from pycutlass.library import TileDescription
from pycutlass.log import silent
from pycutlass.operation import (
    GemmOperationUniversal,
    native_operations_among,
    of_results,
    swizzled,
    tile_descriptions,
)
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.candidate_tiles import (
    DEEP_COLUMNS,
    LONG,
    NATIVE,
    OF_PROMOTED,
    PARALLEL,
    PARALLEL_OF_PROMOTED,
    PARALLEL_SLICES,
    PLACES,
    SLICES,
    SLICES_OF_LONG,
    STREAM_K,
    SWAPPED,
    SWAPPED_OF_MEDIUM,
    SWAPPED_PLACES,
    SWAPPED_SLICES,
)
from pycutlass.plan.first_kernels import first_ampere, first_gemv, first_native, has_results_of_tiles
from pycutlass.plan.kind import GemmKind
from pycutlass.types import element

__all__ = [
    "LARGE",
    "ampere_tiles",
    "by_stages",
    "candidates",
    "checked_capability",
    "native_tiles",
]

_OpClass = _core.OpClass
_PINGPONG, _COOPERATIVE = KernelSchedule.Pingpong, KernelSchedule.Cooperative

_SERIAL_SLICES = (2, 3, 4, 6, 8, 12, 16)  # of Ampere-style kernels
#: From this many elements of D on, tiles are large enough for so many of them to share lines in the L2 cache that the
#: order in which they are visited matters.
LARGE = 128 * 128
_SWIZZLES, _SWIZZLE_OF_SIZE = (
    (1, 4, 8),
    {
        1: _core.IdentitySwizzle1,
        4: _core.IdentitySwizzle4,
        8: _core.IdentitySwizzle8,
    },
)
#: How many numbers of stages are tried for an Ampere-style tile, the first that fit, and what is split along K.
_STAGES, _MOST_STAGES = (4, 3, 5, 2), 2
_AMPERE_SPLIT = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (32, 64))
_AMPERE_STREAM_K = ((256, 128), (128, 256), (128, 128))
_GEMV_ROWS = (1, 2, 4, 8)  # of tiles
_GEMV_KEPT = 8
_LEAST_CAPABILITY = 80


@public
@lru_cache(maxsize=64)  # A kind has some hundreds of candidates, about a megabyte; programs have a dozen kinds.
def candidates(kind: GemmKind, capability: int, batched: bool = False) -> tuple[Candidate, ...]:
    """Return the candidates for a kind of GEMM, in a fixed order.

    Each is a valid description. For compute capability 90 they are Hopper-native kernels where there are any for the
    kind, else Ampere-style ones; for any other Ampere-style ones. Kernels for few rows or few columns are among
    them. Whether one takes the extents of a problem, ``candidate.operation.supports(candidate.size(m, n, k))`` says.

    Parameters
    ----------
    kind : GemmKind
        What is computed.
    capability : int
        Compute capability of the GPU: 80 or more.
    batched : bool
        Whether a launch computes a batch, which cannot be divided along K.

    Returns
    -------
    tuple of Candidate
        None where no kernel computes this kind.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Another kind of argument, or an earlier GPU.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import GemmKind, candidates
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> candidates(kind, 90)[0].name
    'Cooperative 256x192x64, cluster 1x2, swizzle 1'
    """
    if not isinstance(kind, GemmKind):
        raise ArgumentTypeError(f"kind must be a GemmKind, got {type(kind).__name__}")
    known = checked_capability(capability)
    with silent():  # about kernels that are tried
        native = tuple(_native(kind, batched)) if known in SM90.shared_memory else ()
        whole = native or tuple(_ampere(kind, known, batched))
        return tuple(dict.fromkeys((*whole, *_gemv(kind))))


def checked_capability(given: int) -> int:
    """Return a compute capability that there are kernels for, or raise."""
    known = as_int(given)
    if known is None:
        raise ArgumentTypeError(f"capability must be an integer such as 80 or 90, got {shown(given)}")
    if known < _LEAST_CAPABILITY:
        raise ArgumentError(f"kernels are for compute capability {_LEAST_CAPABILITY} or newer, got {known}")
    return known


def by_stages(tiles: tuple[TileDescription, ...]) -> Iterator[list[TileDescription]]:
    """Yield Ampere-style tiles that differ in their stages alone, the first numbers of stages that fit."""
    found: dict[tuple[Any, ...], list[TileDescription]] = {}
    for tile in tiles:
        found.setdefault((tile.threadblock_shape, tile.warp_count), []).append(tile)
    for staged in found.values():
        yield sorted(staged, key=lambda tile: _STAGES.index(tile.stages or _STAGES[0]))[:_MOST_STAGES]


def native_tiles(kind: GemmKind) -> Iterator[TileDescription]:
    """Yield the Hopper-native tiles that are worth considering for a kind of GEMM; none where there are no kernels."""
    yield from (operation.tile_description for operation in _whole(kind))


def _whole(kind: GemmKind) -> Iterator[GemmOperationUniversal]:
    """Yield the Hopper-native kernels of these tiles."""
    by_place = _by_place(kind)
    usual = tuple(_usual_native(kind, by_place))
    yield from usual or (staged[0] for staged in by_place.values())  # results of tiles may ask for others


def ampere_tiles(kind: GemmKind, capability: int) -> Iterator[list[TileDescription]]:
    """Yield Ampere-style tiles, each with the numbers of stages that are worth considering, the usual one first.

    Capabilities that have no limit of shared memory of their own take 80's.
    """
    like = first_ampere(kind)
    if like is None:
        return
    limited = capability if capability in like.family.shared_memory and capability not in SM90.shared_memory else 80
    yield from by_stages(tile_descriptions(like, limited))


def _is_promoted(kind: GemmKind) -> bool:
    """Return whether threads add up products of 8-bit floats, of which tensor cores keep fewer bits."""
    fast = kind.math_operation is MathOperation.multiply_add_fast_accum
    return element(kind.element_a).is_float8 and not fast


def _is_of_medium(kind: GemmKind) -> bool:
    """Return whether tiles for problems of medium size are listed: for 16 bits, int8 and precise 8-bit floats."""
    of = element(kind.element_a)
    return of.bits <= 16 and (_is_promoted(kind) or not of.is_float8)


def _usual_native(
    kind: GemmKind, by_place: dict[Any, list[GemmOperationUniversal]]
) -> Iterator[GemmOperationUniversal]:
    """Yield those whose tiles are listed for all kinds."""
    for schedule, rows, widths, clusters in (*NATIVE, *(OF_PROMOTED if _is_promoted(kind) else ())):
        for columns, cluster in itertools.product(widths, clusters):
            deep = schedule is _PINGPONG and rows == 64 and columns <= DEEP_COLUMNS and cluster == (1, 1)
            yield from by_place.get((schedule, rows, columns, *cluster), [])[: 2 if deep else 1]


@lru_cache(maxsize=1)  # asked twice for each list of candidates
def _by_place(kind: GemmKind) -> dict[Any, list[GemmOperationUniversal]]:
    """Return Hopper-native kernels by the place of their tiles: those of different depths, the usual first."""
    like = first_native(kind)
    found: dict[Any, list[GemmOperationUniversal]] = {}
    for operation in _native_among(kind, like, PLACES):
        found.setdefault(_place(operation.tile_description), []).append(operation)
    return found


def _native_among(
    kind: GemmKind, like: GemmOperationUniversal | None, places: Container[Any]
) -> tuple[GemmOperationUniversal, ...]:
    """Return the Hopper-native kernels of some places; of any, where results of tiles ask for others than these."""
    if like is None:
        return ()
    found = native_operations_among(like, places)
    if not found and has_results_of_tiles(kind):
        found = native_operations_among(like, _OfResults(kind.epilogue))
    return found


@dataclass(frozen=True)
class _OfResults:
    """The places of Hopper-native tiles that an epilogue may have results of."""

    epilogue: Epilogue

    def __contains__(self, place: object) -> bool:
        return isinstance(place, tuple) and of_results(self.epilogue, *place[1:3])


def _native(kind: GemmKind, batched: bool) -> Iterator[Candidate]:
    """Yield Hopper-native candidates."""
    by_place = _by_place(kind)
    if not by_place and not has_results_of_tiles(kind):
        return
    for operation in _whole(kind):
        yield from _visited(operation)
    swapped = first_native(kind, swap_ab=True)
    if swapped is not None:
        yield from _swapped(kind, swapped, batched)
    if batched:
        return
    for (rows, columns), cluster in STREAM_K:
        for operation in by_place.get((_COOPERATIVE, rows, columns, *cluster), [])[:1]:
            yield from _stream_k(kind, operation, SLICES)
    for schedule, (rows, columns), cluster in (*PARALLEL, *(PARALLEL_OF_PROMOTED if _is_promoted(kind) else ())):
        for operation in by_place.get((schedule, rows, columns, *cluster), [])[:1]:
            yield from _in_parallel(operation, PARALLEL_SLICES)
    for schedule, (rows, columns), cluster in LONG:
        for operation in by_place.get((schedule, rows, columns, *cluster), [])[:1]:
            yield from _in_parallel(operation, SLICES_OF_LONG)


def _swapped(kind: GemmKind, like: GemmOperationUniversal, batched: bool) -> Iterator[Candidate]:
    """Yield kernels of the transposed problem: their columns are rows of the problem, of which there are few."""
    of_plane: dict[Any, list[GemmOperationUniversal]] = {}
    for operation in _native_among(kind, like, SWAPPED_PLACES):
        of_plane.setdefault(_plane(operation.tile_description), []).append(operation)
    listed = (*SWAPPED, *(SWAPPED_OF_MEDIUM if _is_of_medium(kind) else ()))
    usual = [(schedule, rows, columns) for schedule, rows, widths in listed for columns in widths]
    for plane in usual if any(plane in of_plane for plane in usual) else of_plane:  # as in `_whole`
        schedule = plane[0]
        for operation in of_plane.get(plane, [])[:2]:
            yield Candidate(operation)
            if schedule is _COOPERATIVE and not batched:
                yield from _stream_k(kind, operation, SWAPPED_SLICES)
    if batched:
        return
    for schedule, (rows, columns), _ in LONG:
        for operation in of_plane.get((schedule, rows, columns), [])[:1]:
            yield from _in_parallel(operation, SLICES_OF_LONG)


def _ampere(kind: GemmKind, capability: int, batched: bool) -> Iterator[Candidate]:
    """Yield Ampere-style candidates."""
    for staged in ampere_tiles(kind, capability):
        plane, is_tensor_op = staged[0].threadblock_shape[:2], staged[0].math_instruction.is_tensor_op
        is_swizzled = is_tensor_op and plane[0] * plane[1] >= LARGE  # CUDA cores do not wait for the L2 cache
        for tile in staged:
            for swizzle in _SWIZZLES[:2] if is_swizzled else _SWIZZLES[:1]:
                yield from _made(kind, tile, _SWIZZLE_OF_SIZE[swizzle])
        if batched:
            yield from _made(kind, staged[0], _core.BatchedIdentitySwizzle)
            continue
        # CUDA cores take K in two stages or four, whichever suits the layouts, divided or not.
        for tile in staged[:1] if is_tensor_op else staged:
            if plane in _AMPERE_SPLIT:
                for operation in _operations(kind, tile):
                    yield from (Candidate(operation, slices) for slices in _SERIAL_SLICES)
                    yield from _in_parallel(operation, SLICES)
            if plane in _AMPERE_STREAM_K:
                yield from _made(kind, tile, _core.ThreadblockSwizzleStreamK)


def _gemv(kind: GemmKind) -> Iterator[Candidate]:
    """Yield kernels of CUDA cores for 1 to 8 rows, and for 1 to 8 columns."""
    try:
        instruction = kind.instruction(None, _OpClass.Simt)
    except DescriptionError:
        return
    for swap_ab, rows in itertools.product((False, True), _GEMV_ROWS):
        like = first_gemv(kind, instruction, rows, swap_ab)
        if like is not None:
            tiles = tile_descriptions(like)
            step = max(1, len(tiles) // _GEMV_KEPT)
            for tile in tiles[::step]:
                yield from _made(kind, tile, swap_ab=swap_ab)


def _visited(operation: GemmOperationUniversal) -> Iterator[Candidate]:
    """Yield a Hopper-native kernel with the swizzles that are worth trying, which are no part of its code."""
    rows, columns, _ = operation.tile_description.threadblock_shape
    for swizzle in _SWIZZLES if rows * columns >= LARGE else _SWIZZLES[:1]:
        yield Candidate(swizzled(operation, _SWIZZLE_OF_SIZE[swizzle]))


def _stream_k(kind: GemmKind, operation: GemmOperationUniversal, slices: tuple[int, ...]) -> Iterator[Candidate]:
    tile, swap_ab = operation.tile_description, operation.swap_ab
    for divided in _operations(kind, tile, _core.ThreadblockSwizzleStreamK, swap_ab):
        yield from (Candidate(divided, count) for count in (1, *slices))


def _in_parallel(operation: GemmOperationUniversal, counts: tuple[int, ...]) -> Iterator[Candidate]:
    """Yield a kernel whose partial sums another kernel adds up, where there are both."""
    found = [Candidate(operation, slices, True) for slices in counts]
    try:
        _ = found[0].kernels  # which all have
    except DescriptionError:
        return
    yield from found


def _made(
    kind: GemmKind, tile: TileDescription, swizzle: Any = _core.IdentitySwizzle1, swap_ab: bool = False
) -> Iterator[Candidate]:
    yield from map(Candidate, _operations(kind, tile, swizzle, swap_ab))


def _operations(
    kind: GemmKind, tile: TileDescription, swizzle: Any = _core.IdentitySwizzle1, swap_ab: bool = False
) -> Iterator[GemmOperationUniversal]:
    """Yield the kernel, unless the parts make none."""
    try:
        yield kind.operation(tile, swizzle, swap_ab)
    except DescriptionError:
        return


def _plane(tile: TileDescription) -> tuple[Any, int, int]:
    return tile.kernel_schedule, tile.threadblock_shape[0], tile.threadblock_shape[1]


def _place(tile: TileDescription) -> tuple[Any, ...]:
    """Return schedule, rows, columns and cluster of a tile."""
    cluster = tile.cluster_shape or (1, 1, 1)
    return (*_plane(tile), cluster[0], cluster[1])
