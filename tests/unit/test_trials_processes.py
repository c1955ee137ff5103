"""Trials among processes: many writers, deaths, claims, forks.

Run as a program, this file is one of those processes: ``python test_trials_processes.py ROLE FILE ARGUMENTS...``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from measured import H200, PROBLEM, trial

from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.trials import Database, claims
from pycutlass.trials.claims import _here, _is_gone, _process

PATIENCE = 60.0  # seconds; all of these processes end in a few


# What the processes do


def role_write(file: Path, first: str, log: str) -> None:
    """Add trials for ever, and write down of each that it is kept."""
    database, number = Database(file), int(first)
    kept = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        database.add(trial(number))
        os.write(kept, f"{number}\n".encode())
        number += 1


def role_tune(file: Path, log: str, start: str) -> None:
    """Measure what nobody else has measured or measures, and write down what was."""
    database = Database(file)
    Path(f"{log}-ready-{os.getpid()}").touch()
    wait_for(Path(start))
    with Path(log).open("a") as measured:
        for number in range(40):
            with database.claim(PROBLEM, {"tile": number}, H200) as mine:
                if mine:
                    measured.write(f"{number} {os.getpid()}\n")
                    measured.flush()
                    time.sleep(0.002)
                    database.add(trial(number))


def role_hold(file: Path) -> None:
    """Claim a candidate and never come back."""
    with Database(file).claim(PROBLEM, {"tile": 0}, H200) as mine:
        print(mine, flush=True)
        time.sleep(PATIENCE)


def role_fork_inside(file: Path) -> None:
    """Fork while a candidate is claimed: the child ends the context as well, and the claim stays the parent's."""
    database = Database(file)
    child = 0
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert mine
        child = os.fork()
        if child != 0:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            with Database(file).claim(PROBLEM, {"tile": 0}, H200) as other:
                assert not other
    if child == 0:
        assert database.add(trial(5)) == 1 and database.best(PROBLEM, H200) == trial(5)
        os._exit(0)
    assert database.best(PROBLEM, H200) == trial(5)
    with database.claim(PROBLEM, {"tile": 0}, H200) as again:
        assert again


def role_add_and_go(file: Path, number: str) -> None:
    database = Database(file)
    database.add(trial(int(number)))
    database.close()


def role_find(file: Path, count: str, key: str) -> None:
    assert len(Database(file).trials()) == int(count)
    assert KernelCache(file.parent).get(key) is not None


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.001)


# The tests

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trials.db"


@pytest.fixture
def start(file: Path) -> Iterator[Start]:
    """Start processes of this file; those that still run when the test ends are ended."""
    started: list[subprocess.Popen[str]] = []

    def start(role: str, *arguments: object, at: Path = file) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, role, str(at), *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors


@pytest.mark.parametrize("moment", [0.0, 0.07, 0.31])
def test_of_two_writers_one_is_killed(file: Path, tmp_path: Path, start: Start, moment: float) -> None:
    """Nothing is lost but the trial in flight."""
    firsts = (0, 1_000_000)
    logs = [tmp_path / f"log{first}" for first in firsts]
    writers = [start("write", first, log) for first, log in zip(firsts, logs, strict=True)]
    for log in logs:
        wait_for(log)
    time.sleep(moment)
    before = []
    for writer, log in zip(writers, logs, strict=True):
        before.append(len(logs[1].read_text()))
        writer.kill()
        assert writer.wait(PATIENCE) == -signal.SIGKILL
        time.sleep(0.3)  # the other one goes on
        assert log.exists()
    assert before[0] < before[1]

    database = Database(file)
    assert database.verify() == []
    there = {each.candidate for each in database.trials()}
    for first, log in zip(firsts, logs, strict=True):
        kept = log.read_text().splitlines()
        assert kept == [str(number) for number in range(first, first + len(kept))]
        candidates = [trial(number).candidate for number in range(first, first + len(kept) + 1)]
        assert {*candidates[:-1]} <= there  # the last one was in flight: it is there or not
        there -= {*candidates}
    assert there == set(), "nothing is there that nobody has measured"
    assert database.add(trial(99_999_999)) == 1


