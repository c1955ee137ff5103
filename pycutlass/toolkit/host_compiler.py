"""The host compiler: where it is looked for, and what its command may say."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pycutlass import config
from pycutlass.errors import ToolkitError
from pycutlass.toolkit.files import is_file, is_script, on_path, read_bytes
from pycutlass.toolkit.find import CORRECT, missing
from pycutlass.toolkit.trace import unrepeatable

__all__ = ["GET_CXX", "compiler_options", "find_host_compiler", "search_host_compiler"]

GET_CXX = "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to one"


def find_host_compiler() -> tuple[str, ...]:
    """Return the command of the host compiler, ``$CXX`` or g++, its program as an absolute path.

    Raises
    ------
    ToolkitError
        If it is not on ``PATH``, or if ``CXX`` is not a command.
    """
    found, tried = search_host_compiler()
    return found or missing("a C++ compiler for the host side of kernels", tried, GET_CXX, "CXX")


def compiler_options(words: Sequence[str]) -> list[str]:
    """Return the words of a host compiler's command one by one, with those in ``-Wp,...`` and in the files ``@file``.

    Raises
    ------
    ToolkitError
        If a shell cannot read such a file, or if they name each other without end.
    """
    options, left = [], list(words)
    while left:
        word = left.pop(0)
        options.append(word)
        if word.startswith(_HANDS_ON):
            left[:0] = word.split(",")[1:]
        elif word.startswith("@/") and is_file(Path(word[1:])):
            left[:0] = _words_of_file(word[1:])
        if len(options) > _MOST_OPTIONS:
            raise ToolkitError(f"CXX has more than {_MOST_OPTIONS:,} words: a file {word!r} names itself. Correct it.")
    return options


def search_host_compiler() -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the host compiler's command, or None, and what was tried."""
    named = config.text("CXX")
    command = _words("CXX", named) if named else ["g++"]
    _refuse_what_no_key_knows(named or "", command)
    program = on_path(command[0])
    tried = [f"{command[0]} ({'CXX' if named else 'on PATH'})"]
    if program and is_script(Path(program)):  # it is asked anew each time, so nothing else need be kept of the search
        unrepeatable()
    return ((str(Path(program).absolute()), *command[1:]) if program else None), tried


_ADDS_DIRECTORY = (
    *("-I", "-isystem", "-iquote", "-idirafter", "-iprefix", "-iwithprefix", "--include-directory", "-isysroot"),
    *("-B/", "-imultilib", "-iframework", "-cxx-isystem", "-stdlib++-isystem", "-internal-isystem", "-ivfsoverlay"),
    *("--sysroot", "--prefix", "--gcc-toolchain", "-gcc-toolchain", "--gcc-install-dir", "-resource-dir"),
)
_NAMES_LIBRARY = ("-L", "-l", "--library")
_OTHER_RULES = ("-specs", "--specs", "-wrapper")  # each may have any program run, and any file read
_MOST_OPTIONS = 10_000
_TAKES_NEXT = frozenset((*_ADDS_DIRECTORY, *_NAMES_LIBRARY, *_OTHER_RULES, "-B"))  # where no value is joined to them
_HANDS_ON_NEXT = ("-Xpreprocessor", "-Xassembler", "-Xlinker", "-Xclang")
_HANDS_ON = ("-Wp,", "-Wa,", "-Wl,")  # words between commas for the preprocessor, the assembler and the linker


def _words(variable: str, text: str) -> list[str]:
    """Return the words of a command as a shell would."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ToolkitError(f"{variable} is {text!r}, which a shell cannot read: {error}. {CORRECT}") from error
    if not words or not words[0]:
        raise ToolkitError(f"{variable} is {text!r}, which names no program. {CORRECT}")
    return words


def _words_of_file(file: str) -> list[str]:
    try:
        return shlex.split(os.fsdecode(read_bytes(file)))
    except (OSError, ValueError) as error:
        raise ToolkitError(f"CXX names @{file}, whose words cannot be read: {error}. Correct it.") from error


def _refuse_what_no_key_knows(named: str, command: list[str]) -> None:
    """Raise for options of ``CXX`` that mean another kernel at another time, or on another machine."""
    options = compiler_options(command[1:])
    for number, word in enumerate(options):
        option = _as_given(options, number)
        if re.match(r"[A-Za-z_]\w*=", word):
            raise ToolkitError(
                f"CXX is {named!r}, and {option} sets a variable, which may lead the compiler to what a kernel's cache "
                f"key does not know. Leave it out."
            )
        if word.startswith(_ADDS_DIRECTORY) or word == "-B":
            raise ToolkitError(
                f"CXX is {named!r}, and {option} adds a directory of headers or programs that a kernel's cache "
                f"key does not know: a change in it would go unnoticed. Leave it out; CUTLASS_PATH and CUDA_HOME "
                f"say where headers are."
            )
        if word.startswith(_NAMES_LIBRARY):
            raise ToolkitError(
                f"CXX is {named!r}, and {option} names a library, or a directory of libraries, that a kernel's cache "
                f"key does not know. Leave it out: kernels need no library."
            )
        if word.startswith(_OTHER_RULES):
            raise ToolkitError(
                f"CXX is {named!r}, and {option} has the compiler run programs and read files that a kernel's cache "
                f"key does not know. Leave it out; options that kernels need may stand in CXX itself."
            )
        if word.startswith("-m") and word.endswith("=native"):
            raise ToolkitError(
                f"CXX is {named!r}, and what {word} means differs from one machine to the next, which a kernel's "
                f"cache key does not know. Name the processor, for example -march=x86-64-v3."
            )


def _as_given(options: list[str], number: int) -> str:
    """Return an option with the words that go with it: its value, where that stands alone, and what hands both on."""
    word = options[number]
    for first in range(number):
        if options[first].startswith(_HANDS_ON) and number <= first + options[first].count(","):
            return options[first]
    before = options[number - 1 : number] if number and options[number - 1] in _HANDS_ON_NEXT else []
    alone = word in _TAKES_NEXT and not before
    return shlex.join([*before, word, *(options[number + 1 : number + 2] if alone else [])])
