"""The likely fastest kernel for a group, without measuring."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pycutlass.device import Device
from pycutlass.enums import SchedulerMode
from pycutlass.errors import ArgumentError
from pycutlass.operation.group_support import Sizes
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.constants import Constants, constants_of, planned_for
from pycutlass.plan.group_candidates import GroupCandidate, group_candidates
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.model import Model
from pycutlass.plan.pick import remedy_of
from pycutlass.plan.predicted import Predicted, Ranked
from pycutlass.plan.readings import range_of
from pycutlass.plan.tile_results import why_no_tiles

__all__ = ["Typical", "group_refused", "pick_group", "rank_group", "typical"]

#: Problems of a group by size: how many there are of each, with M, N and K.
Typical = tuple[tuple[float, int, int, int], ...]
#: Sizes that stand for those of problems of different M: enough for tiles that are partly empty to be seen.
_SPREAD = 8


def typical(sizes: Sizes, axis: int = 0) -> Typical:
    """Return what stands for all groups that differ in one extent of their problems, without much change of the sum.

    In most programs weights have fixed extents and are as many each time, and rows are divided among them anew. Such
    groups are to have one kernel. So of problems of one N and K only the number and the average M count, both rounded
    up to the ranges that plans have for M, and whether all M are equal: otherwise they are taken to be spread evenly
    from 0 to twice the average.

    Parameters
    ----------
    sizes : array of shape (problems, 3)
        M, N and K, of which none is 0 but K.
    axis : int
        Which of them varies: 0 for M, 1 for N, 2 for K.
    """
    others = [each for each in range(3) if each != axis]
    fixed, where, counts = np.unique(sizes[:, others], axis=0, return_inverse=True, return_counts=True)
    varied = sizes[np.argsort(where.reshape(-1), kind="stable"), axis].astype(np.int64)
    firsts = np.cumsum(counts) - counts
    sums, least, most = (each.reduceat(varied, firsts).tolist() for each in (np.add, np.minimum, np.maximum))
    found: list[tuple[float, int, int, int]] = []
    for place, (extents, number) in enumerate(zip(fixed.tolist(), counts.tolist(), strict=True)):
        count, average = range_of(number), range_of(-(-sums[place] // number))
        parts = 1 if least[place] == most[place] else min(number, _SPREAD)
        for part in range(parts):
            size = list(extents)
            size.insert(axis, -(-average * (2 * part + 1) // parts))
            found.append((count / parts, size[0], size[1], size[2]))
    return tuple(found)


def rank_group(kind: GemmKind, sizes: Sizes, group: Typical, gpu: Device) -> tuple[Ranked[GroupCandidate], ...]:
    """Return all candidates that take a group of these sizes, the likely fastest for `group` first."""
    predicted = _predicted(kind, sizes, group, gpu)
    return tuple(predicted.ranked(place) for place in predicted.supported())


def group_refused(kind: GemmKind, sizes: Sizes, group: Typical, gpu: Device) -> dict[str, list[str]]:
    """Return the names of candidates that do not take a group, by the reason."""
    return _predicted(kind, sizes, group, gpu).refused()


def pick_group(kind: GemmKind, sizes: Sizes, group: Typical, gpu: Device, on_device: bool = False) -> GroupCandidate:
    """Return the likely fastest candidate, the same in every process.

    Parameters
    ----------
    sizes : array of shape (problems, 3)
        M, N and K of each problem, which it must take.
    group : Typical
        What it is to be fast for.
    on_device : bool
        Whether the sizes are known to the device alone, which then makes the schedule.

    Raises
    ------
    ArgumentError
        No kernel takes the group; the message says what the nearest ones lack.
    """
    predicted = _predicted(kind, sizes, group, gpu)
    for place in predicted.supported():
        found = predicted.candidates[place]
        if not on_device or found.operation.precompute_mode is SchedulerMode.Device:
            return found
    if not predicted.candidates:
        remedy = why_no_tiles(kind, lambda other: bool(group_candidates(other, gpu.compute_capability)))
        raise ArgumentError(
            f"there is no kernel for groups of GEMMs of this kind{remedy or _remedy(kind)}. {planned_for(gpu)}. The "
            f"kind has {kind}"
        )
    raise ArgumentError(f"no kernel takes this group of {len(sizes)} GEMMs; the nearest lack: {predicted.lacking()}")


def _predicted(kind: GemmKind, sizes: Sizes, group: Typical, gpu: Device) -> Predicted[GroupCandidate]:
    """Return what the model says of all candidates for a group."""
    candidates, model = _model(kind, gpu.compute_capability, constants_of(gpu).when_queued)
    table = np.maximum(np.array(group, np.float64).reshape(-1, 4), 1.0)  # no elements take as long as one
    of_all = model.predict_group(table[:, 1:], table[:, 0])
    return Predicted(
        candidates, of_all, lambda each: each.operation.supports(sizes), np.zeros(len(candidates), np.bool_)
    )


def _remedy(kind: GemmKind) -> str:
    """Return what to change about a kind of GEMM that there are no kernels of groups for."""
    if kind.A.type.bits == 8 and (not kind.A.is_row_major or kind.B.is_row_major):
        return (
            ". Elements of K must be adjacent in xs and ws of 8 bits: xs by rows, and ws by columns, as w.mT of "
            "weights by rows"
        )
    return remedy_of(kind)


class _OfGroup(Candidate):
    """A kernel as one of its group's problems has it."""

    @property
    def is_held(self) -> bool:
        """False: kernels of groups are not held to few registers (operation/grouped.py)."""
        return False


@lru_cache(maxsize=64)  # as many as there are lists of candidates
def _model(kind: GemmKind, capability: int, constants: Constants) -> tuple[tuple[GroupCandidate, ...], Model]:
    """Return candidates, and what predicts their times: each has the mainloop and the epilogue of a GEMM's kernel."""
    candidates = group_candidates(kind, capability)
    return candidates, Model(kind, tuple(_OfGroup(each.operation.single) for each in candidates), constants)
