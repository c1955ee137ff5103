"""Who may enter the cache: directories that only this user can write, and one process at a time per lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pycutlass.errors import CacheError

__all__ = ["examine_place", "holding", "private_directory", "stopped_holder", "wait_for"]

_T = TypeVar("_T")
_LOCKS = Path("/proc/locks")
_OTHERS_WRITE = 0o022
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def private_directory(path: Path, *names: str) -> Path:
    """Return the real path of directory `path`, made for this user alone where there is none.

    Nobody else can change it, the entries `names` in it (the database first), or where it is: so what is opened below
    the path that is returned is what was examined here. A directory is examined through its descriptor, and those above
    it from there, not by names that could lead elsewhere by then.

    Raises
    ------
    CacheError
        If other users could put native code there.
    OSError
        If there is no such directory and none can be made.
    """
    real = Path(os.path.realpath(path))
    try:
        descriptor = os.open(real, _DIRECTORY)
    except FileNotFoundError:
        _make_directories(real)
        descriptor = os.open(real, _DIRECTORY)
    try:
        _refuse_strangers(os.fstat(descriptor), real, real, names)
        for level, parent in enumerate(real.parents, 1):
            _refuse_strangers(os.stat("/".join([".."] * level), dir_fd=descriptor), parent, real, names)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                _refuse_strangers(status, real / name, real, names)
    finally:
        os.close(descriptor)
    return real


def examine_place(path: Path, *names: str) -> None:
    """Raise what `private_directory` would, as far as that is known before anything is made.

    Raises
    ------
    CacheError
        If other users could put native code there.
    OSError
        If directory `path` is not there and cannot be made, or takes no files.
    """
    there = real = Path(os.path.realpath(path))
    while not _is_there(there):
        there = there.parent
    if there == real:
        private_directory(real, *names)
    else:
        _refuse_missing_home(real)
        for place in (there, *there.parents):
            _refuse_strangers(place.stat(), place, real, names)
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:  # all else is why nothing can be made there
        return False
    return True


def _make_directories(path: Path) -> None:
    """Make `path` and what is missing above it, all for this user alone, whatever the umask."""
    _refuse_missing_home(path)
    missing = [path]
    while not os.path.lexists(missing[-1].parent):
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def _refuse_missing_home(path: Path) -> None:
    """Raise CacheError where `path` is in a home that is missing.

    It is the system's to make: root could make one, and nobody would look for a cache in it.
    """
    home = None
    with contextlib.suppress(RuntimeError):  # which says that nobody knows of one
        home = Path.home()
    if home is not None and home in path.parents and not os.path.lexists(home):
        raise CacheError(f"the home directory {home} does not exist: set PYCUTLASS_CACHE_DIR or HOME to one that does")


def _refuse_strangers(status: os.stat_result, path: Path, directory: Path, names: Sequence[str]) -> None:
    """Raise `CacheError` if another user (root apart, who can do anything anyway) may change `path`.

    That is the cache's `directory`, something above it, or one of `names` in it.
    """
    above = path in directory.parents
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise CacheError(f"the kernel cache consists of files and directories, and {path} is neither: delete it.")
    if status.st_uid not in {os.geteuid(), 0}:
        raise CacheError(
            f"native code is loaded only from what belongs to the user who runs it: {path} belongs to user "
            f"{status.st_uid} and this process to user {os.geteuid()}. It may hold the code of others: "
            f"{_remedy(status, path, directory, names)}."
        )
    others = _OTHERS_WRITE
    if above and status.st_mode & stat.S_ISVTX:
        others = 0  # a directory such as /tmp, where one can only replace what is one's own
    elif above and status.st_gid == status.st_uid:
        others = stat.S_IWOTH  # the group that a user has alone, by the custom that both have one number
    if status.st_mode & others:
        raise CacheError(
            f"native code is loaded only from where nobody else can write: {path} has mode "
            f"{status.st_mode & 0o7777:04o}. Others may have put code there: {_remedy(status, path, directory, names)}."
        )


def _remedy(status: os.stat_result, path: Path, directory: Path, names: Sequence[str]) -> str:
    """Return what to do about `path`.

    Only what is surely PyCUTLASS's is to be deleted, beside its database: the directory may be one of the user's files.
    """
    elsewhere = "set PYCUTLASS_CACHE_DIR to an empty directory of your own"
    is_directory = path == directory or path in directory.parents
    there = [name for name in names if os.path.lexists(directory / name)]
    ours = there if there[:1] == [*names[:1]] else []
    if not is_directory:
        return f"delete {path}, or {elsewhere}" if ours else elsewhere
    if status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX:
        return elsewhere  # a directory of others, or for others, such as /tmp
    closed = f"run `chmod go-w {shlex.quote(str(path))}`"
    if not ours:
        return f"{closed}, or {elsewhere}"
    return f"delete what PyCUTLASS keeps in {directory} ({', '.join(ours)}) and {closed}, or {elsewhere}"


@contextlib.contextmanager
def holding(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` alone among all threads of all processes.

    The operating system releases it when the process dies. `waiting` is called every two seconds that it takes.

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
    """Return what `attempt` gives once it is not None; call `waiting` whenever that has taken `patience` seconds."""
    since, pause = time.monotonic(), 0.001
    while (result := attempt()) is None:
        if time.monotonic() - since > patience:
            waiting()
            since = time.monotonic()
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return result


def stopped_holder(path: Path) -> int | None:
    """Return the process that holds the lock file `path`, if it has been stopped (Ctrl-Z, a debugger).

    The operating system lists who holds what. A note in the lock file would say so, too, but some file systems take
    milliseconds to delete a file that was just written.
    """
    with contextlib.suppress(OSError):
        inode = str(path.stat().st_ino)
        for line in _LOCKS.read_text().splitlines():  # "7: FLOCK ADVISORY WRITE 1234 fe:00:2147790 0 EOF"
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and _is_stopped(words[4]):
                return int(words[4])
    return None


def _is_stopped(process: str) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of `path`, or None where someone else does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
