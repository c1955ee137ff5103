"""What an operand is, as Python once decided it: a reference for the extension, which decides now."""

from __future__ import annotations

import itertools
import math

import numpy as np

from pycutlass.library import TensorDescription
from pycutlass.tensor import TensorView

__all__ = ["decide_matrix", "decide_vector"]

_LD_LIMIT = 2**31

#: Leading dimension and batch stride, or the rule that is broken.
Decision = tuple[int, int] | str


def decide_matrix(
    name: str, description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int, *, written: bool
) -> Decision:
    written = written or name == "D"
    order = description.order
    line = (columns if order.is_row_major else rows) * order.interleave
    across = rows if order.is_row_major else columns
    if across % order.interleave:
        return "interleave"
    packed = (line, rows * columns if batch > 1 else 0)
    found: Decision
    if view.shape is None or view.strides is None:
        found = packed
    elif len(view.shape) == 1:
        found = _flat(written, view.shape[0], view.strides[0], packed, rows * columns, batch)
    elif order.interleave > 1:
        return "dimensions"
    else:
        found = _strided(name[0] != "B", description, view, rows, columns, batch, written)
    if isinstance(found, str):
        return found
    if found[0] >= _LD_LIMIT:
        return "ld limit"
    return _misaligned(description, view.pointer, line, *found) or found


def decide_vector(
    description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int, *, written: bool
) -> Decision:
    line = (columns if description.is_row_major else rows) * description.order.interleave
    found: Decision = (0, 0)
    if view.shape is not None and view.strides is not None:
        is_column = tuple(view.shape[-2:]) == (line, 1)
        if description.is_row_major and rows == columns != 1 and is_column:
            return "column"
        found = _vector(line, batch, [each for each in zip(view.shape, view.strides, strict=True) if each[0] != 1])
    if isinstance(found, str):
        return found
    if found[1] < 0:
        return "batch reversed"
    if written and batch > 1 and found[1] < line:
        return "batch overlap"
    return _misaligned(description, view.pointer, line, *found) or found


def _vector(line: int, batch: int, kept: list[tuple[int, int]]) -> Decision:
    one, many = (line, 1), (batch * line, 1)
    if kept == [one] or (not kept and line == 1):
        return 0, 0
    if batch > 1:
        if kept == [many]:
            return 0, line
        vectors = kept if line > 1 else [*kept, one]
        if len(vectors) == 2 and vectors[0][0] == batch and vectors[1] == one:
            return 0, vectors[0][1]
    return "vector"


def _flat(written: bool, elements: int, step: int, packed: tuple[int, int], one: int, batch: int) -> Decision:
    if step != 1 and elements != 1:
        return "flat step"
    if elements == batch * one:
        return packed
    return (packed[0], 0) if elements == one and not written else "flat elements"


def _strided(
    folds: bool, description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int, written: bool
) -> Decision:
    shape, strides, batch_stride = view.shape, view.strides, 0
    assert shape is not None and strides is not None
    if len(shape) == 3 and batch > 1:
        if shape[0] != batch:
            return "shape"
        batch_stride, shape, strides = strides[0], shape[1:], strides[1:]
    if len(shape) > 2 and all(extent == 1 for extent in shape[:-2]):
        shape, strides = shape[-2:], strides[-2:]
    if len(shape) > 2 and folds and shape[-1] == columns and math.prod(shape[:-1]) == rows:
        kept = [each for each in zip(shape[:-1], strides[:-1], strict=True) if each[0] != 1]
        if any(outer != extent * inner for (_, outer), (extent, inner) in itertools.pairwise(kept)):
            return "rows apart"
        shape, strides = (rows, columns), (kept[-1][1] if kept else strides[-2], strides[-1])
    if tuple(shape) != (rows, columns):
        return "shape"
    line, lines = (columns, rows) if description.is_row_major else (rows, columns)
    adjacent, ld = (strides[1], strides[0]) if description.is_row_major else (strides[0], strides[1])
    if adjacent != 1 and line != 1:
        turned = ld == 1 and adjacent >= lines and not _misaligned(description, view.pointer, lines, adjacent, 0)
        return "other layout" if turned else "adjacent"
    if lines == 1 or line == 0:
        ld = line
    if ld < 0:
        return "reversed"
    if ld < line:
        return "self overlap"
    if ld >= _LD_LIMIT:
        return "ld limit"
    if batch_stride < 0:
        return "batch reversed"
    if written and batch > 1 and line and lines and _meet(line, lines, ld, batch, batch_stride):
        return "batch overlap"
    return ld, batch_stride


def _meet(line: int, lines: int, ld: int, batch: int, batch_stride: int) -> bool:
    """Return whether two matrices of a batch share an element.

    A matrix that is `apart` elements behind another has a line `apart % ld` behind one line of that, and `ld` less
    before the next, as far as there are such lines.
    """
    apart = np.arange(1, batch, dtype=np.int64) * batch_stride
    behind_lines, behind = np.divmod(apart, ld)
    meets = (behind_lines < lines) & (behind < line)
    return bool((meets | ((behind_lines + 1 < lines) & (ld - behind < line))).any())


def _misaligned(description: TensorDescription, pointer: int, line: int, ld: int, batch_stride: int) -> str:
    values = {"line alignment": line, "ld alignment": ld, "batch alignment": batch_stride}
    for rule, value in values.items():
        if value % description.alignment:
            return rule
    return "address alignment" if pointer % description.alignment_bytes else ""
