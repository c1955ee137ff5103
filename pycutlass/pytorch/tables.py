"""Tables of regions as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pycutlass.pytorch.regions.region import Region

__all__ = ["computed", "followers", "lines_of", "operators"]

_NUMBER = re.compile(r"_\d+$")
_NORM = re.compile(r"^(_native_batch_norm_legit_no_training|native_batch_norm|cudnn_batch_norm)(?=_\d+$|$)")


def followers(region: Region) -> list[str]:
    """Return what a region computes behind its product, without nodes that only take one of several results."""
    return [name for name in region.fused if not name.startswith("getitem")]


def computed(region: Region) -> str:
    """Return what a region computes, in a line."""
    return " + ".join(map(_short, (region.product, *followers(region))))


def operators(region: Region) -> str:
    """Return what a region computes, without the numbers that tell nodes of a graph apart."""
    return " + ".join(_NUMBER.sub("", _short(name)) for name in (region.product, *followers(region)))


def _short(name: str) -> str:
    """Return the name of a node, of a batch norm as people call it."""
    return _NORM.sub("batch_norm", name)


def lines_of(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, whose columns are as wide as their widest cell."""
    widths = [max(len(row[at]) for row in (titles, *rows)) for at in range(len(titles))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (titles, *rows)]
