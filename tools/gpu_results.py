#!/usr/bin/env python3
"""Run the GPU tests and the benchmarks, and write docs/gpu-results.md.

Every part leaves its result in the output directory, so that parts may be run by separate calls, each bounded in time;
a result replaces the one that was there before. A part that fails, is interrupted or cannot be started is reported as
such. With ``--render`` nothing is run and the page is written from what is there.

    python tools/gpu_results.py --out results --only tests,launch --budget 540
    python tools/gpu_results.py --out results --render
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script's own directory is on the path, not the checkout that it belongs to

from benchmarks import common  # noqa: E402
from tools.gpu_page import KEPT_LINES, Result, outcome, render  # noqa: E402

__all__ = ["PARTS", "Part", "main", "read_counts", "read_junit", "read_sanitizer", "run_part"]

PAGE = ROOT / "docs" / "gpu-results.md"
_PATIENCE = 15.0  # seconds between the request to end and the end


@dataclass(frozen=True)
class Part:
    """One thing that is run: its title, its longest time in seconds, and how it is begun."""

    name: str
    title: str
    seconds: int
    arguments: tuple[str, ...]
    kind: str  # tests, sanitizer or benchmark


_FAST = ("-m", "not slow")
_PYTEST = ("-P", "-m", "pytest", "-p", "no:cacheprovider", "-ra")
_TESTS = (*_PYTEST, "tests/gpu")

#: In the order of importance: what comes first is what a short time is used for.
PARTS: tuple[Part, ...] = (
    Part("tests", "GPU tests", 540, _TESTS, "tests"),
    Part("sanitizer", "GPU tests under compute-sanitizer memcheck", 570, (*_TESTS, *_FAST), "sanitizer"),
    Part("launch", "Host time per launch", 240, ("-P", "-m", "benchmarks.launch"), "benchmark"),
    Part("gemm", "Throughput", 480, ("-P", "-m", "benchmarks.gemm"), "benchmark"),
    Part("compile", "Compile times", 570, ("-P", "-m", "benchmarks.compile"), "benchmark"),
    Part("grouped", "Grouped GEMM", 300, ("-P", "-m", "benchmarks.grouped"), "benchmark"),
    Part("conv", "Convolution", 570, ("-P", "-m", "benchmarks.conv"), "benchmark"),
    Part("examples", "Examples", 240, (*_PYTEST, "tests/examples"), "tests"),
    Part("imports", "Imports", 180, ("-P", "-m", "benchmarks.imports"), "benchmark"),
    Part("racecheck", "GPU tests under compute-sanitizer racecheck", 420, (*_TESTS, *_FAST), "sanitizer"),
)
_BY_NAME = {part.name: part for part in PARTS}
_DEFAULT = [part.name for part in PARTS if part.name != "racecheck"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for and write the page; 0 where all of them are well."""
    options = _options().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = {} if options.render else _run_parts(options)
    results = read_results(options.out, options.commit)
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(render(results, {part.name: part.title for part in PARTS}), encoding="utf-8")
    print(f"== written: {options.page}")
    outcomes = outcomes or {name: outcome(result) for name, result in results.items()}
    return 0 if all(outcome == "passed" for outcome in outcomes.values()) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the raw results")
    parser.add_argument("--only", type=_parts, default=_DEFAULT, metavar="PART,...", help=", ".join(_BY_NAME))
    parser.add_argument("--render", action="store_true", help="run nothing, write the page from what is there")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write (%(default)s)")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all parts together")
    parser.add_argument("--least", type=float, default=20, help="do not start a part with less (%(default)s)")
    parser.add_argument("--commit", default="", help="what was measured, where the checkout has no repository")
    parser.add_argument("--quick", action="store_true", help="benchmarks with few repetitions: not to quote")
    parser.add_argument("--tests", default="", metavar="EXPRESSION", help="pytest -k for the tests and memcheck")
    parser.add_argument("--racecheck-tests", default="gemm", metavar="EXPRESSION", help="pytest -k (%(default)s)")
    parser.add_argument(
        "--caching-allocator",
        action="store_true",
        help="let torch keep its pools under compute-sanitizer, which then does not see where a tensor ends",
    )
    return parser


