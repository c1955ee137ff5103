"""Groups that change: other tensors and sizes, and tables that are read when the kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from descriptions import LAYOUTS, ampere
from groups import SIZES, Group, grouped
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

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
    arguments.update(output_op=group.operation.epilogue_type(-2.0))
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
    """Return a group as tables in host memory, which is where the host executes it."""

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


@settings(max_examples=20, deadline=None)
@given(SIZES, st.sampled_from(LAYOUTS), st.sampled_from([(1.0, 0.0), (-1.25, 1.0)]))
def test_problems_from_tables(sizes, layouts, scalars):
    group = Group(grouped("f32_simt", layouts), sizes)
    output_op = group.operation.epilogue_type(*scalars)
    arguments = GemmGroupedArguments.from_device(group.operation, **tables(group), output_op=output_op)
    group.operation.run(arguments)
    arguments.sync()
    group.check(*scalars)


def test_tables_are_read_when_the_kernel_runs():
    group = Group(grouped("f32_simt"), [(4, 6, 3), (5, 2, 7)])
    given = tables(group, ptr_C=None, ldc=None)
    arguments = GemmGroupedArguments.from_device(group.operation, **given, most_tiles=9)
    group.operation.run(arguments)
    group.check()
    given["problem_sizes"][1] = 0
    given["ptr_A"][1] = 0
    other = Group(group.operation, group.sizes, seed=3)
    given["ptr_A"][0], group.A[0] = other.A[0].ctypes.data, other.A[0]
    before = group.D[1].copy()
    group.operation.run(arguments)
    group.sizes, group.A, group.B, group.D = group.sizes[:1], group.A[:1], group.B[:1], [group.D[0]]
    group.C = group.C[:1]
    group.check()
    np.testing.assert_array_equal(before, arguments_target(given, 1, before))
    assert (arguments.total_tiles, arguments.problem_count) == (9, 2)
    assert arguments.ptr_A is given["ptr_A"] and arguments.ldd is given["ldd"]


def arguments_target(given: dict[str, Any], number: int, like: NDArray[Any]) -> NDArray[Any]:
    """Return a D by the address in its table."""
    import ctypes

    memory: Any = (ctypes.c_char * like.nbytes).from_address(int(given["ptr_D"][number]))
    return np.frombuffer(memory, like.dtype).reshape(like.shape)


def test_other_tables_take_the_place_of_the_first():
    group = Group(grouped("f32_simt"), [(4, 6, 3), (5, 2, 7)])
    arguments = GemmGroupedArguments.from_device(group.operation, **tables(group, ptr_C=None, ldc=None))
    other = Group(group.operation, group.sizes, seed=5)
    given = tables(other)
    arguments.update(A=given["ptr_A"], B=given["ptr_B"], D=given["ptr_D"], output_op=group.operation.epilogue_type(2.0))
    group.operation.run(arguments)
    other.check(2.0)


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
