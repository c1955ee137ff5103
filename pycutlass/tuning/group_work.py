"""A group of products in the process that measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass import reference
from pycutlass.arguments import GemmGroupedArguments
from pycutlass.epilogue import Port
from pycutlass.operands.epilogue import packed_port
from pycutlass.plan import GroupCandidate
from pycutlass.spec import TensorSpec
from pycutlass.tuning.gemm_work import ROWS, rows_of_product
from pycutlass.tuning.tunable import Array, Launch, Operands, Part, Shapes

__all__ = ["GroupWork"]

_LEAST = 2  # rows of each product that are checked: the first and the last


@dataclass(frozen=True)
class GroupWork:
    """What is measured of a group.

    Attributes
    ----------
    sizes : tuple of tuples of 3 int
        M, N and K of each product.
    is_gated : bool
        Whether D has half as many columns as a product.
    """

    sizes: tuple[tuple[int, int, int], ...]
    is_gated: bool = False

    @property
    def shapes(self) -> Sequence[Shapes]:
        """Of each product."""
        return [Shapes((m, k), (k, n), (m, n), (m, n // 2 if self.is_gated else n)) for m, n, k in self.sizes]

    def beside(self, port: Port, number: int) -> TensorSpec:
        """Return what a tensor of the epilogue is, packed, in a product."""
        m, n, _ = self.sizes[number]
        return packed_port(port, m, n, 1, is_batched=False)

    def matrix(self, tensor: Array) -> Array:
        """Return the tensor."""
        return tensor

    def launcher(self, candidate: GroupCandidate, operands: Operands) -> Launch:
        """Return a function that launches the kernel of a candidate."""
        operation = candidate.operation
        further: dict[str, Any] = {} if not operands.ports else {"epilogue": dict(operands.ports)}
        arguments = GemmGroupedArguments(
            operation,
            list(self.sizes),
            *(list(operands.a), list(operands.b)),
            None if operands.c is None else list(operands.c),
            list(operands.d),
            output_op=operation.epilogue_type(**operands.scalars),
            **further,
        )
        return lambda: operation.run(arguments)

    def part(self, candidate: GroupCandidate, number: int, a: Array, b: Array, share: float) -> Part:
        """Return rows of A x B of one product in f64."""
        return rows_of_product(candidate.operation, a, b, share, max(_LEAST, ROWS // len(self.sizes)))

    def tolerance(self, candidate: GroupCandidate, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have."""
        return reference.tolerance(candidate.operation.single, self.sizes[number][2])
