"""Testbed of grouped GEMMs."""

from __future__ import annotations

import numpy as np

from pycutlass import _core, compiler
from pycutlass.arguments import GemmGroupedArguments
from pycutlass.compat.reference_modules import ReferenceModule
from pycutlass.compat.testing.operands import largest, nothing_left, small_integers
from pycutlass.operation import GemmOperationGrouped

__all__ = ["TestbedGrouped"]


class TestbedGrouped:
    """Runs groups of GEMMs of random sizes, and compares bit by bit with the reference.

    Parameters
    ----------
    operation : GemmOperationGrouped
        What to run; it is compiled here.
    seed : int
        For sizes and operands.
    """

    __test__ = False  # for test runners that find classes by their names

    def __init__(self, operation: GemmOperationGrouped, seed: int = 2080) -> None:
        self.operation, self.seed = operation, seed
        compiler.add_module([operation])

    def run(self, problem_count: int, alpha: float = 1.0, beta: float = 0.0) -> bool:
        """Return whether D of every problem is right.

        Parameters
        ----------
        problem_count : int
            Problems of the group: the first is smaller than a tile, the others have any sizes.
        alpha, beta : float
            Scalars.
        """
        with nothing_left(f"a group of {problem_count}"):
            return self._run(problem_count, alpha, beta)

    def _run(self, count: int, alpha: float, beta: float) -> bool:
        operation, generator = self.operation, np.random.default_rng(self.seed)
        step, least = (16, 48) if operation.A.type.is_integer else (8, 24)
        others = generator.integers(0, 64, (count - 1, 3)) * step + least
        sizes = [_core.GemmCoord(*map(int, size)) for size in ((48, 16, 32 if step == 16 else 8), *others)]
        most = largest(operation.A.type, operation.accumulator_type(), of_convolution=False)
        kinds = (operation.A.type, operation.B.type, operation.C.type)
        A, B, C = (
            [small_integers(generator, extent(size), kind, most) for size in sizes]
            for kind, extent in zip(kinds, (_mk, _kn, _mn), strict=True)
        )
        D = [np.zeros_like(each) for each in C]
        arguments = GemmGroupedArguments(operation, sizes, A, B, C, D, output_op=operation.epilogue_type(alpha, beta))
        operation.run(arguments)
        arguments.sync()
        reference = ReferenceModule(operation.A, operation.B, operation.C)
        wrong = [
            size
            for size, a, b, c, d in zip(sizes, A, B, C, D, strict=True)
            if not np.array_equal(d, reference.run(a, b, c, size, alpha, beta))
        ]
        for size in wrong:
            print(f"wrong: M, N, K = {tuple(size)} of a group of {count} by {operation.procedural_name()}")
        return not wrong


def _mk(size: _core.GemmCoord) -> int:
    return size.m() * size.k()


def _kn(size: _core.GemmCoord) -> int:
    return size.k() * size.n()


def _mn(size: _core.GemmCoord) -> int:
    return size.m() * size.n()
