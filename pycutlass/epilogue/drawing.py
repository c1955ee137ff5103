"""What an epilogue function looks like, and what it costs beside the plain product."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass.calls import shown
from pycutlass.epilogue.graph import Graph, Value, element_named
from pycutlass.epilogue.protocol import Port
from pycutlass.errors import ArgumentTypeError
from pycutlass.integers import attribute, real, several

__all__ = ["Cost", "as_dot", "as_text", "cost", "drawn"]

#: Bytes in a second that copies of large arrays reach on an H200.
_H200 = 4.2e12
_SHAPES = {"matrix": "(M, N)", "row": "(1, N)", "column": "(M, 1)", "scalar": "(1, 1)"}
_SHAPES |= {"half_matrix": "(M, N / 2)", "half_row": "(1, N / 2)"}
_SHAPES |= {"row_tiles": "(tiles, M)", "column_tiles": "(tiles, N)"}
_PAIRS = {"0": "even columns", "1": "odd columns"}
_SYMBOLS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "power": "**",
    "remainder": "%",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
    "logical_and": "&",
    "logical_or": "|",
}


def drawn(name: str, graph: Graph, kinds: Mapping[str, str], compute: str) -> str:
    """Return the graph as SVG where graphviz is installed, the package and its program; else as text.

    Parameters
    ----------
    name : str
        Of the function.
    graph : Graph
        What is drawn.
    kinds : mapping
        Types of inputs and outputs by name; none where they are not chosen yet.
    compute : str
        The type that is computed in; none where it is not chosen yet.
    """
    dot = as_dot(name, graph, kinds, compute)
    try:
        import graphviz

        svg: str = graphviz.Source(dot).pipe(format="svg", encoding="utf-8")
        return svg
    except Exception:  # the package or its program is missing, or cannot run here: the text says the same
        return as_text(name, graph, kinds, compute)


def as_text(name: str, graph: Graph, kinds: Mapping[str, str], compute: str) -> str:
    """Return the graph as lines of text: a value each, with its shape and type."""
    lines = [name]
    for number, value in enumerate(graph.values):
        if value.node != "constant":
            lines.append(f"  %{number} = {_written(value, graph)}  : {_of(graph, number, kinds, compute)}")
    for output, number in graph.outputs:
        lines.append(f"  {output} = %{number}  : {_shape(graph, number)} {kinds.get(output, '')}".rstrip())
    return "\n".join(lines)


def as_dot(name: str, graph: Graph, kinds: Mapping[str, str], compute: str) -> str:
    """Return the graph in the language of graphviz: shapes and types are on the edges."""
    lines = [
        f'digraph "{html.escape(name)}" {{',
        "  rankdir=TB;",
        '  node [shape=box, style=rounded, fontname="Helvetica"];',
    ]
    for number, value in enumerate(graph.values):
        label = html.escape(_label(value))
        shape = ", shape=ellipse" if value.node in ("input", "constant") else ""
        lines.append(f'  "%{number}" [label="{label}"{shape}];')  # which no output can be called
        lines += [
            f'  "%{each}" -> "%{number}" [label="{_of(graph, each, kinds, compute)}"];' for each in value.operands
        ]
    for output, number in graph.outputs:
        lines.append(f'  "{output}" [shape=ellipse, style=bold];')
        text = f"{_shape(graph, number)} {kinds.get(output, '')}".rstrip()
        lines.append(f'  "%{number}" -> "{output}" [label="{text}"];')
    return "\n".join([*lines, "}"])


def _of(graph: Graph, number: int, kinds: Mapping[str, str], compute: str) -> str:
    """Return the shape and the type of a value."""
    value = graph.values[number]
    kind = "bool" if graph.is_truth(number) else compute
    if value.node == "input":
        kind = kinds.get(value.data[0], compute)
    if value.data[1:] == ("indices",):
        kind = "int32"
    return f"{_shape(graph, number)} {kind}".rstrip()


def _shape(graph: Graph, number: int) -> str:
    k = graph.selected(number)
    return f"(M, {k})" if k else _SHAPES[graph.form(number)]


def _label(value: Value) -> str:
    if value.node == "input":
        return value.data[0]
    if value.node == "constant":
        return f"{float.fromhex(value.data[0]):g}"
    if value.node == "cast":
        return f"cast to {element_named(value.data[0])}"
    if value.node == "pair":
        return _PAIRS[value.data[0]]
    if value.node == "reduce":
        return f"{value.data[0]}, {_along(value)}"
    if value.node == "top_k":
        return f"{value.data[1]} of top_k, k={value.data[0]}"
    return _SYMBOLS.get(value.node, value.node)


def _along(reduction: Value) -> str:
    """Return what a reduction is along, and the extent of tiles that have results of their own."""
    _, axis, *tile = reduction.data
    return f"axis={axis or None}{f', tile={tile[0]}' if tile else ''}"


def _written(value: Value, graph: Graph) -> str:
    operands = [
        _label(graph.values[each]) if graph.values[each].node == "constant" else f"%{each}" for each in value.operands
    ]
    if value.node == "input":
        return value.data[0]
    if value.node == "pair":
        return f"{_PAIRS[value.data[0]]}({operands[0]})"
    if value.node in _SYMBOLS:
        return f"{operands[0]} {_SYMBOLS[value.node]} {operands[1]}"
    if value.node == "top_k":
        return f"{value.data[1]} of top_k({operands[0]}, {value.data[0]})"
    further = [_label(value).partition(" to ")[2]] if value.node == "cast" else []
    if value.node == "reduce":
        return f"{value.data[0]}({operands[0]}, {_along(value)})"
    return f"{value.node}({', '.join([*operands, *further])})"


@dataclass(frozen=True)
class Cost:
    """What an epilogue function takes beside the plain product.

    Attributes
    ----------
    read_bytes, written_bytes : int
        Of its tensors beside C and D, each once.
    seconds : float
        How long the memory takes for them.
    registers : tuple of int or None
        Of a thread of the plain kernel and of this one, by their build reports, where both have been compiled.

    Examples
    --------
    >>> from pycutlass import cutlass
    >>> from pycutlass.epilogue import fusions
    >>> functor = fusions.bias_residual_relu(cutlass.float16, 8)
    >>> functor.cost((4096, 4096, 1024)).read_bytes
    33562624
    """

    read_bytes: int
    written_bytes: int
    seconds: float
    registers: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = (
            f"reads {self.read_bytes / 1e6:.1f} MB and writes {self.written_bytes / 1e6:.1f} MB more, "
            f"{1e6 * self.seconds:.1f} us at the memory's speed"
        )
        if self.registers:
            text += f"; {self.registers[1]} registers in place of {self.registers[0]}"
        return text


def cost(
    inputs: Sequence[Port], outputs: Sequence[Port], problem: Any, bandwidth: Any, operations: tuple[Any, Any]
) -> Cost:
    """Return what tensors take of a problem, and registers of the operations (plain, fused) where both are compiled.

    Raises
    ------
    ArgumentTypeError
        No problem, no bandwidth, or something else than operations.
    """
    sizes = _sizes(problem)
    speed = _H200 if bandwidth is None else real(bandwidth, "bandwidth")
    if speed is None or not 0 < speed < math.inf:
        raise ArgumentTypeError(f"bandwidth is in bytes per second and positive, got {shown(bandwidth)}")
    for name, operation in zip(("plain", "fused"), operations, strict=True):
        if operation is not None and not hasattr(operation, "artifacts"):
            raise ArgumentTypeError(
                f"{name} is a compiled operation, whose registers are compared; got {shown(operation)}"
            )

    def elements(port: Port, m: int, n: int) -> int:
        across, tile = port.columns(n), max(port.tile, 1)
        of_tiles = {"row_tiles": m * -(-across // tile), "column_tiles": across * -(-m // tile)}
        of_tiles["top_k"] = m * port.selected
        return (of_tiles | {"matrix": m * across, "row": across, "column": m, "number": 1, "scalar": 1})[port.form]

    def total(ports: Sequence[Port]) -> int:
        each = itertools.product(ports, sizes)
        return sum(port.type.bytes_of(batch * elements(port, m, n)) for port, (m, n, batch) in each)

    read, written = total(inputs), total(outputs)
    registers = [_registers(operation) for operation in operations]
    known = (registers[0], registers[1]) if registers[0] and registers[1] else None
    return Cost(read, written, (read + written) / speed, known)


def _sizes(problem: Any) -> list[tuple[int, int, int]]:
    """Return M, N and the number of matrices of a problem, or of each problem of a group."""
    is_group = isinstance(problem, list | tuple) and len(problem) > 0 and _size(problem) is None
    sizes = [_size(each) for each in (problem if is_group else [problem])]
    found = [size for size in sizes if size is not None]
    if len(found) < len(sizes):
        raise ArgumentTypeError(
            f"cost takes a problem, M, N and K, or a list of those of a group, got {shown(problem)}: that of a "
            f"convolution is cutlass.conv.implicit_gemm_problem_size(operator, problem)"
        )
    return found


def _size(problem: Any) -> tuple[int, int, int] | None:
    extents = attribute(problem, "extents")
    size = several(problem if extents is None else extents, 3)
    return None if size is None or min(size) < 0 else (size[0], size[1], attribute(problem, "batch") or 1)


def _registers(operation: Any) -> int:
    """Return the registers of a thread of a compiled operation; 0 where it has not been compiled."""
    reports = [artifact.report for artifact in getattr(operation, "artifacts", {}).values()]
    return max((int(report.get("registers", 0)) for report in reports), default=0)
