"""Finding the compilers that a kernel goes through, and everything about them that its cache key must know."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pycutlass import _core, config
from pycutlass.cache import KernelCache
from pycutlass.calls import suggestion
from pycutlass.compiler.choice import ANY_TARGET, Choice, environment, remember
from pycutlass.errors import ArgumentError, ToolkitError
from pycutlass.toolchain import Compiler, HostCompiler, Nvcc, Nvrtc
from pycutlass.toolkit import (
    Cutlass,
    Memo,
    Toolkit,
    Trace,
    find_cutlass,
    find_host_compiler,
    find_nvcc,
    find_nvrtc,
    look,
    own_headers_digest,
    own_include,
    recorded,
    unrecorded,
    unrepeatable,
)

__all__ = ["Tools", "device_compiler_release", "find_device_compiler", "find_tools", "search"]

_Found = TypeVar("_Found")

# Whoever works on these has other rules at the next moment.
_DECIDING = (
    *("pycutlass.config", "pycutlass.toolkit.find", "pycutlass.toolkit.host_compiler", "pycutlass.toolkit.models"),
    *("pycutlass.toolkit.files", "pycutlass.toolkit.trace", "pycutlass.toolchain.compilers"),
    "pycutlass.toolchain.host_inputs",
    *("pycutlass.compiler.choice", __name__),
)


@dataclass(frozen=True)
class Tools(Choice):
    """The two compilers themselves, and what keys must know of them."""

    device: Compiler
    host: HostCompiler


def search(wanted: str | None, cache: KernelCache) -> Tools:
    """Return the compilers, as `find_tools` does, and let `recall` know what was chosen and from what."""
    seen = Trace()
    with config.unchanging(), recorded(seen):
        subject = environment(wanted)
        for module in _DECIDING:
            look("kind", str(sys.modules[module].__file__))
        if _rules() != _LOADED:  # the answer would pass for one by rules that this process does not have
            unrepeatable()
        tools = find_tools(wanted, lambda kind, of, state, compute: cache.memo(kind, of, state, unrecorded(compute)))
        lasts = subject is not None and seen.repeatable and subject == environment(wanted)
    if subject and lasts:
        remember(subject, tools, seen, cache)
    return tools


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


def device_compiler_release(memo: Memo) -> str:
    """Return the device compiler with its release, for example ``nvcc 13.0.88``.

    Raises
    ------
    ArgumentError, ToolkitError
        As `find_device_compiler` does, or if it cannot be asked.
    """
    found = find_device_compiler(None, memo)
    return _device(found, (), ("g++",), memo).signature()["device_compiler"].partition(",")[0]


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
        refusals.sort(key=lambda error: error.absent)  # what was named and does not work comes first
        said = "\n".join(dict.fromkeys(map(str, refusals)))
        raise ToolkitError(said, absent=refusals[0].absent) from refusals[0].__cause__
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
            "device_flags": shlex.join(device.flags(ANY_TARGET)),
            "host_flags": shlex.join(host.flags(ANY_TARGET)),
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
