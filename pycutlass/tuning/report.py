"""What came of tuning: the ranking of each problem, as table and as plot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass.cache.files import as_path
from pycutlass.device import Device
from pycutlass.epilogue import LinearCombination
from pycutlass.errors import ArgumentError
from pycutlass.plan.roofline import Roofline
from pycutlass.timing import Timing
from pycutlass.tuning.race import Contestant, interval_of
from pycutlass.tuning.tunable import AnyCandidate, Tunable
from pycutlass.tuning.vendor import Vendor

__all__ = ["ProblemReport", "TuningReport"]

_TITLES = ("#", "kernel", "us", "95 %", "GFLOP/s", "% of roofline", "predicted us", "status")


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
    vendor : Vendor or None
        cuBLAS or cuDNN, where it was to be measured beside them.
    """

    problem: Tunable
    gpu: Device
    contestants: tuple[Contestant, ...]
    elsewhere: int
    seconds: float
    vendor: Vendor | None = None

    @property
    def measured(self) -> tuple[Contestant, ...]:
        """Those that have a time, the fastest first."""
        return tuple(each for each in self.contestants if each.timing is not None)

    @property
    def best(self) -> AnyCandidate | None:
        """The fastest candidate; None where none was measured."""
        measured = self.measured
        return measured[0].candidate if measured else None

    def name_of(self, each: Contestant) -> str:
        """Return how tables call a candidate: with the alignments of A and B where they are lesser ones."""
        if each.kind == self.problem.kind:
            return each.candidate.name
        return f"{each.candidate.name}, alignments {each.kind.A.alignment} and {each.kind.B.alignment}"

    def gflops(self, each: Contestant) -> float:
        """Return how many billions of operations a candidate makes in a second."""
        return self._gflops(each.median)

    def roofline(self, each: Contestant) -> float:
        """Return the share of what the GPU's multipliers and memory allow at most, by what is known of the GPU."""
        return self._roofline(each.candidate) / each.median

    def vendor_speed(self, each: Contestant) -> float | None:
        """Return a candidate's speed in parts of that of the vendor's library.

        None where they were not measured in the same rounds: where that has no time, or the candidate's was known.
        """
        time = self.vendor_time
        return None if time is None or each.is_known else time / each.median

    @property
    def vendor_time(self) -> float | None:
        """Median of the vendor's library in microseconds; None where it was not measured."""
        return Timing(tuple(self.vendor.times)).median if self.vendor is not None and self.vendor.times else None

    @property
    def title(self) -> str:
        """The line above the table."""
        noted = f", {self.elsewhere} measured by others just now" if self.elsewhere else ""
        return f"{self.problem.name} on {self.gpu.name}, {self.seconds:.1f} s{noted}"

    @property
    def remark(self) -> str:
        """The line below the table: about the vendor's library, where it was to be measured."""
        if self.vendor is None:
            return ""
        name, epilogue = self.vendor.name, self.problem.kind.epilogue
        if not self.vendor.times:
            return f"{name} is not in the table: {self.vendor.reason}"
        is_plain = isinstance(epilogue, LinearCombination) and self.problem.source is None
        alone = "" if is_plain else ", without what the epilogue does"
        return f"{name}, called by torch in the same rounds, computes the same product{alone}"

    @property
    def titles(self) -> tuple[str, ...]:
        """The first line of the table."""
        return _TITLES if self.vendor_time is None or self.vendor is None else (*_TITLES, f"% of {self.vendor.name}")

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table."""
        return [*self._vendor_rows(), *(self._row(number, each) for number, each in enumerate(self.contestants, 1))]

    def facts(self) -> list[dict[str, Any]]:
        """Return what is known of each kernel, and of the vendor's library before them, as JSON has it."""
        found: list[dict[str, Any]] = []
        if self.vendor is not None:
            found.append(self._facts(self.vendor.name, self.vendor.times, None, self.vendor.reason))
        for each in self.contestants:
            reason = each.reason or ("not measured" if each.status == "waiting" else "")
            times = each.times if each.timing is not None else []
            facts = self._facts(self.name_of(each), times, each.candidate, reason)
            found.append(
                {**facts, "vendor_speed": self.vendor_speed(each) if times else None, "predicted_us": each.predicted}
                | {"status": each.status, "known": each.is_known}
            )
        return found

    def _facts(self, name: str, times: Sequence[float], candidate: AnyCandidate | None, reason: str) -> dict[str, Any]:
        facts: dict[str, Any] = {"problem": self.problem.name, "gpu": self.gpu.name, "kernel": name}
        facts |= dict.fromkeys(("us", "low_us", "high_us", "gflops", "roofline", "vendor_speed"))
        if times:
            time, (low, high) = Timing(tuple(times)).median, interval_of(times)
            facts |= {"us": time, "low_us": low, "high_us": high, "gflops": self._gflops(time)}
            facts |= {"roofline": self._roofline(candidate) / time, "vendor_speed": 1.0}
        status = "ok" if times else "absent"
        return {**facts, "predicted_us": None, "status": status, "reason": reason, "known": False}

    def _vendor_rows(self) -> list[tuple[str, ...]]:
        time = self.vendor_time
        if self.vendor is None or time is None:
            return []
        low, high = interval_of(self.vendor.times)
        speed, share = f"{self._gflops(time):,.0f}", f"{100 * self._roofline(None) / time:.0f}"
        times = f"{time:.2f}", f"{low:.2f} - {high:.2f}"
        return [("", f"{self.vendor.name}, by torch", *times, speed, share, "", _counted(self.vendor.times), "100")]

    def _row(self, number: int, each: Contestant) -> tuple[str, ...]:
        predicted, relative = f"{each.predicted:.2f}", self.vendor_speed(each)
        if each.timing is None:
            said = "not measured" if each.status == "waiting" else f"{each.status}: {each.reason}"
            cells = (str(number), self.name_of(each), "", "", "", "", predicted, said)
            return cells if self.vendor_time is None else (*cells, "")
        low, high = each.interval
        speed, share = f"{self.gflops(each):,.0f}", f"{100 * self.roofline(each):.0f}"
        known = "known" if each.is_known else _counted(each.times)
        times = f"{each.median:.2f}", f"{low:.2f} - {high:.2f}"
        cells = (str(number), self.name_of(each), *times, speed, share, predicted, known)
        if self.vendor_time is None:
            return cells
        return (*cells, "" if relative is None else f"{100 * relative:.0f}")

    def _gflops(self, microseconds: float) -> float:
        return self.problem.operations / microseconds / 1e3

    def _roofline(self, candidate: AnyCandidate | None) -> float:
        """Return the least microseconds by an instruction: a candidate's, or that of the vendor's library."""
        by = self.contestants[0].candidate if candidate is None else candidate
        instruction = by.operation.tile_description.math_instruction
        return Roofline.of(instruction, self.problem.operations, self.problem.bytes, self.gpu).microseconds

    def __str__(self) -> str:
        rows = [self.titles, *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.titles))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.title, *lines, *([self.remark] if self.remark else [])])


