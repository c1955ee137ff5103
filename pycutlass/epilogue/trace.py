"""The values of a function while it is traced, and the graph that they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from pycutlass.epilogue.columns import Columns
from pycutlass.epilogue.graph import Graph, Input, Value
from pycutlass.epilogue.nodes import NODES
from pycutlass.epilogue.places import where_called
from pycutlass.errors import DescriptionError

__all__ = ["Trace"]


class Trace:
    """The values of a function while it is traced, each of which is there once.

    Parameters
    ----------
    inputs : tuple of Input
        The function's parameters.
    """

    def __init__(self, inputs: tuple[Input, ...]) -> None:
        self.inputs = inputs
        self.values: list[Value] = []
        self.lines: list[str] = []
        #: Numbers of results of which functions need one, and of all that was made for them: by `divmod`.
        self.either: list[tuple[tuple[int, ...], range]] = []
        self._by_name = {each.name: each for each in inputs}
        self._numbers: dict[Value, int] = {}
        self.columns = Columns(self._by_name)

    def add(self, value: Value) -> int:
        """Return the number of a value, which is new or was there."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
            self.lines.append(where_called())
            self.columns.add(value)
        return number

    def with_columns(self, numbers: Iterable[int], columns: str) -> list[str]:
        """Return the names of the rows and matrices with such columns (`Columns.of`) that values are computed from."""
        needed = dict.fromkeys(each for number in numbers for each in self._needed(number))
        inputs = (each for each in needed if self.values[each].node == "input" and self.columns.of(each) == columns)
        named = (self._by_name[self.values[each].data[0]] for each in inputs)
        return [each.name for each in named if each.form in ("row", "matrix")]

    def is_truth(self, number: int) -> bool:
        """Return whether a value is a truth value."""
        node = self.values[number].node
        return node in NODES and NODES[node].makes == "t"

    def constant(self, number: float) -> int:
        """Return the number of a constant, which is the function's own."""
        return self.add(Value("constant", (), (number.hex(),)))

    def graph(self, outputs: Mapping[str, int], where: Callable[[], str]) -> Graph:
        """Return the graph of what the function has returned: the numbers of outputs by their names.

        `where` says on which line the function begins, for what is said of its parameters.

        Raises
        ------
        DescriptionError
            An input or a value that no output needs.
        """
        order: dict[int, int] = {}
        for output in outputs.values():
            for number in self._needed(output):
                order.setdefault(number, len(order))
        used = {self.values[number].data[0] for number in order if self.values[number].node == "input"}
        for parameter in self.inputs:
            if parameter.name not in used:
                if parameter.form == "accumulator":
                    raise DescriptionError(
                        f"{where()}the accumulator, the first parameter, is unused: D and other outputs are computed "
                        f"from it"
                    )
                raise DescriptionError(
                    f"{where()}the parameter {parameter.name!r} is unused: no output depends on it. Leave it out, or "
                    f"use it"
                )
        used_values = (self.values[number] for number in order)
        selected = {(value.operands, value.data[0]) for value in used_values if value.node == "top_k"}
        spare = {each for results, made in self.either if not order.keys().isdisjoint(results) for each in made}
        for number, value in enumerate(self.values):
            if value.node == "top_k" and (value.operands, value.data[0]) in selected:  # values or indices alone
                continue
            if number not in order and number not in spare and value.node not in ("input", "constant"):
                raise DescriptionError(
                    f"{self.lines[number]}the result of {_called(value)} is unused: no output depends on it. Return it "
                    f"by a name of its own, or leave the line out"
                )
        values = tuple(
            Value(value.node, tuple(order[operand] for operand in value.operands), value.data)
            for value in (self.values[number] for number in order)
        )
        inputs = self.inputs
        if any(value.node == "pair" for value in values):  # what goes with no other columns has those of D
            given = (each for each in order if self.values[each].node == "input")
            of_input = {self.values[each].data[0]: self.columns.of(each) for each in given}
            inputs = tuple(replace(each, halved=of_input[each.name] in ("h", "?")) for each in inputs)
        numbers = ((self.values[number], self.lines[number]) for number in order)
        places = [(value.data[0], line) for value, line in numbers if value.node == "constant"]
        if with_default := [each.name for each in inputs if each.default is not None]:
            places += [(name, where()) for name in with_default]
        named = tuple((name, order[number]) for name, number in outputs.items())
        return Graph(inputs, values, named, tuple(places))

    def _needed(self, last: int) -> Iterator[int]:
        """Yield what a value needs, and at last the value, without recursion: graphs may be deep."""
        stack, seen = [(last, False)], set[int]()
        while stack:
            number, ready = stack.pop()
            if ready:
                yield number
            elif number not in seen:
                seen.add(number)
                stack.append((number, True))
                stack.extend((operand, False) for operand in reversed(self.values[number].operands))


def _called(value: Value) -> str:
    if value.node == "pair":
        return f"pairs for {'odd' if value.data == ('1',) else 'even'} columns"
    return {"cast": "cast", "reduce": value.data[0] if value.data else ""}.get(value.node, value.node)
