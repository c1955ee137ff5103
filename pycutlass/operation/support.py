"""Whether a kernel can compute a problem, and why not, from sizes and shapes alone.

What arguments check of sizes is here as well, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pycutlass.calls import counted
from pycutlass.epilogue.fast_clamp import for_any_sums
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.operands import MisalignedError, OtherLayoutError, OtherTypeError
from pycutlass.operation.narrower import explained
from pycutlass.operation.wider import MOST_COLUMNS, wider_tile

__all__ = [
    "FEW_MATRICES",
    "GRID_LIMIT",
    "Support",
    "check_grid",
    "check_k",
    "check_serial_sums",
    "check_tiles",
    "named_operands",
    "padded_tiles",
    "rounded_up",
    "supported",
    "why_not_selected",
]

GRID_LIMIT = 65535  # along y and z
FEW_MATRICES = 2**20  # have no more tiles than a persistent kernel numbers, if D fits in the memory of a GPU
_MOST_TILES = 2**31


@dataclass(frozen=True)
class Support:
    """The answer of ``operation.supports(problem_size)``: true, or false with a reason.

    Examples
    --------
    >>> from pycutlass.operation.support import Support
    >>> bool(Support("")), bool(Support("K is not a multiple of 8"))
    (True, False)
    >>> print(Support("K is not a multiple of 8"))
    no: K is not a multiple of 8
    """

    reason: str

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return f"no: {self.reason}" if self.reason else "yes"

    def require(self) -> None:
        """Raise ArgumentError with the reason where the answer is no."""
        if self.reason:
            raise ArgumentError(self.reason)


def supported(operation: Any, check: Callable[[], object], given: Mapping[str, Any] = MappingProxyType({})) -> Support:
    """Return what `check`, which raises where something does not fit `operation`, says of the `given` operands."""
    try:
        check()
    except (MisalignedError, OtherLayoutError, OtherTypeError) as error:
        return Support(str(explained(operation, error, given)))
    except (ArgumentError, ArgumentTypeError, DescriptionError) as error:
        return Support(str(error))
    return Support("")


def named_operands(operands: Any, names: Sequence[str] = "ABCD") -> dict[str, Any]:
    """Return the operands that are given by name, without those that are None; raise for other names."""
    if not isinstance(operands, Mapping):
        several = type(operands) in (list, tuple)
        got = f"{type(operands).__name__} of {counted(len(operands), 'item')}" if several else type(operands).__name__
        example = ", ".join(f'"{name}": {name}' for name in names[: 2 if not several else len(operands)])
        raise ArgumentTypeError(
            f"operands must be a dict of TensorSpecs or tensors by name, such as {{{example}}}; got {got}"
        )
    unknown = [name for name in operands if name not in tuple(names)]
    if unknown:
        raise ArgumentTypeError(f"operands are {', '.join(names)}; got {', '.join(map(repr, unknown))}")
    return {name: tensor for name, tensor in operands.items() if tensor is not None}


def check_grid(what: str, grid: tuple[int, int, int]) -> None:
    """Raise ArgumentError where a launch would need more threadblocks along y or z than CUDA has."""
    _, y, z = grid
    if y <= GRID_LIMIT and z <= GRID_LIMIT:
        return
    remedy = (
        "use a threadblock_shape with more columns"
        if y > GRID_LIMIT
        else "batches go along x with swizzling_functor=cutlass.BatchedIdentitySwizzle, and slices of K can be fewer"
    )
    raise ArgumentError(
        f"{what} needs a grid of {grid} threadblocks, CUDA has at most {GRID_LIMIT} along y and z: {remedy}"
    )


def check_tiles(what: str, tiles: int) -> None:
    """Raise ArgumentError where a persistent kernel has more tiles than it can number."""
    if tiles >= _MOST_TILES:
        raise ArgumentError(
            f"{what} has {tiles:,} tiles, with those that fill clusters up, and a kernel numbers fewer than "
            f"{_MOST_TILES:,}: pass fewer matrices at once, or use a cluster_shape of fewer threadblocks"
        )


def padded_tiles(tile: Any, m: int, n: int, swizzle_size: int = 1) -> int:
    """Return the number of tiles of an M x N product, with those that fill clusters and the swizzle up.

    Of few tiles CUTLASS takes a smaller swizzle (gemm/kernel/tile_scheduler_params.h, get_log_swizzle_size).
    """
    (rows, columns, _), cluster = tile.threadblock_shape, tile.cluster_shape or (1, 1, 1)
    along_m, along_n = rounded_up(-(-m // rows), cluster[0]), rounded_up(-(-n // columns), cluster[1])
    least = min(along_m, along_n)
    swizzle = next((size for size, tiles in ((8, 6), (4, 3), (2, 2)) if swizzle_size >= size and least >= tiles), 1)
    return rounded_up(along_m, cluster[0] * swizzle) * rounded_up(along_n, cluster[1] * swizzle)


def rounded_up(value: int, step: int) -> int:
    """Return the least multiple of `step` that is no less than `value`."""
    return -(-value // step) * step


def check_k(functor: Any, k: int) -> None:
    """Raise ArgumentError where sums of `k` products may leave the range that an epilogue is exact in."""
    if functor.max_k is not None and k > functor.max_k:
        raise ArgumentError(
            f"{type(functor).__name__} holds for K of at most {functor.max_k} whatever the operands are, got K={k}; "
            f"more are taken where arrays in host memory are small enough: use {for_any_sums(functor)}"
        )


def why_not_selected(operation: Any, n: int, called: str = "N", where: str = "") -> str:
    """Return why `top_k` cannot select from rows of a product with `n` columns; nothing where it can.

    Parameters
    ----------
    operation : Operation
        With a tile and an epilogue.
    n : int
        Columns.
    called, where : str
        What users call these, and which problem of a group has them.
    """
    functor, tile = operation.epilogue_functor, operation.tile_description.threadblock_shape
    selected = [port for port in functor.outputs if port.selected]
    if not selected:
        return ""
    names, most = ", ".join(port.name for port in selected), max(port.selected for port in selected)
    if n > tile[1]:
        wider = wider_tile(operation, n)
        remedy = f"use {wider}, or " if wider else ""
        limit = f", and no tile has more than {MOST_COLUMNS}" if n > MOST_COLUMNS else ""
        return (
            f"the epilogue {functor!r} selects the {most} largest of each row to {names}, for which a row must fit a "
            f"tile: threadblock_shape {list(tile)} has {tile[1]} columns, got {called}={n}{where}{limit}: {remedy}"
            f"write D and select in a kernel of its own"
        )
    if functor.columns(n) < most:
        of_pairs = f", and rows of {functor.columns(n)} elements" if functor.columns(2) < 2 else ""
        return (
            f"the epilogue {functor!r} selects the {most} largest of each row to {names}, and rows have fewer "
            f"elements: got {called}={n}{where}{of_pairs}; k can be at most {functor.columns(n)}"
        )
    return ""


def check_serial_sums(operation: Any, slices: int) -> None:
    """Raise ArgumentError where sums that pass through D from slice to slice would not be what one slice makes.

    Rounding to a float once per slice is what serial split-K is known for; an integer that is narrower than the
    accumulator would be clamped once per slice, and the sum could be anything.
    """
    target, accumulator = operation.C.type, operation.accumulator_type()
    if operation.epilogue_functor.is_tree or getattr(operation, "is_stream_k", False):  # which see whole sums alone
        return
    if slices > 1 and target.clamps(accumulator):
        raise ArgumentError(
            f"serial split-K keeps the sum of the slices so far in D, where {target} would be clamped after each of "
            f"{slices} slices of {accumulator}: use GemmSplitKParallel (for convolutions SplitKMode.Parallel), which "
            f"clamps once, or one slice"
        )
