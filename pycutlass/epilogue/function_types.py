"""What an epilogue function may be made of: its types, names, numbers and layouts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.calls import counted
from pycutlass.epilogue.graph import Graph
from pycutlass.epilogue.protocol import Port
from pycutlass.errors import DescriptionError
from pycutlass.library import TensorDescription
from pycutlass.types import ELEMENTS, Element

__all__ = [
    "check_bytes",
    "check_constants",
    "check_indices",
    "check_names",
    "check_pairs",
    "check_port",
    "check_types",
    "described_as",
    "lost_defaults",
]

_COMPUTE = ("f16", "bf16", "f32", "f64")
_STORED = ("f16", "bf16", "f32", "f64", "s8", "u8", "s32", "e4m3", "e5m2")
#: Powers of two of the smallest numbers of the types that are computed in.
_LEAST_EXPONENTS = {"f16": -24, "bf16": -133, "f32": -149}
#: Bytes that a call record has for a name, without the last (include/pycutlass/abi.h).
_LONGEST_NAME = 23
#: Bytes that the parameters of a kernel have at most, and of them a scalar and a tensor (include/pycutlass/epilogue.h).
_MOST_BYTES, _SCALAR_BYTES, _PORT_BYTES = 32764, 16, 24


def check_types(name: str, output: Element, compute: Element) -> None:
    """Raise DescriptionError where a function cannot write or compute in a type."""
    if compute.short not in _COMPUTE:
        raise DescriptionError(
            f"element_epilogue of {name} must be one of {_listed(_COMPUTE)}, got {compute}: an epilogue function "
            f"computes in fractions"
        )
    if output.short not in _STORED:
        raise DescriptionError(f"{name} can write {_listed(_STORED)}; got element_output={output}")


def check_port(name: str, port: str, kind: Element, is_reduced: bool) -> None:
    """Raise DescriptionError where a tensor cannot be of a type."""
    known = ("f32", "f64") if is_reduced else _STORED
    if kind.short not in known:
        what = "a reduction of" if is_reduced else "a tensor of"
        raise DescriptionError(f"{port}, {what} {name}, can be of {_listed(known)}; got {kind}")


def check_indices(name: str, port: str, kind: Element) -> None:
    """Raise DescriptionError where indices are of another type than int32."""
    if kind.short != "s32":
        raise DescriptionError(f"{port}, indices that top_k of {name} returns, are of cutlass.int32; got {kind}")


def described_as(name: str, port: Port, given: Any) -> Port:
    """Return the port of a tensor that `given` describes in place of a type: a matrix with its layout and alignment.

    Raises
    ------
    DescriptionError
        No matrix, or a layout that is none of matrices.
    """
    if not isinstance(given, TensorDescription):
        return port
    if port.form != "matrix":
        raise DescriptionError(
            f"{port.name} of {name} is a {port.form}, which has no layout: give its type alone, "
            f"{port.name}={given.type}"
        )
    if given.layout not in (_core.RowMajor, _core.ColumnMajor):
        raise DescriptionError(
            f"{port.name} of {name} is a matrix of the extents of D: describe it with cutlass.RowMajor or "
            f"cutlass.ColumnMajor, got {given.order}"
        )
    return replace(
        port, layout=given.layout, alignment=min(port.alignment, given.alignment) if given.is_row_major else 1
    )


def check_names(name: str, graph: Graph) -> None:
    """Raise DescriptionError for names that a call record cannot have."""
    for each in (*(given.name for given in graph.inputs[1:]), *(output for output, _ in graph.outputs)):
        if not each.isascii() or len(each) > _LONGEST_NAME:
            raise DescriptionError(
                f"{name} has a parameter or an output {each!r}, of {len(each)} letters: such names have at most "
                f"{_LONGEST_NAME} letters, of ASCII. Use another one"
            )


def check_constants(name: str, graph: Graph, compute: Element) -> None:
    """Raise DescriptionError where a number of the function becomes 0 or infinite in the type that is computed in.

    Defaults, which a launch need not use, are for `lost_defaults`.
    """
    for value in graph.values:
        if value.node == "constant" and (lost := _why_lost(float.fromhex(value.data[0]), compute)):
            raise DescriptionError(f"{_place(graph, value.data[0])}{name} has the number {lost}")


def lost_defaults(name: str, graph: Graph, compute: Element) -> dict[str, str]:
    """Return why defaults become 0 or infinite in the type that is computed in, by the names of their scalars."""
    defaults = {each.name: each.default for each in graph.inputs if each.default is not None}
    why = {scalar: _why_lost(default, compute, f"{scalar}=") for scalar, default in defaults.items()}
    return {scalar: f"{_place(graph, scalar)}{name} has the number {lost}" for scalar, lost in why.items() if lost}


def _place(graph: Graph, key: str) -> str:
    return dict(graph.places).get(key, "")


def _why_lost(number: float, compute: Element, called: str = "") -> str:
    """Return that a number becomes 0 or infinite in the type that is computed in, with what to do; "" if it does not.

    A scalar, which `called` begins with, may be given another number than its default.
    """
    with np.errstate(over="ignore", under="ignore"):
        single = np.asarray(number, np.float32)
        kept = number if compute.short == "f64" else float(compute.round(single))
    if not math.isfinite(number) or (kept != 0 and math.isfinite(kept)) or kept == number:
        return ""
    wider = "float64 operands with element_epilogue=cutlass.float64"
    if math.isfinite(single) and single != 0:
        wider = "element_epilogue=cutlass.float32"
    this, use = f"{called}{_digits(number)}, which", "give or use" if called else "use"
    if kept:
        return f"{this} is beyond {compute}: {use} a smaller one, or {wider}. It would be {kept:g} there"
    least = 2.0 ** _LEAST_EXPONENTS.get(compute.short, -1074)
    return (
        f"{this} becomes {kept:g} in {compute}, the type that it is computed in: {use} one of at least "
        f"{least:.3g} in magnitude, or {wider}"
    )


def check_bytes(name: str, scalars: int, tensors: int) -> None:
    """Raise DescriptionError where what a launch is given is beyond what a kernel's parameters can be."""
    size = _SCALAR_BYTES * scalars + _PORT_BYTES * tensors
    if size > _MOST_BYTES:
        raise DescriptionError(
            f"{name} has {counted(scalars, 'scalar')} and {counted(tensors, 'tensor')}, {size:,} bytes of a launch, "
            f"and parameters of a kernel have at most {_MOST_BYTES:,}: put numbers together in a Row, Column or Tensor"
        )


def _digits(number: float) -> str:
    """Return a number as briefly as it can be written without another one being meant."""
    return brief if float(brief := f"{number:g}") == number else repr(number)


def check_pairs(name: str, graph: Graph, length: int) -> None:
    """Raise DescriptionError where neighbouring columns are not in one access."""
    if graph.is_gated and length < 2:
        raise DescriptionError(
            f"{name} combines pairs of neighbouring columns, which a thread has in one access: give it "
            f"epilogue_vector_length=2 at least, and describe C with that alignment; got {length}"
        )


def _listed(shorts: tuple[str, ...]) -> str:
    return ", ".join(str(row) for row in ELEMENTS if row.short in shorts)
