"""Descriptions of convolutions: what is valid, what is refused, their text and names, and what they support."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from conv_operands import NHWC8, SIMT, Mode, size
from convolutions import (
    OPERATIONS,
    UNITY,
    Algorithm,
    conv,
    dgrad,
    f16,
    f32,
    f64,
    fprop,
    reduction,
    s8,
    s32,
    tf32,
    wgrad,
)

import pycutlass
from pycutlass import Conv2dArguments, Conv2dOperation, GroupMode, TensorDescription, cutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

pytestmark = pytest.mark.usefixtures("without_gpu")

FPROP_TEXT = """\
#include "pycutlass/conv2d.h"

using Operation = pycutlass::Conv2d<
    cutlass::conv::kernel::DefaultConv2dFprop,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::TensorNHWC, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::TensorNHWC, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::TensorNHWC, 8>,
    float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<128, 128, 32>, cutlass::gemm::GemmShape<64, 64, 32>,
    cutlass::gemm::GemmShape<16, 8, 16>,
    cutlass::epilogue::thread::LinearCombination<cutlass::half_t, 8, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>, 3, cutlass::arch::OpMultiplyAdd,
    cutlass::conv::IteratorAlgorithm::kOptimized, cutlass::conv::StrideSupport::kStrided>;
"""


# Descriptions


def test_the_text():
    operation = OPERATIONS["f16_fprop_optimized"]
    assert operation.body() == FPROP_TEXT
    assert operation.emit().splitlines()[-1] == f"PYCUTLASS_KERNEL({operation.procedural_name()}, Operation)"


def test_every_parameter_is_in_the_text():
    assert OPERATIONS["f16_fprop_unity"] == OPERATIONS["f16_fprop_optimized"], "fprop has one kernel, for any stride"
    texts = [operation.body() for operation in {*OPERATIONS.values()}]
    assert len(set(texts)) == len(texts) == len({operation.procedural_name() for operation in OPERATIONS.values()})
    assert len(texts) == len(OPERATIONS) - 1
    assert "DefaultConv2dDgrad" in OPERATIONS["f16_dgrad_analytic"].body()
    assert "DefaultConv2dWgrad" in OPERATIONS["f16_wgrad_analytic"].body()
    assert "StrideSupport::kUnity" in OPERATIONS["f16_dgrad_analytic"].body()
    assert "StridedDgradIdentityThreadblockSwizzle<4>" in OPERATIONS["f16_dgrad_strided_swizzle4"].body()
    assert "kFixedChannels" in OPERATIONS["f16_fprop_fixed8"].body()
    assert "GroupFprop<cutlass::conv::GroupMode::kMultipleGroup>::Default" in OPERATIONS["f16_fprop_multiple"].body()
    assert "kFewChannels" in OPERATIONS["f16_fprop_few1"].body()
    assert "TensorCxRSKx<32>" in OPERATIONS["s8_fprop_interleaved"].body()


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_values(name):
    operation = OPERATIONS[name]
    again = Conv2dOperation(*operation._value())
    assert again == operation and hash(again) == hash(operation) and again.emit() == operation.emit()
    assert pickle.loads(pickle.dumps(operation)) == operation
    assert eval(repr(operation), vars(pycutlass)) == operation
    with pytest.raises(AttributeError):
        operation.A = operation.B


def test_both_spellings_of_stride_support_and_of_compute_capability():
    operation = OPERATIONS["f16_fprop_unity"]
    fields = dict(zip(operation._FIELDS, operation._value(), strict=True))
    fields["stride_support"] = cutlass.conv.StrideSupport.unity
    assert Conv2dOperation(**fields) == operation
    fields["arch"] = fields.pop("compute_capability")
    assert Conv2dOperation(**fields) == operation


def test_the_default_swizzle_fits():
    assert conv(fprop, "optimized").swizzling_functor is cutlass.IdentitySwizzle1
    assert conv(dgrad, "optimized", stride=UNITY).swizzling_functor is cutlass.IdentitySwizzle1
    assert conv(dgrad, "optimized").swizzling_functor is cutlass.StridedDgradIdentitySwizzle1
    assert conv(fprop, "optimized", swizzle=cutlass.IdentitySwizzle4()).swizzling_functor is cutlass.IdentitySwizzle4


def test_the_partial_kernel():
    operation = OPERATIONS["f16_fprop_relu"]
    partial = operation.partial
    assert (partial.C.type.short, partial.C.alignment) == ("f32", 4)
    assert type(partial.epilogue_functor) is pycutlass.LinearCombination
    assert partial is operation.partial is partial.partial
    assert SIMT[fprop].partial is SIMT[fprop]
    assert operation.parts([operation]) == [operation]
    assert operation.parts([operation, reduction(operation)]) == [operation, partial]
    strided = OPERATIONS["f16_dgrad_strided_optimized"]
    assert strided.parts([strided, reduction(operation)]) == [strided]


REFUSED: list[tuple[Any, list[str]]] = [
    (lambda: conv(None, "optimized"), ["conv_kind", "cutlass.conv.Operator.fprop", "None"]),
    (
        lambda: Conv2dOperation(fprop, "optimized", 80, None, None, None, None),
        ["iterator_algorithm", "analytic", "'optimized'"],
    ),
    (lambda: conv(fprop, "optimized", stride="strided"), ["stride_support", "Strided", "unity"]),
    (lambda: conv(dgrad, "few_channels"), ["few_channels", "fprop", "dgrad"]),
    (lambda: conv(fprop, "fixed_channels", (f32,) * 3, opcode=cutlass.OpClass.Simt), ["fixed_channels", "Simt"]),
    (lambda: conv(fprop, "fixed_channels", alignments=(4, 2, 8)), ["fixed_channels", "4 for A", "2 for B"]),
    (lambda: conv(wgrad, "optimized", (s8, s32, s8)), ["int8", "fprop", "wgrad"]),
    (
        lambda: conv(
            fprop, "optimized", alignments=8, second=s8, math=pycutlass.MathOperation.multiply_add_mixed_input_upcast
        ),
        ["convolutions multiply operands of one type", "float16 and cutlass.int8", "convert one of them"],
    ),
    (
        lambda: conv(fprop, "optimized", layouts=(cutlass.RowMajor,) * 3),
        ["TensorNHWC", "TensorC32RSK32", "cutlass.RowMajor"],
    ),
    (
        lambda: conv(
            fprop, "optimized", layouts=(cutlass.TensorNC32HW32, cutlass.TensorC32RSK32, cutlass.TensorNC32HW32)
        ),
        ["TensorNC32HW32", "int8", "float16"],
    ),
    (
        lambda: conv(dgrad, "optimized", swizzle=cutlass.IdentitySwizzle1),
        ["strided dgrad", "cutlass.StridedDgradIdentitySwizzle1", "IdentitySwizzle1"],
    ),
    (
        lambda: conv(dgrad, "optimized", swizzle=cutlass.StridedDgradHorizontalSwizzle),
        ["StridedDgradHorizontalSwizzle", "get_tile_offset", "StridedDgradIdentitySwizzle1"],
    ),
    (
        lambda: conv(fprop, "optimized", swizzle=cutlass.StridedDgradIdentitySwizzle1),
        ["strided fprop", "HorizontalSwizzle", "StridedDgradIdentitySwizzle1"],
    ),
    (lambda: conv(fprop, "optimized", swizzle=cutlass.BatchedIdentitySwizzle), ["BatchedIdentitySwizzle"]),
    (lambda: conv(fprop, "optimized", alignments=1), ["cp.async", "stages=2"]),
    (lambda: conv(fprop, "optimized", group_mode="SingleGroup"), ["group_mode", "GroupMode", "'SingleGroup'"]),
    (lambda: conv(wgrad, "optimized", group_mode=GroupMode.SingleGroup), ["group_mode", "fprop", "wgrad"]),
    (lambda: conv(fprop, "optimized", group_mode=GroupMode.MultipleGroup), ["MultipleGroup", "analytic"]),
    (lambda: conv(fprop, "optimized", (f16, f32, tf32)), ["tfloat32"]),
    (lambda: conv(fprop, "optimized", (f64,) * 3, alignments=2), ["f64", "alignment 1"]),
    (lambda: conv(fprop, "optimized", (f32,) * 3, opcode=cutlass.OpClass.Simt, alignments=4), ["alignment 1"]),
    (lambda: conv(fprop, "optimized", shape=(256, 256, 64), warps=(4, 4, 1), stages=4), ["shared memory"]),
    (lambda: conv(wgrad, "optimized", shape=(96, 128, 32), warps=(1, 2, 1)), ["128-byte line", "M=96"]),
    (
        lambda: conv(fprop, "optimized", (tf32, f32, f32), shape=(64, 128, 32), warps=(1, 1, 1)),
        ["128x32 tile of operand B", "32 loads for each of 32 threads", "fewer than 32", "analytic"],
    ),
    (
        lambda: conv(dgrad, "optimized", (f64,) * 3, shape=(64, 128, 16), warps=(2, 1, 1), stages=3),
        ["128x16 tile of operand B", "32 loads for each of 64 threads", "analytic"],
    ),
    (
        lambda: conv(
            fprop, "optimized", (f32,) * 3, opcode=cutlass.OpClass.Simt, shape=(32, 64, 16), warps=(1, 1, 1), stages=3
        ),
        ["64x16 tile of operand B", "32 loads for each of 32 threads", "analytic"],
    ),
    (
        lambda: conv(wgrad, "optimized", (tf32, f32, f32), shape=(192, 128, 32), warps=(1, 1, 1)),
        ["192x32 tile of operand A", "48 loads for each of 32 threads", "analytic"],
    ),
]


@pytest.mark.parametrize(("describe", "words"), REFUSED, ids=[" ".join(row[1][:2]) for row in REFUSED])
def test_one_wrong_thing_is_named(describe, words):
    with pytest.raises(DescriptionError) as caught:
        describe()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_keywords_are_known():
    with pytest.raises(ArgumentTypeError, match="no keyword epilogue; it has conv_kind"):
        Conv2dOperation(epilogue=None)
    with pytest.raises(ArgumentTypeError, match="the same thing"):
        Conv2dOperation(fprop, Algorithm.optimized, 80, arch=80)
    with pytest.raises(ArgumentTypeError, match="no keyword split_k_splices"):
        Conv2dArguments(SIMT[fprop], size(), split_k_splices=1)


def test_a_gemm_takes_no_tensors():
    operation = OPERATIONS["f16_fprop_optimized"]
    row, column = (TensorDescription(f16, each, 8) for each in (cutlass.RowMajor, cutlass.ColumnMajor))
    for A, B, C in ((NHWC8, column, row), (row, NHWC8, row), (row, column, NHWC8)):
        with pytest.raises(DescriptionError, match=r"is a matrix, RowMajor or ColumnMajor; got cutlass\.TensorNHWC"):
            pycutlass.GemmOperationUniversal(80, operation.tile_description, A, B, C, operation.epilogue_functor)


# What a kernel supports

STRIDED_DGRAD, FPROP, WGRAD = (
    OPERATIONS[f"f16_{name}"] for name in ("dgrad_strided_optimized", "fprop_optimized", "wgrad_optimized")
)
SINGLE, MULTIPLE = OPERATIONS["f16_fprop_single"], OPERATIONS["f16_fprop_multiple"]
UNITY_DGRAD = OPERATIONS["f16_dgrad_optimized"]
UNSUPPORTED: list[tuple[Any, dict[str, Any], list[str]]] = [
    (FPROP, {"C": 12}, ["C=12", "multiple of 8", "operand A", "alignment 4"]),
    (FPROP, {"K": 12}, ["K=12", "multiple of 8", "operand C"]),
    (STRIDED_DGRAD, {"K": 12}, ["K=12", "operand A"]),
    (WGRAD, {"C": 20}, ["C=20", "operand B", "alignment 4"]),
    (FPROP, {"R": 33, "H": 40}, ["at most 32 x 32", "R=33", "analytic"]),
    (UNITY_DGRAD, {"S": 33, "W": 40}, ["at most 32 x 32", "S=33"]),
    (UNITY_DGRAD, {"stride_h": 2}, ["Unity", "stride_h=2"]),
    (STRIDED_DGRAD, {"dilation_h": 2}, ["strided dgrad", "dilation_h=2"]),
    (STRIDED_DGRAD, {"stride_h": 4, "mode": Mode.convolution}, ["Mode.convolution", "stride_h=4", "R=3"]),
    (FPROP, {"groups": 2}, ["groups=2", "describe fprop with a group_mode", "slices of the channels"]),
    (WGRAD, {"groups": 2}, ["groups=2", "one group; launch once for each group"]),
    (SINGLE, {"groups": 2, "K": 96}, ["SingleGroup", "N=64", "K / groups = 48", "launch once for each group"]),
    (SINGLE, {"groups": 2, "K": 128, "C": 24}, ["C / groups = 12", "multiple of 8", "operand A"]),
    (SINGLE, {"groups": 2, "K": 128, "split_k_slices": 2}, ["SingleGroup", "split_k_slices=2"]),
    (MULTIPLE, {"groups": 2, "K": 48}, ["MultipleGroup", "N=64", "K / groups = 24: launch once for each group"]),
    (FPROP, {"P": 8, "Q": 6}, ["P=8", "(9 + 2 * 0 - 1 * (3 - 1) - 1) // 1 + 1 = 7"]),
    (FPROP, {"Q": 7, "P": 7}, ["Q=7", "= 6"]),
    (OPERATIONS["f16_fprop_fixed4"], {"C": 8}, ["fixed_channels", "4", "C=8", "few_channels"]),
    (OPERATIONS["f16_fprop_few4"], {"C": 6}, ["C=6", "multiple of 4"]),
    (OPERATIONS["f16_fprop_few4"], {"split_k_slices": 2}, ["few_channels", "split_k_slices=2"]),
    (OPERATIONS["f16_fprop_few4"], {"N": 256, "H": 512, "W": 512, "K": 8}, ["operand A", "268,435,456"]),
    (FPROP, {"N": 300, "H": 512, "W": 512, "K": 8}, ["operand A", "2,147,483,648", "split the batch"]),
    (FPROP, {"N": 4096, "H": 1024, "W": 1024, "K": 8}, ["32-bit"]),
    (FPROP, {"split_k_slices": 65536}, ["65535", "65536"]),
    (OPERATIONS["s8_fprop_interleaved"], {"C": 48, "K": 32}, ["multiples of that", "C=48"]),
    (OPERATIONS["s8_fprop_interleaved_analytic"], {"C": 32, "K": 32, "split_k_slices": 2}, ["TensorNC32HW32", "split"]),
]


@pytest.mark.parametrize(
    ("operation", "changes", "words"), UNSUPPORTED, ids=[" ".join(row[2][:2]) for row in UNSUPPORTED]
)
def test_what_is_not_supported_has_a_reason(operation, changes, words):
    p = size(**changes)
    support = operation.supports(p)
    assert not support
    assert all(word in support.reason for word in words), support.reason
    assert str(support) == f"no: {support.reason}"
    # Arguments refuse it for the same reason, before they look at tensors.
    with pytest.raises(ArgumentError) as caught:
        Conv2dArguments(operation, p, None, None)
    assert support.reason in str(caught.value)


@pytest.mark.parametrize(
    ("operation", "changes"),
    [
        (FPROP, {}),
        (FPROP, {"R": 32, "H": 40}),
        (OPERATIONS["f16_fprop_analytic"], {"R": 33, "H": 40}),
        (WGRAD, {"R": 33, "H": 40}),
        (STRIDED_DGRAD, {"stride_h": 2}),
        (STRIDED_DGRAD, {"stride_h": 3, "mode": Mode.convolution}),
        (UNITY_DGRAD, {"dilation_h": 2, "split_k_slices": 201}),
        (FPROP, {"split_k_slices": 201}),
        (SINGLE, {"groups": 2, "K": 128}),
        (MULTIPLE, {"groups": 2, "K": 64}),
        (OPERATIONS["f16_fprop_depthwise"], {"groups": 16, "K": 16}),
        (OPERATIONS["f16_fprop_few4"], {"N": 255, "H": 362, "W": 362, "C": 4, "K": 8}),
    ],
)
def test_what_is_supported(operation, changes):
    support = operation.supports(size(**changes))
    assert support, support.reason
    assert str(support) == "yes" and support.reason == ""


def test_supports_takes_a_problem_size():
    with pytest.raises(ArgumentTypeError, match="Conv2dProblemSize, got tuple"):
        FPROP.supports((1, 2, 3))
