"""Fingerprints and digests of files, and short commands."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pycutlass import config
from pycutlass.errors import ToolkitError
from pycutlass.toolkit.trace import look

__all__ = [
    "Answer",
    "Memo",
    "content_digest",
    "cuda_release",
    "file_fingerprint",
    "is_directory",
    "is_file",
    "is_script",
    "names_in",
    "on_path",
    "read_bytes",
    "real_path",
    "run_quietly",
    "without_memo",
]

Memo = Callable[[str, str, str, Callable[[], str]], str]
"""Remembers a text by kind, subject and fingerprint: the shape of `pycutlass.cache.KernelCache.memo`."""

_PATIENCE = 60.0  # seconds; a compiler that is asked for its version answers in one


def without_memo(kind: str, subject: str, fingerprint: str, compute: Callable[[], str]) -> str:
    """Be a `Memo` that remembers nothing."""
    return compute()


def file_fingerprint(path: Path) -> str:
    """Return what no edit leaves as it is: anyone can set a modification time, and nobody the time of the change."""
    look("kind", path)
    status = path.stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_dev}:{status.st_ino}"


def is_file(path: Path) -> bool:
    """Return whether `path` is a file; `Path.is_file` raises where a directory may not be searched."""
    look("kind", path)
    return os.path.isfile(path)  # noqa: PTH113


def is_directory(path: Path) -> bool:
    """Return whether `path` is a directory; `Path.is_dir` raises where one above may not be searched."""
    look("kind", path)
    return os.path.isdir(path)  # noqa: PTH112


def is_script(program: Path) -> bool:
    """Return whether `program` may be a script, which runs another program at another time."""
    look("kind", program)
    try:
        with program.open("rb", buffering=0) as file:
            return file.read(2) == b"#!"
    except PermissionError:  # it may be run all the same
        return True


def names_in(folder: Path) -> list[str]:
    """Return the names in a directory, in order; none where it cannot be read."""
    look("names", folder)
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def real_path(path: str | Path) -> Path:
    """Return where `path` leads, behind all links."""
    look("real", path)
    return Path(os.path.realpath(path))


def on_path(name: str) -> str | None:
    """Return the file of program `name`, as a shell would find it."""
    directories = config.search_path().split(os.pathsep)
    for place in [name] if os.path.dirname(name) else [os.path.join(each, name) for each in directories]:  # noqa: PTH118, PTH120
        look("kind", place)
    return shutil.which(name, path=config.search_path())


def content_digest(places: Sequence[Path]) -> str:
    """Return the SHA-256 of the files at or below `places`: names and contents, each with its length before it.

    Of a link to a directory that another link has led to already, that is its name and what it says.
    """
    digest = hashlib.sha256()
    for place in places:
        for path in [str(place)] if is_file(place) else (entry.path for entry in _files([place])):
            name = os.fsencode(os.path.relpath(path, place.parent))
            content = os.fsencode(os.readlink(path)) if is_directory(Path(path)) else read_bytes(path)  # noqa: PTH115
            digest.update(b"%d:%b%d:%b" % (len(name), name, len(content), content))
    return digest.hexdigest()


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file, in half of the system calls of `Path.read_bytes`: with many files they add up."""
    look("kind", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
    finally:
        os.close(descriptor)


def cuda_release(text: str) -> str:
    """Return the release in what a CUDA compiler says of itself, for example ``13.0.88``.

    Raises
    ------
    ToolkitError
        If there is none.
    """
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    if match is None:
        said = text.strip()[-200:]
        raise ToolkitError(f"a CUDA compiler must say its release, such as V13.0.88, and this one says {said!r}")
    return match[1]


class Answer:
    """What a short command prints: on its output alone, unless `both_streams` are wanted. It runs from now on.

    It runs in `folder`, or else where this process does.

    As a context manager it ends the command, where nobody has asked for the text.

    Raises
    ------
    ToolkitError
        If it cannot be started.
    """

    def __init__(self, command: Sequence[str], *, both_streams: bool = False, folder: Path | None = None) -> None:
        self._command = shlex.join(command)
        try:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=config.compiler_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if both_streams else subprocess.PIPE,
            )
        except OSError as error:
            raise ToolkitError(f"{self._command} cannot be run: {error}") from error

    def text(self, *, quiet: bool = False) -> str:
        """Return it once the command has ended. It must print something unless it may be `quiet`.

        Raises
        ------
        ToolkitError
            If the command fails, prints nothing, or takes more than a minute.
        """
        try:
            output, errors = (stream.decode(errors="replace") for stream in self._streams())
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolkitError(f"{self._command} cannot be run: {error}") from error
        if self._process.returncode:
            said = f"{output}{errors}".strip()
            raise ToolkitError(f"{self._command} ended with exit status {self._process.returncode}:\n{said}")
        if not output.strip() and not quiet:
            raise ToolkitError(f"{self._command} prints nothing. {errors.strip()}".rstrip())
        return output

    def _streams(self) -> tuple[bytes, bytes]:
        output, errors = self._process.communicate(timeout=_PATIENCE)
        return output, errors or b""

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def run_quietly(
    command: Sequence[str], *, both_streams: bool = False, quiet: bool = False, folder: Path | None = None
) -> str:
    """Return what a short command prints, as an `Answer` does.

    Raises
    ------
    ToolkitError
        If it cannot be started, fails, prints nothing, or takes more than a minute.
    """
    with Answer(command, both_streams=both_streams, folder=folder) as answer:
        return answer.text(quiet=quiet)


def _files(folders: Sequence[Path]) -> Iterator[os.DirEntry[str]]:
    """Yield every regular file below `folders`, always in the same order; links are followed, to each place once.

    What another link has led to already is yielded as the link.
    """
    pending = [str(folder) for folder in reversed(folders)]
    followed: set[str] = set()  # a link may lead back up
    while pending:
        look("names", pending[-1])
        with os.scandir(pending.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_symlink() and not _leads_on(entry, followed):
                    if is_directory(Path(entry.path)):  # no link to itself, where `entry.is_dir` raises
                        yield entry
                elif entry.is_file():
                    yield entry
                elif entry.is_dir():
                    pending.append(entry.path)


def _leads_on(link: os.DirEntry[str], followed: set[str]) -> bool:
    """Return whether `link` leads to a file, or to a directory that no link in `followed` has led to."""
    look("kind", link.path)
    try:
        kind = link.stat().st_mode
    except OSError:  # to nothing, or to itself
        return False
    if stat.S_ISDIR(kind):
        real = str(real_path(link.path))
        if real in followed:
            return False
        followed.add(real)
    return True
