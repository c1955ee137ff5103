"""What the library knows about each element type and each layout: one row a type, no branches elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.calls import meant, shown
from pycutlass.errors import DescriptionError

__all__ = [
    "ELEMENTS",
    "ELEMENT_OF_TAG",
    "LAYOUTS",
    "LAYOUT_OF_TAG",
    "Element",
    "Layout",
    "computed",
    "element",
    "element_of_dtype",
    "layout",
]


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
    is_integer, is_float8, is_byte : bool
        Whether this is an integer type, a float of 8 bits, which epilogue functions alone read and write, or an integer
        of 8 bits, to whose range results are limited.
    code : int
        Number of the type in call records and compiled kernels; -1 where no kernel has it.
    """

    tag: Any
    name: str
    short: str
    bits: int
    cpp: str
    dtype_name: str
    letter: str
    mantissa: int
    is_integer: bool = field(init=False, repr=False, compare=False)
    is_float8: bool = field(init=False, repr=False, compare=False)
    is_byte: bool = field(init=False, repr=False, compare=False)
    code: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_integer", self.mantissa < 0)
        object.__setattr__(self, "is_float8", self.mantissa >= 0 and self.bits == 8)
        object.__setattr__(self, "is_byte", self.is_integer and self.bits == 8)
        object.__setattr__(self, "code", _core.ELEMENTS.get(self.short, -1))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype that stores this element."""
        if hasattr(np, self.dtype_name):
            return np.dtype(self.dtype_name)
        import ml_dtypes

        stored: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.dtype_name))
        return stored

    def bytes_of(self, count: int) -> int:
        """Return the bytes that `count` packed elements take; the last byte may be used in part."""
        return (count * self.bits + 7) // 8

    def clamps(self, accumulator: Element) -> bool:
        """Return whether sums of type `accumulator` are clamped in memory of this type, a narrower integer."""
        return self.is_integer and self.bits < accumulator.bits

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next value; 0 for integers."""
        return 0.0 if self.is_integer else 2.0**-self.mantissa

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the greatest finite value."""
        if self.is_integer:
            bounds = np.iinfo(self.dtype)
            return float(bounds.min), float(bounds.max)
        if hasattr(np, self.dtype_name):
            greatest = float(np.finfo(self.dtype).max)
        else:
            import ml_dtypes

            limits: Any = ml_dtypes.finfo
            greatest = float(limits(self.dtype).max)
        return -greatest, greatest

    def __str__(self) -> str:
        return f"cutlass.{self.name}"

    def __repr__(self) -> str:
        return str(self)

    def round(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return `values` rounded to this type to nearest even, in the storing dtype.

        Integers saturate, and NaN becomes 0; floats of 8 bits saturate as well, infinities too, and keep NaN.

        tf32 is rounded to its 10 mantissa bits, half away from zero, as ``cutlass::tfloat32_t`` does, and kept as
        float32.
        """
        if self.is_integer:
            least, most = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
            whole = np.rint(np.asarray(values, np.float64))  # f64 holds the limits of every type; f32 does not
            return np.clip(np.where(np.isnan(whole), 0.0, whole), least, most).astype(self.dtype)
        if self.is_float8:
            values = np.clip(values, *self.limits)
        with np.errstate(over="ignore"):
            stored: NDArray[Any] = np.asarray(values).astype(self.dtype)
        if self.short == "tf32":
            bits = stored.view(np.uint32)
            rounded = np.where(np.isfinite(stored), (bits + 0x1000) & 0xFFFFE000, bits)
            return rounded.view(np.float32)
        return stored


@dataclass(frozen=True)
class Layout:
    """A memory layout.

    Attributes
    ----------
    tag : type
        The class of the ``cutlass`` namespace.
    name, short, cpp : str
        Its name, its letters in kernel names (t for rows, n for columns), and its name in C++.
    is_row_major : bool
        Whether the elements of a row are adjacent, or in groups. A tensor counts as the matrix of its pixels by its
        channels.
    interleave : int
        Rows (or columns) that are stored together, element by element; 1 for plain matrices.
    rank : int
        Dimensions: 2 for the matrices of a GEMM, 4 for the tensors of a convolution.
    """

    tag: Any
    name: str
    short: str
    cpp: str
    is_row_major: bool
    interleave: int = 1
    rank: int = 2

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
    Element(_core.uint8, "uint8", "u8", 8, "uint8_t", "uint8", "i", -1),
    Element(_core.float_e4m3, "float_e4m3", "e4m3", 8, "cutlass::float_e4m3_t", "float8_e4m3fn", "e4m3", 3),
    Element(_core.float_e5m2, "float_e5m2", "e5m2", 8, "cutlass::float_e5m2_t", "float8_e5m2", "e5m2", 2),
)

