"""Runs of the fuzz of epilogue functions on the page of GPU results: summed over all that were kept, by seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import common
from tools.fuzz.tally import code_digest
from tools.gpu_fuzz import part_row

__all__ = [
    "TITLE",
    "function_fuzz_outcome",
    "function_fuzz_row",
    "function_fuzz_section",
    "keep_function_runs",
    "made_report",
]

Run = dict[str, Any]

TITLE = "Random epilogue functions in random kernels"
_LEAST_FUNCTIONS = 1000
_COUNTS = ("kernels", "cases", "wrong", "not built")
_SHOWN = 20  # failures


def made_report(
    seed: int,
    seconds: float,
    tally: Mapping[str, int],
    nodes: Mapping[str, int],
    functions: Iterable[str],
    failures: Iterable[str],
) -> Run:
    """Return what is kept of a run; `functions` are digests of the graphs that ran."""
    return {
        "environment": common.environment(),
        "seed": seed,
        "digest": code_digest(),
        "seconds": round(seconds, 1),
        "tally": dict(tally),
        "nodes": dict(nodes),
        "functions": sorted(set(functions)),
        "failures": list(failures),
    }


def keep_function_runs(out: Path, kept: Path, commit: str = "") -> list[Run]:
    """Add the runs that are in the directory `out` to the file `kept`, and return all: the newest of each seed.

    Those without a GPU (``--dry``) are left out.
    """
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("fuzz-functions-*.json"))]
    fresh = [run for run in found if run["environment"]["GPU"] != "none"]
    for run in fresh:
        if commit and run["environment"]["commit"] == "unknown":
            run["environment"]["commit"] = commit
    before: list[Run] = json.loads(kept.read_text(encoding="utf-8"))["runs"] if kept.is_file() else []
    by_seed = {run["seed"]: run for run in sorted([*before, *fresh], key=_date)}
    runs = sorted(by_seed.values(), key=_date)
    if fresh:
        common.write_json(kept, {"runs": runs})
    return runs


def function_fuzz_outcome(runs: list[Run]) -> str:
    """Return "passed", or what is wrong."""
    if failures := sum(len(run["failures"]) for run in runs):
        return f"failures: {failures}"
    functions = _distinct(runs)
    return "passed" if functions >= _LEAST_FUNCTIONS else f"few so far: {functions:,} of {_LEAST_FUNCTIONS:,} functions"


def function_fuzz_row(runs: list[Run]) -> tuple[str, ...]:
    """Return the line of the table of parts."""
    return part_row(TITLE, runs, function_fuzz_outcome)


def function_fuzz_section(runs: list[Run]) -> list[str]:
    """Return the section: what was drawn, run by run, and every failure."""
    if not runs:
        return []
    newest = [run for run in runs if run["digest"] == runs[-1]["digest"]]
    nodes = sum((Counter(run["nodes"]) for run in runs), Counter[str]())
    about = (
        f"`python -m tools.fuzz_functions`: {_distinct(runs):,} different functions, {_distinct(newest):,} of them "
        "with the newest code, in random kernels of every family on random problems, each compared with NumPy in "
        "float64. Outputs and results are poisoned before, with room between their lines that must stay as it is."
    )
    rows = [
        (
            str(run["seed"]),
            *(f"{run['tally'].get(what, 0):,}" for what in _COUNTS),
            run["environment"]["GPU"].split(",")[0],
            run["environment"]["date"],
            run["environment"]["commit"],
            run["digest"],
        )
        for run in runs
    ]
    lines = [f"## {TITLE}", "", about, "", *common.table(("seed", *_COUNTS, "GPU", "date", "commit", "code"), rows), ""]
    lines += [f"Nodes: {', '.join(f'{node} {number:,}' for node, number in sorted(nodes.items()))}.", ""]
    failures = [failure for run in runs for failure in run["failures"]]
    lines += [f"- `{failure.strip().splitlines()[0][:200]}`" for failure in failures[:_SHOWN]]
    if len(failures) > _SHOWN:
        lines.append(f"- and {len(failures) - _SHOWN} more")
    return [*lines, ""] if failures else lines


def _distinct(runs: list[Run]) -> int:
    return len({function for run in runs for function in run["functions"]})


def _date(run: Run) -> str:
    date: str = run["environment"]["date"]
    return date
