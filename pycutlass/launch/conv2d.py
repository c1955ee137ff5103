"""One convolution as a launch takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pycutlass import _core
from pycutlass.epilogue import EpilogueScalars
from pycutlass.launch.problem import Problem
from pycutlass.operands import Matrix
from pycutlass.operands.convolutions import logical
from pycutlass.operation.conv2d import Conv2dOperation
from pycutlass.operation.conv2d_support import extent_of
from pycutlass.reference.conv2d import conv2d, implicit_gemm
from pycutlass.reference.gemm import gemm_outputs

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

    @property
    def written(self) -> tuple[str, ...]:
        """D, and what the epilogue writes beside it."""
        return ("D", *(port.name for port in self.operation.epilogue_functor.outputs))

    def compute(self) -> None:
        """Execute the reference on the host."""
        if self.operation.epilogue_functor.is_tree:
            self._compute_outputs()
            return
        arrays = {
            name: logical(operand, extent_of(name, self.operation, self.size))
            for name, operand in self.operands.items()
            if name != "D"
        }
        serial = self.split_k_mode is not _core.SplitKMode.Parallel
        A, B, C = arrays["A"], arrays["B"], arrays.get("C")
        result = conv2d(self.operation, self.size, A, B, C, *self.scalars.values, serial=serial)
        self.operands["D"].store(result)

    def _compute_outputs(self) -> None:
        """Execute the reference of an epilogue with tensors of its own: that of the matrix product."""
        arrays = {name: each.host_array() for name, each in self.operands.items() if name not in self.written}
        for name in "AB":
            arrays[name] = logical(self.operands[name], extent_of(name, self.operation, self.size))
        product = _core.implicit_gemm_problem_size(self.operation.conv_kind, self.size)
        if "C" in arrays and self.operands["C"].ld:  # a bias stays one line, which stands for all
            arrays["C"] = arrays["C"].reshape(product.m(), product.n())
        arrays["A"], arrays["B"] = implicit_gemm(self.operation.conv_kind, self.size, arrays["A"], arrays["B"])
        names = self.operation.epilogue_functor.scalar_names
        scalars = dict(zip(names, self.scalars.values, strict=True))
        for name, values in gemm_outputs(cast(Any, self.operation), arrays, scalars).items():
            self.operands[name].store(values)
