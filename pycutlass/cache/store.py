"""A compiled kernel as a value, and the tables that keep many in one SQLite database.

The key of an artifact says what it was made from, its digest what it is. A store knows SQL and nothing of directories,
other processes or what a failure means: `StoreError` goes to the caller. Every statement is a transaction of its own,
or part of one that `transaction` makes, and every row is read to its end, so no lock outlives a call. Other rooms have
tables of their own in the same file, for which there is `run`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
import weakref
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycutlass.cache import schema
from pycutlass.cache.schema import ARTIFACTS, MEMOS, TRIALS
from pycutlass.errors import ArgumentTypeError, CacheError
from pycutlass.log import logger

__all__ = ["Artifact", "Entry", "Store", "StoreError", "journal_for", "make_key"]

# Raise it when the meaning of a key changes: nothing finds the rows of before any more.
_KEY_VERSION = "1"
_BUSY_MS = 10_000
_MOUNTS = Path("/proc/self/mountinfo")
# WAL needs memory that all processes share, which other hosts of these file systems do not.
_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
)

# What a damaged row holds, an entry can hold: no number is missing, and none of the texts is bytes.
_LISTED = ", ".join(
    [
        "key",
        *(f"COALESCE(CAST({column} AS TEXT), '')" for column in ("name", "target", "fields", "report")),
        "MAX(COALESCE(CAST(size AS INTEGER), 0), 0)",
        *(f"COALESCE(CAST({column} AS REAL), 0)" for column in ("created", "last_used")),
    ]
)
_LOADED = "name, target, fields, report, digest, cubin, host"
# Every column is asked for, so that a file with other tables under our names is found out when it is opened.
_PROBES = (f"SELECT {_LISTED}, {_LOADED} FROM {ARTIFACTS} LIMIT 0", f"SELECT * FROM {MEMOS} LIMIT 0")


@dataclass(frozen=True, repr=False)
class Artifact:
    """One compiled kernel, as bytes.

    Parameters
    ----------
    key : str
        `make_key` of `fields`: 64 hexadecimal digits.
    name : str
        Symbol of the kernel.
    target : str
        What the device code was built for, for example ``sm_90a``.
    fields : Mapping[str, str]
        Everything that decides what the compilers make, by label.
    cubin : bytes
        Device code.
    host : bytes
        ELF shared object of the host side.
    report : Mapping[str, Any]
        What the build said (registers, spills, seconds, ...), as JSON can carry it.
    """

    key: str
    name: str
    target: str
    fields: Mapping[str, str] = field(hash=False)
    cubin: bytes
    host: bytes
    report: Mapping[str, Any] = field(hash=False)

    def __repr__(self) -> str:
        registers = f"{self.report['registers']} registers, " if "registers" in self.report else ""
        sizes = f"{len(self.cubin):,} and {len(self.host):,} bytes"
        return f"<Artifact {self.key[:12]}: {self.name} for {self.target}, {registers}{sizes}>"

    @property
    def digest(self) -> str:
        """SHA-256 over all of the artifact, in hexadecimal digits.

        Raises
        ------
        ArgumentTypeError
            If `fields` or `report` hold something that JSON cannot carry.
        """
        texts = (self.key, self.name, self.target, _canonical(self.fields), _canonical(self.report))
        return _hashed([*(text.encode() for text in texts), self.cubin, self.host])


def make_key(fields: Mapping[str, str]) -> str:
    """Return the cache key of labelled `fields`: 64 hexadecimal digits.

    The version of keys comes first, then every label and text in the order of the labels, each with its length before
    it. So two sets of fields have one key only if they are equal, and the key is the same in every process.

    Raises
    ------
    ArgumentTypeError
        If a label or a text is not a string.
    """
    for label, text in fields.items():
        if not isinstance(label, str) or not isinstance(text, str):
            raise ArgumentTypeError(f"a key is made from strings by label, but field {label!r} is {text!r}; use str()")
    parts = ["pycutlass", _KEY_VERSION, *(part for label in sorted(fields) for part in (label, fields[label]))]
    return _hashed(parts)


class Store:
    """Artifacts and memos in one SQLite database; use `in_file`, `read_only` or `in_memory` to make one."""

    def __init__(self, database: str, *, writable: bool = True) -> None:
        self.writable = writable
        import sqlite3  # for those who ask the cache for something

        try:
            self._connection = sqlite3.connect(
                database, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False, uri=True
            )
        except sqlite3.Error as error:
            raise StoreError(error) from error
        # Damaged text must come out as wrong text, which the digest finds, and not as an exception.
        self._connection.text_factory = lambda raw: raw.decode(errors="replace")
        self._finalizer = weakref.finalize(self, self._connection.close)

    @classmethod
    def in_file(cls, path: Path, *, take_over: bool = True) -> Store:
        """Open the database `path` for reading and writing and bring its tables up to date.

        With `take_over` also one that has none of our tables yet, but tables of others.
        """
        store = cls(path.as_uri())
        try:
            ((version,),) = store._run("PRAGMA user_version")
            if version < schema.VERSION or not take_over:
                tables = {name for (name,) in store._run("SELECT name FROM sqlite_master")}
                if tables and not take_over and tables.isdisjoint((ARTIFACTS, TRIALS)):
                    raise CacheError("it is a database of another program, and stays as it is: name another file")
                if not tables:
                    store._run("PRAGMA auto_vacuum = FULL")  # SQLite writes and syncs all but an empty file for nothing
            journal = journal_for(path)
            if store._run("PRAGMA journal_mode") != [(journal.lower(),)]:
                with contextlib.suppress(StoreError):  # where that cannot be, SQLite's own choice is right as well
                    store._run(f"PRAGMA journal_mode = {journal}")
            store._run("PRAGMA synchronous = NORMAL")
            if version < schema.VERSION:
                schema.bring_up(store._run)
            for probe in _PROBES:
                store._run(probe)
        except CacheError:
            store.close()
            raise
        return store

    @classmethod
    def read_only(cls, path: Path) -> Store:
        """Open the database `path` where nothing may be written, not even the files that WAL keeps beside it."""
        for last, how in ((False, "mode=ro"), (True, "mode=ro&immutable=1")):
            store = cls(f"{path.as_uri()}?{how}", writable=False)
            try:
                for probe in _PROBES:
                    store._run(probe)
            except StoreError:
                store.close()
                if last:
                    raise
            else:
                return store
        raise AssertionError("the second round returns or raises")

    @classmethod
    def in_memory(cls) -> Store:
        """Return an empty database that ends with this process."""
        store = cls(":memory:")
        schema.bring_up(store._run)
        return store

    @property
    def journal(self) -> str:
        """How SQLite keeps this database whole: ``wal``, ``delete`` or ``memory``."""
        return str(self._run("PRAGMA journal_mode")[0][0])

    @property
    def data_version(self) -> int:
        """A number that is another one once another connection has changed the database."""
        return int(self._run("PRAGMA data_version")[0][0])

    def run(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of `statement`, about another table than those of kernels."""
        return self._run(statement, *values)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make one transaction of all statements inside, which nobody else writes between, and none after an error."""
        try:
            self._run("BEGIN IMMEDIATE")
            yield
            self._run("COMMIT")
        except BaseException:
            with contextlib.suppress(StoreError):  # SQLite has taken it back already where the disk is full
                self._run("ROLLBACK")
            raise

    def get(self, key: str) -> Artifact | None:
        """Return the artifact under `key`; a row that is not what was put there is deleted and counts as absent."""
        for row in self._run(f"SELECT {_LOADED} FROM {ARTIFACTS} WHERE key = ?", key):
            artifact = _decoded(key, *row)
            if artifact is not None:
                return artifact
            logger.warning("kernel %s in the cache is damaged: its content differs from its digest; deleted", key[:12])
            if self.writable:
                self._run(f"DELETE FROM {ARTIFACTS} WHERE key = ?", key)
        return None

    def find(self, fields: Mapping[str, str]) -> Artifact | None:
        """Return the newest artifact with all of these `fields`."""
        # Name and target are columns, too, with an index. The text of a pair is the same in every canonical JSON, so
        # SQLite can sort out most of the rows that are left.
        columns = [label for label in ("name", "target") if label in fields]
        pairs = [_canonical({label: text})[1:-1] for label, text in fields.items()]
        conditions = [*(f"{label} = ?" for label in columns), *(["instr(fields, ?)"] * len(pairs)), "1"]
        newest = f"SELECT key FROM {ARTIFACTS} WHERE {' AND '.join(conditions)} ORDER BY created DESC, rowid DESC"
        for (key,) in self._run(newest, *(_storable(fields[label]) for label in columns), *pairs):
            artifact = self.get(key)
            if artifact is not None and fields.items() <= artifact.fields.items():
                return artifact
        return None

    def put(self, artifact: Artifact) -> bool:
        """Keep `artifact`, in place of any other under its key; return False where nothing can be written."""
        if self.writable:
            cubin, host, now = zlib.compress(artifact.cubin), zlib.compress(artifact.host), time.time()
            texts = (artifact.name, artifact.target, _canonical(artifact.fields), _canonical(artifact.report))
            row = (artifact.key, *texts, artifact.digest, len(cubin) + len(host), now, now, cubin, host)
            self._run(f"INSERT OR REPLACE INTO {ARTIFACTS} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)
        return self.writable

    def recall(self, kind: str, subject: str, fingerprint: str) -> str | None:
        """Return the text that was remembered of `subject`, if its fingerprint is still this one."""
        asked = f"SELECT value, digest FROM {MEMOS} WHERE kind = ? AND subject = ? AND fingerprint = ?"
        for value, digest in self._run(asked, *map(_storable, (kind, subject, fingerprint))):
            if isinstance(value, str) and digest == _hashed((kind, subject, fingerprint, value)):
                return value
        return None

    def remember(self, kind: str, subject: str, fingerprint: str, value: str, *, most: int | None = None) -> bool:
        """Keep the text `value` of `subject`, and of its `kind` at most so many; return False where that cannot be."""
        if self.writable:
            texts = (kind, subject, fingerprint, value)
            row = (*map(_storable, texts), _hashed(texts))
            self._run(f"INSERT OR REPLACE INTO {MEMOS} VALUES (?, ?, ?, ?, ?)", *row)
            if most is not None:  # SQLite numbers rows as they come
                kept = f"SELECT rowid FROM {MEMOS} WHERE kind = ? ORDER BY rowid DESC LIMIT ?"
                self._run(f"DELETE FROM {MEMOS} WHERE kind = ? AND rowid NOT IN ({kept})", kind, kind, most)
        return self.writable

    def entries(self) -> list[Entry]:
        """Return what is here, the most recently used first."""
        listing = f"SELECT {_LISTED} FROM {ARTIFACTS} ORDER BY last_used DESC, created DESC, rowid DESC"
        return [
            Entry(key, name, target, _mapping(fields), _mapping(report), size, _moment(created), _moment(last_used))
            for key, name, target, fields, report, size, created, last_used in self._run(listing)
        ]

    def delete(self, keys: Collection[str]) -> bool:
        """Delete the artifacts under `keys` and shrink the file; return False where nothing can be written."""
        if self.writable:
            for key in keys:
                self._run(f"DELETE FROM {ARTIFACTS} WHERE key = ?", key)
            with contextlib.suppress(StoreError):  # where another process is reading, it is done the next time
                self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.writable

    def problems(self) -> list[str]:
        """Return a sentence for everything that is not as it was put here."""
        checks = [str(message) for (message,) in self._run("PRAGMA integrity_check")]
        found = [f"the database: {message}" for message in checks if message != "ok"]
        for (key,) in self._run(f"SELECT key FROM {ARTIFACTS} ORDER BY key"):
            for row in self._run(f"SELECT {_LOADED} FROM {ARTIFACTS} WHERE key = ?", key):
                artifact = _decoded(key, *row)
                if artifact is None:
                    found.append(f"kernel {key}: its content differs from its digest")
                elif make_key(artifact.fields) != key:
                    found.append(f"kernel {key}: its fields have the key {make_key(artifact.fields)}")
        return found

    def close(self) -> None:
        """Close the database; the last one to close it writes the log back into the file."""
        self._finalizer()

    def _run(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of `statement`: all that SQLite does goes through here, and so do its errors."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except (self._connection.Error, UnicodeDecodeError) as error:  # the latter from quoting a damaged file
            raise StoreError(error) from error


@dataclass(frozen=True)
class Entry:
    """What the cache says about one kernel without loading it; `size` is in bytes as stored, times are seconds UTC."""

    key: str
    name: str
    target: str
    fields: Mapping[str, str]
    report: Mapping[str, Any]
    size: int
    created: float
    last_used: float


class StoreError(CacheError):
    """SQLite refused; `damaged` says that the file is not one of ours, or not as we left it."""

    def __init__(self, error: Exception) -> None:
        import sqlite3

        super().__init__(str(error))
        damage = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
        # Errors that Python raises itself have no code; the lower eight bits are the kind of error.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        self.damaged = code in damage or isinstance(error, UnicodeDecodeError)


def journal_for(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the journal that suits the file system of `path`: ``WAL``, or ``DELETE`` on those that hosts share."""
    device = path.stat().st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:  # no such table on this system: SQLite will say whether it can do WAL
        return "WAL"
    kinds = {line.split(" - ", 1)[1].split()[0] for line in lines if line.split()[2] == place}
    return "DELETE" if kinds & _NETWORK else "WAL"


