"""What can be launched: checked operands and scalars, and where they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pycutlass import _core, device
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError, DeviceError
from pycutlass.operands import Operand
from pycutlass.tensor import Guard, guard

__all__ = ["Problem", "check_on_host", "guards", "libraries_of", "ordinal_of"]


class Problem(ABC):
    """Everything that one launch is about, checked.

    Attributes
    ----------
    operands : mapping
        By name, with those of the epilogue behind A, B, C and D; C is absent where it is not read.
    scalars : EpilogueScalars
        alpha, beta and what the activation needs.
    """

    operands: Mapping[str, Operand]
    scalars: EpilogueScalars

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the operands that a launch writes to."""
        return ("D",)

    @property
    def is_empty(self) -> bool:
        """Whether D has no elements, so that there is nothing to launch."""
        return False

    @property
    def compiled_as(self) -> str:
        """The list that add_module takes to compile its kernel, for messages."""
        return "[operation]"

    @property
    @abstractmethod
    def what(self) -> str:
        """The problem in words, for messages."""

    @abstractmethod
    def make_call(self, loaded: _core.DeviceKernel) -> _core.Call:
        """Return a call of the family's class."""

    @abstractmethod
    def configure(self, call: Any) -> None:
        """Fill the family's part of the call record: sizes and modes."""

    @abstractmethod
    def compute(self) -> None:
        """Execute the meaning on the host: read the operands there, write D."""


def libraries_of(problem: Problem) -> dict[str, type]:
    """Return the libraries of a problem's tensors, with the type of a tensor of each."""
    return {each.view.library: type(each.view.owner) for each in problem.operands.values()}


def guards(operands: Mapping[str, Operand], written: Sequence[str] = ("D",)) -> list[tuple[str, Guard]]:
    """Return what watches the tensors of all operands, with their names; launches write to those in `written`."""
    parts = [(name.partition("[")[0] in written, part) for name, operand in operands.items() for part in operand.parts]
    watching = [(part.name, guard(part.view, written=written)) for written, part in parts]
    return [(name, each) for name, each in watching if each is not None]


def ordinal_of(operands: Mapping[str, Operand]) -> int:
    """Return the GPU that all operands are on; the current one where none says so.

    Raises
    ------
    ArgumentError
        Operands on different GPUs, or host tensors of torch.
    """
    places: dict[str, int] = {}
    for operand in (part for each in operands.values() for part in each.parts):
        name, view = operand.name, operand.view
        if view.library == "torch" and view.device is None:
            raise ArgumentError(
                f"operand {operand.name} is a torch tensor on the CPU; move it with {operand.name}.cuda()"
            )
        if view.library == "pointer":
            known = _core.pointer_device(view.pointer)
            if known < 0:
                raise ArgumentError(
                    f"operand {operand.name} is {view.pointer:#x}, which is no memory that a GPU can reach"
                )
            places[name] = known
        elif view.device is not None:
            places[name] = view.device
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{name} on GPU {ordinal}" for name, ordinal in places.items())
        raise ArgumentError(f"all operands must be on one GPU, got {listed}; move them with .to()")
    return next(iter(places.values())) if places else device.current()


def check_on_host(problem: Problem) -> None:
    """Raise DeviceError where something is device memory: without a GPU nothing can read it."""
    operands = problem.operands.values()
    elsewhere = [f"operand {operand.name}" for operand in operands if operand.view.device is not None]
    elsewhere += [name for name, pointer in zip(("alpha", "beta"), problem.scalars.pointers, strict=False) if pointer]
    if elsewhere:
        reason = _core.driver_problem() or "the driver sees none"
        raise DeviceError(
            f"{' and '.join(elsewhere)} given as device memory, and there is no GPU ({reason}): pass numpy arrays, CPU "
            f"tensors and numbers to execute on the host"
        )
