"""Whether what a launch writes shares memory with what it reads, or with something else that it writes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.errors import ArgumentError
from pycutlass.operands.checks import check_writable
from pycutlass.operands.operand import Matrix, Operand
from pycutlass.operands.pointers import PointerArray
from pycutlass.remedies import EpilogueName

__all__ = ["check_many_overlaps", "check_overlap", "check_overlaps", "check_target", "renamed", "span"]

_Error = TypeVar("_Error", bound=Exception)


def check_target(operands: dict[str, Operand], outputs: Sequence[str] = (), inputs: Sequence[str] = ()) -> None:
    """Check that D can be written without changing what is read; tables of addresses say nothing of it.

    `inputs` of the epilogue may be D itself, as C may: a thread reads an element of theirs before it writes that of D.
    """
    target = operands["D"]
    if isinstance(target, Matrix):
        written = ("D", *outputs)
        for name in written:
            check_writable(cast("Matrix", operands[name]))
        matrices = {name: each for name, each in operands.items() if isinstance(each, Matrix)}
        check_overlaps(matrices, written, inputs)
    else:  # also where D is a table, other outputs may be lists
        lists = {name: operand.matrices for name, operand in operands.items() if isinstance(operand, PointerArray)}
        listed = [name for name in ("D", *outputs) if name in lists]
        for each in itertools.chain.from_iterable(lists[name] for name in listed):
            check_writable(each)
        check_many_overlaps(lists, "an array", listed, inputs)


def check_overlaps(operands: Mapping[str, Matrix], written: Sequence[str] = ("D",), inputs: Sequence[str] = ()) -> None:
    """Raise ArgumentError where what is written overlaps anything else, as far as is known.

    C may be D itself, and so may `inputs` of the epilogue.
    """
    target, source = operands["D"], operands.get("C")
    if source is not None and (_place(source) != _place(target) or source.description != target.description):
        check_overlap(target, source)
    for name, other in itertools.product(written, operands):
        if {name, other} == {"C", "D"} or name == other or (other in written and name > other):
            continue
        if not (name == "D" and other in inputs and _is_itself(target, operands[other])):
            check_overlap(operands[name], operands[other], are_written=other in written)


def check_overlap(target: Matrix, source: Matrix, *, are_written: bool = False) -> None:
    """Raise ArgumentError where writing `target` would change `source`, which is read or written: they share a byte."""
    if _core.share_memory(_batch(target), _batch(source)):
        why = "two results cannot be in one place" if are_written else "a kernel cannot write over what it still reads"
        raise _overlapping(target, source, why)


def check_many_overlaps(
    groups: Mapping[str, Sequence[Matrix]], what: str, written: Sequence[str] = ("D",), inputs: Sequence[str] = ()
) -> None:
    """Raise ArgumentError where what a problem writes overlaps what another writes or any reads.

    C[i] may be D[i], and so may those of `inputs`. `what` the problems belong to is named in the message.
    """
    for target in written:
        targets = _spans(groups[target])
        for name, sources in groups.items():
            is_input = name in inputs and all(_is_alike(*pair) for pair in zip(groups[target], sources, strict=True))
            in_place = name == target or (target == "D" and (name == "C" or is_input))
            found = _core.find_overlap(targets, _spans(sources), in_place)
            if found is not None:
                rule = (
                    "two problems cannot write to one place" if name in written else "none can write over what is read"
                )
                why = f"problems of {what} run in any order, and {rule}"
                raise _overlapping(groups[target][found[0]], sources[found[1]], why)


def _overlapping(target: Matrix, source: Matrix, why: str) -> ArgumentError:
    """Return the exception for what is written over something else, with the rule that this breaks."""
    at, there = (f"at {each.view.pointer:#x} with {each.bytes:,} bytes" for each in (target, source))
    return _said((target.name, source.name), (at, there, why))


def _said(names: tuple[str, str], found: tuple[str, str, str]) -> ArgumentError:
    """Return the exception about two places by the names of what is there, which `renamed` may change."""
    (one, other), (at, there, why) = names, found
    error = ArgumentError(
        f"{one} overlaps {other} in memory ({one} {at}, {other} {there}): {why}. Give {one} memory of its own."
    )
    error.__dict__.update(_names=names, _found=found)  # of which `renamed` makes another one; pickled with it
    return error


def renamed(error: _Error, names: Mapping[str, str]) -> _Error | ArgumentError:
    """Return an exception about an overlap by what its caller calls the operands; any other one as it is.

    Tensors of an epilogue keep their names, which its author chose; those in lists of a group may get other indices.
    """
    if "_found" not in vars(error):
        return error
    one, other = (each if _is_kept(each) else names.get(each, each) for each in vars(error)["_names"])
    return _said((one, other), vars(error)["_found"])


def _is_kept(name: str) -> bool:
    return isinstance(name, EpilogueName) and not name.endswith("]")


def span(operand: Matrix) -> tuple[int, int, int, int]:
    """Return address, bytes, bytes of a line, and bytes between the beginnings of lines (0 for one line)."""
    bytes_of = operand.description.type.bytes_of
    pitch = bytes_of(operand.ld) if operand.lines > 1 else 0
    return operand.view.pointer, operand.bytes, bytes_of(operand.line), pitch


def _batch(operand: Matrix) -> tuple[int, int, int, int, int, int]:
    """Return where matrices lie, for `_core.share_memory`."""
    bytes_of = operand.description.type.bytes_of
    begin, _, line, pitch = span(operand)
    one = bytes_of((operand.lines - 1) * operand.ld + operand.line)
    return begin, one, line, pitch, operand.matrices, bytes_of(operand.batch_stride)


def _spans(matrices: Sequence[Matrix]) -> NDArray[np.uint64]:
    """Where matrices lie, for `_core.find_overlap`."""
    return np.array([span(each) for each in matrices], np.uint64)


def _is_itself(target: Matrix, source: Matrix) -> bool:
    """Return whether a matrix that is read is the one that is written, element for element."""
    return _place(source) == _place(target) and _is_alike(target, source)


def _is_alike(target: Matrix, source: Matrix) -> bool:
    """Return whether elements of two matrices are of one type and in one order."""
    one, other = target.description, source.description
    extents = (target.rows, target.columns, target.matrices) == (source.rows, source.columns, source.matrices)
    return extents and one.type is other.type and one.layout is other.layout and bool(source.ld)


def _place(operand: Matrix) -> tuple[int, int, int]:
    return operand.view.pointer, operand.ld, operand.batch_stride
