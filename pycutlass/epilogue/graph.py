"""The graph of an epilogue function: a frozen value, in which every value is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.epilogue.nodes import NODES, REDUCTIONS, largest
from pycutlass.types import ELEMENTS, Element

__all__ = ["AXES", "Graph", "Input", "Selection", "Value", "element_named", "reduced_tiles"]

Array = NDArray[Any]

#: The axes along which values of a form differ: rows, columns, and of values behind `pairs` half as many columns, "h".
#: Results of `top_k` have one of their own, "k".
AXES: dict[str, frozenset[str]] = {
    "accumulator": frozenset("mn"),
    "source": frozenset("mn"),
    "matrix": frozenset("mn"),
    "row": frozenset("n"),
    "column": frozenset("m"),
    "number": frozenset(),
    "scalar": frozenset(),
}
_FORMS = {frozenset("mn"): "matrix", frozenset("n"): "row", frozenset("m"): "column", frozenset(): "scalar"}
_FORMS |= {frozenset("mh"): "half_matrix", frozenset("h"): "half_row", frozenset("mk"): "top_k"}
_BY_SHORT = {row.short: row for row in ELEMENTS}


def element_named(short: str) -> Element:
    """Return the element type of a short name."""
    return _BY_SHORT[short]


@dataclass(frozen=True)
class Input:
    """What a function is given.

    Parameters
    ----------
    name : str
        Of the parameter.
    form : str
        ``"accumulator"``, ``"source"`` (C), ``"matrix"``, ``"row"``, ``"column"``, ``"number"`` (one for each
        matrix of a batch) or ``"scalar"``.
    default : float, optional
        Of a scalar, where it has one. Zeros of two signs are two defaults.
    kind : str, optional
        Short name of the element type that the function itself names for a tensor.
    halved : bool
        Whether it goes with values behind `pairs`: a matrix or a row with half as many columns as the accumulator.
    """

    name: str
    form: str
    default: float | None = field(default=None, compare=False)
    kind: str | None = None
    halved: bool = False
    #: The default as it is compared: as floats, zeros of two signs would be equal.
    digits: str | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digits", None if self.default is None else float(self.default).hex())

    @property
    def axes(self) -> frozenset[str]:
        """The axes along which it differs."""
        axes = AXES[self.form]
        return axes - {"n"} | {"h"} if self.halved else axes


@dataclass(frozen=True)
class Value:
    """One value of a graph.

    Parameters
    ----------
    node : str
        A name of the table of nodes, or ``"input"``, ``"constant"``, ``"cast"``, ``"pair"``, ``"reduce"`` or
        ``"top_k"``.
    operands : tuple of int
        Numbers of earlier values.
    data : tuple of str
        The name of an input, the digits of a constant (`float.hex`), the short name of the type of a cast, which of two
        neighbouring columns a pair has here (``"0"`` or ``"1"``), or the name of a reduction and its axis (``"0"``,
        ``"1"`` or ``""`` for both); behind these the extent of a tile along it, where each tile has a result of its
        own. Of ``"top_k"``, k and ``"values"`` or ``"indices"``.
    """

    node: str
    operands: tuple[int, ...] = ()
    data: tuple[str, ...] = ()

    def axes(self, operands: Iterable[frozenset[str]], inputs: Mapping[str, Input]) -> frozenset[str]:
        """Return the axes along which the value differs, of those of its operands."""
        if self.node == "input":
            return inputs[self.data[0]].axes
        found = frozenset[str]().union(*operands)
        if self.node == "top_k":
            return frozenset("mk")
        if self.node == "reduce":
            return {"0": frozenset("h" if "h" in found else "n"), "1": frozenset("m")}.get(self.data[1], frozenset())
        return found - {"n"} | {"h"} if self.node == "pair" else found


@dataclass(frozen=True)
class Selection:
    """What `top_k` selects of one value, and the outputs that this goes to.

    Parameters
    ----------
    operand : int
        Number of the value.
    k : int
        How many elements of each row.
    values, indices : tuple of str
        Names of outputs.
    """

    operand: int
    k: int
    values: tuple[str, ...]
    indices: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """What a function computes. Equal functions have equal graphs, whatever the order of their statements.

    Parameters
    ----------
    inputs : tuple of Input
        In the order of the function's parameters.
    values : tuple of Value
        Each behind its operands, in the order in which outputs need them first.
    outputs : tuple of (str, int)
        Names, and numbers of values.
    places : tuple of (str, str)
        Where the user has written numbers, for the beginnings of messages: by the digits of constants, and by the names
        of scalars that have a default. It makes no graph another one.
    """

    inputs: tuple[Input, ...]
    values: tuple[Value, ...]
    outputs: tuple[tuple[str, int], ...]
    places: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    @cached_property
    def by_name(self) -> dict[str, Input]:
        """Inputs by their names."""
        return {each.name: each for each in self.inputs}

    @cached_property
    def axes(self) -> tuple[frozenset[str], ...]:
        """For each value, the axes along which it differs."""
        found: list[frozenset[str]] = []
        for value in self.values:
            found.append(value.axes((found[number] for number in value.operands), self.by_name))
        return tuple(found)

    @cached_property
    def is_gated(self) -> bool:
        """Whether D has half as many columns as the accumulator, whose neighbouring ones are pairs."""
        return any(value.node == "pair" for value in self.values)

    def is_halved(self, number: int) -> bool:
        """Return whether an output has as many columns as D where that has half of them, and so have its reductions."""
        value = self.values[number]
        of_all = value.node in ("reduce", "top_k")
        return self.is_gated and "n" not in self.axes[value.operands[0] if of_all else number]

    def form(self, number: int) -> str:
        """Return what a value is for the accumulator: ``"matrix"``, ``"row"``, ``"column"`` or ``"scalar"``.

        Behind `pairs`, with half as many columns, they are ``"half_matrix"`` and ``"half_row"``.
        Results of tiles are ``"row_tiles"``, one for each row for each tile across, or ``"column_tiles"``; those of
        `top_k` are ``"top_k"``.
        """
        if self.tile(number):
            return "row_tiles" if self.values[number].data[1] == "1" else "column_tiles"
        return _FORMS[self.axes[number]]

    def tile(self, number: int) -> int:
        """Return the extent of the tiles that a reduction has results of; 0 where it has those of all of D."""
        value = self.values[number]
        return int(value.data[2]) if value.node == "reduce" and len(value.data) > 2 else 0

    def selected(self, number: int) -> int:
        """Return how many elements of each row a result of `top_k` has; 0 of all others."""
        value = self.values[number]
        return int(value.data[0]) if value.node == "top_k" else 0

    def is_truth(self, number: int) -> bool:
        """Return whether a value is a truth value, and no number."""
        node = self.values[number].node
        return node in NODES and NODES[node].makes == "t"

    def of_form(self, *forms: str) -> tuple[Input, ...]:
        """Return the inputs of some forms, in order."""
        return tuple(each for each in self.inputs if each.form in forms)

    def transposed(self) -> Graph:
        """Return what computes the transposed outputs of transposed matrices."""
        forms, axes = {"row": "column", "column": "row"}, {"0": "1", "1": "0"}
        inputs = tuple(replace(each, form=forms.get(each.form, each.form)) for each in self.inputs)
        values = tuple(
            replace(each, data=(each.data[0], axes.get(each.data[1], ""), *each.data[2:]))
            if each.node == "reduce"
            else each
            for each in self.values
        )
        return Graph(inputs, values, self.outputs, self.places)

    @property
    def reductions(self) -> tuple[tuple[str, Value], ...]:
        """Outputs that are reductions, by name."""
        named = ((name, self.values[number]) for name, number in self.outputs)
        return tuple((name, value) for name, value in named if value.node == "reduce")

    @cached_property
    def selections(self) -> tuple[Selection, ...]:
        """What `top_k` selects, each of its operands and k once."""
        found: dict[tuple[int, int], dict[str, list[str]]] = {}
        for name, number in self.outputs:
            value = self.values[number]
            if value.node == "top_k":
                key = value.operands[0], int(value.data[0])
                found.setdefault(key, {"values": [], "indices": []})[value.data[1]].append(name)
        return tuple(Selection(*key, tuple(each["values"]), tuple(each["indices"])) for key, each in found.items())

    @cached_property
    def of_many(self) -> frozenset[str]:
        """Names of outputs that are made of many elements of D: reductions, and results of `top_k`."""
        selected = (name for each in self.selections for name in (*each.values, *each.indices))
        return frozenset((*(name for name, _ in self.reductions), *selected))

    def evaluate(
        self,
        given: Mapping[str, Array],
        dtype: np.dtype[Any],
        rounded: Callable[[Array], Array] | None = None,
    ) -> dict[str, Array]:
        """Return the outputs by name, in NumPy.

        Parameters
        ----------
        given : mapping
            Inputs by name: the accumulator and other matrices of (..., M, N), rows of (..., 1, N), columns of
            (..., M, 1), numbers of (..., 1, 1). Those that are halved have N / 2 columns.
        dtype : dtype
            To compute in.
        rounded : callable, optional
            What is done to each result: an epilogue that computes in a narrow type rounds to it. What is read is not
            rounded, nor is what `where` chooses.
        """
        keep = rounded or (lambda values: values)
        made: list[Array] = []
        shape = np.broadcast_shapes(*(np.shape(each) for name, each in given.items() if not self.by_name[name].halved))
        with np.errstate(all="ignore"):
            for value in self.values:
                operands = [made[number] for number in value.operands]
                if value.node == "input":
                    result = np.asarray(given[value.data[0]]).astype(dtype)
                elif value.node == "constant":
                    result = np.asarray(float.fromhex(value.data[0]), dtype)
                elif value.node == "cast":
                    result = element_named(value.data[0]).round(operands[0]).astype(dtype)
                elif value.node == "pair":
                    result = operands[0][..., int(value.data[0]) :: 2]
                elif value.node == "reduce":
                    made.append(self._reduced(value, operands[0], self._shape(value.operands[0], shape)))
                    continue
                elif value.node == "top_k":
                    whole = np.broadcast_to(operands[0], self._shape(value.operands[0], shape))
                    made.append(largest(whole, int(value.data[0]))[value.data[1] == "indices"])
                    continue
                else:
                    result = np.asarray(NODES[value.node].numpy(*operands))
                    result = result if result.dtype == np.bool_ else result.astype(dtype)
                is_as_given = result.dtype == np.bool_ or value.node in ("input", "pair", "where")
                made.append(result if is_as_given else keep(result))
            return {
                name: made[number]
                if name in self.of_many
                else np.broadcast_to(made[number], self._shape(number, shape)).copy()
                for name, number in self.outputs
            }

    def _shape(self, number: int, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that a value is written or reduced in, where the accumulator has the `whole` one."""
        return (*whole[:-1], whole[-1] // 2) if self.is_halved(number) else whole

    @staticmethod
    def _reduced(value: Value, operand: Array, shape: tuple[int, ...]) -> Array:
        name, axis, *tile = value.data
        axes = {"0": -2, "1": -1}.get(axis, (-2, -1))
        # Sums are in f64: what a kernel adds in any order is compared with this.
        whole = np.broadcast_to(operand, shape).astype(np.float64)
        if tile:
            return reduced_tiles(name, whole, -2 if axis == "0" else -1, int(tile[0])).astype(operand.dtype)
        return np.asarray(REDUCTIONS[name].numpy(whole, axes)).astype(operand.dtype)


def reduced_tiles(name: str, x: Array, axis: int, tile: int) -> Array:
    """Return what each tile of `tile` columns (axis=-1) or rows (axis=-2) comes to, of (..., M, N) in (..., results).

    Results of the first tile come first, with one for each row, or column.
    """
    starts = range(0, x.shape[axis], tile)
    parts = [np.take(x, range(start, min(start + tile, x.shape[axis])), axis) for start in starts]
    return np.concatenate([np.asarray(REDUCTIONS[name].numpy(part, axis)) for part in parts], -1)
