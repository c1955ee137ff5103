#!/usr/bin/env python3
"""Run the GPU tests and the benchmarks, and write docs/gpu-results.md.

Every part leaves its result, with its log and every sample, in the output directory. What the page needs of it is kept
in docs/gpu-results/, and the page is written from what is there: parts may be run by separate calls, each bounded in
time, and a result replaces the one that was there before. A part that fails, is interrupted or cannot be started is
reported as such. With ``--render`` nothing is run: results that another machine left in the output directory are taken
in. So are those of `make fuzz-gpu` and of `tools/fuzz_functions.py`, which this program does not run. Where matplotlib
is installed, the page has figures, which are written to images/ beside it.

    python tools/gpu_results.py --out results --only tests,launch --budget 540
    python tools/gpu_results.py --out results --only sanitizer --shards 8
    python tools/gpu_results.py --out results --render

Most of the time of the GPU tests goes into references on the host. ``--shards N`` shares them out among N processes
that run at the same time, with the host's cores divided between them and, where there are several GPUs, another one for
each to begin with; their results become one. By default there is one process, which needs the least memory and is what
a test that fails is repeated with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script's own directory is on the path, not the checkout that it belongs to

from benchmarks import common  # noqa: E402
from tools.gpu_function_fuzz import function_fuzz_outcome, keep_function_runs  # noqa: E402
from tools.gpu_fuzz import fuzz_outcome, keep_runs, read_runs  # noqa: E402
from tools.gpu_page import KEPT_LINES, Result, outcome, render  # noqa: E402
from tools.gpu_plot import SPEEDS, draw  # noqa: E402
from tools.gpu_reports import merge_sanitizer, merge_tests, read_counts, read_initcheck, read_junit, read_sanitizer  # noqa: E402
from tools.gpu_runs import Command, Ended, run_together  # noqa: E402

__all__ = ["PARTS", "Part", "keep_results", "main", "read_results", "run_part"]

PAGE = ROOT / "docs" / "gpu-results.md"
_FIRST_PORT, _PORTS = 49152, 10  # where compute-sanitizer looks for the program that it checks


@dataclass(frozen=True)
class Part:
    """One thing that is run: its title, its longest time in seconds, and how it is begun."""

    name: str
    title: str
    seconds: int
    arguments: tuple[str, ...]
    kind: str  # tests, sanitizer or benchmark
    divisible: bool = False  # knows --shard, which tests/gpu/conftest.py adds to pytest


_FAST = ("-m", "not slow")
_PYTEST = ("-P", "-m", "pytest", "-p", "no:cacheprovider", "-ra")
_TESTS = (*_PYTEST, "tests/gpu")

#: In the order of importance: what comes first is what a short time is used for.
PARTS: tuple[Part, ...] = (
    Part("tests", "GPU tests", 540, _TESTS, "tests", True),
    Part("sanitizer", "GPU tests under compute-sanitizer memcheck", 570, (*_TESTS, *_FAST), "sanitizer", True),
    Part("launch", "Host time per launch", 240, ("-P", "-m", "benchmarks.launch"), "benchmark"),
    Part("gemm", "Throughput", 540, ("-P", "-m", "benchmarks.gemm"), "benchmark"),
    Part("gemm_classes", "GEMMs of every type and layout", 480, ("-P", "-m", "benchmarks.gemm_classes"), "benchmark"),
    Part("native_gemms", "Ampere-style GEMMs against C++", 240, ("-P", "-m", "benchmarks.native_gemms"), "benchmark"),
    Part("compile", "Compile times", 570, ("-P", "-m", "benchmarks.compile"), "benchmark"),
    Part("pick", "Default pick", 3600, ("-P", "-m", "benchmarks.pick"), "benchmark"),
    Part("simt", "Products of float32", 540, ("-P", "-m", "benchmarks.simt"), "benchmark"),
    Part("tuning", "Tuning", 540, ("-P", "-m", "benchmarks.tuning"), "benchmark"),
    Part("grouped", "Grouped GEMM", 300, ("-P", "-m", "benchmarks.grouped"), "benchmark"),
    Part("conv", "Convolution", 570, ("-P", "-m", "benchmarks.conv"), "benchmark"),
    Part("fusion", "Epilogue functions", 400, ("-P", "-m", "benchmarks.fusion"), "benchmark"),
    Part(
        *("fusion_torch", "Epilogue functions against PyTorch", 400),
        *(("-P", "-m", "benchmarks.fusion_torch"), "benchmark"),
    ),
    Part(
        *("fusion_compile", "Compile times of epilogue functions", 3600),
        *(("-P", "-m", "benchmarks.fusion_compile"), "benchmark"),
    ),
    Part("models", "Models", 540, ("-P", "-m", "benchmarks.models"), "benchmark"),
    Part("zoo", "Twenty models", 1200, ("-P", "-m", "benchmarks.zoo"), "benchmark"),
    Part("compiling", "Compiling models", 1200, ("-P", "-m", "benchmarks.compiling"), "benchmark"),
    Part("examples", "Examples", 240, (*_PYTEST, "tests/examples"), "tests"),
    Part("loading", "Loading and unloading kernels", 300, ("-P", "-m", "benchmarks.loading"), "benchmark"),
    Part("imports", "Imports", 180, ("-P", "-m", "benchmarks.imports"), "benchmark"),
    Part("racecheck", "GPU tests under compute-sanitizer racecheck", 420, (*_TESTS, *_FAST), "sanitizer", True),
    Part("initcheck", "GPU tests under compute-sanitizer initcheck", 420, (*_TESTS, *_FAST), "sanitizer", True),
)
#: The tool of compute-sanitizer by part; the reads of other libraries' kernels are none of our errors.
_TOOLS = {"sanitizer": "memcheck", "racecheck": "racecheck", "initcheck": "initcheck"}
_BY_NAME = {part.name: part for part in PARTS}
#: What takes long, and is run where it is asked for: the last needs no GPU.
_ASKED_FOR = ("racecheck", "initcheck", "pick", "simt", "tuning", "zoo", "compiling", "fusion_compile")
_DEFAULT = [part.name for part in PARTS if part.name not in _ASKED_FOR]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for and write the page; 0 where all of them are well."""
    options = _options().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = {} if options.render else _run_parts(options)
    kept = options.page.with_suffix("")  # beside the page
    keep_results(options.out, kept, options.commit)
    keep_runs(options.out, kept / "fuzz.json", options.commit)
    functions = keep_function_runs(options.out, kept / "fuzz_functions.json", options.commit)
    results, fuzz = read_results(kept), read_runs(kept / "fuzz.json")
    titles = {part.name: part.title for part in PARTS}
    options.page.write_text(render(results, titles, draw(results, options.page), fuzz, functions), encoding="utf-8")
    print(f"== written: {options.page}")
    fuzzed = {"fuzz": fuzz_outcome(fuzz)} if fuzz else {}
    fuzzed |= {"functions": function_fuzz_outcome(functions)} if functions else {}
    outcomes = outcomes or {name: outcome(result) for name, result in results.items()} | fuzzed
    return 0 if all(outcome == "passed" for outcome in outcomes.values()) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the logs and of all samples")
    parser.add_argument("--only", type=_parts, default=_DEFAULT, metavar="PART,...", help=", ".join(_BY_NAME))
    parser.add_argument("--render", action="store_true", help="run nothing, take in what is there")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write (%(default)s)")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all parts together")
    parser.add_argument("--least", type=float, default=20, help="do not start a part with less (%(default)s)")
    parser.add_argument("--commit", default="", help="what is measured, for a copy of a checkout")
    parser.add_argument("--shards", type=_positive, default=1, metavar="N", help="processes of the GPU tests (1)")
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


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes, 1 or more")
    return int(text)


