"""What the tuner asks of a problem, whichever family of kernels computes it."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pycutlass import cutlass, device
from pycutlass.calls import shown
from pycutlass.device import Device
from pycutlass.enums import MathOperation
from pycutlass.epilogue import EpilogueFunctor, FunctionEpilogue, Port
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan import Candidate, Conv2dCandidate, GroupCandidate, Ranked
from pycutlass.plan.records import name_of
from pycutlass.plan.traffic import bytes_of_sum
from pycutlass.spec import TensorSpec
from pycutlass.tensor.device_array import DeviceArray

__all__ = [
    "SOURCES",
    "AnyCandidate",
    "Array",
    "Launch",
    "Operands",
    "Part",
    "Shapes",
    "Tunable",
    "Work",
    "array_of",
    "check_kind",
]

#: What C is, where a functor reads it.
SOURCES = ("matrix", "bias")

Array = NDArray[Any]
AnyCandidate = Candidate | Conv2dCandidate | GroupCandidate
#: Launches all kernels of a candidate.
Launch = Callable[[], object]


class Shapes(NamedTuple):
    """Shapes of the operands of a product, as arrays by rows have them.

    C has those of the sums; D has half as many columns where the epilogue combines pairs of them.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
    d: tuple[int, ...]


class Operands(NamedTuple):
    """What a launch is given, for each product.

    Attributes
    ----------
    a, b, d : sequence of int
        Addresses of packed operands.
    c : sequence of tensor or None
        C, where it is read.
    ports : mapping of sequence of tensor
        What the epilogue has beside them, by name.
    scalars : mapping of float
        Those of the epilogue, by name.
    """

    a: Sequence[int]
    b: Sequence[int]
    c: Sequence[Any] | None
    d: Sequence[int]
    ports: Mapping[str, Sequence[Any]]
    scalars: Mapping[str, float]

    def of(self, number: int) -> tuple[int, int, Any, int]:
        """Return A, B, C and D of one product."""
        return self.a[number], self.b[number], None if self.c is None else self.c[number], self.d[number]

    def ports_of(self, number: int) -> dict[str, Any]:
        """Return what the epilogue has beside them in one product."""
        return {name: tensors[number] for name, tensors in self.ports.items()}


