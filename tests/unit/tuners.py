"""A process that tunes until it is told to stop, and writes down of each trial that it is kept.

``python tuners.py made-up|measured DATABASE LOG STOP``: candidates of ever other problems, measured on the first GPU,
or with times that are made up.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pycutlass.trials import Database, Trial
from pycutlass.tuning import TuningOptions, tune
from pycutlass.tuning.known import Known
from pycutlass.tuning.named import problem_of

__all__ = ["kept", "main", "problems"]


def main(how: str, file: str, log: str, stop: str) -> None:
    """Tune one problem after the other."""
    database, options = Database(Path(file)), TuningOptions(most_candidates=6, most_rounds=6)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    add = database.add

    def noted(trial: Trial) -> int:
        count = add(trial)
        os.write(written, f"{trial.problem} {trial.candidate}\n".encode())
        return count

    database.add = noted  # type: ignore[method-assign, assignment]
    for problem in problems(how):
        if Path(stop).exists():
            return
        if how == "measured":
            tune(problem, "30s", options=options, database=database)
        else:
            _made_up(problem, options, database)


def problems(how: str) -> Iterator[Any]:
    """Yield problems of one kind, which share their kernels."""
    from tuned import PROBLEM

    first = problem_of(256, 256, 256) if how == "measured" else PROBLEM
    for number in itertools.count():
        yield replace(first, m=256 + 8 * number)


def kept(log: Path) -> list[str]:
    """Return the trials that a process has written down, each line whole."""
    return [line for line in log.read_text().split("\n")[:-1] if line] if log.exists() else []


def _made_up(problem: Any, options: TuningOptions, database: Database) -> None:
    from tuned import GPU, MACHINE, Instantly, Noisy

    from pycutlass.tuning.race import Contestant
    from pycutlass.tuning.tuner import tune_problem

    class Slow(Noisy):
        def measure(self, number: int, seconds: float) -> list[float]:
            time.sleep(0.001)
            return super().measure(number, seconds)

    several = [
        Contestant(each.candidate, problem.kind, each.microseconds)
        for each in problem.ranked(GPU)[: options.most_candidates]
    ]
    known, until = Known(database, MACHINE, options), time.monotonic() + 20
    measurer = Slow([10.0 + number for number in range(len(several))])
    tune_problem(problem, several, GPU, options, until, known, measurer=lambda *_: measurer, compiling=Instantly)


if __name__ == "__main__":
    main(*sys.argv[1:])
