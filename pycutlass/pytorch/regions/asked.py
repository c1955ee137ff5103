"""Where a model asks whether an extent that changes is 0 or 1: torch takes it for 2 or more, and guards no answer."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import pycutlass

__all__ = ["Asked", "of_few"]

#: For each symbol and value, 0 or 1, that would have been answered otherwise: where it was asked.
Asked = dict[tuple[str, int], str]

_TORCH = str(Path(torch.__file__).parent)
_LAYERS = str(Path(torch.nn.__file__).parent)
_OURS = str(Path(pycutlass.__file__).parent)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_lock = threading.RLock()  # torch has one class of each kind of symbol, whose answers are listened to


@contextmanager
def of_few() -> Iterator[Asked]:
    """Return what models ask meanwhile.

    What torch's own functions ask below the layers decides how they compute something, and not what; layers, and our
    own operators, ask for 0 where there is nothing to compute.
    """
    listener = _Listener()
    with _lock, ExitStack() as replaced:
        replaced.enter_context(_replaced(torch.SymBool, "__bool__", listener.of_truth))
        replaced.enter_context(_replaced(torch.SymInt, "__bool__", listener.of_number))
        for name in _COMPARISONS:
            of_comparison = listener.of_comparison(getattr(operator, name))
            replaced.enter_context(_replaced(torch.SymInt, f"__{name}__", of_comparison))
        yield listener.found


@contextmanager
def _replaced(kind: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method of a class by what is made of it."""
    method = getattr(kind, name)
    setattr(kind, name, made(method))
    try:
        yield
    finally:
        setattr(kind, name, method)


class _Listener:
    """Notes what is asked in the thread that made it.

    To torch all symbols are positive: what compares one with 0 is answered at once, and the answer has no symbol.
    Such questions are noted where they are asked, and others where they are answered.
    """

    def __init__(self) -> None:
        self.found: Asked = {}
        self._thread = threading.get_ident()

    def of_truth(self, method: Callable[[Any], Any]) -> Callable[[Any], bool]:
        """Listen to whether a condition holds."""

        def listening(asked: Any) -> bool:
            answer, condition = bool(method(asked)), _expression(asked)
            self._note(sys._getframe(1), _symbols(condition), lambda *given: condition.subs(*given), answer)
            return answer

        return listening

    def of_number(self, method: Callable[[Any], Any]) -> Callable[[Any], bool]:
        """Listen to whether a number is other than 0."""

        def listening(asked: Any) -> bool:
            answer, number = bool(method(asked)), _expression(asked)
            self._note(sys._getframe(1), _symbols(number), lambda *given: number.subs(*given) != 0, answer)
            return answer

        return listening

    def of_comparison(self, compare: Callable[[Any, Any], Any]) -> Callable[[Any], Callable[[Any, Any], Any]]:
        """Listen to comparisons that are answered at once."""

        def made(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def listening(left: Any, right: Any) -> Any:
                answer = method(left, right)
                sides = _expression(left), _expression(right)
                if answer is not NotImplemented and not _symbols(_expression(answer)):

                    def of_value(symbol: Any, value: int) -> Any:
                        of_sides = [each.subs(symbol, value) if _symbols(each) else each for each in sides]
                        return None if any(map(_symbols, of_sides)) else compare(*of_sides)

                    symbols = {*_symbols(sides[0]), *_symbols(sides[1])}
                    self._note(sys._getframe(1), symbols, of_value, bool(_expression(answer)))
                return answer

            return listening

        return made

    def _note(self, frame: FrameType, symbols: Any, of_value: Callable[[Any, int], Any], answer: bool) -> None:
        """Note where something was asked, for each value of a symbol of which the answer is another one."""
        for symbol in symbols:
            for value in self._values(frame.f_code.co_filename):
                if of_value(symbol, value) == (not answer):
                    place = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
                    self.found.setdefault((str(symbol), value), place)

    def _values(self, path: str) -> tuple[int, ...]:
        """Return which values matter of what the code of a file asks."""
        if threading.get_ident() != self._thread:
            return ()
        if path.startswith((_LAYERS, _OURS)):
            return (1,)
        return () if path.startswith(_TORCH) else (0, 1)


def _expression(value: Any) -> Any:
    """Return what stands for a number or a condition: an expression of symbols, or a constant."""
    node = getattr(value, "node", None)
    expression = getattr(node, "expr", None)  # what torch takes for a constant has none
    return value if expression is None else expression


def _symbols(expression: Any) -> Any:
    return getattr(expression, "free_symbols", ())
