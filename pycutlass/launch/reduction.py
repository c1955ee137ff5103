"""One reduction of split-K partial sums as a launch takes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycutlass import _core
from pycutlass.epilogue import EpilogueScalars
from pycutlass.launch.problem import Problem
from pycutlass.operands import Matrix, Operand
from pycutlass.operation import ReductionOperation

__all__ = ["ReductionProblem"]


@dataclass(frozen=True)
class ReductionProblem(Problem):
    """One reduction, checked: A is the workspace, C the source, D the destination."""

    operation: ReductionOperation
    rows: int
    columns: int
    partitions: int
    operands: dict[str, Operand]
    scalars: EpilogueScalars

    @property
    def written(self) -> tuple[str, ...]:
        """D, and what the epilogue writes beside it."""
        return ("D", *(port.name for port in self.operation.epilogue_functor.outputs))

    @property
    def is_empty(self) -> bool:
        """Whether the destination has no elements."""
        return 0 in (self.rows, self.columns)

    @property
    def what(self) -> str:
        """The problem in words, for messages."""
        return f"a reduction of {self.partitions} partial sums of {self.rows} x {self.columns}"

    def make_call(self, loaded: _core.DeviceKernel) -> _core.Call:
        """Return a call for one reduction kernel."""
        return _core.ReductionCall(loaded)

    def configure(self, call: _core.ReductionCall) -> None:
        """Fill in the sizes as the kernel sees them: lines of adjacent elements."""
        target = self.operands["D"]
        assert isinstance(target, Matrix)
        call.set_problem(target.lines, target.line, self.partitions)

    def compute(self) -> None:
        """Add up the planes on the host, and apply the epilogue."""
        planes = self.operands["A"].host_array().reshape(self.partitions, self.rows, self.columns)
        functor = self.operation.epilogue_functor
        source = self.operands["C"].host_array() if "C" in self.operands else None
        inputs = {port.name: self.operands[port.name].host_array() for port in functor.inputs}
        scalars = dict(zip(functor.scalar_names, self.scalars.values, strict=True))
        with np.errstate(over="ignore", invalid="ignore"):
            total = planes.sum(axis=0, dtype=planes.dtype)
            results = functor.evaluate(np.asarray(total), source, scalars, inputs)
        types = {"D": functor.output} | {port.name: port.type for port in functor.outputs}
        for name, values in results.items():
            self.operands[name].store(types[name].round(values))
