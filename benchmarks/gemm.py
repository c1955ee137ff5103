"""Throughput of f16 GEMMs, with f32 accumulation: against the same kernel in C++, and against cuBLAS through torch.mm.

Whatever is compared makes short batches of calls in turns, since a card at its power limit changes its clock. Where
there is a choice of kernels or schedules, the best is found first and then measured anew against the competitor.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.builds import NativeGemm, build_native, compile_all
from benchmarks.common import BenchmarkError, Report, number, options
from benchmarks.duels import alone_duel, geometric_mean
from benchmarks.gemm_choices import (
    SWIZZLES,
    TILES,
    AnyChoice,
    cooperative_choices,
    pingpong_choices,
    shape_choices,
    ways_table,
)
from benchmarks.kernels import ampere, summing
from benchmarks.problems import Problem
from benchmarks.timing import Loop, Summary, device_times, median_ratio, summarize
from pycutlass import GemmOperationUniversal, RasterOrder, device

__all__ = ["main"]

PARTS = ("ampere", "cooperative", "pingpong", "shapes")
NATIVE_LIMIT, COOPERATIVE_LIMIT, PINGPONG_LIMIT = 1.03, 0.96, 0.97

Size = tuple[int, int, int]
_LARGE, _FEW_ROWS = (8192, 8192, 8192), (128, 8192, 8192)

SHAPES: tuple[Size, ...] = (
    *((extent, extent, extent) for extent in (1024, 2048, 4096, 8192, 16384)),
    *((2048, 1280, 5120), (3072, 768, 2304), (512, 512, 65536)),
    *((4096, 14336, 4096), (4096, 4096, 14336)),
    *((1, 4096, 4096), (16, 4096, 4096), (64, 14336, 4096), _FEW_ROWS),
)
#: Measured beside them: what no tile was chosen for.
OTHER_SHAPES: tuple[Size, ...] = ((512, 512, 512), (1000, 3000, 1600), (256, 11008, 4096), (6000, 1024, 8192))
#: The least speed in units of cuBLAS's, queued and alone; of all SHAPES the geometric mean is at least 1.
LIMITS: Mapping[Size, float] = {
    (2048, 1280, 5120): 0.98,
    (512, 512, 65536): 0.95,
    (1, 4096, 4096): 1.0,
    (16, 4096, 4096): 1.0,
}
LEAST = 0.93
WAYS = "Ways to divide the work"

_MORE = (
    "Where tiles are fewer than twice the multiprocessors, stream-K and split-K of cooperative tiles as well, and "
    "parallel split-K, with the time of the kernel that adds up; with up to 128 rows the transposed problem (swap_ab), "
    "in tiles of as few columns, whole and divided along K; with up to 8 rows GEMVs on CUDA cores."
)
_ALONE = 8  # choices that were the fastest when queued, and are tried alone
_NO_PDL = "the same, launch_with_pdl=False"
AMPERE_SWIZZLES = (1, 4, 8)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--dry", action="store_true", help="only list the kernels and the choices: needs no GPU")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each comparison (%(default)s)")
    chosen = parser.parse_args(argv)
    seconds = 0.2 if chosen.quick else chosen.seconds
    operations = _operations(chosen.only)
    if chosen.dry:
        print("\n".join(dict.fromkeys(operation.procedural_name() for operation in operations)))
        sizes = (*SHAPES, *OTHER_SHAPES)
        print(f"{[len(shape_choices(size)) for size in sizes]} choices for {len(sizes)} shapes")
        return 0
    about = (
        "f16 operands and result, f32 accumulation, A row-major, B column-major, random normal inputs that do not stay "
        "in the L2 cache; device time by CUDA events, competitors in turns; every result checked against float64."
    )
    report = Report("gemm", "Throughput", about, chosen.out, quick=chosen.quick)
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as name:
        builds = _Builds(Path(name), [family for family in ("ampere", "cooperative") if family in chosen.only])
        with report.part("GPU and compilers"):
            device.require()
            builds.start()
        if not report.result["failures"]:
            with report.part("compile the kernels"):
                compile_all(report, operations)
                compile_all(report, [summing()])  # beside others it would want partial sums of them all
            builds.join()
            _measure(report, chosen.only, builds, seconds)
    return report.finish()


def _measure(report: Report, only: Sequence[str], builds: _Builds, seconds: float) -> None:
    if "ampere" in only:
        with report.part("Ampere-style kernel at 8192"):
            against_native(report, builds, seconds)
    if "cooperative" in only:
        with report.part("cooperative kernel at 8192"):
            cooperative(report, builds, seconds)
    if "pingpong" in only:
        with report.part("pingpong kernel at 128x8192x8192"):
            pingpong(report, seconds)
    if "shapes" in only:
        shapes(report, seconds)


# The parts


def against_native(report: Report, builds: _Builds, seconds: float) -> None:
    """Compare the Ampere-style kernel with the same one that nvcc compiled as a whole."""
    problem = Problem(_LARGE)
    native = "the same kernel in C++"
    loops = {native: problem.native(builds.gemm("ampere")), "torch.mm": problem.torch_mm()}
    ours = {f"PyCUTLASS, IdentitySwizzle{swizzle}": swizzle for swizzle in AMPERE_SWIZZLES}
    loops |= {name: problem.pycutlass(ampere(swizzle=swizzle)) for name, swizzle in ours.items()}
    times = device_times(loops, seconds=3 * seconds)
    report.raw("ampere, us", times)
    rows = [_row(name, problem, summarize(times[name]), median_ratio(times[name], times[native])) for name in loops]
    columns = ("kernel", "median us", "p10 - p90", "TFLOP/s", "speed of the C++ kernel's", "round by round")
    note = "The kernel in C++ has IdentitySwizzle1."
    report.table(f"f16 TensorOp 128x256x64, 3 stages, at {_shape(_LARGE)}", columns, rows, note)
    ratio, _ = median_ratio(times[native], times["PyCUTLASS, IdentitySwizzle1"])
    what = f"f16 TensorOp 128x256x64, 3 stages, {_shape(_LARGE)}: time, of that of the same kernel in C++"
    report.check(what, ratio, NATIVE_LIMIT, "x")


def cooperative(report: Report, builds: _Builds, seconds: float) -> None:
    """Compare the cooperative kernel in all raster orders with cuBLAS, and with the same kernel in C++."""
    problem = Problem(_LARGE)
    gemm = builds.gemm("cooperative")
    natives = {f"in C++, {raster.name}": problem.native(gemm, (4, raster.value)) for raster in RasterOrder}
    ratio = _choose_and_compare(report, "cooperative", problem, cooperative_choices(), seconds, natives)
    what = f"Hopper cooperative 128x256x64, cluster 2x1, IdentitySwizzle4, {_shape(_LARGE)}: speed of cuBLAS's"
    report.check(what, ratio, COOPERATIVE_LIMIT, "x", at_least=True)


def pingpong(report: Report, seconds: float) -> None:
    """Compare the pingpong kernel in all clusters, swizzles and raster orders with cuBLAS."""
    problem = Problem(_FEW_ROWS)
    ratio = _choose_and_compare(report, "pingpong", problem, pingpong_choices(), seconds, {})
    what = f"Hopper pingpong 64x128x64, {_shape(_FEW_ROWS)}: speed of cuBLAS's"
    report.check(what, ratio, PINGPONG_LIMIT, "x", at_least=True)


def shapes(report: Report, seconds: float) -> None:
    """Compare the best of a list of Hopper kernels with cuBLAS, shape by shape."""
    rows: list[Sequence[str]] = []
    found: dict[Size, dict[str, float]] = {}
    try:
        for size in (*SHAPES, *OTHER_SHAPES):
            with report.part(f"shape {_shape(size)}"):
                row, found[size] = _shape_row(report, Problem(size), seconds)
                rows.append(row)
    finally:  # what was measured before an interruption counts
        queued = ("torch.mm us", "TFLOP/s", "PyCUTLASS us", "TFLOP/s", "speed of cuBLAS's", "round by round", "best")
        alone = ("alone: torch.mm us", "PyCUTLASS us", "speed of cuBLAS's", "round by round", "best")
        tiles = "; ".join(f"{s.name} {_shape(t)} with cluster {c[0]}x{c[1]}" for s, t, c in TILES)
        swizzles = ", ".join(map(str, SWIZZLES))
        note = (
            f"Queued, and each call alone with a cold L2 cache. Best of {tiles}; each with swizzle {swizzles}, and "
            f"raster along M and along N. {_MORE} Alone, the best of the {_ALONE} that are the fastest when queued."
        )
        report.table("Hopper kernels against cuBLAS", ("M x N x K", *queued, *alone), rows, note)
        report_ways(report)
        _check_shapes(report, found)
        report.save()


def report_ways(report: Report) -> None:
    """Record the table of the ways to divide the work, from the times of all choices."""
    raw = {size: report.result["raw"].get(f"shape {_shape(size)}") for size in (*SHAPES, *OTHER_SHAPES)}
    columns, rows = ways_table({size: measured["screened us"] for size, measured in raw.items() if measured})
    note = "Time of the best tile (in brackets) of each way, queued, in units of the fastest choice for the problem."
    report.table(WAYS, columns, rows, note)


def _check_shapes(report: Report, found: Mapping[Size, Mapping[str, float]]) -> None:
    """Check what is required of shapes, each way of measuring by itself."""
    for way in ("queued", "alone"):
        named = {size: found[size][way] for size in SHAPES if size in found}
        for size, ratio in named.items():
            what = f"Hopper kernels, {_shape(size)}, {way}: speed of cuBLAS's"
            report.check(what, ratio, LIMITS.get(size, LEAST), "x", at_least=True)
        if len(named) == len(SHAPES):
            what = f"Hopper kernels, geometric mean of {len(SHAPES)} shapes, {way}: speed of cuBLAS's"
            report.check(what, geometric_mean(named.values()), 1.0, "x", at_least=True)


def _shape_row(report: Report, problem: Problem, seconds: float) -> tuple[Sequence[str], dict[str, float]]:
    """Return the line of a shape, and the speed in units of cuBLAS's, queued and alone."""
    choices = shape_choices(problem.size)
    found = contest(problem, choices, seconds)
    fastest = sorted(found.screened, key=found.screened.__getitem__)[:_ALONE]
    loops = {choice.name: choice.loop(problem) for choice in choices if choice.name in fastest}
    alone = alone_duel(loops, problem.torch_mm(), seconds / 2)
    samples = {"screened us": found.screened, "best": found.best, **found.times, "alone": alone.samples}
    report.raw(f"shape {_shape(problem.size)}", samples)
    mm, ours = found.torch.median, found.ours.median
    times = (number(mm), f"{problem.rate(mm):.1f}", number(ours), f"{problem.rate(ours):.1f}")
    queued = (*times, f"{found.ratio:.3f}", found.rounds.spread(3), found.best)
    medians = (number(summarize(alone.theirs).median), number(summarize(alone.ours).median))
    row = (_shape(problem.size), *queued, *medians, f"{alone.ratio:.3f}", alone.rounds.spread(3), alone.best)
    return row, {"queued": found.ratio, "alone": alone.ratio}


