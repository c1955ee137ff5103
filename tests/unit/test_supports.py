"""What `supports` says of a problem, and what it is asked."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import conv, fprop
from descriptions import ampere, hopper, parts

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmProblemSize,
    ReductionProblemSize,
    TensorSpec,
    cutlass,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.operation import GemmOperationGrouped, Support
from pycutlass.operation.problems import gemm_size, reduction_size
from pycutlass.spec import view_of

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
GEMM, GROUP = ampere("f16"), GemmOperationGrouped(**parts("f16"))


@pytest.mark.parametrize(
    ("operation", "size", "words"),
    [
        (ampere("f16"), GemmProblemSize(64, 128 * 65535, 8), []),
        (ampere("f16"), GemmProblemSize(64, 128 * 65535 + 8, 8), ["N=8388488", "65536", "65535", "wider swizzle"]),
        (ampere("f16"), GemmProblemSize(128 * 65536, 64, 8), []),
        (ampere("f16", swizzle=cutlass.IdentitySwizzle8), GemmProblemSize(64, 128 * 65536, 8), []),
        (ampere("f16", swizzle=cutlass.HorizontalSwizzle), GemmProblemSize(128 * 65536, 64, 8), ["65536"]),
        (ampere("f16", swizzle=cutlass.HorizontalSwizzle), GemmProblemSize(64, 128 * 65536, 8), []),
        (ampere("f16"), GemmProblemSize(8, 8, 8, Mode.Batched, batch=65536), ["65536", "BatchedIdentitySwizzle"]),
        (ampere("f16", swizzle=cutlass.BatchedIdentitySwizzle), GemmProblemSize(8, 8, 8, Mode.Batched, 65536), []),
        (
            ampere("f16", swizzle=cutlass.ThreadblockSwizzleStreamK),
            GemmProblemSize(8, 8, 8, Mode.Batched, batch=65536),
            ["more batches", "65535"],
        ),
        (hopper(), GemmProblemSize(64, 128 * 65536, 8), []),
        (hopper(), GemmProblemSize(8, 8, 8, Mode.Batched, batch=2**30 - 1), []),
        (hopper(), GemmProblemSize(8, 8, 8, Mode.Batched, batch=2**30), ["2,147,483,648 tiles", "cluster_shape"]),
        (
            ampere("f16", (cutlass.RowMajor, cutlass.ColumnMajor, cutlass.ColumnMajor)),
            GemmProblemSize(128 * 65535 + 8, 64, 8),
            ["M=8388488", "65536"],
        ),
    ],
    ids=str,
)
def test_grids_that_cuda_lacks(operation, size, words):
    found = operation.supports(size)
    assert bool(found) == (not words), found
    assert all(word in found.reason for word in words), found


def test_a_reduction_has_a_grid_too():
    C = pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    reduction = pycutlass.ReductionOperation(cutlass.MatrixCoord(4, 256), C, cutlass.float32, count=8)
    assert reduction.supports((8, 256 * 65535))
    found = reduction.supports(ReductionProblemSize(8, 256 * 65535 + 8))
    assert not found and "more columns" in found.reason


def test_a_group_of_too_many_tiles():
    found = GROUP.supports([(2**30, 8, 8)] * 300)
    assert not found and "output tiles" in found.reason
    assert GROUP.supports([(2**30, 8, 8)] * 200)


def test_sums_that_an_epilogue_does_not_hold_for():
    s8 = cutlass.int8
    math = pycutlass.MathInstruction([16, 8, 32], s8, s8, cutlass.int32, cutlass.OpClass.TensorOp)
    row, column = (pycutlass.TensorDescription(s8, layout, 16) for layout in (cutlass.RowMajor, cutlass.ColumnMajor))
    tile = pycutlass.TileDescription([128, 128, 64], 3, [2, 2, 1], math)
    functor = pycutlass.FastLinearCombinationClamp(s8, 16)
    operation = pycutlass.GemmOperationUniversal(80, tile, row, column, row, functor)
    assert operation.supports((64, 64, 256))
    found = operation.supports((64, 64, 272))
    assert not found and "K=272" in found.reason and "LinearCombinationClamp" in found.reason


@pytest.mark.parametrize(
    ("size", "words"),
    [((-1, 8, 8), ["from 0"]), ((8, 8, 2**31), ["2,147,483,647"]), ((8, 8, 7), ["alignment 8", "got 7"])],
)
def test_a_reason_and_no_exception(size, words):
    found = GEMM.supports(size)
    assert not found and all(word in found.reason for word in words)
    assert str(found) == f"no: {found.reason}" and str(GEMM.supports((8, 8, 8))) == "yes"
    assert isinstance(found, Support)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([], ["problem_sizes is empty"]),
        ([(8, 8, 8), (8, -8, 8)], ["problem_sizes[1]"]),
        ([(8, 8, 8), (16, 8, 8), (16, 8, 4), (8, 8, 3)], ["operand A[2] ", "got 4"]),
        ([(8, 8, 8), (8, 8, 8), (8, 12, 8)], ["operand C[2] ", "got 12"]),
    ],
)
def test_the_reason_of_a_group_names_the_problem(sizes, words):
    found = GROUP.supports(sizes)
    assert not found and all(word in found.reason for word in words), found


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: GEMM.supports("M"), ["problem_size must be"]),
        (lambda: GEMM.supports((8, 8)), ["problem_size must be"]),
        (lambda: GEMM.supports((8, 8, 8), [1]), ["operands must be a dict"]),
        (lambda: GEMM.supports((8, 8, 8), {"E": 1}), ["A, B, C, D", "'E'"]),
        (lambda: GROUP.supports(3), ["problem_sizes must be a list"]),
        (lambda: GROUP.supports([(8, 8)]), ["problem_sizes[0]"]),
        (lambda: GROUP.supports((8, 8, 8)), ["got one size", "[(8, 8, 8)]"]),
        (lambda: conv(fprop, "optimized").supports((1, 2, 3)), ["Conv2dProblemSize"]),
        (lambda: TensorSpec(3, np.float16), ["shape must be a sequence"]),
        (lambda: TensorSpec((3, "x"), np.float16), ["shape must be a sequence"]),
        (lambda: GemmProblemSize(1, 2, "k"), ["three integers"]),
        (lambda: GemmProblemSize(1, 2, 3, batch=1.5), ["batch must be an integer"]),
        (lambda: ReductionProblemSize(1, None), ["two integers"]),
    ],
)
def test_what_is_no_question(ask, words):
    with pytest.raises(ArgumentTypeError) as caught:
        ask()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: TensorSpec((3, -1), np.float16), ["at least 0"]),
        (lambda: TensorSpec((3, 4), np.float16, (1,)), ["as many strides"]),
        (lambda: GemmProblemSize(8, 8, 8, Mode.Batched, split_k_slices=2), ["split_k_slices belongs"]),
        (lambda: GemmProblemSize(8, 8, 8, batch=2), ["batch belongs"]),
        (lambda: GemmProblemSize(8, 8, 8, "Gemm"), ["gemm_mode must be one of"]),
        (
            lambda: GEMM.problem_of(TensorSpec((8, 8, 8, 8), np.float16), TensorSpec((8, 8), np.float16)),
            ["two dim"],
        ),
        (lambda: GEMM.problem_of(TensorSpec((8, 4), np.float16), TensorSpec((8, 8), np.float16)), ["one K"]),
    ],
)
def test_problems_that_prove_themselves(ask, words):
    with pytest.raises(ArgumentError) as caught:
        ask()
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_problem_says_all_that_the_keywords_would():
    operation = GEMM
    A, B, D = np.zeros((3, 8, 8), np.float16), np.zeros((3, 8, 8), np.float16), np.zeros((3, 8, 8), np.float16)
    B = np.swapaxes(B, 1, 2)
    size = GemmProblemSize(8, 8, 8, Mode.Batched, batch=3)
    arguments = GemmArguments(operation, size, A, B, None, D)
    assert (arguments.gemm_mode, arguments.batch_count, arguments.problem_size.m()) == (Mode.Batched, 3, 8)
    GemmArguments(operation, size, A, B, None, D, Mode.Batched, batch=3)
    with pytest.raises(ArgumentError, match="problem_size says batch=3, and batch=2 is given besides"):
        GemmArguments(operation, size, A, B, None, D, batch=2)
    with pytest.raises(ArgumentError, match="gemm_mode"):
        GemmArguments(operation, size, A, B, None, D, Mode.Array)


class Sullen:
    """Whatever it is asked, it raises."""

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __bool__(self):
        raise RuntimeError("no truth")

    __hash__ = None


@pytest.mark.parametrize("value", [True, 1.0, "1", None, np.ones(2), Sullen()])
def test_what_is_given_beside_a_problem_is_read_as_it_is_without_one(value):
    size = GemmProblemSize(8, 8, 8)
    for name in ("gemm_mode", "batch", "split_k_slices"):
        with pytest.raises(ArgumentError, match=f"problem_size says {name}=.* is given besides"):
            gemm_size(size, **{name: value})
    with pytest.raises(ArgumentError, match="problem_size says partitions=1, and partitions="):
        reduction_size(ReductionProblemSize(8, 8), value)
    assert gemm_size(size, batch=np.int64(1)) is size


def test_tensors_without_memory():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    operation = GEMM
    with FakeTensorMode():
        A, B = torch.empty(16, 8, dtype=torch.float16), torch.empty(24, 8, dtype=torch.float16).T
    D = torch.empty(16, 24, dtype=torch.float16, device="meta")
    size = operation.problem_of(A, B)
    assert size == GemmProblemSize(16, 24, 8)
    assert operation.supports(size, {"A": A, "B": B, "D": D, "C": None})
    assert not operation.supports(size, {"A": A, "B": B, "D": D.T})
    made = operation.output(size)
    assert (made.shape, made.dtype, made.strides) == ((16, 24), "float16", (24, 1))
    batched = operation.problem_of(TensorSpec((5, 16, 8), "float16"), B)
    assert batched == GemmProblemSize(16, 24, 8, Mode.Batched, batch=5)
    assert operation.output(batched).shape == (5, 16, 24)
    assert view_of("A", A).pointer == 0
    with pytest.raises(ArgumentTypeError, match="has no memory"):
        GemmArguments(operation, size, A, B, None, D)
    with pytest.raises(ArgumentTypeError, match="must be a tensor"):
        GemmArguments(operation, size, TensorSpec((16, 8), "float16"), B, None, D)
    sparse = operation.supports(size, {"A": torch.zeros(16, 8, dtype=torch.float16).to_sparse()})
    assert not sparse and "must be a dense tensor" in sparse.reason
