"""The scalars of a launch, alpha, beta and what an activation needs, and the bytes that they become.

A compiled kernel says where it has the arguments of its epilogue, by name: scalars, and the tensors beside C and D.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, Protocol

import numpy as np

from pycutlass import _core
from pycutlass.calls import shown, suggestion
from pycutlass.epilogue.given_scalars import address_now, checked_scalar, is_address
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError, UnknownNameError
from pycutlass.types import Element, computed
from pycutlass.types import element as element_of

__all__ = ["EpilogueLayout", "EpilogueScalars", "Field", "check_scalars", "pack"]

#: The scalars that kernels read from device memory; include/pycutlass/epilogue.h passes all others by value.
_ON_DEVICE = ("alpha", "beta")
_FORMATS = {"f64": "d", "f32": "f", "f16": "e", "bf16": "H", "s32": "i", "s8": "b", "u8": "B", "s64": "q"}
_MOST_F32 = float(np.finfo(np.float32).max)
_INTEGERS = {"s8", "u8", "s32", "s64"}


@dataclass(frozen=True, eq=False)
class EpilogueScalars:
    """The scalars of one launch: what ``operation.epilogue_type(alpha, beta)`` returns.

    Alpha and beta are numbers, or device memory that holds one element of the functor's compute type: a ``CUdeviceptr``
    or a device tensor with one element; for Hopper-native kernels also one with an element for each matrix of a batch.
    Device scalars are read when the kernel runs. What an activation needs is a number.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> functor = pycutlass.LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    >>> scalars = functor.epilogue_type(2.0, beta=0.5)
    >>> scalars.values, scalars["beta"]
    ((2.0, 0.5), 0.5)
    """

    values: tuple[float, ...]
    pointers: tuple[int, ...]
    owners: tuple[Any, ...]
    compute: Element
    names: tuple[str, ...] = ("alpha", "beta")
    #: Whether somebody has said what beta is; a default of 0 would drop a C without a word.
    beta_is_given: bool = True
    #: Whether C is read; None where beta decides.
    reads_source: bool | None = None
    #: How many elements there are in device memory: more than one are for the matrices of a batch.
    counts: tuple[int, ...] = ()

    def __repr__(self) -> str:
        texts = [
            f"address {pointer:#x}" if pointer else repr(value)
            for value, pointer in zip(self.values, self.pointers, strict=True)
        ]
        return f"EpilogueScalars({', '.join([*texts, f'computed in {self.compute}'])})"

    @property
    def per_batch(self) -> dict[str, int]:
        """The scalars that have an element for each matrix of a batch, with how many these are."""
        return {name: count for name, count in zip(self.names, self.counts, strict=False) if count > 1}

    @property
    def alpha_is_known(self) -> bool:
        """Whether alpha is a number on the host."""
        return "alpha" not in self.names or not self.pointers[self.names.index("alpha")]

    def __getitem__(self, name: str) -> Any:
        """Return a scalar by its name: a number, or the device memory that was given.

        Raises
        ------
        UnknownNameError
            There is none of that name.
        """
        if name not in self.names:
            near = suggestion(name, self.names) if isinstance(name, str) else ""
            raise UnknownNameError(f"output_op has no scalar {shown(name)}; it has {', '.join(self.names)}.{near}")
        index = self.names.index(name)
        return self.owners[index] if self.pointers[index] else self.values[index]

    def followed(self, ordinal: int) -> dict[str, tuple[Any, Callable[[], int]]]:
        """Return tensors in device memory by name, each with what says where it is at a launch on GPU `ordinal`.

        A tensor may go over to other memory after its address was taken.
        """
        counts = self.counts or (1,) * len(self.names)
        found = zip(self.names, self.pointers, self.owners, counts, strict=True)
        return {
            name: (owner, partial(address_now, self.compute, name, owner, count, ordinal))
            for name, pointer, owner, count in found
            if pointer and not is_address(owner)
        }

    def packed(
        self,
        layout: EpilogueLayout,
        addresses: Mapping[str, int] | None = None,
        strides: Mapping[str, tuple[int, ...]] | None = None,
    ) -> bytes:
        """Return the arguments of the epilogue as a compiled kernel takes them.

        Parameters
        ----------
        layout : EpilogueLayout
            Of the kernel.
        addresses, strides : mapping, optional
            Of the tensors beside C and D, by name.

        Raises
        ------
        CacheError
            The kernel was compiled for another epilogue.
        """
        values = dict(zip(self.names, self.values, strict=True))
        pointers = dict(zip(self.names, self.pointers, strict=True))
        if max(self.counts, default=0) > 1:
            strides = {**dict.fromkeys(self.per_batch, (1,)), **(strides or {})}
        return layout.pack(values, {**pointers, **addresses} if addresses else pointers, strides)

    def sync(self, stream_sync: bool = True) -> None:
        """Do nothing: scalars bring nothing back. The original's scripts ask for it."""

    @property
    def needs_source(self) -> bool:
        """Whether C may be read: beta is in device memory, or a number that is not zero in the compute type."""
        if self.reads_source is not None:
            return self.reads_source
        if "beta" not in self.names:
            return False
        index = self.names.index("beta")
        return bool(self.pointers[index]) or computed(self.compute, self.values[index]) != 0

    @property
    def drops_source(self) -> bool:
        """Whether C is not read merely because beta was left out: who gives a C then has forgotten beta."""
        if self.reads_source is not None:
            return False
        return "beta" in self.names and not self.beta_is_given and not self.needs_source


