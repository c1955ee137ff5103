"""The steps from the database of an older PyCUTLASS to that of this one: none is lost, whoever else opens it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cached import warnings_in

from pycutlass.cache import Artifact, KernelCache, make_key, schema
from pycutlass.cache.store import Store, StoreError

OLD = Path(__file__).parent / "stores" / "before_versions.sql"
#: What PyCUTLASS of before does, in its words.
OLD_TABLES = (
    """CREATE TABLE IF NOT EXISTS artifact_v1 (key TEXT PRIMARY KEY NOT NULL, name TEXT NOT NULL,
        target TEXT NOT NULL, fields TEXT NOT NULL, report TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL,
        created REAL NOT NULL, last_used REAL NOT NULL, cubin BLOB NOT NULL, host BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS memo_v1 (kind TEXT NOT NULL, subject TEXT NOT NULL, fingerprint TEXT NOT NULL,
        value TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (kind, subject))""",
)
OLD_PUT = "INSERT OR REPLACE INTO artifact_v1 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
OLD_GET = "SELECT name, target, fields, report, digest, cubin, host FROM artifact_v1 WHERE key = ?"
INDEXES = [("artifact_v1_by_name",), ("trial_v1_by_key",)]
OLD_LISTING = "SELECT key, name, created FROM artifact_v1 ORDER BY last_used DESC, created DESC, rowid DESC"


def kernel(number: int) -> Artifact:
    """Return one of the kernels that were put into the old file, or another one of the kind."""
    noise = random.Random(number)
    name, digits = f"cutlass_gemm_{number}", f"{number:064d}"
    fields = {"schema": "1", "kernel": digits, "name": name, "target": "sm_90a", "headers": "1" * 64}
    blobs = noise.randbytes(60), noise.randbytes(30)
    return Artifact(make_key(fields), name, "sm_90a", fields, *blobs, {"registers": 168})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cache that an old PyCUTLASS has left."""
    made = tmp_path / "cache"
    made.mkdir(mode=0o700)
    write_old(made)
    return made


def write_old(directory: Path) -> None:
    connection = sqlite3.connect(directory / "kernels.db")
    connection.execute("PRAGMA auto_vacuum = FULL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(OLD.read_text())
    connection.close()
    (directory / "kernels.db").chmod(0o600)


def ask(directory: Path, question: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(directory / "kernels.db", isolation_level=None, timeout=60)
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def version(directory: Path) -> object:
    return ask(directory, "PRAGMA user_version")[0][0]


def indexes(directory: Path) -> list[tuple[object, ...]]:
    return ask(directory, "SELECT name FROM sqlite_master WHERE type = 'index' AND name NOT LIKE 'sqlite_%'")


def check_all_is_there(cache: KernelCache, count: int = 2) -> None:
    for number in range(count):
        assert cache.get(kernel(number).key) == kernel(number)
        assert cache.find(**kernel(number).fields) == kernel(number)
    assert cache.memo("headers", "/opt/cutlass", "123 456", lambda: "forgotten") == "digest"
    assert len(cache.entries()) == count and cache.verify() == []


def test_the_file_of_an_old_one_is_brought_up_to_date(directory, caplog):
    assert version(directory) == 0
    cache = KernelCache(directory)
    check_all_is_there(cache)
    cache.put(kernel(2))
    check_all_is_there(cache, 3)
    cache.close()
    assert version(directory) == schema.VERSION and indexes(directory) == INDEXES
    assert warnings_in(caplog) == [] and not list(directory.glob("*corrupt*"))


@pytest.mark.parametrize("steps", range(schema.VERSION + 1))
def test_from_every_version(directory, steps, monkeypatch, caplog):
    monkeypatch.setattr(schema, "_STEPS", schema._STEPS[:steps])
    monkeypatch.setattr(schema, "VERSION", steps)
    KernelCache(directory).entries()
    assert version(directory) == steps
    monkeypatch.undo()
    cache = KernelCache(directory)
    check_all_is_there(cache)
    assert version(directory) == schema.VERSION and warnings_in(caplog) == []


def test_a_new_file_has_every_step(tmp_path):
    cache = KernelCache(tmp_path / "cache")
    cache.put(kernel(0))
    cache.close()
    assert version(tmp_path / "cache") == schema.VERSION
    assert indexes(tmp_path / "cache") == INDEXES


def test_an_old_one_goes_on_with_what_a_new_one_has_made(directory):
    """Two environments share a cache: what each writes the other finds."""
    old = sqlite3.connect(directory / "kernels.db", isolation_level=None)  # open all the while
    cache = KernelCache(directory)
    check_all_is_there(cache)
    cache.put(kernel(2))
    assert old.execute(OLD_GET, [kernel(2).key]).fetchone()[:2] == ("cutlass_gemm_2", "sm_90a")
    copied = old.execute("SELECT * FROM artifact_v1 WHERE key = ?", [kernel(2).key]).fetchone()
    again = sqlite3.connect(directory / "kernels.db", isolation_level=None)
    for statement in OLD_TABLES:
        again.execute(statement)
    again.execute("DELETE FROM artifact_v1 WHERE key = ?", [kernel(2).key])
    assert cache.get(kernel(2).key) is None
    again.execute(OLD_PUT, copied)
    assert len(again.execute(OLD_LISTING).fetchall()) == 3
    check_all_is_there(cache, 3)
    old.close()
    again.close()


def test_a_file_of_a_newer_one_is_used_as_it_is(directory, caplog):
    KernelCache(directory).entries()
    for statement in ("CREATE TABLE measurement_v1 (key TEXT)", f"PRAGMA user_version = {schema.VERSION + 3}"):
        ask(directory, statement)
    cache = KernelCache(directory)
    cache.put(kernel(2))
    check_all_is_there(cache, 3)
    cache.close()
    assert version(directory) == schema.VERSION + 3 and warnings_in(caplog) == []
    assert ask(directory, "SELECT count(*) FROM measurement_v1") == [(0,)]


@pytest.mark.parametrize("number", [-1, 2**31 - 1])
def test_a_number_that_nobody_wrote_costs_at_most_the_cache(tmp_path, number, caplog):
    """Damage of those four bytes alone: with the tables all is well, without them another file begins."""
    (tmp_path / "cache").mkdir(mode=0o700)
    ask(tmp_path / "cache", f"PRAGMA user_version = {number}")
    cache = KernelCache(tmp_path / "cache")
    cache.put(kernel(0))
    assert KernelCache(tmp_path / "cache").get(kernel(0).key) == kernel(0)
    assert version(tmp_path / "cache") == schema.VERSION


def test_what_is_read_only_is_read_without_the_steps(directory):
    store = Store.read_only(directory / "kernels.db")
    assert store.get(kernel(0).key) == kernel(0) and store.find(kernel(1).fields) == kernel(1)
    store.close()
    assert version(directory) == 0


def test_names_are_looked_up_by_the_index(directory):
    KernelCache(directory).entries()
    asked: list[str] = []
    store = Store.in_file(directory / "kernels.db")
    run = store._run

    def listened(statement: str, *values: object) -> list[object]:
        asked.append(statement)
        return run(statement, *values)

    store._run = listened  # type: ignore[method-assign]
    store.find({"name": "cutlass_gemm_1", "target": "sm_90a", "kernel": "x"})
    [(*_, plan)] = run(f"EXPLAIN QUERY PLAN {asked[0]}", *["x"] * asked[0].count("?"))[:1]
    assert "USING INDEX artifact_v1_by_name (name=? AND target=?)" in plan
    store.close()


# Others at the same time, and deaths


def test_a_step_that_fails_leaves_nothing_of_itself(directory, caplog, monkeypatch):
    run = Store._run

    def full(self: Store, statement: str, *values: object) -> list[object]:
        if statement == f"PRAGMA user_version = {schema.VERSION}":
            raise StoreError(sqlite3.OperationalError("database or disk is full"))
        return run(self, statement, *values)

    monkeypatch.setattr(Store, "_run", full)
    cache = KernelCache(directory)
    check_all_is_there(cache)  # as it is, and read only
    assert cache.info().state == "read-only" and "cannot be written" in warnings_in(caplog)[0]
    cache.close()
    assert version(directory) == schema.VERSION - 1 and indexes(directory) == INDEXES[:-1]
    monkeypatch.undo()
    check_all_is_there(KernelCache(directory))
    assert version(directory) == schema.VERSION


def test_a_process_that_is_killed_at_any_statement_loses_nothing(directory, tmp_path):
    assert process("die_everywhere", directory, tmp_path).wait(60) == 0
    attempts = sorted(tmp_path.glob("attempt*"))
    versions = set()
    assert len(attempts) > 8, "statements of opening an old file"
    for attempt in attempts:
        before = version(attempt)
        versions.add(before)
        assert before in range(schema.VERSION + 1)
        assert indexes(attempt) == INDEXES[: max(before - 1, 0)], "a step and its number come together"
        cache = KernelCache(attempt)
        check_all_is_there(cache)
        cache.close()
        assert version(attempt) == schema.VERSION and not list(attempt.glob("*corrupt*"))
    assert versions == set(range(schema.VERSION + 1)), "there were deaths before, between and behind the steps"


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_many_processes_open_an_old_file_at_once(directory, tmp_path, journal):
    ask(directory, f"PRAGMA journal_mode = {journal}")
    processes = [process("use", directory, number, tmp_path / "start") for number in range(2, 8)]
    time.sleep(0.5)
    (tmp_path / "start").touch()
    assert [each.wait(60) for each in processes] == [0] * len(processes)
    check_all_is_there(KernelCache(directory), 8)
    assert version(directory) == schema.VERSION and not list(directory.glob("*corrupt*"))


def test_an_old_one_writes_while_a_new_one_opens(directory):
    old = sqlite3.connect(directory / "kernels.db", isolation_level=None, check_same_thread=False, timeout=10)
    row = old.execute("SELECT * FROM artifact_v1 LIMIT 1").fetchone()
    stop, failures, written = threading.Event(), [], []

    def write() -> None:
        try:
            while not stop.is_set():
                old.execute(OLD_PUT, row)
                old.execute(OLD_GET, row[:1]).fetchall()
                written.append(1)
                time.sleep(0.001)  # SQLite has no queue: who asks again and again may keep others out
        except sqlite3.Error as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            with_index = KernelCache(directory)
            check_all_is_there(with_index)
            with_index.close()
            for statement in ("DROP INDEX artifact_v1_by_name", "PRAGMA user_version = 0"):
                ask(directory, statement)
    finally:
        stop.set()
        thread.join()
        old.close()
    assert failures == [] and written
    check_all_is_there(KernelCache(directory))


# What was released stays


def test_released_steps_do_not_change():
    """A file that has made a step never makes it again: add another one."""
    texts = [json.dumps([" ".join(statement.split()) for statement in step]) for step in schema._STEPS]
    digests = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
    assert digests[:3] == ["314eabdb538bf0c9", "3132d162c77c7e03", "73a64e4704bd6637"]


# The processes


def process(role: str, directory: Path, *arguments: object) -> subprocess.Popen[bytes]:
    root = str(Path(schema.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, __file__, role, str(directory), *map(str, arguments)]
    return subprocess.Popen(command, env=environment)


def role_die_everywhere(directory: Path, attempts: str) -> None:
    """Open copies of the file in children, each of which dies at another statement, until one of them lives."""
    for number in range(1000):
        attempt = Path(attempts) / f"attempt{number}"
        shutil.copytree(directory, attempt)
        child = os.fork()
        if child == 0:
            die_at(number)
            Store.in_file(attempt / "kernels.db")
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended == 0:
            return
        assert ended == -signal.SIGKILL
    raise AssertionError("it never comes to an end")


def die_at(number: int) -> None:
    """Have this process die when statement `number` is to be executed."""
    run, numbers = Store._run, iter(range(10**6))

    def dying(self: Store, statement: str, *values: object) -> list[object]:
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(self, statement, *values)

    Store._run = dying  # type: ignore[method-assign]


def role_use(directory: Path, number: str, start: str) -> None:
    """Open the file together with others, put a kernel and find those that were there."""
    while not Path(start).exists():
        time.sleep(0.001)
    cache = KernelCache(directory)
    cache.put(kernel(int(number)))
    for each in (0, 1, int(number)):
        assert cache.find(**kernel(each).fields) == kernel(each)
    assert cache.memo("headers", "/opt/cutlass", "123 456", lambda: "forgotten") == "digest"


if __name__ == "__main__":
    {"die_everywhere": role_die_everywhere, "use": role_use}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
