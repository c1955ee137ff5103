"""Groups of products in host memory, and the operations that compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from descriptions import COLUMN, ROW, parts, poisoned, random_matrix
from hypothesis import strategies as st

from pycutlass import reference
from pycutlass.arguments.grouped import GemmGroupedArguments
from pycutlass.operation.grouped import GemmOperationGrouped

__all__ = ["SIZES", "Group", "grouped"]

_EXTENTS = st.integers(0, 40)
#: Problem sizes of a small group, empty ones among them.
SIZES = st.lists(st.tuples(_EXTENTS, _EXTENTS, _EXTENTS), min_size=1, max_size=12)


def grouped(kind: str = "f16", layouts: Any = (ROW, COLUMN, ROW), mode: Any = None, **options: Any) -> Any:
    """Return a grouped operation; `options` are those of `parts`."""
    described = parts(kind, layouts, **options)
    return (
        GemmOperationGrouped(**described) if mode is None else GemmOperationGrouped(**described, precompute_mode=mode)
    )


class Group:
    """Operands of a group in host memory."""

    def __init__(self, operation: GemmOperationGrouped, sizes: Any, seed: Any = 0) -> None:
        rng = np.random.default_rng(seed)
        self.operation, self.sizes = operation, [tuple(size) for size in sizes]
        self.A = [random_matrix(operation.A, m, k, rng) for m, _, k in self.sizes]
        self.B = [random_matrix(operation.B, k, n, rng) for _, n, k in self.sizes]
        self.C = [random_matrix(operation.C, m, n, rng) for m, n, _ in self.sizes]
        self.D = [poisoned(operation.C, m, n) for m, n, _ in self.sizes]

    def arguments(self, *scalars: float, **changed: Any) -> GemmGroupedArguments:
        """Return arguments, without C where there are no scalars to add it by."""
        given: dict[str, Any] = {"problem_sizes": self.sizes, "A": self.A, "B": self.B, "C": None, "D": self.D}
        if scalars:
            given |= {"C": self.C, "output_op": self.operation.epilogue_type(*scalars)}
        return GemmGroupedArguments(self.operation, **{**given, **changed})

    def run(self, *scalars: float, **changed: Any) -> GemmGroupedArguments:
        arguments = self.arguments(*scalars, **changed)
        self.operation.run(arguments)
        arguments.sync()
        return arguments

    def check(self, alpha: float = 1.0, beta: float = 0.0, *extra: float, C: Any = None) -> None:
        """Compare D with a product in f64, element by element; NaN never passes."""
        C = self.C if C is None else C
        activation = self.operation.epilogue_functor.activation
        for (_, _, k), a, b, c, d in zip(self.sizes, self.A, self.B, C, self.D, strict=True):
            exact = alpha * (a.astype(float) @ b.astype(float))
            exact = exact + beta * c.astype(float) if beta else exact
            if activation is not None:
                exact = activation.numpy(exact, *extra)
            relative, absolute = reference.tolerance(self.operation.single, k, abs(alpha))
            # tf32 instructions leave out the low bits of both operands: 2^-10 of each factor of every term.
            slack = np.zeros_like(exact)
            if self.operation.tile_description.math_instruction.a.short in ("f32", "tf32"):
                slack = 2.0**-9 * abs(alpha) * (abs(a.astype(float)) @ abs(b.astype(float)))
            assert np.all(abs(d.astype(float) - exact) <= absolute + relative * abs(exact) + slack), (d, exact)
