"""The user's code that has called us: its lines, for the beginnings of messages, and its names."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pycutlass import calls, integers

__all__ = ["names_here", "where_called", "where_defined", "where_raised"]

_HERE = (str(Path(__file__).parent), calls.__file__, integers.__file__)
#: Libraries whose functions trace: their own frames are between the user's line and ours.
_BETWEEN = ("numpy", "torch")


def where_called() -> str:
    """Return the line of the user's function that is being traced."""
    frame = _users()
    return "" if frame is None else _placed(frame.f_code, frame.f_lineno)


def where_defined(function: Callable[..., Any]) -> str:
    """Return the line on which the user's function begins, behind its decorators."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if not isinstance(code, CodeType) or code.co_filename.startswith(_HERE):
        return ""
    first = line = code.co_firstlineno
    while linecache.getline(code.co_filename, line) and not _is_definition(code, line):
        line += 1
    return _placed(code, line if linecache.getline(code.co_filename, line) else first)


def _is_definition(code: CodeType, line: int) -> bool:
    words = linecache.getline(code.co_filename, line).split()
    return code.co_name == "<lambda>" or words[:1] == ["def"] or words[:2] == ["async", "def"]


def names_here() -> dict[str, Any]:
    """Return the variables of the user's function, or module, that has called us."""
    frame = _users()
    return {} if frame is None else dict(frame.f_locals)


def where_raised(error: BaseException) -> str:
    """Return the line of the user's function that an exception came from."""
    place, step = "", error.__traceback__
    while step is not None:
        if _is_the_users(step.tb_frame):
            place = _placed(step.tb_frame.f_code, step.tb_lineno)
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


def _placed(code: CodeType, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_name}, line {line}{f' ({text})' if text else ''}: "
