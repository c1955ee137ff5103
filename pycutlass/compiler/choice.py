"""What a kernel is built for, and by whom: targets, compilers and headers, and the fields of the cache key that say so.

The arch tag in a kernel's text and the GPU that it is built for are two things.

A search for compilers and headers takes longer than all else on the way to a kernel in the cache. So what it has chosen
is kept, with all that it has looked at (`pycutlass.toolkit.trace`): as long as that is as it was, so is the choice.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass import _core, config, device
from pycutlass.cache import KernelCache
from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import items_of
from pycutlass.log import logger
from pycutlass.source import KernelSource
from pycutlass.toolkit import Trace, find

__all__ = [
    "ANY_TARGET",
    "KNOWN_TARGETS",
    "Choice",
    "Recalled",
    "Wanted",
    "check_target",
    "choose_target",
    "environment",
    "portable_fields",
    "recall",
    "remember",
    "several_targets",
]

# Raise it when the same fields come to mean another build, or a build report another set of fields.
_SCHEMA = "1"
# Raise it when what is kept of a search changes.
_KIND = "tools 1"
_MOST_ENVIRONMENTS = 50  # a few kilobytes each
#: Stands for the target in flags: a name that a shell takes as it is.
ANY_TARGET = "@target@"

KNOWN_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a")
_OLDEST = 75  # no kernel is written for less
#: The first compute capability with features of one architecture alone (a), or of a family (f).
_FIRST_WITH = {"": 0, "a": 90, "f": 100}
_NAME = re.compile(r"sm_([0-9]{2,3})([af]?)")


@dataclass(frozen=True)
class Wanted:
    """A kernel and what it is built for."""

    source: KernelSource
    target: str


def several_targets(targets: Sequence[str]) -> list[str]:
    """Return several targets as a list, or say what is wrong with it."""
    given = items_of(targets, sys.maxsize - 1) if isinstance(targets, list | tuple) else None
    if given is None or not all(isinstance(one, str) for one in given):
        raise ArgumentTypeError(
            f"target must be a string such as 'sm_80', a list of them, or None for the present GPU; got "
            f"{shown(targets)}{_meant_target(targets)}"
        )
    if not given:
        raise ArgumentError("target is an empty list: name what to build for, or leave target out")
    return list(dict.fromkeys(map(str.__str__, given)))  # classes that are derived from str may refuse to be compared


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
    match = _NAME.fullmatch(asked)
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
    if match is None or (number := int(match[1] + match[2])) < _OLDEST:
        return ""
    return f". Did you mean 'sm_{number}{match[3] if number >= _FIRST_WITH[match[3]] else ''}'?"


@dataclass(frozen=True)
class Choice:
    """Which compilers and headers a kernel goes through, as far as its key must know of them.

    Attributes
    ----------
    fields : Mapping[str, str]
        The fields of the key that do not depend on the kernel; in the flags, the target is left open.
    notes : tuple[str, ...]
        What to know about the versions that were found.
    """

    fields: Mapping[str, str]
    notes: tuple[str, ...]

    def key_fields(self, source: KernelSource, target: str) -> dict[str, str]:
        """Return everything that decides what `source` becomes when it is built for `target`."""
        device_flags = self.fields["device_flags"].replace(ANY_TARGET, target)
        kernel = portable_fields(source, target, self.fields["headers"])
        return {**self.fields, **kernel, "device_flags": device_flags}


def portable_fields(source: KernelSource, target: str, headers: str) -> dict[str, str]:
    """Return the fields of a kernel's key that are known without any compiler; `headers` is the digest of ours."""
    kernel = hashlib.sha256(source.text.encode()).hexdigest()
    return {"schema": _SCHEMA, "kernel": kernel, "name": source.name, "target": target, "headers": headers}


class Recalled:
    """A choice that another search has made, and another look at all that it was made from, which goes on meanwhile.

    Other threads look at trees of files from now on.

    Attributes
    ----------
    choice : Choice
        A search would choose the same if the choice `holds`.

    Raises
    ------
    KeyError, TypeError, ValueError
        If `kept` is not what was remembered.
    """

    def __init__(self, kept: Mapping[str, Any]) -> None:
        self.choice, seen = Choice(kept["fields"], tuple(kept["notes"])), kept["trace"]
        self._trees = [(_core.FileStates(list(map(os.fsencode, places))), digest) for places, digest in seen["trees"]]
        self._places, self._answers = list(map(os.fsencode, seen["places"])), seen["answers"]

    def holds(self) -> bool:
        """Return whether everything that was looked at is as it was."""
        try:
            return hashlib.sha256(_core.glances(self._places)).hexdigest() == self._answers and all(
                hashlib.sha256(states.finish()).hexdigest() == digest for states, digest in self._trees
            )
        except OSError:
            return False


def recall(wanted: str | None, cache: KernelCache) -> Recalled | None:
    """Return what a search has chosen before in this environment; None where that is not known.

    It may be used for whatever can be undone, until it has said whether it `holds`.
    """
    subject = environment(wanted)
    text = cache.recall(_KIND, subject) if subject else None
    try:
        kept = json.loads(text) if text else None
        return kept and Recalled(kept)
    except (KeyError, TypeError, ValueError):  # another version of PyCUTLASS has its own idea of it
        return None


def remember(subject: str, choice: Choice, seen: Trace, cache: KernelCache) -> None:
    """Let `recall` know what a search has chosen in the environment `subject`, and what it has looked at."""
    kept = {"fields": choice.fields, "notes": choice.notes, "trace": seen.as_json()}
    cache.remember(_KIND, subject, json.dumps(kept, separators=(",", ":")), most=_MOST_ENVIRONMENTS)


def environment(wanted: str | None) -> str | None:
    """Return a digest of all beside files that decides what a search finds; None where that cannot be said."""
    variables = config.of_the_search()
    if variables is None:
        return None
    packages = [list(map(str, config.package_directories(name))) for name in (find.CUTLASS_PACKAGE, find.CUDA_PACKAGE)]
    described = [wanted, variables, packages, str(find.CHECKOUT), os.uname().nodename]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
