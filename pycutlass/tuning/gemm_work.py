"""A GEMM, or a batch of them, in the process that measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycutlass import reference
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.imported import imported
from pycutlass.operation import GemmProblemSize
from pycutlass.plan import Candidate
from pycutlass.tuning.tunable import Array, Launch, Part, Shapes

__all__ = ["ROWS", "GemmWork", "launcher", "rows_of_product"]

ROWS = 256  # of D that are checked, where the whole would take the host too long


@dataclass(frozen=True)
class GemmWork:
    """What is measured of a GEMM.

    Attributes
    ----------
    extents : tuple of 3 int
        M, N and K.
    batch : int or None
        Number of matrices.
    """

    extents: tuple[int, int, int]
    batch: int | None

    @property
    def shapes(self) -> Sequence[Shapes]:
        """One product, with the batch as its first dimension."""
        (m, n, k), batch = self.extents, () if self.batch is None else (self.batch,)
        return [Shapes((*batch, m, k), (*batch, k, n), (*batch, m, n))]

    def launcher(self, candidate: Candidate, a: Sequence[int], b: Sequence[int], d: Sequence[int]) -> Launch:
        """Return a function that launches all kernels of a candidate."""
        return launcher(candidate, candidate.size(*self.extents, self.batch), a[0], b[0], d[0])

    def part(self, candidate: Candidate, number: int, a: Array, b: Array, share: float) -> Part:
        """Return rows of A x B in f64."""
        return rows_of_product(candidate.operation, a, b, share, ROWS)

    def tolerance(self, candidate: Candidate, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have."""
        slices = 1 if candidate.is_parallel else candidate.split_k_slices
        return reference.tolerance(candidate.operation, self.extents[2], slices=slices)


def launcher(candidate: Candidate, size: GemmProblemSize, a: int, b: int, d: int) -> Launch:
    """Return a function that launches all kernels of a candidate.

    Parameters
    ----------
    candidate : Candidate
        What is launched, compiled.
    size : GemmProblemSize
        The problem, as `candidate.size` returns it.
    a, b, d : int
        Addresses of packed operands.
    """
    operation = candidate.operation
    options: dict[str, Any] = {"raster_order": candidate.raster_order} if operation.is_sm90 else {}
    if candidate.reduction is None:
        arguments = GemmArguments(operation, size, a, b, None, d, **options)
        return lambda: operation.run(arguments)
    reduction = candidate.reduction
    partial = GemmArguments(operation, size, a, b, **options)
    rows_and_columns = size.extents[:2]
    sums = ReductionArguments(
        reduction, rows_and_columns, candidate.split_k_slices, workspace=partial.ptr_D, destination=d
    )

    def both() -> None:
        operation.run(partial)
        reduction.run(sums)

    return both


def rows_of_product(operation: Any, a: Array, b: Array, share: float, least: int) -> Part:
    """Return rows of a x b in f64: all of them where torch has a GPU, else a share, of `least` rows or more."""
    math, rows = operation.tile_description.math_instruction, a.shape[-2]
    exact_a, exact_b = (reference.multiplied(each, math).astype(np.float64) for each in (a, b))
    if callable(imported("torch", "cuda", "is_available")) and imported("torch").cuda.is_available():
        torch: Any = imported("torch")
        product = torch.from_numpy(exact_a).cuda() @ torch.from_numpy(exact_b).cuda()
        return Part((..., slice(None), slice(None)), product.cpu().numpy())
    most = max(least, int(rows * share))
    taken = np.arange(rows) if most >= rows else np.unique(np.linspace(0, rows - 1, most).astype(int))
    return Part((..., taken, slice(None)), exact_a[..., taken, :] @ exact_b)