def _parts(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(_BY_NAME)}")
    return [part.name for part in PARTS if part.name in names]


def _run_parts(options: argparse.Namespace) -> dict[str, str]:
    """Run what is asked for, as long as there is time, and return how each part ended."""
    deadline = time.monotonic() + options.budget
    outcomes = {}
    for name in options.only:
        part, left = _BY_NAME[name], deadline - time.monotonic()
        if left < options.least:
            outcomes[name] = f"not started: {left:.0f} s are left of {options.budget:.0f}"
        else:
            result = run_part(part, options.out, min(part.seconds, left), _extra(part, options))
            outcomes[name] = outcome(result)
        print(f"== {name}: {outcomes[name]}", flush=True)
    return outcomes


def _extra(part: Part, options: argparse.Namespace) -> list[str]:
    """Return the arguments of a part that follow from the options."""
    if part.kind == "benchmark":
        return ["--quick"] if options.quick else []
    expression = options.racecheck_tests if part.name == "racecheck" else options.tests
    caching = ["--caching-allocator"] if part.kind == "sanitizer" and options.caching_allocator else []
    return [*(["-k", expression] if expression else []), *caching]


# Running


def run_part(part: Part, out: Path, seconds: float, extra: Sequence[str] = ()) -> Result:
    """Run one part for at most so many seconds and return its result, which is also in ``<out>/<name>.json``."""
    file, log = out / f"{part.name}.json", out / f"{part.name}.log"
    file.unlink(missing_ok=True)  # what this run does not measure must not look as if it had
    environment = common.environment()
    try:
        command, variables = _command(part, out, list(extra))
    except common.BenchmarkError as error:
        log.write_text(f"{error}\n", encoding="utf-8")
        run: Result = {"command": part.name, "returncode": None, "timed_out": False, "seconds": 0.0}
    else:
        run = _run(command, variables, log, seconds)
        run["command"] = _portable(run["command"], out)
    result = {**_collect(part, out, environment), "run": run}
    output = _portable(log.read_text(encoding="utf-8", errors="replace"), out).splitlines()
    result["output"] = [] if outcome(result) == "passed" else output[-KEPT_LINES:]
    common.write_json(file, result)
    return result


def _portable(text: str, out: Path) -> str:
    """Return `text` without the names of this machine's directories."""
    return common.without_places(text.replace(str(out), "results"))


