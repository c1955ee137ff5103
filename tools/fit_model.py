#!/usr/bin/env python3
"""Fit the constants of the default pick's model to times that `benchmarks.pick` has kept.

    python tools/fit_model.py                      the constants of each GPU that there are times of
    python tools/fit_model.py --dry                how good today's constants are, of each type and layout

Held-out problems are never looked at, but for the last line of the report. What is made small is what a wrong pick
costs: how much longer than the best the candidates take that are predicted to be the fastest, of all problems; and in
part how far predictions of good candidates are off, so that plans can say how long they take. Constants are changed one
after the other, by ever smaller factors, as long as that helps (pattern search: Hooke and Jeeves 1961).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script's own directory is on the path, not the checkout that it belongs to

from benchmarks.pick import KEPT  # noqa: E402
from benchmarks.pick_cases import MORE, PARTS, kind  # noqa: E402
from benchmarks.pick_shapes import HELD_OUT, RECORDED, Shape  # noqa: E402
from pycutlass.plan import candidates  # noqa: E402
from pycutlass.plan.constants import Constants, shipped  # noqa: E402
from pycutlass.plan.model import Model  # noqa: E402

__all__ = ["GPUS", "KEPT", "Observed", "fitted", "loss", "main", "observed", "quality", "said"]

Floats = npt.NDArray[np.float64]
GPUS = ROOT / "pycutlass" / "plan" / "gpus"

_SOFT = 0.03  # predictions that differ by so little are as good as equal
_NEAR = 0.15  # errors of candidates that take so much longer than the best count for a third
_ERRORS = 0.3  # weight of errors beside what picks cost
_OFFSETS = 4e-4  # weight of factors of single tiles, in units of their usual size
_USUAL_OFFSET = 0.05
_STEPS = (0.2, 0.1, 0.05, 0.02)
_USUAL_COUNT = 2  # how often usual problems count, of which only the best few candidates are known
_FEW = 8  # rows or columns up to which GEMV kernels are considered (plan/pick.py)

#: What is fitted: a field of `Constants`, or an entry of one, with its least and its greatest value.
FREE: tuple[tuple[str, str, float, float], ...] = (
    ("l2_bytes_per_cycle", "", 20, 120),
    ("l2_gb_per_s", "", 3000, 14000),
    ("dram_gb_per_s", "", 2200, 4600),
    ("dram_start_us", "", 0.2, 4),
    ("sustained", "*", 0.4, 1.0),
    ("native", "start_us", 1, 12),
    ("native", "cluster_start_us", 0.01, 3),
    ("native", "efficiency *", 0.5, 1.0),
    ("native", "pingpong_efficiency", 0.6, 1.1),
    ("native", "filled_share", 0.01, 1),
    ("native", "pingpong_wave_us", 0.02, 2),
    ("native", "cooperative_wave_us", 0.02, 2),
    ("native", "epilogue_bytes_per_cycle", 10, 128),
    ("native", "cooperative_turn_us", 0.1, 4),
    ("native", "pingpong_depth_cycles", 5, 300),
    ("native", "cooperative_depth_cycles", 5, 300),
    ("native", "pingpong_alone", 0.9, 1.3),
    ("native", "alone", 0.5, 1.0),
    ("native", "promotion", 1.0, 2.0),
    ("native", "pingpong_promotion_cycles", 1, 400),
    ("native", "cooperative_promotion_cycles", 1, 400),
    ("native", "stream_k_us", 0.5, 15),
    ("native", "scheduler_us", 0.1, 6),
    ("native", "fixup_bytes_per_cycle", 10, 200),
    ("native", "reduction_us", 0.5, 10),
    ("gemv", "start_us", 1, 12),
    ("gemv", "efficiency", 0.3, 1.1),
    ("gemv", "latency_us", 0.2, 5),
    ("gemv", "macs_per_cycle", 8, 256),
    ("gemv", "shared_share", 0.05, 2),
    ("gemv", "strided", 0.0, 0.5),
    ("reuse", "l2_share", 0.2, 1.2),
    ("reuse", "sharpness", 1, 12),
    ("reuse", "in_wave", 0.1, 1),
)


@dataclass(frozen=True)
class Observed:
    """A problem, and those of its candidates that were measured.

    Attributes
    ----------
    shape : Shape
        The problem.
    model : Model
        Of all candidates of its kind, with any constants.
    places : array of int
        Which of them were measured and are considered.
    times : array
        Logarithms of their microseconds.
    """

    shape: Shape
    model: Model
    places: npt.NDArray[np.intp]
    times: Floats

    def predicted(self, models: Mapping[int, Model]) -> Floats:
        """Return the logarithms of the predicted microseconds."""
        shape = self.shape
        of_all = models[id(self.model)].predict(shape.m, shape.n, shape.k, shape.batch or 1).microseconds
        result: Floats = np.log(of_all[self.places])
        return result


def observed(kept: Path, constants: Constants) -> list[Observed]:
    """Return what files of `kept` have of a GPU."""
    by_name = {shape.name: shape for shapes in (*PARTS.values(), *MORE.values(), RECORDED) for shape in shapes}
    models: dict[Any, tuple[Model, list[str]]] = {}
    found: list[Observed] = []
    for path in sorted(kept.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if not any(part in record["environment"]["GPU"] for part in constants.matches):
            continue
        for each in record["problems"]:
            shape = by_name.get(each["shape"])
            if shape is None or not each.get("times"):
                continue
            key = (kind(shape), shape.batch is not None)
            if key not in models:
                listed = candidates(key[0], constants.capability, key[1])
                models[key] = Model(key[0], listed, constants), [candidate.name for candidate in listed]
            model, names = models[key]
            few = min(shape.m, shape.n) <= _FEW
            places = [
                place
                for place, name in enumerate(names)
                if name in each["times"] and (few or not model.features.is_gemv[place])
            ]
            times = np.log([each["times"][names[place]] for place in places])
            found.append(Observed(shape, model, np.array(places, np.intp), times))
    return found


def _models(problems: Sequence[Observed], constants: Constants) -> dict[int, Model]:
    return {id(each.model): each.model.with_constants(constants) for each in problems}


def loss(problems: Sequence[Observed], constants: Constants) -> float:
    """Return what picks cost, and how far good candidates' predictions are off."""
    models, total = _models(problems, constants), 0.0
    for each in problems:
        predicted = each.predicted(models)
        longer = each.times - each.times.min()
        chosen = np.exp(-(predicted - predicted.min()) / _SOFT)
        near = np.exp(-longer / _NEAR)
        error = float(np.sqrt(np.sum(near * (predicted - each.times) ** 2) / near.sum()))
        total += float(np.sum(chosen * longer) / chosen.sum()) + _ERRORS * error
    offsets = sum((np.log(factor) / _USUAL_OFFSET) ** 2 for factor in constants.tiles.values())
    return total / len(problems) + _OFFSETS * float(offsets)


