"""What is let go of later: tensors whose launch has not ended, memory whose stream is captured, code of the GPU.

A thread of the process's own looks for it, every 10 ms as long as there is anything, so that nothing has to be called
for that. The driver's own means would not do. A host callback (cuLaunchHostFunc) must not call CUDA, as finalisers do,
and would have a stream wait for the interpreter. A thread that waits in the driver for an event could not be ended when
the interpreter ends.

All of this may be called by a finaliser that interrupts anybody anywhere. So nothing here waits for a lock: deques and
`queue.SimpleQueue` are made for that, and the thread is started without `threading`, which has locks of its own.
"""

from __future__ import annotations

import _thread
import atexit
import os
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from pycutlass import _core

__all__ = ["later", "let_go", "release_after", "wait"]

_TICK = 0.01  # seconds


def release_after(owners: tuple[Any, ...], end: _core.Event) -> None:
    """Keep `owners` alive until `end` has happened."""
    _keeper.release_after(owners, end)


def later(attempt: Callable[[], bool]) -> None:
    """Call `attempt` in the thread until it returns True, which says that it has succeeded."""
    _keeper.later(attempt)


def let_go() -> None:
    """Let go now of what has ended, for whoever wants to see it gone."""
    _keeper.let_go(len(_keeper.deferred))


def wait(seconds: float) -> None:
    """Wait until all attempts have succeeded, for so many seconds at most: a captured stream may hold them up."""
    deadline = time.monotonic() + seconds
    while _keeper.attempts and time.monotonic() < deadline:
        time.sleep(_TICK / 10)


class _Keeper:
    """What is kept, and the thread that lets it go."""

    def __init__(self) -> None:
        self.deferred: deque[tuple[_core.Event, tuple[Any, ...]]] = deque()
        self.attempts: deque[Callable[[], bool]] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._running = _thread.allocate_lock()  # held while there is a thread, and when there must not be one any more
        self._ending = False

    def release_after(self, owners: tuple[Any, ...], end: _core.Event) -> None:
        # Who gives up tensors faster than the thread comes round takes part: else they could fill the memory.
        self.let_go(2)
        self.deferred.append((end, owners))
        self._start()

    def later(self, attempt: Callable[[], bool]) -> None:
        self.attempts.append(attempt)
        self._start()

    def let_go(self, most: int) -> None:
        """Let go of what has ended among the `most` entries that were looked at the longest time ago.

        Letting go may run a finaliser that comes here again, and threads may meet here: an entry that is taken out
        belongs to whoever took it, and is put back where it has not ended.
        """
        for _ in range(min(most, len(self.deferred))):
            try:
                entry = self.deferred.popleft()
            except IndexError:
                return
            if not entry[0].done:
                self.deferred.append(entry)

    def stop(self) -> None:
        """End the thread, which must not come back from the driver when the interpreter has ended."""
        self._ending = True
        self._wake.put(None)
        self._running.acquire()

    def _start(self) -> None:
        if self._running.acquire(blocking=False):
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:  # there are no new threads while the interpreter ends
                self._running.release()
        self._wake.put(None)  # behind the entry, which the thread therefore sees

    def _run(self) -> None:
        try:
            _core.relax_capture()
            while not self._ending:
                self._wake.get()
                while (self.deferred or self.attempts) and not self._ending:
                    time.sleep(_TICK)
                    while not self._wake.empty():
                        self._wake.get()
                    self.let_go(len(self.deferred))
                    self._attempt()
        finally:
            self._running.release()
            # An attempt that raises, which the interpreter says, ends this thread, and another goes on with the rest.
            if (self.deferred or self.attempts) and not self._ending:
                self._start()

    def _attempt(self) -> None:
        for _ in range(len(self.attempts)):
            attempt = self.attempts[0]  # in sight of `wait` while it runs; nobody else takes any out
            succeeded = True  # or raises, and is not made again
            try:
                succeeded = attempt()
            finally:
                self.attempts.popleft()
                if not succeeded:
                    self.attempts.append(attempt)


# Of the process: tensors outlive the arguments that gave them up.
_keeper = _Keeper()
_parents: list[_Keeper] = []


def _after_fork() -> None:
    """Have nothing, in a process that cannot use its parent's GPUs: what is kept there is not let go of here."""
    global _keeper
    _parents.append(_keeper)
    _keeper = _Keeper()


atexit.register(lambda: _keeper.stop())
os.register_at_fork(after_in_child=_after_fork)
