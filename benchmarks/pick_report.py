"""What the kept times of problems say of the default pick as it is today."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.common import Report, number
from benchmarks.pick_cases import FACTOR, GPU, MORE, PARTS, kind
from benchmarks.pick_shapes import FITTED, HELD_OUT, LIKELY_FITTED, MORE_FITTED, RECORDED, SEED, Shape
from pycutlass.device import Device
from pycutlass.plan import pick

__all__ = ["Measured", "measured", "report"]

_ABOUT = (
    f"The default pick, which measures nothing, against the fastest of all candidates that are predicted to take at "
    f"most {FACTOR} times as long as the best, each call alone with a cold L2 cache. Problems were drawn with a seed "
    f"({SEED}) before anything was fitted: the model is judged by the {len(HELD_OUT)} held-out ones. It may be "
    f"adjusted to the {len(FITTED)} others, to some candidates of {len((*MORE_FITTED, *LIKELY_FITTED))} more, and to "
    f"those of the {len(RECORDED)} usual ones that other benchmarks measured (recorded); to what was measured after "
    f"it was shipped it is not. Parts are measured on different days; "
    f"what is below is of all parts that have been measured. torch is torch.matmul, torch._int_mm "
    f"or torch._scaled_mm, which call cuBLAS."
)
_WORST = 12


@dataclass(frozen=True)
class Measured:
    """A problem with the times of its candidates, in microseconds.

    Attributes
    ----------
    shape : Shape
        The problem.
    times : dict
        By the name of a candidate.
    peer : float or None
        Of torch.
    wrong : dict
        Candidates that computed something else, with what.
    gpu : Device
        Where.
    """

    shape: Shape
    times: dict[str, float]
    peer: float | None
    wrong: dict[str, str]
    gpu: Device = GPU

    @property
    def best(self) -> float:
        """Microseconds of the fastest candidate."""
        return min(self.times.values())

    @cached_property
    def pick(self) -> str:
        """Today's pick."""
        shape = self.shape
        return pick(kind(shape), shape.m, shape.n, shape.k, shape.batch, self.gpu).name

    @property
    def share(self) -> float | None:
        """Speed of the pick as a share of the best; None where the pick was not measured."""
        return self.best / self.times[self.pick] if self.pick in self.times else None

    @property
    def of_peer(self) -> float | None:
        """Speed of the pick in units of torch's."""
        return self.peer / self.times[self.pick] if self.peer is not None and self.pick in self.times else None


def measured(kept: Path) -> list[Measured]:
    """Return all that files of `kept` have of today's problems."""
    by_name = {shape.name: shape for shapes in (*PARTS.values(), *MORE.values(), RECORDED) for shape in shapes}
    found: list[Measured] = []
    for path in sorted(kept.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        gpu = replace(GPU, name=record["environment"]["GPU"].partition(",")[0])
        for each in record["problems"]:
            if each.get("times") and each["shape"] in by_name:
                shape = by_name[each["shape"]]
                found.append(Measured(shape, each["times"], each["peer"], each.get("wrong", {}), gpu))
    return found


def report(kept: Path, out: Path, *, quick: bool = False) -> int:
    """Write what the files of `kept` say of the pick; return 0 where every limit is kept."""
    made = Report("pick", "Default pick", _ABOUT, out, quick=quick)
    problems = measured(kept)
    if not problems:
        raise SystemExit(f"{kept} has no times: measure some parts first")
    held_out, fitted = set(HELD_OUT), {*FITTED, *MORE_FITTED, *RECORDED}
    judged = [each for each in problems if each.shape in held_out]
    shares = _shares(judged)
    if shares:
        made.check("pick / best of the held-out problems, geometric mean", _mean(shares), 0.97, "x", at_least=True)
        made.check("pick / best of the held-out problems, 5th percentile", _fifth(shares), 0.90, "x", at_least=True)
    ratios = [each.of_peer for each in judged if each.of_peer is not None]
    if ratios:
        made.check("pick against torch, geometric mean", _mean(ratios), 0.98, "x", at_least=True)
        made.check("pick against torch, the slowest", min(ratios), 0.85, "x", at_least=True)
    made.check("candidates with wrong results", sum(len(each.wrong) for each in problems), 0, "")
    made.check("problems and candidates that could not be measured", _failures(kept), 0, "")
    for title, chosen in (("Held-out problems", held_out), ("Problems that the model may be adjusted to", fitted)):
        rows = _rows([each for each in problems if each.shape in chosen])
        made.table(title, ("types and layouts", "problems", *_COLUMNS), rows, _NOTE)
    worst = sorted((each for each in judged if each.share is not None), key=lambda each: each.share or 0)[:_WORST]
    made.table("Where the pick is furthest from the best", _WORST_COLUMNS, map(_worst_row, worst))
    _keep_places(made, kept)
    return made.finish()


_COLUMNS = ("pick / best", "5th percentile", "worst", "pick / torch", "slowest", "best / torch", "not measured")
_NOTE = "Speeds: geometric mean, 5th percentile and least. *Not measured*: picks that are none of the candidates."
_WORST_COLUMNS = ("problem", "pick / best", "pick", "best", "best (us)")


def _rows(problems: Sequence[Measured]) -> Iterator[list[str]]:
    names = dict.fromkeys(f"{each.shape.operands} {each.shape.layouts}" for each in problems)
    for name in (*names, "all"):
        chosen = [each for each in problems if name in ("all", f"{each.shape.operands} {each.shape.layouts}")]
        shares = _shares(chosen)
        of_peer = [each.of_peer for each in chosen if each.of_peer is not None]
        best = [each.peer / each.best for each in chosen if each.peer is not None]
        none = float("nan")
        numbers = (_mean(shares), _fifth(shares), min(shares, default=none))
        numbers = (*numbers, _mean(of_peer), min(of_peer, default=none), _mean(best))
        unknown = sum(each.share is None for each in chosen)
        if chosen:
            yield [name, str(len(chosen)), *("-" if each != each else number(each) for each in numbers), str(unknown)]


def _worst_row(each: Measured) -> list[str]:
    fastest = min(each.times, key=lambda name: each.times[name])
    return [each.shape.name, number(each.share or 0), each.pick, fastest, number(each.best)]


def _failures(kept: Path) -> int:
    """Return how many problems, kernels and candidates gave no time, for whatever reason but a wrong result."""
    count = 0
    for path in kept.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        count += len(record["not_built"])
        count += sum(1 if "error" in each else len(each.get("failed", ())) for each in record["problems"])
    return count


def _keep_places(made: Report, kept: Path) -> None:
    """Record where and when each part was measured."""
    places = {}
    for path in sorted(kept.glob("*.json")):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        places[record["part"]] = record["environment"]
        again = [each["again"] for each in record["problems"] if "again" in each]
        for date in sorted({each["date"] for each in again}):
            those = [each for each in again if each["date"] == date]
            places[f"{record['part']}, {len(those)} again"] = those[0]
    rows = [[part, each["date"], each["commit"][:10], each["GPU"]] for part, each in places.items()]
    made.table("When parts were measured", ("types and layouts", "date", "commit", "GPU"), rows)
    made.raw("environments", places)


def _shares(problems: Iterable[Measured]) -> list[float]:
    return [each.share for each in problems if each.share is not None]


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def _fifth(values: Sequence[float]) -> float:
    """Return the 5th percentile: one value in twenty is less."""
    return sorted(values)[len(values) // 20] if values else float("nan")
