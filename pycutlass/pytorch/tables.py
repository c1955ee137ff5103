"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["lines_of"]


def lines_of(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, whose columns are as wide as their widest cell."""
    widths = [max(len(row[at]) for row in (titles, *rows)) for at in range(len(titles))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (titles, *rows)]
