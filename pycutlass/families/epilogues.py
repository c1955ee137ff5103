"""What a family asks of an epilogue beyond its types: tiles, pairs and rows that lie as they must."""

from __future__ import annotations

from pycutlass import _core
from pycutlass.errors import DescriptionError
from pycutlass.families.parts import Epilogue, Tensor, Tile

__all__ = ["check_pairs", "check_selections", "check_tiles", "in_kernel"]


def check_tiles(functor: Epilogue, tile: Tile) -> None:
    """Check that what an epilogue leaves of each tile is of the tiles that the kernel has."""
    for port in functor.outputs:
        if port.tile:
            axis = port.form == "row_tiles"
            extent, called = tile.threadblock_shape[axis], "columns" if axis else "rows"
            extent = port.columns(extent) if axis else extent
            if port.tile != extent:
                raise DescriptionError(
                    f"{port.name} of the epilogue has a result for each tile of {port.tile} {called}, and "
                    f"threadblock_shape {list(tile.threadblock_shape)} has {extent}"
                    f"{' of pairs' if axis and port.halved else ''}: make them the same"
                )


def in_kernel(functor: Epilogue, D: Tensor) -> Epilogue:
    """Return the epilogue that a kernel has: a column-major D is computed as the transposed problem."""
    transposed: Epilogue | None = functor.transposed() if functor.is_tree and D.layout is _core.ColumnMajor else None
    return transposed or functor


def check_pairs(functor: Epilogue, D: Tensor) -> None:
    """Check that columns that an epilogue combines lie side by side in D."""
    if functor.columns(2) < 2 and D.layout is not _core.RowMajor:
        raise DescriptionError(
            f"{functor!r} combines pairs of columns, which a thread has side by side where D is RowMajor; got "
            f"{D.order}: describe D so"
        )


def check_selections(functor: Epilogue, D: Tensor) -> None:
    """Check that rows that an epilogue selects from lie in the tile as they lie in D."""
    selected = ", ".join(port.name for port in functor.outputs if port.selected)
    if selected and D.layout is _core.ColumnMajor:
        raise DescriptionError(
            f"{functor!r} selects the largest of each row to {selected}, and a column-major D is computed as the "
            f"transposed problem, whose tiles have no whole rows of D: describe D as cutlass.RowMajor; got {D.order}"
        )
