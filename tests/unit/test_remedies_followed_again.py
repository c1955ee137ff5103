"""Remedies that led to another refusal, or to something else than was meant: each is followed to the letter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from convolutions import conv, fprop
from descriptions import COLUMN, ROW, ampere, parts
from groups import grouped

import pycutlass
from pycutlass import GemmArguments, GemmGroupedArguments, TensorDescription, TileDescription, cutlass
from pycutlass.enums import GroupMode
from pycutlass.epilogue import FastLinearCombinationClamp, LinearCombination, LinearCombinationGeneric, leaky_relu
from pycutlass.errors import PyCutlassError

pytestmark = pytest.mark.usefixtures("without_gpu")


def said(call: Any) -> str:
    with pytest.raises((PyCutlassError, AttributeError)) as refused:
        call()
    return str(refused.value)


def test_both_paddings_are_named_and_not_one() -> None:
    keywords = dict.fromkeys("NHWCKRS", 3)
    text = said(lambda: cutlass.conv.Conv2dProblemSize(**keywords, pad=1))
    assert text.endswith("Did you mean pad_h, pad_w, padding?")
    size = cutlass.conv.Conv2dProblemSize(**keywords, pad_h=1, pad_w=1)
    assert (size.P, size.Q) == (3, 3)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_bits_of_bfloat16_are_viewed(library: str) -> None:
    ml_dtypes, operation = pytest.importorskip("ml_dtypes"), ampere("bf16", (ROW, COLUMN, ROW))
    A: Any = np.arange(64.0).reshape(8, 8).astype(ml_dtypes.bfloat16).view(np.uint16)
    B, D = np.asfortranarray(np.eye(8).astype(ml_dtypes.bfloat16)), np.zeros((8, 8), ml_dtypes.bfloat16)
    names = {"ml_dtypes": ml_dtypes}
    if library == "torch":
        torch = names["torch"] = pytest.importorskip("torch")
        A = torch.from_numpy(A.view(np.int16))
    text = said(lambda: GemmArguments(operation, (8, 8, 8), A, B, None, D))
    code = re.search(r"Pass (A\.view\(.*?\)) if it has the bits of bfloat16, or A\.(astype|to)\(", text)
    assert code, text
    operation.run(GemmArguments(operation, (8, 8, 8), eval(code[1], {"A": A, **names}), B, None, D))
    assert (D.astype(float) == np.arange(64.0).reshape(8, 8)).all()


def test_another_shape_and_other_warps_are_named_together() -> None:
    described = parts("f16", (ROW, COLUMN, ROW))
    math = described["tile_description"].math_instruction

    def make(shape: list[int], warps: list[int]) -> Any:
        tile = TileDescription(shape, 3, warps, math)
        return pycutlass.GemmOperationUniversal(**{**described, "tile_description": tile})

    text = said(lambda: make([128, 128, 128], [2, 2, 4]))
    found = re.search(r"for example threadblock_shape (\[.*?\]) and warp_count (\[.*?\])", text)
    assert found, text
    make(eval(found[1]), eval(found[2]))


def test_the_functor_of_a_reduction_and_its_count() -> None:
    half = LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    C = TensorDescription(cutlass.float32, cutlass.RowMajor, 4)
    text = said(lambda: pycutlass.ReductionOperation((4, 256), C, cutlass.float32, epilogue_functor=half, count=8))
    assert "give count=4, and give the functor element_output=cutlass.float32, epilogue_vector_length=4" in text
    full = LinearCombination(cutlass.float32, 4, cutlass.float32, cutlass.float32)
    pycutlass.ReductionOperation((4, 256), C, cutlass.float32, epilogue_functor=full, count=4)

    C = TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    for shape, how, words in (
        ((4, 256), {}, "give count=8, or give the functor epilogue_vector_length=1"),
        ((4, 256), {"count": 4}, "give count=8, or give the functor epilogue_vector_length=4"),
        ((4, 256), {"count": 3}, "give count=8"),  # no functor moves three elements at a time
        ((4, 100), {"count": 8}, "use 4 x 256"),
    ):
        text = said(
            lambda shape=shape, how=how: pycutlass.ReductionOperation(
                shape, C, cutlass.float32, epilogue_functor=half, **how
            )
        )
        assert text.endswith(words), text
    pycutlass.ReductionOperation((4, 256), C, cutlass.float32, epilogue_functor=half, count=8)


def test_the_functor_for_long_sums_is_one() -> None:
    text = said(lambda: FastLinearCombinationClamp(cutlass.int8, 2))
    made = eval(text.partition("use ")[2], {**vars(pycutlass), "cutlass": cutlass})
    assert made == pycutlass.LinearCombinationClamp(cutlass.int8, 2, cutlass.int32, cutlass.float32)
    for functor, output in ((pycutlass.LinearCombinationClamp, "int8"), (LinearCombination, "bfloat16")):
        text = said(lambda functor=functor, output=output: functor(getattr(cutlass, output), 4))
        code = text.partition("give the functor ")[2].replace(" and ", ", ")
        eval(
            f"functor(output, 4, {code})", {"functor": functor, "output": getattr(cutlass, output), "cutlass": cutlass}
        )


def test_layouts_with_channels_first() -> None:
    for call in (
        lambda: cutlass.TensorNCHW,
        lambda: TensorDescription(cutlass.float16, cutlass.layout.TensorNCHW, 8),
    ):
        assert "Did you mean cutlass.TensorNHWC, whose channels are adjacent" in said(call)


def test_words_of_a_name_in_another_order() -> None:
    functor = LinearCombinationGeneric(
        leaky_relu(cutlass.float32), cutlass.float16, 8, cutlass.float32, cutlass.float32
    )
    made = pycutlass.GemmOperationUniversal(**{**parts("f16"), "epilogue_functor": functor})
    assert said(lambda: made.epilogue_type(1, 0, alpha_leaky=0.1)).endswith("Did you mean leaky_alpha?")
    made.epilogue_type(1, 0, leaky_alpha=0.1)


def test_shapes_are_no_tensors() -> None:
    x, w = np.zeros((1, 8, 8, 16), np.float16), np.zeros((32, 3, 3, 16), np.float16)
    text = said(lambda: pycutlass.conv2d_problem_size(x.shape, w.shape))
    assert text == "x must be a tensor, got the shape (1, 8, 8, 16): pass x, or TensorSpec((1, 8, 8, 16), dtype)"
    specs = [pycutlass.TensorSpec(each.shape, each.dtype) for each in (x, w)]
    assert pycutlass.conv2d_problem_size(x, w) == pycutlass.conv2d_problem_size(*specs)
    with pytest.raises(PyCutlassError) as refused:
        pycutlass.conv2d_problem_size(x.tolist(), w)
    assert type(refused.value) is pycutlass.errors.ArgumentTypeError


@pytest.mark.parametrize("mode", list(GroupMode)[:2])
def test_filters_that_no_tile_takes_are_launched_alone(mode: GroupMode) -> None:
    size = pycutlass.conv2d_problem_size(
        np.zeros((1, 8, 8, 32), np.float16), np.zeros((48, 3, 3, 16), np.float16), groups=2
    )
    reason = conv(fprop, "analytic", group_mode=mode).supports(size).reason
    assert reason.endswith("launch once for each group with a kernel without group_mode"), reason
    alone = pycutlass.conv2d_problem_size(np.zeros((1, 8, 8, 16), np.float16), np.zeros((24, 3, 3, 16), np.float16))
    assert conv(fprop, "analytic").supports(alone)


def test_one_tensor_for_all_problems_is_named_where_one_fits() -> None:
    operation, size = grouped("f32_simt"), (4, 4, 4)
    one = np.ones((4, 4), np.float32)
    operands: dict[str, Any] = {"A": [one] * 2, "B": [np.asfortranarray(one)] * 2, "D": [one.copy() for _ in "ab"]}

    def make(sizes: Any, **changed: Any) -> Any:
        given = {**operands, **changed}
        return GemmGroupedArguments(operation, sizes, given["A"], given["B"], None, given["D"])

    for A, code in ((one, "A=[A] * 2"), ([one], "A=[A[0]] * 2")):
        assert code in said(lambda A=A: make([size] * 2, A=A))
        make([size] * 2, **{"A": eval(code.partition("=")[2], {"A": A})})
    assert "of all problems" not in said(lambda: make([size, (8, 4, 4)], A=one))
    assert "of all problems" not in said(lambda: make([size] * 3))
    assert "of all problems" not in said(lambda: make([size] * 2, D=one))


def test_a_workspace_is_the_address_of_sums() -> None:
    operation = ampere("f16")
    A, B = np.ones((64, 64), np.float16), np.asfortranarray(np.ones((64, 64), np.float16))
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    made = GemmArguments(operation, (64, 64, 64), A, B, None, None, gemm_mode=mode, split_k_slices=2)
    reduction = pycutlass.ReductionOperation((4, 256), operation.C, cutlass.float32, count=8)
    D = np.zeros((64, 64), np.float16)
    text = said(lambda: pycutlass.ReductionArguments(reduction, [64, 64], 2, made, D))
    assert text.endswith("pass their ptr_D")
    operation.run(made)
    sums = pycutlass.ReductionArguments(reduction, [64, 64], 2, made.ptr_D, D)
    reduction.run(sums)
    assert (D == 64).all()


def test_a_source_of_0_is_none() -> None:
    operation, A, D = ampere("f16"), np.eye(8, dtype=np.float16), np.zeros((8, 8), np.float16)
    text = said(lambda: GemmArguments(operation, (8, 8, 8), A, np.asfortranarray(A), 0, D))
    assert text.endswith("it would not be read. Pass C=None.")
    operation.run(GemmArguments(operation, (8, 8, 8), A, np.asfortranarray(A), None, D))
    assert (D == A).all()
