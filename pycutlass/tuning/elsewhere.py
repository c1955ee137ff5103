"""Problems that workers of an executor tune, each on a GPU of its own: what they measure comes back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pycutlass.calls import public
from pycutlass.errors import DeviceError
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
    cache has the kernels. No GPU is needed here. What the database has of a problem goes along, so that it is not
    measured again.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        Where jobs go, as of `tune`: one worker for each GPU, which its ``CUDA_VISIBLE_DEVICES`` names.
    problems, options, database, **changes
        As of `tune`.
    budget : float or str
        Seconds for each problem, or text such as ``"60s"``.

    Returns
    -------
    TuningReport
        The ranking of each problem, in the order in which they were given.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As of `tune`, as far as it can be seen without a GPU.
    DeviceError
        A job failed, with what its worker said; what others have measured is in the database.
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
    store = Database() if database is None else database
    jobs: list[Future[Any]] = []
    reports, failures = [], []
    try:
        for each in listed:
            known = store.trials(problem=each.record())
            jobs.append(submitted(executor, _measured_there, each, seconds, chosen, known))
        for each, job in zip(listed, jobs, strict=True):
            try:
                report, trials = job.result()
            except Exception as error:  # of the farm, whatever library it is
                failures.append(f"{each.name}: {told_by(error)}")
                continue
            store.add(trials)
            reports.append(report)
    finally:
        for job in jobs:
            job.cancel()  # of those that are done, nothing
        generation.begin()  # plans of this process choose anew
    if failures:
        count = f"{len(failures)} of {len(listed)} jobs"
        raise DeviceError("; ".join([f"{count} failed, and what the others measured is in the database", *failures]))
    return TuningReport(tuple(reports))


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
