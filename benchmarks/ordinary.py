"""Products as programs have them, by `pycutlass.matmul` and by torch.matmul, with the defaults of both."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pycutlass
from benchmarks.common import BenchmarkError, Report, number
from benchmarks.pick_shapes import Shape
from benchmarks.timing import both_ways
from pycutlass import TensorSpec
from pycutlass.device import Device
from pycutlass.plan import Candidate
from pycutlass.plan.choices import Choices

if TYPE_CHECKING:
    import torch

__all__ = ["ORDINARY", "Ordinary", "against_torch", "compared"]

MEAN_LIMIT, LEAST_LIMIT = 0.98, 0.85
_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "tf32": "float32"}
_WORST = 12
_CHECKED_ROWS = 64  # of each result: the first, the last, and others in between
_FURTHER = 2.0  # times torch's distance from float64 that ours may have


class Ordinary(Shape):
    """A product as a program has it.

    Of layouts ``"tn"`` is a linear layer, ``x @ w.T``, ``"tt"`` a product of matrices by rows, and ``"nt"`` the
    gradient of weights, ``g.T @ x``.
    """

    @property
    def precision(self) -> str | None:
        """How float32 is multiplied, as torch's setting says it to `pycutlass.matmul`."""
        return "tf32" if self.operands == "tf32" else None

    def plan(self) -> pycutlass.Gemm:
        """Return the plan of it, without tensors: of the host where there is no GPU."""
        lead = () if self.batch is None else (self.batch,)
        a, b = (
            _spec(lead, rows, columns, layout, _NAMES[self.operands])
            for rows, columns, layout in zip((self.m, self.k), (self.k, self.n), self.layouts, strict=True)
        )
        return pycutlass.Gemm(a, b, precision=self.precision)

    def chosen(self, gpu: Device) -> Candidate:
        """Return what `pycutlass.matmul` chooses on a GPU that need not be here, where nothing was measured."""
        plan = self.plan()
        return _ChosenFor(gpu, plan).of(self.m)

    def tensors(self, place: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return random A and B, and memory for D."""
        import torch

        lead = () if self.batch is None else (self.batch,)
        dtype = getattr(torch, _NAMES[self.operands])

        def drawn(rows: int, columns: int, layout: str) -> torch.Tensor:
            stored = (rows, columns) if layout == "t" else (columns, rows)
            made = torch.randn(*lead, *stored, device=place, dtype=dtype)
            return made if layout == "t" else made.mT

        torch.manual_seed(self.m + 3 * self.n + 5 * self.k)
        a, b = drawn(self.m, self.k, self.layouts[0]), drawn(self.k, self.n, self.layouts[1])
        return a, b, torch.empty(*lead, self.m, self.n, device=place, dtype=dtype)


class _ChosenFor(Choices):
    """What a plan chooses on a GPU that is named."""

    def __init__(self, gpu: Device, plan: pycutlass.Gemm) -> None:
        self._named = gpu
        super().__init__(plan.kind, plan.size[1:], plan.batch, None, plan.source)

    @property
    def gpu(self) -> Device:
        return self._named


def _spec(lead: tuple[int, ...], rows: int, columns: int, layout: str, dtype: str) -> TensorSpec:
    steps = (columns, 1) if layout == "t" else (1, rows)
    return TensorSpec((*lead, rows, columns), dtype, (*(rows * columns for _ in lead), *steps))


def _ordinary() -> tuple[Ordinary, ...]:
    layers = ((4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336))
    small = ((768, 768), (3072, 768), (768, 3072), (1024, 1024))
    found = [Ordinary("bf16", "tn", m, *each) for m in (1, 8, 16, 64, 128, 512, 2048, 8192) for each in layers]
    found += [Ordinary("f16", "tn", m, *each) for m in (1, 32, 256, 1024, 4096) for each in small]
    found += [Ordinary(of, "tt", *[extent] * 3) for of in ("bf16", "f16") for extent in (512, 1024, 2048, 4096, 8192)]
    scores = ((32, 512, 512, 64), (64, 1024, 1024, 128), (16, 2048, 2048, 128))  # of attention, with their products
    for operands in ("bf16", "f16"):
        found += [Ordinary(operands, "tn", m, n, k, batch) for batch, m, n, k in scores]
        found += [Ordinary(operands, "tt", m, k, n, batch) for batch, m, n, k in scores]
    gradients = ((4096, 4096, 2048), (1024, 4096, 8192), (3072, 768, 4096), (768, 3072, 4096))
    found += [Ordinary("bf16", "nt", *each) for each in gradients]
    found += [Ordinary("f32", "tt", *[extent] * 3) for extent in (1024, 2048)]
    found += [Ordinary("f32", "tn", *each) for each in ((64, 1024, 1024), (512, 4096, 1024))]
    found += [Ordinary("tf32", "tt", *[extent] * 3) for extent in (1024, 2048, 4096)]
    found += [Ordinary("tf32", "tn", *each) for each in ((512, 4096, 1024), (4096, 1024, 4096))]
    odd = {  # extents that no tile divides, and some of which lines begin anywhere
        ("f16", "tt"): ((1000, 1000, 1000), (3000, 3000, 3000), (333, 555, 777), (1023, 1025, 511)),
        ("f16", "tn"): ((777, 1000, 2048), (65, 4100, 4100), (512, 1000, 4096)),
        ("bf16", "tn"): ((100, 50257, 768), (2048, 50257, 768), (4097, 4096, 4096), (12, 1000, 2048)),
        ("bf16", "tt"): ((777, 1536, 1000), (3072, 200, 4096)),
    }
    found += [Ordinary(*key, *each) for key, several in odd.items() for each in several]
    return tuple(found)


#: What is measured: 100 products, which stay as they are.
ORDINARY = _ordinary()


def against_torch(report: Report, chosen: Sequence[Ordinary], seconds: float) -> None:
    """Measure products, each for so many `seconds` alone and so many queued, and record how they compare."""
    times: dict[str, Mapping[str, Mapping[str, float]]] = {}
    for each in chosen:
        with report.part(each.name):
            times[each.name] = compared(each, seconds)
    if not times:
        return
    speeds = {
        way: {name: found[way]["torch"] / found[way]["PyCUTLASS"] for name, found in times.items()}
        for way in ("alone", "queued")
    }
    alone = speeds["alone"]
    what = f"matmul against torch.matmul, {len(times)} products"
    report.check(f"{what}: geometric mean", statistics.geometric_mean(alone.values()), MEAN_LIMIT, "x", at_least=True)
    report.check(f"{what}: the slowest", min(alone.values()), LEAST_LIMIT, "x", at_least=True)
    report.check("products that could not be measured", len(chosen) - len(times), 0, "")
    kinds = dict.fromkeys(f"{each.operands} {each.layouts}{' batches' if each.batch else ''}" for each in chosen)
    rows = []
    for kind in (*kinds, "all"):
        names = [each.name for each in chosen if each.name in times and kind in ("all", _kind(each))]
        if names:
            means = (statistics.geometric_mean([speeds[way][name] for name in names]) for way in speeds)
            rows.append([kind, str(len(names)), *map(number, means), number(min(alone[name] for name in names))])
    columns = ("types and layouts", "products", "alone", "queued", "slowest alone")
    note = "Speeds of torch.matmul's, geometric means: each call alone with a cold L2 cache, and queued back to back."
    report.table("matmul against torch.matmul", columns, rows, note)
    slowest = sorted(times, key=lambda name: alone[name])[:_WORST]
    rows = [
        [name, *(number(times[name]["alone"][who]) for who in ("PyCUTLASS", "torch")), number(alone[name])]
        for name in slowest
    ]
    report.table("Products furthest behind torch.matmul", ("product", "us", "torch, us", "speed"), rows)
    report.raw("ordinary products", times)


def compared(each: Ordinary, seconds: float) -> dict[str, dict[str, float]]:
    """Return the microseconds of a product by us and by torch, alone and queued, once both are found to be right."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = each.operands == "tf32"
    a, b, d = each.tensors()
    theirs = torch.empty_like(d)
    calls: dict[str, Any] = {
        "PyCUTLASS": functools.partial(pycutlass.matmul, a, b, out=d),
        "torch": functools.partial(torch.matmul, a, b, out=theirs),
    }
    check_results(each, a, b, calls, d, theirs)
    return both_ways(calls, seconds)


def check_results(each: Ordinary, a: Any, b: Any, calls: Mapping[str, Any], ours: Any, theirs: Any) -> None:
    """Raise unless our result is about as near to that of float64 as torch's is, and written in every element."""
    import torch

    rows = torch.linspace(0, each.m - 1, min(each.m, _CHECKED_ROWS), device=a.device).long()
    exact = a[..., rows, :].double() @ b.double()
    errors = {}
    for (name, call), result in zip(calls.items(), (ours, theirs), strict=True):
        result.fill_(float("nan"))
        call()
        errors[name] = float((result[..., rows, :].double() - exact).norm() / exact.norm())
        if bool(result.isnan().any()):
            raise BenchmarkError(f"{name} left elements of {each.name} as they were")
    if not errors["PyCUTLASS"] <= _FURTHER * errors["torch"] + 1e-7:
        raise BenchmarkError(f"the result of {each.name} is wrong: relative errors are {errors}")


def _kind(each: Ordinary) -> str:
    return f"{each.operands} {each.layouts}{' batches' if each.batch else ''}"
