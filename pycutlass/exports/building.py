"""Compiling the kernels of plans, and linking them into one shared object."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from pycutlass import compiler, config
from pycutlass.cache import Artifact
from pycutlass.errors import CompileError, NotCompiledError, ToolkitError
from pycutlass.exports.described import Described
from pycutlass.operation import Operation
from pycutlass.toolkit import find_host_compiler, own_include
from pycutlass.toolkit.files import on_path

__all__ = ["RUNTIME", "SOURCES", "artifacts_of", "images", "include_flags", "link"]

#: Where the C is that programs and libraries are made of.
SOURCES = Path(__file__).parent / "c"
#: What every library has.
RUNTIME = ("message.c", "driver.c", "kernel.c", "record.c", "tensors.c", "library.c")


def artifacts_of(plans: Iterable[Described], target: str | None) -> dict[Operation, Artifact]:
    """Return what is compiled for each kernel of plans, from the cache or by the compilers.

    Raises
    ------
    ArgumentError, BuildReportError, CompileError, NotCompiledError, ToolkitError
        As `pycutlass.compiler.add_module`.
    """
    kernels = list(dict.fromkeys(kernel for plan in plans for kernel in plan.kernels))
    return dict(zip(kernels, compiler.add_module(kernels, target=target), strict=True))


def images(files: Sequence[tuple[str, str]], manifest: str) -> str:
    """Return C that has the two sides of kernels, and a manifest, in its memory, from files."""
    lines = ["// The kernels, as they were compiled, and the manifest.", "__asm__("]
    lines += [_included("pycutlass_library_manifest", manifest, is_hidden=False)]
    for number, sides in enumerate(files):
        for side, file in zip(("cubin", "host"), sides, strict=True):
            lines.append(_included(f"kernel_{number}_{side}", file))
    return "\n".join([*lines, ");", ""])


def _included(symbol: str, file: str, *, is_hidden: bool = True) -> str:
    """Return assembly that has the bytes of a file, and a zero behind them, at a symbol."""
    hidden = f".hidden {symbol}\\n.globl {symbol}_end\\n.hidden {symbol}_end\\n" if is_hidden else ""
    return (
        f'    ".section .rodata\\n.balign 64\\n.globl {symbol}\\n{hidden}.type {symbol}, @object\\n{symbol}:\\n"\n'
        f'    ".incbin \\"{file}\\"\\n{symbol}_end:\\n.byte 0\\n.size {symbol}, . - {symbol}\\n.previous\\n"'
    )


def include_flags() -> list[str]:
    """Return where a compiler finds the headers of the C."""
    return [f"-I{SOURCES}", f"-I{own_include()}"]


def link(folder: Path, files: Sequence[str], output: str, *, soname: str) -> None:
    """Compile the C files of a folder, and those that every library has, into a shared object there.

    Raises
    ------
    CompileError
        The compiler refuses them.
    NotCompiledError
        ``PYCUTLASS_NO_COMPILE`` is set.
    ToolkitError
        There is no compiler, or it cannot be started.
    """
    if config.flag("PYCUTLASS_NO_COMPILE"):
        raise NotCompiledError(
            "a library is linked by the host compiler, and PYCUTLASS_NO_COMPILE is set: unset it, or export "
            "format='bundle', which needs no compiler"
        )
    command = [
        *_c_compiler(),
        *("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *include_flags()),
        *files,
        *(str(SOURCES / name) for name in RUNTIME),
        *(
            "-shared",
            f"-Wl,-soname,{soname}",
            "-Wl,-Bsymbolic,--as-needed,-z,defs,-z,noexecstack",
            "-o",
            output,
            "-ldl",
            "-lpthread",
        ),
    ]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env=config.compiler_environment()
        )
    except OSError as error:
        raise ToolkitError(f"the host compiler {command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        raise CompileError(
            f"the host compiler failed with exit status {done.returncode} on a library of kernels.",
            log=done.stdout + done.stderr,
            command=shlex.join(command),
        )


def _c_compiler() -> tuple[str, ...]:
    """Return the command of the C compiler that belongs to the host compiler: that of g++-14 is gcc-14.

    Raises
    ------
    ToolkitError
        There is none.
    """
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), find_host_compiler()))  # options are of C++
    names = {"g++": "gcc", "clang++": "clang", "c++": "cc"}
    as_c = [
        re.sub(r"(clang\+\+|g\+\+|c\+\+)(?=[^/]*$)", lambda found: names[found[0]], word, count=1) for word in words
    ]
    for command in (as_c, ["gcc"], ["cc"]):
        if command != words and (program := on_path(command[0])):
            return (program, *command[1:])
    raise ToolkitError(
        f"a library is made of C, and there is no C compiler beside {words[0]}: install gcc (Debian, Ubuntu: apt "
        f"install gcc; Fedora: dnf install gcc)"
    )
