"""What the original's scripts describe in other words: taken as what it means, said once, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from descriptions import COLUMN, ROW, TAG, ampere, parts

import pycutlass
from pycutlass import (
    Conv2dArguments,
    Conv2dOperation,
    FastLinearCombinationClamp,
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    LinearCombination,
    LinearCombinationClamp,
    MathInstruction,
    MathOperation,
    StrideSupport,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import ArgumentError, DescriptionError

pytestmark = pytest.mark.usefixtures("without_gpu")

TENSOR_OP = cutlass.OpClass.TensorOp
NHWC = cutlass.TensorNHWC
Operator, Algorithm, Size = cutlass.conv.Operator, cutlass.conv.IteratorAlgorithm, cutlass.conv.Conv2dProblemSize
f32 = cutlass.float32


def instruction(kind, operation):
    return MathInstruction([16, 8, 8], kind, kind, f32, TENSOR_OP, operation)


def over_f32(kind, operation, **changes):
    """Return an operation on f32 whose instruction names another type."""
    tile = TileDescription([128, 128, 16], 3, [2, 2, 1], instruction(kind, operation))
    operand = TensorDescription(f32, ROW, 4)
    fields = {"A": operand, "B": operand, "C": operand, "epilogue_functor": LinearCombination(f32, 4), **changes}
    return GemmOperationUniversal(80, tile, **fields)


# Instructions


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        (cutlass.tfloat32, MathOperation.multiply_add),
        (cutlass.float16, MathOperation.multiply_add_fast_f16),
        (cutlass.bfloat16, MathOperation.multiply_add_fast_bf16),
    ],
    ids=str,
)
def test_an_instruction_may_name_the_type_that_f32_is_rounded_to(kind, operation):
    assert over_f32(kind, operation) == over_f32(f32, operation)
    tile = TileDescription([128, 128, 16], 3, [2, 2, 1], instruction(kind, operation))
    nhwc = TensorDescription(f32, NHWC, 4)
    conv = Conv2dOperation(
        Operator.fprop, Algorithm.optimized, 80, tile, nhwc, nhwc, nhwc, epilogue_functor=LinearCombination(f32, 4)
    )
    assert conv.tile_description.math_instruction == instruction(f32, operation)
    operand = TensorDescription(f32, ROW, 4)
    grouped = GemmOperationGrouped(80, tile, operand, operand, operand, LinearCombination(f32, 4))
    assert grouped.tile_description.math_instruction == instruction(f32, operation)


def test_but_not_one_that_would_multiply_in_another():
    """In the original, f16 multiply_add over f32 multiplied in tf32."""
    with pytest.raises(DescriptionError, match=r"operand B is cutlass\.float32, the math instruction multiplies"):
        over_f32(cutlass.float16, MathOperation.multiply_add)
    half = TensorDescription(cutlass.float16, ROW, 8)
    with pytest.raises(DescriptionError, match=r"rounds operands of cutlass\.float32, got cutlass\.float16"):
        over_f32(cutlass.float16, MathOperation.multiply_add_fast_f16, A=half, B=half)
    mixed = {"A": TensorDescription(f32, ROW, 4), "B": TensorDescription(cutlass.tfloat32, ROW, 4)}
    with pytest.raises(DescriptionError, match="operand A is"):
        over_f32(cutlass.tfloat32, MathOperation.multiply_add, **mixed)


def test_int8_is_multiplied_in_one_way_under_both_names():
    names = (MathOperation.multiply_add, MathOperation.multiply_add_saturate)
    s8, s32 = cutlass.int8, cutlass.int32
    first, second = (MathInstruction([16, 8, 32], s8, s8, s32, TENSOR_OP, name) for name in names)
    assert first == second
    assert first.operator_cpp == "cutlass::arch::OpMultiplyAddSaturate"
    with pytest.raises(DescriptionError):
        MathInstruction([1, 1, 4], s8, s8, s32, cutlass.OpClass.Simt, MathOperation.multiply_add_saturate)


# Alignments


def test_simt_loads_single_elements(said):
    fields = parts("f32_simt") | {"A": TensorDescription(f32, ROW, 4), "B": TensorDescription(f32, COLUMN, 2)}
    for _ in range(2):
        assert GemmOperationUniversal(**fields) == ampere("f32_simt")
    assert [sentence.split(":")[1].split(",")[0].strip() for sentence in said()] == ["operand A", "operand B"]
    with pytest.raises(DescriptionError, match=r"operand C of cutlass\.float32 needs alignment 1"):
        GemmOperationUniversal(
            **fields | {"C": TensorDescription(f32, ROW, 4), "epilogue_functor": LinearCombination(f32, 4)}
        )


def wgrad(alignments, kind=f32):
    tile = TileDescription([128, 128, 32], 3, [2, 2, 1], instruction(f32, MathOperation.multiply_add))
    A, B, C = (TensorDescription(kind, NHWC, alignment) for alignment in alignments)
    functor = LinearCombination(kind, C.alignment)
    return Conv2dOperation(Operator.wgrad, Algorithm.optimized, 80, tile, A, B, C, epilogue_functor=functor)


def test_a_filter_gradient_is_as_aligned_as_the_channels_of_its_activation(said):
    operation = wgrad((1, 1, 4))
    assert operation == wgrad((1, 1, 1))
    assert wgrad((1, 2, 4)).C.alignment == 4
    [sentence] = said()
    assert "operand C, described with alignment 4, with alignment 1" in sentence
    # Rows of one element: written four at a time they would overwrite what lies behind.
    rng = np.random.default_rng(0)
    x, dy = rng.integers(-4, 5, (1, 8, 8, 1)), rng.integers(-4, 5, (1, 8, 8, 1))
    x, dy = x.astype(np.float32), dy.astype(np.float32)
    p, memory = Size(N=1, H=8, W=8, C=1, K=1, R=3, S=3, pad_h=1, pad_w=1), np.full(16, 99, np.float32)
    operation.run(Conv2dArguments(operation, p, dy, x, None, memory[:9]))
    wanted = pycutlass.Conv2dReferenceModule(operation.A, operation.B, operation.C, Operator.wgrad)
    np.testing.assert_array_equal(memory[:9], wanted.run(dy, x, None, p))
    assert (memory[9:] == 99).all()


# Keywords and scalars


def test_keywords_without_effect_are_said_once(said):
    fields = parts("f16")
    for _ in range(2):
        assert GemmOperationUniversal(**fields, direct_store=True, element_epilogue=f32) == ampere("f16")
        assert GemmOperationUniversal(**fields, direct_store=False, element_epilogue=None) == ampere("f16")
    direct, epilogue = said()
    assert "direct_store is ignored" in direct and "element_epilogue is ignored" in epilogue
    with pytest.raises(DescriptionError, match=r"element_epilogue=cutlass\.float16 disagrees .* cutlass\.float32"):
        GemmOperationUniversal(**fields, element_epilogue=cutlass.float16)


def test_slices_by_another_name_are_none(said):
    operation, ones = ampere("f32_simt", (ROW, ROW, ROW)), np.ones((2, 2), np.float32)
    for _ in range(2):
        arguments = GemmArguments(operation, (2, 2, 2), ones, ones, None, ones.copy(), split_k_splices=4)
        assert arguments.split_k_slices == 1
    [sentence] = said()
    assert "split_k_splices=4 is ignored" in sentence and "split_k_slices" in sentence


def test_scalars_have_nothing_to_bring_back():
    scalars = ampere("f16").epilogue_type(1.0, 0.0)
    assert scalars.sync() is None
    assert scalars.sync(stream_sync=False) is None


def test_operands_are_never_switched():
    assert ampere("f16", (ROW, ROW, COLUMN)).switched is False


def test_groups_have_no_swizzle_of_their_own():
    fields = parts("f16")
    operation = GemmOperationGrouped(**fields | {"swizzling_functor": cutlass.BatchedIdentitySwizzle})
    assert cutlass.BatchedIdentitySwizzle.tag() in operation.emit()


# Biases


@pytest.mark.parametrize("mode", ["Gemm", "GemmSplitKParallel"])
def test_arguments_say_whether_c_is_a_bias(mode):
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    mode = getattr(cutlass.gemm.Mode, mode)
    A, B, D = np.ones((4, 8), np.float32), np.ones((8, 6), np.float32), np.ones((4, 6), np.float32)

    def bias(C, **options):
        scalars = None if C is None else operation.epilogue_type(1.0, 1.0)
        return GemmArguments(operation, (4, 6, 8), A, B, C, D, mode, output_op=scalars, **options).bias

    assert bias(np.ones(6, np.float32)) is True
    assert bias(np.ones(6, np.float32), bias=True) is True
    assert bias(np.ones((4, 6), np.float32)) is False
    assert bias(np.ones((4, 6), np.float32), bias=False) is False
    assert bias(None) is False


def test_a_c_that_is_not_read_need_not_say_what_it_is():
    """Of shape (batch, N) = (M, N) it may be either, which was an error of the attribute alone."""
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    A, B, D = (np.ones((4, *shape), np.float32) for shape in ((4, 8), (8, 6), (4, 6)))
    C, scalars = np.ones((4, 6), np.float32), operation.epilogue_type(1.0, 0.0)
    mode = cutlass.gemm.Mode.Batched
    assert GemmArguments(operation, (4, 6, 8), A, B, C, D, mode, batch=4, output_op=scalars).bias is False


def test_in_an_array_each_c_may_be_a_bias():
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    A, B, D = ([np.ones(shape, np.float32) for _ in range(2)] for shape in ((4, 8), (8, 6), (4, 6)))
    scalars = operation.epilogue_type(1.0, 1.0)
    for C, wanted in (([np.ones(6, np.float32)] * 2, True), ([np.ones((4, 6), np.float32)] * 2, False)):
        arguments = GemmArguments(operation, (4, 6, 8), A, B, C, D, cutlass.gemm.Mode.Array, batch=2, output_op=scalars)
        assert arguments.bias is wanted


# int8


def int8(functor):
    s8, s32 = cutlass.int8, cutlass.int32
    math = MathInstruction([16, 8, 32], s8, s8, s32, TENSOR_OP)
    A, B, C = (TensorDescription(s8, layout, 16) for layout in (ROW, COLUMN, ROW))
    return GemmOperationUniversal(80, TileDescription([128, 128, 64], 3, [2, 2, 1], math), A, B, C, functor)


def test_linear_combination_to_int8_clamps():
    plain = LinearCombination(cutlass.int8, 16, cutlass.int32, f32)
    assert plain.emit() == LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, f32).emit()
    operation = int8(plain)
    A, B = np.full((16, 64), 2, np.int8), np.full((64, 16), 3, np.int8).T.copy().T
    for scale, wanted in ((1.0, 127), (-1.0, -128), (0.25, 96)):
        D = np.zeros((16, 16), np.int8)
        operation.run(GemmArguments(operation, (16, 16, 64), A, B, None, D, output_op=operation.epilogue_type(scale)))
        assert (D == wanted).all()


@pytest.mark.parametrize(
    ("greatest", "k", "fits"), [(1, 4096, True), (90, 512, True), (91, 512, False), (127, 272, False)]
)
def test_the_fast_clamp_takes_k_as_far_as_its_operands_are_small(greatest, k, fits, said):
    operation = int8(FastLinearCombinationClamp(cutlass.int8, 16))
    A, B = np.zeros((16, k), np.int8), np.zeros((16, k), np.int8).T
    A[3, 5], B[7, 2] = -greatest, greatest
    D = np.zeros((16, 16), np.int8)
    if not fits:
        with pytest.raises(
            ArgumentError, match=rf"exact for sums up to 4,194,304, got K={k} .* LinearCombinationClamp"
        ):
            GemmArguments(operation, (16, 16, k), A, B, None, D)
        assert said() == []
        return
    arguments = GemmArguments(operation, (16, 16, k), A, B, None, D)
    [sentence] = said()
    assert "exact for sums up to 4,194,304" in sentence and f"K={k}" in sentence
    with pytest.raises(ArgumentError, match="exact for sums"):
        arguments.update(A=np.full((16, k), -128, np.int8), B=np.full((16, k), -128, np.int8).T)
    B[0, 0] = 127  # in a K of 256 anything goes
    GemmArguments(operation, (16, 16, 256), A[:, :256], B[:256], None, D)


# The order of the guide


def test_operations_take_their_parts_in_the_order_of_the_guide():
    swizzle, mode = cutlass.IdentitySwizzle2, pycutlass.SchedulerMode.Host
    named = parts("f16", swizzle=swizzle)
    ordered = [named[name] for name in ("compute_capability", "tile_description", "A", "B", "C", "epilogue_functor")]
    gemm = GemmOperationUniversal(*ordered, swizzle, False)
    assert gemm == GemmOperationUniversal(**named) == GemmOperationUniversal(*ordered, swizzle)
    assert not gemm.is_apart and gemm.D == gemm.C
    grouped = GemmOperationGrouped(*ordered, swizzle, mode)
    assert grouped == GemmOperationGrouped(**named, precompute_mode=mode)
    operand = TensorDescription(cutlass.float16, NHWC, 8)
    convolved = (Operator.fprop, Algorithm.optimized, *ordered[:2], *[operand] * 3, StrideSupport.Strided)
    conv = Conv2dOperation(*convolved, ordered[-1], swizzle)
    assert (conv.epilogue_functor, conv.swizzling_functor) == (ordered[-1], swizzle)


def test_a_visitor_in_the_place_of_the_guide_explains_itself_as_the_keyword_does():
    named = parts("f16")
    ordered = [named[name] for name in ("compute_capability", "tile_description", "A", "B", "C", "epilogue_functor")]
    with pytest.raises(DescriptionError) as by_keyword:
        GemmOperationUniversal(*ordered, visitor=True)
    with pytest.raises(DescriptionError) as by_position:
        GemmOperationUniversal(*ordered, cutlass.IdentitySwizzle1, True)
    assert str(by_position.value) == str(by_keyword.value)
    assert "visitor=True is for an EpilogueVisitTree" in str(by_keyword.value)
    with pytest.raises(DescriptionError, match="D must be a TensorDescription, got 0"):
        GemmOperationUniversal(*ordered, cutlass.IdentitySwizzle1, 0)


# Convolutions


def conv(kind, stride_support, functor=None, swizzle=None):
    tile = TileDescription([64, 64, 16], 3, [2, 2, 1], instruction(f32, MathOperation.multiply_add))
    nhwc = TensorDescription(f32, NHWC, 4)
    fields = (tile, nhwc, nhwc, nhwc, stride_support, functor or LinearCombination(f32, 4), swizzle)
    return Conv2dOperation(kind, Algorithm.optimized, 80, *fields)


@pytest.mark.parametrize("kind", [Operator.fprop, Operator.wgrad], ids=str)
def test_unity_is_no_other_kernel_of_fprop_and_wgrad(kind):
    operation = conv(kind, StrideSupport.Unity)
    assert operation == conv(kind, StrideSupport.Strided)
    assert operation.supports(Size(N=1, H=9, W=9, C=8, K=8, R=3, S=3, stride_h=2, stride_w=3))


def test_strided_dgrad_is_computed_in_one_slice(said):
    operation = conv(Operator.dgrad, StrideSupport.Strided)
    p = Size(N=1, H=7, W=7, C=8, K=4, R=3, S=3, stride_h=2, stride_w=2, split_k_slices=3)
    dy, w, dx = np.ones((1, 3, 3, 4), np.float32), np.ones((4, 3, 3, 8), np.float32), np.zeros((1, 7, 7, 8), np.float32)
    for _ in range(2):
        arguments = Conv2dArguments(operation, p, dy, w, None, dx, split_k_slices=3)
        assert arguments.problem_size.split_k_slices == arguments.split_k_slices == 1
        assert p.split_k_slices == 3, "the caller's own stays as it is"
        operation.run(arguments)
    assert dx[0, 3, 3, 0] == 4 and dx[0, 2, 2, 0] == 16
    [sentence] = [each for each in said() if "strided dgrad" in each]
    assert "does not split K" in sentence and "split_k_slices=3" in sentence
    with pytest.raises(ArgumentError, match="does not split K"):
        Conv2dArguments(operation, p, dy, w, None, dx, split_k_mode=cutlass.conv.SplitKMode.Parallel)


def test_padding_is_told_by_items_0_and_2():
    four = cutlass.Tensor4DCoord
    sizes = [
        Size(four(1, 23, 56, 98), four(128, 3, 3, 98), four(*padding), cutlass.MatrixCoord(2, 2))
        for padding in ((4, 4, 5, 5), (4, 0, 5, 0))
    ]
    assert sizes[0] == sizes[1]
    assert (sizes[1].pad_h, sizes[1].pad_w) == (4, 5)


def test_a_filter_has_the_channels_of_its_input(said):
    four = cutlass.Tensor4DCoord
    for _ in range(2):
        p = Size(four(1, 8, 8, 16), four(8, 3, 3, 4))
        assert p == Size(four(1, 8, 8, 16), four(8, 3, 3, 16))
    [sentence] = said()
    assert "filter_size.c=4 is ignored" in sentence and "16" in sentence
    # With tensors at hand it is known to be wrong.
    with pytest.raises(ArgumentError, match="w must have the channels of x, 16"):
        pycutlass.conv2d_problem_size(np.zeros((1, 8, 8, 16)), np.zeros((8, 3, 3, 4)))


def test_p_and_q_may_be_fewer_than_there_are():
    """CUTLASS's own formula has one less of each where there is dilation."""
    operation = conv(Operator.fprop, StrideSupport.Strided)
    p = Size(1, 9, 8, 4, 8, 3, 3, 4, 3, 0, 0, 1, 1, 2, 2, cutlass.conv.Mode.cross_correlation, 1, 1)
    assert (p.P, p.Q) == (4, 3)
    rng = np.random.default_rng(1)
    x, w = rng.integers(-3, 4, (1, 9, 8, 4)).astype(np.float32), rng.integers(-3, 4, (8, 3, 3, 4)).astype(np.float32)
    whole = Size(N=1, H=9, W=8, C=4, K=8, R=3, S=3, dilation_h=2, dilation_w=2)
    y, full = np.zeros((1, 4, 3, 8), np.float32), np.zeros((1, 5, 4, 8), np.float32)
    for size, target in ((p, y), (whole, full)):
        operation.run(Conv2dArguments(operation, size, x, w, None, target))
    np.testing.assert_array_equal(y, full[:, :4, :3])
    more = Size(N=1, H=9, W=8, C=4, K=8, R=3, S=3, P=8, Q=6)
    assert "P=8 is more than the problem has" in str(operation.supports(more))


def test_tiles_are_what_was_described():
    """What is taken in other words is a new value: the user's own is never changed."""
    tile = TileDescription([128, 128, 16], 3, [2, 2, 1], instruction(cutlass.tfloat32, MathOperation.multiply_add))
    kept = replace(tile)
    operand = TensorDescription(f32, ROW, 4)
    GemmOperationUniversal(80, tile, operand, operand, operand, LinearCombination(f32, 4))
    assert tile == kept and tile.math_instruction.element_a is TAG["tf32"]
