"""What a kernel is built for: the arch tag in its text and the GPU that it runs on are two things."""

from __future__ import annotations

import re
from typing import Any

from pycutlass import config, device
from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.log import logger
from pycutlass.source import KernelSource

__all__ = ["KNOWN_TARGETS", "check_target", "choose_target", "meant_target"]

KNOWN_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a")

#: The first compute capability with features of one architecture alone (a), or of a family (f).
_FIRST_WITH = {"": 0, "a": 90, "f": 100}
_TARGET = re.compile(r"sm_([0-9]{2,3})([af]?)")


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
            f"{meant_target(wanted)}"
        )
    for asked, asker in ((wanted, "target"), (config.text("PYCUTLASS_TARGET"), "PYCUTLASS_TARGET")):
        if asked is not None:
            return _fit(source, asked, asker)
    present = device.current_target()
    return _fit(source, present, "the present GPU") if present else _own_target(source)


def _own_target(source: KernelSource) -> str:
    return f"sm_{source.compute_capability}{'a' if source.native else ''}"


def meant_target(asked: Any) -> str:
    """Return "did you mean ...?" for another spelling of a compute capability: 90, 9.0, "sm90", "compute_90"."""
    if not isinstance(asked, str | int | float):
        return ""
    text = str.__str__(asked) if isinstance(asked, str) else shown(asked)
    match = re.fullmatch(r"(?:sm|compute|arch|cc)?[_ -]?([0-9]{1,2})\.?([0-9])([af]?)", text.strip().lower())
    return f". Did you mean 'sm_{match[1]}{match[2]}{match[3]}'?" if match else ""


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
            f"{meant_target(asked)}"
        )
    since = _FIRST_WITH[match[2]]
    if int(match[1]) < since:
        raise ArgumentError(
            f"targets that end in {match[2]} begin with sm_{since}{match[2]}; {asker} is {asked!r}. Did you mean "
            f"'sm_{match[1]}'?"
        )
    return match


def _fit(source: KernelSource, asked: str, asker: str) -> str:
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