def test_tuners_do_not_repeat_each_others_work(file: Path, start: Start, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    tuners = [start("tune", log, go) for _ in range(4)]
    for tuner in tuners:  # or the first one could be done before the others begin
        wait_for(Path(f"{log}-ready-{tuner.pid}"))
    go.touch()
    finish(*tuners)
    measured = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert measured == {str(number): 1 for number in range(40)}
    assert len({line.split()[1] for line in log.read_text().splitlines()}) > 1, "the work was shared"
    database = Database(file)
    assert len(database.trials()) == 40 and database.verify() == []
    assert sqlite3.connect(file).execute("SELECT COUNT(*) FROM claim_v1").fetchone() == (0,)


def test_a_killed_process_claims_nothing(file: Path, start: Start) -> None:
    database, holder = Database(file), start("hold")
    assert holder.stdout is not None and holder.stdout.readline() == "True\n"
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert not mine
    os.kill(holder.pid, signal.SIGSTOP)  # one that is stopped is still at it
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert not mine
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert mine
    holder.wait()
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert mine


def test_a_claim_is_not_the_childs(file: Path, start: Start) -> None:
    finish(start("fork_inside"))


def test_a_claim_is_of_one_candidate_problem_machine_and_condition(file: Path) -> None:
    database = Database(file)
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert mine
        for problem, candidate, condition in (({"m": 1}, {"tile": 0}, "cold"), (PROBLEM, {"tile": 1}, "cold"),
                                              (PROBLEM, {"tile": 0}, "warm")):  # fmt: skip
            with database.claim(problem, candidate, H200, condition) as other:
                assert other
        with Database(file).claim('{"types":"f16,f16,f32,f16","k":512,"m":4096,"n":4096}', {"tile": 0}, H200) as other:
            assert not other


def test_what_was_measured_is_measured_again_only_if_asked_for(file: Path) -> None:
    database = Database(file)
    database.add([trial(0), trial(1, status="timeout"), trial(2, condition="warm")])
    for number, free in ((0, False), (1, False), (2, True)):
        with database.claim(PROBLEM, {"tile": number}, H200) as mine:
            assert mine == free
        with database.claim(PROBLEM, {"tile": number}, H200, again=True) as mine:
            assert mine


def test_of_many_threads_one_has_a_claim(file: Path) -> None:
    database, won, barrier = Database(file), list[int](), threading.Barrier(8)

    def attempt(number: int) -> None:
        barrier.wait()
        with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
            if mine:
                won.append(number)
            barrier.wait()

    threads = [threading.Thread(target=attempt, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_an_error_ends_a_claim(file: Path) -> None:
    database = Database(file)
    with pytest.raises(ZeroDivisionError), database.claim(PROBLEM, {"tile": 0}, H200):
        raise ZeroDivisionError
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert mine


def test_a_claim_expires_and_is_not_given_back_twice(file: Path) -> None:
    database = Database(file)
    with database.claim(PROBLEM, {"tile": 0}, H200, seconds=0.05) as first:
        time.sleep(0.06)
        with database.claim(PROBLEM, {"tile": 0}, H200) as second:
            assert (first, second) == (True, True)
            database.claim(PROBLEM, {"tile": 1}, H200).__enter__()
            with database.claim(PROBLEM, {"tile": 0}, H200) as third:
                assert not third
    with database.claim(PROBLEM, {"tile": 0}, H200) as again:
        assert again


def test_the_claim_of_another_host_is_believed_until_it_expires(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(file)
    monkeypatch.setattr(claims, "_here", lambda: "elsewhere/boot/pid:[1]")
    claim = database.claim(PROBLEM, {"tile": 0}, H200, seconds=0.3)
    assert claim.__enter__()
    monkeypatch.undo()
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert not mine
    time.sleep(0.31)
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert mine


@pytest.mark.parametrize("change", ["owner = 'x'", "owner = x'00'", "expires = 'never'", "expires = x'00'"])
def test_a_damaged_claim_holds_nobody_up_for_ever(file: Path, change: str) -> None:
    database = Database(file)
    claim = database.claim(PROBLEM, {"tile": 0}, H200, seconds=0.2)
    assert claim.__enter__()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(f"UPDATE claim_v1 SET {change}")
    connection.close()
    time.sleep(0.21)
    with database.claim(PROBLEM, {"tile": 0}, H200) as mine:
        assert mine


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    mine = _process(os.getpid())
    assert mine.split()[0] == str(os.getpid()) and not _is_gone(f"{_here()} {mine} 0")
    number, began = mine.split()
    assert _is_gone(f"{_here()} {number} {int(began) - 1} 0")  # the number is another process's now
    assert _is_gone(f"{_here()} 4194305 {began} 0")  # more than there can be
    assert not _is_gone(f"elsewhere {number} 0 0") and not _is_gone("what is this?") and not _is_gone(None)


def test_opening_a_file_twice_keeps_its_log(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open and close a file releases all locks that a process has on it, SQLite's among them.

    The last one to close a database deletes its log. Whoever holds no lock is not counted, and goes on to write to a
    log that nobody reads.
    """
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PYCUTLASS_DATABASE", raising=False)
    cache, fields = KernelCache(), {"kernel": "1"}
    cache.remember("kind", "subject", "text", most=1)
    database = Database()
    database.add(trial(1))
    finish(start("add_and_go", 2, at=database.path))
    cache.put(Artifact(make_key(fields), "k", "sm_80", fields, b"code", b"host", {}))
    database.add(trial(3))
    finish(start("find", 3, make_key(fields), at=database.path))  # while both are open
    cache.close()
    database.close()
    assert {*Database().trials()} == {trial(1), trial(2), trial(3)} and Database().verify() == []
    assert KernelCache().verify() == [] and not list((tmp_path / "cache").glob("*corrupt*"))


if __name__ == "__main__":
    globals()[f"role_{sys.argv[1]}"](Path(sys.argv[2]), *sys.argv[3:])
