"""Launches without a GPU: on the host, or of nothing."""

from __future__ import annotations

from typing import Any

from pycutlass import _core
from pycutlass.calls import shown
from pycutlass.errors import AllocationError
from pycutlass.launch.problem import Problem, guards
from pycutlass.log import say_once
from pycutlass.operation import Operation

__all__ = ["HostLaunch", "NoLaunch"]


class _WithoutGpu:
    """What needs neither streams nor memory of its own: it has finished when `run` returns."""

    ends_elsewhere = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        #: Whether it was run.
        self.launched = False

    def update(self, problem: Problem) -> None:
        """Take other operands of the same shapes."""
        self.problem = problem

    def operand(self, name: str) -> tuple[int, int]:
        """Return the address and the leading dimension of an operand."""
        operand = self.problem.operands.get(name)
        return (0, 0) if operand is None else (operand.view.pointer, operand.ld)

    def try_exchange(self, *operands: Any) -> bool:
        """Return False: without a GPU's call record there is no shortcut around `update`."""
        return False

    def sync(self) -> None:
        """Do nothing: `run` has finished when it returns."""

    def defer_release(self, owners: tuple[Any, ...]) -> None:
        """Do nothing: nothing is in flight."""

    release = defer_release


class NoLaunch(_WithoutGpu):
    """A problem whose D has no elements: a grid would have no threadblocks, which CUDA refuses."""

    def run(self, stream: Any = None) -> None:
        """Do nothing; there are no streams here, and `stream` is only checked."""
        _check_stream(stream)
        self.launched = True


class HostLaunch(_WithoutGpu):
    """A problem on the host, by its reference: what there is without a GPU."""

    def __init__(self, operation: Operation, problem: Problem) -> None:
        super().__init__(problem)
        self._operation = operation
        self._guards = guards(problem.operands, problem.written)

    def run(self, stream: Any = None) -> None:
        """Compute D. There are no streams here, and `stream` is only checked."""
        _check_stream(stream)
        reason = _core.driver_problem() or "the driver sees no GPU"
        say_once(f"no GPU ({reason}): operations are executed on the host by pycutlass.reference", cause="no GPU")
        if not (self._operation.artifacts or self._operation._is_compiled_when_used):
            say_once(
                f"{self._operation.procedural_name()} runs on the host without having been compiled, which no GPU will "
                f"do: call pycutlass.compiler.add_module({self.problem.compiled_as}) first"
            )
        for name, each in self._guards:
            each.check(name)
        try:
            self.problem.compute()
        except MemoryError as error:
            raise AllocationError(
                f"the host lacks the memory to compute {self._operation.procedural_name()}, for which it needs several "
                f"times that of the operands: {shown(error)}. Divide the problem, or use a GPU"
            ) from error
        for _, each in self._guards:
            each.count_write()
        self.launched = True

    def update(self, problem: Problem) -> None:
        """Take other operands of the same shapes."""
        super().update(problem)
        self._guards = guards(problem.operands, problem.written)


def _check_stream(stream: Any) -> None:
    """Raise ArgumentTypeError for what is no stream: what a GPU would refuse is refused without one."""
    if stream is not None:
        _core.stream_handle(stream)
