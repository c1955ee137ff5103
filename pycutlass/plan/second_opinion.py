"""What NVIDIA's own heuristics would take, where the package ``nvidia-matmul-heuristics`` is installed."""

from __future__ import annotations

import importlib
from typing import Any

from pycutlass import _core
from pycutlass.calls import public
from pycutlass.device import Device
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.pick import ranking

__all__ = ["second_opinion"]

_MODULE = "nvMatmulHeuristics"
#: Letters of types in the package's precisions, as cuBLAS has them.
_LETTERS = {
    "f64": "D",
    "f32": "S",
    "tf32": "S",
    "f16": "H",
    "bf16": "T",
    "e4m3": "Q",
    "e5m2": "R",
    "s32": "I",
    "s8": "B",
}


@public
def second_opinion(
    kind: GemmKind, m: int, n: int, k: int, batch: int | None = None, gpu: Device | None = None, count: int = 8
) -> Candidate | None:
    """Return the candidate that ``nvidia-matmul-heuristics`` prefers; None without the package.

    The package names tiles and clusters; of the candidates that have these, the one is returned that comes first in
    `ranking`. It is not asked by `pick`.

    Parameters
    ----------
    kind, m, n, k, batch, gpu
        As of `ranking`.
    count : int
        How many of the package's configurations are looked at, until one is a candidate.

    Returns
    -------
    Candidate or None
        None as well where the package does not know the types, or none of its configurations is a candidate.

    Examples
    --------
    >>> from pycutlass.plan import second_opinion
    >>> second_opinion(kind, 4096, 4096, 4096)  # doctest: +SKIP
    """
    try:
        heuristics = importlib.import_module(_MODULE)
    except ImportError:
        return None
    precision = _precision(kind)
    if precision is None:
        return None
    target = heuristics.NvMatmulHeuristicsTarget["CUTLASS3"]
    flags = heuristics.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
    interface = heuristics.NvMatmulHeuristicsInterfaceEx(
        backend=target, flags=flags, load_discovery_implicitly=True, gpu=None
    )
    layout = heuristics.NvMatmulHeuristicsMatmulLayout[_layout(kind)]
    problem = interface.makeNvMatmulHeuristicsProblem(m, n, k, layout, 1 if batch is None else batch)
    named = interface.getEx(problem, count, interface.createBackend(target), precision=precision)
    ranked = ranking(kind, m, n, k, batch, gpu)
    for kernel in (each["kernel"] for each in named):
        for each in ranked:
            if _is_same(each.candidate, kernel):
                return each.candidate
    return None


def _is_same(candidate: Candidate, kernel: Any) -> bool:
    """Return whether a candidate has the tile, the cluster and the slices that the package names."""
    operation, tile = candidate.operation, candidate.operation.tile_description
    cluster = tile.cluster_shape or (1, 1, 1)
    return (
        not operation.swap_ab
        and tile.threadblock_shape == (kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k)
        and cluster[:2] == (kernel.cluster_m, kernel.cluster_n)
        and candidate.split_k_slices == max(1, kernel.split_k)
    )


def _precision(kind: GemmKind) -> str | None:
    """Return the types as the package writes them: A, what is computed in and D; of 8-bit floats all five."""
    letters = [
        _LETTERS.get(short)
        for short in (kind.A.type.short, kind.B.type.short, kind.C.type.short, _sums(kind), kind.D.type.short)
    ]
    if None in letters:
        return None
    a, b, c, sums, d = map(str, letters)
    return f"{a}{b}{c}{sums}{d}" if a in "QR" else f"{a}{sums}{d}"


def _sums(kind: GemmKind) -> str:
    return {_core.float64: "f64", _core.int32: "s32", _core.float16: "f16"}.get(kind.element_accumulator, "f32")


def _layout(kind: GemmKind) -> str:
    a, b = ("T" if operand.is_row_major else "N" for operand in (kind.A, kind.B))
    return f"{a}{b}_{'ROW' if kind.D.is_row_major else 'COL'}_MAJOR"