def _run_parts(options: argparse.Namespace) -> dict[str, str]:
    """Run what is asked for, as long as there is time, and return how each part ended."""
    deadline = time.monotonic() + options.budget
    outcomes = {}
    for name in options.only:
        part, left = _BY_NAME[name], deadline - time.monotonic()
        if left < options.least:
            outcomes[name] = f"not started: {left:.0f} s are left of {options.budget:.0f}"
        else:
            seconds, extra = min(part.seconds, left), _extra(part, options)
            result = run_part(part, options.out, seconds, extra, options.shards, options.commit)
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


def run_part(
    part: Part, out: Path, seconds: float, extra: Sequence[str] = (), shards: int = 1, commit: str = ""
) -> Result:
    """Run one part for at most so many seconds and return its result, which is also in ``<out>/<name>.json``.

    Tests that can be shared out are run by so many processes at once. `commit` is what is measured, where that is known
    better than by the checkout.
    """
    _forget(part, out)  # what this run does not measure must not look as if it had
    environment, started = common.environment(), time.monotonic()
    try:
        ended = _run_shares(part, out, seconds, list(extra), shards)
    except (common.BenchmarkError, OSError) as error:
        (out / f"{part.name}.log").write_text(f"{error}\n", encoding="utf-8")
        result = _collect(part, out, environment, [])
        run: Result = {"command": part.name, "returncode": None, "timed_out": False}
        output = str(error)
    else:
        _join_logs(ended, out / f"{part.name}.log")
        ended = [process for process in ended if not process.idle] or ended
        result = _collect(part, out, environment, ended)
        run = _how(ended, out)
        output = next((process for process in ended if not process.well), ended[-1]).printed
    result["run"] = {**run, "seconds": round(time.monotonic() - started, 1), "shards": shards if part.divisible else 1}
    result["output"] = [] if outcome(result) == "passed" else _portable(output, out).splitlines()[-KEPT_LINES:]
    result["environment"]["commit"] = commit or result["environment"]["commit"]
    common.write_json(out / f"{part.name}.json", result)
    return result


