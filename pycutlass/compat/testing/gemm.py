"""Testbed of GEMMs."""

from __future__ import annotations

import itertools
from typing import Any

from pycutlass import _core
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.arguments.given import check_operation
from pycutlass.compat.reference_modules import ReferenceModule
from pycutlass.compat.testing.launcher import Launcher
from pycutlass.compat.testing.operands import nothing_left
from pycutlass.errors import ArgumentError
from pycutlass.operation import GemmOperationUniversal, ReductionOperation

__all__ = ["GemmUniversalLauncher", "test_all_gemm"]

_Mode = _core.GemmMode


class GemmUniversalLauncher(Launcher):
    """Runs a GEMM on problems of any size, and compares bit by bit with the reference.

    Parameters
    ----------
    operation : GemmOperationUniversal
        What to run.
    seed, interleaved, verification, profiling, warmup_iterations, iterations, sleep
        As for `pycutlass.compat.testing.launcher.Launcher`.
    """

    def __init__(self, operation: GemmOperationUniversal, *given: Any, **named: Any) -> None:
        super().__init__(operation, operation.splits_in_parallel and operation.C.order.interleave == 1, *given, **named)

    def run(self, mode: Any, problem_size: Any, batch_count: int = 1, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Run one problem; return whether D is right, or milliseconds where the launcher measures.

        Parameters
        ----------
        mode : cutlass.gemm.Mode
            ``Gemm`` or ``GemmSplitKParallel``.
        problem_size : cutlass.gemm.GemmCoord
            M, N, K.
        batch_count : int
            Slices of split-K.
        alpha, beta : float
            Scalars.
        """
        with nothing_left(f"M, N, K = {tuple(problem_size)} in {mode} with {batch_count} slices"):
            return self._run(mode, problem_size, batch_count, alpha, beta)

    def _run(self, mode: Any, problem_size: Any, slices: int, alpha: float, beta: float) -> Any:
        operation, (m, n, k) = self.operation, tuple(problem_size)
        A, B, C, D = self._operands((m * k, k * n, m * n), of_convolution=False)
        scalars = operation.epilogue_type(alpha, beta)
        arguments = GemmArguments(operation, problem_size, A, B, C, D, mode, output_op=scalars, split_k_slices=slices)
        sums = None
        if mode == _Mode.GemmSplitKParallel:
            reduction = check_operation(self.reduction_operation, ReductionOperation)
            sums = ReductionArguments(reduction, [m, n], slices, arguments.ptr_D, D, C, output_op=scalars)

        def expected() -> Any:
            reference = ReferenceModule(operation.A, operation.B, operation.C)
            return reference.run(A, B, C, problem_size, alpha, beta)

        what = f"M, N, K = {m}, {n}, {k} in {mode} with {slices} slices"
        return self._outcome(arguments, sums, D, expected, what)


def test_all_gemm(operation: GemmOperationUniversal, testcase: str = "universal") -> bool:
    """Return whether a GEMM is right for all of a set of problems.

    Parameters
    ----------
    operation : GemmOperationUniversal
        What to run; it is compiled here.
    testcase : {"universal", "multistage", "interleaved"}
        Which set: extents just above and below those of tiles, with and without split-K; extents that are multiples of
        16; or of 32, for interleaved layouts.

    Raises
    ------
    ArgumentError
        There is no such set.
    """
    sets = {"universal": _universal, "multistage": _multistage, "interleaved": _interleaved}
    if testcase not in sets:
        raise ArgumentError(f"testcase must be one of {', '.join(sets)}; got {testcase!r}")
    launcher = GemmUniversalLauncher(operation, interleaved=testcase == "interleaved")
    beta = 2.0 if testcase == "universal" else 0.0
    problems = sets[testcase](operation)
    return all(launcher.run(mode, _core.GemmCoord(*size), slices, 1.0, beta) for mode, size, slices in problems)


test_all_gemm.__test__ = False  # type: ignore[attr-defined]  # for test runners that find functions by their names


def _universal(operation: GemmOperationUniversal) -> list[tuple[Any, tuple[int, int, int], int]]:
    tile = operation.tile_description
    step = 128 // operation.A.type.bits if tile.math_instruction.is_tensor_op else 1
    tile_k = tile.threadblock_shape[2]
    depth = tile_k * (tile.stages or 2)
    ks = (step, depth - step, 3 * depth - step)
    return [
        (mode, (m, n, k), slices)
        for mode in (_Mode.Gemm, _Mode.GemmSplitKParallel)
        for m, n, k, slices in itertools.product((step, 512 - 3 * step), (step, 512 - 2 * step), ks, (1, 2, 3, 5, 7))
        if k // slices >= 2 * tile_k
    ]


def _multistage(operation: GemmOperationUniversal) -> list[tuple[Any, tuple[int, int, int], int]]:
    tile = operation.tile_description
    tile_k, instruction = tile.threadblock_shape[2], tile.math_instruction.instruction_shape or (1, 1, 1)
    ks = (tile_k, tile_k * (tile.stages or 2) + instruction[2])
    return [(_Mode.Gemm, size, 1) for size in itertools.product((16, 528), (16, 528), ks)]


def _interleaved(operation: GemmOperationUniversal) -> list[tuple[Any, tuple[int, int, int], int]]:
    tile = operation.tile_description
    ks = (32, tile.threadblock_shape[2] * (tile.stages or 2) + 32)
    return [(_Mode.Gemm, size, 1) for size in itertools.product((32, 544), (32, 544), ks)]
