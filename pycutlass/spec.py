"""Tensors that have no memory yet: shape, element type and strides, and how real ones look the same way."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pycutlass.calls import nearest, public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.imported import imported, is_of
from pycutlass.integers import as_int, items_of
from pycutlass.tensor import TensorView, wrap
from pycutlass.types import ELEMENTS, element

__all__ = ["TensorSpec", "nowhere", "view_of"]

_MOST_DIMENSIONS = 16
#: Names of dtypes of torch, NumPy and ml_dtypes.
_NAMES = re.compile(
    r"bool|u?int([1-7]|8|16|32|64)|q(u?int)(8|32|4x2|2x4)|float(16|32|64|80|96|128)|longdouble|bfloat16"
    r"|complex(32|64|128|160|192|256)|float[4-8]_e\d\w*|bits\w+|object|str|bytes\d*|void\d*|datetime64\S*|timedelta64\S*"
)
_ALIASES = {"half": "float16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "double": "float64"}


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
        An element type that kernels cannot be made of, or a name that no dtype has.

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
        name = _dtype_name(self.dtype) if isinstance(self.dtype, str) else element(self.dtype).dtype_name
        for field, value in (("shape", shape), ("strides", strides), ("dtype", name)):
            object.__setattr__(self, field, value)


def _dtype_name(name: str) -> str:
    """Return `name`, if tensor libraries have a dtype of that name; kernels need not be made of it."""
    name = str.__str__(name)  # of a class that is derived from str, the text
    if _NAMES.fullmatch(name):
        return name
    written = {alias: row.dtype_name for row in ELEMENTS for alias in (row.short, row.name)}
    near = nearest(name.rpartition(".")[2], {**written, **_ALIASES})
    hint = f". Did you mean {({**written, **_ALIASES})[near]!r}?" if near else ""
    raise DescriptionError(
        f"dtype must be an element type, a dtype of torch or NumPy, or the name of one; got {shown(name)}{hint}"
    )


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
    if type(tensor) is tuple and len(tensor) > 1 and all(type(extent) is int for extent in tensor):
        raise ArgumentTypeError(
            f"operand {name} must be a tensor, got the shape {shown(tensor)}: pass the tensor, or for a shape "
            f"alone TensorSpec({shown(tensor)}, dtype)"
        )
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
