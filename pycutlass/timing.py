"""How long work takes on a GPU, between two events of a stream, and not how long the host takes to launch it.

The stream stands still until the host has queued a batch of calls (`_core.Gate`), so that the time between the events
is that of the device. What is compared is measured in turns, since clocks and other users of a GPU change meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pycutlass import _core, deferred_release, device
from pycutlass.allocators import chosen
from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, attribute, real
from pycutlass.memory import DeviceBuffer

__all__ = ["DeviceTimer", "Timing"]

_LEAST_FLUSHED_BYTES = 1 << 28  # what triton.testing.do_bench zeroes
_MOST_CALLS = 200  # between two events: the driver's queue holds about a thousand launches
_QUEUED_AT_ONCE = 32  # batches: with hundreds of slow works the driver's queue is full before the first has ended
_PATIENCE = 2.0  # seconds in which the host queues a batch; then the stream goes on by itself
_UNLOADING = 0.5  # seconds for kernels to be unloaded that nobody uses any more
_ATTEMPTS = 3  # to queue one call: a host that is short of processors or memory may stand still for seconds

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """What was measured of some work: microseconds of one run, round by round.

    Examples
    --------
    >>> from pycutlass.timing import Timing
    >>> timing = Timing((12.0, 11.0, 19.0))
    >>> timing.median, timing.low, timing.high
    (12.0, 11.2, 17.6)
    >>> print(timing)
    12.00 us (11.20 - 17.60, 3 rounds)
    """

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median in microseconds."""
        return self._percentile(0.5)

    @property
    def low(self) -> float:
        """The 10th percentile in microseconds."""
        return self._percentile(0.1)

    @property
    def high(self) -> float:
        """The 90th percentile in microseconds."""
        return self._percentile(0.9)

    def _percentile(self, share: float) -> float:
        ordered = sorted(self.times)
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        return round(ordered[below] + (place - below) * (ordered[above] - ordered[below]), 9)

    def __str__(self) -> str:
        return f"{self.median:.2f} us ({self.low:.2f} - {self.high:.2f}, {len(self.times)} rounds)"


@public
class DeviceTimer:
    """Measures work on one stream of a GPU.

    Each round makes a batch of calls between two events, or with `cold_l2` a single call behind something that empties
    the L2 cache. The stream waits until all of a batch is queued: what is measured begins with the first kernel and
    ends with the last, gaps between kernels included, and the host does not count. Work that waits for the GPU itself
    is refused, but with ``queued=False``.

    Parameters
    ----------
    stream : int or stream object, optional
        Where the work goes. Default: the current stream of torch where it has been imported, else of cupy, else the
        legacy default stream; asked for at each measurement.
    device : int, optional
        The GPU. Default: that of `stream` where it says, else the current one.
    cold_l2 : bool
        Whether each call finds an empty L2 cache.
    seconds : float
        How long to measure at least, all that is compared together.
    least_rounds : int
        How many rounds to make at least.
    warmup : int
        Calls of each before anything is measured.
    batch_seconds : float
        How long the calls between two events are to take together; no more than 200 are made. With `cold_l2` it is one.
    queued : bool
        Whether the stream stands still until a batch is queued. False measures work as it runs: it begins on an empty
        stream, and where the host is slower than the GPU that counts.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Numbers out of range or of another kind, or a stream of another GPU.
    DeviceError
        There is no GPU.

    Examples
    --------
    >>> import pycutlass
    >>> def median_us(operation, arguments):
    ...     return pycutlass.DeviceTimer(cold_l2=True).time(lambda: operation.run(arguments)).median
    """

    def __init__(
        self,
        stream: Any = None,
        *,
        device: int | None = None,
        cold_l2: bool = False,
        seconds: float = 0.2,
        least_rounds: int = 5,
        warmup: int = 2,
        batch_seconds: float = 0.01,
        queued: bool = True,
    ) -> None:
        self._given = stream
        self._ordinal = _ordinal(device, stream)
        self.cold_l2, self.queued = _flag("cold_l2", cold_l2), _flag("queued", queued)
        self.seconds = _number("seconds", seconds)
        self.batch_seconds = _number("batch_seconds", batch_seconds)
        self.least_rounds, self.warmup = _count("least_rounds", least_rounds, 1), _count("warmup", warmup, 0)
        self._flushed: DeviceBuffer | None = None
        self._stream()  # refuses a stream of another GPU now

    def time(self, work: Work) -> Timing:
        """Return the time of `work`, a function without arguments that launches on the timer's stream.

        Raises
        ------
        ArgumentError
            The stream is being captured, or `work` waits for the GPU, or takes the host longer than 2 s.
        ArgumentTypeError
            `work` cannot be called.
        PoolError
            With `cold_l2`: the memory pool cannot hold what empties the cache, twice its size and at least 256 MiB.
        """
        return self.compare({"work": work})["work"]

    def compare(self, works: Mapping[str, Work]) -> dict[str, Timing]:
        """Return the time of each of `works`, measured in turns: in each round all of them, in an order that is drawn.

        Raises
        ------
        ArgumentError, ArgumentTypeError, PoolError
            As for `time`; the message names the work.
        """
        contestants = [_Contestant(name, work, self.queued) for name, work in _checked(works).items()]
        stream = self._stream()
        if stream.is_capturing():
            raise ArgumentError("the timer's stream is being captured into a graph: measure before, or its replay")
        for each in contestants:
            for _ in range(self.warmup):
                each.work()
        flush = self._flush(stream) if self.cold_l2 else None
        stream.synchronize()
        with _without_collector():
            if flush is None:
                for each in contestants:
                    each.find_calls(stream, self.batch_seconds)
            self._make_rounds(stream, contestants, flush)
        return {each.name: Timing(tuple(each.times)) for each in contestants}

    def _make_rounds(self, stream: _core.Stream, contestants: list[_Contestant], flush: Work | None) -> None:
        started = time.perf_counter()
        for number, order in enumerate(_orders(contestants)):
            if number >= self.least_rounds and time.perf_counter() - started >= self.seconds:
                return
            for first in range(0, len(order), _QUEUED_AT_ONCE):
                marks = [(each, each.run(stream, flush)) for each in order[first : first + _QUEUED_AT_ONCE]]
                stream.synchronize()
                for each, batch in marks:
                    each.times.append(batch.microseconds())

    def _stream(self) -> _core.Stream:
        """Return the stream that is measured now."""
        if self._given is not None:
            return _core.named_stream(self._given, self._ordinal)
        library = device.with_streams()
        return _core.Stream(self._ordinal, device.current_stream_source(library, self._ordinal)())

    def _flush(self, stream: _core.Stream) -> Work:
        """Return what empties the cache: once so much else has been written, nothing of before is in there."""
        if self._flushed is None:
            size = max(_LEAST_FLUSHED_BYTES, 2 * _core.device_attribute(self._ordinal, "l2_cache_size"))
            self._flushed = DeviceBuffer(self._ordinal, size, stream, chosen.get().allocator)
        buffer = self._flushed
        buffer.stream = stream
        return lambda: _core.fill(buffer.pointer, 0, buffer.size, stream)


