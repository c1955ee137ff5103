"""Names, members and objects of the wrong kind: each message names the cause, and what was meant, once."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from convolutions import SIMT, conv, f32, fprop, reduction
from descriptions import ROW, ampere, native_parts, parts

import pycutlass
from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    LinearCombination,
    LinearCombinationGeneric,
    MathInstruction,
    MathOperation,
    TileDescription,
    conv2d_problem_size,
    cutlass,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, PyCutlassError, UnknownNameError

pytestmark = pytest.mark.usefixtures("without_gpu")

F32 = cutlass.float32
OPERATION = ampere("f32_simt", (ROW, ROW, ROW))
PARTS = parts("f32_simt", (ROW, ROW, ROW))
GROUPED = GemmOperationGrouped(**{name: part for name, part in PARTS.items() if name != "swizzling_functor"})
CONVOLUTION = conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT)
SQUARE = np.ones((4, 4), np.float32)
NATIVE = native_parts()["tile_description"].math_instruction


def arguments(**further: Any) -> GemmArguments:
    return GemmArguments(OPERATION, (4, 4, 4), SQUARE, SQUARE, None, SQUARE.copy(), **further)


def described(**changes: Any) -> GemmOperationUniversal:
    return GemmOperationUniversal(**{**PARTS, **changes})


NAMES: list[tuple[Callable[[], Any], str]] = [
    (lambda: cutlass.OpClass.Tensorop, "TensorOp"),
    (lambda: MathOperation.multiply_ad, "multiply_add"),
    (lambda: cutlass.TensorOp, "cutlass.OpClass.TensorOp"),
    (lambda: cutlass.GemmCoord, "cutlass.gemm.GemmCoord"),
    (lambda: cutlass.Batched, "cutlass.gemm.Mode.Batched"),
    (lambda: cutlass.gemm.RowMajor, "cutlass.RowMajor"),
    (lambda: cutlass.fprop, "cutlass.conv.Operator.fprop"),
    (lambda: cutlass.half, "cutlass.float16"),
    (lambda: cutlass.fp16, "cutlass.float16"),
    (lambda: cutlass.RowMajr, "RowMajor"),
    (lambda: pycutlass.GemmOperation, "GemmOperationUniversal"),
    (lambda: pycutlass.gemm_operatio, "gemm_operation"),
    (lambda: pycutlass.compiler.add_modul, "add_module"),
    (lambda: arguments().snyc(), "sync"),
    (lambda: arguments().ptr_E, "ptr_D"),
    (lambda: cutlass.gemm.GemmCoord(1, 2, 3).M, "m"),
    (lambda: cutlass.MatrixCoord(1, 2).rows, "row"),
    (lambda: cutlass.conv.Conv2dProblemSize(1, 8, 8, 8, 8, 3, 3).padh, "pad_h"),
]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=[meant for _, meant in NAMES])
def test_names_are_suggested_once(number: int) -> None:
    ask, meant = NAMES[number]
    with pytest.raises(AttributeError, match=rf"Did you mean {meant}\?$") as caught:
        ask()
    printed = "".join(traceback.format_exception_only(caught.value))
    assert printed.count("id you mean") == 1, "Python adds none of its own"


def test_names_that_are_near_nothing() -> None:
    for ask in (lambda: arguments().zebra, lambda: cutlass.gemm.GemmCoord(1, 2, 3).zebra, lambda: cutlass.zebra):
        with pytest.raises(AttributeError, match=r"has no attribute 'zebra'$"):
            ask()
    assert not hasattr(arguments(), "__zebra__") and not hasattr(cutlass.gemm.GemmCoord(1, 2, 3), "__zebra__")


@pytest.mark.parametrize("kind", [cutlass.layout, cutlass.dtype])
def test_classes_that_are_no_members(kind: Any) -> None:
    name = "RowMajor" if kind is cutlass.layout else "float16"
    with pytest.raises(AttributeError, match=rf"has no member {name}; .* Write cutlass.{name}\.$"):
        getattr(kind, name)


def test_keywords() -> None:
    with pytest.raises(ArgumentTypeError, match=r"no keyword element_acc; .* Did you mean element_accumulator\?$"):
        LinearCombination(F32, 1, element_acc=F32)  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match=r"Did you mean element_accumulator\?$"):
        MathInstruction([1, 1, 1], F32, F32, element_acc=F32)  # type: ignore[arg-type, call-arg]
    with pytest.raises(ArgumentTypeError) as caught:
        cutlass.conv.Conv2dProblemSize(n=1, h=8, w=8, c=8, k=8, r=3, s=3)
    assert str(caught.value).endswith("Did you mean N, H, W, C, K, R, S?") and "mode, split_k" in str(caught.value)
    with pytest.raises(ArgumentTypeError, match=r"^epilogue_type has no keyword bta; .* mean beta\?$"):
        OPERATION.epilogue_type(1.0, bta=0)
    with pytest.raises(ArgumentTypeError, match=r"Make new arguments for another problem_size\.$"):
        arguments().update(problem_size=(8, 8, 8))
    grouped = GemmGroupedArguments(GROUPED, [(4, 4, 4)], [SQUARE], [SQUARE], None, [SQUARE.copy()])
    with pytest.raises(ArgumentTypeError, match=r"Did you mean problem_sizes\?$"):
        grouped.update(problem_size=[(4, 4, 4)])


TEXTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: LinearCombinationGeneric("gelu", F32, 1), "gelu"),
    (lambda: arguments(gemm_mode="Batched"), "cutlass.gemm.Mode.Batched"),
    (lambda: arguments(raster_order="AlongN"), "RasterOrder.AlongN"),
    (lambda: TileDescription([64, 128, 64], None, None, NATIVE, [1, 1], "Pingpong"), "KernelSchedule.Pingpong"),  # type: ignore[arg-type]
    (lambda: conv("fprop", "optimized", (f32, f32, f32), opcode=SIMT), "cutlass.conv.Operator.fprop"),
    (lambda: conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT, stride="Unity"), "StrideSupport.Unity"),
    (lambda: described(swizzling_functor="IdentitySwizzle1"), "cutlass.IdentitySwizzle1"),
    (lambda: GemmOperationGrouped(**{**PARTS, "swizzling_functor": "IdentitySwizzle2"}), "cutlass.IdentitySwizzle2"),
    (lambda: GemmOperationGrouped(**{**PARTS, "precompute_mode": "Host"}), "SchedulerMode.Host"),
    (lambda: described(compute_capability="80"), "80"),
]


@pytest.mark.parametrize("number", range(len(TEXTS)), ids=[meant for _, meant in TEXTS])
def test_texts_in_place_of_members(number: int) -> None:
    make, meant = TEXTS[number]
    with pytest.raises(PyCutlassError, match=rf"Did you mean {meant}, without quotes\?$"):
        make()
    assert eval(meant, {**vars(pycutlass)}) is not None


def test_modes_are_listed_as_they_are_written() -> None:
    with pytest.raises(ArgumentError, match=r"cutlass\.gemm\.Mode\.Batched, cutlass\.gemm\.Mode\.Array; got 7$"):
        arguments(gemm_mode=7)


def test_dimensions_in_another_order() -> None:
    x, w = np.ones((1, 4, 8, 8), np.float32), np.ones((8, 4, 3, 3), np.float32)
    with pytest.raises(ArgumentError) as caught:
        conv2d_problem_size(x, w)
    assert "x was read as (N, H, W, C); if it is (N, C, H, W), pass x.transpose(0, 2, 3, 1)" in str(caught.value)
    assert "w was read as (K, R, S, C); if it is (K, C, R, S), pass w.transpose(0, 2, 3, 1)" in str(caught.value)
    size = conv2d_problem_size(x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1))
    with pytest.raises(ArgumentError, match=r"x was read as \(N, C, H, W\); if it is \(N, H, W, C\), pass x.permute"):
        conv2d_problem_size(torch.from_numpy(x).permute(0, 2, 3, 1), torch.from_numpy(w).permute(0, 2, 3, 1))
    assert conv2d_problem_size(torch.from_numpy(x), torch.from_numpy(w)) == size
    with pytest.raises(ArgumentError, match=r"was read as"):  # from the extents themselves: the filter is too large
        conv2d_problem_size(np.ones((1, 2, 2, 4), np.float32), np.ones((8, 3, 3, 4), np.float32))


def test_a_class_in_place_of_an_object() -> None:
    with pytest.raises(DescriptionError, match=r"is the class LinearCombination; call it: LinearCombination\(\.\.\.\)"):
        described(epilogue_functor=LinearCombination)
    with pytest.raises(ArgumentTypeError, match="got the class GemmOperationUniversal: make an operation of it first"):
        GemmArguments(GemmOperationUniversal, (4, 4, 4), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [GemmArguments, GemmGroupedArguments, Conv2dArguments, pycutlass.ReductionArguments])
def test_operations_of_other_arguments(kind: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^operation is missing: give a "):
        kind(None, None, None, None)
    for operation, fitting in (
        (OPERATION, GemmArguments),
        (GROUPED, GemmGroupedArguments),
        (CONVOLUTION, Conv2dArguments),
    ):
        if fitting is not kind:
            with pytest.raises(ArgumentTypeError, match=rf"its arguments are {fitting.__name__}$"):
                kind(operation, None, None, None)


def test_one_bias_of_an_array() -> None:
    lists, bias = [SQUARE] * 2, SQUARE[0].copy()

    def make(C: Any) -> GemmArguments:
        D, scalars = [SQUARE.copy(), SQUARE.copy()], OPERATION.epilogue_type(1.0, 1.0)
        return GemmArguments(
            OPERATION, (4, 4, 4), lists, lists, C, D, cutlass.gemm.Mode.Array, batch=2, output_op=scalars
        )

    with pytest.raises(ArgumentTypeError, match=r"For one bias of all problems pass \[C\] \* 2$"):
        make(bias)
    assert make([bias] * 2).bias


def test_types_and_targets_that_disagree() -> None:
    half = parts("f16")
    functor = LinearCombination(F32, 4, F32, F32)
    with pytest.raises(
        DescriptionError,
        match=r"epilogue_vector_length=8, or describe C with cutlass.float32 and alignment 4$",
    ):
        GemmOperationUniversal(**{**half, "epilogue_functor": functor})
    with pytest.raises(DescriptionError, match=r"got 81. Kernels for 80, the nearest below it, run on GPUs of 81"):
        described(compute_capability=81)


def test_texts_of_arguments_and_scalars() -> None:
    text = repr(arguments())
    assert text.startswith(f"<GemmArguments of {OPERATION.procedural_name()}: problem_size=")
    assert "Mode.Gemm" in text and "object at" not in text
    scalars = LinearCombination(cutlass.float16, 8, F32, F32).epilogue_type(2.0, 0.1)
    assert repr(scalars) == "EpilogueScalars(2.0, 0.1, computed in cutlass.float32)"


LOOKUPS: list[tuple[Callable[[], Any], str]] = [
    (lambda: pycutlass.GemmKind["Unversal"], "GemmKind has no member 'Unversal'; it has .* Did you mean Universal"),
    (lambda: MathOperation["multiply_ad"], "Did you mean multiply_add"),
    (lambda: cutlass.OpClass["Tensorop"], "Did you mean TensorOp"),
    (lambda: cutlass.dtype["cf31"], "Did you mean cf32"),
    (lambda: cutlass.gemm.Mode["zz"], r"it has Gemm, .*Invalid\.$"),
    (lambda: cutlass.conv.Operator[3], "has no member 3"),
    (lambda: cutlass.conv.Mode[["x"]], r"has no member \['x'\]"),
    (lambda: pycutlass.DataTypeSize["float16"], "Did you mean cutlass.float16, without quotes"),
    (
        lambda: pycutlass.ShortDataTypeNames[cutlass.int8],
        "not in this table of .*cutlass.float16.*cutlass.dtype.cf32",
    ),
    (lambda: OPERATION.epilogue_type(1.0)["alhpa"], "output_op has no scalar 'alhpa'.* Did you mean alpha"),
]


@pytest.mark.parametrize("number", range(len(LOOKUPS)))
def test_what_is_looked_up_in_brackets(number: int) -> None:
    lookup, words = LOOKUPS[number]
    with pytest.raises(UnknownNameError, match=words) as caught:
        lookup()
    assert isinstance(caught.value, KeyError), "as scripts expect of a mapping"
    assert str(caught.value)[0] != '"', "the message as it is, and no literal of it"


@pytest.mark.parametrize(
    ("operation", "instead"),
    [
        (CONVOLUTION, "Use pycutlass.conv2d_problem_size(activation, filter"),
        (GROUPED, "a list of (M, N, K), one for each GEMM"),
        (reduction(CONVOLUTION), "Use pycutlass.ReductionProblemSize(rows, columns, partitions)"),
    ],
)
def test_an_operation_without_problem_of_says_what_serves(operation: Any, instead: str) -> None:
    with pytest.raises(AttributeError) as caught:
        _ = operation.problem_of
    kind = type(operation).__name__
    assert str(caught.value).startswith(f"{kind} has no attribute 'problem_of'. ") and instead in str(caught.value)
    assert not hasattr(operation, "problem_of")


def test_a_visitor_that_is_none_is_refused() -> None:
    with pytest.raises(DescriptionError, match="visitor=True is for an EpilogueVisitTree, or an epilogue function"):
        described(visitor=True)
