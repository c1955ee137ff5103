"""Epilogue functions as C++: one structure for all families, which says what is given, and computes one element of D.

Each family reads and writes the tensors in its own way, around `Function::compute` (include/pycutlass/function*.h).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from pycutlass import _core
from pycutlass.epilogue.graph import Graph, Selection, Value, element_named
from pycutlass.epilogue.nodes import NODES, REDUCTIONS
from pycutlass.epilogue.protocol import Family, Port, Scalar
from pycutlass.families.parts import Tile
from pycutlass.families.sm90_warp_groups import warp_groups
from pycutlass.types import Element

__all__ = [
    "FAMILIES",
    "definitions",
    "loaded",
    "reduced_bytes",
    "shared_bytes",
    "why_not",
]

#: What the forms of tensors are in include/pycutlass/function.h.
_FORMS = {"matrix": "Matrix", "row": "Row", "column": "Column", "number": "PerBatch", "top_k": "Matrix"}
#: What TMA brings through the buffers of C.
_BY_TMA = ("f16", "bf16", "f32")
#: What a reduction along an axis makes, of all of D and of each tile.
_REDUCED = {"0": "Row", "1": "Column", "": "Whole"}
_REDUCED_TILES = {"0": "ColumnTiles", "1": "RowTiles"}
#: Types of results for which activations are right to fewer digits (include/pycutlass/activation.h).
_NARROW = {"f16", "bf16", "e4m3", "e5m2"}
_BFLOAT = _NARROW - {"f16"}
#: Families whose D may have half as many columns as the product.
_GATED = (Family.AMPERE_GEMM, Family.AMPERE_GROUP, Family.SM90_GEMM, Family.SM90_GROUP)


#: What C++ computes an element of, and one of two neighbouring columns.
_TAKEN = (
    "Number const* scalars, Number const* in, Number* out",
    "Number const* scalars, Number const* even, Number const* odd, Number const* half, Number* out, Number (*whole)[2]",
)


class _Typed(Protocol):
    """What is read of an epilogue function with its types."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What is read beside C."""

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What is written beside D."""

    @property
    def ports(self) -> tuple[Port, ...]:
        """Inputs, then outputs."""

    @property
    def output(self) -> Element:
        """The type of D."""

    @property
    def compute(self) -> Element:
        """What is computed in."""

    @property
    def name(self) -> str:
        """The function's name."""

    @property
    def graph(self) -> Graph:
        """What is computed."""

    @property
    def scalar_table(self) -> tuple[Scalar, ...]:
        """The scalars of a launch."""

    @property
    def reads_source(self) -> bool:
        """Whether C is read."""

    @property
    def stores_columns(self) -> bool:
        """Whether the kernel stores columns of D."""


@dataclass(frozen=True)
class _Target:
    """A family of kernels that takes epilogue functions.

    Parameters
    ----------
    cpp : str
        The C++ type of the epilogue.
    header : str
        Which defines it.
    """

    cpp: str
    header: str


#: What epilogue functions are in each family.
FAMILIES: dict[Family, _Target] = {
    Family.AMPERE_GEMM: _Target("pycutlass::FunctionAmpere<Function>", "function_ampere.h"),
    Family.AMPERE_GROUP: _Target("pycutlass::FunctionAmpere<Function>", "function_ampere.h"),
    Family.AMPERE_CONV: _Target("pycutlass::FunctionAmpere<Function>", "function_ampere.h"),
    Family.SM90_GEMM: _Target("pycutlass::FunctionSm90<Function>", "function_sm90.h"),
    Family.SM90_GROUP: _Target("pycutlass::FunctionSm90<Function>", "function_sm90.h"),
    Family.REDUCTION: _Target("Function", "reduction_function.h"),
    Family.GEMV: _Target("pycutlass::GemvFunction<Function>", "gemv.h"),
}


