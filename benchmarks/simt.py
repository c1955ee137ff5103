"""Products of float32 on CUDA cores: all tiles, the default pick among them, and cuBLAS.

Tensor cores round float32, so `pycutlass.matmul` computes it on CUDA cores unless it is told otherwise, as torch does.
Each problem is computed by all kernels that are predicted to take at most `FACTOR` times as long as the best, each call
alone with a cold L2 cache. `tools/fit_simt.py` fits the model of the pick to the times.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import BenchmarkError, Report, number, options
from benchmarks.pick_cases import compiled, considered
from benchmarks.pick_shapes import Shape
from pycutlass import device
from pycutlass.plan import Candidate, Ranked

__all__ = ["PARTS", "main", "problems"]

#: Layouts and extents of linear layers, of products of matrices by rows, and of gradients of weights.
PARTS: Mapping[str, tuple[str, tuple[tuple[int, int, int], ...]]] = {
    "both": (
        "tnt",
        (
            *((512, 4096, 1024), (64, 1024, 1024), (2048, 4096, 1024), (128, 768, 3072), (8192, 1024, 1024)),
            *((1000, 1000, 1000), (4096, 4096, 4096), (16, 4096, 1024)),
        ),
    ),
    "one": (
        "ttt",
        (
            *((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (512, 2048, 512), (333, 555, 777)),
            *((64, 4096, 4096), (256, 1024, 4096)),
        ),
    ),
    "none": (
        "ntt",
        ((768, 3072, 2048), (1024, 1024, 1024), (2048, 2048, 2048), (256, 1024, 8192), (4096, 4096, 1024)),
    ),
}
MEAN_LIMIT, LEAST_LIMIT = 0.95, 0.85  # of cuBLAS's speed, by the default pick
PICK_LIMIT = 0.97  # of the fastest kernel's
FACTOR = 1.5
_ABOUT = (
    "float32 in full, random normal operands; every result checked against float64 on some rows. Each call alone with "
    "a cold L2 cache. Both operands lie along K in linear layers (tnt), one in products of matrices by rows (ttt), "
    "neither in gradients of weights (ntt)."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all problems and report."""
    chosen = options(__doc__, PARTS).parse_args(argv)
    device.require()
    gpu = device.describe(device.current())
    report = Report("simt", "Products of float32", _ABOUT, chosen.out, quick=chosen.quick)
    ranked = {shape: considered(shape, gpu, FACTOR) for shape in problems(chosen.only)[:: 5 if chosen.quick else 1]}
    kernels = {one.source().text: one for each in ranked.values() for it in each for one in it.candidate.kernels}
    with report.part("kernels"):
        failures = compiled(list(kernels.values()))
        if failures:
            raise BenchmarkError(f"kernels do not compile: {failures}")
    _compare(report, ranked, {text: kernel.artifacts for text, kernel in kernels.items() if kernel.artifacts})
    return report.finish()


def problems(parts: Sequence[str]) -> list[Shape]:
    """Return the problems of some parts."""
    return [Shape("f32", PARTS[part][0], *extents) for part in parts for extents in PARTS[part][1]]


def _compare(report: Report, ranked: Mapping[Shape, Sequence[Ranked[Candidate]]], artifacts: Any) -> None:
    """Measure each problem, and record how the pick compares with the fastest kernel and with cuBLAS."""
    import torch

    from benchmarks.pick_contest import Contest

    times: dict[str, Mapping[str, float]] = {}
    rows, of_best, of_peer = [], [], []
    for shape, each in ranked.items():
        with report.part(shape.name):
            found = Contest(shape, each, artifacts).outcome()
            if found.wrong or found.failed:
                raise BenchmarkError(f"kernels are wrong or failed: {found.wrong | found.failed}")
            if found.peer is None:
                raise BenchmarkError(f"torch has no product to compare {shape.name} with")
            times[shape.name] = {**found.times, "cuBLAS": found.peer}
            best, pick = min(found.times, key=lambda name: found.times[name]), found.times[found.pick]
            of_best.append(found.times[best] / pick)
            of_peer.append(found.peer / pick)
            rows.append([shape.name, number(pick), number(found.times[best]), number(found.peer), best, found.pick])
            print(shape.name, *rows[-1][1:], f"{of_peer[-1]:.3f} of cuBLAS", file=sys.stderr, flush=True)
            report.raw("times", times)
            torch.cuda.empty_cache()
    if rows:
        mean = statistics.geometric_mean
        report.check(
            "pick: speed of the fastest kernel's, geometric mean", mean(of_best), PICK_LIMIT, "x", at_least=True
        )
        report.check("pick: speed of cuBLAS's, geometric mean", mean(of_peer), MEAN_LIMIT, "x", at_least=True)
        report.check("pick: speed of cuBLAS's, the slowest", min(of_peer), LEAST_LIMIT, "x", at_least=True)
        report.table("Times, us", ("problem", "pick", "fastest", "cuBLAS", "fastest kernel", "picked kernel"), rows)


if __name__ == "__main__":
    sys.exit(main())
