"""Which compilers a kernel goes through, and everything about them that its cache key must know."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pycutlass import config
from pycutlass.errors import ArgumentError, ToolkitError
from pycutlass.source import KernelSource
from pycutlass.toolchain import Compiler, HostCompiler, Nvcc, Nvrtc
from pycutlass.toolkit import (
    Memo,
    find_cutlass,
    find_host_compiler,
    find_nvcc,
    find_nvrtc,
    own_headers_digest,
    own_include,
)

__all__ = ["BACKENDS", "Tools", "choose_backend", "find_tools", "portable_fields"]

BACKENDS = ("nvcc", "nvrtc")

# Raise it when the same fields come to mean another build.
_SCHEMA = "1"

_log = logging.getLogger("pycutlass")


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
            **portable_fields(source, target),
            "device_flags": shlex.join(self.device.flags(target)),
            "host_flags": shlex.join(self.host.flags(target)),
        }


def portable_fields(source: KernelSource, target: str) -> dict[str, str]:
    """Return the fields of a kernel's key that are known without any compiler."""
    return {
        "kernel": hashlib.sha256(source.text.encode()).hexdigest(),
        "name": source.name,
        "target": target,
        "headers": own_headers_digest(),
    }


def choose_backend(wanted: str | None, memo: Memo) -> str:
    """Return ``"nvcc"`` or ``"nvrtc"``: `wanted`, ``PYCUTLASS_BACKEND``, or nvcc where there is one and else NVRTC.

    Raises
    ------
    ArgumentError
        If ``PYCUTLASS_BACKEND`` is neither.
    ToolkitError
        If the choice is free and there is neither.
    """
    named = wanted or config.text("PYCUTLASS_BACKEND")
    if named:
        if named not in BACKENDS:
            raise ArgumentError(f"PYCUTLASS_BACKEND must be one of {', '.join(BACKENDS)}; it is {named!r}")
        return named
    try:
        find_nvcc(memo)
        return "nvcc"
    except ToolkitError as no_nvcc:
        try:
            find_nvrtc(memo)
            return "nvrtc"
        except ToolkitError as no_nvrtc:
            raise ToolkitError(f"there is no device compiler.\n{no_nvcc}\n{no_nvrtc}") from None


def find_tools(backend: str, memo: Memo) -> Tools:
    """Return the compilers of `backend`, which are found anew each time: it costs 5 ms, and an old answer can be wrong.

    Raises
    ------
    ToolkitError
        If one of them or a header directory is missing.
    """
    toolkit = find_nvcc(memo) if backend == "nvcc" else find_nvrtc(memo)
    cutlass, host_program = find_cutlass(), find_host_compiler()
    includes = (own_include(), *cutlass.includes, *toolkit.includes)
    nvcc = backend == "nvcc"
    device = Nvcc(toolkit, includes, host_program, memo) if nvcc else Nvrtc(toolkit, includes, memo)
    host = HostCompiler(host_program, includes, memo)
    fields = {
        "schema": _SCHEMA,
        "cutlass": f"{cutlass.version} {cutlass.digest(memo)}",
        "cuda_headers": toolkit.headers_version,
        **device.signature(),
        **host.signature(),
    }
    return Tools(device, host, fields, tuple(filter(None, (cutlass.note, toolkit.note))))
