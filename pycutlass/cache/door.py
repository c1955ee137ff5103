"""Who may enter the cache: directories that only this user can write, and one process at a time per lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pycutlass.errors import CacheError

__all__ = ["holding", "make_private_directory", "refuse_strangers", "wait_for"]

_T = TypeVar("_T")
_OTHERS_WRITE = 0o022


def make_private_directory(path: Path) -> None:
    """Make the directory `path` for this user alone, or see that nobody else can write to the one there is.

    Raises
    ------
    CacheError
        If other users could put native code there.
    OSError
        If there is no such directory and none can be made.
    """
    try:
        refuse_strangers(path)
    except FileNotFoundError:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_strangers(path)


def refuse_strangers(path: Path) -> None:
    """Raise `CacheError` if another user (root apart, who can do anything anyway) may change `path`."""
    status = path.stat()
    if status.st_uid not in {os.geteuid(), 0}:
        raise CacheError(
            f"native code is loaded only from what belongs to the user who runs it: {path} belongs to user "
            f"{status.st_uid} and this process to user {os.geteuid()}. Set PYCUTLASS_CACHE_DIR to a directory of "
            "your own."
        )
    if status.st_mode & _OTHERS_WRITE:
        raise CacheError(
            f"native code is loaded only from where nobody else can write: {path} has mode "
            f"{status.st_mode & 0o777:04o}. Run `chmod go-w {path}`, or set PYCUTLASS_CACHE_DIR to another directory."
        )


@contextlib.contextmanager
def holding(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` alone among all threads of all processes.

    The operating system releases it when the process dies. `waiting` is called once if it takes more than two seconds.

    Raises
    ------
    OSError
        If there can be no lock file, or the file system has no locks.
    """
    try:
        descriptor = wait_for(lambda: _locked(path), waiting)
    except FileNotFoundError:  # the first lock that is held here
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = wait_for(lambda: _locked(path), waiting)
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # or else this is a child that was forked inside, and the lock is its parent's
            # Unlinked before it is released: whoever locks it next will see that it has lost its name.
            with contextlib.suppress(OSError):
                path.unlink()
            _held.remove(descriptor)
            os.close(descriptor)


def wait_for(attempt: Callable[[], _T | None], waiting: Callable[[], None], patience: float = 2.0) -> _T:
    """Return what `attempt` gives once it is not None; call `waiting` when that has taken `patience` seconds."""
    started, pause, told = time.monotonic(), 0.001, False
    while (result := attempt()) is None:
        if not told and time.monotonic() - started > patience:
            waiting()
            told = True
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return result


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of `path`, or None where someone else does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != path.stat().st_ino:
                return None
        except (BlockingIOError, FileNotFoundError):
            return None
        stack.pop_all()
    return descriptor


def _release_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


# The locks of this process. A child inherits the descriptors, and must not keep a lock that outlives its holder.
_held: set[int] = set()
os.register_at_fork(after_in_child=_release_in_child)
