"""The user's code that has called us: its lines, for the beginnings of messages, and its names."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from pycutlass import calls, integers

__all__ = ["names_here", "where_called", "where_raised"]

_HERE = (str(Path(__file__).parent), calls.__file__, integers.__file__)
#: Libraries whose functions trace: their own frames are between the user's line and ours.
_BETWEEN = ("numpy", "torch")


def where_called() -> str:
    """Return the line of the user's function that is being traced."""
    frame = _users()
    return "" if frame is None else _place(frame, frame.f_lineno)


def names_here() -> dict[str, Any]:
    """Return the variables of the user's function, or module, that has called us."""
    frame = _users()
    return {} if frame is None else dict(frame.f_locals)


def where_raised(error: BaseException) -> str:
    """Return the line of the user's function that an exception came from."""
    place, step = "", error.__traceback__
    while step is not None:
        if _is_the_users(step.tb_frame):
            place = _place(step.tb_frame, step.tb_lineno)
        step = step.tb_next
    return place


def _users() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_the_users(frame):
        frame = frame.f_back
    return frame


def _is_the_users(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return not frame.f_code.co_filename.startswith(_HERE) and package not in _BETWEEN


def _place(frame: FrameType, line: int) -> str:
    text = linecache.getline(frame.f_code.co_filename, line).strip()
    return f"{frame.f_code.co_name}, line {line}{f' ({text})' if text else ''}: "
