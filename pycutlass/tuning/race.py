"""Candidates measured in turns until it is clear which is the fastest.

Nothing here knows what a GPU is: whoever compiles and whoever measures are given.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pycutlass.timing import Timing
from pycutlass.tuning.measuring import Artifacts, FailedError, Measurer
from pycutlass.tuning.options import TuningOptions
from pycutlass.tuning.tunable import AnyCandidate
from pycutlass.tuning.vendor import Vendor

__all__ = ["Compiling", "Contestant", "Race", "interval_of"]

_HOPELESS_AT_ONCE = 1.5  # times the best median, after a single visit: clocks vary by less
_Z = 1.96  # standard deviations on either side, for 95 % confidence
_IDLE_SECONDS = 0.2  # to wait for a compiler where there is nothing to measure


class Compiling(Protocol):
    """Whoever compiles candidates."""

    def ready(self, seconds: float) -> list[tuple[int, Artifacts | str]]:
        """Return what is done since the last time, waiting so long for it: kernels by number, or why there are none."""

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""

    def close(self) -> None:
        """Stop compiling."""


@dataclass
class Contestant:
    """A candidate in a race, and what is known of it.

    Attributes
    ----------
    candidate : Candidate, Conv2dCandidate or GroupCandidate
        The kernel with the options of its launch.
    kind : GemmKind or Conv2dKind
        That it was made for.
    predicted : float
        Microseconds, by the model.
    status : str
        ``"waiting"`` for a compiler, ``"racing"``, ``"ok"`` once it has stopped with a time; or, as the database calls
        it, ``"wrong"``, ``"failed"`` or ``"timeout"``.
    reason : str
        Why there is no time.
    times : list of float
        Microseconds of single measurements.
    is_known : bool
        Whether the times are from the database.
    """

    candidate: AnyCandidate
    kind: Any
    predicted: float
    status: str = "waiting"
    reason: str = ""
    times: list[float] = field(default_factory=list)
    is_known: bool = False

    @property
    def timing(self) -> Timing | None:
        """The times that were measured; None where there are none."""
        return Timing(tuple(self.times)) if self.times and self.status in ("racing", "ok") else None

    @property
    def median(self) -> float:
        """Median in microseconds; infinite where nothing was measured."""
        timing = self.timing
        return math.inf if timing is None else timing.median

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds between which the median lies with 95 % confidence, whatever the distribution of times.

        They are order statistics: how many of n measurements lie below the median is binomial.
        """
        return interval_of(self.times)


def interval_of(times: Sequence[float]) -> tuple[float, float]:
    """Return bounds between which the median of measurements lies with 95 % confidence, as `Contestant.interval`."""
    ordered, count = sorted(times), len(times)
    if not count:
        return 0.0, math.inf
    half = _Z * math.sqrt(count) / 2
    below = max(0, math.floor(count / 2 - half))
    above = min(count - 1, math.ceil(count / 2 + half))
    return ordered[below], ordered[above]


