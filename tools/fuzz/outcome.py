"""What became of one case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from pycutlass.errors import ArgumentError, PyCutlassError
from tools.fuzz.memory import Place
from tools.fuzz.truth import Truth, compare

__all__ = ["Outcome", "Target", "judge", "refused"]


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes
    ----------
    verdict : str
        "right", "wrong", "failed" (something was raised that should not have been) or "refused".
    problem : str
        The problem in words.
    reason : str
        What is wrong; empty where it is right.
    """

    verdict: str
    problem: str
    reason: str = ""


@dataclass(frozen=True)
class Target:
    """A D: its memory, what it must be, and how its elements are read where its layout is no plain one."""

    name: str
    place: Place
    truth: Truth
    read: Callable[[torch.Tensor], torch.Tensor] = lambda stored: stored

    def poison(self) -> None:
        """Make every element one that would be found if it were not written, and remember the guard zones."""
        if self.place.view.dtype.is_floating_point:
            self.place.view.fill_(float("nan"))
        else:
            # An integer that is none of the results: what it must be lies in another order, so it is one for all.
            taken = set(self.truth.rounded().unique().tolist())
            limits = torch.iinfo(self.place.view.dtype)
            free = (number for number in range(limits.min, limits.max + 1) if number not in taken)
            self.place.view.fill_(next(free, limits.min))
        self.place.keep()


def judge(targets: Iterable[Target], operands: dict[str, Place]) -> str:
    """Return what is wrong after a launch: elements of D, what lies around it, or operands that were written."""
    found = []
    for target in targets:
        wrong = compare(target.truth, target.read(target.place.view))
        if wrong:
            found.append(f"{target.name}: {wrong}")
        touched = target.place.touched(outside=True)
        if touched:
            found.append(f"{target.name}: {touched} bytes around it were written")
    for name, place in operands.items():
        touched = place.touched()
        if touched:
            found.append(f"operand {name}: {touched} bytes of it or around it were written")
    return "; ".join(found)


def refused(error: BaseException) -> bool:
    """Return whether this is our own refusal of a problem that does not fit, which is no failure."""
    return isinstance(error, ArgumentError) and isinstance(error, PyCutlassError)
