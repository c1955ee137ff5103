"""Ready-made epilogue functions: what each costs beside the plain product, in GEMMs and in convolutions.

The plain product has a linear combination, and both have the best of a few tiles. A function may take 5 % longer, and
as long as the memory takes to bring what it reads and to write what it writes beside D.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.common import BenchmarkError, Report, options
from benchmarks.fusion_conv import BANDWIDTH, OVERHEAD, against_plain_and_torch
from benchmarks.timing import both_ways
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    MathInstruction,
    TensorDescription,
    TileDescription,
    compiler,
    cutlass,
    device,
)
from pycutlass.epilogue import fusions

__all__ = ["HOPPER", "SHAPES", "Work", "operation"]

PARTS = ("cost", "conv")
SHAPES = ((8192, 8192, 8192), (4096, 14336, 4096), (8192, 4096, 1024))

_ABOUT = (
    "bf16 operands and D, f32 accumulation, random normal inputs; every result checked against float64 on some rows. "
    "Device time in turns, each call alone with a cold L2 cache and queued back to back. The plain product is the "
    "same kernel with `LinearCombination`; both in the best of a few tiles. *Allowed* is its time, 5 % of it and that "
    "of the bytes that the function reads and writes beside D, at 4.2 TB/s."
)
_BF16, _F32 = cutlass.bfloat16, cutlass.float32
#: Tiles of Hopper-native kernels: shape, cluster, schedule.
HOPPER = (
    ((128, 256, 64), (2, 1, 1), KernelSchedule.Cooperative),
    ((256, 128, 64), (2, 1, 1), KernelSchedule.Cooperative),
    ((128, 128, 64), (2, 1, 1), KernelSchedule.Pingpong),
    ((64, 256, 64), (2, 1, 1), KernelSchedule.Pingpong),
    ((128, 160, 64), (2, 1, 1), KernelSchedule.Pingpong),
)
#: Tiles of Ampere-style ones: shape, stages, warps.
_AMPERE = (
    ([128, 256, 32], 3, [2, 4, 1]),
    ([128, 128, 32], 4, [2, 2, 1]),  # two threadblocks on a multiprocessor: one multiplies while the other stores
    ([128, 128, 64], 3, [2, 2, 1]),  # the same with half as many steps
)
#: Those that *cost* takes the best of, by family.
_COST_TILES = {"Hopper": (0, 2), "Ampere": (0, 1, 2)}


def operation(functor: Any, family: str, tile: int = 0) -> GemmOperationUniversal:
    """Return a kernel of a family with an epilogue."""
    rows = TensorDescription(_BF16, cutlass.RowMajor, 8)
    columns = TensorDescription(_BF16, cutlass.ColumnMajor, 8)
    shape = [16, 8, 16] if family == "Ampere" else None
    instruction = MathInstruction(shape, _BF16, _BF16, _F32, cutlass.OpClass.TensorOp)
    if family == "Ampere":
        described = TileDescription(*_AMPERE[tile], instruction)
        return GemmOperationUniversal(80, described, rows, columns, rows, functor, cutlass.IdentitySwizzle8)
    extents, cluster, schedule = HOPPER[tile]
    described = TileDescription(extents, None, None, instruction, cluster_shape=cluster, kernel_schedule=schedule)
    return GemmOperationUniversal(90, described, rows, columns, rows, functor, cutlass.IdentitySwizzle8)


class Work:
    """One shape, with everything that a function may ask for."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        import torch

        m, n, k = self.shape = shape
        randn, options = torch.randn, {"device": "cuda", "dtype": torch.bfloat16}
        self.A, self.B, self.D = randn(m, k, **options), randn(n, k, **options).T, torch.empty(m, n, **options)
        self.tensors = {
            "matrix": randn(m, n, **options),
            "row": randn(n, **options),
            "column": randn(m, **options),
            "number": randn(1, **options),
        }
        self.exact = self.A[:64].double() @ self.B.double()

    def call(self, made: GemmOperationUniversal, *, check: bool = True) -> Callable[[], None]:
        """Return a launch of a kernel, whose result was checked."""
        import torch

        functor, (m, n, _) = made.epilogue_functor, self.shape
        given = {port.name: self.tensors[port.form] for port in functor.inputs}
        for port in functor.outputs:
            shape = {"row": (n,), "column": (m,), "scalar": (1,)}.get(port.form, (m, n))
            kind = torch.float32 if port.type.short == "f32" else torch.bfloat16
            given[port.name] = torch.empty(shape, device="cuda", dtype=kind)
        options: dict[str, Any] = {"epilogue": given} if given else {}
        scalars = dict.fromkeys(functor.scalar_names, 1.0) if functor.is_tree else {}
        made_of = made.epilogue_type(**scalars) if scalars else None
        D = self.of_columns(functor.columns(n))
        arguments = GemmArguments(made, self.shape, self.A, self.B, None, D, output_op=made_of, **options)
        self.D.fill_(float("nan"))
        made.run(arguments)
        if check:
            self._check(functor, given)
        return lambda: made.run(arguments)

    def of_columns(self, columns: int) -> Any:
        """Return the memory of D as a matrix of so many columns: gated functions have half of them."""
        return self.D.view(-1)[: self.shape[0] * columns].view(-1, columns)

    def _check(self, functor: Any, given: dict[str, Any]) -> None:
        """Compare the first rows with f64."""
        rows = len(self.exact)
        exact = self.exact.cpu().numpy()
        if functor.is_tree:
            tall = ("matrix", "column")  # what has as many rows as D; the others are taken whole
            inputs = {
                port.name: (given[port.name][:rows] if port.form in tall else given[port.name]).double().cpu().numpy()
                for port in functor.inputs
            }
            made = functor.function.numpy(exact, **inputs, **dict.fromkeys(functor.scalar_names, 1.0))
            exact = made["D"] if isinstance(made, dict) else made
        found = self.of_columns(exact.shape[1])[:rows].double().cpu().numpy()
        error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        if not error < 6e-3:
            raise BenchmarkError(f"{functor!r} of {self.shape} is wrong by {error:.2g}")

    def extra_seconds(self, functor: Any) -> float:
        """Return how long the memory takes for what a function reads and writes beside D."""
        m, n, _ = self.shape
        counts = {"matrix": m * n, "row": n, "column": m, "number": 1, "scalar": 1}
        return sum(counts[port.form] * port.type.bits // 8 for port in functor.ports) / BANDWIDTH


def functors() -> dict[str, Any]:
    """Return all ready-made functions with the types of this benchmark."""
    return {name: function(_BF16, 8) for name, function in fusions.ALL.items()}


def cost(report: Report, seconds: float, families: Iterable[str], shapes: Iterable[tuple[int, int, int]]) -> None:
    """Measure what each function costs."""
    plain = LinearCombination(_BF16, 8, _F32, _F32)
    described = {"plain": plain} | functors()
    shapes = list(shapes)
    for family in families:
        tiles = _COST_TILES[family]
        with report.part(f"cost, {family}"):
            made = {
                f"{name} {tile}": operation(functor, family, tile)
                for name, functor in described.items()
                for tile in tiles
            }
            compiler.add_module(list(made.values()))
            rows: dict[str, list[str]] = {name: [name] for name in described}
            worst: dict[str, float] = {}
            for shape in shapes:
                work = Work(shape)
                calls = {name: work.call(each) for name, each in made.items()}
                for way, times in both_ways(calls, seconds).items():
                    best = {name: min(times[f"{name} {tile}"] for tile in tiles) for name in described}
                    for name, took in best.items():
                        extra = 0.0 if name == "plain" else 1e6 * work.extra_seconds(described[name])
                        share = took / (OVERHEAD * best["plain"] + extra)
                        rows[name].append(f"{took:.1f} ({share:.3f})")
                        worst[name] = max(worst.get(name, 0.0), share)
                        report.raw(f"{family}, {name}, {shape}, {way}", took)
                del work, calls
            titles = ["function"]
            for m, n, k in shapes:
                titles += [f"{m}x{n}x{k} alone, us (of allowed)", "queued"]
            report.table(f"{family}: cost of ready-made functions", titles, rows.values())
            for name, share in worst.items():
                if name != "plain":
                    report.check(f"{family} {name}: time of what is allowed", share, 1.0, "times")


def main() -> int:
    """Measure, and write the results."""
    parser = options(__doc__, PARTS)
    chosen = parser.parse_args()
    device.require()
    report = Report("fusion", "Epilogue functions", _ABOUT, chosen.out, quick=chosen.quick)
    seconds = 0.02 if chosen.quick else 4.0  # with less, runs of queued launches differ by 2 to 4 %
    if "cost" in chosen.only:
        cost(report, seconds, ("Hopper", "Ampere"), SHAPES)
    if "conv" in chosen.only:
        against_plain_and_torch(report, seconds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
