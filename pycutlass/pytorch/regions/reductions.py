"""Reductions of a region's values, which its kernel leaves beside its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from pycutlass import epilogue
from pycutlass.pytorch.regions.pointwise import name_of
from pycutlass.pytorch.regions.products import Product, value_of

__all__ = ["REDUCTIONS", "Reduction", "is_reduction", "reduced", "reduction_of", "unlike_reduction"]

#: Reductions of ATen, as an epilogue function has them.
REDUCTIONS = {
    "sum": "sum",
    "sum.dim_IntList": "sum",
    "mean": "sum",
    "mean.dim": "sum",
    "amax": "max",
    "amin": "min",
    "max": "max",
    "min": "min",
}
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Reduction:
    """A reduction of a region's value.

    Attributes
    ----------
    kind : str
        Of the epilogue function: ``"sum"``, ``"max"`` or ``"min"``.
    axis : int or None
        1 for one result for each row, 0 for each column, None for all of a matrix.
    divided_by : tuple
        Extents by whose product a mean is divided.
    """

    kind: str
    axis: int | None
    divided_by: tuple[Any, ...]


def is_reduction(node: Node) -> bool:
    """Return whether a node reduces a tensor as a kernel can."""
    return node.op == "call_function" and name_of(node.target) in REDUCTIONS


def reduction_of(node: Node, product: Product) -> Reduction | None:
    """Return the reduction that a node is for the rows and columns of a product; None where it is another one."""
    value, name = value_of(node.args[0]), name_of(node.target)
    rank = value.dim()
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    axes = set(range(rank)) if given is None or given == [] else {axis % rank for axis in _listed(given)}
    rows, columns = _axes(product, rank)
    axis = {frozenset(columns): 1, frozenset(rows): 0, frozenset(rows | columns): None}.get(frozenset(axes), -1)
    if axis == -1:
        return None
    counted = tuple(value.shape[each] for each in sorted(axes)) if name.startswith("mean") else ()
    return Reduction(REDUCTIONS[name], axis, counted)


def _listed(given: Any) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def _axes(product: Product, rank: int) -> tuple[set[int], set[int]]:
    """Return the axes of a value that are a matrix's rows, and those that are its columns."""
    if product.kind == "conv2d":
        return {0, 2, 3}, {1}
    return ({rank - 2}, {rank - 1}) if product.kind == "bmm" else (set(range(rank - 1)), {rank - 1})


def unlike_reduction(node: Node, product: Product) -> str:
    """Return why a reduction is not part of a region; "" where it is."""
    value, made = value_of(node.args[0]), value_of(node)
    dtype: Any = node.kwargs.get("dtype")
    if product.kind == "grouped":
        return "reduces results of groups, whose extents the GPU alone may know"
    if not isinstance(made, torch.Tensor) or made.dtype not in _TYPES or value.dtype not in _TYPES:
        return "reduces to what is no tensor of fractions"
    if dtype is not None and dtype not in _TYPES:
        return f"reduces to {dtype}, and kernels reduce fractions"
    if made.dtype is torch.float64 and value_of(product.node).dtype is not torch.float64:
        return "reduces in float64, and the epilogue of such a product is computed in float32"
    if any(isinstance(each, Node) for each in node.args[1:]):
        return "reduces axes that are known only when it runs"
    if reduction_of(node, product) is None:
        return "reduces other axes than the rows or the columns of the product"
    return ""


def reduced(node: Node, product: Product, x: Any) -> Any:
    """Return the reduction of a traced value."""
    found = reduction_of(node, product)
    assert found is not None  # or it had not been taken
    function: Any = {"sum": epilogue.sum, "max": epilogue.max, "min": epilogue.min}[found.kind]
    return function(x, axis=found.axis)
