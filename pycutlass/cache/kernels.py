"""The kernel cache: compiled kernels by key, on disk if the disk takes them and else in memory."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from pycutlass.cache.bundle import read_bundle, write_bundle
from pycutlass.cache.disk import Disk
from pycutlass.cache.files import as_path
from pycutlass.cache.locking import wait_for
from pycutlass.cache.selection import narrowed, selected
from pycutlass.cache.store import Artifact, Entry, Store, make_key
from pycutlass.calls import counted, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError
from pycutlass.integers import as_int

__all__ = ["Imported", "Info", "KernelCache"]

_T = TypeVar("_T")


class KernelCache:
    """Compiled kernels by key, shared by the threads and the processes of one user.

    Nothing is opened before the first use. An object may be used by many threads, and after a fork.

    Parameters
    ----------
    directory : path, optional
        Where the database is, or is to be: an absolute path. Default: `config.cache_directory()`.
    make : bool
        Whether it is made where there is none: False to look only.

    Raises
    ------
    ArgumentTypeError
        If `directory` is not a path.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, make: bool = True) -> None:
        self._disk = Disk(None if directory is None else as_path("directory", directory), make=make)
        self._memory: Store | None = None  # what the disk does not take; same tables, so same answers
        self._builders: weakref.WeakValueDictionary[tuple[int, str], threading.Lock] = weakref.WeakValueDictionary()

    @property
    def path(self) -> Path:
        """The database's file; it need not exist."""
        return self._disk.path

    def get(self, key: str) -> Artifact | None:
        """Return the artifact under `key`, or None. A damaged one is deleted with a line in the log."""
        return self._first(lambda store: store.get(key), is_use=True)

    def find(self, /, **fields: str) -> Artifact | None:
        """Return the newest artifact whose fields have all of these values, or None.

        So a machine without a compiler, which cannot make the key, finds a kernel that was imported.
        """
        return self._first(lambda store: store.find(fields), is_use=True)

    def put(self, artifact: Artifact) -> None:
        """Keep `artifact`: on disk, or in memory for this process where the disk does not take it.

        Raises
        ------
        ArgumentError
            If its key is not the key of its fields.
        """
        key = make_key(artifact.fields)
        if key != artifact.key:
            raise ArgumentError(f"the key of {artifact.name} is {artifact.key} and its fields have {key}; use make_key")
        self._put(artifact)

    @contextlib.contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Be the only builder of `key` among all threads and processes; call `get` again once inside.

        The operating system lets the next one in when a process dies. One thread must not enter twice for one key.
        """
        if not key.isalnum():
            raise ArgumentError(f"a key is made of hexadecimal digits, and {key!r} is not")

        waiting = f"waiting for another builder of kernel {key[:12]}"
        with contextlib.ExitStack() as held:
            held.enter_context(self._only_thread(key, lambda: self._disk.say(f"waiting {key}", waiting, logging.INFO)))
            try:
                if self._disk.run(lambda store: store.writable):
                    held.enter_context(self._disk.exclusive(key, waiting))
            except (CacheError, OSError) as error:
                message = f"{self.path.parent} cannot hold locks, so two processes may build one kernel: {error}"
                self._disk.say("locks", message)
            yield

    def memo(self, kind: str, subject: str, fingerprint: str, compute: Callable[[], str]) -> str:
        """Return ``compute()``, remembered for as long as the fingerprint stays the same.

        Parameters
        ----------
        kind : str
            What is computed, for example ``headers`` or ``compiler``.
        subject : str
            Of what, for example a path; one text is kept per kind and subject.
        fingerprint : str
            What changes whenever the text may change, for example size and mtime_ns of the file.
        compute : Callable[[], str]
            Called without any lock.
        """
        known = self.recall(kind, subject, fingerprint)
        if known is not None:
            return known
        value = compute()
        self._keep(lambda store: store.remember(kind, subject, fingerprint, value))
        return value

    def recall(self, kind: str, subject: str, fingerprint: str = "") -> str | None:
        """Return what `memo` or `remember` have kept of `subject`, if its fingerprint is still this one, or None."""
        return self._first(lambda store: store.recall(kind, subject, fingerprint))

    def remember(self, kind: str, subject: str, value: str, *, most: int) -> None:
        """Keep a text of `subject`, and of all texts of this `kind` the `most` that were kept last."""
        self._keep(lambda store: store.remember(kind, subject, "", value, most=most))

    def entries(self) -> list[Entry]:
        """Return what is in the cache, on disk and in memory, the most recently used first."""
        on_disk, uses = self._disk.run(Store.entries) or [], self._disk.uses()
        used = [replace(entry, last_used=max(entry.last_used, uses.get(entry.key, 0.0))) for entry in on_disk]
        listed = [*used, *(self._in_memory(Store.entries) if self._memory else [])]
        return sorted(listed, key=lambda entry: entry.last_used, reverse=True)

    def info(self) -> Info:
        """Return where the cache is, how it is kept, and how much is in it."""
        entries = self.entries()
        state = {None: "memory only", False: "read-only", True: "read-write"}[self._disk.run(lambda it: it.writable)]
        reason, journal = self._disk.refusal or "", self._disk.run(lambda store: store.journal) or "memory"
        if self._disk.is_unmade:
            reason, journal = self._disk.refuses_to_be_made(), ""
            state = "memory only" if reason else "not made yet"
        return Info(
            self.path.parent,
            state,
            reason,
            journal,
            kernels=len(entries),
            kernel_bytes=sum(entry.size for entry in entries),
            file_bytes=self._disk.file_bytes(),
            set_aside=self._disk.set_aside(),
        )

    def select(
        self,
        keys: Iterable[str] | None = None,
        *,
        prefix: str | Iterable[str] = "",
        target: str | Iterable[str] | None = None,
    ) -> list[Entry]:
        """Return what is in the cache, as far as it is meant.

        Parameters
        ----------
        keys : Iterable[str], optional
            Names or beginnings of keys. Default: all kernels.
        prefix : str or Iterable[str]
            Of these, only kernels whose names begin with this, or with one of these.
        target : str or Iterable[str], optional
            And only those that were built for this, for example ``"sm_90a"``, or for these.

        Raises
        ------
        ArgumentTypeError
            If `keys` is not a list of strings, or `prefix` or `target` are not strings.
        CacheError
            If a key, a prefix or a target fits no kernel.
        """
        entries = self.entries()
        chosen = entries if keys is None else selected(entries, keys, self.path)
        return narrowed(chosen, prefix, target, self.path)

    def remove(self, *selectors: str) -> list[Entry]:
        """Delete the kernels with these names or beginnings of keys, and return what they were.

        Raises
        ------
        ArgumentTypeError
            If a selector is not a string.
        CacheError
            If a selector fits no kernel, or if the cache cannot be written; nothing is deleted then.
        """
        return self._delete(self.select(selectors))

    def prune(self, max_bytes: int, *, dry_run: bool = False) -> list[Entry]:
        """Delete kernels, the least recently used first, until the rest take at most `max_bytes`; return the deleted.

        With `dry_run` nothing is deleted: what would be is returned.

        Raises
        ------
        ArgumentError
            If `max_bytes` is negative.
        ArgumentTypeError
            If it is not an integer.
        CacheError
            If the cache cannot be written.
        """
        most = as_int(max_bytes)
        if most is None:
            raise ArgumentTypeError(
                f"max_bytes is a number of bytes, an integer such as 2**30; got {shown(max_bytes)}. Units are for the "
                f"command line, `pycutlass cache prune --max-size 1GiB`."
            )
        if most < 0:
            raise ArgumentError(f"a cache cannot be pruned to {most} bytes; give 0 or more")
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        excess: list[Entry] = []
        while total > most:
            excess.append(entries.pop())
            total -= excess[-1].size
        return excess if dry_run else self._delete(excess)

    def verify(self) -> list[str]:
        """Load every kernel and return a sentence for all that is not as it was put there; [] if all is well."""
        problems = [] if self._disk.is_unmade else self._disk.run(Store.problems)
        return [f"the database {self.path} cannot be used; see the log"] if problems is None else problems

    def load(self, selector: str) -> list[Artifact]:
        """Return the kernels with this name or beginning of a key, to look at them: that is not a use.

        Raises
        ------
        ArgumentTypeError
            If `selector` is not a string.
        CacheError
            If it fits no kernel.
        """
        found = (self._stored(entry.key) for entry in self.select([selector]))
        return [artifact for artifact in found if artifact is not None]

    def export(
        self,
        path: str | os.PathLike[str],
        keys: Iterable[str] | None = None,
        *,
        prefix: str | Iterable[str] = "",
        target: str | Iterable[str] | None = None,
    ) -> list[Entry]:
        """Write kernels to one file that `import_` reads, and return what they are.

        Parameters
        ----------
        path : path
            The bundle to write; the same kernels give the same bytes.
        keys : Iterable[str], optional
            Names or beginnings of keys. Default: all kernels.
        prefix : str or Iterable[str]
            Of these, only kernels whose names begin with this, or with one of these.
        target : str or Iterable[str], optional
            And only those that were built for this, for example ``"sm_90a"``, or for these.

        Raises
        ------
        ArgumentTypeError
            If `path` is not a path, `keys` not a list of strings, or `prefix` or `target` not strings.
        CacheError
            If a key, a prefix or a target fits no kernel, if there is no kernel or a damaged one, or if the file cannot
            be written.
        """
        bundle = as_path("path", path)
        chosen = self.select(keys, prefix=prefix, target=target)
        found = {entry.key: self._stored(entry.key) for entry in chosen}
        artifacts = [artifact for artifact in found.values() if artifact is not None]
        if not artifacts:
            raise CacheError(f"there is no kernel to export in {self.path}; compile one first")
        if len(artifacts) < len(chosen):
            gone = ", ".join(entry.name for entry in chosen if found[entry.key] is None)
            raise CacheError(f"these kernels in {self.path} were damaged and are deleted now: {gone}; export again")
        write_bundle(bundle, artifacts)
        return chosen

    def import_(self, path: str | os.PathLike[str]) -> Imported:
        """Take in the kernels of a bundle that `export` wrote; one that is here already stays as it is.

        A bundle is native code: import one only from those whose programs you would run.

        Raises
        ------
        ArgumentTypeError
            If `path` is not a path.
        CacheError
            If the bundle is not whole or a kernel in it was changed; nothing is taken in then.
        """
        result = Imported([], [], [])
        for artifact in read_bundle(as_path("path", path)):
            if self._stored(artifact.key) is not None:
                result.present.append(artifact.key)
            else:
                (result.added if self._put(artifact) else result.in_memory).append(artifact.key)
        return result

    def close(self) -> None:
        """Close the database. The next use opens it again; what is only in memory stays."""
        self._disk.close()

    def _stored(self, key: str) -> Artifact | None:
        """Return the artifact under `key` without calling that a use."""
        return self._first(lambda store: store.get(key))

    def _first(self, ask: Callable[[Store], _T | None], *, is_use: bool = False) -> _T | None:
        """Return what the disk has, or else memory; an artifact that `is_use` is noted as used."""
        answer = self._disk.run(ask)
        if answer is None and self._memory:
            answer = self._in_memory(ask)
        if is_use and isinstance(answer, Artifact):
            self._disk.note_use(answer.key)
        return answer

    def _put(self, artifact: Artifact) -> bool:
        return self._keep(lambda store: store.put(artifact))

    def _keep(self, write: Callable[[Store], bool]) -> bool:
        """Write to disk, or else to memory, and return whether the disk took it."""
        on_disk = bool(self._disk.run(write))
        if not on_disk:
            self._in_memory(write)
        return on_disk

    def _in_memory(self, action: Callable[[Store], _T]) -> _T:
        with self._disk.lock:
            if self._memory is None:
                self._memory = Store.in_memory()
            return action(self._memory)

    def _delete(self, entries: list[Entry]) -> list[Entry]:
        keys = [entry.key for entry in entries]
        deleted = bool(keys) and self._disk.run(lambda store: store.delete(keys))
        if self._memory:
            self._in_memory(lambda store: store.delete(keys))
        present = {entry.key for entry in self.entries()}
        self._disk.forget_uses(self._disk.uses().keys() - present)
        left = present.intersection(keys)
        if left and not deleted:  # or else another process has put them back
            raise CacheError(
                f"{counted(len(left), 'kernel')} cannot be deleted, because {self.path} cannot be written (the log "
                "says why); if its disk is full, make room there first, or delete the file"
            )
        return entries

    @contextlib.contextmanager
    def _only_thread(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Keep the other threads of this process out, with or without a directory for lock files."""
        with self._disk.lock:
            # With the process in the name, a forked child does not inherit a lock that a thread of its parent holds.
            lock = self._builders.setdefault((os.getpid(), key), threading.Lock())
        wait_for(lambda: lock.acquire(blocking=False) or None, waiting)
        try:
            yield
        finally:
            lock.release()


@dataclass(frozen=True)
class Info:
    """Where the cache is and how much is in it; sizes are in bytes."""

    directory: Path
    state: str
    reason: str
    journal: str
    kernels: int
    kernel_bytes: int
    file_bytes: int
    set_aside: tuple[Path, ...]


class Imported(NamedTuple):
    """Keys of the kernels of a bundle: new on disk, here before, and new in memory because the disk took none."""

    added: list[str]
    present: list[str]
    in_memory: list[str]
