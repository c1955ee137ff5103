"""What an epilogue computes, as C for plain loops: in double, by the definitions."""

from __future__ import annotations

import math

from pycutlass.epilogue import FunctionEpilogue
from pycutlass.epilogue.graph import Value, element_named
from pycutlass.epilogue.nodes import NODES
from pycutlass.errors import ArgumentError
from pycutlass.exports.described import Described

__all__ = ["reference"]

_BEGIN = """// D, and what is written beside it, of one sum; written by PyCUTLASS.
#include "functions.h"
#include "loop.h"
#include "numbers.h"

"""


def reference(plan: Described) -> str:
    """Return reference.c of a plan.

    Raises
    ------
    ArgumentError
        The epilogue is more than one element after the other.
    """
    functor = plan.epilogue
    accumulator, computed = functor.accumulator.code, functor.compute.code
    lines = [
        f"int const accumulator_element = {accumulator}, compute_element = {computed};",
        f"int64_t const usual_extent = {plan.m};",
        "",
        "void outputs_of(double sum, double const* inputs, double const* scalars, double* outputs) {",
        "  (void)inputs, (void)scalars;",
        *(_of_function(functor) if isinstance(functor, FunctionEpilogue) else _of_functor(plan)),
        "}",
        "",
    ]
    return _BEGIN + "\n".join(lines)


def _of_functor(plan: Described) -> list[str]:
    """Return what a linear combination computes, with its activation."""
    functor, names = plan.epilogue, list(plan.scalars)
    if functor.is_tree or not {*names} >= {"alpha", "beta"}:
        raise ArgumentError(
            f"the epilogue {functor!r} is no linear combination and no epilogue function, and a program has no plain "
            f"loop of it: export a library, or format='bundle'"
        )
    value = f"scalars[{names.index('alpha')}] * sum"
    if plan.roles[2] >= 0:
        value += f" + scalars[{names.index('beta')}] * inputs[0]"
    if functor.activation is not None:
        extra = "".join(f", scalars[{names.index(name)}]" for name, _ in functor.activation.extra)
        value = f"fn_{type(functor.activation).__name__}({value}{extra})"
    return [f"  outputs[0] = {value};"]


def _of_function(functor: FunctionEpilogue) -> list[str]:
    """Return what a function computes: a variable for each value."""
    graph = functor.graph
    if graph.is_gated or any(value.node in ("reduce", "top_k", "pair") for value in graph.values):
        raise ArgumentError(
            "the epilogue function has results of several elements (pairs, reductions or top_k), and a program has no "
            "plain loop of them: export a library, or format='bundle'"
        )
    source = {each.name: 0 for each in graph.of_form("source")}
    places = {port.name: number for number, port in enumerate(functor.inputs, 1)} | source
    scalars = {each.name: number for number, each in enumerate(functor.scalar_table)}
    lines = []
    for number, value in enumerate(graph.values):
        lines.append(f"  double const v{number} = {_expression(value, graph.inputs[0].name, places, scalars)};")
    outputs = dict(graph.outputs)
    names = ["D", *(port.name for port in functor.outputs)]
    return [*lines, *(f"  outputs[{place}] = v{outputs[name]};" for place, name in enumerate(names))]


def _expression(value: Value, accumulator: str, places: dict[str, int], scalars: dict[str, int]) -> str:
    operands = [f"v{number}" for number in value.operands]
    if value.node == "input":
        name = value.data[0]
        if name == accumulator:
            return "sum"
        return f"inputs[{places[name]}]" if name in places else f"scalars[{scalars[name]}]"
    if value.node == "constant":
        number = float.fromhex(value.data[0])
        return number.hex() if math.isfinite(number) else "NAN" if math.isnan(number) else f"{number:+}INITY".upper()
    if value.node == "cast":
        return f"rounded_to({element_named(value.data[0]).code}, {operands[0]})"
    node = NODES[value.node]
    is_operator = "(" not in node.cpp  # which C and C++ have in common; all others are functions of functions.h
    return node.cpp.format(*operands) if is_operator else f"fn_{node.name}({', '.join(operands)})"
