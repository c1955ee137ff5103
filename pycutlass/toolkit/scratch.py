"""Temporary directories that do not stay behind, however a process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pycutlass.errors import ToolkitError

__all__ = ["scratch_directory", "sweep_scratch"]

_PREFIX = "pycutlass-scratch-"
_NAME = re.compile(_PREFIX + r"[a-z0-9_]{8}")  # as tempfile makes them
_FRESH = 600.0  # seconds in which the directory of another process may not have its lock yet


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Give a new directory that is gone afterwards; it is locked, so that `sweep_scratch` knows it is in use.

    Raises
    ------
    ToolkitError
        If none can be made.
    """
    try:
        name = tempfile.mkdtemp(prefix=_PREFIX)
    except OSError as error:
        raise ToolkitError(
            f"compilers need a temporary directory, and none can be made: {error}. Set TMPDIR to a directory of "
            f"your own before Python starts."
        ) from error
    with contextlib.ExitStack() as held:
        held.callback(shutil.rmtree, name, ignore_errors=True)
        with contextlib.suppress(OSError):  # no locks on this file system, so nothing will be swept there
            held.callback(os.close, _locked(name))
        yield Path(name)


def sweep_scratch() -> None:
    """Remove this user's scratch directories whose process was killed before it could."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _FRESH:
                    descriptor = _locked(entry.path)
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(descriptor)


def _locked(name: str) -> int:
    """Return a descriptor that holds the lock of directory `name`; the system releases it when the process ends."""
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