class Part(NamedTuple):
    """A part of a product that is checked: rows of its matrix of sums, and these in f64."""

    rows: Any
    sums: Array

    @property
    def is_whole(self) -> bool:
        """Whether it has all rows."""
        return isinstance(self.rows, slice)

    def at_most(self, elements: int) -> Part:
        """Return the part with no more elements than so many, in rows from the first to the last."""
        count = self.sums.shape[-2]
        most = max(1, elements * count // self.sums.size)
        if most >= count:
            return self
        taken = np.unique(np.linspace(0, count - 1, most).astype(int))
        return Part(taken if self.is_whole else self.rows[taken], self.sums[..., taken, :])


class Work(Protocol):
    """A problem in the process that measures: its operands, what launches a candidate, and what is right.

    It is one product, of which all operands are arrays, or several.
    """

    @property
    def shapes(self) -> Sequence[Shapes]:
        """Of each product."""

    def beside(self, port: Port, number: int) -> TensorSpec:
        """Return what a tensor of the epilogue is, packed, in a product."""

    def matrix(self, tensor: Array) -> Array:
        """Return C, D or another tensor of their extents as the matrix, or the matrices, that the sums are."""

    def launcher(self, candidate: Any, operands: Operands) -> Launch:
        """Return a function that launches all kernels of a candidate."""

    def part(self, candidate: Any, number: int, a: Array, b: Array, share: float) -> Part:
        """Return the sums in a part of a product, of which it may compute a `share`.

        How operands are rounded the candidate says, and all of a problem do it in the same way.
        """

    def tolerance(self, candidate: Any, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have in a product."""


class Tunable(ABC):
    """A problem that can be tuned: a kind with sizes.

    Each is a frozen dataclass, and goes to the process that measures as a pickle.
    """

    kind: Any
    source: str | None

    @property
    def source_form(self) -> str | None:
        """What C is: ``"matrix"``, ``"bias"``, or None where it is not read."""
        return "matrix" if self.kind.epilogue.reads_source else self.source

    @property
    def bytes(self) -> float:
        """What has to be read and written at least."""
        kind, moved = self.kind, 0.0
        of_sum = bytes_of_sum(kind.epilogue, kind.C, kind.D, self.source)
        for shapes in self.work().shapes:
            moved += math.prod(shapes.a) * kind.A.type.bits / 8 + math.prod(shapes.b) * kind.B.type.bits / 8
            moved += math.prod(shapes.c) * of_sum
        return moved

    @property
    def name(self) -> str:
        """How progress and reports call it."""
        return str(name_of(self.record()))

    @property
    @abstractmethod
    def operations(self) -> float:
        """Multiplications and additions."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return what the database calls it."""

    @abstractmethod
    def ranked(self, gpu: Device) -> Sequence[Ranked[Any]]:
        """Return all candidates that take it, the likely fastest first."""

    @abstractmethod
    def picked(self, gpu: Device) -> Any:
        """Return the likely fastest candidate, or raise ArgumentError with what the nearest ones lack."""

    @abstractmethod
    def work(self) -> Work:
        """Return what measures it."""

    def of_kind(self, kind: Any) -> Tunable:
        """Return the same problem of another kind."""
        changed: Tunable = dataclasses.replace(cast(Any, self), kind=kind)
        return changed

    def by_one_tf32_product(self) -> Tunable:
        """Return the same problem with one TF32 product in place of 3xTF32."""
        return self.of_kind(dataclasses.replace(self.kind, **self._in_tf32()))

    def _in_tf32(self) -> Mapping[str, Any]:
        """Return what is changed of a kind that computes by 3xTF32."""
        tf32 = cutlass.tfloat32
        return {"element_a": tf32, "element_b": tf32, "math_operation": MathOperation.multiply_add}


def check_kind(kind: Any, wanted: type[Any], source: Any) -> None:
    """Raise unless a kind is one of `wanted`, with an epilogue that the tuner has tensors for, C among them.

    Raises
    ------
    ArgumentError
        A C that the epilogue does not read, or that is neither a matrix nor a bias.
    ArgumentTypeError
        Another kind, or an epilogue that is neither a functor nor a function.
    """
    if not isinstance(kind, wanted):
        raise ArgumentTypeError(f"kind must be a pycutlass.plan.{wanted.__name__}, got {shown(kind)}")
    epilogue = kind.epilogue
    if not isinstance(epilogue, EpilogueFunctor | FunctionEpilogue):
        raise ArgumentTypeError(
            f"the tuner makes the operands of epilogue functors and of epilogue functions, and the epilogue is "
            f"{shown(epilogue)}: write it as a function, with pycutlass.epilogue_function"
        )
    if source not in (None, *SOURCES):
        raise ArgumentError(f"source must be {', '.join(map(repr, SOURCES))} or None, got {shown(source)}")
    if source is not None and epilogue.reads_source is not None:
        reads = "always reads a matrix as C" if epilogue.reads_source else "reads no C"
        raise ArgumentError(f"source={source!r} says what a functor reads as C, and {epilogue!r} {reads}: leave it out")
    if source == "bias" and not kind.D.is_row_major:
        raise ArgumentError(
            "source='bias' lies along rows, and D is written by columns: write it by rows, or add the bias in an "
            "epilogue function with a parameter of Row"
        )


def array_of(pointer: int, spec: TensorSpec) -> DeviceArray:
    """Return a tensor in the memory of the current GPU."""
    return DeviceArray(pointer, spec.dtype, spec.shape, spec.strides, ordinal=device.current())