def why_not(functor: _Typed, family: Family) -> str:
    """Return why kernels of `family` cannot have an epilogue function; nothing where they can."""
    if functor.graph.is_gated and family not in _GATED:
        return (
            f"{functor.name} combines pairs of columns, so that D has half as many, which {family.value} do not write: "
            f"use an Ampere-style or a Hopper-native GEMM, or a group of them"
        )
    column_major = ", ".join(port.name for port in functor.ports if port.layout is _core.ColumnMajor)
    if column_major and family is Family.AMPERE_CONV:
        return (
            f"{functor.name} has {column_major} as cutlass.ColumnMajor, and tensors of {family.value} lie as D does: "
            f"give the element type alone, in place of a TensorDescription"
        )
    reduced = ", ".join(port.name for port in functor.outputs if port.form != "matrix")
    if reduced and family is Family.GEMV:
        return (
            f"{functor.name} makes {reduced} of many elements of D, and threads of {family.value} have single ones: "
            f"leave that to another kernel, or use an Ampere-style or a Hopper-native GEMM"
        )
    tiles = ", ".join(port.name for port in functor.outputs if port.tile)
    if tiles and family is Family.REDUCTION:
        return (
            f"{functor.name} leaves {tiles} of each tile of a kernel, and {family.value} of partial sums have tiles of "
            f"their own: leave out tile=, for results of whole rows and columns"
        )
    selected = ", ".join(port.name for port in functor.outputs if port.selected)
    if selected and family is Family.REDUCTION:
        return (
            f"{functor.name} has top_k, which selects the largest of each row to {selected} where a tile of a GEMM has "
            f"whole rows, and {family.value} have tiles of their own: use a GEMM with split_k_slices in Mode.Gemm, or "
            f"stream-K"
        )
    return ""


def loaded(functor: _Typed, family: Family) -> Port | None:
    """Return the tensor that comes where C would: the first matrix that TMA can take, where C itself is not read.

    Where D has half as many columns, none: threads write it themselves, and nothing goes by TMA.
    """
    if not family.is_sm90 or functor.reads_source or functor.graph.is_gated:
        return None
    return next((port for port in functor.inputs if _is_for_tma(port, functor.stores_columns)), None)


def _is_for_tma(port: Port, by_columns: bool) -> bool:
    lies_as_D = port.form == "matrix" and port.is_by_columns is by_columns
    return lies_as_D and port.type.short in _BY_TMA and port.alignment * port.type.bits == 128


def definitions(functor: _Typed, family: Family) -> str:
    """Return the C++ of a function, and the include of what its family makes of it.

    Members are numbered: the names of Python may be words of C++.
    """
    compute, scalars = functor.compute.cpp, [each.name for each in functor.scalar_table]
    number = "double" if functor.compute.short == "f64" else "float"
    members = {port.name: f"tensor{i}" for i, port in enumerate(functor.ports)}
    fields = [f"  {compute} scalar{i};\n  {compute} const* address{i};\n" for i in range(len(scalars))]
    fields += [f"  pycutlass::Port<{port.type.cpp} const> {members[port.name]};\n" for port in functor.inputs]
    fields += [f"  pycutlass::Port<{port.type.cpp}> {members[port.name]};\n" for port in functor.outputs]
    told = [
        f'    fields.value("{name}", &FunctionArguments::scalar{i});\n'
        f'    fields.address("{name}", &FunctionArguments::address{i});\n'
        for i, name in enumerate(scalars)
    ]
    told += [f'    fields.port("{name}", &FunctionArguments::{member});\n' for name, member in members.items()]
    read = "".join(f"    read(given.scalar{i}, given.address{i}, scalars[{i}]);\n" for i in range(len(scalars)))
    source = loaded(functor, family)
    read_ports = tuple(port for port in functor.inputs if port is not source and not port.halved)
    of_many, gated = functor.graph.of_many, functor.graph.is_gated
    written = tuple(port for port in functor.outputs if port.name not in of_many and port.halved == gated)
    return (
        f'#include "pycutlass/{FAMILIES[family].header}"\n\n'
        f"struct FunctionArguments {{\n{''.join(fields)}"
        f"#if !PYCUTLASS_DEVICE_SIDE\n"
        f"  static void describe(pycutlass::EpilogueFields<FunctionArguments>& fields) {{\n{''.join(told)}  }}\n"
        f"#endif\n}};\n\n"
        f"struct Function : pycutlass::EpilogueFunction<{compute}, {number}{_activated(functor)}> {{\n"
        f"  using Arguments = FunctionArguments;\n"
        f"  using Inputs = {_list(read_ports, members)};\n"
        f"  using Outputs = {_list(written, members)};\n"
        f"  using Reductions = {_reductions(functor, members)};\n"
        f"  static constexpr bool kReadsSource = {str(functor.reads_source or source is not None).lower()};\n"
        f"  static constexpr int kScalars = {len(scalars)};\n"
        f"{_pairs(functor, members) if gated else ''}\n"
        f"  CUTLASS_HOST_DEVICE static void read_scalars(Arguments const& given, Number* scalars) {{\n{read}  }}\n\n"
        f"  CUTLASS_HOST_DEVICE static void compute({_TAKEN[gated]}) {{\n"
        f"{_body_of_pair(functor) if gated else _body(functor, source)}  }}\n"
        f"{_host_side(source, members, len(scalars))}}};\n\n"
    )


