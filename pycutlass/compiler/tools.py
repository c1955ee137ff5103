"""Which compilers a kernel goes through, and everything about them that its cache key must know."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from pycutlass import _core, config
from pycutlass.cache import KernelCache
from pycutlass.calls import suggestion
from pycutlass.errors import ArgumentError, ToolkitError
from pycutlass.source import KernelSource
from pycutlass.toolchain import Compiler, HostCompiler, Nvcc, Nvrtc
from pycutlass.toolkit import (
    Cutlass,
    Glimpse,
    Memo,
    Toolkit,
    Trace,
    find,
    find_cutlass,
    find_host_compiler,
    find_nvcc,
    find_nvrtc,
    look,
    own_headers_digest,
    own_include,
    recorded,
    trace,
    unrecorded,
    unrepeatable,
)

__all__ = ["Choice", "Recalled", "Tools", "find_device_compiler", "find_tools", "portable_fields", "recall", "search"]

_Found = TypeVar("_Found")

# Raise it when the same fields come to mean another build, or a build report another set of fields.
_SCHEMA = "1"
# Raise it when what is kept of a search changes.
_KIND = "tools 1"
_MOST_ENVIRONMENTS = 50  # a few kilobytes each
_TARGET = "@target@"  # in flags, a name that a shell takes as it is
# Whoever works on these has other rules at the next moment.
_DECIDING = (
    *("pycutlass.config", "pycutlass.toolkit.find", "pycutlass.toolkit.models", "pycutlass.toolkit.files"),
    *("pycutlass.toolkit.trace", "pycutlass.toolchain.compilers", __name__),
)


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
        device_flags = self.fields["device_flags"].replace(_TARGET, target)
        kernel = portable_fields(source, target, self.fields["headers"])
        return {**self.fields, **kernel, "device_flags": device_flags}


@dataclass(frozen=True)
class Tools(Choice):
    """The two compilers themselves, and what keys must know of them."""

    device: Compiler
    host: HostCompiler


class Recalled(NamedTuple):
    """A choice that another search has made, and another look at all that it was made from, which goes on meanwhile.

    A search would choose the same as long as ``glimpse.is_the_same()``.
    """

    choice: Choice
    glimpse: Glimpse


def recall(wanted: str | None, cache: KernelCache) -> Recalled | None:
    """Return what a search has chosen before in this environment; None where that is not known.

    It may be used for whatever can be undone, until the glimpse has said whether it is right.
    """
    subject = _environment(wanted)
    text = cache.recall(_KIND, subject) if subject else None
    try:
        kept = json.loads(text) if text else None
        return kept and Recalled(Choice(kept["fields"], tuple(kept["notes"])), Glimpse(kept["trace"]))
    except (KeyError, TypeError, ValueError):  # another version of PyCUTLASS has its own idea of it
        return None


def search(wanted: str | None, cache: KernelCache) -> Tools:
    """Return the compilers, as `find_tools` does, and let `recall` know what was chosen and why."""
    seen = Trace()
    with config.unchanging(), recorded(seen):
        subject = _environment(wanted)
        for module in _DECIDING:
            look("kind", str(sys.modules[module].__file__))
        if _rules() != _LOADED:  # the answer would pass for one by rules that this process does not have
            unrepeatable()
        tools = find_tools(wanted, lambda kind, of, state, compute: cache.memo(kind, of, state, unrecorded(compute)))
        lasts = subject is not None and seen.repeatable and subject == _environment(wanted)
    if subject and lasts:
        kept = {"fields": tools.fields, "notes": tools.notes, "trace": seen.as_json()}
        cache.remember(_KIND, subject, json.dumps(kept, separators=(",", ":")), most=_MOST_ENVIRONMENTS)
    return tools


def _environment(wanted: str | None) -> str | None:
    """Return a digest of all beside files that decides what a search finds; None where that cannot be said."""
    variables = config.of_the_search()
    if variables is None:
        return None
    packages = [list(map(str, trace.package_directories(name))) for name in (find.CUTLASS_PACKAGE, find.CUDA_PACKAGE)]
    described = [wanted, variables, packages, str(find.CHECKOUT), os.uname().nodename]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def portable_fields(source: KernelSource, target: str, headers: str) -> dict[str, str]:
    """Return the fields of a kernel's key that are known without any compiler; `headers` is the digest of ours."""
    kernel = hashlib.sha256(source.text.encode()).hexdigest()
    return {"schema": _SCHEMA, "kernel": kernel, "name": source.name, "target": target, "headers": headers}


def find_device_compiler(wanted: str | None, memo: Memo) -> tuple[str, Toolkit]:
    """Return a backend, ``"nvcc"`` or ``"nvrtc"``, and the toolkit that has it.

    The backend is `wanted`, ``PYCUTLASS_BACKEND``, or nvcc where there is one and else NVRTC.

    Raises
    ------
    ArgumentError
        If ``PYCUTLASS_BACKEND`` is neither.
    ToolkitError
        If it is not there, or if the choice is free and there is neither.
    """
    if wanted:
        return wanted, _FINDERS[wanted](memo)
    named = config.text("PYCUTLASS_BACKEND")
    if named:
        return _named_device_compiler(named, memo)
    refusals = []
    for backend, finder in _FINDERS.items():
        try:
            return backend, finder(memo)
        except ToolkitError as error:
            refusals.append(error)
    absent = all(error.absent for error in refusals)
    raise ToolkitError("\n".join(["there is no device compiler.", *dict.fromkeys(map(str, refusals))]), absent=absent)


