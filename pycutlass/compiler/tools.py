"""Which compilers a kernel goes through, and everything about them that its cache key must know."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pycutlass import config
from pycutlass.errors import ArgumentError, ToolkitError
from pycutlass.source import KernelSource
from pycutlass.toolchain import Compiler, HostCompiler, Nvcc, Nvrtc
from pycutlass.toolkit import (
    Memo,
    Toolkit,
    find_cutlass,
    find_host_compiler,
    find_nvcc,
    find_nvrtc,
    own_headers_digest,
    own_include,
)

__all__ = ["Tools", "find_device_compiler", "find_tools", "portable_fields"]

_Found = TypeVar("_Found")

# Raise it when the same fields come to mean another build, or a build report another set of fields.
_SCHEMA = "1"


@dataclass(frozen=True)
class Tools:
    """The two compilers of a kernel, and the fields of the key that do not depend on the kernel."""

    device: Compiler
    host: HostCompiler
    fields: Mapping[str, str]
    notes: tuple[str, ...]

    def key_fields(self, source: KernelSource, target: str) -> dict[str, str]:
        """Return everything that decides what `source` becomes when it is built for `target`."""
        return {
            **self.fields,
            **portable_fields(source, target, self.fields["headers"]),
            "device_flags": shlex.join(self.device.flags(target)),
            "host_flags": shlex.join(self.host.flags(target)),
        }


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
    for backend, find in _FINDERS.items():
        try:
            return backend, find(memo)
        except ToolkitError as error:
            refusals.append(error)
    absent = all(error.absent for error in refusals)
    raise ToolkitError("\n".join(["there is no device compiler.", *map(str, refusals)]), absent=absent)


def _named_device_compiler(named: str, memo: Memo) -> tuple[str, Toolkit]:
    if named not in _FINDERS:
        raise ArgumentError(f"PYCUTLASS_BACKEND must be one of {', '.join(_FINDERS)}; it is {named!r}")
    try:
        return named, _FINDERS[named](memo)
    except ToolkitError as error:
        raise ToolkitError(f"PYCUTLASS_BACKEND is {named}. Correct it, unset it, or get {named}: {error}") from error


def find_tools(wanted: str | None, memo: Memo) -> Tools:
    """Return the compilers; they are looked for anew each time, which costs 5 ms, since an old answer can be wrong.

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

    found = attempt(lambda: find_device_compiler(wanted, memo))
    cutlass, program = attempt(find_cutlass), attempt(find_host_compiler)
    if found is None or cutlass is None or program is None:
        raise min(refusals, key=lambda error: error.absent)  # what was named and does not work comes first
    backend, toolkit = found
    includes = (own_include(), *cutlass.includes, *toolkit.includes)
    device = Nvcc(toolkit, includes, program, memo) if backend == "nvcc" else Nvrtc(toolkit, includes, memo)
    host = HostCompiler(program, includes, memo)
    fields = {
        "headers": own_headers_digest(),
        "cutlass": f"{cutlass.version} {cutlass.digest(memo)}",
        "cuda_headers": toolkit.headers_version,
        **device.signature(),
        **host.signature(),
    }
    return Tools(device, host, fields, tuple(filter(None, (cutlass.note, toolkit.note))))


# In order of preference: nvcc's cubins are smaller.
_FINDERS: Mapping[str, Callable[[Memo], Toolkit]] = {"nvcc": find_nvcc, "nvrtc": find_nvrtc}
