"""The ranking of candidates that was asked for before, without asking the database again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from pycutlass.trials import rows
from pycutlass.trials.ranking import ranked
from pycutlass.trials.storage import Storage, Version
from pycutlass.trials.texts import canonical
from pycutlass.trials.values import (
    CONDITIONS,
    OTHER_CONDITIONS,
    Machine,
    Trial,
    checked_condition,
    checked_machine,
    key_of,
)

__all__ = ["Lookup"]

_UNSEEN_SECONDS = 0.1  # how long another process's trials may be unseen: to ask SQLite each time costs system calls
_MOST = 4096  # problems in memory


class Lookup:
    """Rankings by problem and machine, of each condition, kept until the database changes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[tuple[Any, Machine], dict[str, tuple[Trial, ...]]] = {}
        self._known_of: Version = (None, 0)
        self._known_until = 0.0

    def ranked(self, problem: Any, machine: Machine, condition: str) -> tuple[Trial, ...]:
        """Return the latest trials of the candidates that work, the fastest first."""
        if time.monotonic() >= self._known_until:
            self._look_for_changes()
        try:
            return self._known[problem, machine][condition]
        except (KeyError, TypeError):  # the latter of what has no hash, such as a dict
            pass
        text = canonical("problem", problem)
        key = key_of(text, checked_machine(machine))
        condition = checked_condition(condition)
        kept_as = problem if isinstance(problem, str) else text
        with self._storage.lock:  # so that nothing is added here between reading and remembering
            known = self._known.get((kept_as, machine))
            if known is not None:
                return known[condition]
            found = self._storage.read(lambda store: rows.select(store, key=key))
            if len(self._known) >= _MOST:
                self._known.clear()
            # Of all conditions: who asks for one asks for the next where there is none.
            of_each = {each: ranked(found, each) if found else () for each in (*CONDITIONS, *OTHER_CONDITIONS)}
            self._known[kept_as, machine] = of_each
        return of_each[condition]

    @contextlib.contextmanager
    def changed(self) -> Iterator[None]:
        """Let the database be changed here, and forget what was known of it."""
        with self._storage.lock:
            try:
                yield
            finally:
                self._known.clear()
                self._known_until = 0.0

    def _look_for_changes(self) -> None:
        """Forget all, where another connection has changed the database since."""
        with self._storage.lock:
            now = self._storage.version()
            if now[0] is not self._known_of[0] or now[1] != self._known_of[1]:
                self._known.clear()
            self._known_of, self._known_until = now, time.monotonic() + _UNSEEN_SECONDS
