"""Measuring: host time per call, device time per call, and what is said about a series of either.

What is measured is a `Loop`, a function that makes a given number of calls, so that the cost of measuring does not
count with each call. Competitors are always measured in turns within one run, since clocks and other users of the
machine change between runs.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = [
    "Loop",
    "Summary",
    "alone_times",
    "cycling",
    "device_times",
    "host_times",
    "median_ratio",
    "repeating",
    "rotated",
    "summarize",
]

Loop = Callable[[int], None]
_T = TypeVar("_T")

_HOST_MICROSECONDS = 20  # more than any of the competitors takes on the host for a launch
_CYCLES_PER_MICROSECOND = 2000  # at the highest clock; at a lower one the device waits longer, which does no harm
_LEAST_FLUSHED_BYTES = 2**28  # what triton.testing.do_bench zeroes


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
    """Return device microseconds per call, round by round, measured with CUDA events on torch's current stream.

    In each round every competitor makes a short batch of calls. The device is kept busy until the whole batch is
    queued, so the time between the events is that of the kernels and not that of launching them.
    """
    import torch

    names = list(loops)
    calls = {name: _batch_size(loops[name], batch_seconds) for name in names}
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
    with _no_collection():
        started = time.perf_counter()
        number = 0
        while number < least_rounds or time.perf_counter() - started < seconds:
            for name in rotated(names, number):
                events[name].append(_batch(loops[name], calls[name]))
            torch.cuda.synchronize()
            number += 1
    return {name: [1000 * start.elapsed_time(end) / calls[name] for start, end in events[name]] for name in names}


def alone_times(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 1.0, least_rounds: int = 5
) -> dict[str, list[float]]:
    """Return device microseconds of single calls with a cold L2 cache, round by round, as do_bench of Triton does.

    In each round every competitor makes one call, between two events of its own. Zeroing a buffer before it empties the
    cache. The device is kept busy until the call is queued, so what counts is the call from its launch on the device to
    its drain, and not the host.
    """
    import torch

    buffer = _flushing_buffer()
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    events = {name: tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for name in names}
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    with _no_collection():
        started = time.perf_counter()
        number = 0
        while number < least_rounds or time.perf_counter() - started < seconds:
            torch.cuda._sleep(len(names) * _HOST_MICROSECONDS * _CYCLES_PER_MICROSECOND)  # the host gets ahead
            for name in rotated(names, number):
                start, end = events[name]
                buffer.zero_()
                start.record()
                calls[name]()
                end.record()
            torch.cuda.synchronize()  # the queue has room for far more than a round
            for name, (start, end) in events.items():
                times[name].append(1000 * start.elapsed_time(end))
            number += 1
    return times


def _flushing_buffer() -> torch.Tensor:
    """Return memory of at least twice the L2 cache: once it is written, nothing else is in there."""
    import torch

    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return torch.empty(max(_LEAST_FLUSHED_BYTES, 2 * cache), dtype=torch.uint8, device="cuda")


def _batch(loop: Loop, calls: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # The only kernel of torch that lasts as long as one likes.
    torch.cuda._sleep(calls * _HOST_MICROSECONDS * _CYCLES_PER_MICROSECOND)
    start.record()
    loop(calls)
    end.record()
    return start, end


def _batch_size(loop: Loop, batch_seconds: float) -> int:
    """Warm up, and return how many calls last about as long as a batch; no more than the launch queue holds."""
    import torch

    loop(2)
    torch.cuda.synchronize()
    start, end = _batch(loop, 3)
    torch.cuda.synchronize()
    one = max(start.elapsed_time(end) / 3 / 1000, 1e-7)
    return max(2, min(200, round(batch_seconds / one)))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
