"""What is worth a line in the log, once: the logger of the package, and what it has said."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

__all__ = ["is_silent", "logger", "say_once", "silent"]

logger = logging.getLogger("pycutlass")

# One set for the process, as there is one logger: a line that is said in every loop is read in none.
_said: set[str] = set()
_lock = threading.Lock()
#: Of each thread: whether it only tries what nobody has asked for, of which nothing is said.
_trying = threading.local()


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Let this thread describe what nobody asked for, of which `say_once` writes nothing and forgets nothing."""
    before = is_silent()
    _trying.is_silent = True
    try:
        yield
    finally:
        _trying.is_silent = before


def is_silent() -> bool:
    """Return whether this thread only tries what nobody has asked for, so that nobody reads why it is refused."""
    return bool(getattr(_trying, "is_silent", False))


def say_once(text: str, level: int = logging.WARNING, *, cause: str | None = None) -> None:
    """Write a line into the log, unless it was written before in this process.

    Parameters
    ----------
    text : str
        The line.
    level : int
        Level of `logging`.
    cause : str, optional
        What the line is about. Of all lines about one cause the first is written; by default, the text is the cause.
    """
    if is_silent():
        return
    cause = text if cause is None else cause
    with _lock:
        new = cause not in _said
        _said.add(cause)
    if new:
        logger.log(level, "%s", text)
