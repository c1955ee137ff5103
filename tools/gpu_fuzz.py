"""Runs of the fuzz on the page of GPU results: summed, as long as what makes and checks kernels stays as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import common

__all__ = ["TITLE", "fuzz_outcome", "fuzz_row", "fuzz_section", "keep_runs", "part_row", "read_runs"]

Run = dict[str, Any]

TITLE = "Random kernels on random problems"
_LEAST_CASES, _LEAST_KERNELS = 5000, 1000
_COUNTS = ("kernels", "cases", "wrong", "failed", "not built", "refused")
_SHOWN = 20  # failures


def keep_runs(out: Path, kept: Path, commit: str = "") -> None:
    """Add the runs that are in the directory `out` to the file `kept`, of which only those of the newest code stay."""
    fresh = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("fuzz-[0-9]*.json"))]
    for run in fresh:
        if commit and run["environment"]["commit"] == "unknown":
            run["environment"]["commit"] = commit
    runs = sorted([*read_runs(kept), *fresh], key=_date)
    if not fresh:
        return
    # A seed draws the same kernels again, which would be counted twice.
    by_seed = {run["seed"]: run for run in runs if run["digest"] == runs[-1]["digest"]}
    common.write_json(kept, {"runs": sorted(by_seed.values(), key=_date)})


def read_runs(kept: Path) -> list[Run]:
    """Return the runs that were kept: all of one state of the code."""
    if not kept.is_file():
        return []
    runs: list[Run] = json.loads(kept.read_text(encoding="utf-8"))["runs"]
    return runs


def fuzz_outcome(runs: list[Run]) -> str:
    """Return "passed", or what is wrong."""
    failures = sum(len(run["failures"]) for run in runs)
    if failures:
        return f"failures: {failures}"
    cases, kernels = _families(runs).total()["cases"], _distinct(runs)
    if cases < _LEAST_CASES or kernels < _LEAST_KERNELS:
        return f"few so far: {cases:,} of {_LEAST_CASES:,} cases, {kernels:,} of {_LEAST_KERNELS:,} kernels"
    return "passed"


def fuzz_row(runs: list[Run]) -> tuple[str, ...]:
    """Return the line of the table of parts."""
    return part_row(TITLE, runs, fuzz_outcome)


def part_row(title: str, runs: list[Run], outcome: Callable[[list[Run]], str]) -> tuple[str, ...]:
    """Return the line of the table of parts of any runs that are summed."""
    if not runs:
        return title, "not run", "", "", ""
    ended, environment = outcome(runs), runs[-1]["environment"]
    seconds = f"{sum(run['seconds'] for run in runs):.0f}"
    return title, ended if ended == "passed" else f"**{ended}**", seconds, environment["date"], environment["commit"]


def fuzz_section(runs: list[Run]) -> list[str]:
    """Return the section: what the counts are of, by family, and every failure."""
    if not runs:
        return []
    counts = _families(runs)
    modes = sum((Counter(run["modes"]) for run in runs), Counter[str]())
    lines = [f"## {TITLE}", "", *_about(runs), ""]
    rows = [(family, *(f"{each[what]:,}" for what in _COUNTS)) for family, each in counts.items()]
    rows.append(("all", *(f"{counts.total()[what]:,}" for what in _COUNTS)))
    lines += [*common.table(("family", *_COUNTS), rows), ""]
    lines += [f"By mode: {', '.join(f'{mode} {number:,}' for mode, number in sorted(modes.items()))}.", ""]
    lines += [*common.table(("seed", "GPUs", "seconds", "date", "commit"), [_run_row(run) for run in runs]), ""]
    failures = [failure for run in runs for failure in run["failures"]]
    for failure in failures[:_SHOWN]:
        lines.append(f"- {failure['kind']}: `--case {failure['case']}`, `{_last_line(failure['reason'])}`")
    if len(failures) > _SHOWN:
        lines.append(f"- and {len(failures) - _SHOWN} more")
    return [*lines, ""] if failures else lines


class _Families(dict[str, Counter[str]]):
    """Counts by family."""

    def total(self) -> Counter[str]:
        """Return the counts of all families together."""
        return sum(self.values(), Counter[str]())


def _families(runs: Iterable[Mapping[str, Any]]) -> _Families:
    found: dict[str, Counter[str]] = {}
    for run in runs:
        for family, counts in run["families"].items():
            found.setdefault(family, Counter()).update(counts)
    return _Families(sorted(found.items()))


def _distinct(runs: list[Run]) -> int:
    return len({name for run in runs for name in run["kernels"].split()})


def _about(runs: list[Run]) -> list[str]:
    machines = ", ".join(sorted({run["environment"]["GPU"] for run in runs}))
    cases = _families(runs).total()["cases"]
    return [
        f"`make fuzz-gpu`, seeds {', '.join(str(run['seed']) for run in runs)}: {cases:,} cases of {_distinct(runs):,} "
        f"distinct kernels on {machines}, all of the code {runs[-1]['digest']}. Each case is a kernel on a problem, "
        f"compared with torch in float64. Refused problems are drawn again, and are no cases."
    ]


def _run_row(run: Run) -> tuple[str, ...]:
    environment = run["environment"]
    return str(run["seed"]), str(run["gpus"]), f"{run['seconds']:.0f}", environment["date"], environment["commit"]


def _date(run: Run) -> str:
    date: str = run["environment"]["date"]
    return date


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:200]