def pack(
    compute: Element,
    *named: tuple[str, Any],
    on_device: tuple[str, ...] = _ON_DEVICE,
    beta_is_given: bool = True,
    reads_source: bool | None = None,
) -> EpilogueScalars:
    """Return the scalars of one launch from pairs of name and value, checked against the compute type.

    Those named in `on_device` may be in device memory. `beta_is_given` is False where beta is a default, and
    `reads_source` says of an epilogue function whether C is read.
    """
    packed = [checked_scalar(compute, name, value, on_device) for name, value in named]
    values, pointers, owners, counts = zip(*packed, strict=True) if packed else ((), (), (), ())
    names = tuple(name for name, _ in named)
    return EpilogueScalars(values, pointers, owners, compute, names, beta_is_given, reads_source, counts)


class _Epilogue(Protocol):
    """What is read of an epilogue."""

    @property
    def compute(self) -> Element:
        """Type that scalars are computed in."""

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the scalars of a launch."""

    @property
    def reads_source(self) -> bool | None:
        """Whether C is read; None where beta decides."""

    def epilogue_type(self) -> EpilogueScalars:
        """Return the scalars of a launch that names none."""


def check_scalars(functor: _Epilogue, scalars: EpilogueScalars | None, batch: int = 0) -> EpilogueScalars:
    """Return `scalars`, or alpha 1 and beta 0 for None; raise where they are not for `functor`.

    They may have an element for each matrix of a `batch`; 0 for kernels and modes in which each is one.
    """
    if scalars is None:
        return functor.epilogue_type()
    if not isinstance(scalars, EpilogueScalars):
        raise ArgumentTypeError(
            f"output_op must be what operation.epilogue_type(alpha, beta) returns, got {type(scalars).__name__}"
            f"{_scalars_meant(functor, scalars)}"
        )
    if max(scalars.counts, default=0) > 1:
        _check_counts(scalars, batch)
    if any(scalars.pointers) and scalars.compute is not functor.compute:
        raise ArgumentError(
            f"output_op has device scalars of {scalars.compute}, this operation's epilogue computes in "
            f"{functor.compute}: make it with this operation's epilogue_type"
        )
    if scalars.names != functor.scalar_names or scalars.reads_source != functor.reads_source:
        raise ArgumentError(
            f"output_op has {_named(scalars.names)}, this operation's epilogue takes {_named(functor.scalar_names)}: "
            f"make it with this operation's epilogue_type"
        )
    if scalars.compute is functor.compute:
        return scalars
    # Those of another functor: an integer epilogue would cut them off, a narrower type may not hold them.
    pack(functor.compute, *zip(functor.scalar_names, scalars.values, strict=True))
    return replace(scalars, compute=functor.compute)


def _check_counts(scalars: EpilogueScalars, batch: int) -> None:
    """Raise where there are other than one element, or one for each matrix of a batch."""
    for name, count in scalars.per_batch.items():
        if count == batch:
            continue
        if batch:
            raise ArgumentError(
                f"{name} on the device has {count} elements, and batch={batch}: it has one for all matrices, or one "
                f"for each"
            )
        raise ArgumentError(
            f"{name} on the device has {count} elements, and must have one: Hopper-native kernels alone read one for "
            f"each matrix, in Mode.Batched and Mode.Array. Elsewhere, write an epilogue function with {name}: "
            f"pycutlass.epilogue.PerBatch"
        )


def _named(names: tuple[str, ...]) -> str:
    return f"the scalars {', '.join(names)}" if names else "no scalars"


def _scalars_meant(functor: _Epilogue, given: Any) -> str:
    """Return what to pass instead of what is no scalars of a launch, for the end of a message."""
    if isinstance(given, _core.GemmMode | _core.SplitKMode):
        return f": write {'gemm_mode' if isinstance(given, _core.GemmMode) else 'split_k_mode'}= before it"
    if isinstance(given, type(functor)) or (
        type(given) is MethodType and given.__func__.__name__ == functor.epilogue_type.__name__
    ):
        return ": call it, output_op=operation.epilogue_type(1.0, 0.0), say"
    if not functor.scalar_names:
        return ": it has no scalars, so leave output_op out"
    if type(given) is dict and given and given.keys() <= {*functor.scalar_names}:
        return f": pass output_op=operation.epilogue_type({', '.join(f'{k}={shown(v)}' for k, v in given.items())})"
    numbers = given if type(given) in (tuple, list) else (given,)
    if numbers and len(numbers) <= len(functor.scalar_names) and all(type(each) in (int, float) for each in numbers):
        return f": pass output_op=operation.epilogue_type({', '.join(map(shown, numbers))})"
    return ""


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
        if element == "bf16":  # its bits, which struct has no format for
            return int(element_of(_core.bfloat16).round(np.asarray(single)).view(np.uint16))
        return float(single if element == "f32" else np.float16(single))