def _named_device_compiler(named: str, memo: Memo) -> tuple[str, Toolkit]:
    if named not in _FINDERS:
        raise ArgumentError(
            f"PYCUTLASS_BACKEND must be one of {', '.join(_FINDERS)}; it is {named!r}.{suggestion(named, _FINDERS)}"
        )
    try:
        return named, _FINDERS[named](memo)
    except ToolkitError as error:
        raise ToolkitError(f"PYCUTLASS_BACKEND is {named}. Correct it, unset it, or get {named}: {error}") from error


def find_tools(wanted: str | None, memo: Memo) -> Tools:
    """Return the compilers; they are looked for anew each time, since an old answer can be wrong.

    Raises
    ------
    ArgumentError
        If ``PYCUTLASS_BACKEND`` names no backend.
    ToolkitError
        If a compiler or a header directory is missing.
    """
    refusals: list[ToolkitError] = []

    def attempt(find: Callable[[], _Found]) -> _Found | None:
        try:
            return find()
        except ToolkitError as error:
            refusals.append(error)
            return None

    cutlass = attempt(find_cutlass)
    states = cutlass.look() if cutlass else None  # while all else is found, and the cache is opened
    found, program = attempt(lambda: find_device_compiler(wanted, memo)), attempt(find_host_compiler)
    if found is None or cutlass is None or program is None:
        for variable, ask in _named(found, cutlass, program, memo):
            attempt(functools.partial(_works, variable, ask))
        raise min(refusals, key=lambda error: error.absent)  # what was named and does not work comes first
    includes = (own_include(), *cutlass.includes, *found[1].includes)
    host, toolkit = HostCompiler(program, includes, memo), found[1]
    with host.ask_ahead():
        device, cuda_states = _device(found, includes, program, memo), toolkit.look()
        fields = {
            **device.signature(),
            "headers": own_headers_digest(),
            "cutlass": f"{cutlass.version} {cutlass.digest(memo, states)}",
            "cuda_headers": f"{toolkit.headers_version} {toolkit.digest(memo, cuda_states)}",
            **_signature(host),
            "device_flags": shlex.join(device.flags(_TARGET)),
            "host_flags": shlex.join(host.flags(_TARGET)),
        }
    return Tools(fields, tuple(filter(None, (cutlass.note, toolkit.note))), device, host)


def _signature(host: HostCompiler) -> dict[str, str]:
    """Return what the host compiler is known by; where CXX named one that does not work, the message says so."""
    if not config.text("CXX"):
        return host.signature()
    fields: dict[str, str] = {}
    _works("CXX", lambda: fields.update(host.signature()))
    return fields


def _device(found: tuple[str, Toolkit], includes: tuple[Path, ...], host: tuple[str, ...], memo: Memo) -> Compiler:
    backend, toolkit = found
    return Nvcc(toolkit, includes, host, memo) if backend == "nvcc" else Nvrtc(toolkit, includes, memo)


def _named(
    found: tuple[str, Toolkit] | None, cutlass: Cutlass | None, program: tuple[str, ...] | None, memo: Memo
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what variables have named, and how to see that it works.

    Where something else is not installed, no kernel is built and nobody would notice that it does not.
    """
    if cutlass is not None and cutlass.found_via == "CUTLASS_PATH":
        yield "CUTLASS_PATH", lambda: cutlass.digest(memo)
    if program is not None and config.text("CXX"):
        yield "CXX", HostCompiler(program, (), memo).signature
    root = next(filter(config.text, ("CUDA_INSTALL_PATH", "CUDA_HOME")), None)
    if found is not None and root is not None:
        yield root, _device(found, (), program or ("g++",), memo).signature
        yield root, lambda: found[1].digest(memo)


def _works(variable: str, ask: Callable[[], object]) -> None:
    """Raise ToolkitError where what `variable` names does not work."""
    try:
        ask()
    except ToolkitError as error:
        named = config.text(variable)
        raise ToolkitError(
            f"{variable} is {named}, which does not work: {error}\nCorrect the variable or unset it."
        ) from error


# In order of preference: nvcc's cubins are smaller.
_FINDERS: Mapping[str, Callable[[Memo], Toolkit]] = {"nvcc": find_nvcc, "nvrtc": find_nvrtc}


def _rules() -> bytes:
    """Return the states of the files that say how to search."""
    return _core.glances([os.fsencode(f"k{sys.modules[module].__file__}") for module in _DECIDING])


# As they were imported. A process may still run when PyCUTLASS is upgraded below it.
_LOADED = _rules()
