"""Where boxes stand: in layers, each below all that it reads, and lines between them pass beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pycutlass.pytorch.explained.picture import Box

__all__ = ["Layout", "Place", "laid_out"]

WIDTH, HEIGHT = 250, 46  # of a box
_GAP, _STEP = 26, 84  # between boxes of a layer, and from one layer to the next
_BEND = 18  # width of a line that passes a layer
_SWEEPS = 8


@dataclass
class Place:
    """A box, or a line that passes a layer, in its layer.

    Attributes
    ----------
    box : Box or None
        None of a line.
    layer : int
        The first has 0.
    above, below : list of Place
        What it is joined to in the layers beside its own.
    x : float
        Its middle.
    """

    box: Box | None
    layer: int
    above: list[Place] = field(default_factory=list)
    below: list[Place] = field(default_factory=list)
    x: float = 0.0

    @property
    def width(self) -> int:
        """How much room it takes."""
        return _BEND if self.box is None else WIDTH

    @property
    def y(self) -> int:
        """The upper edge of its layer."""
        return self.layer * _STEP


@dataclass(frozen=True)
class Layout:
    """All places.

    Attributes
    ----------
    layers : list of list of Place
        From above, each from left to right.
    width, height : float
        Of the drawing.
    """

    layers: list[list[Place]]
    width: float
    height: float


def laid_out(boxes: Sequence[Box]) -> Layout:
    """Return where boxes stand, which come in an order in which each stands behind what it reads.

    The method is that of Sugiyama, Tagawa and Toda (1981): layers by the longest path, an order by the mean of
    neighbours, and places as near to these as widths allow.
    """
    layers = _layers(boxes)
    for sweep in range(_SWEEPS):
        _sort(layers, downwards=sweep % 2 == 0)
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        _move(layers, downwards=sweep % 2 == 0)
    places = [place for layer in layers for place in layer]
    left = min((each.x - each.width / 2 for each in places), default=0.0)
    for each in places:
        each.x -= left
    width = max((each.x + each.width / 2 for each in places), default=0.0)
    return Layout(layers, width, max(len(layers) - 1, 0) * _STEP + HEIGHT)


def _layers(boxes: Sequence[Box]) -> list[list[Place]]:
    """Return places by layers, with one for each layer that a line passes."""
    made: dict[str, Place] = {}
    layers: list[list[Place]] = []

    def put(box: Box | None, layer: int) -> Place:
        while len(layers) <= layer:
            layers.append([])
        layers[layer].append(place := Place(box, layer))
        return place

    for box in boxes:
        layer = 1 + max((made[each].layer for each in box.sources), default=-1)
        place = made[box.name] = put(box, layer)
        for source in box.sources:
            above = made[source]
            for between in range(above.layer + 1, layer):
                bend = put(None, between)
                _join(above, bend)
                above = bend
            _join(above, place)
    return layers


def _join(above: Place, below: Place) -> None:
    above.below.append(below)
    below.above.append(above)


def _sort(layers: list[list[Place]], *, downwards: bool) -> None:
    """Sort each layer by the mean places of what it is joined to in the layer before."""
    for layer in layers[1:] if downwards else layers[-2::-1]:
        beside = {id(place): at for each in layers for at, place in enumerate(each)}
        means = {}
        for at, place in enumerate(layer):
            joined = place.above if downwards else place.below
            means[id(place)] = sum(beside[id(each)] for each in joined) / len(joined) if joined else at
        layer.sort(key=lambda place: means[id(place)])


def _move(layers: list[list[Place]], *, downwards: bool) -> None:
    """Move each layer to the mean places of what it is joined to."""
    for layer in layers if downwards else layers[::-1]:
        wanted = []
        for place in layer:
            joined = place.above + place.below
            wanted.append(sum(each.x for each in joined) / len(joined) if joined else place.x)
        _spread(layer, wanted)


def _spread(layer: list[Place], wanted: list[float]) -> None:
    """Put a layer's places where they are wanted, in their order, without overlaps, and as a whole in the middle."""
    at = float("-inf")
    for place, middle in zip(layer, wanted, strict=True):
        place.x = max(middle, at + place.width / 2)
        at = place.x + place.width / 2 + _GAP
    shift = sum(place.x - middle for place, middle in zip(layer, wanted, strict=True)) / max(len(layer), 1)
    for place in layer:
        place.x -= shift
