"""Reductions of an epilogue function make of edge values what NumPy does: as one by one, and as results of tiles."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pytest
from emulator import Emulator

from pycutlass.epilogue.nodes import REDUCTIONS

pytestmark = pytest.mark.compile

COUNT = 4
MAIN = """
#include "pycutlass/reduction_kinds.h"
template <typename Kind, typename Number>
void reduce(char const* count) {
  for (int i = std::atoi(count); i > 0; --i) {
    Number given[4];
    if (std::fread(given, sizeof(Number), 4, stdin) != 4) std::abort();
    using namespace pycutlass::function;
    Number const none = Kind::template begin<Number>();
    Number singly = none;
    for (Number each : given) singly = Kind::take(singly, each);
    Number const made[] = {singly, taken<4>(Kind(), none, given),
                           Kind::join(taken<2>(Kind(), none, given), taken<2>(Kind(), none, given + 2)),
                           Kind::join(none, Kind::join(taken<4>(Kind(), none, given), none))};
    std::fwrite(made, sizeof(Number), 4, stdout);
  }
}
"""


@pytest.mark.parametrize(("dtype", "cpp"), [(np.float32, "float"), (np.float64, "double")])
def test_edge_values(dtype: Any, cpp: str, emulator: Emulator) -> None:
    sizes = [0.0, 1e-45, 1e-30, 0.5, 1.0, 88.0, 90.0, 700.0, 1e18, 1e30, 3e38, np.inf]
    edges = np.unique(np.array([*sizes, *np.negative(sizes), np.nan], dtype))
    values = np.stack(np.meshgrid(edges, edges, edges, edges), -1).reshape(-1, COUNT)
    values = np.random.default_rng(0).permutation(values)[:20000]
    values = np.concatenate([values, np.repeat(edges[:, None], COUNT, 1)])  # alone, too
    calls = "".join(f"  reduce<{each.cpp}, {cpp}>(words[1]);\n" for each in REDUCTIONS.values())
    program = emulator.build(f"{emulator._headers}{MAIN}int main(int, char** words) {{\n{calls}}}\n")
    sent = values.tobytes() * len(REDUCTIONS)
    said = subprocess.run([str(program), str(len(values))], input=sent, capture_output=True, check=True).stdout
    made = np.frombuffer(said, dtype).reshape(len(REDUCTIONS), len(values), COUNT).astype(np.float64)
    epsilon = float(np.finfo(dtype).eps)
    for kind, found in zip(REDUCTIONS.values(), made, strict=True):
        with np.errstate(all="ignore"):
            wanted = kind.numpy(values.astype(np.float64), 1)[:, None]
            finite = np.where(np.isfinite(values), np.abs(values), 0).astype(np.float64)
            added = finite * finite if kind.name == "sum_of_squares" else finite
            # What is added rounds, and is beyond the type in one order and not in another.
            allowed = 4 * epsilon * np.fmax(1.0, added.sum(1))[:, None] * (kind.name not in ("max", "min", "absmax"))
            is_beyond = (added.sum(1) > np.finfo(dtype).max)[:, None] & (kind.name in ("sum", "sum_of_squares"))
            same = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (np.abs(found - wanted) <= allowed)
        wrong = np.flatnonzero(~(same | is_beyond).all(1))[:3]
        assert not wrong.size, (kind.name, values[wrong], found[wrong], wanted[wrong])