LAYOUTS: tuple[Layout, ...] = (
    Layout(_core.RowMajor, "RowMajor", "t", "cutlass::layout::RowMajor", True),
    Layout(_core.ColumnMajor, "ColumnMajor", "n", "cutlass::layout::ColumnMajor", False),
    Layout(
        _core.RowMajorInterleaved32,
        "RowMajorInterleaved32",
        "t32",
        "cutlass::layout::RowMajorInterleaved<32>",
        True,
        32,
    ),
    Layout(
        _core.ColumnMajorInterleaved32,
        "ColumnMajorInterleaved32",
        "n32",
        "cutlass::layout::ColumnMajorInterleaved<32>",
        False,
        32,
    ),
    Layout(_core.TensorNHWC, "TensorNHWC", "nhwc", "cutlass::layout::TensorNHWC", True, 1, 4),
    Layout(_core.TensorNC32HW32, "TensorNC32HW32", "nc32hw32", "cutlass::layout::TensorNCxHWx<32>", False, 32, 4),
    Layout(_core.TensorC32RSK32, "TensorC32RSK32", "c32rsk32", "cutlass::layout::TensorCxRSKx<32>", False, 32, 4),
)

#: Rows by the class of the ``cutlass`` namespace.
ELEMENT_OF_TAG = {row.tag: row for row in ELEMENTS}
LAYOUT_OF_TAG = {row.tag: row for row in LAYOUTS}


_OF_BOOL = (
    ". A tensor of booleans is read as one of cutlass.int8 or cutlass.uint8: pass mask.view(torch.uint8), or that of "
    "its library, which copies nothing"
)


def element(tag: Any) -> Element:
    """Return the row of element type `tag`: a class of ``cutlass``, or a dtype of torch, NumPy or ml_dtypes.

    Raises
    ------
    DescriptionError
        `tag` is not an element type that kernels can be made of.
    """
    row = ELEMENT_OF_TAG.get(tag) if isinstance(tag, type) else None
    row = row or element_of_dtype(_dtype_name(tag))
    if row is None:
        known = ", ".join(map(str, ELEMENTS))
        raise DescriptionError(
            f"an element type must be one of {known}, or a dtype of torch or NumPy with one of these names; got "
            f"{shown(tag)}{meant(tag, {alias: str(row) for row in ELEMENTS for alias in (row.short, row.name)})}"
            f"{_OF_BOOL if tag is bool or _dtype_name(tag).startswith('bool') else ''}"
        )
    return row


def _dtype_name(tag: Any) -> str:
    """Return the name of a dtype of torch, NumPy or ml_dtypes, and nothing for anything else."""
    if (type(tag).__module__, type(tag).__name__) == ("torch", "dtype"):
        return str(tag).removeprefix("torch.")
    if isinstance(tag, type) and issubclass(tag, np.generic):
        return tag.__name__
    return tag.name if isinstance(tag, np.dtype) and tag.isnative else ""


def layout(tag: Any) -> Layout:
    """Return the row of layout `tag`.

    Raises
    ------
    DescriptionError
        `tag` is not a layout that operations take today.
    """
    row = LAYOUT_OF_TAG.get(tag) if isinstance(tag, type) else None
    if row is None:
        known = ", ".join(map(str, LAYOUTS))
        near = meant(tag, {row.name: str(row) for row in LAYOUTS})
        if not near and "NCHW" in shown(tag):
            near = ". Did you mean cutlass.TensorNHWC, whose channels are adjacent (channels_last of torch)?"
        raise DescriptionError(f"a layout must be one of {known}; got {shown(tag)}{near}")
    return row


def element_of_dtype(name: str) -> Element | None:
    """Return the element type that a tensor library calls `name` ("float16", "bfloat16", ...), or None.

    float32 is answered with ``float32``; an operand described as tf32 takes float32 tensors all the same.
    """
    return next((row for row in ELEMENTS if name in (row.name, row.dtype_name)), None)


def computed(compute: Element, number: float) -> float:
    """Return a scalar as kernels have it: rounded to the compute type, by way of f32 to f16 (include/.../epilogue.h).

    So a beta of 1e-60 is 0 where an epilogue computes in f32, and C is not read.
    """
    with np.errstate(over="ignore"):
        if compute.bits <= 16:
            number = float(np.float32(number))
        return float(compute.dtype.type(number)) if not compute.is_integer else number
