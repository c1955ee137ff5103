"""What a call asks for: its operations, the kernels that they consist of, and what each is built for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass.calls import shown
from pycutlass.compiler.target import choose_target, meant_target
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import attribute, items_of
from pycutlass.source import Compilable, KernelSource

__all__ = ["Request", "Wanted", "checked", "requests", "wanted"]


@dataclass(frozen=True)
class Wanted:
    """A kernel and what it is built for."""

    source: KernelSource
    target: str


@dataclass(frozen=True, eq=False)
class Request:
    """One operation for one target.

    Attributes
    ----------
    position : int
        Of the operation in the list that was given.
    operation : operation
        The operation itself.
    kernels : list of pairs
        What is launched for it, with what is compiled for that: itself first, then kernels that it launches besides.
    """

    position: int
    operation: Compilable
    kernels: list[tuple[Compilable, Wanted]]


def checked(operations: Iterable[Compilable], who: str) -> list[Compilable]:
    """Return `operations` as a list, or say what is wrong with them; `who` is the function that they were given to."""
    if attribute(operations, "artifacts") is not None:
        raise ArgumentTypeError(f"{who} takes a list of operations: write {who}([operation])")
    if not isinstance(operations, Iterable):
        raise ArgumentTypeError(f"{who} takes a list of operations, got {shown(operations)}: write {who}([operation])")
    listed: list[Compilable] = []
    for position, operation in enumerate(_walk(operations, who)):
        listed.append(operation)
        if isinstance(operation, type):
            raise ArgumentTypeError(
                f"{who} takes a list of operations, and item {position} is the class {operation.__name__}: describe an "
                f"operation with it, {operation.__name__}(...)"
            )
        if attribute(operation, "artifacts") is None or not callable(attribute(operation, "source")):
            raise ArgumentTypeError(f"{who} takes a list of operations, and item {position} is {shown(operation)}")
    return listed


def requests(operations: Sequence[Compilable], target: str | Sequence[str] | None, who: str) -> list[list[Request]]:
    """Return what is asked for of each of `operations`: one request for each of its targets.

    Raises
    ------
    ArgumentError
        An operation cannot be built for a target, or there is none in a list of them.
    ArgumentTypeError
        `target` is neither a string nor a list of them.
    """
    # What each needs compiled beside the others: itself, and kernels that it launches besides.
    each_parts = [
        [operation] if (parts := getattr(operation, "parts", None)) is None else parts(operations)
        for operation in operations
    ]
    built_for = iter(wanted(checked([part for group in each_parts for part in group], who), target))
    made = []
    for position, (operation, group) in enumerate(zip(operations, each_parts, strict=True)):
        rows = [[(part, want) for want in next(built_for)] for part in group]
        rows.sort(key=lambda row: row[0][0] is not operation)  # itself first
        made.append([Request(position, operation, list(kernels)) for kernels in zip(*rows, strict=True)])
    return made


def wanted(parts: Sequence[Compilable], target: str | Sequence[str] | None) -> list[list[Wanted]]:
    """Return what each of `parts` is built for: the targets that are named, or else one, or those that it follows."""
    sources = [part.source() for part in parts]
    if target is not None and not isinstance(target, str):
        targets = _listed(target)
        return [[Wanted(source, choose_target(source, one)) for one in targets] for source in sources]
    wants = [[Wanted(source, choose_target(source, target))] for source in sources]
    follows = [getattr(part, "follows", False) for part in parts]
    leading = {
        want.target
        for source, each, behind in zip(sources, wants, follows, strict=True)
        for want in each
        if not (behind or source.native)  # what one architecture alone runs has no kernels behind it
    }
    return [
        [Wanted(source, one) for one in sorted(leading)] if behind and leading else each
        for source, each, behind in zip(sources, wants, follows, strict=True)
    ]


def _walk(operations: Iterable[Any], who: str) -> Iterator[Any]:
    """Yield what `operations` has; what it raises meanwhile is the cause of an exception of ours."""
    try:
        yield from operations
    except Exception as error:
        raise ArgumentTypeError(f"{who} takes a list of operations, got {shown(operations)}") from error


def _listed(targets: Sequence[str]) -> list[str]:
    """Return several targets as a list, or say what is wrong with it."""
    given = items_of(targets, sys.maxsize - 1) if isinstance(targets, list | tuple) else None
    if given is None or not all(isinstance(one, str) for one in given):
        raise ArgumentTypeError(
            f"target must be a string such as 'sm_80', a list of them, or None for the present GPU; got "
            f"{shown(targets)}{meant_target(targets)}"
        )
    if not given:
        raise ArgumentError("target is an empty list: name what to build for, or leave target out")
    return list(dict.fromkeys(given))
