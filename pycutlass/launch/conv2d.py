"""One convolution as a launch takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pycutlass import _core
from pycutlass.epilogue import EpilogueScalars
from pycutlass.launch.problem import Problem
from pycutlass.operands import Matrix
from pycutlass.operands.convolutions import logical
from pycutlass.operation.conv2d import Conv2dOperation
from pycutlass.operation.conv2d_support import extent_of
from pycutlass.reference.conv2d import conv2d

__all__ = ["Conv2dProblem"]


@dataclass(frozen=True)
class Conv2dProblem(Problem):
    """One convolution, checked.

    Attributes
    ----------
    operation : Conv2dOperation
        What to compute.
    size : cutlass.conv.Conv2dProblemSize
        A copy of the user's, with the slices of split-K.
    split_k_mode : cutlass.conv.SplitKMode
        How the slices are put together.
    """

    operation: Conv2dOperation
    size: _core.Conv2dProblemSize
    split_k_mode: _core.SplitKMode
    operands: Mapping[str, Matrix]
    scalars: EpilogueScalars

    @property
    def is_empty(self) -> bool:
        """Whether D has no elements."""
        return 0 in extent_of("D", self.operation, self.size)

    @property
    def what(self) -> str:
        """The problem in words, for messages."""
        return f"{self.operation.conv_kind.name} of {self.size!r} with {self.split_k_mode} split-K"

    def make_call(self, loaded: _core.DeviceKernel) -> _core.Call:
        """Return a call for one convolution kernel."""
        return _core.Conv2dCall(loaded)

    def configure(self, call: _core.Conv2dCall) -> None:
        """Fill in the problem's size and the split-K."""
        call.set_problem(self.size, self.split_k_mode, self.size.split_k_slices)

    def compute(self) -> None:
        """Execute the reference on the host."""
        arrays = {
            name: logical(operand, extent_of(name, self.operation, self.size))
            for name, operand in self.operands.items()
            if name != "D"
        }
        serial = self.split_k_mode is not _core.SplitKMode.Parallel
        A, B, C = arrays["A"], arrays["B"], arrays.get("C")
        result = conv2d(self.operation, self.size, A, B, C, *self.scalars.values, serial=serial)
        self.operands["D"].store(result)
