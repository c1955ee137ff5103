"""Measuring: host time per call, device time per call, and what is said about a series of either.

What is measured is a `Loop`, a function that makes a given number of calls, so that the cost of measuring does not
count with each call. Competitors are always measured in turns within one run, since clocks and other users of the
machine change between runs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pycutlass import DeviceTimer

__all__ = [
    "Loop",
    "Summary",
    "alone_times",
    "both_ways",
    "cycling",
    "device_times",
    "host_times",
    "median_ratio",
    "repeating",
    "rotated",
    "running_times",
    "summarize",
]

Loop = Callable[[int], None]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Summary:
    """A series of measurements: median, 10th and 90th percentile, and how many there are."""

    median: float
    low: float
    high: float
    count: int

    def spread(self, digits: int = 2) -> str:
        """Return the 10th and the 90th percentile as text."""
        return f"{self.low:.{digits}f} - {self.high:.{digits}f}"


def summarize(values: Sequence[float]) -> Summary:
    """Return what is said about a series; it must have at least one value."""
    if not values:
        raise ValueError("there is nothing to summarize")
    low, median, high = np.percentile(np.asarray(values, dtype=np.float64), (10, 50, 90))
    return Summary(float(median), float(low), float(high), len(values))


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, Summary]:
    """Return how many times as fast as `theirs` `ours` is: of the medians, and round by round."""
    ratio = summarize(theirs).median / summarize(ours).median
    return ratio, summarize([other / own for own, other in zip(ours, theirs, strict=True)])


def rotated(items: Sequence[_T], start: int) -> list[_T]:
    """Return `items` beginning with number `start`, so that nobody is always first."""
    begin = start % len(items)
    return [*items[begin:], *items[:begin]]


def repeating(call: Callable[..., object], *arguments: object) -> Loop:
    """Return a loop over ``call(*arguments)``."""

    def loop(calls: int) -> None:
        for _ in range(calls):
            call(*arguments)

    return loop


def cycling(calls: Sequence[Callable[[], object]]) -> Loop:
    """Return a loop that makes `calls` in turn, going on where it stopped: for inputs that must not stay in a cache."""
    position = 0

    def loop(count: int) -> None:
        nonlocal position
        for _ in range(count):
            calls[position]()
            position = (position + 1) % len(calls)

    return loop


def host_times(
    loops: Mapping[str, Loop], wait: Callable[[], None], *, calls: int = 200, rounds: int = 151
) -> dict[str, list[float]]:
    """Return host microseconds per call, round by round.

    `wait` waits for the device: every loop begins with an empty queue, and `calls` do not fill it.
    """
    names = list(loops)
    times: dict[str, list[float]] = {name: [] for name in names}
    for loop in loops.values():
        loop(calls)
    with _no_collection():
        for number in range(rounds):
            for name in rotated(names, number):
                loop = loops[name]
                wait()
                start = time.perf_counter_ns()
                loop(calls)
                times[name].append((time.perf_counter_ns() - start) / calls / 1000)
    wait()
    return times


def device_times(
    loops: Mapping[str, Loop], *, seconds: float = 1.0, batch_seconds: float = 0.01, least_rounds: int = 5
) -> dict[str, list[float]]:
    """Return device microseconds per call, round by round, measured on torch's current stream.

    In each round every competitor makes a short batch of calls, all queued before the first of them runs, so the time
    is that of the kernels and not that of launching them.
    """
    timer = DeviceTimer(seconds=seconds, batch_seconds=batch_seconds, least_rounds=least_rounds)
    return _times(timer, {name: functools.partial(loop, 1) for name, loop in loops.items()})


def alone_times(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 1.0, least_rounds: int = 5
) -> dict[str, list[float]]:
    """Return device microseconds of single calls with a cold L2 cache, round by round, as do_bench of Triton does.

    In each round every competitor makes one call, between two events of its own behind what empties the cache. What
    counts is the call from its launch on the device to its drain, and not the host.
    """
    return _times(DeviceTimer(cold_l2=True, seconds=seconds, least_rounds=least_rounds, warmup=1), calls)


def both_ways(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, dict[str, float]]:
    """Return the median microseconds of each call, ``alone`` with a cold L2 cache and ``queued`` back to back."""
    alone = alone_times(calls, seconds=seconds)
    loops = {name: repeating(call) for name, call in calls.items()}
    # In short batches, so that all find the clocks that they come to together.
    queued = device_times(loops, seconds=seconds, batch_seconds=0.002)
    return {
        "alone": {name: summarize(times).median for name, times in alone.items()},
        "queued": {name: summarize(times).median for name, times in queued.items()},
    }


def running_times(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Return microseconds from the first to the last kernel of a call, round by round, host and all."""
    return _times(DeviceTimer(seconds=seconds, queued=False, batch_seconds=0, warmup=1), calls)


def _times(timer: DeviceTimer, works: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    return {name: list(timing.times) for name, timing in timer.compare(works).items()}


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
