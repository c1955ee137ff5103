"""What launchers of all kinds of operation do: compile, run, compare, and measure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from pycutlass import _core, compiler
from pycutlass.arguments import ReductionArguments
from pycutlass.arguments.base import Arguments
from pycutlass.compat.testing.operands import largest, small_integers
from pycutlass.compat.testing.timer import GpuTimer
from pycutlass.errors import ArgumentError
from pycutlass.operation import ReductionOperation
from pycutlass.types import element

__all__ = ["Launcher"]


class Launcher:
    """An operation, compiled together with its reduction where it splits K, and how often it is run.

    Parameters
    ----------
    operation : GemmOperationUniversal or Conv2dOperation
        What to run.
    splits : bool
        Whether it has partial sums to reduce.
    seed : int
        For the operands.
    interleaved : bool
        As in the original; the operation's layouts say the same.
    verification : bool
        Whether results are compared with the reference.
    profiling : bool
        Whether `run` measures, and returns milliseconds.
    warmup_iterations, iterations : int
        Launches before and while it measures.
    sleep : float
        Seconds to wait before it measures.
    """

    def __init__(
        self,
        operation: Any,
        splits: bool,
        seed: int = 2080,
        interleaved: bool = False,
        verification: bool = True,
        profiling: bool = False,
        warmup_iterations: int = 500,
        iterations: int = 500,
        sleep: float = 0,
    ) -> None:
        self.operation = operation
        self.seed, self.interleaved, self.sleep_time = seed, interleaved, sleep
        self.verification, self.profiling = verification, profiling
        self.warmup_iterations, self.iterations = warmup_iterations, iterations
        self.timer = GpuTimer()
        self.reduction_operation = self._reduction() if splits else None
        compiler.add_module([each for each in (operation, self.reduction_operation) if each is not None])

    def run_cutlass_profiler(self, *problem: Any, **named: Any) -> NoReturn:
        """Refuse: CUTLASS's profiler measures kernels that were built into it, and none of them is this operation.

        Raises
        ------
        ArgumentError
            Always.
        """
        name = type(self).__name__
        raise ArgumentError(
            f"run_cutlass_profiler is not there: cutlass_profiler measures the kernels that were built into it, under "
            f"CUTLASS's names, and {self.operation.procedural_name()} is none of them. To measure this one, use "
            f"{name}(operation, profiling=True).run(...), which returns milliseconds; to compare, call "
            f"cutlass_profiler for the same problem yourself."
        )

    def _reduction(self) -> ReductionOperation:
        C, functor = self.operation.C, self.operation.epilogue_functor
        math = self.operation.tile_description.math_instruction
        return ReductionOperation(
            shape=_core.MatrixCoord(4, 32 * C.alignment),
            C=C,
            element_accumulator=math.element_accumulator,
            element_compute=functor.element_epilogue,
            epilogue_functor=functor,
            count=C.alignment,
        )

    def _operands(self, counts: tuple[int, int, int], of_convolution: bool) -> tuple[Any, ...]:
        """Return A, B and C of so many elements each, and an empty D."""
        operation, generator = self.operation, np.random.default_rng(self.seed)
        accumulator = element(operation.tile_description.math_instruction.element_accumulator)
        most = largest(operation.A.type, accumulator, of_convolution)
        kinds = (operation.A.type, operation.B.type, operation.C.type)
        drawn = [small_integers(generator, count, kind, most) for count, kind in zip(counts, kinds, strict=True)]
        return (*drawn, np.zeros_like(drawn[2]))

    def _outcome(
        self, arguments: Arguments, sums: ReductionArguments | None, D: Any, expected: Callable[[], Any], what: str
    ) -> Any:
        """Launch, with the reduction of partial sums where there are any.

        Returns
        -------
        bool or float
            Whether D is as `expected`, which is printed where it is not; milliseconds where the launcher measures.
        """
        operation, reduction = self.operation, self.reduction_operation

        def launch() -> None:
            operation.run(arguments)
            if reduction is not None and sums is not None:
                reduction.run(sums)

        launch()
        passed = True
        if self.verification:
            (arguments if sums is None else sums).sync()
            passed = bool(np.array_equal(D, expected()))
            if not passed:
                print(f"wrong: {what} by {operation.procedural_name()}")
        return self._measured(launch) if self.profiling else passed

    def _measured(self, launch: Callable[[], None]) -> float:
        """Return how many milliseconds one launch takes."""
        time.sleep(self.sleep_time)
        for _ in range(self.warmup_iterations):
            launch()
        self.timer.start()
        for _ in range(self.iterations):
            launch()
        self.timer.stop_and_wait()
        return self.timer.duration(self.iterations)
