"""A group whose problems are known to the device only: tables of sizes, addresses and leading dimensions there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core, device, reference
from pycutlass.arguments.group import values_of
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.launch import Problem
from pycutlass.library import TensorDescription
from pycutlass.operands import Matrix
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

    def host_array(self) -> NDArray[Any]:
        """Return host memory as an array."""
        assert self.view.shape is not None and self.view.strides is not None
        return self.view.host_array(self.view.shape, self.view.strides, np.dtype(self.view.dtype_name))


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
        """Execute the meaning on the host, where tables and matrices are then."""
        tables = {name: table.host_array() for name, table in self.operands.items()}
        for number, (m, n, k) in enumerate(tables["problem_sizes"].tolist()):
            if m and n:
                self._compute_one(number, m, n, k, tables)

    def _compute_one(self, number: int, m: int, n: int, k: int, tables: Mapping[str, NDArray[Any]]) -> None:
        shapes = {"A": (self.operation.A, m, k), "B": (self.operation.B, k, n), "D": (self.operation.C, m, n)}
        if "C" in tables:
            shapes["C"] = (self.operation.C, m, n)
        matrices = {
            name: _at(int(tables[name][number]), int(tables[f"ld{name.lower()}"][number]), name, *shape)
            for name, shape in shapes.items()
        }
        A, B = values_of(matrices["A"]), values_of(matrices["B"])
        C = values_of(matrices["C"]) if "C" in matrices else None
        matrices["D"].store(reference.gemm(self.operation.single, A, B, C, *self.scalars.values))


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
    if None in places and device.available():
        raise ArgumentError(f"{places[None]} is in host memory, and the kernel reads it on the GPU: move it there")
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


def _at(pointer: int, ld: int, name: str, description: TensorDescription, rows: int, columns: int) -> Matrix:
    """Return the matrix at an address, which the user vouches for."""
    view = TensorView(pointer, None, None, None, None, "pointer", None)
    return Matrix(name, description, view, rows, columns, ld)
