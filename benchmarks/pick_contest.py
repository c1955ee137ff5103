"""All that is worth measuring for one problem: checked, timed with a cold L2 cache, the hopeless left out early."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.common import BenchmarkError
from benchmarks.pick_cases import kind
from benchmarks.pick_shapes import Shape
from benchmarks.timing import summarize
from pycutlass import reference
from pycutlass.cache import Artifact
from pycutlass.operation import GemmProblemSize
from pycutlass.plan import Candidate
from pycutlass.plan.launches import Launch
from pycutlass.plan.pick import Ranked
from pycutlass.timing import DeviceTimer

__all__ = ["Contest", "Outcome"]

_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32}
_TYPES |= {"e4m3": torch.float8_e4m3fn, "s8": torch.int8, "s32": torch.int32}
_CHECKED_ROWS = 48  # of each D: the first, the last, and others in between
_FIRST_SAMPLES, _SAMPLES = 3, 15
_FINALISTS = 10
_HOPELESS = 1.25  # times the best of the first samples
_PEER = "cuBLAS"
_POISON = 0xFF
_PLACE = "cuda"


@dataclass
class Outcome:
    """What was measured of one problem.

    Attributes
    ----------
    shape : Shape
        The problem.
    times : dict
        Microseconds by the name of a candidate: medians of the finalists and of the pick, the lesser of two samples of
        the others.
    finalists : tuple of str
        Candidates that were measured to the end.
    pick : str
        What the model picks without measuring.
    peer : float or None
        Microseconds of torch, which calls cuBLAS.
    wrong, failed : dict
        Reasons by candidate.
    """

    shape: Shape
    times: dict[str, float]
    finalists: tuple[str, ...]
    pick: str
    peer: float | None
    wrong: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        digits = {name: round(time, 2) for name, time in sorted(self.times.items(), key=lambda item: item[1])}
        return {
            "shape": self.shape.name,
            "peer": None if self.peer is None else round(self.peer, 2),
            "finalists": len(self.finalists),
            "times": digits,
            **({"wrong": self.wrong} if self.wrong else {}),
            **({"failed": self.failed} if self.failed else {}),
        }

    def line(self) -> str:
        """Return how the pick compares, for whoever waits."""
        best = min(self.times, key=lambda name: self.times[name])
        pick, peer = self.times.get(self.pick, float("nan")), self.peer or float("nan")
        return (
            f"{self.shape.name}: {len(self.times)} measured, best {self.times[best]:.1f} us ({best}), pick "
            f"{self.times[best] / pick:.3f} of it ({self.pick}), torch {peer:.1f}, wrong {len(self.wrong)}, failed "
            f"{len(self.failed)}"
        )


def launcher(candidate: Candidate, size: GemmProblemSize, a: int, b: int, d: int) -> Callable[[], object]:
    """Return a function that launches all kernels of a candidate, on packed operands at these addresses."""
    launch = Launch(candidate, size, (a, b, None, d), {}, {})
    return lambda: launch.run(None)


class Contest:
    """Operands of a problem on the GPU, and the launches of its candidates.

    Parameters
    ----------
    shape : Shape
        The problem.
    ranked : sequence of Ranked
        What is measured for it, the pick first.
    compiled : mapping
        Kernels by target, by their text.
    """

    def __init__(self, shape: Shape, ranked: Sequence[Ranked], compiled: Mapping[str, Mapping[str, Artifact]]) -> None:
        self._shape, self._kind, self._compiled = shape, kind(shape), compiled
        self._ranked = ranked
        self._random = random.Random(f"{shape}")
        self._generator = torch.Generator(_PLACE).manual_seed(self._random.getrandbits(40))
        self._batch = () if shape.batch is None else (shape.batch,)
        self._a = self._drawn(shape.m, shape.k, shape.layouts[0])
        self._b = self._drawn(shape.k, shape.n, shape.layouts[1])
        output = _TYPES[self._kind.D.type.short]
        self._d = self._placed(torch.empty, shape.m, shape.n, shape.layouts[2], dtype=output)
        self._rows, self._exact = self._reference()

    def outcome(self, *, finals: bool = True) -> Outcome:
        """Check and measure; without `finals` only a few times."""
        made = Outcome(self._shape, {}, (), self._ranked[0].candidate.name, None)
        launches: dict[str, Callable[[], object]] = {}
        for each in self._ranked:
            name = each.candidate.name
            try:
                launch = self._launch(each.candidate)
                self._poison()
                launch()
                torch.cuda.synchronize()
            except BenchmarkError as error:
                made.failed[name] = str(error)
                continue
            reason = self._mistake(each.candidate)
            if reason:
                made.wrong[name] = reason
            else:
                launches[name] = launch
        if not launches:
            raise BenchmarkError(f"no candidate ran: {made.failed | made.wrong}")
        first = self._times(launches, _FIRST_SAMPLES)
        made.times = {name: min(times) for name, times in first.items()}
        if not finals:
            return made
        most = _HOPELESS * min(made.times.values())
        best = sorted((time, name) for name, time in made.times.items() if time <= most)[:_FINALISTS]
        made.finalists = tuple(name for _, name in best)
        kept = {name: launches[name] for name in {*made.finalists, *self._picked(launches, made)}}
        peer = self._peer()
        last = self._times(kept | ({} if peer is None else {_PEER: peer}), _SAMPLES)
        made.peer = summarize(last.pop(_PEER)).median if peer is not None else None
        made.times |= {name: summarize(times).median for name, times in last.items()}
        return made

    def _picked(self, launches: Mapping[str, object], made: Outcome) -> Sequence[str]:
        """Return the pick, which is measured to the end however slow it is."""
        return (made.pick,) if made.pick in launches else ()

    def _launch(self, candidate: Candidate) -> Callable[[], object]:
        shape = self._shape
        for kernel in candidate.kernels:
            text = kernel.source().text
            if text not in self._compiled:
                raise BenchmarkError("it is not compiled")
            kernel.artifacts.update(self._compiled[text])  # swizzles are no part of it, and have kernels of their own
        size = candidate.size(shape.m, shape.n, shape.k, shape.batch)
        return launcher(candidate, size, *(each.data_ptr() for each in (self._a, self._b, self._d)))

    def _times(self, launches: Mapping[str, Callable[[], object]], samples: int) -> dict[str, tuple[float, ...]]:
        order = list(launches)
        self._random.shuffle(order)
        timer = DeviceTimer(cold_l2=True, seconds=0, least_rounds=samples, warmup=1)
        found = timer.compare({name: launches[name] for name in order})
        return {name: timing.times for name, timing in found.items()}

    def _drawn(self, rows: int, columns: int, layout: str) -> torch.Tensor:
        loaded = _TYPES[self._shape.operands]

        def made(shape: tuple[int, ...], **_: Any) -> torch.Tensor:
            if loaded is torch.int8:
                return torch.randint(-8, 9, shape, dtype=loaded, device=_PLACE, generator=self._generator)
            values = torch.randn(shape, device=_PLACE, generator=self._generator)
            if loaded is torch.float32:  # what TF32 has of them, so that kernels that cut off and that round agree
                values.view(torch.int32).bitwise_and_(~0x1FFF)
            return values.to(loaded)

        return self._placed(made, rows, columns, layout)

    def _placed(self, make: Any, rows: int, columns: int, layout: str, **options: Any) -> torch.Tensor:
        """Return a matrix, or a batch, by rows or by columns."""
        if layout == "t":
            by_rows: torch.Tensor = make((*self._batch, rows, columns), device=_PLACE, **options)
            return by_rows
        by_columns: torch.Tensor = make((*self._batch, columns, rows), device=_PLACE, **options)
        return by_columns.transpose(-1, -2)

    def _poison(self) -> None:
        stored = self._d if self._d.is_contiguous() else self._d.transpose(-1, -2)
        stored.view(torch.uint8).fill_(_POISON)

    def _reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows that are checked, and what they are in float64."""
        count = min(self._shape.m, _CHECKED_ROWS)
        rows = torch.linspace(0, self._shape.m - 1, count, device=_PLACE).long()
        return rows, self._a[..., rows, :].double() @ self._b.double()

    def _mistake(self, candidate: Candidate) -> str:
        """Return what is wrong about D; nothing if it is right."""
        found = self._d[..., self._rows, :].double()
        slices = 1 if candidate.is_parallel else candidate.split_k_slices
        relative, absolute = reference.tolerance(candidate.operation, self._shape.k, slices=slices)
        wrong = ~((found - self._exact).abs() <= absolute + relative * self._exact.abs())
        if bool(wrong.any()):
            return f"{int(wrong.sum())} of {wrong.numel()} elements"
        if self._d.dtype.is_floating_point and bool(self._d.isnan().any()):
            return "some elements were not written"
        return ""

    def _peer(self) -> Callable[[], object] | None:
        """Return the same product by torch, whose settings say how float32 is multiplied; None where it has none."""
        a, b, d = self._a, self._b, self._d
        if a.dtype is torch.int8:
            if self._batch or self._shape.m <= 16:
                return None
            return lambda: torch._int_mm(a, b, out=d)
        if a.dtype is torch.float8_e4m3fn:
            if self._batch:
                return None
            one = torch.ones((), device=_PLACE)
            return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, out=d)
        if d.is_contiguous():
            return lambda: torch.matmul(a, b, out=d)
        transposed = d.transpose(-1, -2)
        return lambda: torch.matmul(b.transpose(-1, -2), a.transpose(-1, -2), out=transposed)
