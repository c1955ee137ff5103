"""The process that measures: what hangs, crashes or is killed there costs only itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from tuned import PROBLEM, candidates

from pycutlass.errors import DeviceError
from pycutlass.tuning import TuningOptions
from pycutlass.tuning.child import Child
from pycutlass.tuning.measuring import ChildMeasurer, FailedError


@pytest.fixture
def measurer(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    options = TuningOptions(timeout=1.0, tmp_dir=tmp_path)
    made = ChildMeasurer(PROBLEM, options, "tuned:serve_fake")
    yield made
    made.close()
    assert not list(tmp_path.iterdir())


def prepared(measurer: ChildMeasurer, *behaviours: str) -> None:
    for number, (candidate, behaviour) in enumerate(zip(candidates(len(behaviours)), behaviours, strict=True)):
        measurer.check(number, candidate, behaviour)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "XZ"
    except FileNotFoundError:
        return False


def test_it_measures(measurer):
    prepared(measurer, "good", "good")
    assert measurer.measure(1, 5.0) == [11.0, 11.1, 11.2]
    assert measurer.measure(0, 5.0) == [10.0, 10.1, 10.2]
    assert measurer.started == 1


@pytest.mark.parametrize(
    ("behaviour", "status", "said"),
    [
        ("hangs", "timeout", "no answer within 1 s"),
        ("crashes", "failed", "ended by SIGSEGV"),
        ("breaks", "failed", "an illegal memory access"),
    ],
)
def test_a_failure_costs_only_itself(measurer, behaviour, status, said):
    prepared(measurer, "good", behaviour, "good")
    measurer.measure(0, 5.0)
    with pytest.raises(FailedError, match=said) as failure:
        measurer.measure(1, 5.0)
    assert failure.value.status == status
    assert measurer.measure(0, 5.0) == [10.0, 10.1, 10.2]
    assert measurer.measure(2, 5.0) == [12.0, 12.1, 12.2]
    assert measurer.started == 2


@pytest.mark.parametrize(("behaviour", "status"), [("wrong", "wrong"), ("refused", "failed")])
def test_what_is_wrong_or_refused_leaves_the_process_alone(measurer, behaviour, status):
    prepared(measurer, "good")
    with pytest.raises(FailedError) as failure:
        measurer.check(1, candidates(2)[1], behaviour)
    assert failure.value.status == status
    measurer.measure(0, 5.0)
    assert measurer.started == 1


def test_a_child_that_is_killed_is_replaced(measurer):
    prepared(measurer, "good")
    os.kill(measurer._child.pid, signal.SIGKILL)
    with pytest.raises(FailedError, match="ended by SIGKILL"):
        measurer.measure(0, 5.0)
    assert measurer.measure(0, 5.0) == [10.0, 10.1, 10.2]


def test_closing_ends_the_child(measurer):
    prepared(measurer, "good")
    pid = measurer._child.pid
    measurer.close()
    assert not is_alive(pid)


def test_a_child_that_cannot_start_is_no_fault_of_a_candidate(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    unable = ChildMeasurer(PROBLEM, TuningOptions(), "tuned:serve_unable")
    with pytest.raises(DeviceError, match="no memory for operands"):
        unable.check(0, candidates(1)[0], ())
    absent = ChildMeasurer(PROBLEM, TuningOptions(), "tuned:there_is_none")
    with pytest.raises(DeviceError, match=r"did not start: it ended with status 1(.|\n)*there_is_none"):
        absent.check(0, candidates(1)[0], ())


def test_it_ends_with_its_parent():
    """Also while it hangs in a kernel, when it sees no pipe."""
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from tuned import PROBLEM, candidates
from pycutlass.tuning import TuningOptions
from pycutlass.tuning.measuring import ChildMeasurer
measurer = ChildMeasurer(PROBLEM, TuningOptions(timeout=100), "tuned:serve_fake")
measurer.check(0, candidates(1)[0], "hangs")
print(measurer._child.pid, flush=True)
measurer.measure(0, 100)
"""
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        assert is_alive(pid)
        parent.kill()
    wait_for(lambda: not is_alive(pid))


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("seconds", [1e9, 1e300])
def test_a_timeout_may_be_longer_than_systems_wait(seconds):
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send("made")
        assert Child.receive(types.SimpleNamespace(_connection=ours), seconds) == "made"
