"""One GEMM, or a batch of them, as a launch takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycutlass import _core, reference
from pycutlass.enums import RasterOrder
from pycutlass.epilogue import EpilogueScalars
from pycutlass.launch.problem import Problem
from pycutlass.operands import Operand
from pycutlass.operation import GemmOperationUniversal

__all__ = ["GemmProblem"]

_Mode = _core.GemmMode


@dataclass(frozen=True)
class GemmProblem(Problem):
    """One GEMM, or a batch of them, checked.

    Attributes
    ----------
    operation : GemmOperationUniversal
        What to compute.
    mode : cutlass.gemm.Mode
        How.
    size : tuple of 3 int
        M, N, K.
    count : int
        Batches, or slices of split-K.
    raster_order : RasterOrder
        Hopper-native kernels only.
    launch_with_pdl : bool
        The same.
    """

    operation: GemmOperationUniversal
    mode: Any
    size: tuple[int, int, int]
    count: int
    operands: dict[str, Operand]
    scalars: EpilogueScalars
    raster_order: RasterOrder
    launch_with_pdl: bool

    @property
    def written(self) -> tuple[str, ...]:
        """D, and what the epilogue writes beside it."""
        return ("D", *(port.name for port in self.operation.epilogue_functor.outputs))

    @property
    def is_empty(self) -> bool:
        """Whether D has no elements."""
        return 0 in self.size[:2]

    @property
    def compiled_as(self) -> str:
        """The list that add_module takes: partial sums and Hopper-native arrays have kernels of their own."""
        if self.mode == _Mode.GemmSplitKParallel:
            return "[operation, reduction]"
        return "[operation.array]" if self.mode == _Mode.Array and self.operation.is_sm90 else "[operation]"

    @property
    def what(self) -> str:
        """The problem in words, for messages."""
        m, n, k = self.size
        return f"a GEMM of M={m}, N={n}, K={k} in {self.mode} with count {self.count}"

    def make_call(self, loaded: _core.DeviceKernel) -> _core.Call:
        """Return a call for one GEMM kernel."""
        return _core.GemmCall(loaded)

    def configure(self, call: _core.GemmCall) -> None:
        """Fill in sizes, mode and schedule."""
        call.set_problem(self.mode.value, *self.size, self.count)
        call.set_schedule(self.operation.swizzle_size, int(self.raster_order))
        call.set_launch_with_pdl(self.launch_with_pdl)
        call.set_in_place(not self.operation.is_apart)

    def compute(self) -> None:
        """Execute the reference on the host."""
        functor = self.operation.epilogue_functor
        arrays = {name: each.host_array() for name, each in self.operands.items() if name not in self.written}
        if functor.is_tree:
            scalars = dict(zip(functor.scalar_names, self.scalars.values, strict=True))
            for name, values in reference.gemm_outputs(self.operation, arrays, scalars).items():
                self.operands[name].store(values)
            return
        slices = reference.serial_slices(self.operation, self.size[2], self.count) if self.mode == _Mode.Gemm else []
        result = reference.gemm(
            self.operation, arrays["A"], arrays["B"], arrays.get("C"), *self.scalars.values, slices=slices
        )
        self.operands["D"].store(result)