def _command(part: Part, out: Path, extra: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command of a part and the environment variables that it needs."""
    python = [sys.executable, *part.arguments]
    if part.kind == "benchmark":
        return [*python, "--out", str(out), *extra], {}
    caching = "--caching-allocator" in extra
    report = ["--junitxml", str(out / f"{part.name}.xml"), *(word for word in extra if word != "--caching-allocator")]
    if part.kind == "tests":
        return [*python, *report], {}
    tool = "racecheck" if part.name == "racecheck" else "memcheck"
    # Compilers that the tests start are none of the sanitizer's business.
    checked = ["--tool", tool, "--error-exitcode", "1", "--target-processes", "application-only"]
    # torch's pool is one allocation to the sanitizer, which could not see that a kernel leaves its tensor.
    variables = {} if caching or tool != "memcheck" else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return [_compute_sanitizer(), *checked, *python, *report], variables


def _compute_sanitizer() -> str:
    from pycutlass import toolkit

    found = toolkit.find_tool("compute-sanitizer")
    if found is None:
        raise common.BenchmarkError(
            "compute-sanitizer is neither on PATH nor in the CUDA toolkit: it is part of the CUDA 13.0 toolkit"
        )
    return str(found)


def _run(command: list[str], variables: Mapping[str, str], log: Path, seconds: float) -> Result:
    """Run `command`, showing and keeping what it prints; interrupt it after so many seconds."""
    shown = shlex.join([*(f"{name}={value}" for name, value in variables.items()), *command])
    print(f"== {shown} (at most {seconds:.0f} s)", flush=True)
    started, late = time.monotonic(), threading.Event()
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=common.child_environment(PYTHONUNBUFFERED="1", **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # so that what the part starts is interrupted with it
        ) as process,
    ):
        threading.Thread(target=_end_late, args=(process, seconds, late), daemon=True).start()
        try:
            _show_and_keep(process, file)
        except BaseException:  # KeyboardInterrupt: a part must not outlive this program
            _signal(process, signal.SIGKILL)
            raise
    taken = round(time.monotonic() - started, 1)
    return {"command": shown, "returncode": process.returncode, "timed_out": late.is_set(), "seconds": taken}


def _show_and_keep(process: subprocess.Popen[bytes], file: IO[bytes]) -> None:
    assert process.stdout
    for line in process.stdout:
        file.write(line)
        sys.stdout.write(line.decode(errors="replace"))
        sys.stdout.flush()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.killpg(process.pid, number)


def _end_late(process: subprocess.Popen[bytes], seconds: float, late: threading.Event) -> None:
    """Interrupt a process that takes too long, so that it can save what it has, and then end it."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        late.set()
        for number in (signal.SIGINT, signal.SIGKILL):
            _signal(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
                return


def _collect(part: Part, out: Path, environment: Result) -> Result:
    """Return what a part left behind, or that it left nothing."""
    if part.kind == "benchmark":
        file = out / f"{part.name}.json"
        if file.is_file():
            result: Result = json.loads(file.read_text(encoding="utf-8"))
            return result
        return {"name": part.name, "title": part.title, "environment": environment, "complete": False}
    file, log = out / f"{part.name}.xml", out / f"{part.name}.log"
    printed = log.read_text(encoding="utf-8", errors="replace")
    tests = {**read_junit(file.read_text(encoding="utf-8")), **read_counts(printed)} if file.is_file() else None
    file.unlink(missing_ok=True)
    result = {"name": part.name, "title": part.title, "environment": environment, "tests": tests}
    if part.kind == "sanitizer":
        result["sanitizer"] = read_sanitizer(printed)
    return result


def read_junit(text: str) -> Result:
    """Return the counts of a junit file, and the names and reasons of what failed and of what was skipped."""
    result: Result = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0, "failures": [], "skips": []}
    if not text.strip():
        return result
    kinds = (("failure", "failed", "failures"), ("error", "errors", "failures"), ("skipped", "skipped", "skips"))
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        for tag, count, listing in kinds:
            found = case.find(tag)
            if found is not None:
                result[count] += 1
                reason = (found.get("message") or found.text or "").strip().splitlines()
                result[listing].append([name, common.without_places(reason[0]) if reason else ""])
                break
        else:
            result["passed"] += 1
    return result


def read_counts(text: str) -> dict[str, int]:
    """Return the counts in the last line of pytest's output; none where there is no such line.

    They count where pytest was interrupted: the junit file then has the test that was running as one that passed.
    """
    lines = re.findall(r"^=+ (\d+ [a-z].*) in [\d.]+s\b.*=+$", text, flags=re.MULTILINE)
    if not lines:
        return {}
    words = {"passed": "passed", "failed": "failed", "errors": "errors?", "skipped": "skipped"}
    found = {key: re.search(rf"(\d+) {word}\b", lines[-1]) for key, word in words.items()}
    return {key: int(match[1]) if match else 0 for key, match in found.items()}


def read_sanitizer(text: str) -> Result:
    """Return what compute-sanitizer summed up, and the first lines of what it found."""
    summaries = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", text, flags=re.MULTILINE)
    counts = [int(number) for number in re.findall(r"SUMMARY: (\d+)", "\n".join(summaries))]
    marked = [line for line in text.splitlines() if line.startswith("=========")]
    found = [line for line in marked if line.strip("= ") and "SUMMARY" not in line and "COMPUTE-SANITIZER" not in line]
    # Without a summary the program did not come to its end, and nothing is known.
    return {"errors": sum(counts) if counts else None, "summaries": summaries, "found": found[:KEPT_LINES]}


def read_results(out: Path, commit: str = "") -> dict[str, Result]:
    """Return the results that are in `out`, by part, in the order of the page.

    `commit` is what was measured where the part could not tell.
    """
    files = {part.name: out / f"{part.name}.json" for part in PARTS}
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}
    for result in results.values():
        if commit and result["environment"]["commit"] == "unknown":
            result["environment"]["commit"] = commit
    return results


if __name__ == "__main__":
    sys.exit(main())
