"""What an operation means: against NumPy in f64, with the tolerance that the reference itself derives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from descriptions import (
    BY_SHORT_NAME,
    COLUMN,
    KINDS,
    ROW,
    ampere,
    as_multiplied,
    expected,
    hopper,
    parts,
    random_matrix,
)
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import GemmArguments, MathOperation, TensorDescription, cutlass, reference

pytestmark = pytest.mark.usefixtures("without_gpu")

FAST = [MathOperation.multiply_add_fast_f16, MathOperation.multiply_add_fast_bf16, MathOperation.multiply_add_fast_f32]
OPERATIONS = {
    **{kind: ampere(kind) for kind in KINDS},
    **{f"f32_{math.name}": ampere("f32", math=math) for math in FAST},
    "hopper_f16": hopper(),
    "hopper_bf16_out32": hopper(operand="bf16", output="f32"),
}
SCALARS = [(1.0, 0.0), (0.0, 1.0), (-1.25, 1.0), (1.0, -1.25), (0.3, 0.7)]

named = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def inputs(operation: Any, m: int, n: int, k: int, seed: Any = None) -> list[Any]:
    seeds = np.random.default_rng(seed).integers(2**32, size=3)
    shapes = ((operation.A, m, k), (operation.B, k, n), (operation.C, m, n))
    return [random_matrix(*shape, each) for shape, each in zip(shapes, seeds, strict=True)]


@named
@pytest.mark.parametrize(("m", "n", "k"), [(64, 48, 32), (1, 1, 1), (7, 5, 1000), (33, 1, 129)])
def test_against_f64(operation, m, n, k):
    for alpha, beta in SCALARS:
        A, B, C = inputs(operation, m, n, k)
        D = reference.gemm(operation, A, B, C, alpha, beta)
        assert D.dtype == operation.C.type.dtype
        exact = expected(operation, A, B, C, alpha, beta)
        relative, absolute = reference.tolerance(operation, k, abs(alpha))
        np.testing.assert_allclose(D.astype(np.float64), exact, rtol=relative, atol=absolute)


@named
def test_exact_is_f64_all_the_way(operation):
    A, B, C = inputs(operation, 17, 9, 64)
    D = reference.gemm(operation, A, B, C, 0.1, 0.3, exact=True)
    assert D.dtype == np.float64
    np.testing.assert_allclose(D, expected(operation, A, B, C, 0.1, 0.3), rtol=1e-12, atol=1e-12)


@named
def test_the_tolerance_refuses_what_is_wrong(operation):
    # A kernel that leaves out one product, or one step along K, must not pass.
    k = 64
    A, B, _ = inputs(operation, 64, 48, k)
    exact = expected(operation, A, B, None)
    relative, absolute = reference.tolerance(operation, k)
    short = expected(operation, A[:, :-1], B[:-1], None)
    wrong = np.abs(short - exact) > relative * np.abs(exact) + absolute
    assert wrong.mean() > 0.5


@pytest.mark.parametrize("output", ["f16", "bf16"])
@pytest.mark.parametrize("k", [16, 256, 2048])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-1.25, 1.0), (0.3, 0.7)])
def test_the_tolerance_refuses_an_output_that_is_cut_off(output, k, alpha, beta):
    operation = ampere("f16", types=("f16", "f32", output))
    A, B, C = inputs(operation, 64, 48, k)
    exact = reference.gemm(operation, A, B, C, alpha, beta, exact=True)
    computed = exact.astype(np.float32)  # as the epilogue does
    dropped = np.uint32(2 ** (23 - BY_SHORT_NAME[output].mantissa) - 1)
    cut_off = (computed.view(np.uint32) & ~dropped).view(np.float32)
    rounded = BY_SHORT_NAME[output].round(computed)
    relative, absolute = reference.tolerance(operation, k, abs(alpha))

    def wrong(D: Any) -> float:
        """Return the share of elements that the tolerance refuses."""
        return float((np.abs(D.astype(np.float64) - exact) > relative * np.abs(exact) + absolute).mean())

    assert wrong(rounded) == 0
    assert wrong(cut_off) > 0.1


@named
def test_the_tolerance_is_that_of_the_types(operation):
    relative, absolute = reference.tolerance(operation, 64)
    output, math = operation.C.type, operation.tile_description.math_instruction
    compute = operation.epilogue_functor.compute
    own = relative - 4 * compute.epsilon  # half of it for the one rounding of D, or one and the reference's in f64
    assert output.epsilon / 2 <= own <= (1 if output.short == "f64" else 0.51) * output.epsilon
    lost = 2.0**-20 if math.math_operation is MathOperation.multiply_add_fast_f32 else math.accumulator.epsilon
    assert lost <= absolute <= 300 * lost  # of a sum of 64 products, whose size is about 8
    assert reference.tolerance(operation, 256)[1] > absolute
    assert 5 * absolute < reference.tolerance(operation, 64, 10.0)[1] <= 10 * absolute


@pytest.mark.parametrize("fast", [False, True])
def test_the_tolerance_of_8_bit_floats_is_what_tensor_cores_keep(fast):
    """The largest errors and the slopes are those of 2 million elements of e4m3 on an H100, written in float32."""
    measured = {
        False: {64: (0.01543, 3.2e-5), 128: (0.02743, 3.9e-5), 1024: (0.03492, 3.9e-5), 65536: (0.1747, 3.9e-5)},
        True: {128: (0.02743, 3.9e-5), 1024: (0.2494, 8.6e-5), 4096: (1.221, 1.9e-4), 65536: (26.81, 1.5e-3)},
    }
    f8, f32 = cutlass.float_e4m3, cutlass.float32
    math = MathOperation.multiply_add_fast_accum if fast else MathOperation.multiply_add
    tile = pycutlass.TileDescription(
        [64, 128, 128],
        None,
        None,
        pycutlass.MathInstruction(None, f8, f8, f32, cutlass.OpClass.TensorOp, math),
        [1, 1, 1],
        pycutlass.KernelSchedule.Pingpong,
    )
    rows, columns = TensorDescription(f8, cutlass.RowMajor, 16), TensorDescription(f8, cutlass.ColumnMajor, 16)
    written = TensorDescription(f32, cutlass.RowMajor, 4)
    functor = pycutlass.LinearCombination(f32, 4, f32, f32)
    operation = pycutlass.GemmOperationUniversal(90, tile, rows, columns, written, functor)
    for k, (largest, slope) in measured[fast].items():
        relative, absolute = reference.tolerance(operation, k)
        assert 1.2 * largest < absolute < 4.5 * largest
        assert slope < relative < 6 * slope


@named
@pytest.mark.parametrize("C", [None, "poison"])
def test_c_is_not_read_where_beta_is_zero(operation, C):
    A, B, poison = inputs(operation, 8, 8, 8)
    poison[...] = np.nan
    for exact in (False, True):
        D = reference.gemm(operation, A, B, None if C is None else poison, 1.0, 0.0, exact=exact)
        assert np.isfinite(D.astype(np.float64)).all()


@named
def test_the_operands_are_left_alone(operation):
    operands = inputs(operation, 8, 8, 8)
    before = [operand.copy() for operand in operands]
    reference.gemm(operation, *operands, 2.0, 3.0)
    assert all(np.array_equal(left, right) for left, right in zip(operands, before, strict=True))


@named
def test_nan_and_infinity_arrive(operation):
    A, B, C = (np.ones((2, 2), operand.type.dtype) for operand in (operation.A, operation.B, operation.C))
    A[0, 0], C[1, 1] = np.nan, np.inf
    D = reference.gemm(operation, A, B, C, 1.0, 1.0).astype(np.float64)
    assert np.isnan(D[0]).all()
    assert D[1, 0] == 3
    assert D[1, 1] == np.inf


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f32_simt"])
def test_results_beyond_the_output_type_are_infinite_without_a_warning(kind):
    operation = ampere(kind)
    most = float(np.finfo(np.float16).max) if kind == "f16" else 2.0**100
    A = np.full((2, 2), most).astype(operation.A.type.dtype)
    assert np.isposinf(reference.gemm(operation, A, A, None).astype(np.float64)).all()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32))
def test_an_f64_gemm_is_numpys(m, n, k, seed):
    operation = OPERATIONS["f64"]
    A, B, C = inputs(operation, m, n, k, seed)
    np.testing.assert_allclose(
        reference.gemm(operation, A, B, C, 0.1, -0.2), 0.1 * (A @ B) - 0.2 * C, rtol=1e-12, atol=1e-12
    )


# What the multipliers see


@named
@given(st.lists(st.floats(-1e4, 1e4, width=16), min_size=1, max_size=20))
def test_operands_are_rounded_as_the_instruction_does(operation, values):
    operand = np.array([values]).astype(operation.A.type.dtype)
    seen = reference.multiplied(operand, operation.tile_description.math_instruction)
    assert np.array_equal(seen.astype(np.float64), as_multiplied(operation, operand))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].A.type.bits == 32])
@given(st.lists(st.floats(-(2.0**15), 2.0**15, width=32, allow_subnormal=False), min_size=1, max_size=30))
def test_f32_operands_of_tensor_cores(name, values):
    operation = OPERATIONS[name]
    operand = np.array([values], np.float32)
    if name.endswith("fast_f16"):  # whose smallest normal number is 2**-14
        operand = operand[:, (np.abs(operand[0]) >= 2.0**-14) | (operand[0] == 0)]
    seen = reference.multiplied(operand, operation.tile_description.math_instruction)
    assert np.array_equal(seen.astype(np.float64), as_multiplied(operation, operand))


def test_one_number_in_every_way():
    # 1 + 2**-8 + 2**-11 + 2**-12 + 2**-23 has bits beyond bf16, f16 and tf32.
    value = np.array([[1 + 2**-8 + 2**-11 + 2**-12 + 2**-23]], np.float32)

    def seen(name: str) -> float:
        return float(reference.multiplied(value, OPERATIONS[name].tile_description.math_instruction)[0, 0])

    assert seen("tf32") == 1 + 2**-8  # cut off by the hardware
    assert seen("f32") == 1 + 2**-8 + 2**-10  # rounded by CUTLASS
    assert seen("f32_multiply_add_fast_f16") == 1 + 2**-8 + 2**-10
    assert seen("f32_multiply_add_fast_bf16") == 1 + 2**-7
    assert seen("f32_multiply_add_fast_f32") == seen("f32_simt") == float(value[0, 0])


def test_an_f16_accumulator_is_rounded_after_every_instruction():
    operation = OPERATIONS["f16_acc16"]
    k = operation.tile_description.math_instruction.instruction_shape[2]
    A, B = np.ones((1, 4096 + 64 * k), np.float16), np.ones((4096 + 64 * k, 1), np.float16)
    B[4096:] = 1 / k  # each instruction adds 1 to 4096, whose neighbour is 4100
    assert reference.gemm(operation, A, B, None)[0, 0] == 4096
    assert reference.gemm(OPERATIONS["f16_out32"], A, B, None)[0, 0] == 4096 + 64


@pytest.mark.parametrize("output", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("small", [2.0**-8, 2.0**-9, 2.0**-11, 3 * 2.0**-12])
def test_the_output_is_rounded_once(output, small):
    operation = ampere("f16", types=("f16", "f32", output))
    A, B = np.array([[1.0, small]], np.float16), np.array([[1.0], [1.0]], np.float16)
    rounded = BY_SHORT_NAME[output].round(np.array([[1 + small]]))
    assert np.array_equal(reference.gemm(operation, A, B, None), rounded)


# Slices that take turns


@pytest.mark.parametrize(
    ("k", "count", "layouts", "lengths"),
    [
        (24, 3, (ROW, COLUMN, ROW), [8, 8, 8]),
        (25, 3, (ROW, COLUMN, ROW), [16, 9]),
        (128, 4, (ROW, COLUMN, ROW), [64, 64]),  # whole cache lines
        (128, 4, (ROW, ROW, ROW), [64, 64]),
        (128, 4, (COLUMN, COLUMN, COLUMN), [64, 64]),
        (128, 4, (COLUMN, ROW, ROW), [32, 32, 32, 32]),
        (128, 1, (ROW, COLUMN, ROW), []),
    ],
)
def test_slices_are_those_of_cutlass(k, count, layouts, lengths):
    found = reference.serial_slices(ampere("f16", layouts), k, count)
    assert [len(range(k)[part]) for part in found] == lengths
    assert [number for part in found for number in range(k)[part]] == (list(range(k)) if lengths else [])


def test_stream_k_has_no_slices_in_the_output_type():
    operation = ampere("f16", swizzle=cutlass.ThreadblockSwizzleStreamK)
    assert reference.serial_slices(operation, 512, 4) == []


def test_slices_round_to_the_output_type_in_turn():
    operation = ampere("f16", alignment=1, stages=2)
    A, B, D = np.ones((1, 24), np.float16), np.zeros((24, 1), np.float16), np.empty((1, 1), np.float16)
    B[:8], B[8], B[16] = 256, 1, 1  # 2048 + 1 + 1, and 2049 is no f16
    for slices, expected_, with_source in ((1, 2050, 2052), (3, 2048, 2048)):
        operation.run(GemmArguments(operation, (1, 1, 24), A, B, None, D, split_k_slices=slices))
        assert D[0, 0] == expected_
        operation.run(  # C is scaled by the first slice alone
            GemmArguments(
                *(operation, (1, 1, 24), A, B, np.full_like(D, 2), D),
                split_k_slices=slices,
                output_op=operation.epilogue_type(1.0, 0.5),
            )
        )
        assert D[0, 0] == with_source  # 2051, which is a tie; and three ties one after the other


def test_only_the_last_slice_activates():
    described = parts("f32_simt")
    described["epilogue_functor"] = pycutlass.LinearCombinationGeneric(pycutlass.relu(), cutlass.float32, 1)
    operation = pycutlass.GemmOperationUniversal(**described)
    A, B = np.ones((1, 8), np.float32), np.array([[-1.0] * 4 + [2.0] * 4], np.float32).T
    D = np.empty((1, 1), np.float32)
    operation.run(GemmArguments(operation, (1, 1, 8), A, B, None, D, split_k_slices=2))
    assert D[0, 0] == 4


# Integers that int32 lacks


def int8(kind: str, **options: Any) -> Any:
    s8, s32 = cutlass.int8, cutlass.int32
    described = parts(kind, types=("s8", "s32", "s32"), **options)
    described |= {name: TensorDescription(s8, described[name].layout, 4) for name in "AB"}
    described["epilogue_functor"] = pycutlass.LinearCombination(s32, described["C"].alignment, s32, s32)
    return pycutlass.GemmOperationUniversal(**described)


@pytest.mark.parametrize("k", [131_072, 135_200])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_beyond_int32(k, sign):
    """Tensor cores saturate, instruction by instruction; CUDA cores leave out the bits that int32 lacks."""
    saturating = int8("f16", instruction=(16, 8, 32), tile=(64, 64, 64), math=MathOperation.multiply_add_saturate)
    wrapping = int8("f32_simt", instruction=(1, 1, 4), tile=(64, 64, 32), warps=(2, 2, 1), stages=2)
    A, B = np.full((1, k), -128, np.int8), np.full((k, 2), -128 * sign if sign == 1 else 127, np.int8)
    B[-64:, 1] = 0
    B[-32:, 1] = 127 if sign == 1 else -128  # turns round at the end
    last = -128 * B[-32:].astype(np.int64).sum(axis=0)
    whole = -128 * B.astype(np.int64).sum(axis=0)
    least, most = -(2**31), 2**31 - 1
    expected_ = np.clip(np.clip(whole - last, least, most) + last, least, most)
    assert reference.gemm(saturating, A, B, None).tolist() == [expected_.tolist()]
    assert reference.gemm(wrapping, A, B, None).tolist() == [whole.astype(np.int32).tolist()]
    if k > 131_072:
        assert abs(whole).min() > 2**31
