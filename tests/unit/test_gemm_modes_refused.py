"""Modes of a GEMM: what is refused before anything is launched."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from descriptions import LAYOUTS, ROW, ampere, hopper, parts
from numpy.typing import NDArray

from pycutlass import (
    FastLinearCombinationClamp,
    GemmArguments,
    GemmOperationUniversal,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    MathOperation,
    ReductionOperation,
    TensorDescription,
    cutlass,
    relu,
)
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError, DeviceError
from pycutlass.operation.gemm_support import check_slices

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
Array = NDArray[Any]
SIMT = {layouts: ampere("f32_simt", layouts) for layouts in LAYOUTS}


def test_counts_belong_to_their_modes():
    operation = SIMT[LAYOUTS[0]]

    def make(mode: Any, **options: Any) -> GemmArguments:
        one = np.ones((1, 1), np.float32)
        return GemmArguments(operation, (1, 1, 1), one, one, None, one.copy(), mode, **options)

    for mode in (Mode.Batched, Mode.Array):
        with pytest.raises(ArgumentError, match=r"split_k_slices belongs to Mode\.Gemm.*got 2"):
            make(mode, split_k_slices=2)
    for mode in (Mode.Gemm, Mode.GemmSplitKParallel):
        with pytest.raises(ArgumentError, match=r"batch belongs to Mode\.Batched and Mode\.Array, got 3"):
            make(mode, batch=3)
    for mode, name in itertools.product((Mode.Gemm, Mode.Batched), ("batch", "split_k_slices")):
        with pytest.raises(ArgumentError, match=f"{name} must be from 1 to 2,147,483,647, got -1"):
            make(mode, **{name: -1})
    for wrong in (Mode.Invalid, 0, "Batched", None):
        with pytest.raises(ArgumentError, match=r"gemm_mode must be one of .*Mode\.Array"):
            make(wrong)


STREAM_K = ampere("f16", swizzle=cutlass.ThreadblockSwizzleStreamK)


@pytest.mark.parametrize(
    ("operation", "said", "mode"),
    [
        (STREAM_K, "stream-K kernels run in Mode.Gemm and Mode.Batched", Mode.Array),
        (STREAM_K, "stream-K kernels run in Mode.Gemm and Mode.Batched", Mode.GemmSplitKParallel),
        (
            hopper(swizzle=cutlass.ThreadblockSwizzleStreamK),
            "stream-K kernels run in Mode.Gemm and Mode.Batched",
            Mode.GemmSplitKParallel,
        ),
    ],
)
def test_some_kernels_have_fewer_modes(operation, said, mode):
    with pytest.raises(ArgumentError, match=f"{said}, not in"):
        GemmArguments(operation, (64, 64, 64), None, None, None, None, mode)


def assert_refused(make: Callable[..., GemmArguments], change: dict[str, Any], words: list[str]) -> None:
    """Check that a change of valid arguments is refused, in these words."""
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        make(**change)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def batch_arguments(**changes: Any) -> GemmArguments:
    """Make arguments of a batch of 3, of which some are changed."""
    operation = SIMT[(ROW, ROW, ROW)]
    given_: dict[str, Any] = {
        "problem_size": (4, 5, 6),
        "A": np.ones((3, 4, 6), np.float32),
        "B": np.ones((3, 6, 5), np.float32),
        "C": np.ones((3, 4, 5), np.float32),
        "D": np.empty((3, 4, 5), np.float32),
        "gemm_mode": Mode.Batched,
        "batch": 3,
        "output_op": operation.epilogue_type(1.0, 1.0),
    }
    return GemmArguments(operation, **{**given_, **changes})


AROUND = np.zeros((8, 4, 12), np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"A": np.ones((2, 4, 6), np.float32)}, ["operand A", "(3, 4, 6)", "(2, 4, 6)"]),
        ({"B": np.ones((3, 5, 6), np.float32)}, ["operand B", "(3, 6, 5)", "(3, 5, 6)"]),
        ({"C": np.ones((4, 3, 4, 5), np.float32)}, ["operand C", "(3, 4, 5)", "(4, 3, 4, 5)"]),
        ({"A": np.ones(71, np.float32)}, ["flat operand A", "3 x 4 x 6 = 72", "71"]),
        ({"A": np.ones(144, np.float32)[::2]}, ["flat operand A", "contiguous", "2"]),
        ({"D": np.empty((4, 5), np.float32)}, ["overlap"]),
        ({"D": np.empty(20, np.float32)}, ["flat operand D", "3 x 4 x 5 = 60", "20"]),
        ({"A": np.ones((3, 4, 6), np.float32)[::-1]}, ["batch stride of operand A", "-24", "negative"]),
        (
            {"C": np.ones((3, 5), np.float32)[::-1]},
            ["batch stride of operand C", "-5", "Pass np.ascontiguousarray(C)"],
        ),
        ({"D": np.ones((3, 4, 5), np.float32)[::-1]}, ["batch stride of operand D", "np.empty((3, 4, 5), D.dtype)"]),
        ({"A": AROUND[:3, :, :6], "D": AROUND[:3, :, 5:10]}, ["D overlaps A"]),
        ({"C": AROUND[:3, :, :5], "D": AROUND[1:4, :, :5]}, ["D overlaps C"]),
        ({"A": [np.ones((4, 6), np.float32)] * 3}, ["operand A"]),
    ],
    ids=" ".join,
)
def test_batches_that_do_not_fit(change, words):
    assert_refused(batch_arguments, change, words)


def test_matrices_of_d_may_not_overlap_but_may_lie_side_by_side():
    base = np.zeros(200, np.float32)
    overlapping = np.lib.stride_tricks.as_strided(base, (3, 4, 5), (4 * 10, 4 * 5, 4))
    with pytest.raises(ArgumentError, match="matrices of operand D overlap each other: they are 10 elements apart"):
        batch_arguments(D=overlapping, C=None, output_op=None)
    side_by_side = np.lib.stride_tricks.as_strided(base, (3, 4, 5), (4 * 5, 4 * 15, 4))
    operation = SIMT[(ROW, ROW, ROW)]
    operation.run(batch_arguments(D=side_by_side, C=None, output_op=None))
    np.testing.assert_array_equal(base[:60], 6.0)
    np.testing.assert_array_equal(base[60:], 0.0)


def test_c_of_a_batch_may_be_d():
    operation = SIMT[(ROW, ROW, ROW)]
    D = np.ones((3, 4, 5), np.float32)
    arguments = batch_arguments(C=D, D=D)
    operation.run(arguments)
    operation.run(arguments)
    np.testing.assert_array_equal(D, 13.0)


def test_the_step_of_a_batch_is_aligned():
    operation = ampere("f16")
    base = np.zeros((3, 8 * 8 + 4), np.float16)
    A = np.lib.stride_tricks.as_strided(base, (3, 8, 8), (2 * 68, 16, 2))
    B, D = np.zeros((8, 8), np.float16), np.zeros((3, 8, 8), np.float16)
    with pytest.raises(
        AlignmentError, match=r"operand A .*batch stride must be a multiple of that, got 68.*alignment 4"
    ):
        GemmArguments(operation, (8, 8, 8), A, B.T, None, D, Mode.Batched, batch=3)


def array_arguments(**changes: Any) -> GemmArguments:
    """Make arguments of an array of 3 problems, of which some are changed."""
    operation = SIMT[(ROW, ROW, ROW)]
    given_: dict[str, Any] = {
        "problem_size": (4, 5, 6),
        "A": [np.ones((4, 6), np.float32) for _ in range(3)],
        "B": [np.ones((6, 5), np.float32) for _ in range(3)],
        "C": None,
        "D": [np.empty((4, 5), np.float32) for _ in range(3)],
        "gemm_mode": Mode.Array,
        "batch": 3,
    }
    return GemmArguments(operation, **{**given_, **changes})


def read_only() -> Array:
    array = np.empty((4, 5), np.float32)
    array.flags.writeable = False
    return array


SHARED_D = np.zeros((5, 5), np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"A": [np.ones((4, 6), np.float32)] * 2}, ["operand A has 2 tensors for batch=3"]),
        ({"B": []}, ["operand B has 0 tensors for batch=3"]),
        (
            {"A": [np.ones((4, 6), np.float32)] * 2 + [np.ones((4, 7), np.float32)]},
            ["operand A[2]", "(4, 6)", "(4, 7)"],
        ),
        ({"A": [np.ones((4, 6), np.float32)] * 2 + [np.ones((4, 6))]}, ["operand A[2]", "float32", "float64"]),
        (
            {"A": [np.ones((4, 6), np.float32)] * 2 + [np.ones((4, 9), np.float32)[:, :6]]},
            ["operand A", "one leading dimension", "'6', '9'", "grouped"],
        ),
        ({"A": np.ones((2, 4, 6), np.float32)}, ["operand A", "list of 3 tensors", "int64", "(2, 4, 6)"]),
        ({"A": np.ones(3 * 4 * 6 - 1, np.float32)}, ["operand A", "list of 3 tensors", "int64", "(71,)"]),
        ({"A": np.ones((3, 4, 6))}, ["operand A", "list of 3 tensors", "int64", "float64"]),
        ({"A": 0x7F0000000000}, ["operand A", "list of 3 tensors or addresses", "an address"]),
        ({"A": np.ones((4, 6), np.float32)}, ["operand A", "one tensor that holds 3 matrices", "(4, 6)"]),
        ({"A": np.ones(3, np.int64)}, ["operand A", "list of 3 tensors", "on the GPU", "numpy"]),
        ({"A": "abc"}, ["operand A"]),
        ({"A": None}, ["operand A is missing"]),
        ({"D": None}, ["operand D is missing"]),
        ({"D": [np.empty((4, 5), np.float32) for _ in range(2)] + [read_only()]}, ["operand D[2]", "read-only"]),
        ({"D": [SHARED_D[:4], SHARED_D[1:], np.empty((4, 5), np.float32)]}, ["D[1] overlaps D[0]", "one place"]),
        ({"D": [SHARED_D[:4]] * 3}, ["overlaps D[0]", "one place"]),
    ],
    ids=" ".join,
)
def test_arrays_that_do_not_fit(change, words):
    assert_refused(array_arguments, change, words)


@pytest.mark.parametrize(("name", "read", "written"), [*itertools.product("ABC", range(3), range(3))])
def test_no_problem_of_an_array_may_write_what_another_reads(name, read, written):
    """They run in any order. C alone may be written where it lies, by its own problem."""
    shapes = {"A": (4, 6), "B": (6, 5), "C": (4, 5)}
    tensors = {each: [np.ones(shape, np.float32) for _ in range(3)] for each, shape in shapes.items()}
    D = [np.empty((4, 5), np.float32) for _ in range(3)]
    D[written] = tensors[name][read].reshape(-1)[:20].reshape(4, 5)
    output_op = SIMT[(ROW, ROW, ROW)].epilogue_type(1.0, 1.0)
    if name == "C" and read == written:
        SIMT[(ROW, ROW, ROW)].run(array_arguments(**tensors, D=D, output_op=output_op))
        assert all(np.all(each == 7.0) for each in D)
        return
    with pytest.raises(ArgumentError, match=rf"D\[{written}\] overlaps {name}\[{read}\].*an array run in any order"):
        array_arguments(**tensors, D=D, output_op=output_op)


def test_an_array_may_write_columns_of_one_allocation():
    operation, base = SIMT[(ROW, ROW, ROW)], np.zeros((4, 16), np.float32)
    operation.run(array_arguments(D=[base[:, 5 * i : 5 * i + 5] for i in (2, 0, 1)]))
    np.testing.assert_array_equal(base[:, :15], 6.0)
    np.testing.assert_array_equal(base[:, 15], 0.0)


def test_pointers_need_a_gpu():
    with pytest.raises(DeviceError, match="operand A given as device memory, and there is no GPU"):
        array_arguments(A=[0x7F0000000000] * 3)


@pytest.mark.parametrize("make", [batch_arguments, array_arguments])
def test_updates_in_a_batch(make):
    operation, arguments = SIMT[(ROW, ROW, ROW)], make(C=None, output_op=None)
    shape = list if make is array_arguments else np.asarray
    A, D = np.full((3, 4, 6), 2, np.float32), np.empty((3, 4, 5), np.float32)
    arguments.update(A=shape(A), D=shape(D), output_op=operation.epilogue_type(0.5))
    operation.run(arguments)
    np.testing.assert_array_equal(D, 6.0)
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        arguments.update(A=shape(A[:2]))
    D.fill(0)
    operation.run(arguments)
    np.testing.assert_array_equal(D, 6.0)


@pytest.mark.parametrize("name", ["A", "B"])
def test_what_slices_multiply_is_needed(name):
    operation = SIMT[(ROW, ROW, ROW)]
    given_ = {"A": np.ones((4, 8), np.float32), "B": np.ones((8, 5), np.float32), name: None}
    with pytest.raises(ArgumentError, match=f"operand {name} is missing"):
        GemmArguments(operation, (4, 5, 8), **given_, gemm_mode=Mode.GemmSplitKParallel)


# int8


def int8(functor: Any, output: str = "s8", k: int = 64) -> GemmOperationUniversal:
    changed = parts("f16", types=("s8", "s32", output), instruction=(16, 8, 32), tile=(128, 128, k), math=SATURATE)
    changed["epilogue_functor"] = functor
    return GemmOperationUniversal(**changed)


SATURATE = MathOperation.multiply_add_saturate


@pytest.mark.parametrize("k", [16, 256, 272])
def test_the_fast_clamp_has_a_largest_k(k):
    fast = int8(FastLinearCombinationClamp(cutlass.int8, 16))
    plain = int8(LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32))
    rng = np.random.default_rng()
    A, B = rng.integers(-128, 128, (16, k)).astype(np.int8), rng.integers(-128, 128, (16, k)).astype(np.int8).T
    exact = np.clip(A.astype(int) @ B.astype(int), -128, 127)
    for operation in (fast, plain):
        D = np.zeros((16, 16), np.int8)
        if operation is fast and k > 256:
            with pytest.raises(ArgumentError, match=r"up to 4,194,304, got K=272 with .* use LinearCombinationClamp"):
                GemmArguments(operation, (16, 16, k), A, B, None, D)
            continue
        operation.run(GemmArguments(operation, (16, 16, k), A, B, None, D))
        np.testing.assert_array_equal(D, exact)


def test_int8_is_not_written_without_a_clamp():
    functor = LinearCombinationGeneric(relu, cutlass.int8, 16, cutlass.int32, cutlass.float32)
    with pytest.raises(DescriptionError, match="use LinearCombination or LinearCombinationClamp"):
        int8(functor)


def test_the_partial_kernel_writes_the_accumulator():
    operation = ampere("f16")
    assert operation.partial.C == TensorDescription(cutlass.float32, ROW, 4)
    assert operation.partial.epilogue_functor.output.short == "f32"
    reduction = ReductionOperation(cutlass.MatrixCoord(4, 256), operation.C, cutlass.float32, count=8)
    assert operation.parts([operation]) == [operation]
    assert operation.parts([operation, reduction]) == [operation, operation.partial]
    native, stream_k = hopper(), hopper(swizzle=cutlass.ThreadblockSwizzleStreamK)
    assert native.parts([native, reduction]) == [native, native.partial]
    assert stream_k.parts([stream_k, reduction]) == [stream_k]


# Counts and places that kernels cannot take


def test_a_flat_operand_that_a_batch_shares_is_contiguous():
    wide = np.zeros(2 * 4 * 6, np.float32)
    for step in (wide[::2], np.zeros(4 * 6, np.float32)[::-1]):
        with pytest.raises(ArgumentError, match=r"flat operand A must be contiguous, got a step of"):
            batch_arguments(A=step)


@pytest.mark.parametrize("bias", ["no", 1, np.ones(5, np.float32)], ids=str)
def test_bias_is_a_flag(bias):
    with pytest.raises(ArgumentTypeError, match=r"True, False or None.*Pass the bias itself as C"):
        batch_arguments(bias=bias)


def test_a_column_as_long_as_a_bias_is_no_bias():
    operation, A, D = SIMT[(ROW, ROW, ROW)], np.ones((4, 4), np.float32), np.empty((4, 4), np.float32)
    column, output_op = np.arange(4, dtype=np.float32)[:, None], operation.epilogue_type(1.0, 1.0)
    with pytest.raises(ArgumentError, match=r"bias C of RowMajor is a row of 4.*\(4, 1\), a column.*C.reshape\(-1\)"):
        GemmArguments(operation, (4, 4, 4), A, A, column, D, output_op=output_op)
    operation.run(GemmArguments(operation, (4, 4, 4), A, A, column.reshape(-1), D, output_op=output_op))
    np.testing.assert_array_equal(D, 4 + np.arange(4, dtype=np.float32) + np.zeros((4, 1), np.float32))


def test_a_vector_of_another_length_is_told_of_both_forms():
    operation, A, D = SIMT[(ROW, ROW, ROW)], np.ones((4, 6), np.float32), np.empty((4, 5), np.float32)
    with pytest.raises(
        ArgumentError,
        match=r"exactly 4 x 5 = 20 .*or 5 elements as a bias, one for each column, as C is row-major; got 3",
    ):
        GemmArguments(
            operation,
            (4, 5, 6),
            A,
            np.ones((6, 5), np.float32),
            np.ones(3, np.float32),
            D,
            output_op=operation.epilogue_type(1.0, 1.0),
        )


def test_whole_tiles_fit_into_32_bits():
    operation = SIMT[(ROW, ROW, ROW)]
    assert operation.tile_description.threadblock_shape == (128, 128, 8)
    for size in ((1, 1, 2**31 - 7), (2**31 - 127, 1, 1), (1, 2**31 - 1, 1)):
        letter, extent = next((letter, extent) for letter, extent in zip("MNK", size, strict=True) if extent > 1)
        with pytest.raises(
            ArgumentError, match=rf"{letter}={extent:,}.*at most {2**31 - (8 if letter == 'K' else 128):,}"
        ):
            GemmArguments(operation, size, None, None, None, None)


def interleaved() -> GemmOperationUniversal:
    columns, rows = cutlass.ColumnMajorInterleaved32, cutlass.RowMajorInterleaved32
    changed = parts("f16", types=("s8", "s32", "s8"), instruction=(16, 8, 32), tile=(64, 64, 64), math=SATURATE)
    changed |= {"A": TensorDescription(cutlass.int8, columns, 16), "B": TensorDescription(cutlass.int8, rows, 16)}
    changed |= {"C": TensorDescription(cutlass.int8, columns, 8)}
    return GemmOperationUniversal(**changed | {"epilogue_functor": FastLinearCombinationClamp(cutlass.int8, 8)})


PLAIN8 = int8(LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32))
INTERLEAVED8 = interleaved()


def test_serial_slices_do_not_clamp_one_by_one():
    with pytest.raises(ArgumentError, match=r"sum of the slices so far in D.*clamped after each of 2.*Parallel"):
        GemmArguments(PLAIN8, (64, 64, 128), None, None, None, None, split_k_slices=2)


@pytest.mark.parametrize("mode", [Mode.Gemm, Mode.GemmSplitKParallel])
def test_interleaved_kernels_do_not_split_k(mode):
    """Neither mode could: int8 would be clamped slice by slice, and nothing writes or adds up interleaved s32."""
    check_slices(INTERLEAVED8, 192, 1)
    with pytest.raises(ArgumentError, match=r"write cutlass.int8 alone.*split_k_slices=3: leave out split_k_slices"):
        GemmArguments(INTERLEAVED8, (64, 64, 192), None, None, None, None, gemm_mode=mode, split_k_slices=3)
