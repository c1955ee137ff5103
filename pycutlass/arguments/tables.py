"""A group whose problems are known to the device only: tables of sizes, addresses and leading dimensions there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycutlass import _core, device
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.launch import Problem
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.tensor import TensorView, wrap

__all__ = ["TableProblem", "table_problem"]

#: What users call the table that is given under a name.
_NAMES = {
    **{"problem_sizes": "problem_sizes", "A": "ptr_A", "B": "ptr_B", "C": "ptr_C", "D": "ptr_D"},
    **{"lda": "lda", "ldb": "ldb", "ldc": "ldc", "ldd": "ldd"},
}


@dataclass(frozen=True)
class _Table:
    """A checked table."""

    name: str
    view: TensorView

    @property
    def parts(self) -> tuple[_Table, ...]:
        """The table itself."""
        return (self,)


@dataclass(frozen=True)
class TableProblem(Problem):
    """A group that its tables describe. What they hold is the user's word.

    Attributes
    ----------
    operation : GemmOperationGrouped
        What to compute, with the scheduler on the device.
    count : int
        Number of problems.
    most_tiles : int
        Output tiles that there are at most; 0 where nobody knows.
    operands : dict
        The tables, by name.
    """

    operation: GemmOperationGrouped
    count: int
    most_tiles: int
    operands: dict[str, Any]
    scalars: EpilogueScalars

    @property
    def what(self) -> str:
        """The problem in words, for messages."""
        return f"a group of {self.count} GEMMs whose sizes are on the device"

    def make_call(self, loaded: _core.DeviceKernel) -> _core.GroupedCall:
        """Return a call for one grouped kernel."""
        return _core.GroupedCall(loaded)

    def configure(self, call: _core.GroupedCall) -> None:
        """Give the record the addresses of all tables."""
        # The kernel looks C's address up whether it reads C or not; D's will do where there is none.
        stand_in = {"C": "D", "ldc": "ldd"}
        tables = [self.operands.get(name) or self.operands[stand_in[name]] for name in _NAMES]
        call.set_device_tables(self.count, self.most_tiles, [table.view.pointer for table in tables])

    def compute(self) -> None:
        """Raise DeviceError: the host cannot read what the tables hold."""
        device.require()


def table_problem(
    operation: GemmOperationGrouped, given: Mapping[str, Any], scalars: EpilogueScalars, count: int, most_tiles: int
) -> TableProblem:
    """Return the problem with every table checked: element type, shape, contiguity, and that all are on one GPU.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A table is missing or does not fit.
    """
    names = [name for name in _NAMES if name not in ("C", "ldc") or scalars.needs_source]
    operands = {name: _table(name, given[name], count) for name in names}
    places = {table.view.device: table.name for table in operands.values()}
    if None in places:
        raise ArgumentError(
            f"{places[None]} is in host memory, and the kernel reads it on the GPU: move it there. Where the host "
            f"knows sizes and tensors, pass them to GemmGroupedArguments"
        )
    if len(places) > 1:
        listed = ", ".join(f"{name} on GPU {place}" for place, name in places.items())
        raise ArgumentError(f"all tables of a group must be on one GPU, got {listed}")
    return TableProblem(operation, count, most_tiles, operands, scalars)


def _table(key: str, tensor: Any, count: int) -> _Table:
    name = _NAMES[key]
    if tensor is None:
        raise ArgumentError(f"{name} is missing: a group on the device needs a table with one entry for each problem")
    view = wrap(name, tensor)
    wanted = ("int32",) if key == "problem_sizes" else ("int64", "uint64") if key in "ABCD" else ("int64",)
    shape = (count, 3) if key == "problem_sizes" else (count,)
    if view.dtype_name not in wanted:
        raise ArgumentTypeError(f"{name} must be a device tensor of {wanted[0]}, got {view.dtype_name or 'an address'}")
    if view.shape != shape:
        raise ArgumentError(
            f"{name} must have shape {shape}, an entry for each of problem_count={count} problems; got {view.shape}"
        )
    if view.strides != ((3, 1) if len(shape) == 2 else (1,)) and count > 1:
        raise ArgumentError(f"{name} must be contiguous, got strides {view.strides}; pass {name}.contiguous()")
    return _Table(name, view)
