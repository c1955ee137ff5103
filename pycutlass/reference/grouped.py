"""What a grouped GEMM means: each problem by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from pycutlass.reference.gemm import gemm

if TYPE_CHECKING:
    from pycutlass.operation.grouped import GemmOperationGrouped

__all__ = ["gemm_grouped"]

Array = NDArray[Any]


def gemm_grouped(
    operation: GemmOperationGrouped,
    A: Sequence[Array],
    B: Sequence[Array],
    C: Sequence[Array | None] | None,
    *scalars: float,
    exact: bool = False,
) -> list[Array]:
    """Return D of every problem: epilogue(A[i] x B[i], C[i]).

    Parameters
    ----------
    operation : GemmOperationGrouped
        The description.
    A, B, C : sequence of array
        Operands of each problem, as for `pycutlass.reference.gemm`. `C` may be None where beta is 0.
    *scalars : float
        Alpha, beta and what the activation needs, for all problems.
    exact : bool
        Sum in f64 and leave D unrounded in f64.
    """
    sources = [None] * len(A) if C is None else C
    return [gemm(operation.single, *operands, *scalars, exact=exact) for operands in zip(A, B, sources, strict=True)]
