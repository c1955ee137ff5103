"""Host time per launch, against the floor that is measured in the same run and against other launchers.

The floor is cuLaunchKernelEx in a C loop, with the same kernel, grid and parameters. Every series of launches begins
with an empty queue, so the time is that of launching and not that of waiting for the GPU.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.builds import LaunchFloor
from benchmarks.common import BenchmarkError, Report, is_installed, number, options
from benchmarks.growth import growth
from benchmarks.kernels import small_ampere, small_hopper
from benchmarks.peers import PEERS
from benchmarks.problems import Problem
from benchmarks.timing import Loop, Summary, host_times, summarize
from pycutlass import GemmArguments, GemmOperationUniversal, compiler, device

if TYPE_CHECKING:
    import torch

__all__ = ["main"]

PARTS = ("host", "growth")
RUN_LIMIT, UPDATE_LIMIT = 0.5, 3.0  # us above the floor
NEW_LIMIT = 25.0  # us
_SIZE = (256, 256, 64)
_FLOOR, _RUN, _UPDATE = "cuLaunchKernelEx in C (the floor)", "operation.run(arguments)", "arguments.update(A, D) + run"
_NAMED = "operation.run(arguments, stream)"
_NEW, _NEW_AND_RUN = "GemmArguments(...)", "GemmArguments(...) + run"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--dry", action="store_true", help="only compile the kernels and the loop in C: needs no GPU")
    chosen = parser.parse_args(argv)
    operations = {"Ampere-style": small_ampere(), "Hopper, cluster 2x1": small_hopper()}
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as name:
        floor = LaunchFloor(Path(name))
        if chosen.dry:
            for operation in operations.values():
                print(operation.procedural_name())
            return 0
        return _measure(chosen.out, chosen.only, chosen.quick, operations, floor)


def _measure(
    out: Path, only: Sequence[str], quick: bool, operations: Mapping[str, GemmOperationUniversal], floor: LaunchFloor
) -> int:
    about = (
        f"Microseconds of host time per launch of a small GEMM ({' x '.join(map(str, _SIZE))}, f16, torch tensors), "
        f"all competitors in turns."
    )
    report = Report("launch", "Host time per launch", about, out, quick=quick)
    with report.part("compile"):
        device.require()
        compiler.add_module(operations.values())
    compiled = not report.result["failures"]
    if compiled and "host" in only:
        with report.part("host time"):
            host(report, operations, floor, rounds=15 if quick else 201)
    for family, operation in operations.items() if compiled and "growth" in only else ():
        with report.part(f"growth of memory, {family}"):
            growth(report, family, operation, 2_000 if quick else 100_000)
    return report.finish()


def host(report: Report, operations: Mapping[str, GemmOperationUniversal], floor: LaunchFloor, rounds: int) -> None:
    """Measure every way of launching, of every competitor."""
    import torch

    loops: dict[str, Loop] = {}
    problem = Problem(_SIZE, sets=2)
    for family, operation in operations.items():
        loops |= {f"{family}: {way}": loop for way, loop in _ways(operation, problem, floor).items()}
    peers: dict[str, Loop] = {"torch.mm(out=), the same problem": _torch_mm(*problem.sets[0])}
    missing = {name: f"{package} is not installed" for name, (package, _) in PEERS.items() if not is_installed(package)}
    for name, (_, make) in PEERS.items():
        if name not in missing:
            with report.part(name):
                peers[name] = make()
    times = host_times({**loops, **peers}, torch.cuda.synchronize, rounds=rounds)
    report.raw("host microseconds per call", times)
    summaries = {name: summarize(series) for name, series in times.items()}
    for family in operations:
        _tell(
            report,
            family,
            {way: summaries[f"{family}: {way}"] for way in (_FLOOR, _RUN, _UPDATE, _NAMED, _NEW, _NEW_AND_RUN)},
        )
    rows = [(name, number(summaries[name].median), summaries[name].spread()) for name in peers]
    rows += [(name, missing.get(name, "failed: see below"), "") for name in PEERS if name not in peers]
    report.table("Others", ("what", "median us", "p10 - p90"), rows)


def _ways(operation: GemmOperationUniversal, problem: Problem, floor: LaunchFloor) -> dict[str, Loop]:
    """Return the ways of launching an operation, after each has computed the right result."""
    import torch

    (a, b, d), (other_a, _, other_d) = problem.sets
    plain, moving, named = (GemmArguments(operation, _SIZE, a, b, None, d) for _ in range(3))
    stream = torch.cuda.Stream()

    # Written out as users write them: a shared helper would cost part of what is measured.
    def run(calls: int) -> None:
        for _ in range(calls):
            operation.run(plain)

    def run_named(calls: int) -> None:
        for _ in range(calls):
            operation.run(named, stream)

    def update_and_run(calls: int) -> None:
        for _ in range(calls // 2):
            moving.update(A=other_a, D=other_d)
            operation.run(moving)
            moving.update(A=a, D=d)
            operation.run(moving)

    def build_and_run(calls: int) -> None:
        for _ in range(calls):
            operation.run(GemmArguments(operation, _SIZE, a, b, None, d))

    def build(calls: int) -> None:
        for _ in range(calls):
            arguments = GemmArguments(operation, _SIZE, a, b, None, d)
        operation.run(arguments)

    ways = {
        _FLOOR: floor.loop(plain),
        _RUN: run,
        _UPDATE: update_and_run,
        _NAMED: run_named,
        _NEW: build,
        _NEW_AND_RUN: build_and_run,
    }
    expected = a.double() @ b.double()
    for way, loop in ways.items():
        d.fill_(float("nan"))
        torch.cuda.synchronize()
        loop(2)
        torch.cuda.synchronize()
        if not torch.allclose(d.double(), expected, rtol=1e-2, atol=1e-2):
            raise BenchmarkError(f"{operation.procedural_name()} computes something else by {way}")
    return ways


def _tell(report: Report, family: str, ways: Mapping[str, Summary]) -> None:
    """Record one kernel's times and its verdicts."""
    floor = ways[_FLOOR].median
    rows = [
        (way, number(taken.median), taken.spread(), "" if way == _FLOOR else f"{taken.median - floor:+.2f}")
        for way, taken in ways.items()
    ]
    report.table(f"{family} kernel", ("what", "median us", "p10 - p90", "above the floor, us"), rows)
    report.check(f"{family}: run, above the floor", ways[_RUN].median - floor, RUN_LIMIT, "us")
    report.check(f"{family}: update + run, above the floor", ways[_UPDATE].median - floor, UPDATE_LIMIT, "us")
    report.check(f"{family}: new arguments", ways[_NEW].median, NEW_LIMIT, "us")


def _torch_mm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> Loop:
    import torch

    def loop(calls: int) -> None:
        for _ in range(calls):
            torch.mm(a, b, out=d)

    return loop


if __name__ == "__main__":
    sys.exit(main())
