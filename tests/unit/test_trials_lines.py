"""Trials carried to other machines: what is written is what is read, and what is no trial is refused by its line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import H200, PROBLEM, trial

from pycutlass.errors import CacheError
from pycutlass.trials import Database, Trial
from pycutlass.trials.lines import as_json, read_lines, write_lines

EVERY = [trial(1), trial(2, 1 / 3, condition="warm"), trial(3, status="wrong", reason='"NaN" at (0, 0)\nin D'),
         trial(4, machine=replace(H200, power_limit=None)), trial(5, problem={"m": [1, 2.5], "é": None})]  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "trials.db")
    yield opened
    opened.close()


def line_of(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_what_is_exported_is_imported(database: Database, tmp_path: Path) -> None:
    file, there = tmp_path / "trials.jsonl", Database(tmp_path / "there.db")
    database.add(EVERY)
    assert database.export(file) == 5
    assert there.import_(file) == (5, 0) and there.import_(file) == (0, 5)
    assert {*there.trials()} == {*EVERY} and there.verify() == []
    assert there.best(PROBLEM, H200) == trial(1)
    there.export(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()
    there.close()


def test_a_line_says_what_it_means(tmp_path: Path) -> None:
    write_lines(tmp_path / "one", [trial(1)])
    assert json.loads((tmp_path / "one").read_text()) == {
        "schema": 1, "problem": {"k": 512, "m": 4096, "n": 4096, "types": "f16,f16,f32,f16"}, "candidate": {"tile": 1},
        "machine": {"gpu": "NVIDIA H200", "sm_count": 132, "compute_capability": 90, "power_limit": 700.0,
                    "cutlass": "4.2.0", "compiler": "nvcc 13.0.88", "pycutlass": "0.1.0"},
        "condition": "cold", "status": "ok", "reason": "", "time": 11.0, "low": 11.0, "high": 11.0, "rounds": 20,
        "host": "h", "date": "2026-11-01T00:00:00.000000+00:00", "digest": trial(1).digest,
    }  # fmt: skip


def test_some_are_exported(database: Database, tmp_path: Path) -> None:
    database.add(EVERY)
    assert database.export(tmp_path / "some", database.trials(status="wrong")) == 1
    assert list(read_lines(tmp_path / "some")) == EVERY[2:3]
    assert database.export(tmp_path / "none", []) == 0 and (tmp_path / "none").read_bytes() == b""


def test_files_can_be_joined_and_have_blank_lines(database: Database, tmp_path: Path) -> None:
    write_lines(tmp_path / "a", EVERY[:3])
    write_lines(tmp_path / "b", EVERY[2:])
    joined = tmp_path / "joined"
    joined.write_bytes((tmp_path / "a").read_bytes() + b"\n \n" + (tmp_path / "b").read_bytes().rstrip(b"\n"))
    assert database.import_(joined) == (5, 0)


times = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
texts = st.text(st.characters(codec="utf-8"), max_size=5)
values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                      | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
                      max_leaves=5)  # fmt: skip


@given(st.dictionaries(texts, values, max_size=3), st.tuples(times, times, times), texts)
def test_any_trial_survives(problem: dict[str, Any], spread: tuple[float, ...], reason: str) -> None:
    low, time, high = sorted(spread)
    for each in (trial(1, time, low=low, high=high, problem=problem), trial(2, status="failed", reason=f"x{reason}")):
        fields = json.loads(json.dumps(as_json(each)))
        assert fields.pop("digest") == each.digest
        again = trial(problem=fields["problem"], candidate=fields["candidate"], status=each.status, reason=each.reason)
        assert again.problem == each.problem and fields["time"] == each.time


def changed(**fields: Any) -> Callable[[dict[str, Any]], bytes]:
    return lambda line: line_of({**line, **fields})


def rewritten(**fields: Any) -> Callable[[dict[str, Any]], bytes]:
    """Return what changes a line, digest included: no message says that it was changed, but what is wrong with it."""

    def rewrite(line: dict[str, Any]) -> bytes:
        return line_of({**line, **fields, "digest": "0" * 64})

    return rewrite


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], bytes], str]] = {
    "bad JSON": (lambda line: line_of(line)[:-1], "Expecting"),
    "empty object": (lambda line: b"{}", "its schema is None, and this PyCUTLASS reads 1"),
    "list": (lambda line: b"[1]", "it is list, not an object"),
    "number": (lambda line: b"5", "it is int, not an object"),
    "no UTF-8": (lambda line: b'{"schema": "\xff"}', "can't decode"),
    "UTF-16": (lambda line: line_of(line).decode().encode("utf-16"), "can't decode"),
    "deep": (lambda line: b'{"a":' + b"[" * 60_000 + b"]" * 60_000 + b"}", "nested too deeply"),
    "twice": (lambda line: line_of(line)[:-1] + b', "time": 1.0}', "it has 'time' twice"),
    "huge": (lambda line: line_of({**line, "reason": "x" * 300_000}), "it has more than 262,144 bytes"),
    "huge number": (lambda line: line_of(line).replace(b"11.0", b"9" * 5000, 1), "integer"),
    "endless number": (lambda line: line_of(line).replace(b"11.0", b"1e999", 1), "got inf"),
    "other schema": (changed(schema=2), "its schema is 2, and this PyCUTLASS reads 1"),
    "schema true": (changed(schema=True), "its schema is True"),
    "schema text": (changed(schema="1"), "its schema is '1'"),
    "NaN": (changed(time=float("nan")), "JSON has no NaN"),
    "infinite": (changed(high=float("inf")), "JSON has no Infinity"),
    "negative": (rewritten(time=-11.0, low=-11.0), "time must be a positive number of microseconds, got -11.0"),
    "zero": (rewritten(time=0), "time must be a positive number of microseconds, got 0.0"),
    "true": (rewritten(time=True), "time must be a number of microseconds, got True"),
    "text as time": (rewritten(time="11.0"), "time must be a number of microseconds, got '11.0'"),
    "no time": (rewritten(time=None), "time must be a number of microseconds, got None"),
    "spread": (rewritten(low=12.0), "time must lie between low and high"),
    "rounds": (rewritten(rounds=2.5), "rounds must be an integer, got 2.5"),
    "status": (rewritten(status="fine"), "status must be one of"),
    "status list": (rewritten(status=["ok"]), "status must be one of"),
    "condition": (rewritten(condition="lukewarm"), "'cold, zeros', 'warm, zeros'; got 'lukewarm'. Did you mean warm?"),
    "date": (rewritten(date="yesterday"), "date must be a date such as 2026-11-25T08:00:00+00:00, got 'yesterday'"),
    "date number": (rewritten(date=1764057600), "date must be text such as"),
    "date without zone": (rewritten(date="2026-11-25T08:00:00"), "date must have a time zone"),
    "date before time": (rewritten(date="0001-01-01T00:00:00+05:00"), "is none in UTC"),
    "host": (rewritten(host="\x1b[31m"), "host must be one line"),
    "surrogate": (rewritten(host="\ud800"), "host must be one line"),
    "problem text": (rewritten(problem=PROBLEM), "problem must be a JSON object"),
    "problem": (rewritten(problem=None), "problem must be a JSON object, got None"),
    "machine": (rewritten(machine={"gpu": "A"}), "this one lacks compiler, compute_capability, cutlass, power_limit"),
    "machine more": (rewritten(machine={**json.loads(H200.text), "x": 1}), "and nothing else; got ['x']"),
    "machine number": (rewritten(machine=5), "machine must be a JSON object, got 5"),
    "sm_count": (rewritten(machine={**json.loads(H200.text), "sm_count": "132"}), "sm_count must be an integer"),
    "unknown": (rewritten(extra=1), "and nothing else; got ['extra']"),
    "missing": (lambda line: line_of({k: v for k, v in line.items() if k != "host"}), "this one lacks host"),
    "changed": (changed(time=10.5, low=10.0), "it was changed: its digest is"),
    "digest": (changed(digest=None), "the line says None"),
    "other machine": (changed(machine={**json.loads(H200.text), "sm_count": 114}), "it was changed"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", HOSTILE)
@pytest.mark.parametrize("before", [0, 2])
def test_a_hostile_line_is_refused_with_all_of_its_file(
    database: Database, tmp_path: Path, wrong: str, before: int
) -> None:
    make, said = HOSTILE[wrong]
    database.add(trial(9))
    good = [line_of(as_json(each)) for each in EVERY[:before]]
    file = tmp_path / "trials.jsonl"
    file.write_bytes(b"\n".join([*good, make(as_json(trial(1))), line_of(as_json(trial(7)))]))
    with pytest.raises(CacheError) as caught:
        database.import_(file)
    message = str(caught.value)
    assert message.startswith(f"line {before + 1} of {file} is no trial, and nothing of the file was taken in: ")
    assert said in message and len(message) < 1500 and "\x1b" not in message
    assert database.trials() == [trial(9)] and database.verify() == []
    assert database.import_(written(tmp_path / "good", EVERY)) == (5, 0)  # nothing is left of the other one


def written(path: Path, trials: list[Trial]) -> Path:
    write_lines(path, trials)
    return path


def test_what_is_no_file_is_not_read(database: Database, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "it is not a file"), ("missing", "No such file"), (".", "s a directory|not a file")):
        with pytest.raises(CacheError, match=said):
            database.import_(tmp_path / name)
    with pytest.raises(CacheError, match=r"line 1 of .* is no trial"):
        database.import_(written_database(tmp_path))


def written_database(tmp_path: Path) -> Path:
    other = Database(tmp_path / "other.db")
    other.add(trial(1))
    other.close()
    return other.path


def test_a_file_that_cannot_be_written_is_named(database: Database, tmp_path: Path) -> None:
    database.add(trial(1))
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for path, said in ((tmp_path / "no" / "x", "there is no directory .*: make it first"), (tmp_path, "a directory"),
                       (tmp_path / "link", "that is a link")):  # fmt: skip
        with pytest.raises(CacheError, match=said):
            database.export(path)
    assert sorted(each.name for each in tmp_path.iterdir() if "export" in each.name) == []


def test_the_database_itself_is_neither_exported_to_nor_imported(database: Database, tmp_path: Path) -> None:
    database.add(trial(1))
    (tmp_path / "same").symlink_to(database.path)
    for path in (database.path, tmp_path / "same", f"{tmp_path}/../{tmp_path.name}/trials.db"):
        for action in (database.export, database.import_):
            with pytest.raises(CacheError, match="is the database itself: name another file"):
                action(path)
    assert database.trials() == [trial(1)]


def test_an_export_that_fails_leaves_the_old_file(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "trials.jsonl", EVERY)
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pycutlass.cache.files.os.fsync", full)
    database.add(trial(1))
    with pytest.raises(CacheError, match=r"the file of trials .* cannot be written: No space left on device"):
        database.export(file)
    assert file.read_bytes() == before and len(list(tmp_path.glob(".pycutlass*"))) == 0


# Merging


def test_merge_keeps_the_best_of_both(database: Database, tmp_path: Path) -> None:
    other = Database(tmp_path / "other.db")
    database.add([trial(3), trial(5), trial(8, problem={"m": 1})])
    other.add([trial(5), trial(4), trial(7, problem={"m": 1}), trial(3, day=1, status="wrong"), *EVERY[3:]])
    assert database.merge(other) == (5, 1)
    assert database.top(PROBLEM, H200, 9) == (trial(4), trial(5))
    assert database.best({"m": 1}, H200) == trial(7, problem={"m": 1})
    assert len(other.trials()) == 6
    other.close()
    assert database.merge(tmp_path / "other.db") == (0, 6) == database.merge(f"{tmp_path}/other.db")
    assert database.merge(database) == (0, 8)
    assert database.verify() == []


def test_merge_wants_a_database_that_is_there(database: Database, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"there is no database .*missing\.db"):
        database.merge(tmp_path / "missing.db")
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "text").write_text("no database, but longer than nothing at all" * 50)
    with pytest.raises(CacheError, match="file is not a database"):
        database.merge(tmp_path / "text")
