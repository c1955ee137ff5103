"""Operators in C++, ``torch.ops.pycutlass_kernels.*``, which run libraries of kernels in processes without Python.

Their source, `cpp/operators.cpp`, is compiled against the headers of the torch that is installed. It uses torch's
stable ABI alone, so that what was compiled is for torch 2.10 and all that come after it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import shlex
import subprocess
import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pycutlass import config
from pycutlass.cache.files import as_path, is_cut_off, is_file
from pycutlass.calls import public
from pycutlass.errors import ArgumentError, CompileError, NotCompiledError, ToolkitError
from pycutlass.pytorch.operators import without_gradient
from pycutlass.toolkit import find_host_compiler, own_include, scratch_directory

__all__ = ["Embedded", "build_native", "embedded", "load_native", "native_run"]

_SOURCE = Path(__file__).with_name("cpp") / "operators.cpp"
_NAMESPACE = "pycutlass_kernels"
#: What Python adds to the operators, once in a process: it is there for as long as this object is.
_fragments: list[Any] = []
#: Where `load_native` has compiled them. The file stays until the process ends: debuggers and profilers read it, and
#: dlopen takes a later file for it that a file system gives its number.
_kept = contextlib.ExitStack()
atexit.register(_kept.close)


@public
def build_native(path: str | os.PathLike[str]) -> Path:
    """Compile the operators ``pycutlass_kernels::*`` into a shared object, for programs in C++ and AOTInductor.

    Parameters
    ----------
    path : path
        The file that is written.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        That is no path of a file.
    CompileError
        The compiler refuses the source or cannot write the file; its log is in the exception.
    NotCompiledError
        ``PYCUTLASS_NO_COMPILE`` is set.
    ToolkitError
        There is no host compiler.

    Examples
    --------
    >>> import pycutlass.pytorch
    >>> pycutlass.pytorch.build_native("pycutlass_kernels.so")  # doctest: +SKIP
    """
    return _built(_named(as_path("path", path)))


def _built(path: Path, *options: str) -> Path:
    if config.flag("PYCUTLASS_NO_COMPILE"):
        raise NotCompiledError(
            "the operators in C++ are compiled by the host compiler, and PYCUTLASS_NO_COMPILE is set: unset it, or "
            "pass load_native the file that build_native has written elsewhere"
        )
    with scratch_directory() as folder:
        made = folder / "operators.so"
        here = f"-fmacro-prefix-map={_SOURCE.parent}/="  # messages have the file's name
        command = [*find_host_compiler(), *_FLAGS, here, *options, str(_SOURCE), *_linked(), "-o", str(made)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",  # what names of files are in is for the file system to say
                check=False,
                env=config.compiler_environment(),
            )
        except OSError as error:
            raise ToolkitError(f"the host compiler {command[0]} cannot be started: {error.strerror}") from error
        if done.returncode:
            raise CompileError(
                f"the host compiler failed with exit status {done.returncode} on the operators in C++.",
                log=done.stdout + done.stderr,
                command=shlex.join(command),
            )
        _put(made, path)
    return path


#: C++20 as torch's own headers are compiled.
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
#: Whatever is missing is found when the operators are loaded, not in the middle of a call.
_BOUND = ("-Wl,-z,now", f"-Wl,--version-script={_SOURCE.with_suffix('.map')}")


def _linked() -> list[str]:
    """Return where headers and libraries of torch are: what links with ``torch`` finds the part that is for CUDA."""
    root = Path(torch.__file__).parent
    headers = [f"-isystem{root / 'include'}", f"-I{own_include()}", f"-I{own_include().parent / 'exports' / 'c'}"]
    libraries = ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--as-needed", "-ldl"]
    return [*headers, *_BOUND, f"-L{root / 'lib'}", *libraries]


def _named(path: Path) -> Path:
    """Return the path of a file to write, whose folder may be missing."""
    if not path.name:
        raise ArgumentError(f"path must name the file that is written, got {str(path)!r}: pycutlass_kernels.so")
    return path


def _put(made: Path, path: Path) -> None:
    """Put a file where it belongs, whole or not at all: programs may have the one that is there open."""
    beside = path.with_name(f".{_NAMESPACE}.{os.getpid()}.{threading.get_ident()}")
    try:
        beside.write_bytes(made.read_bytes())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise CompileError(
            f"the operators in C++ cannot be written to {path}: {error.strerror}. Choose another file"
        ) from error


@public
def load_native(path: str | os.PathLike[str] | None = None) -> None:
    """Load the operators ``torch.ops.pycutlass_kernels.*``, once in a process.

    Where they are loaded, by whomever, nothing is done, whatever the path is.

    Parameters
    ----------
    path : path, optional
        What `build_native` has written; without it, the operators are compiled, which takes seconds.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There is no such file, or it has no such operators.
    CompileError, NotCompiledError, ToolkitError
        As of `build_native`.

    Examples
    --------
    >>> import pycutlass.pytorch, torch
    >>> pycutlass.pytorch.load_native()  # doctest: +SKIP
    >>> torch.ops.pycutlass_kernels.run("kernels.so", "linear", [x, w, bias], [y])  # doctest: +SKIP
    """
    if _is_loaded():  # by whomever
        return
    if path is None:
        _load(_built(_kept.enter_context(scratch_directory()) / f"{_NAMESPACE}.so"))
    else:
        _load(as_path("path", path))
    untyped: Any = torch.library  # as it is to type checkers
    fragment = untyped.Library(_NAMESPACE, "FRAGMENT")
    _fragments.append(fragment)
    operators: Any = torch.ops.pycutlass_kernels
    for operator in (operators.run.default, operators.run_embedded.default):
        torch.library.register_fake(operator.name(), _fake_run, lib=fragment)
        without_gradient(operator, fragment)


def _load(path: Path) -> None:
    if not is_file(path):
        raise ArgumentError(f"there is no file {path}: write it with pycutlass.pytorch.build_native")
    if is_cut_off(path):
        raise ArgumentError(f"{path} cannot be loaded as the operators in C++: its end is missing. Copy it again")
    try:
        load: Any = torch.ops.load_library
        load(str(path.absolute()))
    except (OSError, RuntimeError) as error:
        raise ArgumentError(f"{path} cannot be loaded as the operators in C++: {error}") from error
    if not _is_loaded():
        raise ArgumentError(f"{path} has no operators {_NAMESPACE}: write it with pycutlass.pytorch.build_native")


class Embedded(NamedTuple):
    """A library as a program carries it: its bytes, a vector of uint8 on the host, and their SHA-256."""

    library: torch.Tensor
    digest: str


@public
def embedded(path: str | os.PathLike[str]) -> Embedded:
    """Return a library of kernels as a program carries it, for ``torch.ops.pycutlass_kernels.run_embedded``.

    What is exported with the tensor has the kernels in it: packages of AOTInductor and files of ``torch.export.save``
    need no other file where they run, but the operators. Where the operator is first called it opens the bytes as a
    shared object in memory, once in a process. That is native code: it is for those who would run the program.

    Parameters
    ----------
    path : path
        What `pycutlass.export_library` or `build` has written.

    Returns
    -------
    Embedded
        A named tuple: ``library``, the bytes as a vector of uint8 on the host, and ``digest``, their SHA-256.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There is no such file, or it cannot be read.

    Examples
    --------
    >>> import pycutlass.pytorch, torch
    >>> library, digest = pycutlass.pytorch.embedded("kernels.so")  # doctest: +SKIP
    >>> torch.ops.pycutlass_kernels.run_embedded(library, digest, "linear", [x, w, bias], [y])  # doctest: +SKIP
    """
    given = as_path("path", path)
    try:
        contents = bytearray(given.read_bytes())
    except OSError as error:
        raise ArgumentError(
            f"the library of kernels {given} cannot be read: {error.strerror}. Write it with pycutlass.export_library"
        ) from error
    if not contents:
        raise ArgumentError(f"the library of kernels {given} is empty: write it again with pycutlass.export_library")
    return Embedded(torch.frombuffer(contents, dtype=torch.uint8), hashlib.sha256(contents).hexdigest())


def native_run() -> Any:
    """Return the operator in C++ that runs a plan of a library that a program carries.

    Raise ArgumentError where it is not loaded.
    """
    if not _is_loaded():
        raise ArgumentError(
            "programs that are exported run libraries by operators in C++: call pycutlass.pytorch.load_native() before "
            "torch.export"
        )
    return torch.ops.pycutlass_kernels.run_embedded.default


def _is_loaded() -> bool:
    return hasattr(getattr(torch.ops, _NAMESPACE), "run_embedded")


def _fake_run(*given: Any) -> None:
    """Do nothing: what a plan writes is there before. Raise ArgumentError where some tensors have memory after all."""
    lists = (each if isinstance(each, list | tuple) else (each,) for each in given)
    if any(type(each) is torch.Tensor and not each.is_meta for each in itertools.chain(*lists)):
        raise ArgumentError(
            f"{_NAMESPACE}.run and run_embedded are given tensors on the meta device, which have no memory, and others "
            f"that have: give them tensors on one GPU"
        )
