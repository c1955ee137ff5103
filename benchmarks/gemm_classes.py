"""Hopper-native GEMMs of every type and layout against cuBLAS, through torch.mm, torch._int_mm and torch._scaled_mm.

For each problem the fastest of a list of kernels is found first and then measured anew in turns with cuBLAS: queued
back to back, with operands that do not stay in the L2 cache, and each call alone with a cold L2 cache.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pycutlass
from benchmarks.builds import compile_all
from benchmarks.common import BenchmarkError, Report, number, options
from benchmarks.duels import Duel, alone_duel, geometric_mean, queued_duel
from benchmarks.problems import input_sets
from benchmarks.timing import Loop, cycling
from pycutlass import GemmArguments, GemmOperationUniversal, KernelSchedule, MathOperation, RasterOrder, cutlass, device
from pycutlass.epilogue import fusions

if TYPE_CHECKING:
    import torch

__all__ = ["KINDS", "main"]

Size = tuple[int, int, int]
_Tile = tuple[KernelSchedule, Size, tuple[int, int]]
_ROW, _COLUMN = cutlass.RowMajor, cutlass.ColumnMajor
_TN = (_ROW, _COLUMN, _ROW)
_PINGPONG, _COOPERATIVE = KernelSchedule.Pingpong, KernelSchedule.Cooperative
_LARGE: Size = (8192, 8192, 8192)
_SQUARE: Size = (4096, 4096, 4096)
_ODD: Size = (2048, 1280, 5120)
_MULTIPROCESSORS = 132
_WAYS = ("queued", "alone")
_RETRIED = 8  # choices that were the fastest when queued, and are tried alone

_ABOUT = (
    "f32 sums of floats and s32 sums of int8, random normal inputs (int8: -8 to 8); *queued* back to back, with "
    "operands that do not stay in the L2 cache, and each call *alone* with a cold one. cuBLAS is torch.mm, "
    "torch._int_mm or torch._scaled_mm, in turns with the fastest of a list of kernels, which is found first; every "
    "result is checked against float64. Layouts are those of A, B and D, t for row-major and n for column-major."
)

#: Tiles of large problems; the last extent is that of 16-bit operands, in bytes it is the same for all.
_TILES: tuple[_Tile, ...] = (
    (_COOPERATIVE, (128, 256, 64), (2, 1)),
    (_COOPERATIVE, (256, 128, 64), (1, 2)),
    (_COOPERATIVE, (128, 160, 64), (2, 1)),
    (_COOPERATIVE, (128, 160, 64), (1, 1)),
    (_COOPERATIVE, (128, 192, 64), (2, 1)),
    (_PINGPONG, (128, 128, 64), (2, 1)),
)
#: Those of products of 8-bit floats that are added up in f32, which takes twice the registers.
_PRECISE_TILES: tuple[_Tile, ...] = (
    (_COOPERATIVE, (128, 192, 64), (2, 1)),
    (_COOPERATIVE, (128, 160, 64), (2, 1)),
    (_COOPERATIVE, (128, 128, 64), (2, 1)),
    (_COOPERATIVE, (128, 128, 64), (1, 1)),
    (_COOPERATIVE, (256, 96, 64), (1, 2)),
    (_PINGPONG, (64, 128, 64), (2, 1)),
)


@dataclass(frozen=True)
class Kind:
    """Types and layouts, the problems that are measured, and the least speed in units of cuBLAS's.

    Attributes
    ----------
    words : str
        How the table calls it.
    operand, output : scalar type
        Of A and B, and of D.
    layouts : tuple of 3 layouts
        Of A, B and D.
    limits : tuple of (size, least speed or None)
        The problems.
    scales : str
        How products of 8-bit floats are scaled: "tensor" or "rows"; else empty.
    fast : bool
        Whether they are added up with the fewer bits of tensor cores, on both sides.
    """

    words: str
    operand: Any
    output: Any
    layouts: tuple[Any, Any, Any]
    limits: tuple[tuple[Size, float | None], ...]
    scales: str = ""
    fast: bool = False

    @property
    def is_few_rows(self) -> bool:
        """Whether the transposed problem is computed."""
        return self.limits[0][0][0] <= 128

    @functools.cached_property
    def choices(self) -> dict[Size, dict[str, tuple[GemmOperationUniversal, dict[str, Any]]]]:
        """Kernels and options of a launch, by name, for each problem."""
        made = self._few_rows if self.is_few_rows else self._usual
        return {size: dict(made(size)) for size, _ in self.limits}

    def _usual(self, size: Size) -> Iterator[tuple[str, tuple[GemmOperationUniversal, dict[str, Any]]]]:
        is_precise = self.operand is cutlass.float_e4m3 and not self.fast
        for schedule, tile, cluster in _PRECISE_TILES if is_precise else _TILES:
            if self.output is cutlass.float32 and tile[1] == 192:
                continue  # needs more registers for D of 32 bits than there are
            for swizzle in (1, 4):
                operation = self.operation(schedule, tile, cluster, f"IdentitySwizzle{swizzle}")
                for raster in (RasterOrder.AlongM, RasterOrder.AlongN):
                    name = f"{_named(schedule, tile, cluster)}, swizzle {swizzle}, {raster.name}"
                    yield name, (operation, {"raster_order": raster})

    def _few_rows(self, size: Size) -> Iterator[tuple[str, tuple[GemmOperationUniversal, dict[str, Any]]]]:
        m, n, k = size
        columns = next(columns for columns in (8, 16, 32, 64, 128) if m <= columns)
        columns = max(columns, 16 if self.scales == "rows" else 8)
        for rows, depth in ((64, 64), (64, 128), (128, 64)):
            tile = (rows, columns, depth)
            operation = self.operation(_PINGPONG, tile, (1, 1), "IdentitySwizzle1", swap_ab=True)
            yield f"swapped {_named(_PINGPONG, tile, (1, 1))}", (operation, {})
        tile = (128, columns, 64)
        operation = self.operation(_COOPERATIVE, tile, (1, 1), "ThreadblockSwizzleStreamK", swap_ab=True)
        most = max(1, min(k // 512, 4 * _MULTIPROCESSORS // -(-n // 128)))
        for slices in sorted({1, *(count for count in (2, 4, 8) if count <= most)}):
            given = {"split_k_slices": slices} if slices > 1 else {}
            yield f"swapped {_named(_COOPERATIVE, tile, (1, 1))}, stream-K, {slices}", (operation, given)

    def operation(
        self, schedule: KernelSchedule, tile: Size, cluster: tuple[int, int], swizzle: str, *, swap_ab: bool = False
    ) -> GemmOperationUniversal:
        """Return a kernel."""
        bits = pycutlass.types.element(self.operand).bits
        sums = cutlass.int32 if self.operand is cutlass.int8 else cutlass.float32
        math = MathOperation.multiply_add_fast_accum if self.fast else MathOperation.multiply_add
        instruction = pycutlass.MathInstruction(
            None, self.operand, self.operand, sums, cutlass.OpClass.TensorOp, math_operation=math
        )
        shape = (*tile[:2], tile[2] * 16 // bits)
        described = pycutlass.TileDescription(shape, None, None, instruction, (*cluster, 1), schedule)
        wide = 128 // pycutlass.types.element(self.output).bits
        A, B = (pycutlass.TensorDescription(self.operand, layout, 128 // bits) for layout in self.layouts[:2])
        D = pycutlass.TensorDescription(self.output, self.layouts[2], wide)
        functor: Any = pycutlass.LinearCombination(
            self.output, wide, sums, sums if self.output is cutlass.int32 else cutlass.float32
        )
        if self.scales == "rows":
            functor = fusions.dequantize(self.output, wide, row_scale=cutlass.float32, column_scale=cutlass.float32)
        return GemmOperationUniversal(90, described, A, B, D, functor, getattr(cutlass, swizzle), D, swap_ab)


def _layout_kinds() -> Iterator[Kind]:
    """Yield f16 in the layouts other than that of the throughput benchmark."""
    for letters in ("ttt", "nnt", "ntt", "tnn", "ttn", "nnn", "ntn"):
        layouts = tuple(_ROW if letter == "t" else _COLUMN for letter in letters)
        limits = ((_LARGE, 0.97), (_SQUARE, 0.96), (_ODD, 0.94))
        yield Kind(f"f16 {letters}", cutlass.float16, cutlass.float16, layouts, limits)  # type: ignore[arg-type]


def _float8_kinds() -> Iterator[Kind]:
    f8, bf16 = cutlass.float_e4m3, cutlass.bfloat16
    for scales, words in (("tensor", "e4m3, scale per tensor"), ("rows", "e4m3, scale per row and column")):
        yield Kind(f"{words}, fast accumulation", f8, bf16, _TN, ((_LARGE, 0.98),), scales, fast=True)
        yield Kind(words, f8, bf16, _TN, ((_LARGE, None), (_SQUARE, None)), scales)
    for m in (1, 16, 64, 128):
        sizes = tuple(((m, n, k), None) for n, k in ((7168, 2048), (4096, 7168), (24576, 1536)))
        yield Kind("e4m3, scale per tensor, few rows", f8, bf16, _TN, sizes, "tensor", fast=True)


KINDS: tuple[Kind, ...] = (
    Kind("bf16 tnt", cutlass.bfloat16, cutlass.bfloat16, _TN, ((_LARGE, 0.93), (_SQUARE, 0.93), (_ODD, 0.98))),
    *_layout_kinds(),
    Kind("tf32 tnt", cutlass.tfloat32, cutlass.float32, _TN, ((_LARGE, 0.97), (_SQUARE, None))),
    Kind("int8 to int32 tnt", cutlass.int8, cutlass.int32, _TN, ((_LARGE, 0.97), (_SQUARE, None))),
    *_float8_kinds(),
)


class Problem:
    """Operands of a kind and a size, several sets of them, and the calls of both sides."""

    def __init__(self, kind: Kind, size: Size) -> None:
        import torch

        self.kind, self.size = kind, size
        m, n, k = size
        types = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        types |= {"s8": torch.int8, "s32": torch.int32, "e4m3": torch.float8_e4m3fn}
        loaded, stored = (types[pycutlass.types.element(each).short] for each in (kind.operand, kind.output))
        generator = torch.Generator("cuda").manual_seed(m + 3 * n + 5 * k)

        def values(rows: int, columns: int, layout: Any) -> torch.Tensor:
            shape = (rows, columns) if layout is _ROW else (columns, rows)
            if loaded is torch.int8:
                made = torch.randint(-8, 9, shape, dtype=loaded, device="cuda", generator=generator)
            else:
                made = torch.randn(shape, device="cuda", generator=generator).to(loaded)
            return made if layout is _ROW else made.t()

        def memory(layout: Any) -> torch.Tensor:
            return torch.empty((m, n) if layout is _ROW else (n, m), device="cuda", dtype=stored)

        operand_bytes, output_bytes = loaded.itemsize, stored.itemsize
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = input_sets(operand_bytes * (m * k + k * n) + output_bytes * m * n, cache)
        A, B, D = kind.layouts
        self.sets = [
            (values(m, k, A), values(k, n, B), memory(D) if D is _ROW else memory(D).t()) for _ in range(count)
        ]
        tall, wide = (m, 1) if kind.scales == "rows" else (1, 1), (1, n) if kind.scales == "rows" else (1, 1)
        self.scales = tuple(torch.rand(shape, device="cuda", generator=generator) + 0.5 for shape in (tall, wide))
        a, b, _ = self.sets[0]
        exact = a.double() @ b.double()
        self._exact = exact * self.scales[0].double() * self.scales[1].double() if kind.scales else exact

    def theirs(self) -> Loop:
        """Return a loop over cuBLAS."""
        import torch

        torch.backends.cuda.matmul.allow_tf32 = True
        calls: list[Callable[[], object]] = []
        for a, b, d in self.sets:
            if self.kind.scales:
                calls.append(
                    functools.partial(
                        torch._scaled_mm,
                        *(a, b, *(scale.reshape(()) if scale.numel() == 1 else scale for scale in self.scales)),
                        out_dtype=d.dtype,
                        use_fast_accum=self.kind.fast,
                        out=d,
                    )
                )
            else:
                multiply = torch._int_mm if a.dtype is torch.int8 else torch.mm
                calls.append(functools.partial(multiply, a, b, out=d))
        return self._checked("cuBLAS", calls)

    def ours(self, operation: GemmOperationUniversal, given: dict[str, Any]) -> Loop:
        """Return a loop over one of our kernels."""
        options = dict(given)
        if self.kind.scales == "rows":
            row, column = (scale.reshape(-1) for scale in self.scales)
            options["epilogue"] = {"row_scale": row, "column_scale": column}
        elif self.kind.scales:
            options["output_op"] = operation.epilogue_type((self.scales[0] * self.scales[1]).reshape(1), 0.0)
        calls = [
            functools.partial(operation.run, GemmArguments(operation, self.size, a, b, None, d, **options))
            for a, b, d in self.sets
        ]
        return self._checked(operation.procedural_name(), calls)

    def _checked(self, name: str, calls: Sequence[Callable[[], object]]) -> Loop:
        """Return the loop, after the first of `calls` has computed every element."""
        target = self.sets[0][2]
        target.fill_(-1 if not target.is_floating_point() else float("nan"))
        calls[0]()
        error = float((target.double() - self._exact).norm() / self._exact.norm())
        # Rounding to bf16 makes about 2e-3; the fewer bits of sums of fast accumulation about as much.
        if not error <= 8e-3:
            raise BenchmarkError(f"{name} is wrong at {self.size}: relative error {error:.2e}, NaN where not written")
        return cycling(calls)


def measure(report: Report, kind: Kind, size: Size, seconds: float) -> dict[str, Duel]:
    """Find and measure the fastest kernel for a problem, queued and alone."""
    problem = Problem(kind, size)
    compiled = {name: made for name, made in kind.choices[size].items() if made[0].artifacts}
    loops = {name: problem.ours(*made) for name, made in compiled.items()}
    theirs = problem.theirs()
    queued = queued_duel(loops, theirs, seconds)
    fastest = sorted(loops, key=queued.screened.__getitem__)[:_RETRIED]
    alone = alone_duel({name: loops[name] for name in fastest}, theirs, seconds)
    duels = {"queued": queued, "alone": alone}
    for way, duel in duels.items():
        report.raw(f"{kind.words}, {_shape(size)}, {way}", duel.samples)
    return duels


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    names = list(dict.fromkeys(kind.words.split(",")[0].split()[0] for kind in KINDS))
    parser = options(__doc__, names)
    parser.add_argument("--dry", action="store_true", help="only list the kernels: needs no GPU")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each comparison (%(default)s)")
    chosen = parser.parse_args(argv)
    seconds = 0.1 if chosen.quick else chosen.seconds
    kinds = [kind for kind in KINDS if kind.words.split(",")[0].split()[0] in chosen.only]
    operations = [made[0] for kind in kinds for each in kind.choices.values() for made in each.values()]
    operations = list(dict.fromkeys(operations))
    if chosen.dry:
        print("\n".join(dict.fromkeys(operation.procedural_name() for operation in operations)))
        return 0
    device.require()
    report = Report("gemm_classes", "GEMMs of every type and layout", _ABOUT, chosen.out, quick=chosen.quick)
    with report.part("compile the kernels"):
        compile_all(report, operations)
    few_rows: dict[str, list[float]] = {}
    for kind in kinds:
        for size, limit in kind.limits:
            with report.part(f"{kind.words}, {_shape(size)}"):
                duels = measure(report, kind, size, seconds)
                for way, duel in duels.items():
                    if kind.is_few_rows:
                        few_rows.setdefault(way, []).append(duel.ratio)
                    if limit is not None:
                        what = f"{kind.words}, {_shape(size)}, {way}: speed of cuBLAS's"
                        report.check(what, duel.ratio, limit, "x", at_least=True)
                tabulate(report)  # each time: what was measured before an interruption counts
    for way, ratios in few_rows.items():
        what = f"e4m3, few rows, geometric mean of {len(ratios)} problems, {way}: speed of cuBLAS's"
        report.check(what, geometric_mean(ratios), 1.0, "x", at_least=True)
    return report.finish()


def tabulate(report: Report) -> None:
    """Make the table of what has been measured."""
    columns = ["kind", "M x N x K"]
    for way in _WAYS:
        columns += [f"cuBLAS, {way}, us", "PyCUTLASS, us", "speed of cuBLAS's", "round by round", "best"]
    raw, rows = report.result["raw"], []
    for kind in KINDS:
        for size, _ in kind.limits:
            samples = [raw.get(f"{kind.words}, {_shape(size)}, {way}") for way in _WAYS]
            if all(samples):
                rows.append(_row(kind, size, [Duel.of(each) for each in samples]))
    report.result["tables"] = []
    report.table("Against cuBLAS", columns, rows)


def _row(kind: Kind, size: Size, duels: Sequence[Duel]) -> list[str]:
    row = [kind.words, _shape(size)]
    for duel in duels:
        theirs, ours = (sorted(times)[len(times) // 2] for times in (duel.theirs, duel.ours))
        row += [number(theirs), number(ours), f"{duel.ratio:.3f}", duel.rounds.spread(3), duel.best]
    return row


def _named(schedule: KernelSchedule, tile: Size, cluster: tuple[int, int]) -> str:
    return f"{schedule.name} {_shape(tile)}, {'x'.join(map(str, cluster))}"


def _shape(size: Size) -> str:
    return "x".join(map(str, size))


if __name__ == "__main__":
    sys.exit(main())
