"""What came of tuning: the ranking of each problem, as table and as plot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pycutlass.device import Device
from pycutlass.plan.roofline import Roofline
from pycutlass.tuning.race import Contestant
from pycutlass.tuning.tunable import AnyCandidate, Tunable

__all__ = ["TITLES", "ProblemReport", "TuningReport"]

TITLES = ("#", "candidate", "us", "95 %", "GFLOP/s", "% of roofline", "predicted us", "status")


@dataclass(frozen=True)
class ProblemReport:
    """What is known of the candidates of one problem.

    Attributes
    ----------
    problem : Problem, Conv2dProblem or GroupProblem
        What was tuned.
    gpu : Device
        Where.
    contestants : tuple of Contestant
        Those that have a time, the fastest first, then those that have none.
    elsewhere : int
        Candidates that another tuner had claimed, and whose times are not here.
    seconds : float
        How long it took.
    """

    problem: Tunable
    gpu: Device
    contestants: tuple[Contestant, ...]
    elsewhere: int
    seconds: float

    @property
    def measured(self) -> tuple[Contestant, ...]:
        """Those that have a time, the fastest first."""
        return tuple(each for each in self.contestants if each.timing is not None)

    @property
    def best(self) -> AnyCandidate | None:
        """The fastest candidate; None where none was measured."""
        measured = self.measured
        return measured[0].candidate if measured else None

    def gflops(self, each: Contestant) -> float:
        """Return how many billions of operations a candidate makes in a second."""
        return self.problem.operations / each.median / 1e3

    def roofline(self, each: Contestant) -> float:
        """Return the share of what the GPU's multipliers and memory allow at most, by what is known of the GPU."""
        instruction = each.candidate.operation.tile_description.math_instruction
        least = Roofline.of(instruction, self.problem.operations, self.problem.bytes, self.gpu)
        return least.microseconds / each.median

    @property
    def title(self) -> str:
        """The line above the table."""
        noted = f", {self.elsewhere} measured by others just now" if self.elsewhere else ""
        return f"{self.problem.name} on {self.gpu.name}, {self.seconds:.1f} s{noted}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table."""
        return [self._row(number, each) for number, each in enumerate(self.contestants, 1)]

    def _row(self, number: int, each: Contestant) -> tuple[str, ...]:
        predicted = f"{each.predicted:.2f}"
        if each.timing is None:
            said = "not measured" if each.status == "waiting" else f"{each.status}: {each.reason}"
            return (str(number), each.candidate.name, "", "", "", "", predicted, said)
        low, high = each.interval
        speed, share = f"{self.gflops(each):,.0f}", f"{100 * self.roofline(each):.0f}"
        known = "known" if each.is_known else f"{len(each.times)} times"
        times = f"{each.median:.2f}", f"{low:.2f} - {high:.2f}"
        return (str(number), each.candidate.name, *times, speed, share, predicted, known)

    def __str__(self) -> str:
        rows = [TITLES, *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(TITLES))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.title, *lines])


@dataclass(frozen=True)
class TuningReport:
    """What came of tuning, a `ProblemReport` for each problem, in the order in which they were given.

    Examples
    --------
    >>> from pycutlass.tuning import TuningReport
    >>> print(TuningReport(()))
    nothing was tuned
    """

    problems: tuple[ProblemReport, ...]

    def __getitem__(self, number: int) -> ProblemReport:
        return self.problems[number]

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def best(self) -> tuple[AnyCandidate | None, ...]:
        """The fastest candidate of each problem; None where none was measured."""
        return tuple(each.best for each in self.problems)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.problems)) or "nothing was tuned"

    def __rich__(self) -> Any:
        """Return the tables for a terminal."""
        from rich.console import Group
        from rich.table import Table

        return Group(*(self._rich_table(Table, each) for each in self.problems))

    @staticmethod
    def _rich_table(table_class: Any, report: ProblemReport) -> Any:
        table = table_class(*TITLES, title=report.title)
        for row in report.rows():
            table.add_row(*row)
        return table

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a figure of matplotlib, which has to be installed: bars of each problem's candidates.

        Parameters
        ----------
        path : path, optional
            Where it is written as well, in the format that the name's ending says.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 1 + sum(0.35 * len(each.measured) + 1 for each in self.problems)))
        axes = figure.subplots(max(len(self.problems), 1), 1, squeeze=False)[:, 0]
        for axis, report in zip(axes, self.problems, strict=False):
            names = [each.candidate.name for each in report.measured]
            axis.barh(names, [report.gflops(each) for each in report.measured])
            axis.invert_yaxis()
            axis.set_xlabel("GFLOP/s")
            axis.set_title(report.problem.name)
        figure.tight_layout()
        if path is not None:
            figure.savefig(path)
        return figure
