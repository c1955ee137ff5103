"""Convolutions of no images or no channels: nothing happens where D is empty, and D is beta * C where sums are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conv_operands import SIMT, SplitKMode, extents_of, size, tensors
from convolutions import OPERATIONS, conv, dgrad, f16, f32, fprop, reduction, wgrad
from torch.nn import functional

import pycutlass
from pycutlass import Conv2dArguments, ReductionArguments
from pycutlass.errors import ArgumentError, ArgumentTypeError

#: What is 0, for which D is empty, and for which the sums have no products.
EMPTY = [(fprop, "N"), (fprop, "K"), (dgrad, "N"), (dgrad, "C"), (wgrad, "C"), (wgrad, "K")]
NO_PRODUCTS = [(fprop, "C"), (dgrad, "K"), (wgrad, "N")]
F16 = {kind: conv(kind, "optimized", (f16, f32, f16)) for kind in (fprop, dgrad, wgrad)}


def run(operation: Any, p: Any, *operands: Any, **given: Any) -> Conv2dArguments:
    arguments = Conv2dArguments(operation, p, *operands, **given)
    operation.run(arguments)
    arguments.sync()
    return arguments


@pytest.mark.parametrize(("kind", "axis"), EMPTY, ids=str)
@pytest.mark.parametrize("mode", [SplitKMode.Serial, SplitKMode.Parallel], ids=str)
def test_an_empty_output_is_nothing_to_do(kind: Any, axis: str, mode: Any) -> None:
    operation, p = SIMT[kind], size(**{axis: 0})
    A, B, C, D = tensors(operation, p)
    assert D.size == 0
    given = {} if mode is SplitKMode.Parallel else {"output_op": operation.epilogue_type(1.0, 1.0)}
    operands = (A, B) if mode is SplitKMode.Parallel else (A, B, C, D)
    arguments = run(operation, p, *operands, split_k_mode=mode, split_k_slices=3, **given)
    arguments.update(A=A.copy(), B=B.copy())
    operation.run(arguments)
    assert getattr(arguments.problem_size, axis) == 0
    with pytest.raises(ArgumentError, match="D has no elements"):
        _ = arguments.launch_config


@pytest.mark.parametrize("name", ["f32_fprop", "s8_fprop_interleaved"])
def test_an_empty_output_may_begin_anywhere(name: str) -> None:
    operation = OPERATIONS.get(name, SIMT[fprop])
    p = size(N=0, C=64, K=32)
    A, B, _, D = (each.reshape(-1) for each in tensors(operation, p))
    run(operation, p, A, B, None, B[1:1].view(D.dtype))


@pytest.mark.parametrize("given", ["of the problem", "flat"])
@pytest.mark.parametrize("mode", [SplitKMode.Serial, SplitKMode.Parallel], ids=str)
@pytest.mark.parametrize(("kind", "axis"), NO_PRODUCTS, ids=str)
def test_neither_products_nor_elements_are_nothing_to_do(kind: Any, axis: str, mode: Any, given: str) -> None:
    for other in (other for empty, other in EMPTY if empty is kind):
        for operation in (SIMT[kind], F16[kind]):
            p = size(**{axis: 0, other: 0})
            A, B, C, D = tensors(operation, p)
            assert not D.size and (not A.size or not B.size)
            if given == "flat":
                A, B, C, D = (each.reshape(-1) for each in (A, B, C, D))
            if mode is SplitKMode.Parallel:
                if operation.splits_k:
                    run(operation, p, A, B, split_k_mode=mode, split_k_slices=2)
                continue
            arguments = run(operation, p, A, B, C, D, output_op=operation.epilogue_type(1.0, 1.0))
            arguments.update(A=A.copy(), D=D.copy())
            operation.run(arguments)


@pytest.mark.parametrize(("kind", "axis"), NO_PRODUCTS, ids=str)
@pytest.mark.parametrize("scalars", [(1.0, 0.0), (2.0, -0.5), (np.nan, 0.0)], ids=str)
@pytest.mark.parametrize("operations", [SIMT, F16], ids=["simt", "f16"])
@pytest.mark.parametrize("slices", [1, 3])
def test_without_products_the_sum_is_zero(kind: Any, axis: str, scalars: Any, operations: Any, slices: int) -> None:
    operation, p = operations[kind], size(**{axis: 0})
    slices = slices if operation.supports(p.reset_split_k_slices(slices)) else 1
    A, B, C, D = tensors(operation, p)
    assert D.size and not A.size
    arguments = run(*(operation, p, A, B, C, D), split_k_slices=slices, output_op=operation.epilogue_type(*scalars))
    expected = np.full(D.shape, scalars[0] * 0.0)
    if scalars[1]:
        expected = expected + scalars[1] * C.astype(float)
    # Numbers below the least normal one of float16 are rounded to a multiple of 2^-24, which is no small part of them.
    np.testing.assert_allclose(D.astype(float), expected, rtol=1e-3, atol=2.0**-24)
    D[:] = np.nan
    arguments.update(C=np.ones_like(C), A=A.copy())
    operation.run(arguments)
    np.testing.assert_array_equal(D, np.full(D.shape, scalars[0] * 0.0 + scalars[1], D.dtype))
    assert getattr(arguments.problem_size, axis) == 0, "the problem is the user's"


@pytest.mark.parametrize(("kind", "axis"), [*NO_PRODUCTS, (fprop, "N"), (wgrad, "K")], ids=str)
def test_a_reduction_of_no_partial_sums(kind: Any, axis: str) -> None:
    operation, p = SIMT[kind], size(**{axis: 0})
    A, B, C, D = tensors(operation, p)
    sums = run(operation, p, A, B, split_k_mode=SplitKMode.Parallel, split_k_slices=3)
    product = pycutlass.cutlass.conv.implicit_gemm_problem_size(kind, sums.problem_size)
    ending = reduction(operation)
    flat = {"destination": D.reshape(product.m(), product.n()), "source": C.reshape(product.m(), product.n())}
    ends = ReductionArguments(
        *(ending, (product.m(), product.n()), 3, sums.ptr_D), **flat, output_op=ending.epilogue_type(1.0, 3.0)
    )
    ending.run(ends)
    ends.sync()
    np.testing.assert_array_equal(D, 3 * C)


@pytest.mark.parametrize(("kind", "axis"), [*EMPTY, *NO_PRODUCTS], ids=str)
@pytest.mark.parametrize("layout", ["channels last", "contiguous", "flat"])
def test_tensors_of_torch(kind: Any, axis: str, layout: str) -> None:
    operation, p = SIMT[kind], size(**{axis: 0})
    operands = []
    for n, h, w, c in (*extents_of(kind, p), extents_of(kind, p)[2]):
        made = torch.full((n, c, h, w), 7.0).contiguous(memory_format=torch.channels_last)
        if made.numel() == 0 and layout != "channels last":
            made = made.flatten() if layout == "flat" else made.contiguous()
        operands.append(made)
    run(operation, p, *operands, output_op=operation.epilogue_type(1.0, 0.5))
    assert (operands[3] == 3.5).all()


def test_problems_and_shapes_of_torch_without_images() -> None:
    operation = SIMT[fprop]
    x = torch.empty(0, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    w = torch.randn(5, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    p = pycutlass.conv2d_problem_size(x, w, padding=1)
    y = torch.empty(0, 5, 8, 8)
    assert functional.conv2d(x, w, padding=1).shape == y.shape
    run(operation, p, x, w, None, y)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if not name.startswith("f16_fprop_fixed")])
@pytest.mark.parametrize("axis", "NCK")
def test_every_kernel_takes_no_images_and_no_channels(name: str, axis: str) -> None:
    operation = OPERATIONS[name]
    groups = 1 if operation.group_mode is None else 2
    p = size(**{"C": 64 * groups, "K": 64 * groups, "groups": groups, axis: 0})
    if not operation.supports(p):  # few channels, wide groups: as with images
        assert not operation.supports(size(C=64 * groups, K=64 * groups, groups=groups))
        return
    elements = [np.prod(extent) for extent in extents_of(operation.conv_kind, p)]
    A, B, C = (
        np.ones(count, described.type.dtype)
        for count, described in zip(elements, (operation.A, operation.B, operation.C), strict=True)
    )
    D = np.full_like(C, 9)
    run(operation, p, A, B, C, D, output_op=operation.epilogue_type(1.0, 0.0))
    np.testing.assert_array_equal(D, np.broadcast_to(_activated_zero(operation), D.shape))


def _activated_zero(operation: Any) -> Any:
    scalars = operation.epilogue_type(1.0, 0.0)
    return np.asarray(operation.epilogue_functor.reference(np.zeros(1), None, scalars.values)).astype(float)


@pytest.mark.parametrize(
    ("kind", "axis", "name", "shape", "words"),
    [
        (fprop, "N", "A", (1, 9, 8, 16), ["operand A", "(0, 9, 8, 16)", "(1, 9, 8, 16)"]),
        (fprop, "N", "D", (0, 9, 9, 24), ["operand D", "(0, 7, 6, 24)", "(0, 9, 9, 24)"]),
        (fprop, "N", "B", (24, 3, 3, 8), ["operand B", "(24, 3, 3, 16)", "(24, 3, 3, 8)"]),
        (wgrad, "N", "B", (1, 9, 8, 16), ["operand B", "(0, 9, 8, 16)", "(1, 9, 8, 16)"]),
        (wgrad, "N", "D", (24, 3, 3, 8), ["operand D", "(24, 3, 3, 16)", "(24, 3, 3, 8)"]),
    ],
)
def test_wrong_operands_are_refused(kind: Any, axis: str, name: str, shape: Any, words: list[str]) -> None:
    operation, p = SIMT[kind], size(**{axis: 0})
    A, B, _, D = tensors(operation, p)
    given = {"A": A, "B": B, "C": None, "D": D}
    with pytest.raises(ArgumentError) as caught:
        Conv2dArguments(operation, p, **{**given, name: np.empty(shape, np.float32)})
    assert all(word in str(caught.value) for word in words), caught.value
    with pytest.raises(ArgumentError, match=f"operand {name}, the .* is missing"):
        Conv2dArguments(operation, p, **{**given, name: None})
    with pytest.raises(ArgumentTypeError, match=f"operand {name}"):
        Conv2dArguments(operation, p, **{**given, name: given[name].astype(np.float64)})
