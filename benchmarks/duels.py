"""Many choices against one competitor: the fastest is found first, and then measured anew in turns with that."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.timing import Loop, Summary, alone_times, device_times, median_ratio, summarize

__all__ = ["Duel", "alone_duel", "geometric_mean", "queued_duel"]

_OURS, _THEIRS = "PyCUTLASS", "theirs"


@dataclass(frozen=True)
class Duel:
    """The fastest choice, and the microseconds of both sides, round by round."""

    best: str
    screened: Mapping[str, float]
    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """Our speed in units of theirs."""
        return median_ratio(self.ours, self.theirs)[0]

    @property
    def rounds(self) -> Summary:
        """The same round by round."""
        return median_ratio(self.ours, self.theirs)[1]

    @classmethod
    def of(cls, samples: Mapping[str, Any]) -> Duel:
        """Return the duel with these `samples`."""
        return cls(samples["best"], samples["screened us"], samples[_OURS], samples[_THEIRS])

    @property
    def samples(self) -> dict[str, object]:
        """All that was measured."""
        return {"screened us": dict(self.screened), "best": self.best, _OURS: self.ours, _THEIRS: self.theirs}


def queued_duel(choices: Mapping[str, Loop], theirs: Loop, seconds: float) -> Duel:
    """Return the duel of calls that are queued back to back."""
    return _duel(choices, theirs, lambda loops: device_times(loops, seconds=seconds, batch_seconds=0.002))


def alone_duel(choices: Mapping[str, Loop], theirs: Loop, seconds: float) -> Duel:
    """Return the duel of single calls with a cold L2 cache."""

    def measured(loops: Mapping[str, Loop]) -> dict[str, list[float]]:
        return alone_times({name: functools.partial(loop, 1) for name, loop in loops.items()}, seconds=seconds)

    return _duel(choices, theirs, measured)


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def _duel(
    choices: Mapping[str, Loop], theirs: Loop, measured: Callable[[Mapping[str, Loop]], dict[str, list[float]]]
) -> Duel:
    screened = {name: summarize(times).median for name, times in measured(choices).items()}
    best = min(screened, key=screened.__getitem__)
    final = measured({_OURS: choices[best], _THEIRS: theirs})
    return Duel(best, screened, final[_OURS], final[_THEIRS])
