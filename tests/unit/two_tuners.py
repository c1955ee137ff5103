"""Two tuners on one database, of which one is killed: what has to hold then, whatever measures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuners import kept, problems

from pycutlass.trials import Database

__all__ = ["begin", "check_kept", "finish", "one_is_killed"]

HERE = Path(__file__).parent
_PATIENCE = 120.0


def begin(how: str, folder: Path, name: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a tuner, whose log is called after it."""
    command = [sys.executable, str(HERE / "tuners.py"), how, *(str(folder / each) for each in ("db", name, "stop"))]
    paths = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, **(variables or {})}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finish(folder: Path, tuners: Sequence[subprocess.Popen[str]]) -> None:
    """Tell tuners to stop, and wait for them."""
    (folder / "stop").touch()
    for tuner in tuners:
        _, errors = tuner.communicate(timeout=_PATIENCE)
        assert tuner.returncode == 0, errors


def wait_for_trials(log: Path, count: int) -> None:
    end = time.monotonic() + _PATIENCE
    while len(kept(log)) < count:
        assert time.monotonic() < end, f"{log.name} has {len(kept(log))} trials"
        time.sleep(0.01)


def one_is_killed(how: str, folder: Path, seconds: float) -> None:
    """Have two tuners measure for so long, kill one half way, and look at the database."""
    first, second = (begin(how, folder, name) for name in ("first", "second"))
    try:
        for log in ("first", "second"):
            wait_for_trials(folder / log, 3)
        time.sleep(seconds / 2)
        first.send_signal(signal.SIGKILL)
        assert first.wait(_PATIENCE) == -signal.SIGKILL
        begun = len(kept(folder / "second"))
        time.sleep(seconds / 2)
        wait_for_trials(folder / "second", begun + 3)  # the other one goes on
        finish(folder, [second])
    finally:
        for each in (first, second):
            each.kill()
            each.communicate()
    check_kept(folder, ["first", "second"])
    resumed(how, folder)


def check_kept(folder: Path, logs: Sequence[str]) -> Database:
    """Raise unless the database is whole, and has what each tuner has written down, and little else."""
    database = Database(folder / "db")
    assert database.verify() == []
    there = {f"{each.problem} {each.candidate}" for each in database.trials()}
    written = [{*kept(folder / log)} for log in logs]
    assert all(written), "each has measured"
    assert set().union(*written) <= there, "nothing that was measured is lost"
    assert len(there - set().union(*written)) <= len(logs), "but for what was being written, there is nothing else"
    return database


def resumed(how: str, folder: Path) -> None:
    """Raise unless what the killed tuner had claimed is measured by whoever comes next."""
    (folder / "stop").unlink()
    record = json.loads(kept(folder / "first")[-1].rpartition(" {")[0])
    third = begin(how, folder, "third")
    try:
        wait_for_trials(folder / "third", 3)
        finish(folder, [third])
    finally:
        third.kill()
        third.communicate()
    problem = next(each for each in problems(how) if each.record() == record)
    found = {each.candidate for each in Database(folder / "db").trials(problem=problem.record())}
    assert len(found) == 6, "all of its last problem"
