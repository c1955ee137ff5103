"""What happens where an argument of a call is wrong."""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pycutlass import PyCutlassError

__all__ = ["Call", "Outcome", "attempt"]

_SECONDS = 10.0  # the longest that one call may take


@dataclass(frozen=True)
class Call:
    """A call that is right: what is called, and a function that makes its keywords anew."""

    name: str
    function: Callable[..., Any]
    keywords: Callable[[], dict[str, Any]]
    #: What is done with a result: where a wrong argument was taken, its use must not fail in a foreign way either.
    use: Callable[[Any], Any] = field(default=lambda result: result)


class TooLongError(BaseException):
    """A call hangs. No Exception: one that catches those must not hide it."""


@dataclass(frozen=True)
class Outcome:
    """What went wrong in a call, in one line; None where it returned or raised one of our exceptions."""

    problem: str | None
    raised: BaseException | None = None


def attempt(call: Call, **changed: Any) -> Outcome:
    """Make a call with some arguments replaced."""
    keywords = call.keywords() | changed
    with _limited(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            call.use(call.function(**keywords))
            raised = None
        except PyCutlassError as error:
            raised = error
            str(error)
        except (Exception, TooLongError) as error:
            return Outcome(f"{type(error).__name__}: {str(error)[:200]} in {_place(error)}", error)
    if said:
        return Outcome(f"it warns: {said[0].message} in {said[0].filename}:{said[0].lineno}")
    return Outcome(None, raised)


def _place(error: BaseException) -> str:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "pycutlass/" in code.co_filename:
            frames.append(f"{code.co_filename.rsplit('pycutlass/', 1)[1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-1] if frames else "no file of ours"


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise where the block takes too long."""

    def stop(*_: Any) -> None:
        raise TooLongError(f"it took more than {_SECONDS:.0f} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
