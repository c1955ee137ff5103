"""Epilogue functions as text: all that one computes, equal for equal functions, and read back into the same function.

Operators of torch take it as an argument, and caches of compiled graphs have it in their keys.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pycutlass.calls import shown
from pycutlass.epilogue import functions
from pycutlass.epilogue.function import EpilogueFunction, epilogue_function
from pycutlass.epilogue.function_epilogue import FunctionEpilogue
from pycutlass.epilogue.graph import Graph, Input, Value, element_named
from pycutlass.epilogue.nodes import NODES, REDUCTIONS
from pycutlass.epilogue.pairs import pairs
from pycutlass.epilogue.parameters import Column, PerBatch, Row, Source, Tensor
from pycutlass.epilogue.protocol import Scalar
from pycutlass.epilogue.top_k import top_k
from pycutlass.epilogue.traced import Traced, applied
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

__all__ = ["at_defaults", "handle_of", "is_handle", "read_handle"]

#: Of the text. Nodes may be added under the same number; what is there keeps its meaning.
_VERSION = 1
_FIELD = "pycutlass_epilogue"
_NAME = "from_handle"  # of functions that were read, in messages: equal functions may have other names
_REMEDY = "pass what pycutlass.pytorch.epilogue_handle returns"


def is_handle(given: Any) -> bool:
    """Return whether something is meant as a handle, and not as the name of an activation."""
    return type(given) is str and given.lstrip().startswith("{")


def handle_of(function: Any, types: Mapping[str, str] | None = None) -> str:
    """Return the text of an epilogue function, and of the types of its outputs by short names.

    Raises
    ------
    ArgumentTypeError
        No epilogue function.
    """
    if not isinstance(function, EpilogueFunction):
        how = (
            "decorate a function with pycutlass.epilogue_function; an activation is passed by its name, such as 'gelu'"
        )
        if isinstance(function, FunctionEpilogue):
            how = "pass the function itself, and types of outputs by name, as in epilogue_handle(function, D=dtype)"
        elif is_handle(function):
            how = "use a handle as it is, or its function, pycutlass.pytorch.epilogue_of(handle)"
        raise ArgumentTypeError(f"a handle is made of an epilogue function, got {shown(function)}: {how}")
    graph = function.graph
    kinds = types or {}
    return json.dumps(
        {
            _FIELD: _VERSION,
            "inputs": [_written(each) for each in graph.inputs],
            "values": [[each.node, list(each.operands), list(each.data)] for each in graph.values],
            "outputs": [[name, number, kinds.get(name)] for name, number in graph.outputs],
        },
        separators=(",", ":"),
    )


def read_handle(text: str) -> tuple[EpilogueFunction, dict[str, str]]:
    """Return the epilogue function that a text was made of, and short names of the types of its outputs.

    The function is traced again, so that all rules of functions hold of it, and must come to the same text.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        Something that `handle_of` has not made.
    """
    if type(text) is not str:
        how = "use the function as it is" if isinstance(text, EpilogueFunction) else _REMEDY
        raise ArgumentTypeError(f"a handle of an epilogue is text, got {shown(text)}: {how}")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the handle of an epilogue is no JSON, got {shown(text)}: {_REMEDY}") from error
    version = given.get(_FIELD) if isinstance(given, dict) else None
    if version is None:
        raise ArgumentError(f"the handle of an epilogue lacks the field {_FIELD!r}, got {shown(text)}: {_REMEDY}")
    if type(version) is not int or version != _VERSION:
        raise ArgumentError(
            f"the handle of an epilogue has version {shown(version)}, and this release reads version {_VERSION}: make "
            f"it again with this release's pycutlass.pytorch.epilogue_handle"
        )
    try:
        graph, types = _graph(given)
        made = epilogue_function(_replayed(graph))
        function = replace(made, graph=replace(made.graph, places=()))  # whose lines are in none of the user's files
        is_same = handle_of(function, types) == text
    except DescriptionError as error:
        raise ArgumentError(
            f"the handle of an epilogue is none of a function: {error}. {_REMEDY.capitalize()}"
        ) from error
    except (ArgumentError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"the handle of an epilogue is malformed ({error}), got {shown(text)}: {_REMEDY}"
        ) from error
    if not is_same:
        raise ArgumentError(
            f"the handle of an epilogue is not written as epilogue_handle writes that function, got {shown(text)}: "
            f"{_REMEDY}, as it is"
        )
    return function, types


def _written(given: Input) -> list[Any]:
    """Return a parameter as it is written."""
    return [given.name, given.form, given.digits, given.kind, given.halved]


def _graph(given: Any) -> tuple[Graph, dict[str, str]]:
    """Return the graph that was written, and the types of outputs."""
    inputs = tuple(
        Input(name, form, None if digits is None else float.fromhex(digits), kind, halved)
        for name, form, digits, kind, halved in given["inputs"]
    )
    values = tuple(Value(node, tuple(operands), tuple(data)) for node, operands, data in given["values"])
    outputs = tuple((name, number) for name, number, _ in given["outputs"])
    types = {name: element_named(kind).short for name, _, kind in given["outputs"] if kind is not None}
    return Graph(inputs, values, outputs), types


def at_defaults(function: EpilogueFunction, x: Traced) -> Traced:
    """Return what a function of an accumulator makes of a traced value, where its scalars have their defaults."""
    trace = x._trace
    defaults = [each.default for each in function.graph.of_form("scalar") if each.default is not None]
    found: Traced = _replayed(function.graph)(x, *(Traced(trace, trace.constant(each)) for each in defaults))["D"]
    return found


def _replayed(graph: Graph) -> Callable[..., Any]:
    """Return a function that does what a graph says, with its parameters: tracing it makes the graph again."""
    names = [each.name for each in graph.inputs]

    def function(*given: Any) -> dict[str, Any]:
        by_name, made = dict(zip(names, given, strict=True)), list[Any]()
        for value in graph.values:
            made.append(_value(value, [made[number] for number in value.operands], by_name))
        return {name: made[number] for name, number in graph.outputs}

    function.__name__, function.__doc__ = _NAME, None
    parameters = [_parameter(each) for each in graph.inputs]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _parameter(given: Input) -> inspect.Parameter:
    """Return a parameter of a function, as its author has written it."""
    annotation: Any = inspect.Parameter.empty
    if given.form == "scalar":
        annotation = Scalar
    elif given.form != "accumulator":
        marker = _MARKERS[given.form]
        annotation = marker if given.kind is None else marker(element_named(given.kind).tag)
    default = inspect.Parameter.empty if given.default is None else given.default
    return inspect.Parameter(
        given.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default
    )


_MARKERS = {marker.form: marker for marker in (Row, Column, Tensor, PerBatch, Source)}


def _value(value: Value, operands: list[Any], given: Mapping[str, Any]) -> Any:
    """Return a value of a graph while that is traced again."""
    x = operands[0] if operands else None
    if value.node == "input":
        return given[value.data[0]]
    if value.node == "constant":
        trace = next(iter(given.values()))._trace  # of the accumulator
        return Traced(trace, trace.constant(float.fromhex(value.data[0])))
    if value.node == "cast":
        return functions.cast(x, element_named(value.data[0]).tag)
    if value.node == "pair":
        return pairs(x)[int(value.data[0])]
    if value.node == "top_k":
        return top_k(x, int(value.data[0]))[value.data[1] == "indices"]
    if value.node == "reduce":
        name, axis, *tile = value.data
        reduction = _REDUCTIONS[name]
        return reduction(x, axis=int(axis) if axis else None, tile=int(tile[0]) if tile else None)
    return applied(NODES[value.node], *operands)


_REDUCTIONS: dict[str, Callable[..., Any]] = {name: getattr(functions, name) for name in REDUCTIONS}
