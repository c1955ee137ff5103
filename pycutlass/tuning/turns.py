"""Problems in turns: while one is measured, the kernels of the next are compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from pycutlass.errors import PyCutlassError
from pycutlass.tuning.known import Known
from pycutlass.tuning.measuring import Artifacts, Measurer
from pycutlass.tuning.race import Compiling, Contestant
from pycutlass.tuning.tunable import AnyCandidate, Tunable

__all__ = ["Early", "Turn", "Turns"]


class Early:
    """Kernels that may be compiled before their problem is measured: what is done by then is kept.

    Parameters
    ----------
    kernels : Compiling
        Who compiles them.
    """

    def __init__(self, kernels: Compiling) -> None:
        self._kernels = kernels
        self._found: list[tuple[int, Artifacts | str]] = []
        self._error: PyCutlassError | None = None
        self.when_done: Callable[[], None] = lambda: None

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self._kernels.is_done and not self._found and self._error is None

    def collect(self) -> None:
        """Take in what is done: whoever compiles waits until somebody does. An error waits for `ready`."""
        if self._error is not None:
            return
        try:
            self._found += self._kernels.ready(0.0)
        except PyCutlassError as error:
            self._error = error

    def ready(self, seconds: float) -> list[tuple[int, Artifacts | str]]:
        """Return what is done since the last time, waiting so long for the first; call `when_done` behind the last.

        Raises
        ------
        ToolkitError
            There is no compiler, or the process that compiles has ended.
        """
        if self._error is not None:
            raise self._error
        found, self._found = self._found, []
        found += self._kernels.ready(0.0 if found else seconds)
        if self._kernels.is_done:
            self.when_done()
        return found

    def close(self) -> None:
        """Stop compiling."""
        self._kernels.close()


@dataclass
class Turn:
    """A problem that is prepared: nobody else measures its candidates, and they are being compiled.

    Attributes
    ----------
    problem : Tunable
        What is measured.
    contestants : sequence of Contestant
        All candidates.
    ours : list of Contestant
        Those that are measured here.
    kernels : Early or None
        Theirs; None where there are none.
    measurer : Measurer or None
        Who measures them.
    """

    problem: Tunable
    contestants: Sequence[Contestant]
    ours: list[Contestant] = field(default_factory=list)
    kernels: Early | None = None
    measurer: Measurer | None = None
    until_done: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def begin(
        self,
        known: Known,
        compiling: Callable[[list[AnyCandidate]], Compiling],
        measurer: Callable[[Tunable], Measurer],
    ) -> None:
        """Claim candidates, and start whoever compiles and measures them; where that fails, nothing is left."""
        with contextlib.ExitStack() as stack:
            asked = [] if known.is_settled(self.problem, self.contestants) else self.contestants
            self.ours = [each for each in asked if known.claim(self.problem, each, stack)]
            if self.ours:
                self.kernels = Early(compiling([each.candidate for each in self.ours]))
                stack.callback(self.kernels.close)
                self.measurer = measurer(self.problem)
                stack.callback(self.measurer.close)
            self.until_done = stack.pop_all()

    def end(self) -> None:
        """Give back what was claimed, and end what was started."""
        self.until_done.close()


class Turns:
    """The turns of several problems, of which one is prepared ahead: its kernels are compiled on cores that idle.

    No more than one, since what is claimed here is measured by no other tuner. As a context it ends those that are
    prepared.

    Parameters
    ----------
    turns : sequence of Turn
        In the order in which they are measured.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._taken, self._begun, self._ends = 0, 0, contextlib.ExitStack()

    def __enter__(self) -> Turns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.close()

    def take(self, begin: Callable[[Turn], None]) -> Turn:
        """Return the next turn, which `begin` has begun; the one behind it begins when its kernels are done."""
        turn, self._taken = self._turns[self._taken], self._taken + 1
        self._prepare(self._taken - 1, begin)
        if turn.kernels is not None:
            turn.kernels.when_done = lambda: self._prepare(self._taken, begin)
        return turn

    def _prepare(self, number: int, begin: Callable[[Turn], None]) -> None:
        """Begin a turn, or take in what is done of it."""
        if number >= len(self._turns):
            return
        turn = self._turns[number]
        if number >= self._begun:
            self._begun = number + 1
            self._ends.callback(turn.end)
            begin(turn)
        if turn.kernels is not None:
            turn.kernels.collect()
