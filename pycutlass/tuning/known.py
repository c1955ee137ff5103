"""What the database knows of candidates, and who measures them just now."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from pycutlass.plan.alignments import choice_in
from pycutlass.trials import Database, Machine, Trial
from pycutlass.tuning.options import TuningOptions
from pycutlass.tuning.race import Contestant
from pycutlass.tuning.tunable import Tunable

__all__ = ["Known"]

_CLAIM_SECONDS = 86_400.0  # it ends with this process anyway, and a run may have hours


class Known:
    """Trials of one machine under the conditions of some options.

    Parameters
    ----------
    database : Database
        Where trials are.
    machine : Machine
        Where candidates are measured.
    options : TuningOptions
        Of which the state of the L2 cache, the distribution of operands and `again` count.
    """

    def __init__(self, database: Database, machine: Machine, options: TuningOptions) -> None:
        self._database, self._machine, self._options = database, machine, options

    def fastest(self, problem: Tunable) -> tuple[str, ...]:
        """Return the choices of the candidates that were measured, the fastest first, as the database has them."""
        most, condition = self._options.most_candidates, self._options.condition
        return tuple(each.candidate for each in self._database.top(problem.record(), self._machine, most, condition))

    def is_settled(self, problem: Tunable, contestants: Sequence[Contestant]) -> bool:
        """Return whether nothing is to be measured: one that is right is enough, and is known."""
        if self._options.again or not self._options.find_first_valid:
            return False
        self.recall(problem, contestants)
        return any(each.status == "ok" for each in contestants)

    def claim(self, problem: Tunable, each: Contestant, until_done: contextlib.ExitStack) -> bool:
        """Return whether to measure a candidate, which nobody else does until the end of a context."""
        claim = self._database.claim(
            problem.record(),
            choice_in(problem.kind, each.candidate),
            self._machine,
            self._options.condition,
            again=self._options.again,
            seconds=_CLAIM_SECONDS,
        )
        return until_done.enter_context(claim)

    def keep(self, problem: Tunable, each: Contestant) -> None:
        """Add what was measured of a candidate, or why nothing was."""
        timing = each.timing
        given: dict[str, Any] = {"machine": self._machine, "condition": self._options.condition}
        if timing is None:
            given |= {"status": each.status, "reason": each.reason or "no reason was given"}
        else:
            low, time, high = timing.low, timing.median, timing.high
            given |= {"time": time, "low": min(low, time), "high": max(high, time), "rounds": len(timing.times)}
        self._database.add(Trial(problem.record(), choice_in(problem.kind, each.candidate), **given))

    def recall(self, problem: Tunable, contestants: Sequence[Contestant]) -> None:
        """Fill in what was measured before, or by others meanwhile, as plans see it.

        They take no candidate that was ever wrong, nor one whose latest trial in any condition gave no time.
        """
        for each in contestants:
            if each.status != "waiting":
                continue
            found = self._database.trials(
                problem=problem.record(),
                candidate=choice_in(problem.kind, each.candidate),
                machine=self._machine,
            )
            wrong = [trial for trial in found if trial.status == "wrong"]
            without = [trial for trial in found[-1:] if trial.status != "ok"]
            timed = [trial for trial in found if trial.status == "ok" and trial.condition == self._options.condition]
            for trial in wrong[-1:] or without or timed[-1:]:
                each.status, each.reason, each.is_known = trial.status, trial.reason, True
                each.times = [time for time in (trial.low, trial.time, trial.high) if time is not None]
