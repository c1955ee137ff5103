"""Where trials are kept: in the cache's file or a named one; damaged, foreign, older, newer and read-only files."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cached import kernel, warnings_in
from measured import H200, PROBLEM, trial

from pycutlass.cache import KernelCache, schema
from pycutlass.cache.store import Store, StoreError
from pycutlass.errors import ArgumentError, CacheError
from pycutlass.trials import Database

OLD = Path(__file__).parent / "stores" / "before_versions.sql"


def ask(file: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


@pytest.fixture
def in_cache(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Path:
    """The cache's database, which the environment names; it does not exist yet."""
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(directory))
    monkeypatch.delenv("PYCUTLASS_DATABASE", raising=False)
    return directory / "kernels.db"


# Which file


def test_trials_are_in_the_caches_file(in_cache: Path) -> None:
    database = Database()
    assert database.path == in_cache and not in_cache.exists()
    assert database.add(trial(1)) == 1
    cache = KernelCache()
    cache.put(kernel(0))
    for each in (Database(), database):
        assert each.best(PROBLEM, H200) == trial(1)
    assert cache.verify() == [] == database.verify() and cache.get(kernel(0).key) == kernel(0)
    cache.prune(0)
    assert Database().best(PROBLEM, H200) == trial(1)
    assert in_cache.stat().st_mode & 0o777 == 0o600


def test_a_variable_names_another_file(in_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "team.db"))
    database = Database()
    database.add(trial(1))
    assert database.path == tmp_path / "team.db" and not in_cache.exists()
    assert Database(tmp_path / "mine.db").best(PROBLEM, H200) is None
    database.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.db", "team.db"]


