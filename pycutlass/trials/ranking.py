"""Which candidate is best by what was measured, and which trials are worth keeping."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pycutlass.trials.values import Trial

__all__ = ["ranked", "superfluous"]


def ranked(trials: Iterable[Trial], condition: str) -> tuple[Trial, ...]:
    """Return the latest trial of each candidate in this `condition`, the fastest first.

    They are trials of one key. The latest counts and not the fastest: of many trials of one candidate the fastest says
    how lucky it was. A candidate whose latest trial in any condition gave no time is left out, and so is one that
    has ever been wrong: a kernel that is wrong at times is right at others.
    """
    wrong: set[str] = set()
    last: dict[str, Trial] = {}
    times: dict[str, Trial] = {}
    for trial in sorted(trials, key=lambda trial: (trial.date, trial.status != "ok", trial.digest)):
        last[trial.candidate] = trial
        if trial.status == "wrong":
            wrong.add(trial.candidate)
        if trial.status == "ok" and trial.condition == condition:
            times[trial.candidate] = trial
    usable = [trial for text, trial in times.items() if text not in wrong and last[text].status == "ok"]
    return tuple(sorted(usable, key=lambda trial: (trial.time, trial.candidate)))


def superfluous(trials: Iterable[Trial], most: int | None, since: datetime | None) -> set[str]:
    """Return the digests of those of the trials of one key that need not be kept.

    Kept are trials `since` then, and of these, in each condition, the latest ones of the `most` best candidates. That a
    candidate is wrong is known as long as any other trial of it stays, which might be picked otherwise; and if age does
    not matter, it is known for good.
    """
    trials = list(trials)
    going = {trial.digest for trial in trials if since is not None and trial.date < since}
    if most is not None:
        conditions = {trial.condition for trial in trials}
        best = {trial.digest for condition in conditions for trial in ranked(trials, condition)[:most]}
        going |= {trial.digest for trial in trials if trial.status != "wrong"} - best
    staying = {trial.candidate for trial in trials if trial.digest not in going and trial.status != "wrong"}
    return going - {trial.digest for trial in trials if trial.status == "wrong" and trial.candidate in staying}
