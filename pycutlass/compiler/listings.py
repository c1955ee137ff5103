"""Kernels for people to read: what the cache has of one, and its PTX."""

from __future__ import annotations

from pycutlass import config
from pycutlass.cache import Artifact, KernelCache
from pycutlass.calls import public
from pycutlass.compiler.choice import choose_target, portable_fields
from pycutlass.compiler.schedule import make_processes
from pycutlass.compiler.tools import find_device_compiler
from pycutlass.errors import NotCompiledError
from pycutlass.source import Compilable
from pycutlass.toolchain import PtxOfNvcc, PtxOfNvrtc
from pycutlass.toolkit import find_cutlass, find_host_compiler, own_headers_digest, own_include

__all__ = ["compiled_before", "ptx_of"]


@public
def compiled_before(operation: Compilable, target: str) -> Artifact | None:
    """Return what an operation was compiled to for a target, if the cache has it; nothing is compiled.

    Raises
    ------
    ArgumentError
        The operation cannot be built for this target.
    """
    source = operation.source()
    built_for = choose_target(source, target)
    if built_for in operation.artifacts:
        return operation.artifacts[built_for]
    fields = portable_fields(source, built_for, own_headers_digest())
    return KernelCache(make=False).find(**fields)


@public
def ptx_of(operation: Compilable, target: str) -> str:
    """Return an operation in PTX, which is compiled anew: caches keep machine code alone.

    Raises
    ------
    ArgumentError
        The operation cannot be built for this target.
    CompileError
        The compiler refuses it.
    NotCompiledError
        ``PYCUTLASS_NO_COMPILE`` is set.
    ToolkitError
        There is no compiler.
    """
    source, memo = operation.source(), KernelCache(make=False).memo
    if config.flag("PYCUTLASS_NO_COMPILE"):
        raise NotCompiledError(f"the PTX of {source.name} has to be made, and PYCUTLASS_NO_COMPILE is set: unset it")
    backend, toolkit = find_device_compiler(None, memo)
    includes = (own_include(), *find_cutlass().includes, *toolkit.includes)
    if backend == "nvcc":
        compiler: PtxOfNvcc | PtxOfNvrtc = PtxOfNvcc(toolkit, includes, find_host_compiler(), memo)
    else:
        compiler = PtxOfNvrtc(toolkit, includes, memo)
    made = compiler.compile(source, choose_target(source, target), make_processes())
    return made.binary.decode("utf-8", "replace")
