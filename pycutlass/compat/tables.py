"""The original's tables of element types and kinds, and its templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pycutlass import _core
from pycutlass.calls import meant, public, shown
from pycutlass.enums import Choice
from pycutlass.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from pycutlass.types import ELEMENTS

__all__ = ["DataTypeSize", "GemmKind", "ShortDataTypeNames", "SubstituteTemplate"]


class _Table(dict[Any, Any]):
    """What is known of element types."""

    def __missing__(self, key: Any) -> NoReturn:
        written = {row.tag: str(row) for row in ELEMENTS}
        known = ", ".join(written.get(each, f"cutlass.{each}") for each in self)
        near = meant(key, {name: str(row) for row in ELEMENTS for name in (row.short, row.name)})
        raise UnknownNameError(f"{written.get(key, shown(key))} is not in this table of {known}{near}")


#: Bits of an element by type.
DataTypeSize: dict[Any, int] = _Table({row.tag: row.bits for row in ELEMENTS})
DataTypeSize |= {
    _core.dtype[name]: bits
    for bits, names in {
        1: ("b1",),
        4: ("u4", "s4"),
        8: ("u8", "cs4", "cu4"),
        16: ("u16", "s16", "cs8", "cu8"),
        32: ("u32", "cf16", "cbf16", "cs16", "cu16"),
        64: ("u64", "s64", "cf32", "ctf32", "cs32", "cu32"),
        128: ("cf64", "cs64", "cu64"),
    }.items()
    for name in names
}
#: Letters of accumulators in kernel names.
ShortDataTypeNames: dict[Any, str] = _Table()
ShortDataTypeNames |= {
    _core.int32: "i",
    _core.float16: "h",
    _core.float32: "s",
    _core.float64: "d",
    _core.dtype.cf32: "c",
    _core.dtype.cf64: "z",
}


class GemmKind(Choice):
    """Kinds of GEMM that the original counted; operations here are of the kinds Universal and Grouped.

    Examples
    --------
    >>> from pycutlass import *
    >>> GemmKind.Grouped.value
    'gemm_grouped'
    """

    Gemm = "gemm"
    Sparse = "spgemm"
    Universal = "universal"
    PlanarComplex = "gemm_planar_complex"
    PlanarComplexArray = "gemm_planar_complex_array"
    Grouped = "gemm_grouped"


@public
def SubstituteTemplate(template: str, values: Mapping[str, str]) -> str:
    """Return `template` with each ``${name}`` replaced by its value, also in what was put in.

    Names without a value stay as they are. Values are taken literally.

    Raises
    ------
    ArgumentError
        A value leads back to itself.
    ArgumentTypeError
        Something else than texts.
    """
    if not isinstance(template, str) or not isinstance(values, Mapping):
        raise ArgumentTypeError("SubstituteTemplate takes a text and a mapping of texts")
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ArgumentTypeError(f"SubstituteTemplate replaces names by texts, got {shown(name)}: {shown(value)}")
    template = text = str.__str__(template)  # of a class that is derived from str, the text
    for _ in range(len(values) + 1):  # each pass goes one value deeper
        replaced = re.sub(r"\$\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)
        if replaced == text:
            return text
        text = replaced
    raise ArgumentError(f"a value leads back to itself: {template!r} has no end with {dict(values)!r}")