class Race:
    """Measures what compiles, in turns, and lets go of what is too slow.

    Parameters
    ----------
    contestants : sequence of Contestant
        In the order of the prediction; their fields are filled in.
    compiling : Compiling
        Gives their kernels.
    measurer : Measurer
        Measures them.
    options : TuningOptions
        How.
    deadline : float
        On `time.monotonic`.
    keep : function
        Called with a contestant whenever what is known of it is worth keeping.
    show : function
        Called with the contestants as they get on.
    vendor : Vendor, optional
        The vendor's library, which is measured in the same rounds; its fields are filled in.
    """

    def __init__(
        self,
        contestants: Sequence[Contestant],
        compiling: Compiling,
        measurer: Measurer,
        options: TuningOptions,
        deadline: float,
        keep: Callable[[Contestant], None],
        show: Callable[[Sequence[Contestant]], None] = lambda contestants: None,
        vendor: Vendor | None = None,
    ) -> None:
        self._all, self._compiling, self._measurer, self._options = contestants, compiling, measurer, options
        self._deadline, self._keep, self._show = deadline, keep, show
        self._random = random.Random(options.seed)
        self._vendor, self._is_vendor_out = vendor, False
        if vendor is not None:
            vendor.reason = "no candidate was measured, in whose rounds it would have been"

    def run(self) -> None:
        """Race until one is left, all have been measured often enough, or time is up."""
        try:
            while self._left > 0 and not self._is_decided():
                self._take_in()
                self._make_round()
                self._show(self._all)
        finally:
            for each in self._all:
                if each.status == "racing":
                    self._stop(each)

    @property
    def _left(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def _racing(self) -> list[Contestant]:
        return [each for each in self._all if each.status == "racing"]

    def _is_decided(self) -> bool:
        racing = self._racing
        if self._options.find_first_valid and any(len(each.times) >= self._options.least_rounds for each in racing):
            return True
        if not self._compiling.is_done:
            return False
        enough = self._options.least_rounds if len(racing) == 1 and self._has_rival() else self._options.most_rounds
        return all(len(each.times) >= enough for each in racing)

    def _has_rival(self) -> bool:
        """Whether another one has a time, so that the last one is not measured for its own sake."""
        return any(each.status == "ok" for each in self._all)

    def _take_in(self) -> None:
        """Let those join that have compiled; wait for one where nothing else is to be done."""
        wait = 0.0 if self._racing else min(_IDLE_SECONDS, max(self._left, 0.0))
        for number, made in self._compiling.ready(wait):
            each = self._all[number]
            if isinstance(made, str):
                each.status, each.reason = "failed", made  # not kept: what a compiler lacked may be there next time
                continue
            if self._left <= 0:
                return
            try:
                self._measurer.check(number, each.candidate, made)
                each.status = "racing"
            except FailedError as error:
                self._fail(each, error.status, error.reason)

    def _make_round(self) -> None:
        """Measure all that race, in an order of its own each time, since clocks change meanwhile."""
        turns: list[int | Vendor] = [number for number, each in enumerate(self._all) if each.status == "racing"]
        if self._options.find_first_valid:
            turns = turns[:1]
        if turns and self._vendor is not None and not self._is_vendor_out:
            turns.append(self._vendor)
        self._random.shuffle(turns)
        for number in turns:
            if self._left <= 0:
                return
            if isinstance(number, Vendor):
                self._measure_vendor(number)
                continue
            each = self._all[number]
            had_enough = len(each.times) >= self._options.least_rounds
            try:
                each.times += self._measurer.measure(number, max(self._left, 1.0))
            except FailedError as error:
                self._fail(each, error.status, error.reason)
                continue
            if not had_enough and len(each.times) >= self._options.least_rounds:
                self._keep(each)  # what ends this process now does not take it along
        self._let_go()

    def _measure_vendor(self, vendor: Vendor) -> None:
        try:
            vendor.times += self._measurer.measure_vendor(max(self._left, 1.0))
            vendor.reason = ""
        except FailedError as error:
            self._is_vendor_out, vendor.reason = True, error.reason
            vendor.times.clear()

    def _let_go(self) -> None:
        """Stop measuring what cannot be the fastest any more."""
        racing = self._racing
        best = min((each for each in self._all if each.times and each.median < math.inf),
                   key=lambda each: each.median, default=None)  # fmt: skip
        if best is None:
            return
        for each in racing:
            if each is best or not each.times:
                continue
            judged = len(each.times) >= self._options.least_rounds and len(best.times) >= self._options.least_rounds
            if each.median > _HOPELESS_AT_ONCE * best.median or (judged and each.interval[0] > best.interval[1]):
                self._stop(each)

    def _stop(self, each: Contestant) -> None:
        each.status = "ok" if each.times else "waiting"
        if each.times:
            self._keep(each)

    def _fail(self, each: Contestant, status: str, reason: str) -> None:
        each.status, each.reason = status, reason
        each.times.clear()
        self._keep(each)