def quality(problems: Sequence[Observed], constants: Constants) -> list[float]:
    """Return the speed of the pick as a share of the best, of each problem."""
    models = _models(problems, constants)
    picks = ((each, int(np.argmin(each.predicted(models)))) for each in problems)
    return [float(np.exp(each.times.min() - each.times[place])) for each, place in picks]


def fitted(problems: Sequence[Observed], constants: Constants, said: Callable[[str], object] = print) -> Constants:
    """Return constants for which the loss is small, beginning with others."""
    best, least = constants, loss(problems, constants)
    free = [*_free(constants, problems), *_tiles(problems)]
    for step in _STEPS:
        while True:
            before = least
            for name, entry, low, high in free:
                for factor in (1 + step, 1 / (1 + step)):
                    tried = _changed(best, name, entry, factor, low, high)
                    found = loss(problems, tried)
                    if found < least - 1e-7:
                        best, least = tried, found
                        break
            said(f"step {step}: loss {least:.4f}")
            if before - least < 0.005 * before:
                break
    return best


def _free(constants: Constants, problems: Sequence[Observed]) -> Iterator[tuple[str, str, float, float]]:
    """Yield what is fitted, with an entry for each class of product that was measured where there are several."""
    classes = sorted({each.model.features.classes[0] for each in problems})
    for name, entry, low, high in FREE:
        if entry.endswith("*"):
            yield from ((name, entry.replace("*", each), low, high) for each in classes)
        else:
            yield name, entry, low, high


def _tiles(problems: Sequence[Observed]) -> Iterator[tuple[str, str, float, float]]:
    """Yield the tiles that were measured."""
    seen = {each.model._tile_classes[place] for each in problems for place in each.places}
    yield from (("tiles", name, 0.8, 1.25) for name in sorted(seen - {""}))


def _changed(constants: Constants, name: str, entry: str, factor: float, low: float, high: float) -> Constants:
    """Return constants of which one is multiplied by a factor, within its bounds."""

    def within(value: float) -> float:
        return float(min(max(value * factor, low), high))

    if not entry:
        return dataclasses.replace(constants, **{name: within(getattr(constants, name))})
    table = dict(getattr(constants, name))
    first, _, second = entry.partition(" ") if name != "tiles" else (entry, "", "")
    if second:
        table[first] = {**table[first], second: within(table[first][second])}
    else:
        table[entry] = within(table.get(entry, 1.0))
    return dataclasses.replace(constants, **{name: MappingProxyType(table)})


def _record(constants: Constants) -> dict[str, Any]:
    """Return constants as a file has them, with few digits."""
    names = (field.name for field in dataclasses.fields(constants) if field.name != "correction")
    return {name: _plain(getattr(constants, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return float(f"{value:.4g}") if isinstance(value, float) else value


def said(problems: Sequence[Observed], constants: Constants, what: str) -> None:
    """Say how good picks are, of each type and layout and of all."""
    parts = sorted({f"{each.shape.operands}-{each.shape.layouts}" for each in problems})
    for part in (*parts, "all") if problems else ():
        chosen = [each for each in problems if part in ("all", f"{each.shape.operands}-{each.shape.layouts}")]
        shares = sorted(quality(chosen, constants))
        mean = float(np.exp(np.mean(np.log(shares))))
        print(
            f"{what:>10} {part:>9}: {len(chosen):4} problems, pick / best {mean:.4f}, 5th percentile "
            f"{shares[len(shares) // 20]:.3f}, worst {shares[0]:.3f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the constants of each GPU that there are times of, and write its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of the times (%(default)s)")
    parser.add_argument("--dry", action="store_true", help="only say how good today's constants are")
    parser.add_argument("--gpus", type=Path, default=GPUS, help="folder of the constants (%(default)s)")
    given = parser.parse_args(argv)
    held_out = set(HELD_OUT)
    for usual in shipped():
        constants = dataclasses.replace(usual, correction=None)  # which is trained behind this
        problems = observed(given.kept, constants)
        if not problems:
            continue
        print(constants.name)
        seen, hidden = ([each for each in problems if (each.shape in held_out) is held] for held in (False, True))
        said(seen, constants, "before")
        if given.dry:
            said(hidden, constants, "held out")
            continue
        usual = [each for each in seen if each.shape in set(RECORDED)]
        made = fitted([*seen, *usual * (_USUAL_COUNT - 1)], constants)
        said(seen, made, "after")
        said(hidden, made, "held out")
        name = constants.matches[0].lower().replace(" ", "")
        (given.gpus / f"{name}.json").write_text(json.dumps(_record(made), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
