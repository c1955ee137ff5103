"""What the threadblocks of a cluster share: each has TMA bring one slice of a tile, for all of them."""

from __future__ import annotations

from pycutlass.errors import DescriptionError
from pycutlass.families.parts import Tensor, Tile

__all__ = ["check_slices", "slice_bytes"]

#: Where TMA may write to in shared memory: multiples of this, in bytes.
_TMA_PLACE = 128


def check_slices(tile: Tile, A: Tensor, B: Tensor) -> None:
    """Raise DescriptionError where slices of A or B, as a kernel has them, cannot be brought one by one.

    CuTe divides what one copy brings by lines (cute/atom/copy_traits_sm90_tma.hpp), and only asserts on the host, in
    builds for debugging, that this comes out even. That a slice begins where TMA may write it does not ask.
    """
    m, n, _ = tile.cluster_shape or (1, 1, 1)
    for name, operand, sharers, axis in (("A", A, n, "N"), ("B", B, m, "M")):
        if slice_bytes(tile, operand, name, sharers) % _TMA_PLACE == 0:
            continue
        fewer = next(each for each in (8, 4, 2, 1) if slice_bytes(tile, operand, name, each) % _TMA_PLACE == 0)
        raise DescriptionError(
            f"a cluster of {m}x{n} divides each tile of {name}, {_shown(tile, operand, name)} in shared memory, among "
            f"{sharers} threadblocks, and TMA brings whole multiples of {_TMA_PLACE} bytes to each place: use at most "
            f"{fewer} threadblocks along {axis} in cluster_shape, or a larger tile"
        )


def slice_bytes(tile: Tile, operand: Tensor, name: str, sharers: int) -> int:
    """Return the bytes that one threadblock brings of what one copy takes of a tile of A or B; 1 where it is uneven."""
    lines, span = _copied(tile, operand, name)
    return lines // sharers * span if lines % sharers == 0 else 1


def _copied(tile: Tile, operand: Tensor, name: str) -> tuple[int, int]:
    """Return what one copy takes of a tile in shared memory: lines, and the bytes of each."""
    m, n, k = tile.threadblock_shape
    across = m if name == "A" else n
    lines, along = (across, k) if operand.is_row_major is (name == "A") else (k, across)
    size = along * operand.type.bits // 8
    return lines, next(span for span in (128, 64, 32, 16) if size % span == 0)


def _shown(tile: Tile, operand: Tensor, name: str) -> str:
    lines, span = _copied(tile, operand, name)
    return f"{lines} lines of {span} bytes"
