"""The tables of the database, of kernels and of trials, and the steps by which an older one gets those that it lacks.

A file says in ``user_version`` how many steps were made. Several versions of PyCUTLASS share one file, also at the same
time, so a step only adds tables and indexes: what an older one reads and writes stays as it is, and what a newer one
has added does no harm. Where the columns of a table must change, a step makes another table under another name and
copies the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ARTIFACTS", "CLAIMS", "MEMOS", "TRIALS", "VERSION", "bring_up", "version"]

ARTIFACTS = "artifact_v1"
MEMOS = "memo_v1"
TRIALS = "trial_v1"
CLAIMS = "claim_v1"

#: What leads from each version to the next. Never changed once released, only added to.
_STEPS: tuple[tuple[str, ...], ...] = (
    # The blobs come last: SQLite reads a row from its beginning, so listing does not touch them. PyCUTLASS before the
    # first steps made these tables as well, and wrote no version.
    (
        f"""CREATE TABLE IF NOT EXISTS {ARTIFACTS} (key TEXT PRIMARY KEY NOT NULL, name TEXT NOT NULL,
            target TEXT NOT NULL, fields TEXT NOT NULL, report TEXT NOT NULL, digest TEXT NOT NULL,
            size INTEGER NOT NULL, created REAL NOT NULL, last_used REAL NOT NULL, cubin BLOB NOT NULL,
            host BLOB NOT NULL)""",
        f"""CREATE TABLE IF NOT EXISTS {MEMOS} (kind TEXT NOT NULL, subject TEXT NOT NULL, fingerprint TEXT NOT NULL,
            value TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (kind, subject))""",
    ),
    # A machine without a compiler has no keys: it finds kernels by their names, of thousands in a bundle.
    (f"CREATE INDEX IF NOT EXISTS {ARTIFACTS}_by_name ON {ARTIFACTS} (name, target)",),
    # Of a trial that gave no time, times and rounds are NULL. A claim is one row for what is being measured now.
    (
        f"""CREATE TABLE IF NOT EXISTS {TRIALS} (digest TEXT PRIMARY KEY NOT NULL, key TEXT NOT NULL,
            problem TEXT NOT NULL, candidate TEXT NOT NULL, machine TEXT NOT NULL, condition TEXT NOT NULL,
            status TEXT NOT NULL, time REAL, low REAL, high REAL, rounds INTEGER, host TEXT NOT NULL,
            date TEXT NOT NULL, reason TEXT NOT NULL)""",
        f"CREATE INDEX IF NOT EXISTS {TRIALS}_by_key ON {TRIALS} (key)",
        f"""CREATE TABLE IF NOT EXISTS {CLAIMS} (subject TEXT PRIMARY KEY NOT NULL, owner TEXT NOT NULL,
            expires REAL NOT NULL)""",
    ),
)

VERSION = len(_STEPS)

Run = Callable[..., list[Any]]


def version(run: Run) -> int:
    """Return how many steps the database has behind it; `run` executes a statement and returns its rows."""
    return int(run("PRAGMA user_version")[0][0])


def bring_up(run: Run) -> None:
    """Make the steps that a database lacks, each with its version in one transaction, whoever else does so.

    A process that is killed leaves whole steps. Where a statement fails, the caller closes the connection, which takes
    back the step that was begun.
    """
    for number, statements in enumerate(_STEPS, 1):
        if version(run) >= number:
            continue
        run("BEGIN IMMEDIATE")
        if version(run) < number:  # another process may have made it while this one waited
            for statement in statements:
                run(statement)
            run(f"PRAGMA user_version = {number}")
        run("COMMIT")
