"""Fit what the model knows of kernels of CUDA cores to the times of `benchmarks.simt`, and write it to files of GPUs.

    python tools/fit_simt.py build/benchmarks/simt.json

Each tile has two numbers for 0, 1 and 2 operands along K (`pycutlass.plan.simt`): the share of a multiprocessor's
multiply-adds that it makes, and the cycles that a k-tile takes at least. A grid is searched for those whose predicted
times differ least from the measured ones, as logarithms, over all problems and divisions of K.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.pick_cases import GPU, kind
from benchmarks.simt import PARTS, problems
from pycutlass.plan import Candidate, candidates
from pycutlass.plan.constants import constants_of
from pycutlass.plan.features import simt_tile
from pycutlass.plan.model import Model

_FILES = Path(__file__).parents[1] / "pycutlass" / "plan" / "gpus"
_SHARES = tuple(share / 100 for share in range(8, 101, 3))
_CYCLES = tuple(round(100 * 1.2**step) for step in range(20))
#: What times of kernels that divide K count: of the division there are constants of their own.
_DIVIDED = 0.3
_Times = Mapping[str, Mapping[str, float]]


def main(path: str) -> int:
    """Fit all tiles to the times of a file, and write them to the files of all GPUs."""
    times: _Times = json.loads(Path(path).read_text(encoding="utf-8"))["raw"]["times"]
    table: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    for along_k, part in enumerate(("none", "one", "both")):
        for tile, several in _by_tile(part).items():
            found = _best(tile, several, part, times)
            if found is not None:
                table[tile][along_k] = found
    whole = {tile: [of.get(along_k) for along_k in range(3)] for tile, of in table.items()}
    for file in _FILES.glob("*.json"):
        if "correction" not in file.name:
            record = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps({**record, "simt": whole}, indent=1) + "\n", encoding="utf-8")
    print(len(whole), "tiles")
    return 0


def _by_tile(part: str) -> Mapping[str, list[Candidate]]:
    """Return the candidates of a part by their tiles."""
    found: dict[str, list[Candidate]] = defaultdict(list)
    for each in candidates(kind(problems([part])[0]), GPU.compute_capability):
        tile = each.operation.tile_description
        if not tile.is_gemv:
            found[simt_tile(tile)].append(each)
    return found


def _best(tile: str, several: Sequence[Candidate], part: str, times: _Times) -> tuple[float, float] | None:
    """Return the share and the cycles of a tile by which its times are predicted best; None where it has none."""
    usual, layouts = constants_of(GPU), len(PARTS)
    measured = []
    for shape in problems([part]):
        of_shape = np.array([times.get(shape.name, {}).get(each.name, np.nan) for each in several])
        if not np.isnan(of_shape).all():
            measured.append((shape, of_shape))
    if not measured:
        return None
    weights = np.array([1.0 if each.split_k_slices == 1 and not each.is_stream_k else _DIVIDED for each in several])
    model = Model(kind(measured[0][0]), several, usual)

    def error(values: tuple[float, float]) -> float:
        changed = model.with_constants(replace(usual, simt={tile: [values] * layouts}))
        logs = [
            np.log(changed.predict(shape.m, shape.n, shape.k).microseconds / of_shape) for shape, of_shape in measured
        ]
        return float(np.nansum(weights * np.square(logs)))

    share, cycles = min(itertools.product(_SHARES, _CYCLES), key=error)
    shares, near = (share + step / 100 for step in range(-2, 3)), (cycles * step / 20 for step in range(17, 24))
    share, cycles = min(itertools.product(shares, near), key=error)
    return round(share, 2), round(cycles)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