def test_a_variable_must_be_an_absolute_path(in_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYCUTLASS_DATABASE", "team.db")
    with pytest.raises(CacheError, match=r"team\.db cannot be used: PYCUTLASS_DATABASE must be an absolute path"):
        Database().add(trial(1))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYCUTLASS_DATABASE", "~/team.db")
    assert Database().path == tmp_path / "team.db"
    assert Database("here.db").path == tmp_path / "here.db"  # as `open` takes it


def test_nothing_is_made_to_look(in_cache: Path, tmp_path: Path) -> None:
    for database in (Database(make=False), Database(tmp_path / "x.db", make=False)):
        assert database.best(PROBLEM, H200) is None and database.trials() == [] == database.verify()
        assert database.prune(keep=1) == []
    with pytest.raises(CacheError, match="cannot be written: there is no such file"):
        Database(tmp_path / "x.db", make=False).add(trial(1))
    assert not in_cache.exists() and not (tmp_path / "x.db").exists()


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_a_path_that_no_file_has(path: str) -> None:
    with pytest.raises(ArgumentError, match="path must be a path that the file system can have"):
        Database(path)


def test_a_named_file_wants_a_directory(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path, said in (("no/x.db", "there is no directory .*no: make it first"), ("folder", "that is not a file"),
                       ("pipe", "that is not a file")):  # fmt: skip
        with pytest.raises(CacheError, match=rf"the database {tmp_path}/{path} cannot be used: {said}"):
            Database(tmp_path / path).best(PROBLEM, H200)


def test_a_named_file_may_be_where_others_write(tmp_path: Path) -> None:
    """It holds no code."""
    tmp_path.chmod(0o777)
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    database = Database(tmp_path / "link.db")
    database.add(trial(1))
    assert Database(tmp_path / "real.db").best(PROBLEM, H200) == trial(1)
    assert not list(tmp_path.glob("*lock"))


# Older and newer files


def test_the_file_of_an_older_one_gets_the_tables(in_cache: Path) -> None:
    in_cache.parent.mkdir(mode=0o700)
    connection = sqlite3.connect(in_cache)
    connection.executescript(OLD.read_text())
    connection.close()
    in_cache.chmod(0o600)
    Database().add(trial(1))
    assert Database().best(PROBLEM, H200) == trial(1)
    assert len(KernelCache().entries()) == 2


def test_the_file_of_a_newer_one_is_used_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "trials.db"
    database = Database(file)
    database.add(trial(1))
    database.close()
    for statement in ("CREATE TABLE trial_v2 (x)", f"PRAGMA user_version = {schema.VERSION + 5}"):
        ask(file, statement)
    assert database.best(PROBLEM, H200) == trial(1) and database.add(trial(0)) == 1
    database.close()
    assert ask(file, "PRAGMA user_version") == [(schema.VERSION + 5,)]


def test_a_newer_file_without_these_tables_has_no_trials(tmp_path: Path) -> None:
    """Whoever has dropped them keeps trials elsewhere: nothing is looked up, and nothing is written."""
    file = tmp_path / "trials.db"
    database = Database(file)
    database.add(trial(1))
    database.close()
    for statement in ("DROP TABLE trial_v1", f"PRAGMA user_version = {schema.VERSION + 5}"):
        ask(file, statement)
    assert database.best(PROBLEM, H200) is None and database.trials() == []
    with pytest.raises(CacheError, match="cannot be written"):
        database.add(trial(1))


# Damaged and foreign files


def wreck_header(file: Path) -> None:
    file.write_bytes(b"damaged!" + file.read_bytes()[8:])


def wreck_pages(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))


@pytest.mark.parametrize("wreck", [wreck_header, wreck_pages])
def test_a_damaged_file_of_the_cache_is_set_aside(
    in_cache: Path, wreck: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    database = Database()
    database.add([trial(number) for number in range(50)])
    database.close()
    wreck(in_cache)
    assert database.best(PROBLEM, H200) is None
    assert "was damaged" in warnings_in(caplog)[0] and in_cache.with_name("kernels.db.corrupt-1").exists()
    assert database.add(trial(3)) == 1 and database.best(PROBLEM, H200) == trial(3)


@pytest.mark.parametrize("wreck", [wreck_header, wreck_pages])
def test_a_damaged_file_that_was_named_is_refused(tmp_path: Path, wreck: Callable[[Path], None]) -> None:
    database = Database(tmp_path / "trials.db")
    database.add([trial(number) for number in range(50)])
    database.close()
    wreck(database.path)
    before = database.path.read_bytes()
    for use in (lambda: database.best(PROBLEM, H200), lambda: database.add(trial(1)), database.trials,
                lambda: database.prune(keep=1)):  # fmt: skip
        with pytest.raises(CacheError, match=r"the database .*trials\.db cannot be used: .* damaged or no database"):
            use()
    assert database.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.suffix not in (".db-wal", ".db-shm")] == ["trials.db"]


@pytest.mark.parametrize("content", [b"text " * 1000, b"\0" * 4096, b"SQLite format 3\0" + b"x" * 5000])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(CacheError, match="move it away, or name another file"):
        Database(file).best(PROBLEM, H200)
    assert file.read_bytes() == content


def test_the_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "places.sqlite"
    ask(file, "CREATE TABLE bookmarks (url TEXT)")
    before = file.read_bytes()
    for use in (lambda it: it.best(PROBLEM, H200), lambda it: it.add(trial(1)), lambda it: it.verify()):
        with pytest.raises(CacheError, match="a database of another program, and stays as it is: name another file"):
            use(Database(file))
    assert file.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["places.sqlite"]


def test_tables_of_others_under_our_names_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "trials.db"
    ask(file, "CREATE TABLE trial_v1 (url TEXT)")
    ask(file, f"PRAGMA user_version = {schema.VERSION}")
    with pytest.raises(CacheError, match="cannot be used: no such table"):
        Database(file).best(PROBLEM, H200)


# Damaged rows

DAMAGE = {
    "time": ("time = time / 2", "time must lie between low and high"),
    "times": ("time = 1, low = 1, high = 1", "its content differs from its digest"),
    "no time": ("time = NULL", "time must be a number of microseconds, got None"),
    "infinite": ("high = 9e999", "got inf"),
    "negative": ("time = -1", "got -1.0"),
    "text": ("time = 'fast'", "time must be a number of microseconds, got 'fast'"),
    "bytes": ("candidate = x'00ff'", "candidate must be a mapping"),
    "candidate": ("""candidate = '{"tile":8}'""", "its content differs from its digest"),
    "problem": ("problem = '{'", "problem must be a JSON object"),
    "machine": ("machine = '{}'", "this one lacks"),
    "machine text": ("machine = 5", "machine"),
    "status": ("status = 'ok '", "status must be one of"),
    "date": ("date = 'now'", "date must be a date"),
    "digest": ("digest = 'x'", "its content differs from its digest"),
    "key": ("key = replace(key, 'a', 'b')", "it lies under another key than its own"),
    "surrogate": ("host = CAST(x'ff' AS TEXT)", "its content differs from its digest"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_row_is_never_picked(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    change, said = DAMAGE[name]
    database = Database(tmp_path / "trials.db")
    database.add([trial(1), trial(2)])
    database.close()
    ask(database.path, f"UPDATE trial_v1 SET {change} WHERE digest = ?", trial(1).digest)
    assert database.best(PROBLEM, H200) == trial(2) and database.trials() == [trial(2)]
    assert name == "key" or len(warnings_in(caplog)) == 1  # under another key, it is not even met at first
    [problem] = database.verify()
    assert said in problem and problem.startswith("trial ")
    assert database.add(trial(1)) == (name == "digest")  # heals it
    assert database.best(PROBLEM, H200) == trial(1)
    database.prune(older_than=timedelta(days=99_999))
    assert database.verify() == [] and {*database.trials()} == {trial(1), trial(2)}


def test_damaged_rows_of_another_database_are_not_merged(tmp_path: Path) -> None:
    database, other = Database(tmp_path / "a.db"), Database(tmp_path / "b.db")
    other.add([trial(1), trial(2)])
    ask(other.path, "UPDATE trial_v1 SET time = 1, low = 1 WHERE digest = ?", trial(2).digest)
    assert database.merge(other) == (1, 0)
    assert database.top(PROBLEM, H200, 9) == (trial(1),)


# Where nothing can be written


def make_unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the operating system say what it says to users of files of others; root would be told otherwise."""
    monkeypatch.setattr("pycutlass.cache.disk.os.access", lambda *_, **__: False)


def test_without_a_disk_trials_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PYCUTLASS_DATABASE", raising=False)
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", "relative")
    monkeypatch.chdir(tmp_path)
    database = Database()
    assert database.add([trial(1), trial(2)]) == 2 and database.add(trial(1)) == 0
    assert database.best(PROBLEM, H200) == trial(1) and len(database.trials()) == 2
    with database.claim(PROBLEM, {"tile": 9}, H200) as mine, database.claim(PROBLEM, {"tile": 9}, H200) as other:
        assert (mine, other) == (True, False)
    assert database.prune(keep=1) == [trial(2)]
    assert database.export(tmp_path / "trials.jsonl") == 1
    assert "trials stay in memory" in warnings_in(caplog)[0] and len(warnings_in(caplog)) == 1
    assert "cannot be used" in database.verify()[0]


def test_a_cache_that_cannot_be_written_is_read(
    in_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Database().add([trial(1), trial(3)])
    make_unwritable(monkeypatch)
    database = Database()
    assert database.best(PROBLEM, H200) == trial(1)
    assert database.add(trial(0)) == 1 and database.best(PROBLEM, H200) == trial(0)
    with pytest.raises(CacheError, match="cannot be deleted: this process may not write it"):
        database.prune(keep=1)
    monkeypatch.undo()
    assert "new trials stay in memory" in warnings_in(caplog)[0]
    assert len(Database(in_cache).trials()) == 2


def test_a_named_file_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Database(tmp_path / "trials.db").add(trial(1))
    make_unwritable(monkeypatch)
    database = Database(tmp_path / "trials.db")
    assert database.best(PROBLEM, H200) == trial(1) and database.verify() == []
    for write in (lambda: database.add(trial(2)), lambda: database.merge(tmp_path / "trials.db"),
                  lambda: database.claim(PROBLEM, {}, H200).__enter__()):  # fmt: skip
        with pytest.raises(CacheError, match=r"trials\.db cannot be written: this process may not write it"):
            write()


def test_an_old_cache_that_cannot_be_written_has_no_trials(
    in_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_cache.parent.mkdir(mode=0o700)
    connection = sqlite3.connect(in_cache)
    connection.executescript(OLD.read_text())
    connection.close()
    make_unwritable(monkeypatch)
    database = Database()
    assert database.best(PROBLEM, H200) is None and database.verify() == []
    assert database.add(trial(1)) == 1 and database.best(PROBLEM, H200) == trial(1)
    assert not list(in_cache.parent.glob("*corrupt*"))
    assert len(KernelCache().entries()) == 2


def test_what_fails_in_the_middle_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "trials.db")
    database.add(trial(9))
    run, inserted = Store._run, []

    def full(self: Store, statement: str, *values: object) -> list[object]:
        if statement.startswith("INSERT"):
            inserted.append(1)
            if len(inserted) == 3:
                raise StoreError(sqlite3.OperationalError("database or disk is full"))
        return run(self, statement, *values)

    monkeypatch.setattr(Store, "_run", full)
    with pytest.raises(CacheError, match="cannot be used: database or disk is full"):
        database.add([trial(number) for number in range(5)])
    monkeypatch.undo()
    assert database.trials() == [trial(9)]
    assert database.add([trial(number) for number in range(5)]) == 5
