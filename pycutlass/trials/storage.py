"""Where the rows of trials are: in the cache's database or one that the user names, or in memory where no disk is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pycutlass.cache.disk import Disk
from pycutlass.cache.store import Store
from pycutlass.errors import CacheError
from pycutlass.trials import rows
from pycutlass.trials.values import Trial

__all__ = ["Storage", "Version"]

_T = TypeVar("_T")

#: An open database, and a number that another connection changes when it writes.
Version = tuple[Store | None, int]


class Storage:
    """Rows of trials for all threads of this process.

    Parameters
    ----------
    named : path or None
        The file that the user named. Default: that of the kernel cache.
    make : bool
        Whether it is made where there is none.

    Attributes
    ----------
    lock : RLock
        Held while rows are read or written.
    """

    def __init__(self, named: Path | None, *, make: bool) -> None:
        self._is_named = named is not None
        self._disk = Disk(None, make=make, file=named, contents="trials")
        self._memory: Store | None = None
        self.lock = self._disk.lock

    @property
    def path(self) -> Path:
        """The database's file; it need not exist."""
        return self._disk.path

    def version(self) -> Version:
        """Return what differs once another connection has written, or another file has taken the place of this one."""
        return self._disk.run(lambda store: (store, store.data_version)) or (None, 0)

    def read(self, ask: Callable[[Store], list[_T]]) -> list[_T]:
        """Return what `ask` finds on disk and in memory."""
        with self.lock:
            on_disk = self._disk.run(lambda store: ask(store) if rows.are_there(store) else []) or []
            return [*on_disk, *(ask(self._memory) if self._memory else [])]

    def write(self, action: Callable[[Store], _T]) -> _T:
        """Return what `action` gives on disk, or else in memory.

        Raises
        ------
        CacheError
            The file was named and cannot be written.
        """

        def on_disk(store: Store) -> tuple[_T] | None:
            return (action(store),) if store.writable and rows.are_there(store) else None

        with self.lock:
            done = self._disk.run(on_disk)
            if done is None and self._is_named:
                why = "there is no such file" if self._disk.is_unmade else "this process may not write it"
                raise CacheError(f"the database {self.path} cannot be written: {why}")
            if done is None:
                self._memory = self._memory or Store.in_memory()
                done = (action(self._memory),)
            return done[0]

    def remove(self, going: Callable[[list[Trial]], set[str]], *, dry_run: bool) -> list[Trial]:
        """Delete those of the trials of each key of which `going` returns the digests, and return them.

        Raises
        ------
        CacheError
            The file cannot be written.
        """

        def chosen(store: Store) -> list[Trial]:
            by_key: dict[str, list[Trial]] = {}
            for trial in rows.select(store):
                by_key.setdefault(trial.key, []).append(trial)
            found: list[Trial] = []
            for trials in by_key.values():
                digests = going(trials)
                found += [trial for trial in trials if trial.digest in digests]
            return found

        def deleted(store: Store) -> list[Trial]:
            with store.transaction():  # so that nothing goes for the sake of a trial that has just gone itself
                found = chosen(store)
                rows.delete(store, [trial.digest for trial in found])
            return found

        def on_disk(store: Store) -> list[Trial]:
            if not rows.are_there(store):
                return []
            if not store.writable:
                raise CacheError(f"trials in {self.path} cannot be deleted: this process may not write it")
            return deleted(store)

        with self.lock:
            if dry_run:
                return self.read(chosen)
            return [*(self._disk.run(on_disk) or []), *(deleted(self._memory) if self._memory else [])]

    def problems(self) -> list[str]:
        """Return a sentence for everything on disk that is not as it was put there."""
        found = self._disk.run(lambda store: list(rows.problems(store)) if rows.are_there(store) else [])
        if found is None:
            return [] if self._disk.is_unmade else [f"the database {self.path} cannot be used; see the log"]
        return found

    def close(self) -> None:
        """Close the database; the next use opens it again."""
        self._disk.close()
