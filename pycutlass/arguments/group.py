"""The problems of a grouped GEMM, checked: a list of tensors for each operand, or tables that are on the device."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pycutlass.arguments.given import check_source
from pycutlass.calls import counted, shown
from pycutlass.epilogue import EpilogueScalars, Port
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import items_of, shape_of
from pycutlass.launch.grouped import TABLES, GroupProblem, Table, TableProblem
from pycutlass.library import TensorDescription
from pycutlass.operands import Matrix, check_writable, empty_matrix, is_vector, matrix, vector
from pycutlass.operands.epilogue import check_sums, port_operand
from pycutlass.operands.overlaps import check_many_overlaps
from pycutlass.operands.reordered import UNCHANGED, Reordering
from pycutlass.operation.group_support import Sizes, as_sequence, check_count_of, extents_of, shared
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.remedies import copied
from pycutlass.tensor import wrap

__all__ = ["exceeds", "group_problem", "listed", "table_problem"]


def group_problem(
    operation: GemmOperationGrouped,
    given: Mapping[str, Any],
    scalars: EpilogueScalars,
    bias: bool | None,
    reorder: Reordering,
) -> GroupProblem:
    """Return the problems with every operand checked.

    Parameters
    ----------
    given : mapping
        ``problem_sizes``, checked, and a sequence of tensors under each of A, B, C and D.
    bias : bool, optional
        Take every C as a vector; None recognises vectors.
    reorder : Reordering
        How every B comes to the order in which kernels read it.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Lists of different lengths, a tensor that does not fit, tensors on different GPUs, or a D that overlaps
        something that is read or another D.
    """
    sizes: Sizes = given["problem_sizes"]
    functor = operation.epilogue_functor
    if scalars.needs_source:
        check_source(given["C"], functor)
    names = "ABCD" if scalars.needs_source else "ABD"
    groups = {
        name: _operands(operation, name, given[name], sizes, bias, reorder if name == "B" else UNCHANGED)
        for name in names
    }
    for port in functor.ports:
        tensors, is_written = given.get(port.name), port in functor.outputs
        groups[port.name] = _port_operands(port.beside(operation.C), tensors, sizes, written=is_written)
    _check_place(groups.values())
    if exceeds(operation, sizes):
        for A, B, size in zip(groups["A"], groups["B"], sizes.tolist(), strict=True):
            if min(size):
                check_sums(operation.epilogue_functor, A, B, size[2])
    written = ("D", *(port.name for port in functor.outputs))
    for target in itertools.chain.from_iterable(groups[name] for name in written):
        check_writable(target)
    check_many_overlaps(groups, "a group", written, functor.matrices_read)
    operands = {each.name: each for group in groups.values() for each in group}
    return GroupProblem(operation, sizes, groups, operands, scalars, bias)


def exceeds(operation: GemmOperationGrouped, sizes: Sizes) -> bool:
    """Return whether a K is larger than the epilogue holds for whatever the operands are."""
    max_k = operation.epilogue_functor.max_k
    return max_k is not None and int(sizes[:, 2].max()) > max_k


def listed(name: str, tensors: Any) -> Any:
    """Return the matrices of one operand as a tuple, which its owner cannot change behind our back.

    A tensor of three dimensions holds one for each problem; as C also one of two, of bias vectors. Anything else is
    returned as it is.
    """
    if type(tensors) is list:  # as it almost always is; a class of its own may raise what it likes
        return tuple(tensors)
    if isinstance(tensors, list):
        return items_of(tensors, sys.maxsize - 1)
    dimensions = len(shape_of(tensors) or ())
    if not (dimensions == 3 or (dimensions == 2 and name == "C")) or not hasattr(tensors, "__getitem__"):
        return tensors
    return items_of(tensors, sys.maxsize - 1)


def _operands(
    operation: GemmOperationGrouped,
    name: str,
    tensors: Any,
    sizes: Sizes,
    bias: bool | None,
    reorder: Reordering,
) -> tuple[Matrix, ...]:
    """Return one operand of every problem."""
    if tensors is None:
        raise ArgumentError(f"operand {name} is missing: give a list of {len(sizes)} tensors, one for each problem")
    given, tensors = tensors, as_sequence(f"operand {name}", tensors, shared(name, sizes))
    check_count_of(name, given, len(tensors), sizes)
    description: TensorDescription = getattr(operation, "C" if name == "D" else name)
    rows, columns = extents_of(operation.single, name, sizes).T.tolist()
    takes_bias = bias if name == "C" else False
    return tuple(
        _operand(f"{name}[{number}]", description, tensors[number], rows[number], columns[number], takes_bias, reorder)
        for number in range(len(sizes))
    )


def _port_operands(port: Port, tensors: Any, sizes: Sizes, *, written: bool) -> tuple[Matrix, ...]:
    """Return a tensor that the epilogue has, of every problem."""
    name = port.name
    if tensors is None:
        raise ArgumentError(
            f"{name}, a {port.form} of the epilogue, is missing: give epilogue={{{name!r}: [...]}}, with a tensor for "
            f"each of {len(sizes)} problems"
        )
    extents = {"row": slice(1, 2), "column": slice(0, 1), "matrix": slice(0, 2)}.get(port.form)
    one_for_all = ""
    if not written and extents is not None and not (sizes[:, extents] != sizes[:1, extents]).any():
        one_for_all = f"; for one {name} of all problems give epilogue={{{name!r}: [{name}] * {len(sizes)}}}"
    listed = as_sequence(f"operand {name}", tensors, one_for_all)
    if len(listed) != len(sizes):
        raise ArgumentError(
            f"operand {name} has {counted(len(listed), 'tensor')}, and problem_sizes {counted(len(sizes), 'problem')}: "
            f"a group needs one tensor for each problem in each list"
        )
    return tuple(
        port_operand(replace(port, name=f"{name}[{number}]"), listed[number], m, n, 1, written=written)
        for number, (m, n, _) in enumerate(sizes.tolist())
    )


def _operand(
    name: str,
    description: TensorDescription,
    tensor: Any,
    rows: int,
    columns: int,
    bias: bool | None,
    reorder: Reordering,
) -> Matrix:
    if not rows or not columns:
        return empty_matrix(name, description, tensor, rows, columns)
    if is_vector(description, tensor, rows, columns) if bias is None else bias:
        return vector(name, description, tensor, rows, columns)
    return reorder.operand(lambda given: matrix(name, description, given, rows, columns), tensor)


def _check_place(groups: Iterable[tuple[Matrix, ...]]) -> None:
    """Raise where two tensors are on different GPUs, naming just these two."""
    first: Matrix | None = None
    for each in (each for group in groups for each in group):
        if each.view.device is None or each.view.device < 0:
            continue
        first = first or each
        if each.view.device != first.view.device:
            raise ArgumentError(
                f"all operands of a group must be on one GPU, got {first.name} on GPU {first.view.device} and "
                f"{each.name} on GPU {each.view.device}: move them to one"
            )


def table_problem(
    operation: GemmOperationGrouped, given: Mapping[str, Any], scalars: EpilogueScalars, count: int, most_tiles: int
) -> TableProblem:
    """Return the problem with every table checked: element type, shape, contiguity, and that all are on one GPU.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A table is missing or does not fit.
    """
    if selected := [port.name for port in operation.epilogue_functor.outputs if port.selected]:
        raise ArgumentError(
            f"the epilogue {operation.epilogue_functor!r} selects the largest of each row to {', '.join(selected)}, "
            f"for which rows must fit a tile, and from_device leaves their sizes to the device: pass sizes and tensors "
            f"to GemmGroupedArguments, or write D and select in a kernel of its own"
        )
    if reduced := [port.name for port in operation.epilogue_functor.outputs if port.form != "matrix"]:
        raise ArgumentError(
            f"the epilogue {operation.epilogue_functor!r} reduces D to {', '.join(reduced)}, for which the host "
            f"divides memory among the problems, and from_device leaves their sizes to the device: pass sizes and "
            f"tensors to GemmGroupedArguments, or leave the reductions to a kernel behind the group"
        )
    names = [name for name in TABLES if name not in ("C", "ldc") or scalars.needs_source]
    operands = {name: _table(TABLES[name], given[name], _wanted(name, count)) for name in names}
    for port in operation.epilogue_functor.ports:
        operands |= _port_tables(port, given.get(port.name), count)
    places = {table.view.device: table.name for table in operands.values()}
    if None in places:
        raise ArgumentError(
            f"{places[None]} is in host memory, and the kernel reads it on the GPU: move it there. Where the host "
            f"knows sizes and tensors, pass them to GemmGroupedArguments"
        )
    if len(places) > 1:
        listed = ", ".join(f"{name} on GPU {place}" for place, name in places.items())
        raise ArgumentError(f"all tables of a group must be on one GPU, got {listed}")
    return TableProblem(operation, count, most_tiles, operands, scalars)


def _port_tables(port: Port, given: Any, count: int) -> dict[str, Table]:
    """Return the tables of a tensor that the epilogue has: of addresses, and of a matrix of leading dimensions, too.

    Numbers of the problems may lie in a table themselves.
    """
    name, address = port.name, (("int64", "uint64"), (count,))
    if port.form == "number":
        return {name: _table(name, given, ((port.type.dtype_name, *address[0]), (count,)))}
    if port.form != "matrix":
        return {name: _table(name, given, address)}
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ArgumentTypeError(
            f"{name}, a matrix of the epilogue, is given as two tables of {count} entries, (addresses, leading "
            f"dimensions); got {shown(given)}"
        )
    strides = _table(f"the table of leading dimensions of {name}", given[1], (("int64",), (count,)))
    return {name: _table(name, given[0], address), f"ld of {name}": strides}


def _wanted(key: str, count: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the element types and the shape of a table."""
    if key == "problem_sizes":
        return ("int32",), (count, 3)
    return ("int64", "uint64") if key in "ABCD" else ("int64",), (count,)


def _table(name: str, tensor: Any, wanted: tuple[tuple[str, ...], tuple[int, ...]]) -> Table:
    dtypes, shape = wanted
    if tensor is None:
        raise ArgumentError(f"{name} is missing: a group on the device needs a table with one entry for each problem")
    view = wrap(name, tensor)
    if view.dtype_name not in dtypes:
        raise ArgumentTypeError(f"{name} must be a device tensor of {dtypes[0]}, got {view.dtype_name or 'an address'}")
    if view.shape != shape:
        raise ArgumentError(
            f"{name} must have shape {shape}, an entry for each of problem_count={shape[0]} problems; got {view.shape}"
        )
    if view.strides != ((3, 1) if len(shape) == 2 else (1,)) and shape[0] > 1:
        packed = copied(name, view.library, len(shape), True) or "a contiguous copy"
        raise ArgumentError(f"{name} must be contiguous, got strides {view.strides}; pass {packed}")
    return Table(name, view)