def _forget(part: Part, out: Path) -> None:
    """Delete what an earlier run of the part left, by however many processes."""
    shares = [*out.glob(f"{part.name}-*.log"), *out.glob(f"{part.name}-*.xml")] if part.divisible else []
    for file in [*(out / f"{part.name}.{kind}" for kind in ("json", "xml", "log")), *shares]:
        file.unlink(missing_ok=True)


def _run_shares(part: Part, out: Path, seconds: float, extra: list[str], shards: int) -> list[Ended]:
    """Run all shares of a part: those that may run at once, and then what needs the device to itself."""
    deadline = time.monotonic() + seconds
    ended: list[Ended] = []
    for shares in _turns(part, shards):
        commands = [_command(part, out, extra, share, len(shares)) for share in shares]
        left = max(0.0, deadline - time.monotonic())
        many = f"{len(commands)} processes, the first of them " if len(commands) > 1 else ""
        print(f"== {many}{commands[0]} (at most {left:.0f} s)", flush=True)
        ended += run_together(commands, left)
        if any(process.timed_out for process in ended):
            break
    return ended


def _turns(part: Part, shards: int) -> list[list[str]]:
    """Return the shares of a part that run at once, turn after turn; the share "" is all of it."""
    if shards == 1 or not part.divisible:
        return [[""]]
    at_once = [f"{number}/{shards}" for number in range(1, shards + 1)]
    # Tests that need the device to themselves are slow ones, which the sanitizer does not run.
    return [at_once, ["alone"]] if part.kind == "tests" else [at_once]


def _join_logs(ended: Sequence[Ended], log: Path) -> None:
    if len(ended) > 1:
        texts = (f"== {item.command.log.stem}: ended with {item.returncode}\n{item.printed}" for item in ended)
        log.write_text("\n".join(texts), encoding="utf-8")


def _how(ended: Sequence[Ended], out: Path) -> Result:
    """Return how the processes of a part ended, as if they were one."""
    return {
        "command": _portable(str(ended[0].command), out),
        "returncode": next((process.returncode for process in ended if process.returncode != 0), 0),
        "timed_out": any(process.timed_out for process in ended),
    }


def _portable(text: str, out: Path) -> str:
    """Return `text` without the names of this machine's directories."""
    return common.without_places(text.replace(str(out), "results"))


