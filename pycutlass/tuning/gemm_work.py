"""A GEMM, or a batch of them, in the process that measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycutlass import reference
from pycutlass.epilogue import Port
from pycutlass.imported import imported
from pycutlass.operands.epilogue import packed_port
from pycutlass.plan import Candidate
from pycutlass.plan.launches import Launch as PlanLaunch
from pycutlass.spec import TensorSpec
from pycutlass.tuning.tunable import Array, Launch, Operands, Part, Shapes

__all__ = ["ROWS", "GemmWork", "rows_of_product", "spread"]

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
    columns : int
        Of D.
    """

    extents: tuple[int, int, int]
    batch: int | None
    columns: int

    @property
    def shapes(self) -> Sequence[Shapes]:
        """One product, with the batch as its first dimension."""
        (m, n, k), batch = self.extents, () if self.batch is None else (self.batch,)
        return [Shapes((*batch, m, k), (*batch, k, n), (*batch, m, n), (*batch, m, self.columns))]

    def beside(self, port: Port, number: int) -> TensorSpec:
        """Return what a tensor of the epilogue is, packed; one for all matrices of a batch."""
        m, n, _ = self.extents
        return packed_port(port, m, n, self.batch or 1, is_batched=self.batch is not None)

    def matrix(self, tensor: Array) -> Array:
        """Return the tensor."""
        return tensor

    def launcher(self, candidate: Candidate, operands: Operands) -> Launch:
        """Return a function that launches all kernels of a candidate, as plans launch them."""
        size = candidate.size(*self.extents, self.batch)
        launch = PlanLaunch(candidate, size, operands.of(0), operands.scalars, operands.ports_of(0))
        return lambda: launch.run(None)

    def part(self, candidate: Candidate, number: int, a: Array, b: Array, share: float) -> Part:
        """Return rows of A x B in f64."""
        return rows_of_product(candidate.operation, a, b, share, ROWS)

    def tolerance(self, candidate: Candidate, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have."""
        slices = 1 if candidate.is_parallel else candidate.split_k_slices
        return reference.tolerance(candidate.operation, self.extents[2], slices=slices)


def rows_of_product(operation: Any, a: Array, b: Array, share: float, least: int) -> Part:
    """Return rows of a x b in f64: all of them where torch has a GPU, else a share, of `least` rows or more."""
    math, rows = operation.tile_description.math_instruction, a.shape[-2]
    loaded = [reference.multiplied(each, math) for each in (a, b)]
    if callable(imported("torch", "cuda", "is_available")) and imported("torch").cuda.is_available():
        torch: Any = imported("torch")
        on_gpu = [torch.from_numpy(each).cuda().double() for each in loaded]
        return Part(slice(None), (on_gpu[0] @ on_gpu[1]).cpu().numpy())
    exact_a, exact_b = (each.astype(np.float64) for each in loaded)
    most = max(least, int(rows * share))
    taken: Any = slice(None) if most >= rows else spread(rows, most)
    return Part(taken, exact_a[..., taken, :] @ exact_b)


def spread(count: int, most: int) -> Array:
    """Return at most so many numbers below `count`, from the first to the last."""
    return np.arange(count) if most >= count else np.unique(np.linspace(0, count - 1, most).astype(int))
