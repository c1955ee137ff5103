"""Convolutions on the host: what they mean, against torch, and every kind of tensor in their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conv_operands import (
    F64,
    KINDS,
    SIMT,
    SIMT_STRIDED,
    Mode,
    SplitKMode,
    extents_of,
    size,
    tensors,
    torch_convolution,
)
from convolutions import (
    GEOMETRIES,
    OPERATIONS,
    dgrad,
    fprop,
    problem,
    problems,
    reduction,
    wgrad,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import pycutlass
from pycutlass import Conv2dArguments, cutlass, reference
from pycutlass.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("without_gpu")

# Meaning

few = st.integers(1, 3)


@st.composite
def conv_problems(draw: Any) -> Any:
    filters, pads, dilations = (draw(st.tuples(each, each)) for each in (st.integers(1, 4), st.integers(0, 4), few))
    spans = [dilation * (taps - 1) + 1 for taps, dilation in zip(filters, dilations, strict=True)]
    least = [max(1, span - 2 * pad) for span, pad in zip(spans, pads, strict=True)]
    strides = draw(st.tuples(few, few))
    return cutlass.conv.Conv2dProblemSize(
        N=draw(few),
        H=draw(st.integers(least[0], least[0] + 7)),
        W=draw(st.integers(least[1], least[1] + 7)),
        C=draw(st.integers(1, 4)),
        K=draw(st.integers(1, 4)),
        R=filters[0],
        S=filters[1],
        pad_h=pads[0],
        pad_w=pads[1],
        stride_h=strides[0],
        stride_w=strides[1],
        dilation_h=dilations[0],
        dilation_w=dilations[1],
        mode=draw(st.sampled_from(list(Mode))),
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(conv_problems(), st.sampled_from([(1.0, 0.0), (0.0, 1.0), (-1.25, 0.5)]))
def test_the_reference_is_torchs_convolution(kind, p, scalars):
    A, B, C, _ = tensors(F64[kind], p)
    D = reference.conv2d(F64[kind], p, A, B, C, *scalars)
    expected = scalars[0] * torch_convolution(kind, p, A, B) + scalars[1] * C
    assert D.dtype == np.float64 and D.shape == C.shape
    np.testing.assert_allclose(D, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("slices", "last"), [(1, 2051), (2, 2051), (3, 2050)])
@pytest.mark.parametrize("name", ["f16_fprop_optimized", "f16_dgrad_optimized", "f16_wgrad_optimized"])
def test_slices_take_turns_to_round(name, slices, last):
    """Tiles of 32 channels (for wgrad, of pixels) are dealt to the slices in turn, for all taps."""
    operation = OPERATIONS[name]
    pixels, channels = (96, 8) if operation.conv_kind is wgrad else (1, 96)
    p = size(N=1, H=1, W=pixels, C=channels, K=channels, R=1, S=1)
    A, B, _, D = tensors(operation, p)
    A[...], B[...] = 1, 0
    along = {fprop: B[0, 0, 0], dgrad: B[:, 0, 0, 0], wgrad: B[0, 0, :, 0]}[operation.conv_kind]
    along[[0, 32, 64]] = 2048, 1, 2
    arguments = Conv2dArguments(operation, p, A, B, None, D, split_k_slices=slices)
    operation.run(arguments)
    one = D.reshape(-1, D.shape[-1])[0, 0]
    assert one == np.float16(last)  # of two slices, the first has 2048 + 2; of three, 2048 + 1 is a tie


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "interleaved" not in name])
def test_the_reference_rounds_as_described(name):
    operation = OPERATIONS[name]
    p = next(each for each in reversed(problems(operation)) if each.C * each.R <= 300)
    random = np.random.default_rng(1)
    integer = operation.A.type.is_integer
    A, B, C = (
        (random.integers(-4, 5, extent) if integer else random.standard_normal(extent)).astype(each.type.dtype)
        for each, extent in zip(
            (operation.A, operation.B, operation.C), extents_of(operation.conv_kind, p), strict=True
        )
    )
    D = reference.conv2d(operation, p, A, B, C, 0.5, 0.5)
    assert D.dtype == operation.C.type.dtype
    exact = reference.conv2d(operation, p, A, B, C, 0.5, 0.5, exact=True)
    products = cutlass.conv.implicit_gemm_problem_size(operation.conv_kind, p).k()
    relative, absolute = reference.tolerance(operation, products, 1.0)
    absolute = 0.5 if operation.C.type.is_integer else absolute + 4 * operation.epilogue_functor.compute.epsilon
    np.testing.assert_allclose(D.astype(np.float64), exact, rtol=relative, atol=absolute)


# Running without a GPU


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("geometry", GEOMETRIES[2:9], ids=str)
def test_run_on_the_host(kind, geometry):
    operation, p = SIMT_STRIDED[kind], problem(geometry, 3, 5)
    if not operation.supports(p):
        operation = SIMT[kind]
    assert operation.supports(p)
    A, B, C, D = tensors(operation, p)
    before = repr(p)
    arguments = Conv2dArguments(operation, p, A, B, C, D, operation.epilogue_type(1.5, -0.5))
    operation.run(arguments)
    arguments.sync()
    expected = 1.5 * torch_convolution(kind, p, A, B) - 0.5 * C
    np.testing.assert_allclose(D, expected, rtol=1e-4, atol=1e-3)
    assert repr(p) == before


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_torch_tensors_in_channels_last(kind):
    operation, p = SIMT[kind], size()
    A, B, C, D = tensors(operation, p)
    a, b, c, d = (torch.from_numpy(each).permute(0, 3, 1, 2) for each in (A, B, C, D))
    assert d.is_contiguous(memory_format=torch.channels_last)
    arguments = Conv2dArguments(operation, p, a, b, c, d, operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    np.testing.assert_allclose(D, torch_convolution(kind, p, A, B) + C, rtol=1e-4, atol=1e-3)


def test_flat_arrays_are_packed():
    operation, p = SIMT[fprop], size()
    A, B, _, D = tensors(operation, p)
    arguments = Conv2dArguments(operation, p, A.reshape(-1), B.reshape(-1), None, D.reshape(-1))
    operation.run(arguments)
    np.testing.assert_allclose(D, torch_convolution(fprop, p, A, B), rtol=1e-4, atol=1e-3)


def test_slices_of_channels_are_taken_as_they_are():
    # Two groups of channels, one launch for each.
    operation, p = SIMT[fprop], size()
    random = np.random.default_rng(0)
    x, w = random.standard_normal((2, 9, 8, 32)), random.standard_normal((48, 3, 3, 16))
    x, w, y = x.astype(np.float32), w.astype(np.float32), np.full((2, 7, 6, 48), np.nan, np.float32)
    for group in (0, 1):
        channels, filters = slice(16 * group, 16 * group + 16), slice(24 * group, 24 * group + 24)
        operation.run(Conv2dArguments(operation, p, x[..., channels], w[filters], None, y[..., filters]))
    a, b = (torch.from_numpy(each).permute(0, 3, 1, 2) for each in (x, w))
    np.testing.assert_allclose(y, functional.conv2d(a, b, groups=2).permute(0, 2, 3, 1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["f16_fprop_single", "f16_fprop_multiple", "f16_fprop_depthwise"])
def test_groups_of_channels(name):
    operation = OPERATIONS[name]
    for p in problems(operation)[:6]:
        A, B, C, D = tensors(operation, p)
        assert B.shape[3] == p.C // p.groups < p.C
        operation.run(Conv2dArguments(operation, p, A, B, C, D, operation.epilogue_type(1.0, 1.0)))
        np.testing.assert_allclose(D, torch_convolution(fprop, p, A, B) + C, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("kind", [fprop, dgrad], ids=lambda kind: kind.name)
@pytest.mark.parametrize("form", ["vector", "broadcast", "named"])
def test_bias(kind, form):
    operation, p = SIMT[kind], size()
    A, B, C, D = tensors(operation, p)
    bias = C[0, 0, 0]
    given = bias.reshape(1, 1, 1, -1) if form == "broadcast" else bias
    named = {"bias": True} if form == "named" else {}
    arguments = Conv2dArguments(operation, p, A, B, given, D, operation.epilogue_type(1.0, 2.0), **named)
    operation.run(arguments)
    np.testing.assert_allclose(D, torch_convolution(kind, p, A, B) + 2 * bias, rtol=1e-4, atol=1e-3)


def test_update_takes_other_tensors():
    operation, p = SIMT[fprop], size()
    A, B, _, D = tensors(operation, p)
    arguments = Conv2dArguments(operation, p, A, B, None, D)
    other, _, _, E = tensors(operation, p, 7)
    arguments.update(A=other, D=E)
    operation.run(arguments)
    np.testing.assert_allclose(E, torch_convolution(fprop, p, other, B), rtol=1e-4, atol=1e-3)
    assert np.isnan(D).all()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_parallel_split_k(kind):
    operation, p = SIMT[kind], size()
    ends = reduction(operation)
    A, B, C, D = tensors(operation, p)
    arguments = Conv2dArguments(operation, p, A, B, None, None, None, SplitKMode.Parallel, 3)
    m, n = (getattr(cutlass.conv.implicit_gemm_problem_size(kind, p), each)() for each in "mn")
    assert arguments.split_k_slices == 3 and p.split_k_slices == 1
    reduced = pycutlass.ReductionArguments(
        ends,
        [m, n],
        3,
        arguments.ptr_D,
        D.reshape(m, n),
        C.reshape(m, n),
        output_op=ends.epilogue_type(2.0, 1.0),
        bias=arguments.bias,
    )
    operation.run(arguments)
    ends.run(reduced)
    reduced.sync()
    np.testing.assert_allclose(D, 2 * torch_convolution(kind, p, A, B) + C, rtol=1e-4, atol=1e-3)


def test_interleaved_operands():
    operation = OPERATIONS["s8_fprop_interleaved_analytic"]
    p = size(C=64, K=32)
    random = np.random.default_rng(0)
    x, w = random.integers(-2, 3, (2, 9, 8, 64)), random.integers(-2, 3, (32, 3, 3, 64))
    A = np.ascontiguousarray(x.reshape(2, 9, 8, 2, 32).transpose(0, 3, 1, 2, 4).astype(np.int8))
    B = np.ascontiguousarray(w.reshape(32, 3, 3, 2, 32).transpose(3, 1, 2, 0, 4).astype(np.int8))
    expected = np.clip(np.rint(0.25 * torch_convolution(fprop, p, x, w)), -128, 127)
    for filters in (pycutlass.reorder_filter(B), pycutlass.reorder_filter(B.reshape(-1))):
        D = np.full((2, 1, 7, 6, 32), -128, np.int8)
        output_op = operation.epilogue_type(0.25, 0)
        arguments = Conv2dArguments(operation, p, A, filters, None, D, output_op)
        operation.run(arguments)
        assert np.array_equal(D.transpose(0, 2, 3, 1, 4).reshape(2, 7, 6, 32), expected)


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_reordering_a_filter_is_cutlasss_permutation_and_its_own_inverse(groups, taps, blocks):
    filters = np.random.default_rng(0).integers(-128, 128, (groups, taps, taps, 32 * blocks, 32)).astype(np.int8)
    reordered = pycutlass.reorder_filter(filters)
    for k in range(32 * blocks):  # reorder_column of cutlass/util/host_reorder.h with 32 interleaved columns
        target = k // 32 * 32 + k % 8 // 2 * 8 + k % 32 // 8 * 2 + k % 2
        assert np.array_equal(reordered[:, :, :, target], filters[:, :, :, k])
    assert np.array_equal(pycutlass.reorder_filter(reordered), filters)
    assert np.array_equal(pycutlass.reorder_filter(filters.reshape(-1)), reordered.reshape(-1))
    assert np.array_equal(pycutlass.reorder_filter(torch.from_numpy(filters)).numpy(), reordered)


# Forms of arguments


def test_the_remedies_for_memory_formats_work():
    operation, p = SIMT[fprop], size()
    A, B, _, D = tensors(operation, p)
    nchw = torch.from_numpy(A.transpose(0, 3, 1, 2).copy())
    for x in (nchw.contiguous(memory_format=torch.channels_last), torch.from_numpy(A), np.ascontiguousarray(A)):
        D[...] = np.nan
        arguments = Conv2dArguments(operation, p, x, B, None, D)
        operation.run(arguments)
        np.testing.assert_allclose(D, torch_convolution(fprop, p, A, B), rtol=1e-4, atol=1e-3)


def test_a_cube_has_the_order_of_its_library():
    operation, p = SIMT[fprop], size(H=8, W=8, C=8)
    A, B, _, D = tensors(operation, p)
    expected = torch_convolution(fprop, p, A, B)
    channels_last = torch.from_numpy(A).permute(0, 3, 1, 2)
    for x in (A, channels_last):
        D[...] = np.nan
        operation.run(Conv2dArguments(operation, p, x, B, None, D))
        np.testing.assert_allclose(D, expected, rtol=1e-4, atol=1e-3)
    # A contiguous cube of torch may be (N, C, H, W) in the default format, or (N, H, W, C).
    with pytest.raises(ArgumentError, match=r"channels_last.*If its dimensions are \(N, H, W, C\), pass A.permute"):
        Conv2dArguments(operation, p, torch.from_numpy(A), B, None, D)
    # And one of NumPy whose second axis is adjacent (N, H, W, C), or (N, C, H, W) with adjacent channels.
    other, arguments = A.transpose(0, 3, 1, 2), Conv2dArguments(operation, p, A, B, None, D)
    rule = r"operand A must be packed pixel by pixel.*pass np.ascontiguousarray\(A\)"
    either = r"\. If its dimensions are \(N, C, H, W\), pass A.transpose\(0, 2, 3, 1\)\.$"
    for refused in (lambda: Conv2dArguments(operation, p, other, B, None, D), lambda: arguments.update(A=other)):
        with pytest.raises(ArgumentError, match=rule + either):
            refused()
    with pytest.raises(ArgumentError, match=rule + r"\.$"):  # which it is in neither order
        Conv2dArguments(operation, p, A.transpose(0, 2, 3, 1), B, None, D)
    for remedy, meant in ((np.ascontiguousarray(other), other), (other.transpose(0, 2, 3, 1), A)):
        operation.run(Conv2dArguments(operation, p, remedy, B, None, D))
        np.testing.assert_allclose(D, torch_convolution(fprop, p, meant, B), rtol=1e-4, atol=1e-3)


# The problem of two tensors


@given(conv_problems())
def test_the_problem_of_two_tensors(p):
    x, w = np.empty((p.N, p.H, p.W, p.C), np.float16), np.empty((p.K, p.R, p.S, p.C), np.float16)
    options = {
        "stride": (p.stride_h, p.stride_w),
        "padding": (p.pad_h, p.pad_w),
        "dilation": (p.dilation_h, p.dilation_w),
        "mode": p.mode,
    }
    assert pycutlass.conv2d_problem_size(x, w, **options) == p
    nchw = [torch.from_numpy(each).permute(0, 3, 1, 2) for each in (x, w)]
    assert pycutlass.conv2d_problem_size(*nchw, **options) == p
    assert pycutlass.conv2d_problem_size(*(each.contiguous() for each in nchw), **options) == p
    assert pycutlass.conv2d_problem_size(x, w, **options, split_k_slices=3).split_k_slices == 3


def test_numbers_for_both_axes():
    x, w = np.empty((1, 9, 9, 4)), np.empty((2, 3, 3, 4))
    assert pycutlass.conv2d_problem_size(x, w, stride=2, padding=1, dilation=2) == pycutlass.conv2d_problem_size(
        x, w, stride=(2, 2), padding=[1, 1], dilation=(2, 2)
    )


def test_problems_that_no_tensors_make():
    x, w = np.empty((1, 9, 9, 4)), np.empty((2, 3, 3, 4))
    with pytest.raises(ArgumentError, match="w must have four dimensions"):
        pycutlass.conv2d_problem_size(x, w[0])
    with pytest.raises(ArgumentTypeError, match="padding must be an integer, or two"):
        pycutlass.conv2d_problem_size(x, w, padding=(1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"filter_size.c must be input_size.c / groups"):
        pycutlass.conv2d_problem_size(x, w, groups=2)
    with pytest.raises(ValueError, match="filter must fit the padded input"):
        pycutlass.conv2d_problem_size(x, w, dilation=5)
    assert pycutlass.conv2d_problem_size(x, w[..., :2], groups=2).groups == 2
