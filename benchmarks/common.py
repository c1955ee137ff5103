"""What every benchmark shares: the record of where it ran, checks against limits, and results as JSON and Markdown."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = [
    "ROOT",
    "BenchmarkError",
    "Report",
    "child_environment",
    "environment",
    "is_installed",
    "markdown",
    "number",
    "options",
    "table",
    "verdicts",
    "without_places",
    "write_json",
]

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_OUT = ROOT / "build" / "benchmarks"

Result = dict[str, Any]


class BenchmarkError(Exception):
    """A result is wrong, or something that is measured is missing."""


class Report:
    """The results of one benchmark, saved as they come: what was measured before an interruption is kept.

    Parameters
    ----------
    name : str
        File name of the results.
    title, about : str
        Heading and first paragraph of the Markdown.
    out : Path
        Directory of the results.
    quick : bool
        Whether there are too few repetitions to quote the results.
    """

    def __init__(self, name: str, title: str, about: str, out: Path, *, quick: bool = False) -> None:
        self._out = out
        self._started = time.monotonic()
        self.result: Result = {
            "name": name,
            "title": title,
            "about": f"{about} **A quick run: not to be quoted.**" if quick else about,
            "complete": False,
            "environment": environment(),
            "seconds": 0.0,
            "checks": [],
            "tables": [],
            "failures": [],
            "raw": {},
        }

    def check(self, what: str, value: float, limit: float, unit: str, *, at_least: bool = False) -> None:
        """Record a number that has a limit, and whether it keeps to it."""
        passed = value >= limit if at_least else value <= limit
        self.result["checks"].append(
            {"what": what, "value": value, "limit": limit, "unit": unit, "at_least": at_least, "passed": passed}
        )

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> None:
        """Record a table of texts."""
        body = [list(row) for row in rows]
        self.result["tables"].append({"title": title, "columns": list(columns), "rows": body, "note": note})

    def raw(self, key: str, value: Any) -> None:
        """Record numbers for whoever wants to look again; they are in the JSON only."""
        self.result["raw"][key] = value

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Do one part of the benchmark. Where it fails, that is recorded and the other parts go on."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {name}", file=sys.stderr, flush=True)
        try:
            yield
        # Whatever goes wrong is a result, which is reported: that is what distinguishes this from hiding it.
        except Exception as error:
            text = without_places(traceback.format_exc())
            print(text, file=sys.stderr, flush=True)
            failure = {"part": name, "error": without_places(f"{type(error).__name__}: {error}"), "traceback": text}
            self.result["failures"].append(failure)
        finally:
            self.save()

    def save(self) -> None:
        """Write the JSON and the Markdown."""
        self.result["seconds"] = round(time.monotonic() - self._started, 1)
        write_json(self._out / f"{self.result['name']}.json", self.result)
        (self._out / f"{self.result['name']}.md").write_text(markdown(self.result), encoding="utf-8")

    def finish(self) -> int:
        """Write and print the results; return 0 where all was measured and every limit kept, else 1."""
        self.result["complete"] = True
        self.save()
        print(markdown(self.result))
        missed = [check for check in self.result["checks"] if not check["passed"]]
        return 1 if missed or self.result["failures"] else 0


def options(description: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """Return the command line that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="directory of the results (%(default)s)")
    parser.add_argument("--only", type=_listed(parts), default=list(parts), metavar="PART,...", help=", ".join(parts))
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: to try it out, not to quote")
    return parser


def _listed(known: Sequence[str]) -> Any:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(known)}")
        return chosen

    return names


