"""Files that are carried to other machines: written whole or not at all, and read only where they are files."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError, PyCutlassError

__all__ = ["as_path", "check_directory", "is_cut_off", "is_file", "regular_file", "written_whole"]

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_ELF_HEADER = struct.Struct("<32x QQ 6x HHHH 2x")  # offsets of segments and sections; size and number of each
_SEGMENT = struct.Struct("<8x Q 16x Q 16x")  # where it begins in the file, and its bytes there


@contextlib.contextmanager
def written_whole(path: Path, what: str) -> Iterator[BinaryIO]:
    """Give a file to write, which has the name `path` once all of it is written, and is gone after an error.

    Parameters
    ----------
    path : path
        The file.
    what : str
        What is written there, for messages: "the bundle".

    Raises
    ------
    CacheError
        If it cannot be written, or something stands there that a file must not replace.
    """
    if not path.name:
        raise CacheError(f"{what} cannot be written to {str(path)!r}: that is a directory. Give a file name.")
    try:
        _refuse_what_is_no_file(path, what)
        with _replacing(path) as file:
            yield file
    except PyCutlassError:  # some of which are ValueErrors as well
        raise
    except (OSError, ValueError) as error:  # ValueError: what no file can be called
        # The operating system names the new file that was to take its place, which nobody knows.
        why = (isinstance(error, OSError) and error.strerror) or error
        if isinstance(error, FileNotFoundError):
            why = f"there is no directory {path.parent}: make it first"
        raise CacheError(f"{what} {path} cannot be written: {why}") from error


def check_directory(path: Path, what: str) -> None:
    """Raise CacheError where `path` could not be written for want of its directory: before work that takes minutes."""
    if not path.parent.is_dir():
        raise CacheError(f"{what} {path} cannot be written: there is no directory {path.parent}: make it first")


def regular_file(path: Path, what: str) -> BinaryIO:
    """Open a file for reading as `what`, "a bundle of kernels"; a pipe would never end, and a device may never.

    Raises
    ------
    CacheError
        If it is no file.
    OSError
        If it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise CacheError(f"{path} cannot be read as {what}: it is not a file")
    return file


def is_file(path: Path) -> bool:
    """Return whether there is a file; no where a name is none that a file can have."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_cut_off(path: Path) -> bool:
    """Return whether the end of a shared object is missing, which the loader of the system dies of by a signal.

    False for what is no shared object, or cannot be read: the loader says so itself.
    """
    try:
        with regular_file(path, "a shared object") as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(_ELF_HEADER.size)
            if not head.startswith(_ELF64_LITTLE) or len(head) < _ELF_HEADER.size:
                return False
            segments, sections, of_segment, count, of_section, section_count = _ELF_HEADER.unpack(head)
            file.seek(segments)
            table = file.read(count * of_segment)
    except (OSError, CacheError, OverflowError, ValueError):
        return False
    if len(table) < count * of_segment or of_segment != _SEGMENT.size:
        return True
    ends: list[int] = [start + length for start, length in _SEGMENT.iter_unpack(table)]
    ends.append(sections + of_section * section_count)
    return max(ends) > size


def as_path(name: str, value: Any) -> Path:
    """Return argument `name` as a path.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is none, or one that no file can have.
    """
    try:
        path = Path(value)
        possible = 0 not in f"{path}".encode("utf-8", "surrogateescape")
    except TypeError:
        raise ArgumentTypeError(f"{name} must be a path, a str or pathlib.Path; got {shown(value)}") from None
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise ArgumentError(
            f"{name} must be a path that the file system can have, without NUL and halves of surrogate pairs; got "
            f"{shown(value)}"
        )
    return path


def _refuse_what_is_no_file(path: Path, what: str) -> None:
    """Raise `CacheError` if something stands where a file is to be that a file must not replace."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise CacheError(f"{what} cannot be written to {path}: that is {kind}. Give the name of a file.")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a new file beside `path`, which takes its place if all goes well and is gone otherwise."""
    partial = path.with_name(f".pycutlass-export-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
