"""Plans for people to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pycutlass import _core
from pycutlass.calls import counted
from pycutlass.device import Device
from pycutlass.library import TensorDescription
from pycutlass.operation import TileUse, tile_use
from pycutlass.operation.group_support import Sizes, count_tiles
from pycutlass.plan.alignments import name_in
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_problem import extents_of
from pycutlass.plan.features import occupancy
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.predicted import Ranked
from pycutlass.plan.roofline import Roofline
from pycutlass.plan.traffic import bytes_of_sum

__all__ = ["explained", "explained_conv", "explained_group"]

_SHOWN = 10


def explained(
    chosen: Candidate,
    ranked: Sequence[Ranked[Candidate]],
    refused: Mapping[str, Sequence[str]],
    size: tuple[int, int, int],
    batch: int | None,
    gpu: Device,
    why: str = "",
    kind: Any = None,
) -> str:
    """Return a table of the candidates with what is predicted of them, the chosen one marked.

    `refused` has the names of those that do not take the problem, by the reason, and `why` says why one was chosen that
    may not be the first. `kind` is what the plan computes: a kernel for lesser alignments than it has is called so.
    """
    m, n, k = size
    operation, count = chosen.operation, 1 if batch is None else batch
    read = operation.A.type.bytes_of(m * k) + operation.B.type.bytes_of(k * n)
    moved = count * (read + _of_epilogue(operation, operation.D, m * n))
    what = f"{'' if batch is None else f'{batch} of '}{m}x{n}x{k} (M x N x K)"
    lines = _first_lines(what, 2 * count * m * n * k, moved, chosen, ranked, gpu, why, kind)
    if m and n:
        lines.append(f"        {_use(chosen, chosen.size(m, n, k, batch), gpu)}")
    return "\n".join([*lines, *_table(chosen, ranked, kind), *_refusals(refused)])


def explained_conv(
    chosen: Conv2dCandidate,
    ranked: Sequence[Ranked[Conv2dCandidate]],
    refused: Mapping[str, Sequence[str]],
    problem: _core.Conv2dProblemSize,
    gpu: Device,
    why: str = "",
    kind: Any = None,
) -> str:
    """Return a table of the candidates of a convolution, as `explained` does of a GEMM."""
    operation = chosen.operation
    extents = extents_of(operation.conv_kind, problem)
    of_a, of_b, of_d = map(math.prod, extents)
    moved = operation.A.type.bytes_of(of_a) + operation.B.type.bytes_of(of_b)
    moved += _of_epilogue(operation, operation.C, of_d)
    size = _core.implicit_gemm_problem_size(operation.conv_kind, problem)
    m, n, k = size.m(), size.n(), size.k()
    what = f"{operation.conv_kind.name} of {problem!r}, a product of {m}x{n}x{k} (M x N x K),"
    lines = _first_lines(what, 2 * m * n * k, moved, chosen, ranked, gpu, why, kind)
    if m and n:
        lines.append(f"        {_use(chosen, chosen.size(problem), gpu)}")
    return "\n".join([*lines, *_table(chosen, ranked, kind), *_refusals(refused)])


def explained_group(
    chosen: GroupCandidate,
    ranked: Sequence[Ranked[GroupCandidate]],
    refused: Mapping[str, Sequence[str]],
    sizes: Sizes,
    gpu: Device,
    why: str = "",
    kind: Any = None,
) -> str:
    """Return a table of the candidates of a group, as `explained` does of a GEMM."""
    operation, wide = chosen.operation, sizes.astype(np.float64)
    m, n, k = wide.T
    moved = operation.A.type.bytes_of(int((m * k).sum())) + operation.B.type.bytes_of(int((k * n).sum()))
    moved += _of_epilogue(operation, operation.C, int((m * n).sum()))
    largest = "x".join(map(str, sizes.max(axis=0).tolist()))
    what = f"{counted(len(sizes), 'problem')} of at most {largest} (M x N x K)"
    lines = _first_lines(what, int(2 * wide.prod(axis=1).sum()), moved, chosen, ranked, gpu, why, kind)
    lines.append(f"        {counted(count_tiles(operation.single, sizes), 'tile')} of all problems")
    return "\n".join([*lines, *_table(chosen, ranked, kind), *_refusals(refused)])


def _use(chosen: Candidate | Conv2dCandidate, size: Any, gpu: Device) -> TileUse:
    """Return how well the tiles of a kernel fit a problem, and its waves the GPU, as the model counts them."""
    return tile_use(chosen.operation, size, gpu.sm_count, occupancy(chosen, gpu.compute_capability))


def _of_epilogue(operation: Any, D: TensorDescription, sums: int) -> int:
    """Return the bytes of D, and of the matrices that an epilogue reads and writes beside it."""
    return round(sums * bytes_of_sum(operation.epilogue_functor, operation.C, D))


def _first_lines(
    what: str, products: int, moved: int, chosen: Any, ranked: Sequence[Ranked[Any]], gpu: Device, why: str, kind: Any
) -> list[str]:
    """Return what the problem is, how much there is to do, and how near to what the GPU can the kernel comes."""
    lines = [
        f"{what} on {gpu.name}, {gpu.sm_count} multiprocessors",
        f"{products:,} operations on {moved:,} bytes: {products / max(moved, 1):.1f} operations a byte",
        f"chosen: {_named(chosen, kind)}{f'; {why}' if why else ''}",
    ]
    predicted = next((each.microseconds for each in ranked if each.candidate == chosen), 0.0)
    if products and predicted:
        least = Roofline.of(chosen.operation.tile_description.math_instruction, products, moved, gpu)
        share = 100 * least.microseconds / predicted
        lines.append(f"        {least}; the chosen kernel is predicted to reach {share:.0f}% of it")
    elif products and ranked:
        is_lesser = _named(chosen, kind) != chosen.name
        which = ", which are for the alignments that the operands have" if is_lesser else " for this GPU"
        lines.append(f"        it is not among the kernels that are considered{which}")
    return lines


def _named(candidate: Any, kind: Any) -> str:
    return str(candidate.name) if kind is None else name_in(kind, candidate)


def _table(chosen: Any, ranked: Sequence[Ranked[Any]], kind: Any) -> list[str]:
    """Return a line for each of the likely fastest candidates."""
    lines = [f"considered: {len(ranked)}, the likely fastest first"]
    for place, each in enumerate(ranked):
        if place >= _SHOWN and each.candidate != chosen:
            continue
        mark = "*" if each.candidate == chosen else " "
        waves = counted(each.waves, "wave")
        lines.append(f"{mark} {each.microseconds:9.1f} us  {waves:>10}  {_named(each.candidate, kind)}  ({each.note})")
    others = len(ranked) + 1 - len(lines)
    if others:
        lines.append(f"  and {others} that are predicted to take longer")
    return lines


def _refusals(refused: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each reason why candidates do not take the problem."""
    return [
        f"refused: {names[0]}{f' and {len(names) - 1} others' if len(names) > 1 else ''}: {reason}"
        for reason, names in refused.items()
    ]
