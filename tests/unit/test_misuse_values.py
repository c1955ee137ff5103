"""Values of the extension travel, and its own refusals are sentences of ours."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from descriptions import ampere

import pycutlass
from pycutlass import PyCutlassError, cutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError

ELEMENTS = [
    getattr(cutlass, name)
    for name in (
        "float16", "bfloat16", "tfloat32", "float32", "float64", "float_e4m3", "float_e5m2", "int8", "int32",
    )
]  # fmt: skip
VALUES: list[Any] = [
    *(element(number) for element in ELEMENTS for number in (0, -3, 5)),
    *(element(number) for element in ELEMENTS[:7] for number in (1.5, -0.0, math.inf)),
    cutlass.gemm.GemmCoord(1, -2, 3),
    cutlass.MatrixCoord(4, 5),
    cutlass.Tensor4DCoord(1, 2, 3, 4),
    cutlass.Tensor3DCoord(1, 2, 3),
    cutlass.dim3(7, 8, 9),
    cutlass.RowMajor(17),
    cutlass.ColumnMajorInterleaved32(64),
    cutlass.TensorNHWC.packed(cutlass.Tensor4DCoord(1, 2, 3, 4)),
    cutlass.TensorC32RSK32.packed(cutlass.Tensor4DCoord(32, 2, 3, 32)),
    *(getattr(cutlass, name)() for name in cutlass.__all__ if "Swizzle" in name),
    *(
        member
        for kind in (cutlass.dtype, cutlass.layout, cutlass.OpClass, cutlass.complex_transform)
        for member in kind
    ),
    *(member for kind in (cutlass.gemm.Mode, cutlass.conv.Mode, cutlass.conv.SplitKMode) for member in kind),
    *(member for kind in (pycutlass.MathOperation, pycutlass.RasterOrder, pycutlass.StrideSupport) for member in kind),
    cutlass.conv.Conv2dProblemSize(1, 8, 8, 16, 32, 3, 3, pad_h=1, mode=cutlass.conv.Mode.convolution, groups=2),
    ampere("f16"),
    pycutlass.LinearCombinationGeneric(pycutlass.leaky_relu, cutlass.float32, 4),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_values_can_be_pickled_and_copied(value):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert type(again) is type(value) and again == value and repr(again) == repr(value)
    for again in (copy.copy(value), copy.deepcopy(value)):
        assert type(again) is type(value) and again == value and repr(again) == repr(value)


@pytest.mark.parametrize("element", ELEMENTS[:7])
def test_bits_of_nan_travel(element):
    value = element(math.nan)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert math.isnan(again.value())
        assert isinstance(value.storage, float) or again.storage == value.storage


class _Own:
    def __index__(self) -> int:
        raise RuntimeError("my own")


EXTENTS = cutlass.Tensor4DCoord(1, 8, 8, 4), cutlass.Tensor4DCoord(8, 3, 3, 4)


@pytest.mark.parametrize(
    ("given", "named", "wrong"),
    [
        ((), {"stride": 2}, "stride must be MatrixCoord, got 2; input_size, filter_size missing"),
        ((), {}, "input_size, filter_size missing"),
        ((1, 2, 3), {}, "C, K, R, S missing"),
        ((1, 8, 8, 4.5, 8, 3, 3), {}, "C must be int, got 4.5"),
        ((1, 8, 8, 4, 8, 3, 3), {"mode": "convolution"}, "mode must be Mode, got 'convolution'"),
        ((1, 8, 8, 4, 8, 3, 3), {"stride": 2}, "stride belongs to another form"),
        ((1,) * 30, {}, "mode must be Mode, got 1; 12 too many"),
        (EXTENTS, {"stride": (2, 2)}, "stride must be MatrixCoord, got (2, 2)"),
        (EXTENTS[:1], {}, "filter_size missing"),
    ],
)
def test_of_several_forms_the_nearest_says_what_is_wrong(given, named, wrong):
    with pytest.raises(ArgumentTypeError) as caught:
        cutlass.conv.Conv2dProblemSize(*given, **named)
    message = str(caught.value)
    texts = [*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())]
    assert message.startswith(f"Conv2dProblemSize({', '.join(texts)}): {wrong}. It takes N, H, W, C, K, R, S and ")
    assert "; or input_size, filter_size and optionally padding, stride, " in message
    assert ": int" not in message and "None" not in message


def test_refusals_of_the_extension():
    size = cutlass.conv.Conv2dProblemSize(1, 8, 8, 16, 32, 3, 3)
    with pytest.raises(ArgumentTypeError, match=r"the call must be GemmCoord\(m: int, n: int, k: int\), got \('x'\)"):
        cutlass.gemm.GemmCoord("x")
    with pytest.raises(ArgumentTypeError, match=r"the call must be packed\(extent: MatrixCoord\), got \(3\)"):
        cutlass.RowMajor.packed(3)
    with pytest.raises(ArgumentTypeError, match="N must be an integer, got 'x'"):
        size.N = "x"
    with pytest.raises(ArgumentTypeError, match=r"mode\(mode: Mode\), got \(0\)"):
        size.mode = 0
    with pytest.raises(ArgumentError, match="m must be from"):
        cutlass.gemm.GemmCoord(2**40, 1, 1)
    with pytest.raises(ArgumentTypeError, match=r"got \(True, 1, 1\)"):
        cutlass.gemm.GemmCoord(True, 1, 1)
    for complex_number in (1j, np.complex64(1), np.array(1j)):
        with pytest.raises(PyCutlassError):
            cutlass.float32(complex_number)
    assert cutlass.float32(np.float64(0.5)) == cutlass.float32(0.5) and cutlass.float16(np.int8(3)).value() == 3


def test_what_an_argument_raises_is_the_cause():
    for call in (
        lambda: cutlass.gemm.GemmCoord(_Own(), 1, 1),
        lambda: pycutlass.TensorDescription(cutlass.float16, cutlass.RowMajor, _Own()),
        lambda: pycutlass.get_memory_pool(_Own()),
    ):
        with pytest.raises(ArgumentTypeError, match="_Own raised an exception") as caught:
            call()
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_protocols_of_python_keep_its_exceptions():
    coordinate = cutlass.gemm.GemmCoord(1, 2, 3)
    assert list(coordinate) == [1, 2, 3]
    with pytest.raises(IndexError):
        coordinate[3]
    with pytest.raises(ArgumentError):
        coordinate.at(3)
    with pytest.raises(AttributeError):
        coordinate.rows  # noqa: B018
