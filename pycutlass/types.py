"""What the library knows about each element type and each layout: one row a type, no branches elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.errors import DescriptionError

__all__ = ["ELEMENTS", "LAYOUTS", "Element", "Layout", "element", "element_of_dtype", "layout"]


@dataclass(frozen=True)
class Element:
    """An element type.

    Attributes
    ----------
    tag : type
        The class of the ``cutlass`` namespace, for example ``cutlass.float16``.
    name, short : str
        ``"float16"`` and ``"f16"``.
    bits : int
        Size of one element.
    cpp : str
        Name in C++.
    dtype_name : str
        The NumPy (or ml_dtypes) dtype that holds it. tf32 is kept as float32, as on the device.
    letter : str
        Letter of CUTLASS's kernel names.
    mantissa : int
        Explicit mantissa bits; -1 for integers.
    """

    tag: Any
    name: str
    short: str
    bits: int
    cpp: str
    dtype_name: str
    letter: str
    mantissa: int

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer type."""
        return self.mantissa < 0

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype that stores this element."""
        if hasattr(np, self.dtype_name):
            return np.dtype(self.dtype_name)
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.dtype_name))

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next value; 0 for integers."""
        return 0.0 if self.is_integer else 2.0**-self.mantissa

    def __str__(self) -> str:
        return f"cutlass.{self.name}"

    def round(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return `values` rounded to this type to nearest even, saturating for integers, in the storing dtype.

        tf32 is rounded to its 10 mantissa bits, half away from zero, as ``cutlass::tfloat32_t`` does, and kept as float32.
        """
        if self.is_integer:
            limits = np.iinfo(self.dtype)
            return np.clip(np.rint(values), limits.min, limits.max).astype(self.dtype)
        if self.short == "tf32":
            bits = np.asarray(values, np.float32).view(np.uint32)
            rounded = np.where(np.isfinite(values), (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000), bits)
            return rounded.astype(np.uint32).view(np.float32)
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(self.dtype)


@dataclass(frozen=True)
class Layout:
    """A memory layout: its tag, its names, and whether the leading dimension counts columns."""

    tag: Any
    name: str
    short: str
    cpp: str

    def __str__(self) -> str:
        return f"cutlass.{self.name}"


ELEMENTS: tuple[Element, ...] = (
    Element(_core.float64, "float64", "f64", 64, "double", "float64", "d", 52),
    Element(_core.float32, "float32", "f32", 32, "float", "float32", "s", 23),
    Element(_core.tfloat32, "tfloat32", "tf32", 32, "cutlass::tfloat32_t", "float32", "s", 10),
    Element(_core.float16, "float16", "f16", 16, "cutlass::half_t", "float16", "h", 10),
    Element(_core.bfloat16, "bfloat16", "bf16", 16, "cutlass::bfloat16_t", "bfloat16", "s", 7),
    Element(_core.int32, "int32", "s32", 32, "int32_t", "int32", "i", -1),
    Element(_core.int8, "int8", "s8", 8, "int8_t", "int8", "i", -1),
)

LAYOUTS: tuple[Layout, ...] = (
    Layout(_core.RowMajor, "RowMajor", "t", "cutlass::layout::RowMajor"),
    Layout(_core.ColumnMajor, "ColumnMajor", "n", "cutlass::layout::ColumnMajor"),
)

_ELEMENT_OF_TAG = {row.tag: row for row in ELEMENTS}
_LAYOUT_OF_TAG = {row.tag: row for row in LAYOUTS}


def element(tag: Any) -> Element:
    """Return the row of element type `tag`.

    Raises
    ------
    DescriptionError
        `tag` is not an element type that kernels can be made of.
    """
    row = _ELEMENT_OF_TAG.get(tag) if _hashable(tag) else None
    if row is None:
        known = ", ".join(str(row) for row in ELEMENTS)
        raise DescriptionError(f"an element type must be one of {known}; got {tag!r}")
    return row


def layout(tag: Any) -> Layout:
    """Return the row of layout `tag`.

    Raises
    ------
    DescriptionError
        `tag` is not a layout that operations take today.
    """
    row = _LAYOUT_OF_TAG.get(tag) if _hashable(tag) else None
    if row is None:
        known = ", ".join(str(row) for row in LAYOUTS)
        raise DescriptionError(f"a layout must be one of {known}; got {tag!r}")
    return row


def element_of_dtype(name: str) -> Element | None:
    """Return the element type that a tensor library calls `name` ("float16", "bfloat16", ...), or None.

    float32 is answered with ``float32``; an operand described as tf32 takes float32 tensors all the same.
    """
    return next((row for row in ELEMENTS if row.name == name), None)


def _hashable(tag: Any) -> bool:
    return getattr(tag, "__hash__", None) is not None
