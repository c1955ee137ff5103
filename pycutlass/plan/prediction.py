"""What the model says of each candidate, and of what it says it."""

from __future__ import annotations

from dataclasses import dataclass

from pycutlass.plan.features import Features, Floats
from pycutlass.plan.traffic import Tiling

__all__ = ["Prediction", "Seen"]


@dataclass(frozen=True)
class Prediction:
    """What the model says of each candidate: arrays in their order.

    Attributes
    ----------
    microseconds : array
        Of the whole launch, and of the reduction behind it where there is one.
    waves : array
        How many tiles a multiprocessor computes one after the other.
    multiplying, memory, power, adding : array
        Terms of the time, in microseconds: tiles in waves, operands from memory, tensor cores at the clock that power
        allows, and what adds up slices of K.
    """

    microseconds: Floats
    waves: Floats
    multiplying: Floats
    memory: Floats
    power: Floats
    adding: Floats

    def note(self, place: int) -> str:
        """Return what limits a candidate."""
        terms = {
            "multiplying tile by tile": self.multiplying[place],
            "reading and writing memory": self.memory[place],
            "the clock that power allows": self.power[place],
            "adding up slices of K": self.adding[place],
        }
        return f"limited by {max(terms, key=lambda name: float(terms[name]))}"


@dataclass(frozen=True)
class Seen:
    """What a prediction is of.

    Attributes
    ----------
    features : Features
        Of the candidates.
    tiling : Tiling
        The tiles of the problem.
    k_tiles, waves, start : array
        K in tiles, tiles as shares of what is computed at once, and microseconds before the first tile.
    moved : tuple of 3 float
        Bytes of A, B and D of one product.
    """

    features: Features
    tiling: Tiling
    k_tiles: Floats
    waves: Floats
    start: Floats
    moved: tuple[float, float, float]
