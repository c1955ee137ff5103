"""Extents that may be symbols, and which part of a product's result a tensor beside it stands for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pycutlass.pytorch.regions.region import Extent, TensorForm
from pycutlass.spec import TensorSpec

__all__ = [
    "Form",
    "extents_of",
    "form_of",
    "hint_of",
    "is_hinted",
    "is_whole",
    "packed_spec",
    "same",
    "tensor_form",
    "without_ones",
]

Shape = tuple[Any, ...]


def same(x: Any, y: Any) -> bool:
    """Return whether two extents are known to be equal, without a guard."""
    if type(x) is int and type(y) is int:
        return x == y
    return bool(statically_known_true(x == y))


def hint_of(extent: Any) -> int:
    """Return a number that an extent may be: of a symbol that of the example inputs."""
    if isinstance(extent, int):
        return extent
    return int(extent.node.hint) if is_hinted(extent) else 1024


def is_hinted(symbol: torch.SymInt) -> bool:
    """Return whether the example inputs have a number for a symbol: those of ragged axes have none."""
    return symbol.node.has_hint() and isinstance(symbol.node.hint, int)


def extents_of(shape: Any) -> tuple[Extent, ...]:
    """Return a shape with texts for symbols."""
    return tuple(each if type(each) is int else str(each.node.expr) for each in shape)


def without_ones(shape: Shape) -> Shape:
    """Return a shape without the extents of 1 at its beginning."""
    at = 0
    while at < len(shape) and same(shape[at], 1):
        at += 1
    return shape[at:]


def is_whole(kind: str, shape: Shape, product: Shape) -> bool:
    """Return whether a view of this shape has the rows and columns of a product's result, in their order."""
    if kind == "conv2d":
        return len(shape) == len(product) and all(map(same, shape, product))
    kept = 2 if kind == "bmm" else 1
    if len(shape) < kept or not all(map(same, shape[-kept:], product[-kept:])):
        return False
    count = expected = 1
    for each in shape[:-kept]:
        count = count * each
    for each in product[:-kept]:
        expected = expected * each
    return same(count, expected)


@dataclass(frozen=True)
class Form:
    """What a tensor is for the rows and columns of a result.

    Attributes
    ----------
    name : str
        ``"row"``, ``"column"``, ``"matrix"`` or ``"number"``.
    shape : tuple
        What it is reshaped to, with at most one -1; None where it is taken as it is.
    """

    name: str
    shape: Shape | None


def form_of(kind: str, shape: Shape, whole: Shape) -> Form | None:
    """Return what a tensor is that broadcasts to a value of shape `whole`; None where no kernel repeats it so."""
    stripped = without_ones(shape) if len(shape) > len(whole) else shape
    if len(stripped) > len(whole):
        return None
    shape = (1,) * (len(whole) - len(stripped)) + tuple(stripped)
    ones = [same(each, 1) for each in shape]
    full = [same(x, y) for x, y in zip(shape, whole, strict=True)]
    if not all(x or y for x, y in zip(ones, full, strict=True)):
        return None
    if all(ones):
        return Form("number", (1,))
    if kind == "conv2d":
        return _of_images(ones, full, whole)
    if kind == "bmm":
        return _of_batch(ones, full, whole)
    return _of_rows(ones, full, whole)


def _of_images(ones: list[bool], full: list[bool], whole: Shape) -> Form | None:
    if all(full):
        return Form("matrix", None)
    if full[1] and ones[0] and ones[2] and ones[3]:
        return Form("row", (whole[1],))
    if ones[1] and full[0] and full[2] and full[3]:
        return Form("column", (-1,))
    return None


def _of_rows(ones: list[bool], full: list[bool], whole: Shape) -> Form | None:
    columns = whole[-1]
    if all(full):
        return Form("matrix", (-1, columns))
    if full[-1] and all(ones[:-1]):
        return Form("row", (columns,))
    if ones[-1] and all(full[:-1]):
        return Form("column", (-1,))
    return None


def _of_batch(ones: list[bool], full: list[bool], whole: Shape) -> Form | None:
    shared = all(ones[:-2])
    if not (shared or all(full[:-2])):
        return None
    batch: Shape = () if shared else (-1,)
    rows, columns = whole[-2:]
    if full[-2] and full[-1]:
        return Form("matrix", (*batch, rows, columns))
    if full[-1]:
        return Form("row", (*batch, columns))
    if full[-2]:
        return Form("column", (*batch, rows))
    return Form("number", batch or (1,))


def tensor_form(value: torch.Tensor) -> TensorForm:
    """Return how a tensor of tracing looks."""
    shape = tuple(value.shape)
    # An axis that repeats what lies there has no place in memory: it is an outer one, as a batch that is repeated.
    steps = [hint_of(each) or sys.maxsize for each in value.stride()]
    axes = sorted(range(len(shape)), key=lambda axis: (steps[axis], hint_of(shape[axis])), reverse=True)
    # Of equal steps the last axis is the adjacent one.
    order = tuple(sorted(axes, key=lambda axis: (-steps[axis], axis)))
    adjacent = shape[order[-1]] if order else 1
    bits = 8 * value.element_size()
    alignment = max(1, 128 // bits)
    extents = [adjacent, *(value.stride()[axis] for axis in order[:-1] if not same(shape[axis], 1))]
    while alignment > 1 and any(not _divides(each, alignment) for each in extents):
        alignment //= 2
    return TensorForm(str(value.dtype).removeprefix("torch."), extents_of(shape), order, alignment)


def packed_spec(value: torch.Tensor) -> TensorSpec:
    """Return a tensor without memory, packed in the order in which it lies; symbols count as their examples."""
    form, shape = tensor_form(value), tuple(map(hint_of, value.shape))
    strides, step = [0] * len(shape), 1
    for axis in reversed(form.order):
        strides[axis], step = step, step * max(1, shape[axis])
    return TensorSpec(shape, form.dtype, tuple(strides))


def _divides(extent: Any, number: int) -> bool:
    if type(extent) is int:
        return extent % number == 0
    return bool(statically_known_true(extent % number == 0))
