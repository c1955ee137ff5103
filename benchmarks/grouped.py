"""Grouped f16 GEMM against a loop of torch.mm, and the host time of a launch with other tensors.

Every problem has a B of its own, as experts have: N = 4096, K = 2048, f32 accumulation. The loop of torch.mm is
measured as it runs, and once more as a captured graph, which takes what the host costs out of it. The best of a list
of Ampere-style kernels and the best of a list of Hopper-native ones are found first and then measured anew against the
loop.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.common import BenchmarkError, Report, number, options
from benchmarks.kernels import ampere, hopper
from benchmarks.timing import Loop, device_times, host_times, median_ratio, repeating, running_times, summarize
from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    SchedulerMode,
    compiler,
    device,
)

if TYPE_CHECKING:
    import torch

__all__ = ["main"]

PARTS = ("small", "mixed", "host")
SMALL_LIMIT, MIXED_LIMIT, HOST_LIMIT = 1.5, 0.75, 15.0

_COUNT, _N, _K = 64, 4096, 2048
_TOLERANCE = 1e-3  # relative, in the Frobenius norm; rounding the result to f16 makes about 2e-4
_LOOP, _GRAPH = "a loop of torch.mm", "the same loop as a graph"
_AMPERE, _NATIVE = "PyCUTLASS, Ampere-style", "PyCUTLASS, Hopper-native"

Triple = tuple[int, int, int]

#: Tiles, stages and warps that are tried.
SMALL_TILES: tuple[tuple[Triple, int, Triple], ...] = (
    ((64, 128, 64), 4, (2, 2, 1)),
    ((64, 128, 64), 3, (2, 2, 1)),
    ((64, 256, 32), 4, (1, 4, 1)),
    ((128, 128, 64), 3, (2, 2, 1)),
    ((128, 128, 32), 5, (2, 2, 1)),
    ((128, 256, 64), 3, (2, 4, 1)),
)
MIXED_TILES: tuple[tuple[Triple, int, Triple], ...] = (
    ((128, 256, 64), 3, (2, 4, 1)),
    ((256, 128, 64), 3, (4, 2, 1)),
    ((128, 256, 32), 4, (2, 4, 1)),
    ((256, 128, 32), 4, (4, 2, 1)),
    ((128, 128, 64), 3, (2, 2, 1)),
    ((128, 128, 32), 4, (2, 2, 1)),
    ((128, 128, 32), 5, (2, 2, 1)),
)


#: Schedules, tiles and clusters of the Hopper-native kernels that are tried, for all groups.
NATIVE_TILES: tuple[tuple[KernelSchedule, Triple, tuple[int, int]], ...] = (
    (KernelSchedule.Cooperative, (128, 256, 64), (1, 1)),
    (KernelSchedule.Cooperative, (128, 256, 64), (2, 1)),
    (KernelSchedule.Cooperative, (128, 256, 64), (1, 2)),
    (KernelSchedule.Cooperative, (256, 128, 64), (2, 1)),
    (KernelSchedule.Pingpong, (64, 256, 64), (1, 1)),
    (KernelSchedule.Pingpong, (64, 128, 128), (1, 1)),
    (KernelSchedule.Pingpong, (128, 128, 64), (1, 1)),
    (KernelSchedule.Pingpong, (128, 128, 64), (1, 2)),
)


@dataclass(frozen=True)
class Choice:
    """A kernel, and how the tables call it."""

    name: str
    operation: GemmOperationGrouped

    @property
    def mode(self) -> SchedulerMode:
        """Who makes the schedule."""
        return self.operation.precompute_mode


def ampere_choice(tile: Triple, stages: int, warps: Triple, mode: SchedulerMode) -> Choice:
    """Return an Ampere-style kernel."""
    name = f"{_by(tile)}, {stages} stages, schedule by {mode.name.lower()}"
    return Choice(name, grouped(ampere(tile, stages, warps), mode))


def native_choice(schedule: KernelSchedule, tile: Triple, cluster: tuple[int, int]) -> Choice:
    """Return a Hopper-native kernel."""
    name = f"{schedule.name} {_by(tile)}, cluster {_by(cluster)}"
    return Choice(name, grouped(hopper(tile, cluster, schedule), SchedulerMode.Device))


@functools.cache  # what was compiled goes with the last operation that has it
def grouped(single: GemmOperationUniversal, mode: SchedulerMode) -> GemmOperationGrouped:
    """Return the grouped kernel whose problems are those of `single`."""
    parts = (single.compute_capability, single.tile_description, single.A, single.B, single.C)
    return GemmOperationGrouped(*parts, single.epilogue_functor, precompute_mode=mode)


class Group:
    """Problems with one N and K, and operands for them."""

    def __init__(self, rows: Sequence[int], n: int = _N, k: int = _K) -> None:
        import torch

        generator = torch.Generator("cuda").manual_seed(len(rows))

        def normal(lines: int, length: int) -> torch.Tensor:
            return torch.randn(lines, length, device="cuda", dtype=torch.float16, generator=generator)

        self.sizes = [(m, n, k) for m in rows]
        self.A = [normal(m, k) for m in rows]
        self.B = [normal(n, k).t() for _ in rows]
        self.D = self.targets()

    def targets(self) -> list[torch.Tensor]:
        """Return memory for the results."""
        import torch

        return [torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16) for m, n, _ in self.sizes]

    def rate(self, microseconds: float) -> float:
        """Return TFLOP/s."""
        return sum(2.0 * m * n * k for m, n, k in self.sizes) / microseconds / 1e6

    def torch_loop(self) -> Callable[[], None]:
        """Return a function that goes through all problems with torch.mm."""
        import torch

        triples = list(zip(self.A, self.B, self.D, strict=True))

        def loop() -> None:
            for a, b, d in triples:
                torch.mm(a, b, out=d)

        return loop

    def pycutlass(self, operation: GemmOperationGrouped) -> Callable[[], None]:
        """Return a function that launches a grouped kernel, after it has computed the right results."""
        arguments = GemmGroupedArguments(operation, self.sizes, self.A, self.B, None, self.D)
        self.check(operation.procedural_name(), functools.partial(operation.run, arguments))
        return functools.partial(operation.run, arguments)

    def check(self, name: str, call: Callable[[], None]) -> None:
        """Raise unless `call` computes every product."""
        for target in self.D:
            target.fill_(float("nan"))
        call()
        for size, a, b, d in zip(self.sizes, self.A, self.B, self.D, strict=True):
            exact = a.double() @ b.double()
            error = float((d.double() - exact).norm() / exact.norm())
            if not error <= _TOLERANCE:
                raise BenchmarkError(f"{name} is wrong at {size}: relative error {error:.2e}, NaN where not written")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--dry", action="store_true", help="only list the kernels: needs no GPU")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each comparison (%(default)s)")
    chosen = parser.parse_args(argv)
    operations = [choice.operation for part in chosen.only for choice in choices(part)]
    if chosen.dry:
        print("\n".join(dict.fromkeys(operation.procedural_name() for operation in operations)))
        return 0
    about = (
        f"{_COUNT} products in one launch, N = {_N}, K = {_K}, f16 with f32 accumulation, each with a B of its own; "
        f"competitors in turns; every result checked against float64."
    )
    report = Report("grouped", "Grouped GEMM", about, chosen.out, quick=chosen.quick)
    with report.part("compile the kernels"):
        device.require()
        compiler.add_module(operations)
    if not report.result["failures"]:
        seconds = 0.2 if chosen.quick else chosen.seconds
        for part, largest, limit in (("small", (8, 128), SMALL_LIMIT), ("mixed", (16, 2048), MIXED_LIMIT)):
            if part in chosen.only:
                with report.part(f"{part} problems"):
                    against_torch(report, part, largest, limit, seconds)
        if "host" in chosen.only:
            with report.part("host time"):
                host(report, rounds=15 if chosen.quick else 101)
    return report.finish()


def choices(part: str) -> list[Choice]:
    """Return the kernels that a part tries."""
    tiles = {"small": SMALL_TILES, "mixed": MIXED_TILES, "host": SMALL_TILES[:1]}[part]
    natives = NATIVE_TILES if part != "host" else NATIVE_TILES[:1]
    if device.available() and device.describe(device.current()).compute_capability != 90:
        natives = ()
    return [
        *(ampere_choice(*tile, mode) for tile in tiles for mode in SchedulerMode),
        *(native_choice(*tile) for tile in natives),
    ]


def against_torch(report: Report, part: str, between: tuple[int, int], limit: float, seconds: float) -> None:
    """Find the best kernels for a group, and compare them with the loop of torch.mm."""
    rng = random.Random(between[1])
    group = Group([rng.randint(*between) for _ in range(_COUNT)])
    torch_loop = group.torch_loop()
    group.check("torch.mm", torch_loop)
    tried = choices(part)
    calls = {choice.name: group.pycutlass(choice.operation) for choice in tried}
    screened = device_times({name: repeating(call) for name, call in calls.items()}, seconds=seconds)
    medians = {name: summarize(series).median for name, series in screened.items()}
    best = {
        kind: min(names, key=lambda name: medians[name])
        for kind, native in ((_AMPERE, False), (_NATIVE, True))
        if (names := [choice.name for choice in tried if choice.operation.is_sm90 is native])
    }
    ours = {kind: calls[name] for kind, name in best.items()}
    as_they_run = running_times({_LOOP: torch_loop, **ours}, seconds)
    loops = {kind: repeating(call) for kind, call in ours.items()}
    queued = device_times({_GRAPH: _graph_of(torch_loop), **loops}, seconds=seconds)
    report.raw(part, {"sizes": group.sizes, "screened": medians, "as they run": as_they_run, "queued": queued})
    rows = [
        _row(group, _LOOP, as_they_run[_LOOP], as_they_run[_LOOP]),
        *(_row(group, f"{kind}, {name}", as_they_run[kind], as_they_run[_LOOP]) for kind, name in best.items()),
        _row(group, _GRAPH, queued[_GRAPH], queued[_GRAPH]),
        *(_row(group, f"{kind}, kernels alone", queued[kind], queued[_GRAPH]) for kind in best),
    ]
    what = f"M from {between[0]} to {between[1]}, {sum(m for m, _, _ in group.sizes)} rows in all"
    columns = ("what", "median us", "p10 - p90", "TFLOP/s", "speed of the loop's")
    ranking = "; ".join(f"{name}: {number(medians[name])}" for name in sorted(medians, key=lambda name: medians[name]))
    report.table(f"Grouped, {what}", columns, rows, f"Tried first, in us: {ranking}.")
    # The limit is for PyCUTLASS, whichever kernel is the best; the table has both kinds.
    ratio = max(median_ratio(as_they_run[kind], as_they_run[_LOOP])[0] for kind in best)
    what = f"grouped, {_COUNT} problems, M {between[0]} to {between[1]}: speed of a loop of torch.mm's"
    report.check(what, ratio, limit, "x", at_least=True)


def host(report: Report, rounds: int) -> None:
    """Measure the host time of launches of problems so small that the GPU keeps up with the host."""
    import torch

    rng = random.Random(1)
    group = Group([rng.randint(8, 128) for _ in range(_COUNT)], 256, 256)
    other_A, other_D = [tensor.clone() for tensor in group.A], group.targets()
    loops: dict[str, Loop] = {}
    kinds = {
        choice: f"{'Hopper-native' if choice.operation.is_sm90 else choice.mode.name}" for choice in choices("host")
    }
    for choice, kind in kinds.items():
        operation = choice.operation
        group.check(choice.name, group.pycutlass(operation))
        same, moving, sized = (
            GemmGroupedArguments(operation, group.sizes, group.A, group.B, None, group.D) for _ in range(3)
        )
        loops[f"{kind}: run"] = repeating(operation.run, same)
        loops[f"{kind}: update(A, D) + run"] = _moving(operation, moving, group, other_A, other_D)
        loops[f"{kind}: update(problem_sizes, A, B, D) + run"] = _sized(operation, sized, group)
    loops[_LOOP] = repeating(group.torch_loop())
    times = host_times(loops, torch.cuda.synchronize, calls=50, rounds=rounds)
    report.raw("host microseconds per call", times)
    summaries = {name: summarize(series) for name, series in times.items()}
    rows = [(name, number(taken.median), taken.spread()) for name, taken in summaries.items()]
    report.table(f"Host time per call, {_COUNT} problems", ("what", "median us", "p10 - p90"), rows)
    for choice, kind in kinds.items():
        taken = summaries[f"{kind}: update(A, D) + run"].median
        report.check(f"grouped, {_COUNT} problems, {choice.name}: update(A, D) + run", taken, HOST_LIMIT, "us")


def _moving(
    operation: GemmOperationGrouped,
    arguments: GemmGroupedArguments,
    group: Group,
    other_A: list[torch.Tensor],
    other_D: list[torch.Tensor],
) -> Loop:
    # Written out as users write it: a shared helper would cost part of what is measured.
    def loop(calls: int) -> None:
        for _ in range(calls // 2):
            arguments.update(A=other_A, D=other_D)
            operation.run(arguments)
            arguments.update(A=group.A, D=group.D)
            operation.run(arguments)

    return loop


def _sized(operation: GemmOperationGrouped, arguments: GemmGroupedArguments, group: Group) -> Loop:
    def loop(calls: int) -> None:
        for _ in range(calls):
            arguments.update(problem_sizes=group.sizes, A=group.A, B=group.B, D=group.D)
            operation.run(arguments)

    return loop


def _graph_of(call: Callable[[], None]) -> Loop:
    """Return a loop over replays of a graph of `call`, in which the host has no part."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return repeating(graph.replay)


def _row(group: Group, name: str, ours: list[float], theirs: list[float]) -> tuple[str, ...]:
    taken, (ratio, _) = summarize(ours), median_ratio(ours, theirs)
    return name, number(taken.median), taken.spread(1), f"{group.rate(taken.median):.1f}", f"{ratio:.3f}"


def _by(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents))


if __name__ == "__main__":
    sys.exit(main())