def _command(part: Part, out: Path, extra: list[str], share: str = "", at_once: int = 1) -> Command:
    """Return the command of a part, or of a share of it that runs at once with others."""
    number = share.partition("/")[0]
    log = out / (f"{part.name}-{number}.log" if share else f"{part.name}.log")
    python = [sys.executable, *part.arguments]
    if part.kind == "benchmark":
        return Command([*python, "--out", str(out), *extra], log)
    caching = "--caching-allocator" in extra
    report = ["--junitxml", str(log.with_suffix(".xml")), *(["--shard", share] if share else [])]
    report += [word for word in extra if word != "--caching-allocator"]
    variables, mark = _divided_cores(at_once), f"[{number}] " if share else ""
    if number.isdecimal():
        variables |= _shared_gpus(int(number))
    if part.kind == "tests":
        return Command([*python, *report], log, variables, mark)
    tool = _TOOLS[part.name]
    # Compilers that the tests start are none of the sanitizer's business.
    checked = ["--tool", tool, "--target-processes", "application-only"]
    # What initcheck finds in the kernels of other libraries must neither fail the run nor crowd out ours.
    checked += ["--print-limit", "10000"] if tool == "initcheck" else ["--error-exitcode", "1"]
    # For backtraces of the host it walks Python's frames and seems to keep them, with all that must be given back.
    checked += ["--show-backtrace", "device"]
    if at_once > 1:  # each has its own ports, or else the eleventh would find none
        checked += ["--port", str(_FIRST_PORT + _PORTS * (int(number) - 1))]
    # torch's pool is one allocation to the sanitizer, which could not see that a kernel leaves its tensor.
    if not caching and tool == "memcheck":
        variables["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    return Command([_compute_sanitizer(), *checked, *python, *report], log, variables, mark)


def _divided_cores(at_once: int) -> dict[str, str]:
    """Return the variables that leave each of several processes its part of the cores, where the user has no say."""
    if at_once == 1:
        return {}
    cores = str(max(1, len(os.sched_getaffinity(0)) // at_once))
    # Not PYCUTLASS_JOBS: one process compiles for all of them.
    return {} if os.environ.get("OMP_NUM_THREADS") else {"OMP_NUM_THREADS": cores}


def _shared_gpus(number: int) -> dict[str, str]:
    """Return the variables that give each of several processes another GPU of the machine to begin with."""
    from pycutlass import device

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(ordinal) for ordinal in range(device.count())]
    first = number % max(1, len(gpus))
    # All of them, in another order: some tests need two.
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[first:] + gpus[:first])} if len(gpus) > 1 else {}


def _compute_sanitizer() -> str:
    from pycutlass import toolkit

    found = toolkit.find_tool("compute-sanitizer")
    if found is None:
        raise common.BenchmarkError(
            "compute-sanitizer is neither on PATH nor in the CUDA toolkit: it is part of the CUDA 13.0 toolkit"
        )
    return str(found)


# Reading


def _collect(part: Part, out: Path, environment: Result, ended: Sequence[Ended]) -> Result:
    """Return what the processes of a part left behind, or that they left nothing."""
    if part.kind == "benchmark":
        file = out / f"{part.name}.json"
        if file.is_file():
            result: Result = json.loads(file.read_text(encoding="utf-8"))
            return result
        return {"name": part.name, "title": part.title, "environment": environment, "complete": False}
    tests = merge_tests({process.command.log.stem: _read_tests(process) for process in ended})
    result = {"name": part.name, "title": part.title, "environment": environment, "tests": tests}
    if part.kind == "sanitizer":
        read = read_initcheck if part.name == "initcheck" else read_sanitizer
        result["sanitizer"] = merge_sanitizer([read(process.printed) for process in ended])
    return result


def _read_tests(process: Ended) -> Result | None:
    file = process.command.log.with_suffix(".xml")
    if not file.is_file():
        return None
    return {**read_junit(file.read_text(encoding="utf-8")), **read_counts(process.printed)}


# Keeping


def keep_results(out: Path, kept: Path, commit: str = "") -> None:
    """Put what the page needs of the results in `out` into the directory `kept`, in place of those of the same parts.

    `commit` is what was measured where the part could not tell.
    """
    kept.mkdir(parents=True, exist_ok=True)
    for name, result in read_results(out).items():
        if commit and result["environment"]["commit"] == "unknown":
            result["environment"]["commit"] = commit
        if "raw" in result:  # every sample, of which the figures show a few
            result["raw"] = {SPEEDS: result["raw"][SPEEDS]} if SPEEDS in result["raw"] else {}
        common.write_json(kept / f"{name}.json", result)


def read_results(folder: Path) -> dict[str, Result]:
    """Return the results that are in `folder`, by part, in the order of the page."""
    files = {part.name: folder / f"{part.name}.json" for part in PARTS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


if __name__ == "__main__":
    sys.exit(main())