def _activated(functor: _Typed) -> str:
    """Return what activations are right to, where results of 16 bits or fewer are computed in more."""
    kinds = {functor.output.short, *(port.type.short for port in functor.outputs)}
    if not kinds <= _NARROW or functor.compute.short == "f64":
        return ""
    return f", pycutlass::activation::{'Bfloat' if kinds <= _BFLOAT else 'Narrow'}"


def shared_bytes(functor: _Typed, family: Family, tile: Tile) -> int:
    """Return the shared memory in bytes that reductions take: include/pycutlass/function_reduction.h."""
    columns = tile.threadblock_shape[1]
    warps = tile.num_threads // 32
    if family.is_sm90:
        columns, warps = math.gcd(columns, 32), 4 * warp_groups(tile)
    columns //= 1 + functor.graph.is_gated
    return reduced_bytes(functor, columns, warps)


def reduced_bytes(functor: _Typed, columns: int, warps: int) -> int:
    """Return the same for `warps` that have `columns` each."""
    axes = [value.data[1] for _, value in functor.graph.reductions]
    if not axes and not functor.graph.selections:
        return 0
    numbers = max(1, axes.count("0") * warps * columns) + max(1, axes.count("") * warps)
    return 16 + numbers * (8 if functor.compute.short == "f64" else 4)


def _host_side(source: Port | None, members: dict[str, str], scalars: int) -> str:
    """Return what Hopper-native kernels ask of a launch."""
    ahead = " || ".join(f"given.address{i}" for i in range(scalars)) or "false"
    taken = f"pycutlass::operand_of(given.{members[source.name]}, operand)" if source else "operand"
    return (
        "\n#if !PYCUTLASS_DEVICE_SIDE\n"
        f"  static bool reads_device_scalars(Arguments const& given) {{ return {ahead}; }}\n"
        f"  static pycutlass_operand source(Arguments const& given, pycutlass_operand operand) {{\n"
        f"    return {taken};\n  }}\n#endif\n"
    )


def _pairs(functor: _Typed, members: dict[str, str]) -> str:
    """Return what a function of pairs has beside: tensors of the other number of columns, if there are some."""
    halves, wholes = tuple(port for port in functor.inputs if port.halved), _whole_outputs(functor)
    return (
        "  static constexpr bool kIsGated = true;\n"
        f"{f'  using HalfInputs = {_list(halves, members)};' + chr(10) if halves else ''}"
        f"{f'  using WholeOutputs = {_list(wholes, members)};' + chr(10) if wholes else ''}"
    )


def _whole_outputs(functor: _Typed) -> tuple[Port, ...]:
    """Return the outputs with all columns of a function of pairs."""
    return tuple(port for port in functor.outputs if not port.halved and port.name not in functor.graph.of_many)


def _list(ports: tuple[Port, ...], members: dict[str, str]) -> str:
    each = (f"pycutlass::{_form(port)}<&FunctionArguments::{members[port.name]}, {port.alignment}>" for port in ports)
    return f"pycutlass::List<{', '.join(each)}>"


def _form(port: Port) -> str:
    return "ColumnMajorMatrix" if port.is_by_columns else _FORMS[port.form]


def _reductions(functor: _Typed, members: dict[str, str]) -> str:
    """Return all that is made of many elements: reductions, and behind them what `top_k` selects."""

    def form(value: Value) -> str:
        return (_REDUCED_TILES if value.data[2:] else _REDUCED)[value.data[1]]

    each = [
        f"pycutlass::Reduction<{REDUCTIONS[value.data[0]].cpp}, "
        f"pycutlass::{form(value)}<&FunctionArguments::{members[name]}, 1>>"
        for name, value in functor.graph.reductions
    ]
    each += [_selection(functor, selection, members) for selection in functor.graph.selections]
    return f"pycutlass::List<{', '.join(each)}>"


