"""Warp groups of Hopper-native kernels: how many share a tile, and what kernels lack where three do."""

from __future__ import annotations

from pycutlass.enums import KernelSchedule
from pycutlass.errors import DescriptionError
from pycutlass.families.parts import Tile

__all__ = ["check_three", "sharers", "stored_rows", "threads"]

#: Threads and rows of one instruction, which a warp group executes.
_THREADS, _ROWS = 128, 64
#: Rows of a cooperative tile that three warp groups share; two share 128 or 256.
_ROWS_OF_THREE = 3 * _ROWS


def sharers(tile: Tile) -> int:
    """Return how many warp groups share a tile: one where two take turns, else two, or three for 192 rows."""
    if tile.kernel_schedule is not KernelSchedule.Cooperative:
        return 1
    return 3 if tile.threadblock_shape[0] == _ROWS_OF_THREE else 2


def threads(tile: Tile) -> int:
    """Return the threads of a threadblock: one warp group loads, two or three multiply."""
    return _THREADS * (1 + max(2, sharers(tile)))


def stored_rows(tile: Tile) -> int:
    """Return how many rows are stored at once: those of one instruction of each warp group."""
    return _ROWS * sharers(tile)


def check_three(tile: Tile, lacking: str) -> None:
    """Raise DescriptionError where three warp groups share a tile, which the kernels named by `lacking` have not."""
    if sharers(tile) == 3:
        _, n, k = tile.threadblock_shape
        raise DescriptionError(
            f"three warp groups share a tile of {_ROWS_OF_THREE} rows under {tile.kernel_schedule!r}, which {lacking} "
            f"do not support: use threadblock_shape {[128, n, k]}"
        )
