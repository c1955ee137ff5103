"""The database in the user's directory: opened when it is first needed, and given up or replaced when it fails.

A cache may be slow or empty, but it must not stop a program. So whatever goes wrong here is said once in the log, and
the caller learns that the disk does not have the answer. A database that the user names is another matter: what is
asked of it is not in any other, so it is left as it is, and the reason is raised.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pycutlass import config
from pycutlass.cache.locking import examine_place, holding, private_directory, stopped_holder
from pycutlass.cache.store import Store, StoreError
from pycutlass.errors import CacheError
from pycutlass.log import logger

__all__ = ["Disk"]

_T = TypeVar("_T")
_DATABASE = "kernels.db"
_COMPANIONS = ("-wal", "-shm", "-journal")
_LOCKS, _USES = "locks", "uses"  # directories: a lock for each kernel that is being built, an empty file for each used
_NAMES = (_DATABASE, *(_DATABASE + suffix for suffix in _COMPANIONS), _LOCKS, _USES)


class Disk:
    """The store in `directory` (default: `config.cache_directory()`), for all threads of this process.

    Where there is none, it is made when it is first needed, unless it is only looked at (`make` is False).

    Parameters
    ----------
    directory : path or None
        Of the kernel cache.
    make : bool
        Whether it is made where there is none.
    file : path, optional
        A database that the user names, instead of that of a directory. No native code is loaded from it, so it may be
        where others can write. It is never set aside, and what it does not do is raised as CacheError.
    contents : str
        What stays in memory where there is no disk.

    Attributes
    ----------
    lock : RLock
        Held while the store is in use; it guards the caller's store in memory as well.
    path : Path
        The database's file; it need not exist.
    refusal : str or None
        Why there is no store on disk and will be none in this process.
    """

    def __init__(
        self, directory: Path | None, *, make: bool = True, file: Path | None = None, contents: str = "kernels"
    ) -> None:
        self._make = make
        self._is_named = file is not None
        self._contents = contents
        self.lock = threading.RLock()
        self.refusal: str | None = None
        self.path = file or (config.cache_directory() if directory is None else directory) / _DATABASE
        self._store: Store | None = None
        self._real = self.path  # the database by its real path, once that was found to be ours alone
        self._opened: os.stat_result | None = None  # of the file that is open
        # One process at a time opens, makes or sets aside the database.
        self._opening = ("open", f"waiting for another process to open {self.path}")
        self._said: set[str] = set()
        _close_around_forks(self)

    def run(self, action: Callable[[Store], _T]) -> _T | None:
        """Return what `action` gives on the store, or None where it cannot be used, or is not there to look at.

        Raises
        ------
        CacheError
            It is a file that the user named, and cannot be used; or `action` raises it.
        """
        with self.lock:
            if not self._make and self.is_unmade:
                return None
            for _ in range(2):
                if self._store is not None and not self._is_in_place():
                    self.close()  # deleted, or set aside by another process: what is written now would be lost
                try:
                    if self._store is None and self.refusal is None:
                        self._store = self._open()
                except (CacheError, OSError) as error:
                    if self._is_named:
                        raise self._unusable(error) from error
                    stay = f"{self._contents} stay in memory"
                    self._give_up(f"there is no kernel cache on disk, so {stay}: {error}", str(error))
                if self._store is None:
                    break
                try:
                    return action(self._store)
                except StoreError as error:
                    if self._is_named:
                        self.close()
                        raise self._unusable(error) from error
                    if not error.damaged:
                        self.say("use", f"{self.path} does not work, so {self._contents} stay in memory: {error}")
                        break
                    self._begin_anew(error)
            return None

    @property
    def is_unmade(self) -> bool:
        """Whether there is no store and none is made here, though elsewhere it may be."""
        looks = not self._make and self.refusal is None and self._store is None
        return looks and self.path.is_absolute() and not os.path.lexists(self.path)

    def refuses_to_be_made(self) -> str:
        """Return why the store could not be made; empty where it could."""
        try:
            examine_place(self.path.parent, *_NAMES)
        except (CacheError, OSError) as error:
            return str(error)
        return ""

    def exclusive(self, name: str, waiting_for: str) -> contextlib.AbstractContextManager[None]:
        """Hold the lock `name` alone among the threads of all processes that share this directory.

        What is `waiting_for` another process is said in the log.
        """
        # Beside a file that the user names no directory of ours is wanted.
        beside = self._real.with_name(f"{self._real.name}.{name}-lock")
        lock = beside if self._is_named else self._real.parent / _LOCKS / name

        def still_waiting() -> None:
            self.say(f"waiting {name}", waiting_for, logging.INFO)
            holder = stopped_holder(lock)
            if holder is not None:
                self.say(
                    f"{name} {holder}",
                    f"process {holder} holds {lock} and has been stopped (Ctrl-Z?), so this one waits: "
                    f"`kill -CONT {holder}` lets it go on, `kill -KILL {holder}` ends it",
                )

        return holding(lock, still_waiting)

    def note_use(self, key: str) -> None:
        """Write down that `key` is used now: in the time of an empty file, for which no disk is waited."""
        if self._store is None or not self._store.writable:
            return
        mark, now = self._real.parent / _USES / key, time.time()
        with contextlib.suppress(OSError):
            try:
                os.utime(mark, (now, now))
            except FileNotFoundError:
                mark.parent.mkdir(mode=0o700, exist_ok=True)
                os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                os.utime(mark, (now, now))

    def uses(self) -> dict[str, float]:
        """Return when each kernel was last used, as far as that was written down."""
        with contextlib.suppress(OSError), os.scandir(self._real.parent / _USES) as marks:
            return {mark.name: mark.stat(follow_symlinks=False).st_mtime for mark in marks}
        return {}

    def forget_uses(self, keys: Iterable[str]) -> None:
        """Delete what was written down of the use of `keys`."""
        for key in keys:
            with contextlib.suppress(OSError):
                (self._real.parent / _USES / key).unlink()

    def close(self) -> None:
        """Close the store; the next use opens it again."""
        with self.lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def file_bytes(self) -> int:
        """Return the size of the database and of the files that SQLite keeps beside it."""
        sizes = []
        for path in (self._real, *self._companions()):
            with contextlib.suppress(OSError):
                sizes.append(path.stat().st_size)
        return sum(sizes)

    def set_aside(self) -> tuple[Path, ...]:
        """Return the damaged databases that stand beside this one; none is put beside a file that the user names."""
        with contextlib.suppress(OSError):
            return tuple(sorted(self.path.parent.glob(f"{_DATABASE}.corrupt-*[0-9]")))  # without their -wal and -shm
        return ()

    def say(self, topic: str, message: str, level: int = logging.WARNING) -> None:
        """Log `message`, once per topic."""
        if topic not in self._said:
            self._said.add(topic)
            logger.log(level, "%s", message)

    def _open(self) -> Store:
        self._real = self._named_file() if self._is_named else self._own_file()
        try:
            with self.exclusive(*self._opening):
                try:
                    return self._in_file()
                except StoreError as error:
                    if not error.damaged or self._is_named:
                        raise
                    self._put_aside(error)
                return self._in_file()
        except (OSError, StoreError) as error:
            try:
                self._opened = self._real.stat()
                store = Store.read_only(self._real)
            except (OSError, StoreError):
                raise error from None  # why it cannot be written tells more than that there is nothing to read
            if not self._is_named:  # else whoever writes is told
                cache, stay = f"the kernel cache {self.path}", f"new {self._contents} stay in memory"
                self.say("open", f"{cache} cannot be written, so {stay}: {error}")
            return store

    def _own_file(self) -> Path:
        """Return the real path of the database in a directory that is this user's alone, which is made."""
        if not self.path.is_absolute():  # a home that is not known leaves a ~; never the working directory
            remedy = "correct or unset" if config.text("PYCUTLASS_CACHE_DIR") else "set"
            raise CacheError(
                f"the cache's directory must be an absolute path, not {self.path.parent}: {remedy} PYCUTLASS_CACHE_DIR"
            )
        return private_directory(self.path.parent, *_NAMES) / _DATABASE

    def _named_file(self) -> Path:
        """Return the real path of the file that the user named, in a directory that is there."""
        if not self.path.is_absolute():
            rule = "PYCUTLASS_DATABASE must be an absolute path"
            raise CacheError(f"{rule}, or every working directory would have a database of its own")
        real = Path(os.path.realpath(self.path))
        if not real.parent.is_dir():
            raise CacheError(f"there is no directory {real.parent}: make it first")
        if real.exists() and not real.is_file():
            raise CacheError("that is not a file: name one, or a name that nothing has yet")
        return real

    def _in_file(self) -> Store:
        """Return the store in the file, which is made for this user alone: SQLite would let others read it.

        A file that is there is not opened here: closing it would release the locks that SQLite holds on it for other
        connections of this process, and another process could then delete the log that they write.
        """
        mode = 0o666 if self._is_named else 0o600
        with contextlib.suppress(FileExistsError):
            if not self._real.exists():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(self._real, flags, mode))
        self._opened = self._real.lstat()
        kind, wrong = stat.S_IFMT(self._opened.st_mode), 0
        if kind != stat.S_IFREG:
            wrong = errno.EISDIR if kind == stat.S_IFDIR else errno.ELOOP
        elif not os.access(self._real, os.R_OK | os.W_OK, effective_ids=True):  # SQLite would go on reading
            wrong = errno.EACCES
        if wrong:
            raise OSError(wrong, os.strerror(wrong), str(self._real))
        return Store.in_file(self._real, take_over=not self._is_named)

    def _begin_anew(self, error: StoreError) -> None:
        """Close the store, whose file is damaged, and have it set aside."""
        self.close()
        try:
            with self.exclusive(*self._opening):
                self._put_aside(error)
        except OSError as failure:
            self._give_up(f"{self.path} is damaged, so {self._contents} stay in memory: {error}", str(failure))

    def _put_aside(self, error: StoreError) -> None:
        """Rename the damaged file, unless another process has done so since it was opened here."""
        if not self._is_in_place():
            return
        names = (self._real.with_name(f"{_DATABASE}.corrupt-{number}") for number in range(1, 1_000_000))
        aside = next(name for name in names if not name.exists())
        # Its log goes first: SQLite would replay it into the new file.
        for companion in self._companions():
            with contextlib.suppress(FileNotFoundError):
                companion.rename(aside.with_name(aside.name + companion.name.removeprefix(_DATABASE)))
        self._real.rename(aside)
        logger.warning(
            "the kernel cache %s was damaged (%s): it is now %s, and a new one begins", self.path, error, aside
        )

    def _is_in_place(self) -> bool:
        """Return whether the file that was opened still has its name."""
        try:
            return self._opened is not None and os.path.samestat(self._real.stat(), self._opened)
        except OSError:
            return False

    def _companions(self) -> list[Path]:
        return [self._real.with_name(self._real.name + suffix) for suffix in _COMPANIONS]

    def _unusable(self, error: Exception) -> CacheError:
        """Return what to raise of a file that the user named."""
        if isinstance(error, StoreError) and error.damaged:
            remedy = "It is damaged or no database of PyCUTLASS: move it away, or name another file"
            return CacheError(f"the database {self.path} cannot be used: {error}. {remedy}.")
        reason = (isinstance(error, OSError) and error.strerror) or error
        return CacheError(f"the database {self.path} cannot be used: {reason}")

    def _give_up(self, message: str, reason: str) -> None:
        self.refusal = reason
        self.say("open", message)


def _close_around_forks(disk: Disk) -> None:
    """Close the store before a fork and keep other threads out of it until after.

    SQLite counts locks per file for the whole process, so a child that inherits an open database, even unused, would
    believe that it holds its parent's locks.
    """
    reference = weakref.ref(disk)
    held: list[Disk] = []

    def before() -> None:
        if (alive := reference()) is not None:
            alive.lock.acquire()
            held.append(alive)
            alive.close()

    def after() -> None:
        if held:
            held.pop().lock.release()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
