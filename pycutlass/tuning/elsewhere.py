"""Problems that workers of an executor tune, each on a GPU of its own: what they measure comes back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentTypeError, DeviceError
from pycutlass.plan.measured import generation
from pycutlass.trials import Database, Trial
from pycutlass.tuning.farm import check_executor, submitted, told_by
from pycutlass.tuning.options import TuningOptions, seconds_of
from pycutlass.tuning.problems import problems_of, with_options
from pycutlass.tuning.report import ProblemReport, TuningReport
from pycutlass.tuning.tunable import Tunable
from pycutlass.tuning.tuner import chosen_options, tune

__all__ = ["tune_on"]


@public
def tune_on(
    executor: Any,
    problems: Tunable | Iterable[Tunable] | Any,
    budget: float | str = "60s",
    *,
    options: TuningOptions | None = None,
    database: Database | None = None,
    **changes: Any,
) -> TuningReport:
    """Have workers of an executor tune problems, and keep what they measure in the database here.

    Each problem is a job, which a worker does as `tune` would: it needs a GPU, its first one, and compilers, unless its
    cache has the kernels, which stay there. No GPU is needed here. What the database has of a problem goes along, so
    that it is not measured again; the worker's own is not asked. What a job has measured is kept as soon as it ends,
    also where another one fails, or the call is interrupted.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        Where jobs go, as of `tune`: one worker for each GPU, which its ``CUDA_VISIBLE_DEVICES`` names.
    problems, options, database, **changes
        As of `tune`.
    budget : float or str
        Seconds for each problem, and not for all of them as of `tune`, or text such as ``"60s"``.

    Returns
    -------
    TuningReport
        The ranking of each problem, in the order in which they were given.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As of `tune`, as far as it can be seen without a GPU.
    CacheError
        The database cannot be used: before there is a job.
    DeviceError
        A job failed, with what its worker said; what others have measured is in the database, so that another call
        reports it at once.
    ToolkitError
        The executor takes no jobs.

    Examples
    --------
    >>> from pycutlass.tuning import RayExecutor, tune_on
    >>> def tuned(problems):
    ...     with RayExecutor(num_gpus=1) as farm:
    ...         return tune_on(farm, problems, "30s", most_candidates=8)
    """
    check_executor(executor)
    chosen = chosen_options(options).changed(**changes)
    seconds, listed = seconds_of(budget), [with_options(each, chosen) for each in problems_of(problems)]
    store = _checked(database)
    jobs: dict[Tunable, Future[Any]] = {}
    outcomes: dict[Tunable, ProblemReport | str] = {}
    try:
        for each in dict.fromkeys(listed):  # equal ones are measured once
            known = store.trials(problem=each.record())
            jobs[each] = submitted(executor, _measured_there, each, seconds, chosen, known)
        names = {job: each for each, job in jobs.items()}
        for job in as_completed(names):
            outcomes[names[job]] = _kept(job, store)
    finally:
        for each, job in jobs.items():
            if not job.cancel() and each not in outcomes and job.done():  # it ended while the call was interrupted
                _kept(job, store)
        generation.begin()  # plans of this process choose anew
    failures = [f"{each.name}: {outcomes[each]}" for each in jobs if isinstance(outcomes[each], str)]
    if failures:
        count = f"{len(failures)} of {len(outcomes)} jobs"
        raise DeviceError("; ".join([f"{count} failed, and what the others measured is in the database", *failures]))
    return TuningReport(tuple(report for each in listed if isinstance(report := outcomes[each], ProblemReport)))


def _checked(database: Any) -> Database:
    """Return the database, or that of the user, where trials can be kept in it."""
    if database is not None and not isinstance(database, Database):
        raise ArgumentTypeError(f"database must be a pycutlass.trials.Database, got {shown(database)}")
    store = Database() if database is None else database
    store.add([])  # which says what is wrong with the file before anything is measured
    return store


def _kept(job: Future[Any], store: Database) -> ProblemReport | str:
    """Put what a job has measured into the database, and return its report, or what it said."""
    try:
        done = job.result()
    except Exception as error:  # of the farm, whatever library it is
        return told_by(error)
    match done:
        case (ProblemReport() as report, [*trials]) if all(isinstance(each, Trial) for each in trials):
            store.add(trials)
            return report
    return f"the executor returned {shown(done)}, which is not what the job does"


def _measured_there(
    problem: Tunable, seconds: float, options: TuningOptions, known: Sequence[Trial]
) -> tuple[ProblemReport, list[Trial]]:
    """Tune a problem in a worker, and return its report with all trials, those that were known among them."""
    with tempfile.TemporaryDirectory(prefix="pycutlass-tuning-") as folder:
        database = Database(Path(folder) / "trials.db")
        try:
            database.add(known)
            report = tune(problem, seconds, options=options, database=database)
            return report[0], database.trials(problem=problem.record())
        finally:
            database.close()
