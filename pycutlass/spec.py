"""Tensors that have no memory yet: shape, element type and strides, and how real ones look the same way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.imported import imported, is_of
from pycutlass.integers import as_int, items_of
from pycutlass.tensor import TensorView, wrap
from pycutlass.types import element

__all__ = ["TensorSpec", "nowhere", "view_of"]

_MOST_DIMENSIONS = 16


@public
@dataclass(frozen=True)
class TensorSpec:
    """Shape, element type and strides of a tensor, without memory.

    Parameters
    ----------
    shape : sequence of int
        Extents.
    dtype : element type of ``cutlass``, or a dtype of torch, NumPy or ml_dtypes
        Type of the elements. It is kept as the name that tensor libraries use, ``"float16"``; such a name is taken too.
    strides : sequence of int, optional
        Steps in elements. Default: packed, the last dimension adjacent.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Extents or strides that are no integers, negative extents, or one stride too many or too few.
    DescriptionError
        An element type that kernels cannot be made of.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.TensorSpec((4, 8), cutlass.float16)
    TensorSpec(shape=(4, 8), dtype='float16', strides=(8, 1))
    """

    shape: tuple[int, ...]
    dtype: Any
    strides: Any = None

    def __post_init__(self) -> None:
        shape = _integers("shape", self.shape)
        if any(extent < 0 for extent in shape):
            raise ArgumentError(f"the extents of a shape must be at least 0, got {shape}")
        if self.strides is None:
            strides = tuple(math.prod(max(extent, 1) for extent in shape[axis + 1 :]) for axis in range(len(shape)))
        else:
            strides = _integers("strides", self.strides)
        if len(strides) != len(shape):
            raise ArgumentError(f"a shape of {len(shape)} dimensions has as many strides, got {strides} for {shape}")
        name = self.dtype if isinstance(self.dtype, str) else element(self.dtype).dtype_name
        for field, value in (("shape", shape), ("strides", strides), ("dtype", name)):
            object.__setattr__(self, field, value)


def view_of(name: str, tensor: Any) -> TensorView:
    """Return how operand `name` looks: a TensorSpec, a tensor that torch's tracing or meta device makes, or a real one.

    What has no memory has address 0, which is aligned to anything.

    Raises
    ------
    ArgumentTypeError
        Nothing of that kind.
    """
    if isinstance(tensor, TensorSpec):
        return TensorView(0, tensor.dtype, tensor.shape, tensor.strides, None, "spec", tensor)
    if _has_no_memory(tensor):
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        return TensorView(0, str(tensor.dtype).removeprefix("torch."), shape, strides, None, "torch", tensor)
    return wrap(name, tensor)


def _has_no_memory(tensor: Any) -> bool:
    """Whether this is a dense tensor of torch that stands for one: of its tracing, or on its meta device."""
    if not is_of(tensor, "torch", "Tensor") or tensor.layout is not imported("torch", "strided"):
        return False
    return hasattr(tensor, "fake_mode") or tensor.device.type == "meta"


def nowhere() -> TensorView:
    """Return the view of packed memory that is still to be had."""
    return TensorView(0, None, None, None, None, "spec", None)


def _integers(name: str, values: Any) -> tuple[int, ...]:
    items = items_of(values, _MOST_DIMENSIONS)
    numbers = None if items is None else [as_int(item) for item in items]
    if numbers is None or None in numbers:
        raise ArgumentTypeError(f"{name} must be a sequence of integers, got {shown(values)}")
    if len(numbers) > _MOST_DIMENSIONS:
        raise ArgumentError(f"{name} must have at most {_MOST_DIMENSIONS} dimensions, got more")
    return tuple(number for number in numbers if number is not None)
