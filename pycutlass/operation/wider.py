"""Another tile for an operation whose rows must fit a tile: what a message can name so that it is accepted."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from pycutlass.errors import DescriptionError
from pycutlass.families.sm90_products import clean_registers
from pycutlass.families.sm90_warp_groups import warp_groups

__all__ = ["MOST_COLUMNS", "wider_tile"]

#: Those that wgmma multiplies by one instruction; many tiles of other widths are refused for their epilogue.
_WIDTHS = (32, 64, 96, 128, 192, 256)
#: Columns of the widest tile.
MOST_COLUMNS = _WIDTHS[-1]
_WARPS = ((2, 2, 1), (2, 4, 1), (1, 4, 1), (4, 2, 1), (1, 2, 1))
#: Accumulators of a thread beyond which registers spill beside an epilogue.
_MOST_ACCUMULATORS = 128


def wider_tile(operation: Any, columns: int) -> str:
    """Return words for a tile of so many columns or more with which `operation` can be described; "" if none is found.

    Parameters
    ----------
    operation : Operation
        Whose other parts stay as they are.
    columns : int
        Of the product.
    """
    tile = operation.tile_description
    rows, _, depth = tile.threadblock_shape
    widths = [width for width in _WIDTHS if width >= columns]
    heights = dict.fromkeys((rows, 128, 64))
    warps = [None] if tile.warp_count is None else [tile.warp_count, *_WARPS]
    most_of_native = 128 * warp_groups(tile) * clean_registers(tile)
    for width, height, count in itertools.product(widths, heights, warps):
        most = 32 * math.prod(count) * _MOST_ACCUMULATORS if count else most_of_native
        if width * height > most:
            continue
        shape = (height, width, depth)
        if _describes(operation, threadblock_shape=shape, **({"warp_count": count} if count else {})):
            of_warps = f" and warp_count {list(count)}" if count and tuple(count) != tuple(tile.warp_count) else ""
            return f"threadblock_shape {list(shape)}{of_warps}"
    return ""


def _describes(operation: Any, **changes: Any) -> bool:
    """Return whether an operation that differs in its tile alone can be described."""
    try:
        tile = dataclasses.replace(operation.tile_description, **changes)
        fields = {name: getattr(operation, name) for name in operation._FIELDS}
        type(operation)(**fields | {"tile_description": tile})
    except DescriptionError:
        return False
    return True
