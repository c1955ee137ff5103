"""Plans for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pycutlass.device import Device
from pycutlass.operation import tile_use
from pycutlass.operation.group_support import Sizes, count_tiles
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.pick import Ranked

__all__ = ["explained", "explained_group"]

_SHOWN = 10


def explained(
    chosen: Candidate, ranked: Sequence[Ranked[Candidate]], size: tuple[int, int, int], batch: int | None, gpu: Device
) -> str:
    """Return a table of the candidates with what is predicted of them, the chosen one marked."""
    m, n, k = size
    operation, count = chosen.operation, 1 if batch is None else batch
    matrices = ((operation.A, m * k), (operation.B, k * n), (operation.D, m * n))
    moved = count * sum(each.type.bytes_of(elements) for each, elements in matrices)
    products = 2 * count * m * n * k
    lines = [
        f"{'' if batch is None else f'{batch} of '}{m}x{n}x{k} (M x N x K) on {gpu.name}, "
        f"{gpu.sm_count} multiprocessors",
        f"{products:,} operations on {moved:,} bytes: {products / max(moved, 1):.1f} for each",
        f"chosen: {chosen.name}",
    ]
    if m and n:
        lines.append(f"        {tile_use(operation, chosen.size(m, n, k, batch), gpu.sm_count)}")
    return "\n".join([*lines, *_table(chosen, ranked)])


def explained_group(chosen: GroupCandidate, ranked: Sequence[Ranked[GroupCandidate]], sizes: Sizes, gpu: Device) -> str:
    """Return the same of a plan of groups."""
    operation, wide = chosen.operation, sizes.astype(np.float64)
    m, n, k = wide.T
    matrices = ((operation.A, m * k), (operation.B, k * n), (operation.C, m * n))
    moved = sum(each.type.bytes_of(int(elements.sum())) for each, elements in matrices)
    products, tiles = int(2 * wide.prod(axis=1).sum()), count_tiles(operation.single, sizes)
    largest = "x".join(map(str, sizes.max(axis=0).tolist()))
    lines = [
        f"{len(sizes)} problems of at most {largest} (M x N x K) on {gpu.name}, {gpu.sm_count} multiprocessors",
        f"{products:,} operations on {moved:,} bytes: {products / max(moved, 1):.1f} for each",
        f"chosen: {chosen.name}",
        f"        {tiles:,} tiles of all problems",
    ]
    return "\n".join([*lines, *_table(chosen, ranked)])


def _table(chosen: Any, ranked: Sequence[Ranked[Any]]) -> list[str]:
    """Return the lines of a table of candidates, the chosen one marked."""
    lines = [f"considered: {len(ranked)}, the likely fastest first"]
    for each in ranked[:_SHOWN]:
        mark = "*" if each.candidate == chosen else " "
        lines.append(f"{mark} {each.microseconds:9.1f} us  {each.waves:4} waves  {each.candidate.name}  ({each.note})")
    if len(ranked) > _SHOWN:
        lines.append(f"  and {len(ranked) - _SHOWN} that are predicted to take longer")
    return lines
