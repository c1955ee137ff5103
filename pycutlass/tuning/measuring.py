"""Candidates measured in a child process, which is replaced where one of them hangs or crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from pycutlass.cache import Artifact
from pycutlass.errors import DeviceError, DriverError, PyCutlassError
from pycutlass.tuning.child import Child, ChildEndedError, ChildHangsError
from pycutlass.tuning.options import TuningOptions
from pycutlass.tuning.tunable import AnyCandidate, Tunable

__all__ = ["Artifacts", "Bench", "ChildMeasurer", "FailedError", "Measurer", "WrongResultError", "serve"]

#: The kernels of a candidate, in the order of `Candidate.kernels`, each by target.
Artifacts = Sequence[dict[str, Artifact]]
_START_SECONDS = 120.0  # for Python, the driver's context, operands and the reference


class FailedError(Exception):
    """A candidate gave no time. `status` is what the database calls that. Never leaves the tuner."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(f"{status}: {reason}")


class WrongResultError(Exception):
    """A kernel computed something else than the reference. Never leaves the child."""


class Measurer(Protocol):
    """Whoever measures candidates, each known by a number."""

    def check(self, number: int, candidate: AnyCandidate, artifacts: Artifacts) -> None:
        """Make a candidate ready, and raise FailedError where its results are wrong or it cannot run."""

    def measure(self, number: int, seconds: float) -> list[float]:
        """Return microseconds of some launches, or raise FailedError; a launch hangs after so many `seconds`."""

    def measure_vendor(self, seconds: float) -> list[float]:
        """Return microseconds of some calls of the vendor's library, or raise FailedError with why there are none."""

    def close(self) -> None:
        """End what was started."""


class Bench(Protocol):
    """What a child measures with."""

    def expect(self, candidate: AnyCandidate) -> None:
        """Compute what all candidates are compared with; `candidate` says how operands are rounded."""

    def prepare(self, number: int, candidate: AnyCandidate, artifacts: Artifacts, is_checked: bool) -> None:
        """Make a candidate ready; raise WrongResultError where it is to be checked and is wrong."""

    def measure(self, number: int) -> list[float]:
        """Return microseconds of some launches."""

    def measure_vendor(self) -> list[float]:
        """Return microseconds of some calls of the vendor's library; raise ArgumentError where it cannot be called."""


class ChildMeasurer:
    """Measures in a child process, which starts at once, and does nothing on a GPU before it has to.

    Parameters
    ----------
    problem : Tunable
        What is measured.
    options : TuningOptions
        How.
    function : str
        ``"module:name"`` of what serves in the child.
    """

    def __init__(
        self, problem: Tunable, options: TuningOptions, function: str = "pycutlass.tuning.bench:serve_bench"
    ) -> None:
        self._problem, self._options, self._function = problem, options, function
        self._child: Child | None = None
        self._spare: Child | None = self._process()  # imports take seconds, in which kernels are compiled
        self._known: dict[int, tuple[AnyCandidate, Artifacts]] = {}
        self._ready: set[int] = set()
        self._has_reference = False
        self.started = 0

    def check(self, number: int, candidate: AnyCandidate, artifacts: Artifacts) -> None:
        """Make a candidate ready, and compare its results with the reference."""
        self._known[number] = candidate, artifacts
        if self._child is None or not self._has_reference:  # which takes longer than any launch
            self._ask(("expect", candidate), _START_SECONDS)
            self._has_reference = True
        self._ask(("prepare", number, candidate, artifacts, True), self._options.timeout)
        self._ready.add(number)

    def measure(self, number: int, seconds: float) -> list[float]:
        """Return microseconds of some launches."""
        if self._child is None:
            self._start()
        if number not in self._ready:  # in a child that has taken the place of another
            self._ask(("prepare", number, *self._known[number], False), self._options.timeout)
            self._ready.add(number)
        times: list[float] = self._ask(("measure", number), min(seconds, self._options.timeout))
        return times

    def measure_vendor(self, seconds: float) -> list[float]:
        """Return microseconds of some calls of the vendor's library."""
        times: list[float] = self._ask(("measure_vendor",), min(seconds, self._options.timeout))
        return times

    def close(self) -> None:
        """End the child."""
        for child in (self._child, self._spare):
            if child is not None:
                child.end()
        self._child = self._spare = None
        self._ready.clear()
        self._has_reference = False

    def _ask(self, message: tuple[Any, ...], seconds: float) -> Any:
        """Return the answer to a message; where none comes the child is ended, and the candidate has failed."""
        child = self._child or self._start()
        try:
            child.send(message)
            status, value = child.receive(seconds)
        except ChildHangsError as error:
            self.close()
            raise FailedError("timeout", str(error)) from None
        except ChildEndedError as error:
            self.close()
            raise FailedError("failed", f"the process that measured it has ended: {error}") from None
        except BaseException:  # an interrupt: what the child says later would be taken for another answer
            self.close()
            raise
        if status == "ok":
            return value
        if status == "broken":  # after an error of the driver nothing else runs in that process
            self.close()
            status = "failed"
        raise FailedError(status, value)

    def _start(self) -> Child:
        """Start a child that has the operands of the problem.

        Raises
        ------
        DeviceError
            It cannot be: that is no fault of a candidate.
        """
        self.started += 1
        child = self._child = self._spare or self._process()
        self._spare = None
        try:
            child.send((self._problem, self._options))
            status, value = child.receive(_START_SECONDS)
        except (ChildEndedError, ChildHangsError) as error:
            self.close()
            raise DeviceError(f"the process that is to measure {self._problem.name} did not start: {error}") from error
        if status != "ok":
            self.close()
            raise DeviceError(f"{self._problem.name} cannot be measured: {value}")
        return child

    def _process(self) -> Child:
        return Child(self._function, tmp_dir=self._options.tmp_dir)


def serve(connection: Connection, make: Callable[[Tunable, TuningOptions], Bench]) -> None:
    """Answer the messages of a `ChildMeasurer` with what `make` makes, until it closes the connection."""
    try:
        problem, options = connection.recv()
        try:
            bench = make(problem, options)
        except PyCutlassError as error:
            connection.send(("failed", str(error)))
            return
        connection.send(("ok", None))
        while True:
            what, *rest = connection.recv()
            connection.send(_answer(bench, what, rest))
    except EOFError:
        return


def _answer(bench: Bench, what: str, rest: Sequence[Any]) -> tuple[str, Any]:
    try:
        return "ok", getattr(bench, what)(*rest)
    except WrongResultError as error:
        return "wrong", str(error)
    except DriverError as error:
        return "broken", str(error)
    except PyCutlassError as error:
        return "failed", str(error)
