"""Groups that are refused: one wrong part, and operands over each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from descriptions import COLUMN, ROW, ampere, parts
from groups import Group, grouped
from numpy.typing import NDArray

import pycutlass
from pycutlass import SchedulerMode, TensorDescription, cutlass
from pycutlass.arguments.grouped import GemmGroupedArguments
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError
from pycutlass.operation.grouped import GemmOperationGrouped

pytestmark = pytest.mark.usefixtures("without_gpu")


# What is refused

GOOD = Group(grouped(), [(8, 16, 24), (16, 8, 8), (0, 8, 8)])


def changed(name: str, number: int, tensor: Any) -> dict[str, Any]:
    """Return one operand of the good group with one tensor exchanged."""
    tensors = list(getattr(GOOD, name))
    tensors[number] = tensor
    return {name: tensors}


def half(*shape: int) -> NDArray[Any]:
    return np.zeros(shape, np.float16)


BAD: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"A": GOOD.A[:2]}, ArgumentError, ["operand A has 2 tensors", "3 problems"]),
    ({"D": [*GOOD.D, half(1, 8)]}, ArgumentError, ["operand D has 4 tensors", "3 problems"]),
    ({"problem_sizes": GOOD.sizes[:1]}, ArgumentError, ["operand A has 3 tensors", "1 problem:"]),
    ({"B": None}, ArgumentError, ["operand B is missing", "list of 3 tensors"]),
    ({"C": None}, ArgumentError, ["C is None", "epilogue_type(alpha, 0)"]),
    ({"A": np.zeros((3, 192), np.float16)}, ArgumentTypeError, ["operand A must be a list", "ndarray"]),
    ({"D": "tensors"}, ArgumentTypeError, ["operand D must be a list", "str"]),
    ({"problem_sizes": []}, ArgumentError, ["empty", "at least one"]),
    ({"problem_sizes": 3}, ArgumentTypeError, ["problem_sizes must be a list", "int"]),
    ({"problem_sizes": [(8, 16, 24), (16, 8), (0, 8, 8)]}, ArgumentTypeError, ["problem_sizes[1]", "(16, 8)"]),
    ({"problem_sizes": [(8, 16, 24), (16, 8, 8.0), (0, 8, 8)]}, ArgumentTypeError, ["problem_sizes[1]", "8.0"]),
    ({"problem_sizes": [(8, 16, 24), (16, 8, 8), (-1, 8, 8)]}, ArgumentError, ["problem_sizes[2]", "-1"]),
    ({"problem_sizes": [(8, 16, 2**31), (16, 8, 8), (0, 8, 8)]}, ArgumentError, ["problem_sizes[0]", "2147483648"]),
    (changed("A", 1, GOOD.A[1].astype(np.float32)), ArgumentTypeError, ["operand A[1]", "float16", "float32"]),
    (changed("B", 0, torch.zeros(24, 16)), ArgumentTypeError, ["operand B[0]", "torch tensor of float32"]),
    (changed("A", 2, np.zeros((0, 8), np.float32)), ArgumentTypeError, ["operand A[2]", "float32"]),
    (changed("A", 0, half(8, 32)), ArgumentError, ["operand A[0]", "(8, 24)", "(8, 32)"]),
    (changed("D", 2, half(1, 8)), ArgumentError, ["operand D[2]", "no elements", "(1, 8)"]),
    (changed("B", 1, half(8, 8)), ArgumentError, ["operand B[1]", "ColumnMajor", "np.asfortranarray(B[1])"]),
    (changed("A", 0, half(8, 28)[:, :24]), AlignmentError, ["operand A[0]", "leading dimension", "28"]),
    (changed("A", 0, half(200)[4:196].reshape(8, 24)), AlignmentError, ["operand A[0]", "16 bytes"]),
    (changed("C", 1, None), ArgumentTypeError, ["operand C[1]", "NoneType"]),
    ({"output_op": 1.0}, ArgumentTypeError, ["output_op", "float"]),
    ({"split_k_slices": 2}, ArgumentTypeError, ["split_k_slices", "problem_sizes"]),
    ({"operation": ampere()}, ArgumentTypeError, ["GemmOperationGrouped", "GemmOperationUniversal"]),
]


@pytest.mark.parametrize(("change", "kind", "words"), BAD, ids=[str(row[2]) for row in BAD])
def test_one_wrong_thing_is_named(change, kind, words):
    given = {
        "operation": GOOD.operation,
        "problem_sizes": GOOD.sizes,
        **{name: getattr(GOOD, name) for name in "ABCD"},
        "output_op": GOOD.operation.epilogue_type(1.0, 1.0),
    }
    with pytest.raises(kind) as caught:
        GemmGroupedArguments(**{**given, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_good_group_is_good():
    GOOD.run(1.0, 1.0)
    GOOD.check(1.0, 1.0)


def test_a_read_only_d_is_refused():
    target = half(16, 8)
    target.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"D\[1\] is a read-only numpy array"):
        GOOD.arguments(**changed("D", 1, target))


def test_fast_clamp_holds_for_small_k_only():
    described = parts("f32_simt")
    s8, s32 = cutlass.int8, cutlass.int32
    instruction = pycutlass.MathInstruction(
        [16, 8, 32], s8, s8, s32, cutlass.OpClass.TensorOp, pycutlass.MathOperation.multiply_add_saturate
    )
    described["tile_description"] = pycutlass.TileDescription([128, 128, 64], 3, [2, 2, 1], instruction)
    A, B = TensorDescription(s8, ROW, 16), TensorDescription(s8, COLUMN, 16)
    described |= {"A": A, "B": B, "C": TensorDescription(s8, ROW, 16)}
    described["epilogue_functor"] = pycutlass.FastLinearCombinationClamp(s8, 16)
    operation = GemmOperationGrouped(**described)
    sizes, random = [(16, 16, 256), (16, 32, 272)], np.random.default_rng()
    A = [random.integers(-100, 100, (m, k)).astype(np.int8) for m, n, k in sizes]
    B = [random.integers(-100, 100, (n, k)).astype(np.int8).T for m, n, k in sizes]
    D = [np.zeros((m, n), np.int8) for m, n, _ in sizes]
    arguments = GemmGroupedArguments(operation, sizes, A, B, None, D, output_op=operation.epilogue_type(2**-8))
    operation.run(arguments)
    for a, b, d in zip(A, B, D, strict=True):
        exact = np.clip(np.rint((a.astype(int) @ b.astype(int)) / 2**8), -128, 127)
        np.testing.assert_array_equal(d, exact)
    A[1][0, 0], B[1][0, 0] = -128, -128
    for refused in (
        lambda: GemmGroupedArguments(operation, sizes, A, B, None, D),
        lambda: arguments.update(A=A, B=B),
        lambda: arguments.update(problem_sizes=sizes[1:] * 2, A=A[1:] * 2, B=B[1:] * 2, D=[D[1], D[1].copy()]),
    ):
        with pytest.raises(ArgumentError, match=r"K=272 with elements up to 128 in A\[[01]\] and 128 in B\[[01]\]"):
            refused()


def test_arguments_of_one_kind_do_not_run_an_operation_of_another():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3)])
    arguments = group.arguments()
    with pytest.raises(ArgumentError, match="were made for"):
        grouped(alignment=1, stages=2, mode=SchedulerMode.Host).run(arguments)
    with pytest.raises(ArgumentTypeError, match="must be a GemmOperationUniversal, got GemmOperationGrouped"):
        pycutlass.GemmArguments(group.operation, (4, 6, 3), group.A[0], group.B[0], None, group.D[0])


# Overlaps


def test_d_over_what_another_problem_reads_is_refused():
    both = half(2, 8, 8)
    sizes = [(8, 8, 8)] * 2
    group = Group(grouped(), sizes)
    for change, words in (
        ({"D": [both[0], both[1]], "A": [group.A[0], both[0]]}, r"D\[0\] overlaps A\[1\].*read"),
        ({"D": [both[0], both[1]], "B": [both[1].T, group.B[1]]}, r"D\[1\] overlaps B\[0\].*read"),
        ({"D": [both[0], both[0]]}, r"D\[[01]\] overlaps D\[[01]\].*two problems cannot write to one place"),
        ({"D": [both[0], both[1]], "C": [both[1], both[0]]}, r"D\[1\] overlaps C\[0\]"),
        ({"D": [both.reshape(-1)[:64], both.reshape(-1)[8:72]]}, r"overlaps D"),
    ):
        with pytest.raises(ArgumentError, match=words):
            group.arguments(1.0, 1.0, **change)
    group.arguments(1.0, 0.0, D=[both[0], both[1]], C=[both[1], both[0]])  # this C is not read


def test_columns_of_one_allocation_do_not_overlap():
    wide = half(16, 40)
    group = Group(grouped(), [(16, 8, 8)] * 3)
    group.A = [wide[:, 8 * i : 8 * i + 8] for i in range(2)] + [group.A[2]]
    group.D = [wide[:, 8 * i + 16 : 8 * i + 24] for i in range(3)]
    for target in group.A[:2]:
        target[...] = 1
    group.run()
    group.check()
