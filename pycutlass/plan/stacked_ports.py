"""Vectors and numbers of an epilogue beside a stack of matrices: for all of them, or for each one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pycutlass.integers import attribute, shape_of
from pycutlass.plan.forms import as_strided, stacked
from pycutlass.tensor import wrap

__all__ = ["of_each_matrix", "vectors_as_one"]

_LIBRARIES = ("torch", "numpy", "cupy")


def of_each_matrix(epilogue: Any, inputs: Mapping[str, Any], batch: tuple[int, ...], rows: int) -> bool:
    """Return whether the epilogue of a stack has something for each matrix, as which it is no longer one tall matrix.

    Parameters
    ----------
    epilogue
        As the caller gives it.
    inputs : mapping
        What it is given, by name.
    batch : tuple of int
        Axes of the stack.
    rows : int
        Of one matrix.
    """
    graph = attribute(epilogue, "graph")
    if graph is None or not inputs:
        return False
    forms = {each.name: each.form for each in graph.inputs if each.form != "scalar"}
    forms |= {name: f"{graph.form(number)} result" for name, number in graph.outputs if name != "D"}
    return any(_is_of_each(name, forms.get(name, ""), tensor, batch, rows) for name, tensor in inputs.items())


def _is_of_each(name: str, form: str, tensor: Any, batch: tuple[int, ...], rows: int) -> bool:
    """Return whether a tensor has a part for each matrix, or is one of all of them, and is no part of a tall matrix."""
    shape = shape_of(tensor)
    if not shape or not form:
        return False
    many = (_without_ones(batch), (math.prod(batch),))
    form, is_result = form.removesuffix(" result"), form.endswith("result")
    if form in ("number", "scalar"):
        return _without_ones(shape) in many
    if form in ("row", "half_row", "row_tiles", "column_tiles"):
        return _without_ones(shape[:-1]) in many
    if form == "column" and _without_ones(shape) in [(*each, *_without_ones((rows,))) for each in many]:
        return _as_one(name, tensor) is None  # a column of a tall matrix, where it is packed
    shared = {"column": (rows,), "matrix": (rows, *shape[1:2])}.get(form)
    return shape == shared and not is_result


def vectors_as_one(
    name: str, form: str, tensor: Any, batch: tuple[int, ...], size: tuple[int, int], is_tall: bool
) -> Any:
    """Return a vector or numbers of each matrix of a stack as plans take them, with one axis of a batch or none.

    Parameters
    ----------
    form : str
        Of the port.
    batch : tuple of int
        Axes of the stack.
    size : tuple of 2 int
        Rows and columns of one matrix, the latter as the port has them.
    is_tall : bool
        Whether the stack is multiplied as one tall matrix.
    """
    shape, outer, (rows, columns) = shape_of(tensor) or (), len(batch), size
    if is_tall:
        many = [(*each, *_without_ones((rows,))) for each in (_without_ones(batch), (math.prod(batch),))]
        found = _as_one(name, tensor) if form == "column" and _without_ones(shape) in many else None
        return tensor if found is None else as_strided(name, tensor, wrap(name, tensor), *found)
    if outer < 2 or shape[:outer] != batch:
        return tensor
    of_each = {"row": columns, "column": rows, "number": 1, "scalar": 1}.get(form)
    if of_each is not None and math.prod(shape[outer:]) != of_each:  # with one axis it would be a vector of all
        return tensor
    view = wrap(name, tensor)
    if view.strides is None or view.library not in _LIBRARIES or (one := stacked(batch, view.strides[:outer])) is None:
        return tensor
    count, step = one
    return as_strided(name, tensor, view, (count, *shape[outer:]), (step, *view.strides[outer:]))


def _as_one(name: str, tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return shape and strides of the columns of all matrices as one vector; None where they are not adjacent."""
    view = wrap(name, tensor)
    if view.shape is None or view.strides is None or view.library not in _LIBRARIES:
        return None
    found = stacked(view.shape, view.strides)
    return None if found is None or found[1] != 1 else ((found[0],), (1,))


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)
