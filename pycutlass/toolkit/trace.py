"""What a search has looked at: its answer holds for as long as all of that is as it was.

While a search is `recorded`, whatever asks the file system says so first, by `look`. What is kept is what every
question was answered with, so that the same can be asked again in one go, by another process, without the search. What
Python says of installed packages is asked each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from pycutlass import _core

__all__ = ["Trace", "look", "look_at_trees", "recorded", "unrecorded", "unrepeatable"]

Question = Literal["kind", "names", "real"]
"""Of a place: what kind of thing it is, with the state of a file; the names in a directory; where links lead."""


class Trace:
    """What one search has looked at.

    Attributes
    ----------
    repeatable : bool
        Whether looking at the same things again tells whether the answer still holds.
    """

    def __init__(self) -> None:
        self.repeatable = True
        self._answers: dict[str, bytes] = {}
        self._trees: dict[tuple[str, ...], str] = {}

    def look(self, question: Question, path: str) -> None:
        """Keep what the file system says now; whatever it says later, the search gets to see something as new."""
        if not self.repeatable:  # nobody will ask again
            return
        if not path.startswith("/"):
            self.repeatable = False  # another working directory has another file by this name
        place = question[0] + path
        if place not in self._answers:
            self._answers[place] = _core.glances([os.fsencode(place)])

    def look_at_trees(self, places: tuple[str, ...], digest: str) -> None:
        """Keep the digest of the states of all files below `places`."""
        self._trees[places] = digest

    def as_json(self) -> dict[str, Any]:
        """Return what another look at the same things needs, as JSON can carry it."""
        return {
            "places": list(self._answers),
            "answers": hashlib.sha256(b"".join(self._answers.values())).hexdigest(),
            "trees": [[list(places), digest] for places, digest in self._trees.items()],
        }


# The search that this thread is at. Passing it on would be one more parameter of everything that looks at a file.
_recording: ContextVar[Trace | None] = ContextVar("_recording", default=None)


@contextlib.contextmanager
def recorded(trace: Trace | None) -> Iterator[None]:
    """Keep in `trace` what is looked at inside, or nothing where it is None."""
    token = _recording.set(trace)
    try:
        yield
    finally:
        _recording.reset(token)


def unrecorded(compute: Callable[[], str]) -> Callable[[], str]:
    """Return `compute` for a memo: what it looks at is in the fingerprint by which its text is remembered."""

    def computed() -> str:
        with recorded(None):
            return compute()

    return computed


def look(question: Question, path: str | Path) -> None:
    """Say that a search is about to look at `path`, an absolute one."""
    if (trace := _recording.get()) is not None:
        trace.look(question, str(path))


def look_at_trees(places: list[str], digest: str) -> None:
    """Say that a search depends on all files below `places`; `digest` is that of their states before they were read."""
    if (trace := _recording.get()) is not None:
        trace.look_at_trees(tuple(places), digest)


def unrepeatable() -> None:
    """Say that a search depends on something that cannot be looked at again, such as what a program says."""
    if (trace := _recording.get()) is not None:
        trace.repeatable = False
