"""What an epilogue asks of tensors: those that it has beside C and D, by name, and sums that it is exact for."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pycutlass.calls import shown, unknown_keywords
from pycutlass.epilogue import Epilogue, FunctionEpilogue, Port
from pycutlass.epilogue.fast_clamp import for_any_sums
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import attribute, items_of, shape_of
from pycutlass.log import say_once
from pycutlass.operands import (
    Matrix,
    Operand,
    check_alike,
    check_listed,
    empty_matrix,
    empty_matrix_of,
    matrix,
    matrix_of,
    vector,
    vector_of,
)
from pycutlass.operands.checks import OtherTypeError, check_dtype
from pycutlass.operands.pointers import PointerArray, PointerTable, address_table
from pycutlass.remedies import EpilogueName, empty
from pycutlass.spec import TensorSpec, view_of
from pycutlass.tensor import TensorView

__all__ = [
    "check_sums",
    "check_type_of_all",
    "for_batches",
    "given_ports",
    "is_plain_number",
    "listed_port",
    "packed_port",
    "port_name",
    "port_operand",
    "port_operand_of",
    "port_views",
    "taken_apart",
]

_LEAST_ADDRESS = 1 << 16
_LARGEST_PRODUCT = 128 * 128  # of two int8


def given_ports(epilogue: Epilogue, given: Any) -> dict[str, Any]:
    """Return the tensors that are given for an epilogue, by name, without those that are None.

    Raises
    ------
    ArgumentTypeError
        Something else than a mapping from names that the epilogue has.
    """
    names = tuple(port.name for port in epilogue.ports)
    try:
        tensors = dict(given) if isinstance(given, Mapping) else None
    except Exception:  # of whoever wrote the mapping
        tensors = None
    if tensors is None:
        raise ArgumentTypeError(f"epilogue must be a mapping from names to tensors, got {type(given).__name__}")
    unknown = [name if type(name) is str else shown(name) for name in tensors if name not in names]
    scalars = {
        name: f"{name} is a scalar: give output_op=operation.epilogue_type({name}=...)"
        for name in epilogue.scalar_names
    }
    if unknown and not names:
        how = "; ".join(scalars[name] for name in unknown if name in scalars) or "leave out epilogue={...}"
        raise ArgumentTypeError(
            f"the epilogue {_called(epilogue)} has no tensors beside C and D, got {', '.join(unknown)}: {how}"
        )
    if unknown:
        scalars = {name: f"{hint}." for name, hint in scalars.items()}
        raise unknown_keywords(f"the epilogue {_called(epilogue)}", unknown, names, scalars, thing="tensor")
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _called(epilogue: Epilogue) -> str:
    """Return how users call an epilogue."""
    return epilogue.name if isinstance(epilogue, FunctionEpilogue) else type(epilogue).__name__


def port_name(port: Port, *, written: bool) -> EpilogueName:
    """Return the name of a tensor of the epilogue for messages, which knows what a remedy depends on."""
    return EpilogueName(port.name, written, port.form, halved=port.halved)


def port_views(epilogue: Epilogue, given: Mapping[str, Any], *, listed: bool = False) -> dict[str, TensorView]:
    """Return what the tensors of an epilogue look like, where they are `listed` also by names such as ``bias[0]``.

    Numbers are left out: they are refused with more words where they are looked at as tensors.
    """
    views: dict[str, TensorView] = {}
    for port in epilogue.ports:
        tensors, written = given.get(port.name), port in epilogue.outputs
        each = {port.name: tensors}
        if listed and isinstance(tensors, list | tuple):
            each = {f"{port.name}[{number}]": one for number, one in enumerate(tensors)}
        for label, tensor in each.items():
            if tensor is not None and not is_plain_number(tensor):
                views[label] = view_of(EpilogueName(label, written, port.form), tensor)
    return views


def port_operand(port: Port, tensor: Any, rows: int, columns: int, batch: int, *, written: bool) -> Matrix:
    """Return a tensor of the epilogue, checked against its port, for a product of `rows` x `columns`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        It is missing, does not fit, or is written, and a batch would write to one place more than once.
    """
    name = port_name(port, written=written)
    if tensor is None:
        of_a_list = port.name.endswith("]")
        how = "the list has None there" if of_a_list else f"give epilogue={{{port.name!r}: ...}}"
        raise ArgumentError(f"{name}, a {port.form} of the epilogue, is missing: {how}")
    if is_plain_number(tensor) and 0 not in _line(port, rows, columns):  # where any address does
        raise ArgumentTypeError(_about_number(name, port, tensor))
    made = _made(port, tensor, rows, columns, batch, written, (empty_matrix, matrix, vector))
    if port.form == "number" and batch > 1 and made.view.shape is None:  # an address: one behind the other
        return replace(made, batch_stride=1)
    return made


def _about_number(name: EpilogueName, port: Port, number: Any) -> str:
    """Return what is said of a number that is given where memory is read or written."""
    listed, _, index = port.name.partition("[")
    got, of_type = f"got {type(number).__name__} {number:g}", port.type.dtype_name
    if name.written:
        return f"{name}, a result of the epilogue, is written to memory: pass a tensor of {of_type}, {got}"
    if port.form != "number":
        return (
            f"{name}, a {port.form} of the epilogue, lies in memory: pass a tensor of {of_type}, {got}. For a single "
            f"number write {listed}: Scalar"
        )
    how = f"pass {listed} as a tensor" if index else "pass a tensor"
    each = "problem" if index else "matrix of a batch"
    return (
        f"{name}, a number of the epilogue, lies in memory: {how} of {of_type} with an element for each {each}, {got}. "
        f"What is a number itself is a Scalar"
    )


def is_plain_number(value: Any) -> bool:
    """Return whether a value is a number of Python's or NumPy's, and no address, which no integer so small is."""
    if isinstance(value, float | np.floating):
        return True
    return isinstance(value, int | np.integer) and abs(int(value)) < _LEAST_ADDRESS


def port_operand_of(port: Port, view: TensorView, rows: int, columns: int, batch: int, *, written: bool) -> Matrix:
    """Return the tensor of the epilogue that looks like `view`, in memory or to come: as `port_operand` does."""
    return _made(port, view, rows, columns, batch, written, (empty_matrix_of, matrix_of, vector_of))


def _made(
    port: Port, given: Any, rows: int, columns: int, batch: int, written: bool, makers: tuple[Any, Any, Any]
) -> Matrix:
    description, line = port.description, _line(port, rows, columns)
    name = EpilogueName(port.name, written, port.form, _tiles(port, rows, columns), port.halved)
    of_nothing, of_matrices, of_vectors = makers
    columns = port.columns(columns)
    if port.form == "top_k":  # a matrix of its own
        rows, columns = line
    if 0 in line:
        nothing: Matrix = of_nothing(name, description, given, rows, columns, batch)
        return nothing
    if written or not rows or not columns or port.form == "number":  # which stands for no matrix of lines
        rows, columns = line
    make = of_matrices if port.is_matrix else of_vectors
    made: Matrix = make(name, description, given, rows, columns, batch, written=written)
    return made


def packed_port(port: Port, rows: int, columns: int, batch: int, *, is_batched: bool) -> TensorSpec:
    """Return what a tensor of the epilogue is where it is packed, for `batch` products of `rows` x `columns`."""
    line = _line(port, rows, columns)
    shape = line if port.is_matrix else (math.prod(line),)
    strides = (1, rows) if port.is_by_columns else None
    if not is_batched:
        return TensorSpec(shape, port.type.tag, strides)
    return TensorSpec((batch, *shape), port.type.tag, strides and (math.prod(shape), *strides))


def _line(port: Port, rows: int, columns: int) -> tuple[int, int]:
    """Return the extents of a tensor of the epilogue, of a vector those of one line.

    A product has `rows` x `columns`, as D has unless the epilogue combines pairs of columns.
    """
    tiles, columns = _tiles(port, rows, columns), port.columns(columns)
    return {
        "row": (1, columns),
        "column": (rows, 1),
        "number": (1, 1),
        "scalar": (1, 1),
        "row_tiles": (rows * tiles, 1),
        "column_tiles": (1, columns * tiles),
        "top_k": (rows, port.selected),
    }.get(port.form, (rows, columns))


def _tiles(port: Port, rows: int, columns: int) -> int:
    """Return how many tiles have a result of their own in each line; 0 where results of tiles are not apart."""
    along = {"row_tiles": port.columns(columns), "column_tiles": rows}.get(port.form, 0)
    return -(-along // max(port.tile, 1))


def listed_port(
    port: Port, tensors: Any, rows: int, columns: int, batch: int, *, written: bool
) -> PointerArray | PointerTable | Matrix:
    """Return a tensor of the epilogue in ``Mode.Array``: a list of `batch`, one that holds them all, or a table.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        As `port_operand` does, and where the tensors are not alike.
    """
    if tensors is None:
        return port_operand(port, None, rows, columns, batch, written=written)
    if not isinstance(tensors, list | tuple):
        taken = taken_apart(port, tensors, written=written)
        if taken is None or len(taken) != batch:
            lines, line = _line(port, rows, columns)
            ld = 0 if not port.is_matrix else rows if port.is_by_columns else line
            one = (lines, line) if port.is_matrix else (lines * line,)
            return address_table(port_name(port, written=written), port.description, tensors, batch, ld, one)
        tensors = taken
    check_listed(port.name, tensors, batch)
    matrices = tuple(
        port_operand(replace(port, name=f"{port.name}[{number}]"), tensor, rows, columns, 1, written=written)
        for number, tensor in enumerate(tensors)
    )
    check_alike(port.name, matrices)
    return PointerArray(port.name, port.description, matrices)


def taken_apart(port: Port, tensor: Any, *, written: bool) -> tuple[Any, ...] | None:
    """Return the tensors of all problems that one holds along its first dimension; None where it holds no such.

    Raises
    ------
    ArgumentTypeError
        As `check_type_of_all` does.
    """
    shape = shape_of(tensor) or ()
    if not hasattr(tensor, "__getitem__"):  # as objects with __dlpack__ may lack
        return None
    if port.form not in ("number", "scalar"):
        if len(shape) != (3 if port.is_matrix else 2):
            return None
        check_type_of_all(port, tensor, written=written)
        return items_of(tensor, sys.maxsize - 1)
    if not shape or math.prod(shape[1:]) != 1 or "int64" in str(attribute(tensor, "dtype")):  # a table of addresses
        return None
    check_type_of_all(port, tensor, written=written)
    # Elements of (problems,) would be numbers, and no tensors; parts of them are the memory that is written as well.
    return items_of((tensor[number : number + 1] for number in range(shape[0])), sys.maxsize - 1)


def check_type_of_all(port: Port, tensor: Any, *, written: bool) -> None:
    """Raise ArgumentTypeError where one tensor of all problems has another element type than the epilogue's.

    Its parts would be refused by names such as ``bias[0]``, which whoever gave one tensor would not know what to make
    of.
    """
    wanted = port.type.dtype_name
    if str(attribute(tensor, "dtype")).rpartition(".")[2] == wanted:  # the usual way is one step
        return
    name, row_major = port_name(port, written=written), port.description.is_row_major
    view = view_of(name, tensor)
    try:
        check_dtype(name, port.description, view, empty(name, view.library, view.shape or (), wanted, row_major))
    except OtherTypeError as error:
        raise ArgumentTypeError(str(error)) from None


def for_batches(tensor: Any, port: Port, rows: int, columns: int, batch: int, listed: bool) -> Any:
    """Return a tensor that a tree of the original's has, in the shape that launches take, without a copy of it.

    There all are in one piece, of any shape with as many elements: vectors of (batch, 1, N) or (batch, M, 1), say.
    """
    line = _line(port, rows, columns)
    inner = line if port.is_matrix else (math.prod(line),)
    shape = inner if batch == 1 and not listed else (batch, *inner)
    given = shape_of(tensor)
    if given is None or given in (shape, inner) or math.prod(given) != math.prod(shape):
        return tensor
    view = getattr(tensor, "view", None) if type(tensor).__module__.startswith("torch") else None
    if isinstance(tensor, np.ndarray) and tensor.flags.c_contiguous:
        return tensor.reshape(shape)
    return view(shape) if view is not None and tensor.is_contiguous() else tensor


def check_sums(functor: Epilogue, A: Operand, B: Operand, k: int) -> None:
    """Raise ArgumentError where sums of `k` products of A and B may leave the range that the epilogue is exact in.

    Up to the functor's own K no int8 operands leave it. Beyond that it depends on what they hold: that is known of
    memory of the host, which is read when arguments are made, and of nothing on a GPU, where it may be another thing
    at each launch.
    """
    if functor.max_k is None or k <= functor.max_k:
        return
    name, most = type(functor).__name__, functor.max_k * _LARGEST_PRODUCT
    a, b = _greatest(A), _greatest(B)
    if a is None or b is None:
        raise ArgumentError(
            f"{name} holds for K of at most {functor.max_k} whatever the operands are, got K={k}, and what they hold "
            f"is known of arrays in host memory alone: use {for_any_sums(functor)}"
        )
    if a * b * k > most:
        raise ArgumentError(
            f"{name} is exact for sums up to {most:,}, got K={k} with elements up to {a} in {A.name} and {b} in "
            f"{B.name}, which may add up to {a * b * k:,}: use {for_any_sums(functor)}"
        )
    say_once(
        f"{name} is exact for sums up to {most:,}, which K of at most {functor.max_k} always keeps to. Larger K, as "
        f"K={k}, is taken where the operands are small enough; LinearCombinationClamp takes any",
        cause=f"sums of {name}",
    )


def _greatest(operand: Operand) -> int | None:
    """Return the largest magnitude in an operand, or None where it isn't known."""
    if operand.view.device is not None:
        return None
    values = operand.host_array()
    return max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0
