"""The problems of a grouped GEMM: a list of tensors for each operand, checked."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core, reference
from pycutlass.arguments.base import check_source, check_writable
from pycutlass.arguments.overlaps import check_many_overlaps
from pycutlass.arguments.reordered import UNCHANGED, Reordering
from pycutlass.arguments.sums import check_sums
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError
from pycutlass.integers import items_of, shape_of
from pycutlass.launch import Problem
from pycutlass.library import TensorDescription
from pycutlass.operands import Matrix, empty_matrix, is_vector, matrix, vector
from pycutlass.operation.group_support import EXTENTS, Sizes, as_sequence, check_count_of
from pycutlass.operation.grouped import GemmOperationGrouped

__all__ = ["GroupProblem", "exceeds", "group_problem", "listed", "values_of"]


@dataclass(frozen=True)
class GroupProblem(Problem):
    """The problems of a group, checked.

    Attributes
    ----------
    operation : GemmOperationGrouped
        What to compute.
    sizes : int32 array of shape (problems, 3)
        M, N, K of each.
    groups : dict
        The operands of all problems, by letter; C is absent where it is not read.
    operands : dict
        The same one by one, by name: ``A[0]``, ``A[1]``, ...
    bias : bool or None
        Whether every C is a bias; None where each tells.
    """

    operation: GemmOperationGrouped
    sizes: Sizes
    groups: Mapping[str, tuple[Matrix, ...]]
    operands: dict[str, Matrix]
    scalars: EpilogueScalars
    bias: bool | None

    @property
    def what(self) -> str:
        """The problem in words, for messages."""
        m, n, k = (int(extent) for extent in self.sizes.max(axis=0))
        return f"a group of {len(self.sizes)} GEMMs of at most M={m}, N={n}, K={k}"

    def make_call(self, loaded: _core.DeviceKernel) -> _core.GroupedCall:
        """Return a call for one grouped kernel."""
        return _core.GroupedCall(loaded)

    def configure(self, call: _core.GroupedCall) -> None:
        """Give the record the sizes of all problems; their operands follow."""
        call.set_sizes(self.sizes)

    def compute(self) -> None:
        """Execute the meaning on the host."""
        A, B, D = (self.groups[name] for name in "ABD")
        C = self.groups.get("C")
        results = reference.gemm_grouped(
            self.operation,
            [values_of(each) for each in A],
            [values_of(each) for each in B],
            None if C is None else [values_of(each) for each in C],
            *self.scalars.values,
        )
        for target, values in zip(D, results, strict=True):
            if target.bytes:
                target.store(values)


def group_problem(
    operation: GemmOperationGrouped,
    given: Mapping[str, Any],
    scalars: EpilogueScalars,
    bias: bool | None,
    reorder: Reordering,
) -> GroupProblem:
    """Return the problems with every operand checked.

    Parameters
    ----------
    given : mapping
        ``problem_sizes``, checked, and a sequence of tensors under each of A, B, C and D.
    bias : bool, optional
        Take every C as a vector; None recognises vectors.
    reorder : Reordering
        How every B comes to the order in which kernels read it.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Lists of different lengths, a tensor that does not fit, tensors on different GPUs, or a D that overlaps
        something that is read or another D.
    """
    sizes: Sizes = given["problem_sizes"]
    if scalars.needs_source:
        check_source(given["C"])
    names = "ABCD" if scalars.needs_source else "ABD"
    groups = {
        name: _operands(operation, name, given[name], sizes, bias, reorder if name == "B" else UNCHANGED)
        for name in names
    }
    _check_place(groups.values())
    if exceeds(operation, sizes):
        for A, B, size in zip(groups["A"], groups["B"], sizes.tolist(), strict=True):
            if min(size):
                check_sums(operation.epilogue_functor, A, B, size[2])
    for target in groups["D"]:
        check_writable(target)
    check_many_overlaps(groups, "a group")
    operands = {each.name: each for group in groups.values() for each in group}
    return GroupProblem(operation, sizes, groups, operands, scalars, bias)


def exceeds(operation: GemmOperationGrouped, sizes: Sizes) -> bool:
    """Return whether a K is larger than the epilogue holds for whatever the operands are."""
    max_k = operation.epilogue_functor.max_k
    return max_k is not None and int(sizes[:, 2].max()) > max_k


def listed(name: str, tensors: Any) -> Any:
    """Return the matrices of one operand as a tuple, which its owner cannot change behind our back.

    A tensor of three dimensions holds one for each problem; as C also one of two, of bias vectors. Anything else is
    returned as it is.
    """
    if type(tensors) is list:  # as it almost always is; a class of its own may raise what it likes
        return tuple(tensors)
    if isinstance(tensors, list):
        return items_of(tensors, sys.maxsize - 1)
    dimensions = len(shape_of(tensors) or ())
    if not (dimensions == 3 or (dimensions == 2 and name == "C")) or not hasattr(tensors, "__getitem__"):
        return tensors
    return items_of(tensors, sys.maxsize - 1)


def values_of(operand: Matrix) -> NDArray[Any]:
    """Return an operand in host memory as an array, also where it has no elements."""
    if operand.rows and operand.columns:
        return operand.host_array()
    return np.empty((operand.rows, operand.columns), operand.description.type.dtype)


def _operands(
    operation: GemmOperationGrouped,
    name: str,
    tensors: Any,
    sizes: Sizes,
    bias: bool | None,
    reorder: Reordering,
) -> tuple[Matrix, ...]:
    """Return one operand of every problem."""
    if tensors is None:
        raise ArgumentError(f"operand {name} is missing: give a list of {len(sizes)} tensors, one for each problem")
    tensors = as_sequence(f"operand {name}", tensors)
    check_count_of(name, len(tensors), len(sizes))
    description: TensorDescription = getattr(operation, "C" if name == "D" else name)
    rows, columns = (sizes[:, extent].tolist() for extent in EXTENTS[name])
    takes_bias = bias if name == "C" else False
    return tuple(
        _operand(f"{name}[{number}]", description, tensors[number], rows[number], columns[number], takes_bias, reorder)
        for number in range(len(sizes))
    )


def _operand(
    name: str,
    description: TensorDescription,
    tensor: Any,
    rows: int,
    columns: int,
    bias: bool | None,
    reorder: Reordering,
) -> Matrix:
    if not rows or not columns:
        return empty_matrix(name, description, tensor, rows, columns)
    if is_vector(description, tensor, rows, columns) if bias is None else bias:
        return vector(name, description, tensor, rows, columns)
    return reorder.operand(lambda given: matrix(name, description, given, rows, columns), tensor)


def _check_place(groups: Iterable[tuple[Matrix, ...]]) -> None:
    """Raise where two tensors are on different GPUs, naming just these two."""
    first: Matrix | None = None
    for each in (each for group in groups for each in group):
        if each.view.device is None or each.view.device < 0:
            continue
        first = first or each
        if each.view.device != first.view.device:
            raise ArgumentError(
                f"all operands of a group must be on one GPU, got {first.name} on GPU {first.view.device} and "
                f"{each.name} on GPU {each.view.device}; move them with .to()"
            )
