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

import pycutlass
from benchmarks.builds import LaunchFloor
from benchmarks.common import BenchmarkError, Report, is_installed, number, options
from benchmarks.growth import growth
from benchmarks.kernels import small_ampere, small_hopper
from benchmarks.peers import PEERS
from benchmarks.problems import Problem
from benchmarks.timing import Loop, Summary, host_times, summarize
from pycutlass import GemmArguments, GemmOperationUniversal, compiler, device

if TYPE_CHECKING:
    pass

__all__ = ["main"]

PARTS = ("host", "growth")
RUN_LIMIT, UPDATE_LIMIT = 0.5, 3.0  # us above the floor
NEW_LIMIT = 25.0  # us
PLAN_LIMIT, MATMUL_LIMIT = 1.5, 6.0  # us above the floor
_SIZE = (256, 256, 64)
_FLOOR, _RUN, _UPDATE = "cuLaunchKernelEx in C (the floor)", "operation.run(arguments)", "arguments.update(A, D) + run"
_NAMED = "operation.run(arguments, stream)"
_NEW, _NEW_AND_RUN = "GemmArguments(...)", "GemmArguments(...) + run"
_PLAN, _PLAN_NEW = "plan.run(a, b, out=d)", "plan.run(a, b)"
_MATMUL, _MATMUL_NEW = "pycutlass.matmul(a, b, out=d)", "pycutlass.matmul(a, b)"
_TORCH, _TORCH_NEW = "torch.mm(a, b, out=d)", "torch.mm(a, b)"


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
    planned = _planned(problem, floor)
    peers: dict[str, Loop] = {}
    missing = {name: f"{package} is not installed" for name, (package, _) in PEERS.items() if not is_installed(package)}
    for name, (_, make) in PEERS.items():
        if name not in missing:
            with report.part(name):
                peers[name] = make()
    times = host_times({**loops, **planned, **peers}, torch.cuda.synchronize, rounds=rounds)
    report.raw("host microseconds per call", times)
    summaries = {name: summarize(series) for name, series in times.items()}
    for family in operations:
        _tell(
            report,
            family,
            {way: summaries[f"{family}: {way}"] for way in (_FLOOR, _RUN, _UPDATE, _NAMED, _NEW, _NEW_AND_RUN)},
        )
    _tell_planned(report, {way: summaries[way] for way in planned})
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


def _planned(problem: Problem, floor: LaunchFloor) -> dict[str, Loop]:
    """Return the ways of computing a product whose kernel nobody names, with other tensors each time, and torch's."""
    import torch

    (a, b, d), (other_a, other_b, other_d) = problem.sets
    plan = pycutlass.Gemm(a, b, out=d)
    if plan.candidate.split_k_slices > 1:
        raise BenchmarkError(f"{plan.candidate.name} is more than one launch, and the floor is that of one")
    plan.compile()
    arguments = GemmArguments(plan.operation, _SIZE, a, b, None, d, raster_order=plan.candidate.raster_order)

    # Written out as users write them, as in `_ways`.
    def run(calls: int) -> None:
        for _ in range(calls // 2):
            plan.run(a, b, out=d)
            plan.run(other_a, other_b, out=other_d)

    def run_new(calls: int) -> None:
        for _ in range(calls // 2):
            plan.run(a, b)
            plan.run(other_a, other_b)

    def matmul(calls: int) -> None:
        for _ in range(calls // 2):
            pycutlass.matmul(a, b, out=d)
            pycutlass.matmul(other_a, other_b, out=other_d)

    def matmul_new(calls: int) -> None:
        for _ in range(calls // 2):
            pycutlass.matmul(a, b)
            pycutlass.matmul(other_a, other_b)

    def torch_mm(calls: int) -> None:
        for _ in range(calls // 2):
            torch.mm(a, b, out=d)
            torch.mm(other_a, other_b, out=other_d)

    def torch_mm_new(calls: int) -> None:
        for _ in range(calls // 2):
            torch.mm(a, b)
            torch.mm(other_a, other_b)

    found = {_PLAN: run, _PLAN_NEW: run_new, _MATMUL: matmul, _MATMUL_NEW: matmul_new}
    expected = other_a.double() @ other_b.double()
    for way in (_PLAN, _MATMUL):
        other_d.fill_(float("nan"))
        found[way](4)
        torch.cuda.synchronize()
        if not torch.allclose(other_d.double(), expected, rtol=1e-2, atol=1e-2):
            raise BenchmarkError(f"{plan.operation.procedural_name()} computes something else by {way}")
    return {f"{_FLOOR}, the plan's kernel": floor.loop(arguments), **found, _TORCH: torch_mm, _TORCH_NEW: torch_mm_new}


def _tell_planned(report: Report, ways: Mapping[str, Summary]) -> None:
    """Record the times of products whose kernel nobody names, and the verdicts."""
    floor = next(taken.median for way, taken in ways.items() if way.startswith(_FLOOR))
    rows = [
        (way, number(taken.median), taken.spread(), "" if way.startswith(_FLOOR) else f"{taken.median - floor:+.2f}")
        for way, taken in ways.items()
    ]
    report.table("Plans and products in one line", ("what", "median us", "p10 - p90", "above the floor, us"), rows)
    report.check("plan.run with other tensors, above the floor", ways[_PLAN].median - floor, PLAN_LIMIT, "us")
    report.check("matmul with out, above the floor", ways[_MATMUL].median - floor, MATMUL_LIMIT, "us")
    report.check("matmul with out, against torch.mm", ways[_MATMUL].median / ways[_TORCH].median, 1.0, "x")


if __name__ == "__main__":
    sys.exit(main())