def _counted(times: Sequence[float]) -> str:
    return f"{len(times)} times"


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
        table = table_class(*report.titles, title=report.title, caption=report.remark or None)
        for row in report.rows():
            table.add_row(*row)
        return table

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a figure of matplotlib, which has to be installed: bars of each problem's candidates.

        Parameters
        ----------
        path : path, optional
            Where it is written as well, in the format that the name's ending says.

        Raises
        ------
        ArgumentError
            Matplotlib is not installed, or the file cannot be written.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ArgumentError(
                f"matplotlib cannot be imported ({error}): pip install matplotlib, or print the report"
            ) from error

        figure = Figure(figsize=(9, 1 + sum(0.35 * len(each.measured) + 1 for each in self.problems)))
        axes = figure.subplots(max(len(self.problems), 1), 1, squeeze=False)[:, 0]
        for axis, report in zip(axes, self.problems, strict=False):
            names = [report.name_of(each) for each in report.measured]
            axis.barh(names, [report.gflops(each) for each in report.measured])
            axis.invert_yaxis()
            axis.set_xlabel("GFLOP/s")
            axis.set_title(report.problem.name)
        figure.tight_layout()
        if path is not None:
            try:
                figure.savefig(as_path("path", path))
            except (OSError, ValueError) as error:  # of a directory, or an ending that matplotlib does not know
                raise ArgumentError(f"the plot cannot be written to {path}: {error}") from error
        return figure
