"""The graph of a partition as SVG, in which each region leads to its description."""

from __future__ import annotations

from collections.abc import Mapping

from pycutlass.pytorch.explained.facts import RegionFacts
from pycutlass.pytorch.explained.layout import HEIGHT, WIDTH, Layout, Place
from pycutlass.pytorch.explained.markup import Markup, joined, tag
from pycutlass.pytorch.explained.picture import Box
from pycutlass.pytorch.tables import operators

__all__ = ["drawn", "time_of"]

_MARGIN = 12
_CHARACTERS = 33  # that a box has room for


def drawn(layout: Layout, regions: Mapping[str, RegionFacts]) -> Markup:
    """Return a layout as SVG."""
    places = [place for layer in layout.layers for place in layer]
    lines = [_line(place, below) for place in places for below in place.below]
    boxes = [_drawn(place.box, place, regions) for place in places if place.box is not None]
    width, height = round(layout.width) + 2 * _MARGIN, round(layout.height) + 2 * _MARGIN
    inside = tag("g", *lines, *boxes, transform=f"translate({_MARGIN} {_MARGIN})")
    box = f"0 0 {width} {height}"
    return tag("svg", inside, viewBox=box, width=width, height=height, role="img", aria_label="Graph of the model")


def time_of(facts: RegionFacts) -> str:
    """Return how long a region takes, and how that is known."""
    if facts.microseconds is None:
        return "no time is known"
    return f"{facts.microseconds:.2f} us {'predicted' if facts.measured is None else 'measured'}"


def _line(above: Place, below: Place) -> Markup:
    """Return a line from the lower edge of a place to the upper edge of another."""
    start, end = above.y + (HEIGHT if above.box is not None else HEIGHT / 2), below.y
    if below.box is None:
        end += HEIGHT // 2
    half = (end - start) / 2
    x, y = round(above.x, 1), round(below.x, 1)
    d = f"M{x} {start:g}C{x} {start + half:g} {y} {end - half:g} {y} {end:g}"
    return tag("path", class_="line", d=d)


def _drawn(box: Box, place: Place, regions: Mapping[str, RegionFacts]) -> Markup:
    facts = regions.get(box.name) if box.kind == "region" else None
    under = box.shape if facts is None else f"{box.name}: {time_of(facts)}"
    title = box.title if facts is None else operators(facts.region)
    said = box.title if not box.reason else f"{box.title}: {box.reason}"
    if facts is not None:
        said = f"{box.name}: {box.title}\n{facts.region.problem}\n{time_of(facts)}"
    kind = f"box {box.kind}" if facts is None else f"box region {facts.region.kind}"
    shape = tag("rect", width=WIDTH, height=HEIGHT, rx=7)
    first = tag("text", _cut(title), x=WIDTH // 2, y=19)
    second = tag("text", _cut(under), x=WIDTH // 2, y=36, class_="under")
    inside = joined(tag("title", said), shape, first, second)
    put = f"translate({place.x - WIDTH / 2:.1f} {place.y})"
    target = {"region": f"#region-{box.name}", "left": f"#left-{box.name}"}.get(box.kind)
    if target is None:
        return tag("g", inside, class_=kind, transform=put)
    return tag("a", tag("g", inside, class_=kind, transform=put), href=target)


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
