"""Trials as rows of the cache's database."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from pycutlass.cache.schema import TRIALS
from pycutlass.cache.store import Store
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.log import say_once
from pycutlass.trials.values import Trial, trial_from

__all__ = ["are_there", "delete", "first", "insert", "problems", "revision", "select", "stored_together", "texts"]

_FIELDS = tuple(field.name for field in dataclasses.fields(Trial))
_COLUMNS = ("digest", "key", *_FIELDS)
_LISTED = ", ".join(_COLUMNS)
_ROW = ", ".join("?" * len(_COLUMNS))


def are_there(store: Store) -> bool:
    """Return whether the database has the table: that of an older PyCUTLASS, where nothing can be written, lacks it."""
    return bool(store.run("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", TRIALS))


def first(store: Store) -> list[str]:
    """Return the digest of any trial; nothing where there is none."""
    return [row[0] for row in store.run(f"SELECT digest FROM {TRIALS} LIMIT 1")]


def revision(store: Store) -> list[str]:
    """Return a text that is another once trials were added or removed."""
    digests = [str(digest) for (digest,) in store.run(f"SELECT digest FROM {TRIALS} ORDER BY digest")]
    return [hashlib.sha256(" ".join(digests).encode()).hexdigest()] if digests else []


def insert(store: Store, trial: Trial) -> bool:
    """Put a trial and return whether it is new; one that is here already is written again, in case it was damaged."""
    is_new = not store.run(f"SELECT 1 FROM {TRIALS} WHERE digest = ?", trial.digest)
    store.run(f"INSERT OR REPLACE INTO {TRIALS} ({_LISTED}) VALUES ({_ROW})", *_values(trial))
    return is_new


def stored_together(store: Store, trials: Iterable[Trial]) -> tuple[int, int]:
    """Put trials, all or none of them, and return how many are new and how many were here.

    `trials` may take long, and may fail: until the last of them has come, nobody waits for a lock, and they are kept in
    a table that SQLite drops with the connection.
    """
    store.run("DROP TABLE IF EXISTS temp.incoming")
    store.run(f"CREATE TEMP TABLE incoming ({', '.join(_COLUMNS)}, PRIMARY KEY (digest))")
    try:
        for trial in trials:
            store.run(f"INSERT OR IGNORE INTO temp.incoming ({_LISTED}) VALUES ({_ROW})", *_values(trial))
        with store.transaction():
            ((total,),) = store.run("SELECT COUNT(*) FROM temp.incoming")
            ((here,),) = store.run(f"SELECT COUNT(*) FROM temp.incoming WHERE digest IN (SELECT digest FROM {TRIALS})")
            store.run(f"INSERT OR REPLACE INTO {TRIALS} ({_LISTED}) SELECT {_LISTED} FROM temp.incoming")
    finally:
        store.run("DROP TABLE IF EXISTS temp.incoming")
    return total - here, here


def texts(store: Store) -> list[str]:
    """Return the problems of all trials, each once."""
    return [row[0] for row in store.run(f"SELECT DISTINCT problem FROM {TRIALS} WHERE typeof(problem) = 'text'")]


def select(store: Store, **equal: str) -> list[Trial]:
    """Return the trials whose columns have these values, all of them by default; what is damaged is left out.

    Of `beginning`, which is no column, it is the key that begins so.
    """
    beginning = equal.pop("beginning", None)
    conditions, values = [f"{column} = ?" for column in equal] or ["1"], [*equal.values()]
    if beginning is not None:
        conditions.append("key >= ? AND key < ?")
        values += [beginning, f"{beginning}g"]  # which comes behind all hexadecimal digits
    found = []
    for row in store.run(f"SELECT {_LISTED} FROM {TRIALS} WHERE {' AND '.join(conditions)}", *values):
        trial, reason = _checked(row)
        if trial is None:
            say_once(
                f"a trial in the database is damaged and is left out: {reason} (`pycutlass db verify` lists all)",
                cause="damaged trial",
            )
        else:
            found.append(trial)
    return found


def delete(store: Store, digests: Iterable[str]) -> None:
    """Delete trials, and what is damaged."""
    damaged = (row[0] for row in store.run(f"SELECT {_LISTED} FROM {TRIALS}") if _checked(row)[0] is None)
    for digest in (*digests, *damaged):
        store.run(f"DELETE FROM {TRIALS} WHERE digest = ?", digest)


def problems(store: Store) -> Iterator[str]:
    """Yield a sentence for everything that is not as it was put here."""
    for (message,) in store.run("PRAGMA integrity_check"):
        if message != "ok":
            yield f"the database: {message}"
    for row in store.run(f"SELECT {_LISTED} FROM {TRIALS} ORDER BY digest"):
        reason = _checked(row)[1]
        if reason:
            yield reason


def _values(trial: Trial) -> tuple[Any, ...]:
    return (trial.digest, trial.key, *trial.fields().values())


def _checked(row: tuple[Any, ...]) -> tuple[Trial | None, str]:
    """Return the trial of a row, or None and why it is not what was put there."""
    digest, key, *values = row
    named = f"trial {str(digest)[:12]}"
    try:
        trial = trial_from(dict(zip(_FIELDS, values, strict=True)))
    except (ArgumentError, ArgumentTypeError) as error:
        return None, f"{named}: {error}"
    if trial.digest != digest:
        return None, f"{named}: its content differs from its digest"
    if trial.key != key:
        return None, f"{named}: it lies under another key than its own, {trial.key[:12]}"
    return trial, ""
