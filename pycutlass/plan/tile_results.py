"""Which tiles kernels of a kind have, where an epilogue leaves results of tiles that none of them has."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from pycutlass.epilogue import EpilogueFunction, FunctionEpilogue
from pycutlass.plan.kind import GemmKind

__all__ = ["why_no_tiles"]

#: Columns and rows of tiles that kernels may have.
_EXTENTS = (16, 32, 64, 128, 192, 256)
_AXES = {"row_tiles": ("1", "columns"), "column_tiles": ("0", "rows")}


def why_no_tiles(kind: GemmKind, has_kernels: Callable[[GemmKind], bool]) -> str:
    """Return what to write in place of the extents of tiles of an epilogue function; "" where these are not the reason.

    Parameters
    ----------
    kind : GemmKind
        Of which there are no kernels.
    has_kernels : callable
        Says whether there are kernels of a kind.
    """
    epilogue = kind.epilogue
    ports = [port for port in epilogue.outputs if port.tile]
    if not ports or not isinstance(epilogue, FunctionEpilogue) or not isinstance(epilogue.function, EpilogueFunction):
        return ""
    axes = sorted({_AXES[port.form] for port in ports})
    found = []
    for extents in itertools.product(_EXTENTS, repeat=len(axes)):
        by_axis = {axis: extent for (axis, _), extent in zip(axes, extents, strict=True)}
        function = _with_tiles(epilogue.function, by_axis)
        if has_kernels(replace(kind, epilogue=replace(epilogue, function=function))):
            found.append(extents)
    if not found:
        return ""
    given = ", ".join(f"{port.name} of {port.tile} {_AXES[port.form][1]}" for port in ports)
    called = " and ".join(f"{what} (axis={axis})" for axis, what in axes)
    have = ", ".join(" and ".join(map(str, extents)) for extents in found)
    return (
        f". {epilogue.name} has results of tiles, {given}, and no kernel of this kind has such tiles: write tile= "
        f"with {called} that kernels have: {have}; or leave out tile=, for results of whole rows and columns"
    )


def _with_tiles(function: EpilogueFunction, extents: dict[str, int]) -> EpilogueFunction:
    """Return the function with tiles of other extents, by the axis that results are along."""
    graph = function.graph
    values = tuple(
        replace(value, data=(*value.data[:2], str(extents[value.data[1]]))) if graph.tile(number) else value
        for number, value in enumerate(graph.values)
    )
    return replace(function, graph=replace(graph, values=values))