def _selection(functor: _Typed, selection: Selection, members: dict[str, str]) -> str:
    ports = {port.name: port for port in functor.outputs}
    values, indices = (
        _list(tuple(ports[name] for name in names), members) for names in (selection.values, selection.indices)
    )
    return f"pycutlass::TopK<{selection.k}, {values}, {indices}>"


def _of_many(graph: Graph) -> list[int]:
    """Return the values that are reduced or selected from, in the order of `_reductions`."""
    return [*(value.operands[0] for _, value in graph.reductions), *(each.operand for each in graph.selections)]


def _places(functor: _Typed, source: Port | None, given: str = "in") -> dict[str, str]:
    """Return where inputs are in C++, by their names: `given` is what has one element of each tensor."""
    graph = functor.graph
    tensors = [each.name for each in graph.of_form("source")] + ([source.name] if source else [])
    tensors += [port.name for port in functor.inputs if port is not source and not port.halved]
    places = {graph.inputs[0].name: f"{given}[0]"}
    places |= {name: f"{given}[{number}]" for number, name in enumerate(tensors, 1)}
    return places | {each.name: f"scalars[{number}]" for number, each in enumerate(functor.scalar_table)}


def _body_of_pair(functor: _Typed) -> str:
    """Return the statements that compute one element of two neighbouring columns: values that differ along N twice."""
    graph, lines = functor.graph, list[str]()
    halves = [port.name for port in functor.inputs if port.halved]
    half = {name: f"half[{place}]" for place, name in enumerate(halves)}
    both = _places(functor, None, "even") | half, _places(functor, None, "odd") | half
    for number, value in enumerate(graph.values):
        if value.node in ("reduce", "top_k"):
            continue
        kind = "bool" if graph.is_truth(number) else "Number"
        for column, places in enumerate(both if "n" in graph.axes[number] else both[:1]):
            names = [f"v{each}{f'_{column}' if 'n' in graph.axes[each] else ''}" for each in value.operands]
            if value.node == "pair":
                text = f"v{value.operands[0]}_{value.data[0]}"
            else:
                text = _expression(value, places, names)
            own = f"_{column}" if "n" in graph.axes[number] else ""
            lines.append(f"    {kind} const v{number}{own} = {text};\n")
    outputs, wholes = dict(graph.outputs), _whole_outputs(functor)
    names = ["D", *(port.name for port in functor.outputs if port.halved and port.name not in graph.of_many)]
    taken = [*(outputs[name] for name in names), *_of_many(graph)]
    lines += [f"    out[{place}] = v{number};\n" for place, number in enumerate(taken)]
    for place, port in enumerate(wholes):
        lines += [f"    whole[{place}][{column}] = v{outputs[port.name]}_{column};\n" for column in (0, 1)]
    return "".join(lines)


def _body(functor: _Typed, source: Port | None) -> str:
    """Return the statements that compute one element: a variable for each value."""
    graph, lines, places = functor.graph, list[str](), _places(functor, source)
    for number, value in enumerate(graph.values):
        if value.node in ("reduce", "top_k"):
            continue
        kind = "bool" if graph.is_truth(number) else "Number"
        operands = [f"v{each}" for each in value.operands]
        lines.append(f"    {kind} const v{number} = {_expression(value, places, operands)};\n")
    outputs = dict(graph.outputs)
    names = ["D", *(port.name for port in functor.outputs if port.name not in graph.of_many)]
    taken = [*(outputs[name] for name in names), *_of_many(graph)]
    lines += [f"    out[{place}] = v{number};\n" for place, number in enumerate(taken)]
    return "".join(lines)


def _expression(value: Value, places: dict[str, str], operands: list[str]) -> str:
    """Return a value in C++, of where inputs are and the names of operands."""
    if value.node == "input":
        return places[value.data[0]]
    if value.node == "constant":
        return f"rounded({_literal(float.fromhex(value.data[0]))})"
    if value.node == "cast":
        return f"rounded(pycutlass::function::rounded_to<{element_named(value.data[0]).cpp}>({operands[0]}))"
    node = NODES[value.node]
    text = node.cpp.format(*operands)
    return text if node.makes == "t" or value.node == "where" else f"rounded({text})"


def _literal(number: float) -> str:
    """Return a number in C++: hexadecimal digits are exact."""
    if math.isnan(number):
        return "(pycutlass::function::infinity<Number>() - pycutlass::function::infinity<Number>())"
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}pycutlass::function::infinity<Number>()"
    return f"Number({number.hex()})"
