"""Warp groups of Hopper-native kernels: how many share a tile, and what kernels lack where three do."""

from __future__ import annotations

from pycutlass.enums import KernelSchedule
from pycutlass.errors import DescriptionError
from pycutlass.families.parts import Tile

__all__ = ["check_warp_groups", "stored_rows", "threads", "warp_groups"]

#: Threads and rows of one instruction, which a warp group executes.
_THREADS, _ROWS = 128, 64
#: Rows of a cooperative tile that three warp groups share; two share 128 or 256.
_ROWS_OF_THREE = 3 * _ROWS


def warp_groups(tile: Tile) -> int:
    """Return how many warp groups share a tile: one where two take turns, else two, or three for 192 rows."""
    if tile.kernel_schedule is not KernelSchedule.Cooperative:
        return 1
    return 3 if tile.threadblock_shape[0] == _ROWS_OF_THREE else 2


def threads(tile: Tile) -> int:
    """Return the threads of a threadblock: one warp group loads, two or three multiply."""
    return _THREADS * (1 + max(2, warp_groups(tile)))


def stored_rows(tile: Tile) -> int:
    """Return how many rows are stored at once: those of one instruction of each warp group."""
    return _ROWS * warp_groups(tile)


def check_warp_groups(tile: Tile, kernels: str) -> None:
    """Raise DescriptionError where three warp groups share a tile: the kernels that are named have two at most."""
    if warp_groups(tile) == 3:
        _, n, k = tile.threadblock_shape
        raise DescriptionError(
            f"three warp groups share a tile of {_ROWS_OF_THREE} rows under {tile.kernel_schedule!r}, which {kernels} "
            f"do not support: use threadblock_shape {[128, n, k]}"
        )