def _decoded(key: str, *row: Any) -> Artifact | None:
    """Return the artifact of a row, or None if the row is not what was put there."""
    name, target, fields, report, digest, cubin, host = row
    try:
        blobs = zlib.decompress(cubin), zlib.decompress(host)
        artifact = Artifact(key, name, target, json.loads(fields), *blobs, json.loads(report))
        return artifact if artifact.digest == digest else None
    except (AttributeError, RecursionError, TypeError, ValueError, zlib.error):  # a damaged row may hold anything
        return None


def _moment(seconds: float) -> float:
    """Return a time for a listing: a damaged row may hold one that never comes."""
    return seconds if math.isfinite(seconds) else 0.0


def _mapping(text: str) -> Mapping[str, Any]:
    """Return a JSON object for a listing, which goes on past a damaged row: `Store.problems` is the one to name it."""
    try:
        loaded = json.loads(text)
    except (RecursionError, TypeError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _storable(text: str) -> str:
    """Return `text` as SQLite can hold it: a path that is not UTF-8 is escaped, and the digest tells it from others."""
    return text.encode(errors="backslashreplace").decode()


def _canonical(mapping: Mapping[str, Any]) -> str:
    """Return `mapping` as JSON, the same text for equal mappings."""
    try:
        return json.dumps(dict(mapping), sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"an artifact's fields and report are JSON, but {mapping!r} is not: {error}") from error


def _hashed(parts: Iterable[str | bytes]) -> str:
    """Return the SHA-256 of `parts`, each with its length before it, so that no boundary between them can move."""
    digest = hashlib.sha256()
    for each in parts:
        # Paths that are not UTF-8 reach Python as lone surrogates; they pass as they are.
        part = each.encode(errors="surrogatepass") if isinstance(each, str) else each
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
