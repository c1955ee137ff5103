"""How many columns values have while a function is traced: those of the accumulator, or behind `pairs` half of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pycutlass.epilogue.graph import Input, Value

__all__ = ["Columns"]

_WHOLE, _HALF = 0, 1


class Columns:
    """Classes of values that have as many columns. Those of rows and matrices show when they are used.

    Parameters
    ----------
    inputs : mapping
        The function's parameters by name.
    """

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        self._inputs = inputs
        self._of_value: list[int | None] = []  # by the numbers of values; None of those without columns
        # Of each class, another one that it was found to be, or itself. The first two are known.
        self._same: list[int] = [_WHOLE, _HALF]

    def add(self, value: Value) -> None:
        """Take a new value, whose operands match."""
        self._of_value.append(self._class_of(value))

    def _class_of(self, value: Value) -> int | None:
        if value.node == "pair":
            return _HALF
        if value.node != "input":
            return next((found for each in value.operands if (found := self._of_value[each]) is not None), None)
        form = self._inputs[value.data[0]].form
        if form in ("row", "matrix"):
            self._same.append(len(self._same))
            return len(self._same) - 1
        return _WHOLE if form in ("accumulator", "source") else None

    def of(self, number: int) -> str:
        """Return how many columns a value has: ``"n"``, those of the accumulator, ``"h"``, half of them, or ``""``.

        ``"?"`` is either: of a row or a matrix that was combined with nothing yet.
        """
        found = self._of_value[number]
        return "" if found is None else {_WHOLE: "n", _HALF: "h"}.get(self._found(found), "?")

    def match(self, numbers: Iterable[int], columns: str = "") -> bool:
        """Have values with columns have as many, all of them where that is ``"n"``; False where they cannot."""
        classes = {self._found(found) for each in numbers if (found := self._of_value[each]) is not None}
        classes |= {_WHOLE} if columns == "n" else set()
        if {_WHOLE, _HALF} <= classes:
            return False
        for each in classes:
            self._same[each] = min(classes)
        return True

    def _found(self, each: int) -> int:
        while self._same[each] != each:
            each = self._same[each]
        return each
