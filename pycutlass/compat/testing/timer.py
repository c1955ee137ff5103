"""Time between two points of a stream, as the original's scripts take it; `pycutlass.DeviceTimer` measures better."""

from __future__ import annotations

import time
from typing import Any

from pycutlass import _core, device
from pycutlass.errors import ArgumentError

__all__ = ["GpuTimer"]


class GpuTimer:
    """Milliseconds between `start` and `stop` on a stream; without a GPU, of the processor's clock.

    Examples
    --------
    >>> from pycutlass.test import GpuTimer
    >>> timer = GpuTimer()
    >>> timer.start()
    >>> timer.stop_and_wait()
    >>> timer.duration(iterations=10) >= 0
    True
    """

    def __init__(self) -> None:
        self._ordinal = device.current() if device.available() else None
        self._marks: list[Any] = [None, None]

    def start(self, stream: Any = 0) -> None:
        """Mark the beginning on `stream`."""
        self._mark(0, stream)

    def stop(self, stream: Any = 0) -> None:
        """Mark the end on `stream`."""
        self._mark(1, stream)

    def stop_and_wait(self, stream: Any = 0) -> None:
        """Mark the end on `stream`, and wait until it is reached."""
        self.stop(stream)
        if self._ordinal is not None:
            self._marks[1].synchronize()

    def duration(self, iterations: int = 1) -> float:
        """Return the milliseconds between both marks, divided by `iterations`.

        Raises
        ------
        ArgumentError
            The timer was not started and stopped.
        """
        begin, end = self._marks
        if begin is None or end is None:
            raise ArgumentError("the timer has no duration yet: start it, then stop it")
        elapsed = 1000 * (end - begin) if self._ordinal is None else end.since(begin)
        return float(elapsed) / iterations

    def _mark(self, which: int, stream: Any) -> None:
        if self._ordinal is None:
            self._marks[which] = time.perf_counter()
        else:
            self._marks[which] = _core.named_stream(stream, self._ordinal).mark()
