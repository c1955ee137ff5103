"""Throughput of f16 convolutions: the layers of ResNet-50 in three directions, against cuDNN through torch.

cuDNN chooses its kernel in benchmark mode. Ours is the best of a list of tiles, swizzles and slices of split-K, found
first and then measured anew against cuDNN, in turns. Both are timed in two ways, each with a choice of its own: every
call alone with a cold cache, and calls queued back to back.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.common import BenchmarkError, Report, number, options
from benchmarks.conv_choices import DIRECTIONS, LAYERS, Choice, Layer, Parallel, choices, reduction
from benchmarks.problems import input_sets
from benchmarks.timing import Loop, alone_times, cycling, device_times, median_ratio, summarize
from pycutlass import Conv2dArguments, Conv2dOperation, PyCutlassError, ReductionArguments, compiler, cutlass, device

if TYPE_CHECKING:
    import torch

__all__ = ["SPEEDS", "Comparison", "Work", "compare", "direction", "main"]

fprop, dgrad, wgrad = DIRECTIONS
PARTS = tuple(kind.name for kind in DIRECTIONS)
#: Of cuDNN's speed, in the geometric mean over the layers, each call timed alone.
LIMITS = {"fprop": 0.70, "dgrad": 0.70, "wgrad": 0.60}
LIMITED_BATCH = 32
BATCHES = (32, 256)

#: The two ways of timing, with what the tables say about them.
WAYS = {"alone": "each call alone, cold cache", "queued": "queued back to back"}
#: So many of the best choices of the queued screening are screened again, each call alone.
FINALISTS = 8
#: In the raw results: direction, batch, layer and the speed of cuDNN's in both ways, for figures.
SPEEDS = "speed of cuDNN's"

_TOLERANCE = 1e-3  # relative, in the Frobenius norm; rounding the result to f16 makes about 2e-4
_ABOUT = (
    "f16 NHWC, f32 accumulation, random normal inputs; every result checked against float64. Device time by CUDA "
    "events, competitors in turns. cuDNN through torch, in benchmark mode; PyCUTLASS with the best of a list of tiles, "
    "swizzles and slices of split-K, found in an earlier measurement for each layer and each way of timing.\n\n"
    "Timed in two ways. *Each call alone, cold cache*: before every call a buffer of at least 256 MiB is zeroed, so "
    "that nothing that the call reads is in the L2 cache, and every call has two events of its own, so that its launch "
    "and its drain count: as `triton.testing.do_bench` measures. The limits are for these times. *Queued back to "
    "back*: batches of calls between two events, with inputs in rotation that do not stay in the L2 cache; most of a "
    "call's launch is hidden behind the call before it."
)


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

    @property
    def name(self) -> str:
        """How the report calls it."""
        return f"{self.kind.name}, N={self.size.N}, {self.layer.name}"

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
            raise BenchmarkError(f"{name} is wrong at {self.name}: relative error {error:.2e}, NaN where not written")


@dataclass(frozen=True)
class Comparison:
    """A layer timed in one way: microseconds per call, round by round, and which of our choices it was."""

    cudnn: Sequence[float]
    pycutlass: Sequence[float]
    best: str

    @property
    def speed(self) -> float:
        """How many times as fast as cuDNN."""
        return median_ratio(self.pycutlass, self.cudnn)[0]

    def row(self, work: Work) -> tuple[str, ...]:
        """Return the line of a table."""
        ratio, rounds = median_ratio(self.pycutlass, self.cudnn)
        theirs, ours = summarize(self.cudnn).median, summarize(self.pycutlass).median
        figures = (number(theirs), number(ours), f"{ratio:.3f}", rounds.spread(3))
        return (work.layer.name, *figures, f"{work.rate(theirs):.1f}", f"{work.rate(ours):.1f}", self.best)

    def raw(self) -> dict[str, Any]:
        """Return what is kept of it: no single rounds, of which there are thousands."""
        kept = {"cuDNN": asdict(summarize(self.cudnn)), "PyCUTLASS": asdict(summarize(self.pycutlass))}
        return {"us": kept, "speed": self.speed, "best": self.best}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--dry", action="store_true", help="only list the kernels and the choices: needs no GPU")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each comparison (%(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES), help="images (%(default)s)")
    chosen = parser.parse_args(argv)
    kinds = [kind for kind in DIRECTIONS if kind.name in chosen.only]
    problems = [(layer, batch, kind) for kind in kinds for batch in chosen.batch for layer in LAYERS]
    wanted = [choice for each in problems for choice in choices(*each)]
    if chosen.dry:
        print("\n".join(dict.fromkeys(choice.operation.procedural_name() for choice in wanted)))
        print(f"{len(wanted)} choices for {len(problems)} problems")
        return 0
    report = Report("conv", "Convolutions", _ABOUT, chosen.out, quick=chosen.quick)
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
    """Compare all layers in one direction with cuDNN, and record the geometric means."""
    rows: dict[str, list[Sequence[str]]] = {way: [] for way in WAYS}
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for layer in LAYERS:
            with report.part(f"{kind.name}, N={batch}, {layer.name}"):
                work = Work(layer, batch, kind)
                compared = compare(report, work, seconds)
                for way, comparison in compared.items():
                    rows[way].append(comparison.row(work))
                    speeds[way].append(comparison.speed)
                _record_speeds(report, work, compared)
    finally:  # what was measured before an interruption counts
        _record_tables(report, f"{kind.name}, N={batch}", rows, speeds)
        if speeds["alone"] and batch == LIMITED_BATCH:
            what = f"{kind.name} of ResNet-50's layers, N={batch}, {WAYS['alone']}: geometric mean of cuDNN's speed"
            report.check(what, _geometric_mean(speeds["alone"]), LIMITS[kind.name], "x", at_least=True)
        report.save()


def compare(report: Report, work: Work, seconds: float) -> dict[str, Comparison]:
    """Find the best choice for each way of timing and compare it with cuDNN, both for so many seconds."""
    loops = _loops(report, work)
    screened = _medians(device_times(loops, seconds=seconds, batch_seconds=0.001, least_rounds=3))
    finalists = sorted(screened, key=lambda name: screened[name])[:FINALISTS]
    again = _medians(alone_times(_calls({name: loops[name] for name in finalists}), seconds=seconds / 4))
    best = {"alone": min(again, key=lambda name: again[name]), "queued": finalists[0]}
    cudnn = work.cudnn()
    times = {
        "alone": alone_times(_calls({"cuDNN": cudnn, "PyCUTLASS": loops[best["alone"]]}), seconds=seconds),
        "queued": device_times({"cuDNN": cudnn, "PyCUTLASS": loops[best["queued"]]}, seconds=seconds),
    }
    compared = {way: Comparison(times[way]["cuDNN"], times[way]["PyCUTLASS"], best[way]) for way in WAYS}
    raw: dict[str, Any] = {"screened us": {"alone": again, "queued": screened}}
    report.raw(work.name, raw | {way: comparison.raw() for way, comparison in compared.items()})
    return compared


def _loops(report: Report, work: Work) -> dict[str, Loop]:
    """Return a loop over each choice; one that computes something wrong is reported, and the others are measured."""
    loops = {}
    for choice in choices(work.layer, work.size.N, work.kind):
        if not choice.operation.artifacts:
            continue
        try:
            loops[choice.name] = work.pycutlass(choice)
        except BenchmarkError as error:
            with report.part(f"{work.name}: {choice.name}"):
                raise error
    return loops


def _calls(loops: Mapping[str, Loop]) -> dict[str, Any]:
    return {name: functools.partial(loop, 1) for name, loop in loops.items()}


def _medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: summarize(series).median for name, series in times.items()}


def _geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def _record_speeds(report: Report, work: Work, compared: Mapping[str, Comparison]) -> None:
    entry = {"direction": work.kind.name, "batch": work.size.N, "layer": work.layer.name}
    known = report.result["raw"].get(SPEEDS, [])
    report.raw(SPEEDS, [*known, entry | {way: comparison.speed for way, comparison in compared.items()}])


def _record_tables(
    report: Report, title: str, rows: Mapping[str, list[Sequence[str]]], speeds: Mapping[str, list[float]]
) -> None:
    """Record a table for each way of timing; both geometric means stand below both."""
    columns = ("H x W x C -> K, filter", "cuDNN us", "PyCUTLASS us", "speed of cuDNN's", "round by round")
    count = len(speeds["alone"])
    told = {way: f"{WAYS[way]}: {_geometric_mean(speeds[way]):.3f}" for way in WAYS}
    note = (
        f"Geometric mean of the speed of cuDNN's over {count} layers, {told['alone']}.\n\n"
        f"The same, {told['queued']}; it has no limit."
    )
    for way in WAYS:
        report.table(f"{title}, {WAYS[way]}", (*columns, "cuDNN TFLOP/s", "PyCUTLASS TFLOP/s", "best"), rows[way], note)


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
