"""Groups that change: other tensors and sizes, and tables that are read when the kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from descriptions import ampere
from groups import Group, grouped

from pycutlass import SchedulerMode, TensorDescription
from pycutlass.arguments.grouped import GemmGroupedArguments
from pycutlass.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("without_gpu")


# Updates


def test_update_takes_other_tensors_sizes_and_scalars():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    arguments = group.arguments(1.0, 1.0)
    other = Group(group.operation, group.sizes, seed=1)
    arguments.update(A=other.A, D=other.D)
    other.B, other.C = group.B, group.C
    group.operation.run(arguments)
    other.check(1.0, 1.0)
    arguments.update(output_op=group.operation.epilogue_type(-2.0, 0.0))
    group.operation.run(arguments)
    other.check(-2.0)
    larger = Group(group.operation, [(9, 1, 8), (0, 0, 0), (3, 3, 3)], seed=2)
    arguments.update(problem_sizes=larger.sizes, A=larger.A, B=larger.B, C=larger.C, D=larger.D)
    group.operation.run(arguments)
    larger.check(-2.0)
    assert (arguments.problem_count, arguments.ptr_A) == (3, [each.ctypes.data for each in larger.A])


def test_update_changes_nothing_where_it_raises():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    arguments = group.arguments(1.0, 1.0)
    before = (arguments.ptr_A, arguments.ptr_B, arguments.ptr_C, arguments.ptr_D)
    other = Group(group.operation, group.sizes, seed=1)
    for wrong in (
        {"A": other.A, "B": other.B[:1]},
        {"D": [group.A[0], other.D[1]]},
        {"D": [other.D[0], group.A[0].reshape(-1)[:10]]},
        {"problem_sizes": [(4, 6, 3)]},
        {"problem_sizes": [(4, 6, 3), (5, 2, 8)]},
        {"A": other.A, "output_op": "none"},
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            arguments.update(**wrong)
        assert before == (arguments.ptr_A, arguments.ptr_B, arguments.ptr_C, arguments.ptr_D)
        assert arguments.problem_sizes.tolist() == [[4, 6, 3], [5, 2, 7]]
    group.operation.run(arguments)
    group.check(1.0, 1.0)
    with pytest.raises(TypeError, match="lda"):
        arguments.update(lda=[1, 2])


def test_a_list_that_changes_later_changes_nothing():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    given = list(group.A)
    arguments = group.arguments(A=given)
    given.clear()
    arguments.update(D=group.D)
    group.operation.run(arguments)
    group.check()


# Tables


def tables(group: Group, **changed: Any) -> dict[str, Any]:
    """Return a group as tables in host memory."""

    def pointers(arrays: Any) -> Any:
        return np.array([each.ctypes.data for each in arrays], np.int64)

    def strides(description: TensorDescription, arrays: Any) -> Any:
        axis = 0 if description.is_row_major else 1
        return np.array([each.strides[axis] // each.itemsize for each in arrays], np.int64)

    operation = group.operation
    given: dict[str, Any] = {
        "problem_count": len(group.sizes),
        "problem_sizes": np.array(group.sizes, np.int32),
        **{f"ptr_{name}": pointers(getattr(group, name)) for name in "ABCD"},
        **{f"ld{n.lower()}": strides(getattr(operation, "C" if n == "D" else n), getattr(group, n)) for n in "ABCD"},
    }
    return {**given, **changed}


def test_tables_in_host_memory_are_refused():
    # The host would have to believe whatever addresses they hold.
    group = Group(grouped("f32_simt"), [(4, 6, 3), (5, 2, 7)])
    output_op = group.operation.epilogue_type(1.0, 1.0)
    for wrap in (np.asarray, torch.from_numpy):
        given = {name: wrap(t) if isinstance(t, np.ndarray) else t for name, t in tables(group).items()}
        with pytest.raises(ArgumentError, match=r"is in host memory.*GemmGroupedArguments"):
            GemmGroupedArguments.from_device(group.operation, **given, output_op=output_op)


TABLES: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"problem_sizes": np.zeros((2, 3), np.int64)}, ArgumentTypeError, ["problem_sizes", "int32", "int64"]),
    ({"problem_sizes": np.zeros((3, 3), np.int32)}, ArgumentError, ["problem_sizes", "(2, 3)", "(3, 3)"]),
    ({"problem_sizes": np.zeros((3, 2), np.int32).T}, ArgumentError, ["problem_sizes", "contiguous", "(1, 2)"]),
    ({"ptr_A": np.zeros(2, np.int32)}, ArgumentTypeError, ["ptr_A", "int64", "int32"]),
    ({"ptr_B": np.zeros(4, np.int64)[::2]}, ArgumentError, ["ptr_B", "contiguous"]),
    ({"ptr_D": None}, ArgumentError, ["ptr_D is missing"]),
    ({"ptr_C": None}, ArgumentError, ["ptr_C is missing"]),
    ({"ldc": None}, ArgumentError, ["ldc is missing"]),
    ({"lda": np.zeros(3, np.int64)}, ArgumentError, ["lda", "(2,)", "problem_count=2", "(3,)"]),
    ({"ldb": [1, 2]}, ArgumentTypeError, ["ldb", "list"]),
    ({"ptr_A": 4096}, ArgumentTypeError, ["ptr_A", "int64", "an address"]),
    ({"problem_count": 0}, ArgumentError, ["problem_count", "0"]),
    ({"problem_count": "2"}, ArgumentTypeError, ["problem_count", "'2'"]),
    ({"most_tiles": -1}, ArgumentError, ["most_tiles", "-1"]),
    ({"operation": grouped("f32_simt", mode=SchedulerMode.Host)}, ArgumentError, ["SchedulerMode.Device", "sizes"]),
    ({"operation": ampere("f32_simt")}, ArgumentTypeError, ["GemmOperationGrouped"]),
]


@pytest.mark.parametrize(("change", "kind", "words"), TABLES, ids=[str(row[2]) for row in TABLES])
def test_one_wrong_table_is_named(change, kind, words):
    group = Group(grouped("f32_simt"), [(4, 6, 3), (5, 2, 7)])
    given = {"operation": group.operation, "output_op": group.operation.epilogue_type(1.0, 1.0), **tables(group)}
    with pytest.raises(kind) as caught:
        GemmGroupedArguments.from_device(**{**given, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)
