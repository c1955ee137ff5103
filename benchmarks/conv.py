"""Throughput of f16 convolutions: the layers of ResNet-50 in three directions, against cuDNN through torch.

cuDNN chooses its kernel in benchmark mode. Ours is the best of a list of tiles, swizzles and slices of split-K, found
first and then measured anew against cuDNN, in turns.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pycutlass
from benchmarks.common import BenchmarkError, Report, number, options
from benchmarks.problems import input_sets
from benchmarks.timing import Loop, cycling, device_times, median_ratio, summarize
from pycutlass import Conv2dArguments, Conv2dOperation, PyCutlassError, ReductionArguments, compiler, cutlass, device

if TYPE_CHECKING:
    import torch

__all__ = ["LAYERS", "Layer", "choices", "main"]

fprop, dgrad, wgrad = PARTS_OF_CONV = tuple(cutlass.conv.Operator)
PARTS = tuple(kind.name for kind in PARTS_OF_CONV)
LIMITS = {"fprop": 0.70, "dgrad": 0.70, "wgrad": 0.60}
LIMITED_BATCH = 32
BATCHES = (32, 256)

Triple = tuple[int, int, int]
Serial, Parallel = cutlass.conv.SplitKMode.Serial, cutlass.conv.SplitKMode.Parallel

#: Threadblock tile, stages, warps. Those with K = 32 and few stages leave room for more threadblocks on a
#: multiprocessor, which short sums need; those with eight warps for 128x128 hide latency with more warps.
TILES: tuple[tuple[Triple, int, Triple], ...] = (
    ((128, 128, 32), 5, (2, 2, 1)),
    ((128, 128, 32), 4, (2, 4, 1)),
    ((128, 128, 32), 3, (2, 2, 1)),
    ((128, 128, 64), 3, (2, 2, 1)),
    ((128, 128, 64), 3, (2, 4, 1)),
    ((128, 256, 32), 4, (2, 4, 1)),
    ((128, 256, 64), 3, (2, 4, 1)),
    ((256, 128, 32), 4, (4, 2, 1)),
    ((256, 128, 64), 3, (4, 2, 1)),
    ((256, 64, 32), 4, (4, 1, 1)),
    ((256, 64, 64), 3, (4, 1, 1)),
    ((64, 256, 32), 4, (1, 4, 1)),
    ((64, 256, 64), 3, (1, 4, 1)),
    ((128, 64, 32), 3, (2, 2, 1)),
    ((128, 64, 32), 4, (2, 2, 1)),
    ((128, 64, 64), 3, (2, 2, 1)),
    ((128, 64, 64), 4, (2, 2, 1)),
    ((64, 128, 32), 4, (2, 2, 1)),
    ((64, 128, 64), 3, (2, 2, 1)),
    ((64, 128, 64), 4, (2, 2, 1)),
    ((64, 64, 32), 4, (2, 2, 1)),
    ((64, 64, 64), 3, (2, 2, 1)),
    ((64, 64, 64), 5, (2, 2, 1)),
)
SWIZZLES = (1, 4)
#: Threadblocks that a split of K aims at, in multiples of a GPU's 132 multiprocessors.
WAVES = (0.5, 1, 2, 4)
#: Serial split-K rounds to f16 after every slice; more slices cost accuracy that cuDNN keeps.
MOST_SERIAL_SLICES = 4
_TOLERANCE = 1e-3  # relative, in the Frobenius norm; rounding the result to f16 makes about 2e-4


@dataclass(frozen=True)
class Layer:
    """A convolution of H x W pixels from C to K channels, with a square filter and padding that keeps the middle."""

    h: int
    w: int
    c: int
    k: int
    taps: int
    stride: int = 1

    @property
    def name(self) -> str:
        """How the tables call it."""
        stride = f" /{self.stride}" if self.stride > 1 else ""
        return f"{self.h}x{self.w}x{self.c} -> {self.k}, {self.taps}x{self.taps}{stride}"

    def problem(self, batch: int) -> Any:
        """Return the problem of a batch of so many images."""
        pad = self.taps // 2
        return cutlass.conv.Conv2dProblemSize(
            N=batch,
            H=self.h,
            W=self.w,
            C=self.c,
            K=self.k,
            R=self.taps,
            S=self.taps,
            pad_h=pad,
            pad_w=pad,
            stride_h=self.stride,
            stride_w=self.stride,
        )


LAYERS = (
    Layer(56, 56, 64, 64, 1),
    Layer(56, 56, 64, 64, 3),
    Layer(56, 56, 64, 256, 1),
    Layer(56, 56, 256, 128, 1),
    Layer(56, 56, 128, 128, 3, 2),
    Layer(28, 28, 128, 128, 3),
    Layer(28, 28, 128, 512, 1),
    Layer(28, 28, 512, 256, 1),
    Layer(14, 14, 256, 256, 3),
    Layer(14, 14, 256, 1024, 1),
    Layer(14, 14, 1024, 512, 1),
    Layer(7, 7, 512, 512, 3),
    Layer(7, 7, 512, 2048, 1),
    Layer(224, 224, 8, 64, 7, 2),
)


@dataclass(frozen=True)
class Choice:
    """A kernel and a split of K: everything that is chosen for a layer."""

    operation: Conv2dOperation
    mode: Any = Serial
    slices: int = 1

    @property
    def name(self) -> str:
        """How the tables call it."""
        tile = self.operation.tile_description
        swizzle = self.operation.swizzling_functor.__name__.rpartition("Swizzle")[2]
        split = "" if self.slices == 1 else f", {self.mode.name.lower()} {self.slices}"
        algorithm = self.operation.iterator_algorithm.name
        return f"{algorithm} {tile.procedural_name()}, swizzle {swizzle}{split}"


class Work:
    """One layer in one direction, with several sets of random normal inputs that are used in turn."""

    def __init__(self, layer: Layer, batch: int, kind: Any) -> None:
        import torch

        self.layer, self.kind, self.size = layer, kind, layer.problem(batch)
        p = self.size
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        elements = p.activation_size() + p.filter_size() + p.output_size()
        self._sets = [self._tensors() for _ in range(input_sets(2 * elements, cache))]
        product = cutlass.conv.implicit_gemm_problem_size(kind, p)
        self.product = product.m(), product.n(), product.k()
        self._reference = self._torch_result(*(tensor.double() for tensor in self._sets[0]))

    def rate(self, microseconds: float) -> float:
        """Return TFLOP/s."""
        return 2.0 * math.prod(self.product) / microseconds / 1e6

    def cudnn(self) -> Loop:
        """Return a loop over torch's convolution."""
        calls = [functools.partial(self._torch_result, *tensors) for tensors in self._sets]
        self._check("cuDNN", calls[0]())
        return cycling(calls)

    def pycutlass(self, choice: Choice) -> Loop:
        """Return a loop over a choice."""
        import torch

        calls = []
        for index, (x, w, y) in enumerate(self._sets):
            A, B, D = {fprop: (x, w, y), dgrad: (y, w, x), wgrad: (y, x, w)}[self.kind]
            target = torch.empty_like(D)
            prepare = self._split if choice.mode is Parallel else self._launch
            calls.append(prepare(choice, A, B, target))
            if index == 0:
                target.fill_(float("nan"))
                calls[0]()
                self._check(choice.name, target)
        return cycling(calls)

    def _launch(self, choice: Choice, A: torch.Tensor, B: torch.Tensor, D: torch.Tensor) -> Any:
        arguments = Conv2dArguments(choice.operation, self.size, A, B, None, D, split_k_slices=choice.slices)
        return functools.partial(choice.operation.run, arguments)

    def _split(self, choice: Choice, A: torch.Tensor, B: torch.Tensor, D: torch.Tensor) -> Any:
        operation, ends = choice.operation, reduction()
        arguments = Conv2dArguments(operation, self.size, A, B, split_k_mode=Parallel, split_k_slices=choice.slices)
        m, n, _ = self.product
        flat = D.permute(0, 2, 3, 1).reshape(m, n)
        reduced = ReductionArguments(ends, [m, n], choice.slices, arguments.ptr_D, flat, None)

        def call() -> None:
            operation.run(arguments)
            ends.run(reduced)

        return call

    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return activation, filter and output (or their gradients)."""
        import torch

        p = self.size
        shapes = ((p.N, p.C, p.H, p.W), (p.K, p.C, p.R, p.S), (p.N, p.K, p.P, p.Q))
        x, w, y = (
            torch.randn(shape, device="cuda", dtype=torch.float16).contiguous(memory_format=torch.channels_last)
            for shape in shapes
        )
        return x, w, y

    def _torch_result(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        import torch

        stride, padding = [self.size.stride_h] * 2, [self.size.pad_h] * 2
        if self.kind is fprop:
            return torch.nn.functional.conv2d(x, w, None, stride, padding)
        mask = [self.kind is dgrad, self.kind is wgrad, False]
        given = (y, x, w, None, stride, padding, [1, 1], False, [0, 0], 1, mask)
        result: torch.Tensor = torch.ops.aten.convolution_backward(*given)[0 if self.kind is dgrad else 1]
        return result

    def _check(self, name: str, result: torch.Tensor) -> None:
        error = float((result.double() - self._reference).norm() / self._reference.norm())
        if not error <= _TOLERANCE:
            where = f"{self.kind.name} of {self.layer.name}"
            raise BenchmarkError(f"{name} is wrong at {where}: relative error {error:.2e}, NaN where not written")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--dry", action="store_true", help="only list the kernels and the choices: needs no GPU")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each comparison (%(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES), help="images (%(default)s)")
    chosen = parser.parse_args(argv)
    kinds = [kind for kind in PARTS_OF_CONV if kind.name in chosen.only]
    problems = [(layer, batch, kind) for kind in kinds for batch in chosen.batch for layer in LAYERS]
    wanted = [choice for each in problems for choice in choices(*each)]
    if chosen.dry:
        print("\n".join(dict.fromkeys(choice.operation.procedural_name() for choice in wanted)))
        print(f"{len(wanted)} choices for {len(problems)} problems")
        return 0
    about = (
        "f16 NHWC, f32 accumulation, random normal inputs that do not stay in the L2 cache; device time by CUDA "
        "events, competitors in turns; every result checked against float64. cuDNN through torch, in benchmark mode."
    )
    report = Report("conv", "Convolutions", about, chosen.out, quick=chosen.quick)
    with report.part("GPU"):
        device.require()
        _use_benchmark_mode()
    if not report.result["failures"]:
        with report.part("compile the kernels"):
            _compile(report, list(dict.fromkeys(choice.operation for choice in wanted)))
        for kind in kinds:
            for batch in chosen.batch:
                direction(report, kind, batch, 0.1 if chosen.quick else chosen.seconds)
    return report.finish()


def direction(report: Report, kind: Any, batch: int, seconds: float) -> None:
    """Compare all layers in one direction with cuDNN, and record the geometric mean."""
    rows: list[Sequence[str]] = []
    ratios: list[float] = []
    try:
        for layer in LAYERS:
            with report.part(f"{kind.name}, N={batch}, {layer.name}"):
                row, ratio = _compared(report, layer, batch, kind, seconds)
                rows.append(row)
                ratios.append(ratio)
    finally:  # what was measured before an interruption counts
        columns = ("H x W x C -> K, filter", "cuDNN us", "TFLOP/s", "PyCUTLASS us", "TFLOP/s", "speed of cuDNN's")
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        note = f"Geometric mean of {len(ratios)} layers: {mean:.3f}."
        report.table(f"{kind.name}, N={batch}", (*columns, "round by round", "best"), rows, note)
        if ratios and batch == LIMITED_BATCH:
            what = f"{kind.name} of ResNet-50's layers, N={batch}: geometric mean of the speed of cuDNN's"
            report.check(what, mean, LIMITS[kind.name], "x", at_least=True)
        report.save()


def _compared(report: Report, layer: Layer, batch: int, kind: Any, seconds: float) -> tuple[Sequence[str], float]:
    work = Work(layer, batch, kind)
    loops = {each.name: work.pycutlass(each) for each in choices(layer, batch, kind) if each.operation.artifacts}
    screened = device_times(loops, seconds=seconds, batch_seconds=0.001, least_rounds=3)
    medians = {name: summarize(series).median for name, series in screened.items()}
    best = min(medians, key=lambda name: medians[name])
    times = device_times({"cuDNN": work.cudnn(), "PyCUTLASS": loops[best]}, seconds=seconds)
    report.raw(f"{kind.name}, N={batch}, {layer.name}", {"screened us": medians, "best": best, **times})
    ratio, rounds = median_ratio(times["PyCUTLASS"], times["cuDNN"])
    theirs, ours = (summarize(times[name]).median for name in ("cuDNN", "PyCUTLASS"))
    figures = (number(theirs), f"{work.rate(theirs):.1f}", number(ours), f"{work.rate(ours):.1f}")
    return (layer.name, *figures, f"{ratio:.3f}", rounds.spread(3), best), ratio


# What is tried


def choices(layer: Layer, batch: int, kind: Any, multiprocessors: int = 132) -> list[Choice]:
    """Return all that is tried for a layer: tiles and swizzles, and slices of K where there are few threadblocks."""
    size = layer.problem(batch)
    found: list[Choice] = []
    for operation in operations(layer, kind):
        if not operation.supports(size):
            continue
        found.append(Choice(operation))
        if operation.swizzling_functor is not cutlass.IdentitySwizzle1:
            continue
        for slices in _slices(operation, size, multiprocessors):
            modes = (Serial, Parallel) if slices <= MOST_SERIAL_SLICES else (Parallel,)
            split = size.reset_split_k_slices(slices)
            found += [Choice(operation, mode, slices) for mode in modes if operation.supports(split)]
    return found


def operations(layer: Layer, kind: Any) -> list[Conv2dOperation]:
    """Return the kernels that are tried for a layer."""
    strided = kind is dgrad and layer.stride > 1
    family = "StridedDgradIdentitySwizzle" if strided else "IdentitySwizzle"
    support = pycutlass.StrideSupport.Unity if kind is dgrad and not strided else pycutlass.StrideSupport.Strided
    algorithms = ["optimized", *(["fixed_channels"] if kind is fprop and layer.c == 8 else [])]
    return [
        _operation(kind, algorithm, tile, support, getattr(cutlass, f"{family}{swizzle}"))
        for algorithm in algorithms
        for tile in TILES
        for swizzle in SWIZZLES
    ]


@functools.cache  # what was compiled goes with the last operation that has it
def _operation(
    kind: Any, algorithm: str, tile: tuple[Triple, int, Triple], support: Any, swizzle: Any
) -> Conv2dOperation:
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = pycutlass.MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    described = pycutlass.TileDescription(*tile, instruction)
    nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    chosen = cutlass.conv.IteratorAlgorithm[algorithm]
    return Conv2dOperation(kind, chosen, 90, described, nhwc, nhwc, nhwc, support, functor, swizzle)


@functools.cache
def reduction() -> pycutlass.ReductionOperation:
    """Return what ends every parallel split-K."""
    f16, f32 = cutlass.float16, cutlass.float32
    nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    functor = pycutlass.LinearCombination(f16, 4, f32, f32)
    # Many partial sums of few elements: short accesses for more threads, and many loads in flight in each.
    return pycutlass.ReductionOperation(
        cutlass.MatrixCoord(4, 128), nhwc, f32, epilogue_functor=functor, count=4, partitions_per_stage=16
    )


def _slices(operation: Conv2dOperation, size: Any, multiprocessors: int) -> list[int]:
    """Return numbers of slices that fill the GPU, and leave each slice several steps along K."""
    m, n, k = operation.tile_description.threadblock_shape
    product = cutlass.conv.implicit_gemm_problem_size(operation.conv_kind, size)
    blocks = -(-product.m() // m) * -(-product.n() // n)
    # fprop and dgrad split the channels, and wgrad all pixels.
    extent = {fprop: size.C, dgrad: size.K, wgrad: product.k()}[operation.conv_kind]
    most = extent // (2 * k if operation.conv_kind is not wgrad else 8 * k)
    wanted = {int(waves * multiprocessors) // blocks for waves in WAVES}
    return sorted(slices for slices in wanted if 1 < slices <= most)


def _use_benchmark_mode() -> None:
    import torch

    torch.backends.cudnn.benchmark = True


def _compile(report: Report, wanted: Sequence[Conv2dOperation]) -> None:
    """Compile all at once; where one cannot be compiled, say which, and have the others."""
    split = [operation for operation in wanted if operation.swizzling_functor is cutlass.IdentitySwizzle1]
    try:
        compiler.add_module(wanted)
        compiler.add_module([*split, reduction()])
    except PyCutlassError:
        for operation in (*wanted, reduction()):
            with report.part(f"compile {operation.procedural_name()}"):
                compiler.add_module([operation])


if __name__ == "__main__":
    sys.exit(main())
