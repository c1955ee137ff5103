"""Tables of regions as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pycutlass.pytorch.regions.region import Region, computed, followers, short_name

__all__ = ["computed", "followers", "lines_of", "operators"]

_NUMBER = re.compile(r"_\d+$")


def operators(region: Region) -> str:
    """Return what a region computes, without the numbers that tell nodes of a graph apart."""
    return " + ".join(_NUMBER.sub("", short_name(name)) for name in (region.product, *followers(region)))


def lines_of(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, whose columns are as wide as their widest cell."""
    widths = [max(len(row[at]) for row in (titles, *rows)) for at in range(len(titles))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (titles, *rows)]
