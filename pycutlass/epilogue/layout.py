"""Where a compiled kernel has the arguments of its epilogue, by name, and how they become bytes."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pycutlass.errors import CacheError

__all__ = ["EpilogueLayout", "Field"]

_FORMATS = {"f64": "d", "f32": "f", "f16": "e", "s32": "i", "s8": "b", "s64": "q"}
_MOST_F32 = float(np.finfo(np.float32).max)
_INTEGERS = {"s8", "s32", "s64"}


class Field(NamedTuple):
    """One field: a scalar's value, an address, or a stride of what an address points to.

    Attributes
    ----------
    name : str
        Of the scalar or the tensor. A scalar that may be in device memory has a value and an address.
    kind : str
        ``"value"``, ``"address"`` or ``"stride"``.
    element : str
        Short name of the type of the value, or of what the address points to.
    offset, bytes : int
        Where it is, and its size.
    axis : int
        Which stride.
    written : bool
        Whether the kernel writes to what the address points to.
    """

    name: str
    kind: str
    element: str
    offset: int
    bytes: int
    axis: int
    written: bool


class EpilogueLayout:
    """The arguments of a kernel's epilogue, as its host side describes them.

    Parameters
    ----------
    size : int
        Bytes of all arguments.
    fields : sequence of tuple
        What `Field` is made of.
    """

    def __init__(self, size: int, fields: Any) -> None:
        self.size = size
        self.fields = tuple(sorted(itertools.starmap(Field, fields), key=lambda field: field.offset))
        text, end = "<", 0  # every field in its place
        for field in self.fields:
            text += "x" * (field.offset - end) + ("Q" if field.kind == "address" else _FORMATS[field.element])
            end = field.offset + field.bytes
        self._struct = struct.Struct(text + "x" * (size - end))
        #: Names of values, of which some may be in device memory.
        self.scalars = frozenset(field.name for field in self.fields if field.kind == "value")
        self._addressed = {field.name for field in self.fields if field.kind == "address"}
        #: Addresses that are no scalars', by name.
        self.tensors = {
            field.name: field for field in self.fields if field.kind == "address" and field.name not in self.scalars
        }

    def pack(
        self,
        values: Mapping[str, float],
        addresses: Mapping[str, int],
        strides: Mapping[str, tuple[int, ...]] | None = None,
    ) -> bytes:
        """Return the arguments as the kernel takes them.

        Parameters
        ----------
        values : mapping
            Each scalar's number; it is not read where the scalar is in device memory.
        addresses : mapping
            Of device memory: of every tensor, and of scalars that are there.
        strides : mapping, optional
            Of tensors, in elements.

        Raises
        ------
        CacheError
            The kernel takes other scalars or tensors: it was compiled for another epilogue.
        """
        known = {name for name, address in addresses.items() if address}
        if self.scalars != values.keys() or not self.tensors.keys() <= known <= self._addressed:
            raise CacheError(
                f"the kernel's epilogue takes {', '.join(sorted(self.scalars | self.tensors.keys()))}, and is given "
                f"{', '.join(sorted(values.keys() | known))}: description and kernel do not belong together"
            )
        packed: list[Any] = []
        for name, kind, element, _, _, axis, _ in self.fields:
            if kind == "value":
                packed.append(_converted(element, values[name]))
            elif kind == "address":
                packed.append(addresses.get(name, 0))
            else:
                given = (strides or {}).get(name, ())
                packed.append(given[axis] if axis < len(given) else 0)
        return self._struct.pack(*packed)

    def check(self, name: str, element: str, written: bool) -> None:
        """Raise CacheError unless tensor `name` is of a type, and is read or written, as the kernel was compiled."""
        field = self.tensors[name]
        if (field.element, field.written) != (element, written):
            kinds = [f"{'an output' if each else 'an input'} of" for each in (written, field.written)]
            raise CacheError(
                f"{name} is described as {kinds[0]} {element}, and to the kernel it is {kinds[1]} {field.element}: "
                f"description and kernel do not belong together"
            )


def _converted(element: str, number: float) -> float | int:
    """Return a number that `struct` packs without loss: rounded as C++ rounds it, to f16 by way of f32."""
    if element == "f64" or (element == "f32" and -_MOST_F32 <= number <= _MOST_F32):
        return number
    if element in _INTEGERS:
        return int(number)
    with np.errstate(over="ignore"):
        single = np.float32(number)
        return float(single if element == "f32" else np.float16(single))
