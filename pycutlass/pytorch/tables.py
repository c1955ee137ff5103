"""Tables of regions as text."""

from __future__ import annotations

from collections.abc import Sequence

from pycutlass.pytorch.regions.region import Region

__all__ = ["computed", "followers", "lines_of"]


def followers(region: Region) -> list[str]:
    """Return what a region computes behind its product, without nodes that only take one of several results."""
    return [name for name in region.fused if not name.startswith("getitem")]


def computed(region: Region) -> str:
    """Return what a region computes, in a line."""
    return " + ".join((region.product, *followers(region)))


def lines_of(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, whose columns are as wide as their widest cell."""
    widths = [max(len(row[at]) for row in (titles, *rows)) for at in range(len(titles))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (titles, *rows)]
