"""What a call asks for: its operations, the kernels that they consist of, and what each is built for.

The arch tag in a kernel's text and the GPU that it is built for are two things.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass import config, device
from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import attribute, items_of
from pycutlass.log import logger
from pycutlass.source import Compilable, KernelSource

__all__ = [
    "KNOWN_TARGETS",
    "Request",
    "Wanted",
    "check_target",
    "checked",
    "choose_target",
    "requests",
    "wanted",
]

KNOWN_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a")

#: The first compute capability with features of one architecture alone (a), or of a family (f).
_FIRST_WITH = {"": 0, "a": 90, "f": 100}
_TARGET = re.compile(r"sm_([0-9]{2,3})([af]?)")


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
    try:
        listed = list(operations)
    except Exception as error:  # of whoever walks along them
        raise ArgumentTypeError(f"{who} takes a list of operations, got {shown(operations)}") from error
    for position, operation in enumerate(listed):
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


def _listed(targets: Sequence[str]) -> list[str]:
    """Return several targets as a list, or say what is wrong with it."""
    given = items_of(targets, sys.maxsize - 1) if isinstance(targets, list | tuple) else None
    if given is None or not all(isinstance(one, str) for one in given):
        raise ArgumentTypeError(
            f"target must be a string such as 'sm_80', a list of them, or None for the present GPU; got "
            f"{shown(targets)}{_meant_target(targets)}"
        )
    if not given:
        raise ArgumentError("target is an empty list: name what to build for, or leave target out")
    return list(dict.fromkeys(given))


def choose_target(source: KernelSource, wanted: str | None = None) -> str:
    """Return what `source` is built for: `wanted`, ``PYCUTLASS_TARGET``, the present GPU, or what it was written for.

    A kernel of one architecture alone gets that architecture's ``a`` target where ``sm_90`` is asked for.

    Raises
    ------
    ArgumentError
        If the target is unknown, is older than the kernel's compute capability, or is another architecture than that
        of a kernel which uses the features of one.
    ArgumentTypeError
        If `wanted` is not a string.
    """
    if wanted is not None and not isinstance(wanted, str):
        raise ArgumentTypeError(
            f"target must be a string such as 'sm_80', or None for the present GPU; got {shown(wanted)}"
            f"{_meant_target(wanted)}"
        )
    asked, asker = wanted, "target"
    if asked is None:
        asked, asker = config.text("PYCUTLASS_TARGET"), "PYCUTLASS_TARGET"
    if asked is None:
        asked, asker = device.current_target(), "the present GPU"
    if asked is None:
        return _own_target(source)
    match = check_target(asked, asker)
    asked = match[0]  # of a class that is derived from str, the text
    capability, needed = int(match[1]), source.compute_capability
    if capability < needed or (source.native and capability != needed):
        rule = "for that architecture only" if source.native else "for that or newer ones"
        remedy = "Describe a kernel with the compute capability of the GPU, or"
        raise ArgumentError(
            f"kernel {source.name} is written for compute capability {needed} and can be built {rule}, but {asker} is "
            f"{asked}. {remedy} pass target={_own_target(source)!r} to build it for another machine."
        )
    target = _own_target(source) if source.native else asked
    if target not in KNOWN_TARGETS:
        known = ", ".join(KNOWN_TARGETS)
        logger.warning("target %s is not among those that PyCUTLASS is tested with: %s", target, known)
    return target


def check_target(asked: str, asker: str) -> re.Match[str]:
    """Return the parts of a target's name, the number and the letter behind it; `asker` is who wants it.

    Raises
    ------
    ArgumentError
        If no target has that name.
    """
    match = _TARGET.fullmatch(asked)
    if match is None:
        raise ArgumentError(
            f"a target is one of {', '.join(KNOWN_TARGETS)} or a newer one; {asker} is {asked!r}, which is none"
            f"{_meant_target(asked)}"
        )
    since = _FIRST_WITH[match[2]]
    if int(match[1]) < since:
        raise ArgumentError(
            f"targets that end in {match[2]} begin with sm_{since}{match[2]}; {asker} is {asked!r}. Did you mean "
            f"'sm_{match[1]}'?"
        )
    return match


def _own_target(source: KernelSource) -> str:
    return f"sm_{source.compute_capability}{'a' if source.native else ''}"


def _meant_target(asked: Any) -> str:
    """Return "did you mean ...?" for another spelling of a compute capability: 90, 9.0, "sm90", "compute_90"."""
    if not isinstance(asked, str | int | float):
        return ""
    text = str.__str__(asked) if isinstance(asked, str) else shown(asked)
    match = re.fullmatch(r"(?:sm|compute|arch|cc)?[_ -]?([0-9]{1,2})\.?([0-9])([af]?)", text.strip().lower())
    return f". Did you mean 'sm_{match[1]}{match[2]}{match[3]}'?" if match else ""
