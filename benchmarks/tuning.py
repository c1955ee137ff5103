"""Tuning against its limits, and products whose kernel nobody names against torch.

``cold`` tunes a shape whose kernels have to be compiled, ``tuned`` shapes whose kernels are there; what was found is
compared with the fastest of all candidates. ``first`` is the first product of a process that may not compile,
``handles`` what a process holds after it has tuned, and ``ordinary`` a hundred products by us and by torch.

But for ``cold``, kernels come from a package that a machine without a GPU can make. Where there is none, it is made
first; what one lacks is compiled when it is needed:

    python3 -m benchmarks.tuning --build build/tuning-kernels
    python3 -m benchmarks.tuning --kernels build/tuning-kernels
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, BenchmarkError, Report, child_environment, number, options
from benchmarks.ordinary import ORDINARY, Ordinary, against_torch
from benchmarks.tuning_handles import handles
from benchmarks.tuning_kernels import TUNED, build, problem_of, use
from pycutlass import device
from pycutlass.plan import Candidate, ranking
from pycutlass.trials import Database
from pycutlass.tuning import tune

if TYPE_CHECKING:
    from benchmarks.pick_shapes import Shape
    from pycutlass.tuning import ProblemReport

__all__ = ["PARTS", "main"]

PARTS = ("cold", "tuned", "first", "handles", "ordinary")
KERNELS = ROOT / "build" / "tuning-kernels"
COLD_LIMIT, READY_LIMIT = 60.0, 5.0  # seconds until the fastest is known
SHARE_LIMIT = 0.99  # of the fastest of all candidates
FIRST_LIMIT = 150.0  # ms
_ENDING = 0.5  # seconds that are left to end processes, which have torch
_CORES = 16  # that the limit of a cold cache is for
_FIRST = (Ordinary("bf16", "tn", 128, 4096, 4096), Ordinary("f16", "tn", 1, 3072, 768))
_HELD_KERNELS = 300
_ABOUT = (
    "Tuning one shape, whose result is measured once more among all candidates; the first product of a process that "
    "may not compile; what tuning leaves behind; and products as programs have them against torch.matmul."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or make the kernels that it needs."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="only compile kernels, into a package there")
    parser.add_argument("--kernels", type=Path, default=KERNELS, metavar="FOLDER", help="take them there (%(default)s)")
    chosen = parser.parse_args(argv)
    if chosen.build:
        failures = build(chosen.build, chosen.only)
        print(*failures, sep="\n", end="\n" if failures else "")
        return 1 if failures else 0
    device.require()
    report = Report("tuning", "Tuning", _ABOUT, chosen.out, quick=chosen.quick)
    with _environment(dict(os.environ)) as given:
        with report.part("kernels"):
            if not use(chosen.kernels):
                failures = build(chosen.kernels, chosen.only)
                if failures or not use(chosen.kernels):
                    raise BenchmarkError(f"kernels are missing: {failures}")
        if not report.result["failures"]:
            _measure(report, chosen.only, chosen.quick, chosen.kernels, given)
    return report.finish()


def _measure(report: Report, only: Sequence[str], quick: bool, package: Path, given: Mapping[str, str]) -> None:
    """Measure some parts: with few repetitions, with the kernels of a package, and cold in the environment `given`."""
    if "handles" in only:  # before others keep kernels loaded
        with report.part("handles"):
            handles(report, 20 if quick else _HELD_KERNELS)
    if "first" in only:
        with report.part("first"):
            first(report, package, 1 if quick else 5)
    if "tuned" in only:
        for shape in TUNED[: 1 if quick else None]:
            with report.part(f"tuned {shape.name}"):
                ready(report, shape)
    if "cold" in only:
        with report.part("cold"):
            cold(report, given)
    if "ordinary" in only:
        against_torch(report, ORDINARY[:: 10 if quick else 1], 0.1 if quick else 0.3)


# Tuning


def cold(report: Report, given: Mapping[str, str]) -> None:
    """Tune a shape with an empty cache in the environment that was `given`, and record how good the result is."""
    shape = TUNED[0]
    changes = {"PYCUTLASS_BACKEND": "nvcc"}  # whoever names a compiler gets no kernel of a package
    with tempfile.TemporaryDirectory() as name, _environment({**given, **changes, "PYCUTLASS_CACHE_DIR": name}):
        found, seconds = _tuned(shape, COLD_LIMIT)
    cores = len(os.sched_getaffinity(0))
    what = f"{shape.name}, cold cache, {cores} cores"
    _tell(report, what, shape, found, seconds, COLD_LIMIT if cores >= _CORES else COLD_LIMIT * _CORES / cores)


def ready(report: Report, shape: Shape) -> None:
    """Tune a shape whose kernels are compiled, and record how good the result is."""
    from benchmarks.pick_cases import compiled

    kernels = [kernel for each in _ranked(shape) for kernel in each.candidate.kernels]
    compiled(list({kernel.source().text: kernel for kernel in kernels}.values()))
    found, seconds = _tuned(shape, READY_LIMIT)
    _tell(report, f"{shape.name}, kernels compiled", shape, found, seconds, READY_LIMIT)


def _tuned(shape: Shape, limit: float) -> tuple[ProblemReport, float]:
    """Return what tuning finds in so many seconds, and how long it took."""
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as name:
        database = Database(Path(name) / "trials.db")
        begun = time.perf_counter()
        found = tune(problem_of(shape), limit - _ENDING, database=database)[0]
        seconds = time.perf_counter() - begun
        database.close()
    return found, seconds


def _tell(report: Report, what: str, shape: Shape, found: ProblemReport, seconds: float, limit: float) -> None:
    """Measure what tuning has found among all candidates, and record the verdicts."""
    report.check(f"{what}: tuned in", seconds, limit, "s")
    best = found.best
    if not isinstance(best, Candidate):
        raise BenchmarkError(f"nothing was measured of {what}: {found}")
    share, fastest, count = _share(shape, best)
    report.check(f"{what}: of the fastest of {count} candidates", share, SHARE_LIMIT, "x", at_least=True)
    rows = [
        ("found", best.name),
        ("fastest", fastest),
        ("measured until then", str(len(found.measured))),
        ("gave no time", str(sum(each.status not in ("ok", "waiting") for each in found.contestants))),
    ]
    report.table(what, ("", "candidate"), rows)


def _share(shape: Shape, best: Candidate) -> tuple[float, str, int]:
    """Return the speed of a candidate by that of the fastest, whose name it is, of so many that were measured."""
    from benchmarks.pick_cases import compiled
    from benchmarks.pick_contest import Contest

    ranked = list(_ranked(shape))
    kernels = {kernel.source().text: kernel for each in ranked for kernel in each.candidate.kernels}
    compiled(list(kernels.values()))
    artifacts = {text: kernel.artifacts for text, kernel in kernels.items() if kernel.artifacts}
    ranked.sort(key=lambda each: each.candidate.name != best.name)  # the first is measured to the end
    outcome = Contest(shape, ranked, artifacts).outcome()
    if outcome.wrong or outcome.failed:
        raise BenchmarkError(f"candidates are wrong or failed: {outcome.wrong | outcome.failed}")
    fastest = min(outcome.times, key=lambda name: outcome.times[name])
    return outcome.times[fastest] / outcome.times[best.name], fastest, len(outcome.times)


def _ranked(shape: Shape) -> Sequence[Any]:
    gpu = device.describe(device.current())
    return ranking(problem_of(shape).kind, shape.m, shape.n, shape.k, shape.batch, gpu)


# The first product


def first(report: Report, package: Path, times: int) -> None:
    """Measure the first product of fresh processes, with packaged kernels and none in the cache."""
    rows = []
    for place, each in enumerate(_FIRST):
        ways = [("ours", "known", times), *([("ours", "none", 1), ("ours", "new", 1)] if place == 0 else [])]
        for who, compilers, count in (*ways, ("torch", "known", 1)):
            spans = _processes(who, each, package, compilers, count)
            report.raw(f"first, {each.name}, {who}, {compilers}", spans)
            middle = {name: sorted(span[name] for span in spans)[count // 2] for name in spans[0]}
            rows.append([each.name, who, compilers, *(number(middle[it]) for it in ("import", "first", "second"))])
            if who == "ours" and compilers != "new":
                what = f"first matmul after import, {each.name}, compilers: {compilers}"
                report.check(what, middle["first"], FIRST_LIMIT, "ms")
    note = (
        "Medians of fresh processes, in which torch has a context. Ours may not compile, and its cache has no kernel. "
        "Compilers are *known* where another process has looked at them, *new* where none has, so that all of their "
        "headers are read once; *none* are on the search path of the third."
    )
    report.table("First product, ms", ("product", "by", "compilers", "import", "first", "second"), rows, note)


def _processes(who: str, each: Ordinary, package: Path, compilers: str, count: int) -> list[Mapping[str, float]]:
    """Return the milliseconds of so many processes, behind one by which files are in memory."""
    path = {"PATH": "/nowhere"} if compilers == "none" else {}
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as name:
        caches = (f"{name}/{'' if compilers == 'known' else run}" for run in range(count + 1))
        return [_first(who, each, package, PYCUTLASS_CACHE_DIR=cache, **path) for cache in caches][1:]


def _first(who: str, each: Ordinary, package: Path, place: str = "cuda", **variables: str) -> Mapping[str, float]:
    """Return the milliseconds of one process."""
    dtype = {"bf16": "bfloat16", "f16": "float16"}[each.operands]
    command = [sys.executable, "-m", "benchmarks.first_product", who, dtype, *map(str, (each.m, each.n, each.k)), place]
    environment = child_environment(PYCUTLASS_NO_COMPILE="1", **variables)
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(package.absolute())])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise BenchmarkError(f"the process failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    if not found["error"] < 0.01:
        raise BenchmarkError(f"the result of {each.name} by {who} is wrong: relative error {found['error']:.2e}")
    return found


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Have these variables for a while, and no others; what is changed meanwhile is as it was then."""
    kept = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(variables)
        yield variables
    finally:
        os.environ.clear()
        os.environ.update(kept)


if __name__ == "__main__":
    sys.exit(main())
