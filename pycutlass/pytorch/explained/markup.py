"""HTML and SVG as values: whatever is no markup yet is text, and escaped."""

from __future__ import annotations

import html
from typing import Any

__all__ = ["Markup", "joined", "tag"]

_VOID = ("br", "meta")  # elements that have no end


class Markup(str):
    """Text that is HTML or SVG already."""


def tag(name: str, /, *content: Any, **attributes: Any) -> Markup:
    """Return an element with its content and attributes.

    Parameters
    ----------
    name : str
        Of the element.
    *content
        Markup as it is; all else as text. None is left out.
    **attributes
        By name, ``class_`` for ``class`` and ``_`` for ``-``. None is left out.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>" if name in _VOID else f"<{name}{said}>{joined(*content)}</{name}>")


def joined(*content: Any) -> Markup:
    """Return pieces one after the other: markup as it is, all else as text."""
    pieces = (each if isinstance(each, Markup) else html.escape(str(each)) for each in content if each is not None)
    return Markup("".join(pieces))
