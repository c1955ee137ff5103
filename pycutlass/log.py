"""What is worth a line in the log, once: the logger of the package, and what it has said."""

from __future__ import annotations

import logging
import threading

__all__ = ["logger", "say_once"]

logger = logging.getLogger("pycutlass")

# One set for the process, as there is one logger: a line that is said in every loop is read in none.
_said: set[str] = set()
_lock = threading.Lock()


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
    cause = text if cause is None else cause
    with _lock:
        new = cause not in _said
        _said.add(cause)
    if new:
        logger.log(level, "%s", text)
