"""What the model says of the candidates of one problem, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np

from pycutlass.operation import Support
from pycutlass.plan.features import Bools
from pycutlass.plan.prediction import Prediction

__all__ = ["Predicted", "Ranked"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Kernel = TypeVar("_Kernel", bound=_Named)
_SHOWN = 3  # reasons in a message, of the best candidates


@dataclass(frozen=True)
class Ranked(Generic[_Kernel]):
    """A candidate for a problem, with what the model predicts of it.

    Attributes
    ----------
    candidate : Candidate, Conv2dCandidate or GroupCandidate
        The kernel with the options of its launch.
    microseconds : float
        How long it takes.
    waves : int
        How many tiles a multiprocessor computes one after the other.
    note : str
        What limits it.
    """

    candidate: _Kernel
    microseconds: float
    waves: int
    note: str


@dataclass(frozen=True)
class Predicted(Generic[_Kernel]):
    """What the model says of all candidates of a problem.

    Attributes
    ----------
    candidates : sequence of Candidate, Conv2dCandidate or GroupCandidate
        The kernels, with the options of their launches.
    of_all : Prediction
        How long each takes.
    supports : callable
        Whether a candidate takes the problem: a `Support`.
    is_last : array
        Which candidates come behind all others, however fast they are predicted to be.
    """

    candidates: Sequence[_Kernel]
    of_all: Prediction
    supports: Callable[[_Kernel], Support]
    is_last: Bools

    @cached_property
    def order(self) -> list[int]:
        """The places of candidates, the likely fastest first; of equal ones the first listed."""
        places: list[int] = np.lexsort((self.of_all.microseconds, self.is_last)).tolist()  # by the last key first
        return places

    def supported(self) -> Iterator[int]:
        """Yield the places of those that take the problem, the likely fastest first."""
        for place in self.order:
            if self.supports(self.candidates[place]):
                yield place

    def ranked(self, place: int) -> Ranked[_Kernel]:
        """Return a candidate with what is predicted of it."""
        of_all = self.of_all
        microseconds, waves = float(of_all.microseconds[place]), int(of_all.waves[place])
        return Ranked(self.candidates[place], microseconds, waves, of_all.note(place))

    def refused(self) -> dict[str, list[str]]:
        """Return the names of those that do not take the problem, by the reason, the likely fastest first."""
        reasons: dict[str, list[str]] = {}
        for place in self.order:
            candidate = self.candidates[place]
            answer = self.supports(candidate)
            if not answer:
                reasons.setdefault(answer.reason, []).append(candidate.name)
        return reasons

    def lacking(self) -> str:
        """Return what the likely fastest lack, in words."""
        return "; ".join(f"{names[0]}: {reason}" for reason, names in list(self.refused().items())[:_SHOWN])
