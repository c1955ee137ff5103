"""A group of products in the process that measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pycutlass import reference
from pycutlass.arguments import GemmGroupedArguments
from pycutlass.plan import GroupCandidate
from pycutlass.tuning.gemm_work import ROWS, rows_of_product
from pycutlass.tuning.tunable import Array, Launch, Part, Shapes

__all__ = ["GroupWork"]

_LEAST = 2  # rows of each product that are checked: the first and the last


@dataclass(frozen=True)
class GroupWork:
    """What is measured of a group.

    Attributes
    ----------
    sizes : tuple of tuples of 3 int
        M, N and K of each product.
    """

    sizes: tuple[tuple[int, int, int], ...]

    @property
    def shapes(self) -> Sequence[Shapes]:
        """Of each product."""
        return [Shapes((m, k), (k, n), (m, n)) for m, n, k in self.sizes]

    def launcher(self, candidate: GroupCandidate, a: Sequence[int], b: Sequence[int], d: Sequence[int]) -> Launch:
        """Return a function that launches the kernel of a candidate."""
        operation = candidate.operation
        arguments = GemmGroupedArguments(operation, list(self.sizes), list(a), list(b), None, list(d))
        return lambda: operation.run(arguments)

    def part(self, candidate: GroupCandidate, number: int, a: Array, b: Array, share: float) -> Part:
        """Return rows of A x B of one product in f64."""
        return rows_of_product(candidate.operation, a, b, share, max(_LEAST, ROWS // len(self.sizes)))

    def tolerance(self, candidate: GroupCandidate, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have."""
        return reference.tolerance(candidate.operation.single, self.sizes[number][2])