# Choosing and comparing


@dataclass(frozen=True)
class Contest:
    """The best choice for a problem, measured against torch.mm."""

    best: str
    screened: Mapping[str, float]
    times: Mapping[str, list[float]]

    @property
    def torch(self) -> Summary:
        """Microseconds of torch.mm."""
        return summarize(self.times["torch.mm"])

    @property
    def ours(self) -> Summary:
        """Microseconds of the best choice."""
        return summarize(self.times["PyCUTLASS"])

    @property
    def ratio(self) -> float:
        """Speed of the best choice in units of that of torch.mm."""
        return median_ratio(self.times["PyCUTLASS"], self.times["torch.mm"])[0]

    @property
    def rounds(self) -> Summary:
        """The same round by round."""
        return median_ratio(self.times["PyCUTLASS"], self.times["torch.mm"])[1]


def contest(
    problem: Problem, choices: Sequence[AnyChoice], seconds: float, others: Mapping[str, Loop] | None = None
) -> Contest:
    """Find the fastest of `choices`, then measure it, `others` and torch.mm in turns."""
    compiled = [choice for choice in choices if choice.launched.artifacts]
    if not compiled:
        raise BenchmarkError(f"no kernel for {problem.size} could be compiled")
    loops = {choice.name: choice.loop(problem) for choice in compiled}
    screened = device_times(loops, seconds=seconds, batch_seconds=0.002)
    medians = {name: summarize(series).median for name, series in screened.items()}
    best = min(compiled, key=lambda choice: medians[choice.name])
    alone = best.loop(problem, launch_with_pdl=False)
    finalists = {"torch.mm": problem.torch_mm(), "PyCUTLASS": loops[best.name], _NO_PDL: alone, **(others or {})}
    return Contest(best.name, medians, device_times(finalists, seconds=len(finalists) / 2 * seconds))


