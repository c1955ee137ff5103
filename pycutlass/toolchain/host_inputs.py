"""What a host compiler reads and runs beside the kernel: files that its words name, what they include, its programs."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pycutlass.errors import ToolkitError
from pycutlass.toolkit import (
    Memo,
    compiler_options,
    file_fingerprint,
    is_directory,
    is_file,
    look,
    names_in,
    on_path,
    run_quietly,
    scratch_directory,
    unrepeatable,
)

__all__ = ["files_named", "included_digest", "known_by_content", "programs_of", "refuse_configuration"]

_DIRECTORIES_OF_PROGRAMS = re.compile(r"^programs: *=(.*)$", re.MULTILINE)
_DIRECTORY_OF_SPECS = re.compile(r"^install: *(/.*)$", re.MULTILINE)
_INCLUDES_FILE = ("-include", "--include", "-imacros", "--imacros")
_PRECOMPILED = re.compile(r'^#pragma GCC pch_preprocess "(.*)"$', re.MULTILINE)
_CONFIGURATION = re.compile(r"^Configuration file: (.+)$", re.MULTILINE)
_DEPENDENCY = re.compile(r"(?:\\.|[^\s\\])+")


def known_by_content(part: Path) -> str:
    """Return the name of a file, with a digest of its content."""
    look("kind", part)
    with part.open("rb") as file:
        return f"{part.name} {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


def files_named(words: Sequence[str]) -> list[str]:
    """Return the files that options name: ``-include file``, ``-include/file``, ``-fplugin=file``, ``@file``."""
    named = (f"/{path}" for _, slash, path in (word.partition("/") for word in compiler_options(words)) if slash)
    return [file for file in named if is_file(Path(file))]


def included_digest(command: Sequence[str], flags: Sequence[str], includes: Sequence[Path], memo: Memo) -> str:
    """Return a digest of all that the words of `command` have a compiler include, and of what that includes in turn.

    It is empty where they name no file. The compiler is asked each time: which files these are is a matter of other
    files, new ones among them. Those in `includes` have digests of their own. A header that was compiled before stands
    for all that it was made from, if it fits the `flags`.

    Raises
    ------
    ToolkitError
        If the compiler does not say.
    """
    words = command[1:]
    if not files_named(words) and not any(word.startswith(_INCLUDES_FILE) for word in compiler_options(words)):
        return ""
    asks = [*command, *flags, "-M", "-fpch-preprocess", "-x", "c++", os.devnull]
    digest = hashlib.sha256()
    with scratch_directory() as folder:
        said = run_quietly(asks, folder=folder)
        _, colon, listed = _PRECOMPILED.sub("", said).partition(": ")
        if not colon:
            raise ToolkitError(f"{shlex.join(asks)} does not say what is included. Leave files out of CXX.")
        files = [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in _DEPENDENCY.findall(listed)]
        for file in sorted({*files, *_PRECOMPILED.findall(said)} - {os.devnull}):
            path = folder / file
            if not Path(file).is_absolute():
                unrepeatable()
            elif any(map(path.is_relative_to, includes)):
                continue
            names_in(path.parent)  # a file that is new there may come before it
            known = memo("included", str(path), file_fingerprint(path), functools.partial(known_by_content, path))
            digest.update(f"{known}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def programs_of(command: Sequence[str], searched: str, memo: Memo) -> str:
    """Return digests of the programs that a compiler runs, ``none`` for one that has them within itself.

    Rules in the place of those within g++ are among them, a file ``specs`` where it is installed. `searched` is what it
    says of directories for ``-print-search-dirs``. Contents are remembered by the states of files.
    """
    said = _DIRECTORIES_OF_PROGRAMS.search(searched)
    places = filter(None, said[1].split(":")) if said else ()
    folders = [folder for folder in dict.fromkeys(map(Path, places)) if is_directory(folder)]
    linkers = [word.partition("=")[2] for word in compiler_options(command[1:]) if word.startswith("-fuse-ld=")]
    names = ["cc1plus", "collect2", "as", "ld", *(f"ld.{linker}" for linker in linkers)]
    found = (next(filter(is_file, (folder / name for folder in folders)), None) or on_path(name) for name in names)
    parts = [Path(part) for part in found if part]
    parts += filter(is_file, (Path(folder, "specs") for folder in _DIRECTORY_OF_SPECS.findall(searched)))
    states = " ".join(map(file_fingerprint, parts))
    place = os.pathsep.join(map(str, parts))
    return memo("programs of compiler", place, states, lambda: ", ".join(map(known_by_content, parts)) or "none")


def refuse_configuration(command: Sequence[str], version: str) -> None:
    """Raise ToolkitError where clang reads options from a file of its own, as it says along with its `version`."""
    if found := _CONFIGURATION.search(version):
        named = any(word.startswith("--config") for word in command)
        remedy = "Leave --config out of CXX" if named else "Add --no-default-config to CXX"
        raise ToolkitError(
            f"{shlex.join(command)} reads options from {found[1]}, which a kernel's cache key does not know. {remedy}; "
            f"options that kernels need may stand in CXX itself."
        )
