"""Element types, layouts and enumerations of the cutlass namespace."""

from __future__ import annotations

import copy
import enum
import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import cutlass

FLOATS = {
    cutlass.float16: np.float16,
    cutlass.bfloat16: ml_dtypes.bfloat16,
    cutlass.float32: np.float32,
    cutlass.float64: np.float64,
}
SMALL_FLOATS = {cutlass.float_e4m3: ml_dtypes.float8_e4m3fn, cutlass.float_e5m2: ml_dtypes.float8_e5m2}
BIT_FLOATS = [cutlass.float16, cutlass.bfloat16, cutlass.tfloat32, cutlass.float_e4m3, cutlass.float_e5m2]
INTEGERS = {cutlass.int8: np.int8, cutlass.int32: np.int32}
ELEMENTS = [*FLOATS, *SMALL_FLOATS, cutlass.tfloat32, *INTEGERS]
ENUMS = [cutlass.dtype, cutlass.layout, cutlass.OpClass, cutlass.complex_transform]

doubles = st.floats(allow_nan=False)
singles = st.floats(allow_nan=False, width=32)


def same(a: float, b: float) -> bool:
    """Whether two numbers are the same one, sign of zero and NaN included."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def test_classes_are_distinct_tags():
    assert len({element: element.__name__ for element in ELEMENTS}) == len(ELEMENTS)
    assert {cutlass.float16: 2}[cutlass.float16] == 2


@given(singles)
def test_float16_rounds_like_numpy(x):
    with np.errstate(over="ignore"):
        assert same(cutlass.float16(x).value(), float(np.float16(np.float32(x))))


@given(singles)
def test_bfloat16_rounds_like_ml_dtypes(x):
    with np.errstate(over="ignore"):
        assert same(cutlass.bfloat16(x).value(), float(ml_dtypes.bfloat16(x)))


@given(doubles)
def test_float32_rounds_like_numpy(x):
    with np.errstate(over="ignore"):
        assert same(cutlass.float32(x).value(), float(np.float32(x)))


@given(doubles)
def test_float64_keeps_everything(x):
    assert same(cutlass.float64(x).value(), x)
    assert same(cutlass.float64(x).storage, x)


@pytest.mark.parametrize("element", SMALL_FLOATS)
@given(x=singles)
def test_8_bit_floats_round_like_ml_dtypes_and_saturate(element, x):
    dtype = SMALL_FLOATS[element]
    most = float(ml_dtypes.finfo(dtype).max)
    assert same(element(x).value(), float(dtype(min(max(x, -most), most))))


@given(singles)
def test_tfloat32_rounds_to_ten_bits_ties_away_from_zero(x):
    if math.isinf(x) or abs(x) < 2.0**-126:
        return
    ulp = 2.0 ** (math.frexp(x)[1] - 11)  # frexp's mantissa is in [0.5, 1)
    expected = math.copysign(math.floor(abs(x) / ulp + 0.5) * ulp, x)
    assert cutlass.tfloat32(x).value() == (expected if abs(expected) < 2.0**128 else math.copysign(math.inf, x))


@pytest.mark.parametrize("element", BIT_FLOATS)
def test_nan_and_infinity(element):
    assert math.isnan(element(math.nan).value())
    for sign in (1, -1):
        value = element(sign * math.inf).value()
        if element in SMALL_FLOATS:
            assert value == sign * float(ml_dtypes.finfo(SMALL_FLOATS[element]).max)
        else:
            assert value == sign * math.inf


@pytest.mark.parametrize("element", BIT_FLOATS)
def test_whole_numbers_round_like_floats(element):
    # CUTLASS's own conversion from int truncates some types
    for number in (0, 1, -3, 257, 16777217, -65537):
        assert element(number) == element(float(number))


@pytest.mark.parametrize("element", [cutlass.float16, cutlass.bfloat16])
def test_every_bit_pattern_has_the_value_of_numpy(element):
    values = np.arange(2**16, dtype=np.uint16).view(FLOATS[element]).astype(np.float32)
    x = element(0)
    for bits, expected in enumerate(values.tolist()):
        x.storage = bits
        assert same(x.value(), expected) and x.storage == bits


@pytest.mark.parametrize("element", SMALL_FLOATS)
def test_every_8_bit_pattern_has_the_value_of_ml_dtypes(element):
    values = np.arange(2**8, dtype=np.uint8).view(SMALL_FLOATS[element]).astype(np.float32)
    x = element(0)
    for bits, expected in enumerate(values.tolist()):
        x.storage = bits
        assert same(x.value(), expected) and x.storage == bits


@pytest.mark.parametrize(("element", "bits"), [(cutlass.float16, 16), (cutlass.tfloat32, 32), (cutlass.float_e4m3, 8)])
def test_storage_takes_only_its_bits(element, bits):
    x = element(1)
    x.storage = 2**bits - 1
    for wrong in (2**bits, -1, 2**100):
        with pytest.raises(
            ValueError, match=rf"{element.__name__}\.storage must be from 0 to {2**bits - 1}; got {wrong}"
        ):
            x.storage = wrong
    with pytest.raises(TypeError):
        x.storage = 1.5
    assert x.storage == 2**bits - 1


@pytest.mark.parametrize("element", INTEGERS)
def test_integers_hold_their_range_and_nothing_else(element):
    info = np.iinfo(INTEGERS[element])
    for value in (int(info.min), -1, 0, int(info.max)):
        assert element(value).value() == element(float(value)).value() == int(element(value)) == value
    for wrong in (int(info.max) + 1, int(info.min) - 1, 2**200, 1e30):
        with pytest.raises(
            ValueError, match=f"{element.__name__} must be from {info.min} to {info.max}; got {int(wrong)}"
        ):
            element(wrong)
    for wrong in (0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="whole numbers only"):
            element(wrong)
    x = element(3)
    x.storage = -4
    assert x.value() == x.storage == -4
    with pytest.raises(ValueError, match=r"storage must be from"):
        x.storage = int(info.max) + 1


@pytest.mark.parametrize("element", ELEMENTS)
def test_elements_are_values(element):
    a, b = element(1), element(2)
    assert a == element(1) and a != b and a != 1
    assert hash(a) == hash(element(1.0))
    assert float(b) == 2.0
    assert element(np.float64(2)) == element(np.int64(2)) == element(b) == b
    assert eval(repr(b), vars(cutlass)) == b
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        restored = pickle.loads(pickle.dumps(b, protocol))
        assert type(restored) is element and restored == b and restored.storage == b.storage
    assert copy.deepcopy(b) == copy.copy(b) == b
    assert pickle.loads(pickle.dumps(element)) is element
    assert element.__module__ == "pycutlass.cutlass"
    with pytest.raises(TypeError):
        element("1")


@pytest.mark.parametrize("element", BIT_FLOATS)
def test_nan_is_written_so_that_it_can_be_read(element):
    assert math.isnan(eval(repr(element(math.nan)), vars(cutlass) | {"float": float}).value())


def test_pickle_keeps_bits_that_the_value_does_not_show():
    x = cutlass.tfloat32(0)
    x.storage = 0x1FFF  # the bits that tensor cores do not read
    assert pickle.loads(pickle.dumps(x)).storage == 0x1FFF


@pytest.mark.parametrize("enumeration", ENUMS)
def test_enumerations_are_pythons(enumeration):
    assert issubclass(enumeration, enum.Enum)
    assert len({member: member.name for member in enumeration}) == len(enumeration)
    for member in enumeration:
        assert pickle.loads(pickle.dumps(member)) is member
        assert copy.deepcopy(member) is member
    assert enumeration.__module__ == "pycutlass.cutlass"


def test_members_of_the_guide_exist():
    assert {"b1", "u4", "s4", "u8", "u16", "u32", "u64", "s16", "s64", "cf16", "cf32", "cf64"} <= set(
        cutlass.dtype.__members__
    )
    assert set(cutlass.OpClass.__members__) == {"Simt", "TensorOp", "WmmaTensorOp", "SparseTensorOp"}
    assert set(cutlass.complex_transform.__members__) == {"none", "conj"}


@pytest.mark.parametrize(
    ("layout", "stride"),
    [
        (cutlass.RowMajor, 96),
        (cutlass.ColumnMajor, 64),
        (cutlass.RowMajorInterleaved32, 96 * 32),
        (cutlass.ColumnMajorInterleaved32, 64 * 32),
    ],
)
def test_matrix_layouts(layout, stride):
    packed = layout.packed(cutlass.MatrixCoord(64, 96))
    assert packed.stride() == stride
    assert packed == layout(stride) and packed != layout(stride + 1) and hash(packed) == hash(layout(stride))
    assert eval(repr(packed), vars(cutlass)) == packed
    assert pickle.loads(pickle.dumps(packed)) == packed
    assert pickle.loads(pickle.dumps(layout)) is layout


@pytest.mark.parametrize(
    ("layout", "strides"),
    [
        (cutlass.TensorNHWC, (64, 7 * 64, 5 * 7 * 64)),
        (cutlass.TensorNC32HW32, (32 * 7, 32 * 7 * 5, 5 * 7 * 64)),
        (cutlass.TensorC32RSK32, (32 * 3, 32 * 3 * 7, 32 * 3 * 7 * 5)),
    ],
)
def test_tensor_layouts(layout, strides):
    packed = layout.packed(cutlass.Tensor4DCoord(3, 5, 7, 64))
    assert tuple(packed.stride()) == strides
    assert [packed.stride().at(i) for i in range(3)] == list(strides)
    assert packed == layout(cutlass.Tensor3DCoord(*strides)) and hash(packed) == hash(layout(packed.stride()))
    assert packed != layout(cutlass.Tensor3DCoord(0, 0, 0))
    assert eval(repr(packed), vars(cutlass)) == packed
    assert pickle.loads(pickle.dumps(packed)) == packed


def test_layouts_refuse_what_overflows_or_does_not_fit():
    with pytest.raises(ValueError, match=r"extent.c must be a multiple of 32; got 33"):
        cutlass.TensorNC32HW32.packed(cutlass.Tensor4DCoord(1, 2, 3, 33))
    with pytest.raises(ValueError, match="32-bit index"):
        cutlass.TensorNHWC.packed(cutlass.Tensor4DCoord(1, 2**15, 2**15, 2))
    with pytest.raises(ValueError, match="32-bit index"):
        cutlass.TensorC32RSK32.packed(cutlass.Tensor4DCoord(2**26, 1, 1, 32))
    with pytest.raises(ValueError, match="32-bit index"):
        cutlass.RowMajorInterleaved32.packed(cutlass.MatrixCoord(1, 2**26))
    assert cutlass.RowMajor.packed(cutlass.MatrixCoord(1, 2**31 - 1)).stride() == 2**31 - 1


def test_namespace_is_sorted_and_complete():
    for module in (cutlass, cutlass.gemm, cutlass.conv):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        assert all(hasattr(module, name) for name in module.__all__)
