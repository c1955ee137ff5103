"""Trials and what is asked of them: values that prove themselves, the best candidate, what is kept."""

from __future__ import annotations

import copy
import pickle
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import BEGIN, H200, PROBLEM, trial

from pycutlass.cache.schema import TRIALS as TABLE
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.trials import Database, Machine, Trial
from pycutlass.trials.ranking import ranked, superfluous


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "trials.db")
    yield opened
    opened.close()


def test_a_copy_is_a_database_of_the_same_file(database: Database) -> None:
    database.add(trial())
    for same in (copy.deepcopy(database), pickle.loads(pickle.dumps(database))):
        assert same.path == database.path and same.trials() == database.trials()
        same.close()


# Values


def test_a_problem_is_the_same_text_whenever_it_means_the_same() -> None:
    texts = ({"n": 8, "m": [1, 2]}, {"m": (1, 2), "n": 8}, '{"n": 8,  "m": [1, 2]}', '{"m":[1,2],"n":8}')
    assert {trial(problem=text).problem for text in texts} == {'{"m":[1,2],"n":8}'}
    assert len({trial(problem=text).key for text in texts}) == 1
    assert trial(problem={"name": "é"}).problem == '{"name":"\\u00e9"}'


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("[1]", "it is list, not an object"),
        ("{", "Expecting"),
        ('{"m": NaN}', "JSON has no NaN"),
        ('{"m": -Infinity}', "JSON has no -Infinity"),
        ('{"m": 1e999}', "not JSON compliant"),
        ('{"m": 1, "m": 2}', "it has 'm' twice"),
        ({1: "a", "1": "b"}, "it has '1' twice"),
        ({"m": float("inf")}, "JSON has no Infinity"),
        ({"m": object()}, "object is not JSON serializable"),
        ('{"m":' + "[" * 30_000 + "]" * 30_000 + "}", "nested too deeply"),
        ({"m": "x" * 70_000}, "at most 65,536 characters"),
        ({"m": {1, 2}}, "set is not JSON serializable"),
        (7, "problem must be a mapping, or the text of a JSON object; got 7"),
        (None, "got None"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_problem_is_refused(database: Database, problem: Any, said: str) -> None:
    for ask in (lambda: trial(problem=problem), lambda: database.best(problem, H200)):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
            ask()
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"time": float("nan")}, "time must be a positive number of microseconds, got nan"),
        ({"time": -1.0}, "got -1.0"),
        ({"time": 0}, "got 0.0"),
        ({"high": float("inf")}, "high must be a positive number of microseconds, got inf"),
        ({"time": True}, "time must be a number of microseconds, got True"),
        ({"time": "9"}, "time must be a number of microseconds, got '9'"),
        ({"low": None}, "low must be a number of microseconds, got None"),
        ({"low": 11.0}, "time must lie between low and high, the 10th and 90th percentile; got low 11.0, time 10.0"),
        ({"rounds": 0}, "rounds must be 1 to 1,000,000,000, got 0"),
        ({"rounds": 1.5}, "rounds must be an integer, got 1.5"),
        ({"condition": "hot"}, "'cold, zeros', 'warm, zeros'; got 'hot'"),
        ({"condition": 1}, "condition must be one of 'cold', 'warm', 'cold, uniform', "),
        ({"status": "okay"}, "status must be one of 'ok', 'wrong', 'failed', 'timeout'; got 'okay'"),
        ({"reason": "slow"}, "a trial of status 'ok' has no reason: leave it out"),
        ({"reason": 5}, "reason must be text, got 5"),
        ({"host": ""}, "host must be one line of 1 to 300 characters, got ''"),
        ({"host": "a\nb"}, "host must be one line"),
        ({"date": "2026-11-25"}, "date must be a datetime with a time zone, got '2026-11-25'"),
        ({"date": datetime(2026, 11, 25)}, "date must have a time zone"),
        ({"date": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))}, "is none in UTC"),
        ({"machine": "H200"}, "machine must be a pycutlass.trials.Machine, got 'H200'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_trial_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        trial(**fields)
    assert said in str(caught.value)


def test_a_trial_without_a_time_has_a_reason_and_nothing_else() -> None:
    failed = trial(status="failed", reason="an illegal address\n" * 500)
    assert failed.time is None and len(failed.reason) == 2000
    for reason in ("\x1b[31mred\ttext\r\n\ud800", "\\x1b[31mred\\ttext\\r\n\\ud800"):  # nothing that a terminal obeys
        assert trial(status="failed", reason=reason).reason == "\\x1b[31mred\\ttext\\r\n\\ud800"
    with pytest.raises(ArgumentError, match="a trial of status 'wrong' needs a reason, which says what was wrong"):
        trial(status="wrong", reason="")
    with pytest.raises(ArgumentError, match="a trial of status 'timeout' has no times: leave out low, rounds"):
        trial(status="timeout", low=1.0, rounds=3)


def test_what_is_no_machine_is_refused() -> None:
    facts = {"gpu": "A", "sm_count": 1, "compute_capability": 90, "cutlass": "4", "compiler": "nvcc", "pycutlass": "0"}
    assert Machine(**facts).power_limit is None
    for wrong in ({"gpu": " "}, {"gpu": 5}, {"sm_count": 0}, {"sm_count": 1.5}, {"compute_capability": 99_999},
                  {"power_limit": -1}, {"power_limit": float("nan")}, {"power_limit": True}, {"compiler": "x" * 301},
                  {"pycutlass": "a\x00b"}, {"cutlass": "\ud800"}):  # fmt: skip
        with pytest.raises((ArgumentError, ArgumentTypeError), match=next(iter(wrong))):
            Machine(**{**facts, **wrong})
    with pytest.raises(ArgumentTypeError, match="has no keyword power; it has"):
        Machine(**facts, power=700)


def test_trials_are_values() -> None:
    first = trial(3, host="a")
    assert first == trial(3, host="a") and hash(first) == hash(trial(3, host="a"))
    for same in (copy.deepcopy(first), pickle.loads(pickle.dumps(first)), replace(first)):
        assert same == first and same.digest == first.digest and same.key == first.key
    others = [replace(first, time=first.high, low=1.0), replace(first, host="b"), replace(first, condition="warm"),
              replace(first, date=BEGIN + timedelta(microseconds=1)), replace(first, candidate={"tile": 4}),
              replace(first, machine=replace(H200, power_limit=600)), trial(3, status="wrong")]  # fmt: skip
    assert len({each.digest for each in (first, *others)}) == len(others) + 1
    assert first.key == others[0].key != others[5].key
    with pytest.raises(AttributeError):
        first.time = 1.0  # type: ignore[misc]
    here = replace(first, date=datetime(2026, 11, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert here.date == BEGIN and here.digest == first.digest


def test_a_trial_knows_its_host_and_the_time() -> None:
    before = datetime.now(UTC)
    made = Trial(PROBLEM, {"tile": 1}, H200, time=1, low=1, high=1, rounds=1)
    assert before <= made.date <= datetime.now(UTC) and made.host


# The best


def test_the_best_is_the_fastest_of_what_works(database: Database) -> None:
    assert database.best(PROBLEM, H200) is None and database.top(PROBLEM, H200, 3) == ()
    assert database.add([trial(5), trial(2), trial(9), trial(1, status="failed")]) == 4
    assert database.best(PROBLEM, H200) == trial(2)
    assert database.top(PROBLEM, H200, 2) == (trial(2), trial(5))
    assert database.top(PROBLEM, H200, 99) == (trial(2), trial(5), trial(9))
    assert database.add(trial(0)) == 1
    assert database.best(PROBLEM, H200) == trial(0)


def test_the_best_is_of_one_problem_one_machine_and_one_condition(database: Database) -> None:
    other = '{"m":1}'
    database.add([trial(5), trial(4, condition="warm"), trial(3, problem=other)])
    machines = [replace(H200, **{name: value}) for name, value in (("gpu", "NVIDIA H100"), ("sm_count", 114), (
        "power_limit", None), ("cutlass", "4.3.0"), ("compiler", "nvrtc 13.0"), ("pycutlass", "0.2.0"))]  # fmt: skip
    database.add([trial(number, 1.0, machine=machine) for number, machine in enumerate(machines)])
    assert database.best(PROBLEM, H200) == trial(5)
    assert database.best(PROBLEM, H200, "warm") == trial(4, condition="warm")
    database.add([trial(1, 0.5, condition="cold, zeros"), trial(2, 0.7, condition="warm, zeros")])
    assert database.best(PROBLEM, H200) == trial(5) and database.best(PROBLEM, H200, "cold, integers") is None
    assert database.best(PROBLEM, H200, "cold, zeros") == trial(1, 0.5, condition="cold, zeros")
    assert database.best(other, H200) == trial(3, problem=other)
    assert database.best(other, H200, "warm") is None
    for number, machine in enumerate(machines):
        assert database.best(PROBLEM, machine) == trial(number, 1.0, machine=machine)


def test_the_latest_trial_of_a_candidate_counts(database: Database) -> None:
    lucky, again, other = trial(1, 5.0, day=1), trial(1, 9.0, day=2), trial(2, 8.0)
    database.add([again, lucky, other])  # in whatever order they come
    assert database.top(PROBLEM, H200, 5) == (other, again)


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_a_candidate_that_fails_is_left_out_until_it_works_again(database: Database, status: str) -> None:
    database.add([trial(1, day=1), trial(2, day=1), trial(1, day=2, status=status, condition="warm")])
    assert database.best(PROBLEM, H200) == trial(2, day=1)
    database.add(trial(1, day=3))
    assert database.best(PROBLEM, H200) == trial(1, day=3)


def test_a_candidate_that_was_wrong_is_never_picked(database: Database) -> None:
    database.add([trial(1, day=1), trial(2), trial(1, day=2, status="wrong", condition="warm"), trial(1, day=3)])
    for _ in range(2):
        assert database.top(PROBLEM, H200, 9) == (trial(2),)
        database.prune(keep=5)


def test_at_one_moment_the_failure_counts(database: Database) -> None:
    database.add([trial(1), trial(1, status="failed")])
    assert database.best(PROBLEM, H200) is None


def test_a_trial_that_is_here_already_is_no_new_one(database: Database) -> None:
    assert database.add([trial(1), trial(1), trial(2)]) == 2
    assert database.add(trial(1)) == 0
    assert database.trials() == sorted([trial(1), trial(2)], key=lambda each: each.digest)


def test_what_is_no_trial_is_not_added(database: Database) -> None:
    for wrong in (5, None, "text", [trial(1), 5], {"time": 1}):
        with pytest.raises(ArgumentTypeError, match="trials must be a Trial or several, got"):
            database.add(wrong)  # type: ignore[arg-type]
    assert database.trials() == []


def test_trials_are_found_by_what_they_are(database: Database) -> None:
    h100 = replace(H200, gpu="NVIDIA H100")
    every = [trial(1, day=1), trial(2, day=2, machine=h100), trial(1, day=3, status="wrong"),
             trial(4, day=4, condition="warm"), trial(1, day=5, problem={"m": 1})]  # fmt: skip
    database.add(every)
    assert database.trials() == every
    assert database.trials(gpu="NVIDIA H100") == every[1:2] == database.trials(machine=h100)
    assert database.trials(status="wrong") == every[2:3]
    assert database.trials(condition="warm") == every[3:4]
    assert database.trials(problem={"m": 1}) == every[4:]
    assert database.trials(candidate='{"tile": 1}') == [every[0], every[2], every[4]]
    assert database.trials(candidate={"tile": 1}, status="ok", problem=PROBLEM) == every[:1]
    assert database.trials(key=every[1].key[:6]) == every[1:2]
    assert database.trials(key="0" * 64) == [] == database.trials(gpu="H")
    for wrong in ({"key": ""}, {"key": "xyz"}, {"key": 5}, {"status": "good"}, {"gpu": 5}, {"machine": "H100"},
                  {"condition": "hot"}, {"problem": "x"}, {"candidate": 5}):  # fmt: skip
        with pytest.raises(PyCutlassError, match=next(iter(wrong))):
            database.trials(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [lambda it: it.top(PROBLEM, H200, 0), lambda it: it.top(PROBLEM, H200, 1.5),
                                  lambda it: it.best(PROBLEM, "H200"), lambda it: it.best(PROBLEM, H200, "hot"),
                                  lambda it: it.best(PROBLEM), lambda it: it.best(PROBLEM, H200, conditoin="warm"),
                                  lambda it: it.claim(PROBLEM, {}, H200, seconds=0),
                                  lambda it: it.claim(PROBLEM, {}, H200, seconds=float("nan")),
                                  lambda it: it.claim(PROBLEM, {}, H200, seconds=1e6), lambda it: it.claim(PROBLEM, {}),
                                  lambda it: it.prune(), lambda it: it.prune(keep=0), lambda it: it.prune(older_than=5),
                                  lambda it: it.prune(keep=5, older_than=timedelta(days=999_999_999)),
                                  lambda it: it.stale(cutlass=4), lambda it: it.export(5), lambda it: it.merge(5),
                                  lambda it: it.import_("a\0b"), lambda it: Database(5)])  # fmt: skip
def test_calls_that_cannot_be_made_are_refused(database: Database, call: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        call(database)


# Looking up


def test_a_lookup_takes_microseconds(database: Database) -> None:
    database.add([trial(number) for number in range(100)])
    database.best(PROBLEM, H200)
    rounds, best = 1000, float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(rounds):
            database.best(PROBLEM, H200)
        best = min(best, (time.perf_counter() - begin) / rounds)
    assert best < 20e-6  # usually below 1


@pytest.mark.parametrize("damage", ['{"epilogue_name":', '[{"epilogue_name":1}]', b"\xff"])
def test_a_damaged_problem_hides_no_other(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "trials.db"
    with closing(Database(path)) as made:
        made.add([trial(problem={"m": m, "epilogue_name": "f"}) for m in (1, 2)])
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"UPDATE {TABLE} SET problem = ? WHERE rowid = 1", (damage,))
        file.commit()
    with closing(Database(path)) as again:
        for m in (1, 2):
            assert len(again.trials(problem={"m": m, "epilogue_name": "g"})) <= 1
        assert len(again.trials()) == 1


def test_a_lookup_asks_the_database_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.add(trial(1))
    problems = (PROBLEM, {"m": 4096, "n": 4096, "k": 512, "types": "f16,f16,f32,f16"})
    for problem in problems:
        assert database.best(problem, H200) == trial(1)
    asked: list[str] = []
    monkeypatch.setattr("pycutlass.trials.rows.select", lambda *_, **__: asked.append("rows") or [])
    monkeypatch.setattr("pycutlass.trials.lookup.canonical", lambda *_: asked.append("text") or PROBLEM)
    monkeypatch.setattr("pycutlass.trials.lookup.time.monotonic", lambda: 0.0)
    assert database.best(PROBLEM, H200) == trial(1) and asked == []


def test_what_another_connection_adds_is_seen(database: Database, tmp_path: Path) -> None:
    other = Database(tmp_path / "trials.db")
    for number in (9, 5, 1):
        assert database.best(PROBLEM, H200) == (None if number == 9 else trial({5: 9, 1: 5}[number]))
        other.add(trial(number))
        time.sleep(0.11)
        assert database.best(PROBLEM, H200) == trial(number)
    other.remove(other.trials())
    other.close()
    time.sleep(0.11)
    assert database.best(PROBLEM, H200) is None


def test_a_file_in_the_place_of_another_is_seen(database: Database, tmp_path: Path) -> None:
    database.add(trial(1))
    assert database.best(PROBLEM, H200) == trial(1)
    for companion in ("", "-wal", "-shm"):
        (tmp_path / f"trials.db{companion}").rename(tmp_path / f"old.db{companion}")
    time.sleep(0.11)
    assert database.best(PROBLEM, H200) is None


def test_many_problems_are_remembered_but_not_all(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycutlass.trials.lookup._MOST", 3)
    database.add([trial(number, problem={"m": number}) for number in range(10)])
    for number in [*range(10), *range(10)]:
        assert database.best({"m": number}, H200) == trial(number, problem={"m": number})
        assert len(database._lookup._known) <= 3


# What is kept


def test_prune_keeps_the_best_and_the_wrong(database: Database) -> None:
    cold = [trial(number, day=1) for number in range(6)]
    earlier, warm = trial(0, 50.0), [trial(number, condition="warm") for number in range(3)]
    wrong, failed = trial(7, status="wrong"), trial(8, status="failed")
    elsewhere = trial(9, problem={"m": 1})
    zeros = [trial(number, condition="cold, zeros") for number in range(3)]
    every = [*cold, earlier, *warm, *zeros, wrong, failed, elsewhere]
    database.add(every)
    kept = [*cold[:2], *warm[:2], *zeros[:2], wrong, elsewhere]
    shown = database.prune(keep=2, dry_run=True)
    assert len(database.trials()) == len(every)
    gone = database.prune(keep=2)
    assert {*gone} == {*shown} == {*every} - {*kept}
    assert {*database.trials()} == {*kept}
    assert database.top(PROBLEM, H200, 9) == tuple(cold[:2])
    assert database.prune(keep=2) == []


def test_prune_deletes_what_is_old(database: Database) -> None:
    now = datetime.now(UTC)
    old, new = trial(1, date=now - timedelta(days=91)), trial(2, date=now - timedelta(days=89))
    wrong_needed, still_there = trial(3, status="wrong", date=now - timedelta(days=99)), trial(3, date=now)
    wrong_alone = trial(4, status="wrong", date=now - timedelta(days=99))
    database.add([old, new, wrong_needed, still_there, wrong_alone])
    assert {*database.prune(older_than=timedelta(days=90))} == {old, wrong_alone}
    assert database.top(PROBLEM, H200, 9) == (new,)


def test_remove_and_stale(database: Database) -> None:
    newer = replace(H200, pycutlass="0.2.0")
    database.add([trial(1), trial(2), trial(3, machine=newer)])
    here = {"cutlass": "4.2.0", "compiler": "nvcc 13.0.88", "pycutlass": "0.2.0"}
    assert {*database.stale(**here)} == {trial(1), trial(2)}
    assert database.stale() == [] == database.stale(cutlass="4.2.0")
    assert len(database.stale(compiler="nvcc 13.1")) == 3
    assert database.remove([trial(1), trial(7)]) == [trial(1)]
    assert database.remove(trial(1)) == []
    assert {*database.trials()} == {trial(2), trial(3, machine=newer)}


numbers = st.integers(0, 3)
TRIALS = st.lists(
    st.builds(
        lambda number, day, status, condition, time: trial(
            number, time if status == "ok" else None, day=day, status=status, condition=condition
        ),
        numbers, numbers, st.sampled_from(["ok", "ok", "ok", "wrong", "failed"]), st.sampled_from(["cold", "warm"]),
        st.sampled_from([1.0, 2.0, 3.0]),
    ),
    max_size=12,
)  # fmt: skip


@given(TRIALS, st.randoms())
def test_ranking_does_not_depend_on_the_order(trials: list[Trial], noise: random.Random) -> None:
    mixed = trials.copy()
    noise.shuffle(mixed)
    for condition in ("cold", "warm"):
        found = ranked(trials, condition)
        assert ranked(mixed, condition) == found
        assert [each.time for each in found] == sorted(each.time for each in found)  # type: ignore[type-var]
        assert {each.candidate for each in found}.isdisjoint(t.candidate for t in trials if t.status == "wrong")
        assert all(each.status == "ok" and each.condition == condition for each in found)


@given(TRIALS, st.integers(1, 4), st.one_of(st.none(), numbers))
def test_pruning_never_makes_a_pick_of_what_was_none(trials: list[Trial], most: int, day: int | None) -> None:
    since = None if day is None else BEGIN + timedelta(days=day)
    going = superfluous(trials, most, since)
    left = [each for each in trials if each.digest not in going]
    for condition in ("cold", "warm"):
        before, after = ranked(trials, condition), ranked(left, condition)
        assert {*after} <= {*before}
        if since is None:
            assert after == before[:most]


def test_a_database_without_trials_is_empty(tmp_path):
    database = Database(tmp_path / "trials.db")
    assert database.is_empty and Database(tmp_path / "none.db", make=False).is_empty
    database.add(trial(0))
    assert not database.is_empty and not Database(tmp_path / "trials.db", make=False).is_empty
