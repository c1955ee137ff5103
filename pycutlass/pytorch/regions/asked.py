"""Where a model asks whether an extent that changes is 1: torch takes it for 2 or more, and guards no such answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

__all__ = ["of_one"]

_TORCH = str(Path(torch.__file__).parent)
_LAYERS = str(Path(torch.nn.__file__).parent)
_lock = threading.RLock()  # torch has one class, whose answers are listened to


@contextmanager
def of_one() -> Iterator[dict[str, str]]:
    """Return what models ask meanwhile: for each symbol that would be answered otherwise if it were 1, where.

    What torch's own functions ask below the layers decides how they compute something, and not what.
    """
    found: dict[str, str] = {}
    kind: Any = torch.SymBool
    thread = threading.get_ident()
    with _lock:
        answered = kind.__bool__

        def listening(self: Any) -> bool:
            answer = bool(answered(self))
            frame = sys._getframe(1)
            path = frame.f_code.co_filename
            if threading.get_ident() == thread and (path.startswith(_LAYERS) or not path.startswith(_TORCH)):
                expression: Any = getattr(self.node, "expr", None)  # constants have none
                for symbol in getattr(expression, "free_symbols", ()):
                    if expression.subs(symbol, 1) == (not answer):
                        found.setdefault(str(symbol), f"line {frame.f_lineno} of {Path(path).name}")
            return answer

        kind.__bool__ = listening
        try:
            yield found
        finally:
            kind.__bool__ = answered
