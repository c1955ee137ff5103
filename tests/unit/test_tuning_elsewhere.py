"""Workers that have GPUs: each tunes a problem, and what it measures comes back."""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from tuned import GPU, MACHINE, PROBLEM, Instantly, Noisy, contestants

from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError, DeviceError, ToolkitError
from pycutlass.trials import Database
from pycutlass.tuning import TuningOptions, TuningReport, elsewhere, tune_on
from pycutlass.tuning.known import Known
from pycutlass.tuning.tuner import tune_problem

OTHER = dataclasses.replace(PROBLEM, m=512)
LOST = dataclasses.replace(PROBLEM, m=256)


@pytest.fixture
def database(tmp_path: Any) -> Any:
    made = Database(tmp_path / "trials.db")
    yield made
    made.close()


def tuned(problem: Any, seconds: float, *, options: TuningOptions, database: Database) -> TuningReport:
    """Stand for `tune` on a machine with a GPU."""
    if problem == LOST:
        raise DeviceError("no GPU can be used: there is none")
    measurer = Noisy([10.0, 20.0, 30.0])
    known = Known(database, MACHINE, options)
    how: dict[str, Any] = {"measurer": lambda *_: measurer, "compiling": Instantly}
    return TuningReport(
        (tune_problem(problem, contestants(3), GPU, options, time.monotonic() + seconds, known, **how),)
    )


def in_a_worker(*arguments: Any) -> Any:
    """Do the job in another process, where the stand-in has to be put in its place."""
    elsewhere.tune = tuned
    report, trials = elsewhere._measured_there(*arguments)
    return dataclasses.replace(report, seconds=float(os.getpid())), trials


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "tune", tuned)


@pytest.mark.usefixtures("stand_in")
def test_times_come_back_and_are_not_measured_again(database: Database) -> None:
    with ThreadPoolExecutor(2) as farm:
        report = tune_on(farm, [PROBLEM, OTHER], "20s", database=database)
        assert [each.problem for each in report.problems] == [PROBLEM, OTHER]
        assert report.best == (contestants(3)[0].candidate,) * 2
        for problem in (PROBLEM, OTHER):
            best = database.best(problem.record(), MACHINE)
            assert best is not None and 9 < best.time < 12
        before = len(database.trials())
        again = tune_on(farm, PROBLEM, 20, database=database)
        assert all(each.is_known for each in again[0].measured) and len(database.trials()) == before
        tune_on(farm, PROBLEM, 20, database=database, again=True)
        assert len(database.trials()) > before


@pytest.mark.usefixtures("stand_in")
def test_a_job_that_fails_loses_no_other(database: Database) -> None:
    with ThreadPoolExecutor(1) as farm, pytest.raises(DeviceError, match=r"1 of 2 .*256x1024x1024.*no GPU can"):
        tune_on(farm, [LOST, PROBLEM], "20s", database=database)
    assert database.best(PROBLEM.record(), MACHINE) is not None


def test_a_report_comes_from_another_process(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_measured_there", in_a_worker)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as farm:
        report = tune_on(farm, PROBLEM, "20s", database=database)
    assert report[0].seconds != os.getpid() and report[0].best == contestants(3)[0].candidate
    assert "GFLOP/s" in str(pickle.loads(pickle.dumps(report)))
    assert database.best(PROBLEM.record(), MACHINE) is not None


class Interrupted(Executor):
    """Ends the first job at once, and never the others; whoever waits for them presses Ctrl-C."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        job: Future[Any] = Future()
        job.set_running_or_notify_cancel()
        self.jobs += 1
        if self.jobs == 1:
            job.set_result(function(*arguments))
        return job


@pytest.mark.usefixtures("stand_in")
def test_what_was_measured_is_kept_where_the_call_is_interrupted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(jobs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(elsewhere, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune_on(Interrupted(), [PROBLEM, OTHER], "20s", database=database)
    assert database.best(PROBLEM.record(), MACHINE) is not None


@pytest.mark.usefixtures("stand_in")
def test_equal_problems_are_one_job(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []

    def counted(problem: Any, *arguments: Any, **options: Any) -> TuningReport:
        jobs.append(problem)
        return tuned(problem, *arguments, **options)

    monkeypatch.setattr(elsewhere, "tune", counted)
    with ThreadPoolExecutor(2) as farm:
        report = tune_on(farm, [PROBLEM, OTHER, PROBLEM], "20s", database=database)
    assert [each.problem for each in report.problems] == [PROBLEM, OTHER, PROBLEM]
    assert len(jobs) == 2 and set(jobs) == {PROBLEM, OTHER}


class Other(Executor):
    """An executor that does not do what it is given."""

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        job: Future[Any] = Future()
        job.set_result((1, 2))
        return job


def test_an_executor_that_returns_something_else(database: Database) -> None:
    with pytest.raises(DeviceError, match=r"the executor returned \(1, 2\)"):
        tune_on(Other(), PROBLEM, "20s", database=database)


def test_a_database_that_cannot_be_used_is_refused_before_any_job(tmp_path: Any) -> None:
    with pytest.raises(CacheError):
        tune_on(Other(), PROBLEM, "20s", database=Database(tmp_path / "missing.db", make=False))
    with pytest.raises(ArgumentTypeError, match="database must be a pycutlass"):
        tune_on(Other(), PROBLEM, "20s", database=tmp_path / "trials.db")  # type: ignore[arg-type]


def test_what_is_none_is_refused_before_any_job(database: Database) -> None:
    with ThreadPoolExecutor(1) as farm:
        with pytest.raises(ArgumentError, match="budget must be"):
            tune_on(farm, PROBLEM, "soon", database=database)
        with pytest.raises(ArgumentTypeError, match="what is tuned must be"):
            tune_on(farm, 3, database=database)
        with pytest.raises(ArgumentTypeError, match="'colour' is no option of the tuner"):
            tune_on(farm, PROBLEM, database=database, colour=1)
    with pytest.raises(ToolkitError, match="takes no jobs"):
        tune_on(farm, PROBLEM, database=database)
    with pytest.raises(ArgumentTypeError, match="executor must have `submit`"):
        tune_on(3, PROBLEM, database=database)