def _choose_and_compare(
    report: Report,
    name: str,
    problem: Problem,
    choices: Sequence[AnyChoice],
    seconds: float,
    others: Mapping[str, Loop],
) -> float:
    """Record a table of one contest and return the ratio to cuBLAS."""
    found = contest(problem, choices, seconds, others)
    report.raw(f"{name}, us", {"screened": found.screened, "best": found.best, **found.times})
    mm = found.times["torch.mm"]
    names = {"torch.mm": "torch.mm", "PyCUTLASS": f"PyCUTLASS, {found.best}"}
    names |= {other: other for other in (_NO_PDL, *others)}
    rows = [
        _row(shown, problem, summarize(found.times[key]), median_ratio(found.times[key], mm))
        for key, shown in names.items()
    ]
    columns = ("kernel", "median us", "p10 - p90", "TFLOP/s", "speed of cuBLAS's", "round by round")
    ranking = sorted(found.screened.items(), key=lambda item: item[1])
    tried = "; ".join(f"{choice}: {number(taken)}" for choice, taken in ranking)
    report.table(f"Hopper {name} kernel at {_shape(problem.size)}", columns, rows, f"Tried first, in us: {tried}.")
    return found.ratio


def _row(name: str, problem: Problem, taken: Summary, ratio: tuple[float, Summary]) -> tuple[str, ...]:
    overall, rounds = ratio
    rate = f"{problem.rate(taken.median):.1f}"
    return name, number(taken.median), taken.spread(1), rate, f"{overall:.3f}", rounds.spread(3)