def write_json(path: Path, value: Any) -> None:
    """Write `value` so that whoever reads `path` finds all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(value, indent=1), encoding="utf-8")
    fresh.replace(path)


def markdown(result: Mapping[str, Any]) -> str:
    """Return the results of one benchmark as Markdown, beginning with a heading of the second level."""
    lines = [f"## {result['title']}", "", result["about"], ""]
    if not result["complete"]:
        lines += [f"**Interrupted after {result['seconds']:.0f} s: what is missing below was not measured.**", ""]
    if result["checks"]:
        lines += [*verdicts(result["checks"]), ""]
    for item in result["tables"]:
        lines += [f"### {item['title']}", "", *table(item["columns"], item["rows"]), ""]
        lines += [item["note"], ""] if item["note"] else []
    for failure in result["failures"]:
        lines += [f"### Failed: {failure['part']}", "", "```", failure["traceback"].rstrip(), "```", ""]
    return "\n".join(lines)


def verdicts(checks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of checks with their verdicts."""
    rows = [
        (
            check["what"],
            f"{number(check['value'])} {check['unit']}".strip(),
            f"{'at least' if check['at_least'] else 'at most'} {number(check['limit'])} {check['unit']}".strip(),
            "reached" if check["passed"] else "**missed**",
        )
        for check in checks
    ]
    return table(("what", "measured", "limit", "verdict"), rows)


def without_places(text: str) -> str:
    """Return `text` with paths relative to this checkout and to the interpreter: they are of use to nobody else."""
    text = text.replace(f"{ROOT}/", "").replace(f"{sys.prefix}/", "")
    return re.sub(rf"{re.escape(str(ROOT))}(?![\w.-])", ".", text)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows),
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def number(value: float) -> str:
    """Return `value` with about four digits, without an exponent."""
    size = abs(value)
    digits = 0 if size >= 1000 or value == int(value) else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}"


def child_environment(**changes: str | None) -> dict[str, str]:
    """Return the environment of a child that shall import this PyCUTLASS and these benchmarks; None unsets."""
    import pycutlass

    package = Path(pycutlass.__file__).resolve().parents[1]
    paths = [str(package), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    merged = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def is_installed(package: str) -> bool:
    """Return whether `package`, which may be part of another, could be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # what it is part of is not installed
        return False


def environment() -> dict[str, str]:
    """Return where and with what this runs; "none" or "unknown" where that cannot be told."""
    gpu, driver = _gpu()
    versions = {
        "NumPy": _version("numpy"),
        "torch": _version("torch"),
        "CuPy": _version("cupy-cuda13x", "cupy"),
        "Triton": _version("triton"),
        "cuda-core": _version("cuda-core"),
    }
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "GPU": gpu,
        "driver": driver,
        "CUDA toolkit": _toolkit(),
        "host compiler": _first_line("g++", "--version"),
        "CPU": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "Python": platform.python_version(),
        **versions,
        **_own_versions(),
    }


def _gpu() -> tuple[str, str]:
    from pycutlass import device

    line = _first_line("nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader")
    name, driver, limit = [*(field.strip() for field in line.split(",")), "", ""][:3]
    if driver:
        return f"{name}, power limit {limit}", driver
    return (device.describe(0).name, "unknown") if device.available() else ("none", "none")


def _toolkit() -> str:
    from pycutlass import toolkit
    from pycutlass.errors import ToolkitError

    try:
        found = toolkit.find_nvcc()
    except ToolkitError:
        return "no nvcc"
    assert found.nvcc
    release = re.search(r"\bV([\d.]+)", _output(str(found.nvcc), "--version"))
    return release[1] if release else found.version


def _own_versions() -> dict[str, str]:
    import pycutlass
    from pycutlass import toolkit
    from pycutlass.errors import ToolkitError

    try:
        cutlass = toolkit.find_cutlass().version
    except ToolkitError:
        cutlass = "none"
    return {"PyCUTLASS": pycutlass.__version__, "CUTLASS": cutlass}


def _version(*distributions: str) -> str:
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "none"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    commit = _first_line("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = commit and _first_line("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return f"{commit} with changes" if changed else commit or "unknown"


def _first_line(*command: str) -> str:
    return _output(*command).partition("\n")[0]


def _output(*command: str) -> str:
    """Return what a command prints, or "" where it cannot be run or fails."""
    if shutil.which(command[0]) is None:
        return ""
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""
