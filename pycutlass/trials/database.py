"""What is asked of trials: the best for a problem on a machine, the next best, and who measures what just now."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pycutlass import config
from pycutlass.cache.files import as_path
from pycutlass.cache.store import Store
from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError
from pycutlass.trials import claims, rows
from pycutlass.trials.lines import read_lines, write_lines
from pycutlass.trials.lookup import Lookup
from pycutlass.trials.ranking import superfluous
from pycutlass.trials.storage import Storage
from pycutlass.trials.texts import canonical
from pycutlass.trials.values import (
    STATUSES,
    Machine,
    Trial,
    at_least,
    checked_choice,
    checked_condition,
    checked_machine,
    key_beginning,
    key_of,
    listed,
    positive,
    without_name,
)

__all__ = ["Database", "Taken"]

_T = TypeVar("_T")
_LONGEST_CLAIM = 86_400.0


class Taken(NamedTuple):
    """How many trials were added, and how many were here already."""

    added: int
    present: int


@public
class Database:
    """Measured trials, shared by the threads and the processes of one user, or of all who use one file.

    Nothing is opened before the first use. An object may be used by many threads, and after a fork.

    Parameters
    ----------
    path : path, optional
        A file of its own, which is made where there is none. Default: the file that ``PYCUTLASS_DATABASE`` names, and
        else that of the kernel cache.
    make : bool
        Whether it is made where there is none: False to look only.

    Raises
    ------
    ArgumentTypeError
        If `path` is not a path.

    Notes
    -----
    A damaged file of the kernel cache is set aside, and where its disk takes nothing, trials stay in memory. A file
    that was named stays as it is where it is damaged, or the database of another program: each use raises CacheError.

    Examples
    --------
    >>> import tempfile
    >>> from pycutlass.trials import Database, Machine, Trial
    >>> h200 = Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0")
    >>> problem = {"m": 4096, "n": 4096, "k": 512, "types": "f16,f16,f32,f16"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     database = Database(f"{folder}/trials.db")
    ...     for tile, time in (([128, 128, 64], 31.5), ([128, 256, 64], 27.25)):
    ...         database.add(Trial(problem, {"tile": tile}, h200, time=time, low=time, high=time + 1, rounds=20))
    ...     best = database.best(problem, h200)
    ...     database.close()
    1
    1
    >>> best.candidate, best.time
    ('{"tile":[128,256,64]}', 27.25)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, make: bool = True) -> None:
        named = config.database_file() if path is None else as_path("path", path).absolute()
        self._storage = Storage(named, make=make)
        self._lookup = Lookup(self._storage)
        self._made_of = (named, make)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it again: copies are databases of the same file, with connections of their own."""
        return _made_again, (type(self), *self._made_of)

    @property
    def path(self) -> Path:
        """The database's file; it need not exist."""
        return self._storage.path

    @property
    def is_empty(self) -> bool:
        """Whether there is no trial at all, which takes less time to say than what anything is."""
        return not self._storage.read(rows.first)

    @property
    def revision(self) -> str:
        """A text that changes with the trials, for whoever keeps what follows from them."""
        return ", ".join(self._storage.read(rows.revision))

    def add(self, trials: Trial | Iterable[Trial]) -> int:
        """Keep one trial or several, all or none of them, and return how many are new.

        Raises
        ------
        ArgumentTypeError
            If that is something else than trials.
        CacheError
            If the file was named and cannot be written.
        """
        given = listed(trials)

        def put(store: Store) -> int:
            with store.transaction():
                return sum([rows.insert(store, trial) for trial in given])

        return self._write(put)

    def best(self, problem: str | Mapping[str, Any], machine: Machine, condition: str = "cold") -> Trial | None:
        """Return the latest trial of the fastest candidate that works, or None where none was measured.

        It takes microseconds where `problem` is text that was asked for before. What other processes add is seen
        within a tenth of a second.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `problem` is no JSON object, `machine` no Machine, or there is no such `condition`.
        CacheError
            If the file was named and cannot be used.
        """
        found = self._lookup.ranked(problem, machine, condition)
        return found[0] if found else None

    def top(
        self, problem: str | Mapping[str, Any], machine: Machine, count: int, condition: str = "cold"
    ) -> tuple[Trial, ...]:
        """Return the latest trials of the `count` fastest candidates that work, the fastest first.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            As for `best`, or if `count` is not an integer of at least 1.
        CacheError
            If the file was named and cannot be used.
        """
        return self._lookup.ranked(problem, machine, condition)[: at_least(1, "count", count)]

    def trials(
        self,
        *,
        key: str | None = None,
        problem: str | Mapping[str, Any] | None = None,
        candidate: str | Mapping[str, Any] | None = None,
        machine: Machine | None = None,
        gpu: str | None = None,
        condition: str | None = None,
        status: str | None = None,
    ) -> list[Trial]:
        """Return the trials for which all holds that is given, the oldest first.

        Parameters
        ----------
        key : str
            Beginning of `Trial.key`.
        problem, candidate : str or mapping
            What was measured, whatever the problem calls its epilogue.
        machine : Machine
            Where and with what.
        gpu : str
            Name of the GPU, whatever else the machine is.
        condition, status : str
            As of a Trial.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If one of these is not what a trial has.
        CacheError
            If the file was named and cannot be used.
        """
        wanted = {
            "candidate": None if candidate is None else canonical("candidate", candidate),
            "machine": None if machine is None else checked_machine(machine).text,
            "condition": None if condition is None else checked_condition(condition),
            "status": None if status is None else checked_choice("status", status, STATUSES),
            "beginning": "" if key is None else key_beginning(key),
        }
        if gpu is not None and not isinstance(gpu, str):
            raise ArgumentTypeError(f"gpu must be the name of a GPU, got {shown(gpu)}")
        equal = {name: text for name, text in wanted.items() if text is not None}
        rows_of = [equal] if problem is None else [equal | each for each in self._named(problem, machine)]
        found = self._storage.read(lambda store: [trial for each in rows_of for trial in rows.select(store, **each)])
        of_gpu = (trial for trial in found if gpu is None or trial.machine.gpu == gpu)
        return sorted(of_gpu, key=lambda trial: (trial.date, trial.digest))

    def claim(
        self,
        problem: str | Mapping[str, Any],
        candidate: str | Mapping[str, Any],
        machine: Machine,
        condition: str = "cold",
        *,
        again: bool = False,
        seconds: float = 600.0,
    ) -> AbstractContextManager[bool]:
        """Return a context whose value is whether to measure now, which nobody else does while it lasts.

        It is False where another thread or process has the claim, and where there is a trial already, unless it is to
        be made `again`. The claim ends with the context; with the process, however that ends; and at the latest after
        so many `seconds`, since other hosts cannot know.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            As for `best`, or if `seconds` is not a positive number of at most a day.
        CacheError
            If the file was named and cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> from pycutlass.trials import Database, Machine
        >>> h200 = Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     database = Database(f"{folder}/trials.db")
        ...     with database.claim({"m": 1}, {"tile": 64}, h200) as mine:
        ...         with database.claim({"m": 1}, {"tile": 64}, h200) as other:
        ...             print(mine, other)
        ...     database.close()
        True False
        """
        texts = canonical("problem", problem), canonical("candidate", candidate)
        checked_machine(machine)
        checked_condition(condition)
        length = positive("seconds", "seconds", seconds)
        if length > _LONGEST_CLAIM:
            raise ArgumentError(f"seconds must be at most {_LONGEST_CLAIM:,.0f}, a day; got {length:,.0f}")
        return claims.claimed(self._storage, *texts, machine, condition, again=bool(again), seconds=length)

    def export(self, path: str | os.PathLike[str], trials: Iterable[Trial] | None = None) -> int:
        """Write trials to a file of JSON lines that `import_` reads, and return how many; default: all.

        Raises
        ------
        ArgumentTypeError
            If `path` is not a path, or `trials` are something else.
        CacheError
            If the file cannot be written, or is this database.
        """
        file = self._other("path", path)
        chosen = self._storage.read(rows.select) if trials is None else listed(trials)
        write_lines(file, chosen)
        return len(chosen)

    def import_(self, path: str | os.PathLike[str]) -> Taken:
        """Take in the trials of a file that `export` wrote, and return how many are new.

        Raises
        ------
        ArgumentTypeError
            If `path` is not a path.
        CacheError
            If a line of it is no trial; nothing is taken in then. Or if the database was named and cannot be written.
        """
        file = self._other("path", path)
        return Taken(*self._write(lambda store: rows.stored_together(store, read_lines(file))))

    def merge(self, other: Database | str | os.PathLike[str]) -> Taken:
        """Take in all trials of another database, which stays as it is, and return how many are new.

        Trials of one candidate that both have measured stay side by side, of which the latest counts.

        Raises
        ------
        ArgumentTypeError
            If `other` is neither a database nor a path.
        CacheError
            If it is not there or cannot be used, or if this one was named and cannot be written.
        """
        if isinstance(other, Database):
            return self._take(other)
        file = as_path("other", other).absolute()
        if not file.exists():
            raise CacheError(f"there is no database {file}")
        opened = Database(file, make=False)
        try:
            return self._take(opened)
        finally:
            opened.close()

    def prune(
        self, *, keep: int | None = None, older_than: timedelta | None = None, dry_run: bool = False
    ) -> list[Trial]:
        """Delete trials and return them; with `dry_run` they are returned only.

        That a candidate gives wrong results is forgotten only with all other trials of it.

        Parameters
        ----------
        keep : int, optional
            Of each problem on each machine, in each condition, keep the latest trials of so many candidates, the
            fastest ones.
        older_than : timedelta, optional
            Delete what was measured longer ago.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If both are missing, or `keep` is not an integer of at least 1, or `older_than` not a timedelta.
        CacheError
            If the file was named and cannot be written.
        """
        if keep is None and older_than is None:
            raise ArgumentError("give keep, a number of candidates, or older_than, a timedelta")
        most = None if keep is None else at_least(1, "keep", keep)
        if older_than is not None and not isinstance(older_than, timedelta):
            raise ArgumentTypeError(f"older_than must be a datetime.timedelta, got {shown(older_than)}")
        try:
            since = None if older_than is None else datetime.now(UTC) - older_than
        except OverflowError:
            raise ArgumentError(f"older_than={older_than} is before all dates that there are") from None

        return self._remove(lambda trials: superfluous(trials, most, since), dry_run=dry_run)

    def remove(self, trials: Trial | Iterable[Trial]) -> list[Trial]:
        """Delete these trials and return those of them that were there.

        Raises
        ------
        ArgumentTypeError
            If that is something else than trials.
        CacheError
            If the file was named and cannot be written.
        """
        digests = {trial.digest for trial in listed(trials)}
        return self._remove(lambda found: {trial.digest for trial in found} & digests)

    def stale(
        self, *, cutlass: str | None = None, compiler: str | None = None, pycutlass: str | None = None
    ) -> list[Trial]:
        """Return the trials of other versions than these; one that is not given is not compared.

        Raises
        ------
        ArgumentTypeError
            If a version is not text.
        CacheError
            If the file was named and cannot be used.
        """
        versions = {"cutlass": cutlass, "compiler": compiler, "pycutlass": pycutlass}
        for name, version in versions.items():
            if version is not None and not isinstance(version, str):
                raise ArgumentTypeError(f"{name} must be the text of a version, got {shown(version)}")
        now = {name: version for name, version in versions.items() if version is not None}
        return [
            trial
            for trial in self.trials()
            if any(getattr(trial.machine, name) != version for name, version in now.items())
        ]

    def verify(self) -> list[str]:
        """Return a sentence for everything that is not as it was put here; [] if all is well.

        Raises
        ------
        CacheError
            If the file was named and cannot be used.
        """
        return self._storage.problems()

    def close(self) -> None:
        """Close the database. The next use opens it again; what is only in memory stays."""
        with self._lookup.changed():
            self._storage.close()

    def _named(self, problem: str | Mapping[str, Any], machine: Machine | None) -> list[dict[str, str]]:
        """Return what rows of a problem have, whatever they call its epilogue: their key, or one of these texts."""
        text = canonical("problem", problem)
        if machine is not None:
            return [{"key": key_of(text, machine)}]
        texts = dict.fromkeys(self._storage.read(rows.texts))  # once where some are on disk and in memory
        return [{"problem": each} for each in texts if without_name(each) == without_name(text)]

    def _take(self, other: Database) -> Taken:
        theirs = other.trials()
        return Taken(*self._write(lambda store: rows.stored_together(store, theirs)))

    def _write(self, action: Callable[[Store], _T]) -> _T:
        with self._lookup.changed():
            return self._storage.write(action)

    def _remove(self, going: Callable[[list[Trial]], set[str]], *, dry_run: bool = False) -> list[Trial]:
        with self._lookup.changed():
            return self._storage.remove(going, dry_run=dry_run)

    def _other(self, name: str, path: Any) -> Path:
        """Return the path of a file that is not this database: to open it would break SQLite's locks."""
        file = as_path(name, path)
        with contextlib.suppress(OSError):
            if file.samefile(self.path):
                raise CacheError(f"{file} is the database itself: name another file")
        return file


def _made_again(kind: type[Database], named: Path | None, make: bool) -> Database:
    return kind(named, make=make)
