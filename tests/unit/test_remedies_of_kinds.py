"""Values of another kind: what a message tells to pass instead is read from it, passed, and accepted."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convolutions import conv, dgrad, fprop
from descriptions import ROW, ampere, hopper, native_parts, parts

import pycutlass
from pycutlass import (
    Conv2dOperation,
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    GroupMode,
    LinearCombination,
    LinearCombinationGeneric,
    MathInstruction,
    RasterOrder,
    ReductionOperation,
    TensorDescription,
    TensorSpec,
    cutlass,
    relu,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, PyCutlassError

pytestmark = pytest.mark.usefixtures("without_gpu")

f16, f32 = cutlass.float16, cutlass.float32
Mode = cutlass.gemm.Mode
NAMES = {"cutlass": cutlass, "pycutlass": pycutlass, **vars(pycutlass)}


def said(call: Any) -> str:
    with pytest.raises(PyCutlassError) as caught:
        call()
    return str(caught.value)


def test_a_problem_of_another_kind_names_one_that_is_taken() -> None:
    convolution, gemm = conv(fprop, "optimized"), ampere()
    message = said(lambda: convolution.supports((1, 8, 8, 64)))
    assert convolution.supports(eval(re.search(r"pass (cutlass\S*\(.*?\)), say", message)[1], NAMES))
    assert gemm.supports(eval(re.search(r"such as (\(.*?\))", said(lambda: gemm.supports((1, 2))))[1]))
    reduction = ReductionOperation(cutlass.MatrixCoord(4, 256), TensorDescription(f16, ROW, 8), f32, count=8)
    message = said(lambda: reduction.supports(GemmProblemSize(64, 128, 32)))
    assert reduction.supports(eval(re.search(r": pass (\(.*?\))", message)[1]))
    described = parts()
    described.pop("swizzling_functor")
    group = GemmOperationGrouped(**described)
    for given in (GemmProblemSize(64, 128, 32), [GemmProblemSize(64, 128, 32)]):
        message = said(lambda given=given: group.supports(given))
        size = re.search(r"\((\d+), (\d+), (\d+)\)$|\[\((\d+), (\d+), (\d+)\)\]$", message)
        assert group.supports([tuple(int(number) for number in size.groups() if number)])


def test_an_activation_belongs_to_its_functor() -> None:
    calls = [
        lambda: LinearCombination(f16, 8, f32, f32, "relu"),
        lambda: LinearCombination("relu", f16, 8, f32, f32),
        lambda: LinearCombination(f16, 8, f32, "relu"),
        lambda: LinearCombination(f16, relu()),
        lambda: LinearCombination(f16, 8, activation="relu"),
        lambda: GemmOperationUniversal(**parts(), activation="relu"),
        lambda: GemmOperationUniversal(**{**parts(), "epilogue_functor": relu()}),
    ]
    for call in calls:
        match = re.search(r"LinearCombinationGeneric\((pycutlass\.relu\(\)), element_output, epilogue_", said(call))
        functor = LinearCombinationGeneric(eval(match[1], NAMES), f16, 8, f32, f32)
        assert GemmOperationUniversal(**{**parts(), "epilogue_functor": functor}).emit()
    assert "the activation comes first" in said(lambda: LinearCombinationGeneric(f16, 8, f32, f32, relu()))


@pytest.mark.parametrize("keyword", ["stride", "dilation", "padding", "groups", "split_k_slices"])
def test_a_number_out_of_range_is_named_and_not_the_order_of_dimensions(keyword: str) -> None:
    x, w = np.zeros((1, 8, 8, 16), np.float16), np.zeros((32, 3, 3, 16), np.float16)
    with pytest.raises(ArgumentError, match=rf"{keyword} must be from (\d)") as caught:
        pycutlass.conv2d_problem_size(x, w, **{keyword: -1})
    assert "was read as" not in str(caught.value)
    least = int(re.search(r"from (\d)", str(caught.value))[1])
    assert pycutlass.conv2d_problem_size(x, w, **{keyword: least}).K == 32
    with pytest.raises(ArgumentTypeError, match=r"Did you mean cutlass\.conv\.Mode\.convolution"):
        pycutlass.conv2d_problem_size(x, w, mode="convolution")


@pytest.mark.parametrize("extents", [(16, 24, 0), (0, 24, 16)])
def test_a_table_of_nothing_is_told_to_be_a_list(extents: tuple[int, int, int]) -> None:
    operation, (m, n, k) = ampere("f32_simt", (ROW, ROW, ROW)), extents
    size, table = GemmProblemSize(*extents, Mode.Array, batch=2), TensorSpec((2,), "int64")
    reason = operation.supports(size, {"A": table}).reason
    rows, columns = map(int, re.search(r"matrices of (\d+) x (\d+), .*pass a list of 2 tensors", reason).groups())
    shapes = {"A": (m, k), "B": (k, n), "D": (m, n)}
    assert (rows, columns) == shapes["A"]
    assert operation.supports(size, {"A": [TensorSpec((rows, columns), f32)] * 2})
    given: dict[str, Any] = {name: [np.ones(shape, np.float32) for _ in range(2)] for name, shape in shapes.items()}
    with pytest.raises(ArgumentTypeError, match="pass a list of 2 tensors of that shape"):
        GemmArguments(operation, size, np.zeros(2, np.int64), given["B"], None, given["D"])
    arguments = GemmArguments(operation, size, given["A"], given["B"], None, given["D"])
    operation.run(arguments)
    arguments.sync()
    assert all(not each.any() for each in given["D"])


def test_a_mode_that_stream_k_lacks_names_the_swizzle_that_has_it() -> None:
    size = GemmProblemSize(64, 64, 64, Mode.Array, batch=2)
    assert hopper().supports(size)
    stream_k = ampere(swizzle=cutlass.ThreadblockSwizzleStreamK).supports(size).reason
    swizzle = eval(re.search(r"swizzling_functor=(cutlass\.\w+)", stream_k)[1], NAMES)
    assert ampere(swizzle=swizzle).supports(size)


def test_a_convolution_is_told_the_whole_tile() -> None:
    operation, native = conv(fprop, "optimized"), native_parts()["tile_description"]
    described = {name: getattr(operation, name) for name in operation._FIELDS}
    message = said(lambda: Conv2dOperation(**described | {"tile_description": native}))
    changes = {name: eval(text) for name, text in re.findall(r"(\w+)=(\[[\d, ]+\]|\d+)", message)}
    instruction = MathInstruction(changes.pop("instruction_shape"), f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = replace(native, cluster_shape=None, kernel_schedule=None, math_instruction=instruction, **changes)
    assert Conv2dOperation(**described | {"tile_description": tile}).emit()


def test_no_strided_dgrad_is_told_to_have_two_stages() -> None:
    operation = conv(dgrad, "optimized")
    described = {name: getattr(operation, name) for name in operation._FIELDS} | {"compute_capability": 86}
    wide = replace(operation.tile_description, threadblock_shape=(256, 128, 64), warp_count=(4, 2, 1))
    message = said(lambda: Conv2dOperation(**described | {"tile_description": wide}))
    shape = eval(re.search(r"threadblock_shape (\[[\d, ]+\])$", message)[1])
    assert " 2 stages" not in message.rpartition("use ")[2]
    assert Conv2dOperation(**described | {"tile_description": replace(wide, threadblock_shape=shape)}).emit()


@pytest.mark.parametrize("filters", [96, 256])
def test_the_other_mode_of_groups_is_named_where_it_takes_them(filters: int) -> None:
    size = cutlass.conv.Conv2dProblemSize(N=1, H=8, W=8, C=128, K=2 * filters, R=1, S=1, groups=2)
    reason = conv(fprop, "analytic", group_mode=GroupMode.MultipleGroup).supports(size).reason
    other = conv(fprop, "analytic", group_mode=GroupMode.SingleGroup).supports(size)
    assert ("use SingleGroup" in reason) == bool(other), reason


def test_an_order_is_known_by_its_letter() -> None:
    A = np.ones((64, 64), np.float16)
    for given in ("N", "along n", "AlongN"):
        message = said(lambda given=given: GemmArguments(hopper(), (64, 64, 64), A, A.T, None, A, raster_order=given))
        assert eval(re.search(r"Did you mean (\S+),", message)[1], NAMES) is RasterOrder.AlongN


def test_a_reduction_is_told_all_that_follows_from_its_count() -> None:
    C, shape = TensorDescription(f16, ROW, 4), cutlass.MatrixCoord(4, 256)
    message = said(lambda: ReductionOperation(shape, C, f32, count=8))
    count = int(re.search(r"use count=(\d+) and give the functor epilogue_vector_length=\1, or describe C", message)[1])
    assert ReductionOperation(shape, C, f32, count=count).emit()
    alignment = int(re.search(r"describe C with alignment (\d+)", message)[1])
    assert ReductionOperation(shape, TensorDescription(f16, ROW, alignment), f32, count=8).emit()
    with pytest.raises(DescriptionError, match="to make them the same"):
        ReductionOperation(shape, C, f32, epilogue_functor=LinearCombination(f16, 4), count=4)
    functor = LinearCombination(f16, 4, f32, f32)
    assert ReductionOperation(shape, C, f32, epilogue_functor=functor, count=4).emit()