@dataclass(frozen=True)
class _Batch:
    """Calls between two events."""

    begin: _core.Event
    end: _core.Event
    calls: int

    def microseconds(self) -> float:
        """Return the time of one call, once all have run."""
        return 1000 * self.end.since(self.begin) / self.calls


class _Contestant:
    """One of what is compared, and how many calls of it make a batch."""

    def __init__(self, name: str, work: Work, queued: bool) -> None:
        self.name, self.work, self._queued = name, work, queued
        self.calls = 1
        self.times: list[float] = []

    def find_calls(self, stream: _core.Stream, batch_seconds: float) -> None:
        """Find how many calls last about as long as a batch is to last."""
        self.calls = 3
        batch = self.run(stream)
        stream.synchronize()
        one = max(batch.microseconds() / 1e6, 1e-7)
        self.calls = max(1, min(_MOST_CALLS, round(batch_seconds / one)))

    def run(self, stream: _core.Stream, flush: Work | None = None) -> _Batch:
        """Make a batch of calls; where it is queued before any of it runs, one that the driver's queue holds."""
        if not self._queued:
            stream.synchronize()
            return self._batch(stream, flush)
        attempts = 0
        while attempts < _ATTEMPTS:
            gate = _core.Gate(stream, _PATIENCE)
            try:
                batch = self._batch(stream, flush)
            finally:
                in_time = gate.open()
            if in_time:
                return batch
            attempts += self.calls == 1
            stream.synchronize()
            self.calls = max(1, self.calls // 8)
        raise ArgumentError(
            f"{self.name} cannot be timed: the stream waits until one call of it is queued, and the call has not "
            f"returned within {_PATIENCE:g} s. Leave out what waits for the GPU, as sync, synchronize, item and copies "
            f"to the host do, or pass queued=False to measure that as well"
        )

    def _batch(self, stream: _core.Stream, flush: Work | None) -> _Batch:
        if flush is not None:
            flush()
        begin = stream.mark()
        for _ in range(self.calls):
            self.work()
        return _Batch(begin, stream.mark(), self.calls)


def _orders(contestants: list[_Contestant]) -> Iterator[list[_Contestant]]:
    """Yield the order of each round: one that is drawn, then the same in reverse.

    Behind work that takes much power a GPU is slower for a while. With the same neighbours in all rounds that would
    count for or against what is compared.
    """
    draws = random.Random(0)
    while True:
        order = draws.sample(contestants, len(contestants))
        yield order
        yield order[::-1]


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python's garbage collector from stopping the host while something is queued.

    Kernels that it has collected are unloaded first: their thread would wait for the stream, which waits for the host,
    and the host may wait for what that thread holds of the driver.
    """
    enabled = gc.isenabled()
    gc.collect()
    deferred_release.wait(_UNLOADING)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _ordinal(given: int | None, stream: Any) -> int:
    """Return the GPU that is meant, which must be there."""
    device.require()
    if stream is not None:
        _core.stream_handle(stream)  # which refuses what is none
    if given is None:
        says = attribute(stream, "device_index")  # of torch
        says = attribute(stream, "device_id") if says is None else says  # of cupy
        ordinal = as_int(says) if says is not None else None
        return device.current() if ordinal is None or ordinal < 0 else device.describe(ordinal).ordinal
    return device.describe(device.checked_ordinal(given)).ordinal


def _checked(works: Any) -> Mapping[str, Work]:
    if not isinstance(works, Mapping) or not works:
        raise ArgumentTypeError(f"what is compared must be a dict of functions by name, got {shown(works)}")
    for name, work in works.items():
        if not callable(work):
            raise ArgumentTypeError(f"{name} must be a function without arguments, got {shown(work)}")
    return works


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, got {shown(value)}")
    return value


def _number(name: str, value: Any) -> float:
    number = None if isinstance(value, bool) else real(value, name)
    if number is None:
        raise ArgumentTypeError(f"{name} must be a number of seconds, got {shown(value)}")
    if not 0 <= number < math.inf:
        raise ArgumentError(f"{name} must be a number of seconds of at least 0, got {number}")
    return number


def _count(name: str, value: Any, least: int) -> int:
    count = as_int(value, name)
    if count is None:
        raise ArgumentTypeError(f"{name} must be an integer, got {shown(value)}")
    if count < least:
        raise ArgumentError(f"{name} must be at least {least}, got {count}")
    return count
