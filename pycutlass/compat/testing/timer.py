"""Time between two points of a stream."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from pycutlass import _core, device
from pycutlass.errors import ArgumentError, DriverError

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
            self._driver("cuEventSynchronize", self._marks[1])

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
        on_host = self._ordinal is None
        elapsed = 1000 * (end - begin) if on_host else self._driver("cuEventElapsedTime", begin, end)
        return float(elapsed) / iterations

    def _mark(self, which: int, stream: Any) -> None:
        if self._ordinal is None:
            self._marks[which] = time.perf_counter()
            return
        if self._marks[which] is None:
            self._marks[which] = self._driver("cuEventCreate", 0)
        self._driver("cuEventRecord", self._marks[which], int(stream))

    def __del__(self) -> None:
        if self.__dict__.get("_ordinal") is None:
            return
        for event in self._marks:
            if event is not None:
                with contextlib.suppress(DriverError):  # of a driver that has ended, and the event with it
                    self._driver("cuEventDestroy", event)

    def _driver(self, function: str, *arguments: Any) -> Any:
        """Call a function of the driver on the timer's GPU; return what it returns beside its code."""
        assert self._ordinal is not None
        from cuda.bindings import driver

        with _core.DeviceScope(self._ordinal):
            code, *rest = getattr(driver, function)(*arguments)
        if code != driver.CUresult.CUDA_SUCCESS:
            raise DriverError(function, int(code), code.name)
        return rest[0] if rest else None