def _shape(size: Size) -> str:
    return "x".join(map(str, size))


# Compiling


def _operations(parts: Sequence[str]) -> list[GemmOperationUniversal]:
    """Return every kernel that the parts need."""
    wanted = [ampere(swizzle=swizzle) for swizzle in AMPERE_SWIZZLES] if "ampere" in parts else []
    choices = {"cooperative": cooperative_choices, "pingpong": pingpong_choices}
    chosen = [choice for part in parts if part in choices for choice in choices[part]()]
    chosen += [choice for size in (*SHAPES, *OTHER_SHAPES) for choice in shape_choices(size) if "shapes" in parts]
    return wanted + list(dict.fromkeys(choice.launched for choice in chosen))


class _Builds:
    """The GEMMs in C++, compiled while PyCUTLASS compiles its own."""

    def __init__(self, folder: Path, families: Sequence[str]) -> None:
        self._folder = folder
        self._problems: dict[str, Exception] = {}
        self._threads = {family: threading.Thread(target=self._build, args=(family,)) for family in families}

    def start(self) -> None:
        """Begin compiling."""
        for thread in self._threads.values():
            thread.start()

    def join(self) -> None:
        """Wait for the end of it."""
        for thread in self._threads.values():
            thread.join()

    def gemm(self, family: str) -> NativeGemm:
        """Return the GEMM of a family, or raise what its build raised."""
        if family in self._problems:
            raise self._problems[family]
        return NativeGemm(self._library(family))

    def _build(self, family: str) -> None:
        try:
            build_native("ampere" if family == "ampere" else "hopper", self._library(family))
        except Exception as error:  # raised again where the GEMM is asked for
            self._problems[family] = error

    def _library(self, family: str) -> Path:
        return self._folder / f"{family}.so"


if __name__ == "__main__":
    sys.exit(main())
