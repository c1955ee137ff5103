"""Kernels for lesser alignments of A and B than a kind has: they take its problems, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pycutlass.errors import ArgumentError

__all__ = ["choice_in", "kind_of_choice", "name_in"]

_NAME = "alignments"
_Kind = TypeVar("_Kind", bound=Any)


def choice_in(kind: Any, candidate: Any) -> dict[str, Any]:
    """Return what is chosen beside a kind, as `candidate.choice()`, and the alignments of A and B that are lesser."""
    choice: dict[str, Any] = candidate.choice()
    its = _lesser(kind, candidate)
    return choice if its is None else {**choice, _NAME: its}


def name_in(kind: Any, candidate: Any) -> str:
    """Return what a candidate is called beside those of a kind, of which others may have its tile and its name."""
    its, name = _lesser(kind, candidate), str(candidate.name)
    return name if its is None else f"{name}, built for the lesser alignments {its[0]} of A and {its[1]} of B"


def _lesser(kind: Any, candidate: Any) -> list[int] | None:
    """Return the alignments of A and B that a candidate is built for; None where they are those of the kind."""
    its = [getattr(candidate.operation, name).alignment for name in "AB"]
    return None if its == [kind.A.alignment, kind.B.alignment] else its


def kind_of_choice(kind: _Kind, choice: Mapping[str, Any]) -> _Kind:
    """Return the kind that the kernel of a choice is described by: with lesser alignments where the choice has them.

    Raises
    ------
    ArgumentError
        They are not lesser, and the kernel would not take operands of the kind.
    DescriptionError
        There are no such alignments.
    TypeError
        `choice` is none that `choice_in` returns.
    """
    if _NAME not in choice:
        return kind
    its, most = choice[_NAME], [kind.A.alignment, kind.B.alignment]
    if not isinstance(its, list | tuple) or len(its) != len(most) or not all(type(each) is int for each in its):
        raise TypeError(f"{_NAME} are {its!r}, and must be two integers")
    if any(lesser > usual for lesser, usual in zip(its, most, strict=True)):
        raise ArgumentError(f"the choice has {_NAME} {its!r}, and the operands have {most!r}: it is of another kind")
    A, B = (replace(described, alignment=each) for described, each in zip((kind.A, kind.B), its, strict=True))
    found: _Kind = replace(kind, A=A, B=B)
    return found
