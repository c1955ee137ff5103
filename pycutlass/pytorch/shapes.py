"""What operators return, from shapes and types alone: extents may be symbols, which are compared and never kept."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from pycutlass.errors import ArgumentError
from pycutlass.plan.kinds import Wanted, check_types
from pycutlass.plan.readings import element_of
from pycutlass.spec import TensorSpec, view_of
from pycutlass.types import Element

__all__ = [
    "check_addend",
    "check_bias",
    "check_equal_types",
    "check_matrix",
    "check_out",
    "element_of_operand",
    "product_shape",
    "result_dtype",
    "rows_of",
]


def product_shape(a: torch.Tensor, b: torch.Tensor, names: tuple[str, str] = ("input", "other")) -> tuple[Any, ...]:
    """Return the shape of a product, as ``torch.matmul`` defines it.

    Raises
    ------
    ArgumentError
        Tensors without dimensions, of different K, or with batches that do not broadcast.
    """
    of_a, of_b = tuple(a.shape), tuple(b.shape)
    for name, shape in zip(names, (of_a, of_b), strict=True):
        if not shape:
            raise ArgumentError(f"{name} must have one dimension or more, got shape ()")
    rows, columns = of_a[-2:-1], of_b[-1:] if len(of_b) > 1 else ()
    if of_a[-1] != (of_b[-2] if len(of_b) > 1 else of_b[0]):
        raise ArgumentError(
            f"{names[0]} of shape {of_a} and {names[1]} of shape {of_b} have different K: {of_a[-1]} columns of "
            f"{names[0]} and {of_b[-2] if len(of_b) > 1 else of_b[0]} rows of {names[1]}"
        )
    broadcast: Any = torch.broadcast_shapes
    try:
        batch = broadcast(of_a[:-2], of_b[:-2])
    except RuntimeError as error:
        raise ArgumentError(
            f"the batches {of_a[:-2]} of {names[0]} and {of_b[:-2]} of {names[1]} do not broadcast: axes must be "
            f"equal, or 1"
        ) from error
    return (*batch, *rows, *columns)


@lru_cache(maxsize=256)  # there are ten element types
def element_of_operand(name: str, dtype: torch.dtype) -> Element:
    """Return the element type of operand `name`; raise where kernels do not take its dtype."""
    return element_of(name, view_of(name, TensorSpec((1, 1), str(dtype).removeprefix("torch."))))


def result_dtype(name: str, operand: torch.dtype, out_dtype: torch.dtype | None = None) -> torch.dtype:
    """Return the type of a result: what is asked for, or what products of operand `name` have."""
    found = Wanted(None, out_dtype).output(element_of_operand(name, operand))
    made: torch.dtype = getattr(torch, found.dtype_name)
    return made


def check_equal_types(a: torch.Tensor, b: torch.Tensor, names: tuple[str, str]) -> None:
    """Raise ArgumentError for operands of types that are not multiplied with each other."""
    check_types(element_of_operand(names[0], a.dtype), element_of_operand(names[1], b.dtype), names)


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as the matrix of all of its rows, of which it may have none."""
    if tensor.dim() == 2:
        return tensor
    return tensor[None] if tensor.dim() == 1 else tensor.flatten(0, -2)


def check_matrix(name: str, tensor: torch.Tensor) -> None:
    """Raise ArgumentError unless a tensor has two dimensions."""
    if tensor.dim() != 2:
        raise ArgumentError(f"{name} must be a matrix, got shape {tuple(tensor.shape)}")


def check_addend(name: str, tensor: torch.Tensor, shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Raise ArgumentError unless a tensor can be added to a result of this shape and type, which keeps both."""
    given = tuple(tensor.shape)
    behind = shape[len(shape) - len(given) :] if len(given) <= len(shape) else ()
    fits = len(given) <= len(shape) and all(x == y or x == 1 for x, y in zip(given, behind, strict=True))
    if not fits:
        raise ArgumentError(f"{name} of shape {given} does not broadcast to the result's shape {tuple(shape)}")
    _check_added(name, tensor, dtype)


def _check_added(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise ArgumentError(f"{name} is of {tensor.dtype} and the result of {dtype}: pass {name}.to({dtype})")


def check_bias(bias: torch.Tensor | None, columns: Any, dtype: torch.dtype, groups: Any = None) -> None:
    """Raise ArgumentError unless a bias has a number of the result's type for each column, perhaps of each group."""
    if bias is None:
        return
    given, of_each = tuple(bias.shape), () if groups is None else ((groups, columns),)
    if given not in ((columns,), *of_each):
        wanted = " or ".join(str(each) for each in ((columns,), *of_each))
        raise ArgumentError(f"bias must be of {wanted}, a number for each column of the result; got shape {given}")
    _check_added("bias", bias, dtype)


def check_out(out: torch.Tensor, shape: tuple[Any, ...]) -> None:
    """Raise ArgumentError unless `out` has the shape of the result."""
    if tuple(out.shape) != tuple(shape):
        raise ArgumentError(f"out must have the shape of the result, {tuple(shape)}; got {tuple(out.shape)}")
