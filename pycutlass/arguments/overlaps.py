"""Whether what a launch writes shares memory with what it reads, or with something else that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.errors import ArgumentError
from pycutlass.operands import Matrix, check_overlap

__all__ = ["check_many_overlaps", "check_overlaps", "span"]


def check_overlaps(operands: Mapping[str, Matrix]) -> None:
    """Raise ArgumentError where D overlaps what is read, as far as that is known; C may be D itself."""
    target = operands["D"]
    for name in ("A", "B"):
        if name in operands:
            check_overlap(target, operands[name])
    source = operands.get("C")
    if source is not None and _place(source) != _place(target):
        check_overlap(target, source)


def check_many_overlaps(groups: Mapping[str, Sequence[Matrix]], what: str) -> None:
    """Raise ArgumentError where a D overlaps another D or what any problem reads; C[i] may be D[i] itself.

    `what` the problems belong to is named in the message.
    """
    targets = _spans(groups["D"])
    for name, sources in groups.items():
        found = _core.find_overlap(targets, _spans(sources), name in "CD")
        if found is None:
            continue
        target, source = groups["D"][found[0]], sources[found[1]]
        rule = "two problems cannot write to one place" if name == "D" else "a GEMM cannot write over what is read"
        raise ArgumentError(
            f"{target.name} overlaps {source.name} in memory ({target.name} at {target.view.pointer:#x} with "
            f"{target.bytes:,} bytes, {source.name} at {source.view.pointer:#x} with {source.bytes:,} bytes): problems "
            f"of {what} run in any order, and {rule}. Give {target.name} memory of its own."
        )


def span(operand: Matrix) -> tuple[int, int, int, int]:
    """Return address, bytes, bytes of a line, and bytes between the beginnings of lines (0 for one line)."""
    bits = operand.description.type.bits
    pitch = operand.ld * bits // 8 if operand.lines > 1 else 0
    return operand.view.pointer, operand.bytes, operand.line * bits // 8, pitch


def _spans(matrices: Sequence[Matrix]) -> NDArray[np.uint64]:
    """Where matrices lie, for `_core.find_overlap`."""
    return np.array([span(each) for each in matrices], np.uint64)


def _place(operand: Matrix) -> tuple[int, int, int]:
    return operand.view.pointer, operand.ld, operand.batch_stride
