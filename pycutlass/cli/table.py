"""Tables and sizes as text: whole lines for a pipe, folded at spaces and separators for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["UNITS", "folded", "size", "table"]

#: Bytes of each unit of a size, in capitals.
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

_GAP = "  "
_NARROWEST = 16  # a column is not made narrower than that
_PIECES = re.compile(r"[^/,:;=_.\-]*[/,:;=_.\-]+|[^/,:;=_.\-]+")  # of a long word, each with the separator that ends it


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return the lines of a table; none is longer than `width`, if there is one and it is not too small.

    Parameters
    ----------
    titles : sequence of str
        One for each column; all of them empty for a table without titles.
    rows : sequence of sequences of str
        The cells, which may have lines of their own.
    width : int or None
        Columns of the terminal.
    """
    rows = [titles, *rows] if any(titles) else rows
    widths = [max((len(line) for row in rows for line in row[column].splitlines()), default=0)
              for column in range(len(titles))]  # fmt: skip
    while width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    lines: list[str] = []
    for row in rows:
        cells = [folded(cell, most) for cell, most in zip(row, widths, strict=True)]
        for number in range(max(map(len, cells))):
            parts = (cell[number] if number < len(cell) else "" for cell in cells)
            lines.append(_GAP.join(part.ljust(most) for part, most in zip(parts, widths, strict=True)).rstrip())
    return lines


def folded(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width`: broken at spaces, long words behind separators, and else anywhere."""
    lines = []
    for line in text.splitlines():
        current = ""
        for word in line.split(" "):
            if len(current) + 1 + len(word) <= width or not current:
                current = f"{current} {word}" if current else word
            elif len(word) <= width:
                lines.append(current)
                current = word
            else:
                current = f"{current} {word}"
            while len(current) > width:
                whole = _beginning(current, width)
                lines.append(current[:whole].rstrip())
                current = current[whole:].lstrip()
        lines.append(current)
    return lines or [""]


def size(count: int) -> str:
    """Return `count` bytes for people."""
    if count < 1024:
        return f"{count} B"
    unit = next((unit for unit in ("MiB", "KiB") if count >= UNITS[unit.upper()]), "KiB")
    return f"{count / UNITS[unit.upper()]:.1f} {unit}"


def _beginning(text: str, width: int) -> int:
    """Return how much of `text` one line takes."""
    taken = 0
    for piece in _PIECES.finditer(text):
        if piece.end() > width:
            break
        taken = piece.end()
    space = text.rfind(" ", 0, width + 1)
    return max(taken, space) if max(taken, space) > 0 else width
