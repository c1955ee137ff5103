"""Keep, for the model of the default pick, what other benchmarks measured of calls that are alone.

benchmarks.gemm and benchmarks.gemm_classes screen some kernels for each of the usual problems and measure the best few
once more, each call alone with a cold L2 cache. Their results have these times, which the page leaves out:

    python3 -m benchmarks.gemm --only shapes --out OUT
    python3 -m benchmarks.pick_recorded OUT/gemm.json OUT/gemm_classes.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import write_json
from benchmarks.pick import KEPT
from benchmarks.pick_shapes import RECORDED

__all__ = ["main"]

_PART = "recorded"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file of what results have of the usual problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT", help="what a benchmark wrote, of one GPU")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FOLDER", help="where times are kept (%(default)s)")
    given = parser.parse_args(argv)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in given.results]
    gpus = {result["environment"]["GPU"] for result in results}
    if len(gpus) > 1:
        parser.error(f"results must be of one GPU, got {sorted(gpus)}")
    known = {shape.name for shape in RECORDED}
    times = {shape: of for result in results for shape, of in _alone(result["raw"]) if shape in known and of}
    problems = [{"shape": shape, "peer": None, "times": of} for shape, of in times.items()]
    record = {"part": _PART, "environment": results[0]["environment"], "not_built": [], "problems": problems}
    write_json(given.kept / f"{_PART}.json", record)
    print(f"{len(problems)} of {len(known)} problems")
    return 0


def _alone(raw: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name of each problem, with the microseconds of candidates by name."""
    for name, samples in raw.items():
        if size := re.fullmatch(r"shape (\d+x\d+x\d+)", name):
            yield f"f16 tnt {size[1]}", _of_candidates(samples["alone"]["screened us"])
        elif of_class := re.fullmatch(r"(b?f16 [tn]{3}), (\d+x\d+x\d+), alone", name):
            yield f"{of_class[1]} {of_class[2]}", _of_candidates(samples["screened us"])
        elif of_bytes := re.fullmatch(r"e4m3, scale per tensor, (\d+x\d+x\d+), alone", name):
            yield f"e4m3 tnt {of_bytes[1]}", _of_candidates(_of_8_bits(samples["screened us"]))


def _of_8_bits(screened: Mapping[str, float]) -> dict[str, float]:
    """Return the same by the tiles of candidates: benchmarks.gemm_classes names those of 16 bits, of half the K."""
    tile = re.compile(r"(\d+x\d+)x(\d+)")
    return {tile.sub(lambda found: f"{found[1]}x{2 * int(found[2])}", choice): us for choice, us in screened.items()}


def _of_candidates(screened: Mapping[str, float]) -> dict[str, float]:
    """Return times by the names of candidates, the least first; of two raster orders the faster one counts."""
    found: dict[str, float] = {}
    for choice, microseconds in screened.items():
        if name := _candidate(choice):
            found[name] = min(round(microseconds, 2), found.get(name, float("inf")))
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _candidate(choice: str) -> str:
    """Return what a candidate of the pick is called that launches as a choice of a benchmark; "" where there is none.

    A choice is "Pingpong 128x128x64, 2x1, swizzle 4, AlongN", "Cooperative 128x256x64, 2x1, split-K 8, Heuristic", with
    "parallel split-K 8" for a kernel that adds up, or "Gemv 1x2x4096, warps 1x1x4".
    """
    tile, second, *rest = choice.split(", ")
    if tile.startswith("Gemv "):
        return f"{tile}, {second.removeprefix('warps ')} warps"
    how = f"{tile}, cluster {second}"
    way = rest[0]
    if slices := re.fullmatch(r"parallel split-K (\d+)", way):
        return f"{how}, swizzle 1, parallel split-K {slices[1]}"
    if slices := re.fullmatch(r"split-K (\d+)", way):
        return f"{how}, stream-K, {slices[1]} slices"
    return "" if way == "swizzle 2" else f"{how}, {way}"  # which no candidate has


if __name__ == "__main__":
    sys.exit(main())
