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
    parts = [part for each in operands.values() for part in each.parts]
    places = {part.name: place for part in parts if (place := _place_of(part)) is not None}
    gpus = {place for place in places.values() if place >= 0}
    if len(gpus) > 1 or _ON_CPU in places.values():
        raise ArgumentError(_moves(parts, places, gpus))
    return next(iter(gpus)) if gpus else device.current()


_ON_CPU = -1  # a tensor of torch: arrays of NumPy are copied


def _place_of(operand: Operand) -> int | None:
    """Return the GPU that an operand is on, `_ON_CPU` for a tensor that is to be on one, and None where any will do."""
    view = operand.view
    if view.library == "torch" and view.device is None:
        return _ON_CPU
    if view.library != "pointer":
        return view.device
    known = _core.pointer_device(view.pointer)
    if known < 0:
        raise ArgumentError(f"operand {operand.name} is {view.pointer:#x}, which is no memory that a GPU can reach")
    return known


def _moves(parts: Sequence[Operand], places: Mapping[str, int], gpus: set[int]) -> str:
    """Return what is said of operands in several places: what is to move, all of it, to where D is if that is a GPU."""
    at_D = [place for name, place in places.items() if name.partition("[")[0] == "D" and place >= 0]
    target = (at_D or [place for place in places.values() if place >= 0] or [_ON_CPU])[0]
    to = f".cuda({target})" if gpus else ".cuda()"
    names = [name for name, place in places.items() if place != target or place == _ON_CPU]
    moved = [f"{part.name} = {part.name}{to}" for part in parts if part.name in names and part.view.library == "torch"]
    shown = names if len(names) <= _MOST_NAMED else [*names[:_MOST_NAMED], f"{len(names) - _MOST_NAMED} others"]
    how = f": {'; '.join(moved)}" if len(moved) == len(names) <= _MOST_NAMED else ""
    if not gpus:
        one = len(names) == 1
        kind = f"operand {names[0]} is a torch tensor" if one else f"operands {', '.join(shown)} are torch tensors"
        return f"{kind} on the CPU; move {'it' if one else 'each'} to a GPU{how or ' with .cuda()'}"
    there = {name: "the CPU" if place == _ON_CPU else f"GPU {place}" for name, place in places.items()}
    fixed = next(name for name, place in places.items() if place == target)
    listed = ", ".join(f"{name} on {there[name]}" for name in [*names[:_MOST_NAMED], fixed])
    return f"all operands must be on one GPU, got {listed}; move {', '.join(shown)} to GPU {target}{how}"


_MOST_NAMED = 8  # a group has hundreds


def check_on_host(problem: Problem) -> None:
    """Raise DeviceError where something is device memory: without a GPU nothing can read it."""
    operands = problem.operands.values()
    elsewhere = [f"operand {operand.name}" for operand in operands if operand.view.device is not None]
    scalars = problem.scalars
    elsewhere += [name for name, pointer in zip(scalars.names, scalars.pointers, strict=True) if pointer]
    if elsewhere:
        reason = _core.driver_problem() or "the driver sees none"
        raise DeviceError(
            f"{' and '.join(elsewhere)} given as device memory, and there is no GPU ({reason}): pass numpy arrays, CPU "
            f"tensors and numbers to execute on the host"
        )
