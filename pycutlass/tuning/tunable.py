"""What the tuner asks of a problem, whichever family of kernels computes it."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from numpy.typing import NDArray

from pycutlass import cutlass
from pycutlass.calls import shown
from pycutlass.device import Device
from pycutlass.enums import MathOperation
from pycutlass.epilogue import EpilogueFunctor
from pycutlass.errors import ArgumentTypeError
from pycutlass.plan import Candidate, Conv2dCandidate, GroupCandidate, Ranked
from pycutlass.plan.records import name_of

__all__ = ["AnyCandidate", "Array", "Launch", "Part", "Shapes", "Tunable", "Work", "check_kind", "moved_bytes"]

Array = NDArray[Any]
AnyCandidate = Candidate | Conv2dCandidate | GroupCandidate
#: Launches all kernels of a candidate.
Launch = Callable[[], object]


class Shapes(NamedTuple):
    """Shapes of the operands of a product, and of its result, as arrays by rows have them."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    d: tuple[int, ...]


class Part(NamedTuple):
    """A part of a result that is checked: where it is in D, and the sums there, in f64."""

    places: Any
    sums: Array


class Work(Protocol):
    """A problem in the process that measures: its operands, what launches a candidate, and what is right.

    It is one product, of which all operands are arrays, or several.
    """

    @property
    def shapes(self) -> Sequence[Shapes]:
        """Of each product."""

    def launcher(self, candidate: Any, a: Sequence[int], b: Sequence[int], d: Sequence[int]) -> Launch:
        """Return a function that launches all kernels of a candidate, on packed operands at these addresses."""

    def part(self, candidate: Any, number: int, a: Array, b: Array, share: float) -> Part:
        """Return what is right in a part of a product's D, of which it may compute a `share`.

        How operands are rounded the candidate says, and all of a problem do it in the same way.
        """

    def tolerance(self, candidate: Any, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have in a product."""


class Tunable(ABC):
    """A problem that can be tuned: a kind with sizes.

    Each is a frozen dataclass, and goes to the process that measures as a pickle.
    """

    kind: Any

    @property
    def name(self) -> str:
        """How progress and reports call it."""
        return str(name_of(self.record()))

    @property
    @abstractmethod
    def operations(self) -> float:
        """Multiplications and additions."""

    @property
    @abstractmethod
    def bytes(self) -> float:
        """What has to be read and written at least."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return what the database calls it."""

    @abstractmethod
    def ranked(self, gpu: Device) -> Sequence[Ranked[Any]]:
        """Return all candidates that take it, the likely fastest first."""

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


def check_kind(kind: Any, wanted: type[Any]) -> None:
    """Raise ArgumentTypeError unless a kind is one of `wanted`, with an epilogue functor."""
    if not isinstance(kind, wanted):
        raise ArgumentTypeError(f"kind must be a pycutlass.plan.{wanted.__name__}, got {shown(kind)}")
    if not isinstance(kind.epilogue, EpilogueFunctor):
        raise ArgumentTypeError(
            f"the tuner makes the operands of epilogue functors alone, and the epilogue is {shown(kind.epilogue)}: "
            f"tune the same kind with a functor, such as LinearCombination"
        )


def moved_bytes(kind: Any, shapes: Sequence[Shapes]) -> float:
    """Return the bytes of all operands and results."""
    types = kind.A.type, kind.B.type, kind.D.type
    bits: float = sum(of.bits * math.prod(shape) for each in shapes for of, shape in zip(types, each, strict=True))
    return bits / 8
