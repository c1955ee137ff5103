"""What is wrong with epilogues of products in one line: each message says what to write instead, and that is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.epilogue import Scalar, Tensor, fusions
from pycutlass.errors import ArgumentError, PyCutlassError

pytestmark = pytest.mark.usefixtures("without_gpu")

A, BYTES = np.ones((16, 16), np.float16), np.ones((16, 16), np.int8)
PIXELS, FILTERS = np.ones((1, 4, 4, 16), np.int8), np.ones((16, 3, 3, 16), np.int8)
f16, f32, s32 = cutlass.float16, cutlass.float32, cutlass.int32
SCALES = {"row_scale": np.ones(16, np.float32), "column_scale": np.ones(16, np.float32), "bias": A[0]}


@pycutlass.epilogue_function
def halved(accum: Any, alpha: Scalar = 0.5) -> Any:
    return alpha * accum


def multiplied(**options: Any) -> Any:
    return pycutlass.matmul(A, A, **options)


def of_bytes(**options: Any) -> Any:
    return pycutlass.matmul(BYTES, BYTES.T, **options)


def convolved(**options: Any) -> Any:
    return pycutlass.conv2d(PIXELS, FILTERS, padding=1, **options)


def grouped(**options: Any) -> Any:
    return pycutlass.grouped_matmul([BYTES], [BYTES.T], **options)[0]


def layer(epilogue: Any, **options: Any) -> Any:
    return pycutlass.linear(BYTES, BYTES, activation=epilogue, **options)


@pycutlass.epilogue_function
def masked(accum: Any, mask: Tensor, fill: Scalar = 0.0) -> Any:
    return epilogue.where(mask != 0, accum, fill)


@pycutlass.epilogue_function
def selected(accum: Any) -> Any:
    values, indices = epilogue.top_k(accum, 2)
    return {"D": accum, "values": values, "indices": indices}


def selecting(columns: int) -> Any:
    inputs = {"values": np.zeros((16, 2), np.float32), "indices": np.zeros((16, 2), np.int32)}
    return pycutlass.matmul(A, np.ones((16, columns), np.float16), epilogue=selected, epilogue_inputs=inputs)


FLAGS = A > 0
HOST_FLAGS = torch.ones(16, 16, dtype=torch.bool)
HALVES = torch.ones(16, 16, dtype=torch.float16)
_AS_BYTES = (
    "Declare the type, in the function as in mask: Tensor(cutlass.uint8), or when that is given its types, "
    "mask=cutlass.uint8, and pass mask.view({0}.uint8), which has the same memory; or pass mask.{1}({0}.float16)."
)
Call = Callable[[], Any]
_IN_FRACTIONS = (
    "the result is of int32, and {} is computed in fractions: pass out_dtype=cutlass.float32, say, or an out"
)
_CALLS: list[tuple[Call, str, Call]] = []
for call in (of_bytes, convolved, grouped, layer):
    for given, name in ((halved, "halved"), (pycutlass.gelu, "gelu"), (pycutlass.silu(), "silu")):
        for options in ({}, {"out_dtype": np.int32}):
            _CALLS.append(
                (
                    lambda call=call, given=given, options=options: call(epilogue=given, **options),
                    _IN_FRACTIONS.format(name),
                    lambda call=call, given=given: call(epilogue=given, out_dtype=f32),
                )
            )
_CALLS += [
    (
        lambda: multiplied(epilogue=masked, epilogue_inputs={"mask": FLAGS}),
        _AS_BYTES.format("np", "astype"),
        lambda: multiplied(epilogue=masked(f16, 8, mask=cutlass.uint8), epilogue_inputs={"mask": FLAGS.view(np.uint8)}),
    ),
    (
        lambda: pycutlass.matmul(HALVES, HALVES, epilogue=masked, epilogue_inputs={"mask": HOST_FLAGS}),
        _AS_BYTES.format("torch", "to"),
        lambda: multiplied(epilogue=masked, epilogue_inputs={"mask": FLAGS.astype(np.float16)}),
    ),
    (lambda: selecting(512), "has 64 columns, got N=512, and no tile has more than 256: ", lambda: selecting(256)),
    (
        lambda: multiplied(epilogue=masked, epilogue_inputs={"maks": A}),
        "epilogue_inputs has maks, and the epilogue masked(",
        lambda: multiplied(epilogue=masked, epilogue_inputs={"mask": A}),
    ),
    (
        lambda: multiplied(epilogue=masked, epilogue_inputs={"mask": A, "fil": 1.0}),
        "takes mask, fill. Did you mean fill?",
        lambda: multiplied(epilogue=masked, epilogue_inputs={"mask": A, "fill": 1.0}),
    ),
    (
        lambda: of_bytes(epilogue=halved),
        "with its types, halved(cutlass.int32, 4, cutlass.int32, cutlass.float32)",
        lambda: of_bytes(epilogue=halved(s32, 4, s32, f32)),
    ),
    (
        lambda: convolved(epilogue=pycutlass.gelu),
        "types, LinearCombinationGeneric(pycutlass.gelu, cutlass.int32, 4, cutlass.int32, cutlass.float32)",
        lambda: convolved(epilogue=pycutlass.LinearCombinationGeneric(pycutlass.gelu, s32, 4, s32, f32)),
    ),
    (
        lambda: of_bytes(
            out_dtype=f16,
            epilogue=fusions.dequantize_bias(f16, 8, row_scale=f32, column_scale=f32),
            epilogue_inputs=SCALES,
        ),
        "expects sums of cutlass.float32, and those of these operands are of cutlass.int32: make it with "
        "element_accumulator=cutlass.int32, or leave its types to the plan",
        lambda: of_bytes(
            out_dtype=f16,
            epilogue=fusions.dequantize_bias(f16, 8, s32, row_scale=f32, column_scale=f32),
            epilogue_inputs=SCALES,
        ),
    ),
    (
        lambda: convolved(epilogue=pycutlass.LinearCombination(f32, 4, f32, f32)),
        "expects sums of cutlass.float32, and those of these operands are of cutlass.int32",
        lambda: convolved(epilogue=pycutlass.LinearCombination(f32, 4, s32, f32)),
    ),
    (
        lambda: multiplied(epilogue=halved(f16, 8, f16, f32)),
        "expects sums of cutlass.float16, and those of these operands are of cutlass.float32",
        lambda: multiplied(epilogue=halved(f16, 8, f32, f32)),
    ),
    (
        lambda: multiplied(epilogue=halved(f16, 4), out_dtype=f32),
        "writes cutlass.float16, and the result is of cutlass.float32, as out or out_dtype says: make it with "
        "element_output=cutlass.float32",
        lambda: multiplied(epilogue=halved(f32, 4), out_dtype=f32),
    ),
]


@pytest.mark.parametrize(("call", "said", "remedy"), _CALLS)
def test_the_remedy_is_named_and_taken(call: Call, said: str, remedy: Call) -> None:
    with pytest.raises(PyCutlassError) as caught:
        call()
    assert said in str(caught.value)
    assert remedy() is not None


def test_the_gpu_whose_kernels_were_considered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper-native kernels write what others do not: without a GPU, a target says which is meant."""
    monkeypatch.delenv("PYCUTLASS_TARGET", raising=False)
    e4m3 = cutlass.float_e4m3
    a = A.astype(ml_dtypes.float8_e4m3fn)
    scales = {"output_scale": np.ones(1, np.float32), "absmax": np.zeros(1, np.float32)}
    inputs = {**{name: np.ones(16, np.float32) for name in ("row_scale", "column_scale", "bias")}, **scales}

    def quantized() -> Any:
        return pycutlass.matmul(a, a.T, out_dtype=e4m3, epilogue=fusions.quantize_rows, epilogue_inputs=inputs)

    for call in (quantized, lambda: pycutlass.grouped_matmul([a], [a.T], out_dtype=e4m3)):
        with pytest.raises(ArgumentError, match=r"none writes cutlass\.float_e4m3 here") as caught:
            call()
        assert "The kernels considered are those for NVIDIA A100, of compute capability 8.0: there is no GPU" in str(
            caught.value
        )
        assert "PYCUTLASS_TARGET, such as sm_90a, says which one is meant" in str(caught.value)
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_89")
    with pytest.raises(ArgumentError, match=r"those for a GPU of compute capability 8\.9: there is no GPU here"):
        quantized()
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    assert quantized().dtype == a.dtype
