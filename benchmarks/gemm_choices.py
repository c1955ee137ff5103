"""The kernels that are tried for a problem: tiles, clusters, schedules, how they divide K, and GEMVs for few rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.kernels import gemv, hopper
from benchmarks.problems import Problem
from benchmarks.timing import Loop
from pycutlass import GemmOperationUniversal, KernelSchedule, RasterOrder
from pycutlass.families.gemv import gemv_shapes
from pycutlass.plan.candidate_tiles import PARALLEL_SLICES

__all__ = [
    "SWIZZLES",
    "TILES",
    "AnyChoice",
    "Choice",
    "cooperative_choices",
    "pingpong_choices",
    "shape_choices",
    "ways_table",
]

Size = tuple[int, int, int]

#: Tiles and clusters of the Hopper kernels that are tried for each shape, by schedule.
TILES: tuple[tuple[KernelSchedule, Size, tuple[int, int]], ...] = (
    (KernelSchedule.Pingpong, (64, 32, 128), (1, 1)),
    (KernelSchedule.Pingpong, (64, 64, 128), (1, 1)),
    (KernelSchedule.Pingpong, (64, 128, 64), (1, 1)),
    (KernelSchedule.Pingpong, (64, 128, 64), (2, 1)),
    (KernelSchedule.Pingpong, (64, 128, 128), (1, 1)),
    (KernelSchedule.Pingpong, (128, 128, 64), (2, 1)),
    (KernelSchedule.Cooperative, (128, 160, 64), (1, 1)),
    (KernelSchedule.Cooperative, (128, 160, 64), (2, 1)),
    (KernelSchedule.Cooperative, (128, 176, 64), (1, 1)),
    (KernelSchedule.Cooperative, (128, 192, 64), (2, 1)),
    (KernelSchedule.Pingpong, (192, 96, 64), (1, 1)),
    (KernelSchedule.Cooperative, (192, 96, 64), (1, 1)),
    (KernelSchedule.Cooperative, (192, 96, 64), (1, 2)),
    (KernelSchedule.Pingpong, (128, 160, 64), (2, 1)),
    (KernelSchedule.Cooperative, (128, 256, 64), (1, 1)),
    (KernelSchedule.Cooperative, (128, 256, 64), (2, 1)),
    (KernelSchedule.Cooperative, (256, 128, 64), (1, 2)),
)
SWIZZLES = (1, 2, 4, 8)
#: Tiles and clusters of cooperative kernels that divide K, where whole tiles leave multiprocessors without work.
SPLIT_TILES: tuple[tuple[Size, tuple[int, int]], ...] = (
    ((128, 128, 64), (1, 1)),
    ((128, 256, 64), (2, 1)),
    ((256, 128, 64), (1, 2)),
    ((128, 192, 64), (2, 1)),
)
#: Those whose partial sums another kernel adds up.
PARALLEL_TILES: tuple[tuple[KernelSchedule, Size, tuple[int, int]], ...] = (
    (KernelSchedule.Pingpong, (64, 128, 64), (1, 1)),
    (KernelSchedule.Pingpong, (128, 128, 64), (1, 1)),
    (KernelSchedule.Pingpong, (128, 128, 64), (2, 1)),
    (KernelSchedule.Cooperative, (128, 256, 64), (2, 1)),
    (KernelSchedule.Cooperative, (256, 128, 64), (1, 2)),
)
#: Columns, K and warps of GEMVs. A thread has 64 or 128 bytes of B on their way to it, and A from the caches.
GEMV_TILES: tuple[tuple[int, int, Size], ...] = (
    *((4, 1024, (1, 4, 1)), (4, 2048, (1, 4, 1)), (8, 1024, (1, 4, 1)), (16, 512, (1, 4, 1))),
    *((8, 1024, (1, 8, 1)), (2, 2048, (1, 2, 2)), (4, 2048, (1, 2, 2)), (4, 4096, (1, 2, 2))),
    *((1, 8192, (1, 1, 4)), (2, 4096, (1, 1, 4)), (4, 2048, (1, 1, 4)), (4, 4096, (1, 1, 8))),
)
_MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Choice:
    """A Hopper kernel with its schedule: everything that is chosen for a problem."""

    schedule: KernelSchedule
    tile: Size
    cluster: tuple[int, int]
    swizzle: int
    raster: RasterOrder
    slices: int = 0
    swap_ab: bool = False
    parallel: bool = False

    @property
    def name(self) -> str:
        """How the tables call it."""
        shape, cluster = "x".join(map(str, self.tile)), "x".join(map(str, self.cluster))
        swapped = "swapped " if self.swap_ab else ""
        split = f"{'parallel ' if self.parallel else ''}split-K {self.slices}" if self.slices > 1 else "stream-K"
        walk = split if self.slices else f"swizzle {self.swizzle}"
        return f"{swapped}{self.schedule.name} {shape}, {cluster}, {walk}, {self.raster.name}"

    @property
    def way(self) -> str:
        """How the work is divided."""
        if self.slices:
            split = "split-K" if self.slices > 1 else "stream-K"
            return f"{'parallel ' if self.parallel else ''}{split}{', swapped' if self.swap_ab else ''}"
        return f"{self.schedule.name}{', swapped' if self.swap_ab else ''}"

    @property
    def operation(self) -> GemmOperationUniversal:
        """The kernel; the swizzle is no part of its code, so choices that differ in it alone share that."""
        parts = (self.tile, self.cluster, self.schedule, self.swizzle)
        return hopper(*parts, stream_k=self.slices > 0 and not self.parallel, swap_ab=self.swap_ab)

    @property
    def launched(self) -> GemmOperationUniversal:
        """The kernel that is compiled: of parallel split-K that of the partial sums."""
        return self.operation.partial if self.parallel else self.operation

    def loop(self, problem: Problem, *, launch_with_pdl: bool = True) -> Loop:
        """Return a loop over the kernel."""
        slices = max(1, self.slices)
        return problem.pycutlass(self.operation, self.raster, launch_with_pdl=launch_with_pdl, slices=slices)


@dataclass(frozen=True)
class GemvChoice:
    """A kernel of CUDA cores for few rows."""

    tile: Size
    warps: Size

    @property
    def name(self) -> str:
        """How the tables call it."""
        shape, warps = ("x".join(map(str, each)) for each in (self.tile, self.warps))
        return f"Gemv {shape}, warps {warps}"

    @property
    def way(self) -> str:
        """How it divides the work."""
        return "GEMV"

    @property
    def operation(self) -> GemmOperationUniversal:
        """The kernel."""
        return gemv(self.tile, self.warps)

    @property
    def launched(self) -> GemmOperationUniversal:
        """The kernel that is compiled."""
        return self.operation

    def loop(self, problem: Problem, *, launch_with_pdl: bool = True) -> Loop:
        """Return a loop over the kernel."""
        return problem.pycutlass(self.operation, launch_with_pdl=launch_with_pdl)


AnyChoice = Choice | GemvChoice


def cooperative_choices() -> list[Choice]:
    """Return what the requirement leaves open for the cooperative kernel."""
    return [Choice(KernelSchedule.Cooperative, (128, 256, 64), (2, 1), 4, raster) for raster in RasterOrder]


def pingpong_choices() -> list[Choice]:
    """Return what the requirement leaves open for the pingpong kernel. 128 rows are two tiles, which can share B."""
    return [
        Choice(KernelSchedule.Pingpong, (64, 128, 64), cluster, swizzle, raster)
        for cluster in ((1, 1), (2, 1), (1, 2))
        for swizzle in SWIZZLES
        for raster in RasterOrder
    ]


def shape_choices(size: Size) -> list[AnyChoice]:
    """Return all that is tried for a shape."""
    whole = [
        Choice(schedule, tile, cluster, swizzle, raster)
        for schedule, tile, cluster in TILES
        for swizzle in SWIZZLES
        for raster in (RasterOrder.AlongM, RasterOrder.AlongN)
    ]
    return [*whole, *_split_choices(size), *_swapped_choices(size), *_gemv_choices(size)]


def _split_choices(size: Size) -> Iterator[Choice]:
    """Yield kernels that divide tiles along K, where whole tiles leave multiprocessors without work."""
    m, n, k = size
    for tile, cluster in SPLIT_TILES:
        tiles = -(-m // tile[0]) * -(-n // tile[1])
        if tiles > 2 * _MULTIPROCESSORS:
            continue
        most = max(1, min(k // 256, 2 * _MULTIPROCESSORS // tiles))
        for slices in sorted({1, *(count for count in (2, 3, 4, 6, 8, 16, 32) if count <= most)}):
            yield Choice(KernelSchedule.Cooperative, tile, cluster, 1, RasterOrder.Heuristic, slices)
    for schedule, tile, cluster in PARALLEL_TILES:
        tiles = -(-m // tile[0]) * -(-n // tile[1])
        least, most = _MULTIPROCESSORS // 2 // tiles, min(k // 512, 2 * _MULTIPROCESSORS // tiles)
        for slices in (count for count in PARALLEL_SLICES if least <= count <= most):
            yield Choice(schedule, tile, cluster, 1, RasterOrder.AlongM, slices, parallel=True)


def _swapped_choices(size: Size) -> Iterator[Choice]:
    """Yield kernels of the transposed problem, whose tiles have as few columns as the problem has rows."""
    m, n, k = size
    columns = next((columns for columns in (8, 16, 32, 64, 128) if m <= columns), None)
    if columns is None:
        return
    for rows, depth in ((64, 64), (64, 128), (128, 64), (128, 128)):
        yield Choice(KernelSchedule.Pingpong, (rows, columns, depth), (1, 1), 1, RasterOrder.AlongM, 0, swap_ab=True)
    for depth in (64, 128):
        tiles = -(-n // 128)
        most = max(1, min(k // 256, 4 * _MULTIPROCESSORS // tiles))
        for slices in (0, 1, *(count for count in (2, 3, 4, 8, 16) if count <= most)):
            tile = (128, columns, depth)
            yield Choice(KernelSchedule.Cooperative, tile, (1, 1), 1, RasterOrder.AlongM, slices, swap_ab=True)


def _gemv_choices(size: Size) -> Iterator[GemvChoice]:
    """Yield kernels of CUDA cores, with as few rows in a tile as there can be."""
    rows = next((rows for rows in (1, 2, 4, 8) if size[0] <= rows), None)
    if rows is None:
        return
    for columns, depth, warps in GEMV_TILES:
        if (rows, columns, depth) in gemv_shapes(rows, warps, 16, by_rows=False):
            yield GemvChoice((rows, columns, depth), warps)


def ways_table(screened: Mapping[Size, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: how much slower the best of each way to divide the work is than the best of all.

    Parameters
    ----------
    screened : mapping
        The microseconds of the choices by their names, for each size.
    """
    ways = dict.fromkeys(choice.way for size in screened for choice in shape_choices(size))
    rows = []
    for size, times in screened.items():
        best: dict[str, AnyChoice] = {}
        for choice in shape_choices(size):
            if choice.name in times and times[choice.name] < times.get(getattr(best.get(choice.way), "name", ""), 1e30):
                best[choice.way] = choice
        least = min(times.values())
        cells = [
            f"{times[best[way].name] / least:.2f} ({'x'.join(map(str, best[way].tile))})" if way in best else ""
            for way in ways
        ]
        rows.append(["x".join(map(str, size)), *cells])
    return ["M x N x K", *ways], rows
