"""A group of products that is tuned, for all groups that are like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycutlass import cutlass
from pycutlass.calls import public, shown
from pycutlass.device import Device
from pycutlass.enums import SchedulerMode
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, items_of, several
from pycutlass.operation.group_support import Sizes
from pycutlass.plan import GemmKind, GroupCandidate, Ranked
from pycutlass.plan.group_pick import Typical, pick_group, rank_group, typical
from pycutlass.plan.records import group_record
from pycutlass.tuning.group_work import GroupWork
from pycutlass.tuning.tunable import Tunable, check_kind

__all__ = ["GroupProblem"]

_MOST = 100_000  # products of one group
_LARGEST = 2**31 - 1


@public
@dataclass(frozen=True)
class GroupProblem(Tunable):
    """A group of products to be tuned.

    What is measured is the group that stands for all that are like it: as plans choose one kernel for groups whose
    rows are divided otherwise, one measurement serves them. So the name and the report have the sizes of that group.

    Parameters
    ----------
    kind : GemmKind
        Types, layouts, alignments and epilogue: a functor or a function. What it reads is drawn.
    sizes : sequence of 3 int each
        M, N and K of each product. Those of M or N = 0 do not count.
    axis : int
        Which of them varies between groups that are alike: 0 for M, 1 for N, 2 for K.
    on_device : bool
        Whether the device alone knows the sizes: then kernels whose schedule the host makes are left out.
    source : str, optional
        The C that a functor reads in each product, as of `Problem`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No product with elements and a K above 0, or something else than described.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import GemmKind
    >>> from pycutlass.tuning import GroupProblem
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> GroupProblem(kind, [(64, 512, 256)] * 8).name
    'group of 8 up to 64x512x256 f16 x f16 -> f16'
    """

    kind: GemmKind
    sizes: Any
    axis: int = 0
    on_device: bool = False
    source: str | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind, GemmKind, self.source)
        axis = as_int(self.axis)
        if axis is None or not 0 <= axis <= 2:
            raise ArgumentError(f"axis must be 0 for M, 1 for N or 2 for K, got {shown(self.axis)}")
        if not isinstance(self.on_device, bool):
            raise ArgumentTypeError(f"on_device must be True or False, got {shown(self.on_device)}")
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "sizes", _checked(self.sizes))
        if not self.measured_sizes:
            raise ArgumentError(
                "no product of the group has elements and something to sum: there is nothing to measure"
            )

    @property
    def typical(self) -> Typical:
        """What stands for all groups that are like it."""
        return typical(self._array, self.axis)

    @property
    def measured_sizes(self) -> tuple[tuple[int, int, int], ...]:
        """M, N and K of the products that are measured: whole numbers of each typical one, as aligned as the kind.

        Products of K = 0 are zero: they count in what stands for a group, and take no time.
        """
        found: list[tuple[int, int, int]] = []
        counted, multiples = 0.0, _multiples(self.kind)
        for count, *extents in self.typical:
            before, counted = round(counted), counted + count
            m, n, k = (-(-extent // least) * least for extent, least in zip(extents, multiples, strict=True))
            found += [(m, n, k)] * (round(counted) - before if k else 0)
        return tuple(found)

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return sum(2.0 * m * n * k for m, n, k in self.measured_sizes)

    def record(self) -> dict[str, Any]:
        """Return what the database calls it."""
        return group_record(self.kind, self.typical, self.source)

    def ranked(self, gpu: Device) -> Sequence[Ranked[GroupCandidate]]:
        """Return all candidates that take it, the likely fastest first."""
        ranked = rank_group(self.kind, self._measured, self.typical, gpu)
        if not self.on_device:
            return ranked
        return [each for each in ranked if each.candidate.operation.precompute_mode is SchedulerMode.Device]

    def picked(self, gpu: Device) -> GroupCandidate:
        """Return the likely fastest candidate, or raise ArgumentError with what the nearest ones lack."""
        return pick_group(self.kind, self._measured, self.typical, gpu, self.on_device)

    def work(self) -> GroupWork:
        """Return what measures it."""
        return GroupWork(self.measured_sizes, self.kind.epilogue.columns(2) < 2)

    @property
    def _measured(self) -> Sizes:
        return np.array(self.measured_sizes, np.int32)

    @property
    def _array(self) -> Sizes:
        return np.array(self.sizes, np.int32)


def _checked(sizes: Any) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of products whose results have elements."""
    listed = sizes.tolist() if isinstance(sizes, np.ndarray) else sizes
    items = None if isinstance(listed, str | bytes) else items_of(listed, _MOST)
    if items is None:
        raise ArgumentTypeError(f"sizes must be a list of M, N and K of each product, got {shown(sizes)}")
    found = []
    for number, each in enumerate(items):
        size = several(each, 3)
        if size is None:
            raise ArgumentTypeError(f"sizes[{number}] must be three integers, M, N and K; got {shown(each)}")
        if min(size) < 0 or max(size) > _LARGEST:
            raise ArgumentError(f"sizes[{number}] must have M, N and K from 0 to {_LARGEST:,}, got {tuple(size)}")
        if size[0] and size[1]:
            found.append(tuple(size))
    if not found:
        raise ArgumentError("no product of the group has elements: there is nothing to measure")
    return tuple(found)


def _multiples(kind: GemmKind) -> tuple[int, int, int]:
    """Return what M, N and K are multiples of, where operands of such alignments are packed."""
    least = {"m": 1, "n": 1, "k": 1}
    ports = [port.beside(kind.D) for port in kind.epilogue.ports if port.form == "matrix"]
    described = [(kind.A, "m", "k", 1), (kind.B, "k", "n", 1), (kind.D, "m", "n", 2 // kind.epilogue.columns(2))]
    described += [(port.description, "m", "n", 2 // port.columns(2)) for port in ports]
    for operand, rows, columns, pairs in described:  # which have half as many columns as the product
        is_by_columns = operand.layout is cutlass.ColumnMajor
        along = rows if is_by_columns else columns
        least[along] = max(least[along], operand.alignment * (1 if is_by_columns else pairs))
    return least["m"], least["n"], least["k"]
