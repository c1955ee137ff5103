"""Element types and layouts: the table, and rounding to each type."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from descriptions import BY_SHORT_NAME
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import cutlass
from pycutlass.calls import shown
from pycutlass.errors import DescriptionError
from pycutlass.types import ELEMENTS, LAYOUTS, element, element_of_dtype, layout

FLOATS = [row for row in ELEMENTS if not row.is_integer]
INTEGERS = [row for row in ELEMENTS if row.is_integer]
#: Explicit mantissa bits, exponent of the smallest normal number, largest finite number.
FORMATS = {
    "f16": (10, -14, Fraction(65504)),
    "bf16": (7, -126, Fraction((2**8 - 1) * 2**120)),
    "tf32": (10, -126, Fraction((2**11 - 1) * 2**117)),
}
NO_ELEMENTS: list[Any] = [None, "float16", np.uint16, 16, [], ([],), cutlass.float16(1), cutlass.RowMajor]
NO_LAYOUTS: list[Any] = [None, "RowMajor", [], {}, cutlass.RowMajor(8), cutlass.float16, cutlass.IdentitySwizzle1]

singles = st.floats(width=32, allow_nan=False)
bits32 = st.integers(0, 2**32 - 1)


def nearest(value: float, short: str) -> float:
    """Round by exact arithmetic: to nearest, ties to even (tf32: away from zero), infinity past the largest number."""
    mantissa, least, most = FORMATS[short]
    exact = Fraction(value)
    exponent = max(math.frexp(value)[1] - 1, least)
    unit = Fraction(2) ** (exponent - mantissa)
    steps, rest = divmod(abs(exact), unit)
    half = unit / 2
    up = rest > half or (rest == half and (short == "tf32" or steps % 2 == 1))
    rounded = (steps + up) * unit
    return math.copysign(math.inf if rounded > most else float(rounded), value)


def identical(left: Any, right: Any) -> bool:
    """Whether two arrays have the same values, signs of zero included."""
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return bool(np.array_equal(left, right, equal_nan=True) and np.array_equal(np.signbit(left), np.signbit(right)))


# The table


@pytest.mark.parametrize("row", ELEMENTS, ids=str)
def test_a_row_belongs_to_its_tag(row):
    assert element(row.tag) is row
    assert row.tag.__name__ == row.name
    assert eval(str(row), {"cutlass": cutlass}) is row.tag
    assert row.dtype.itemsize * 8 == row.bits
    assert row.dtype.name == row.dtype_name


@pytest.mark.parametrize("row", LAYOUTS, ids=str)
def test_a_layout_belongs_to_its_tag(row):
    assert layout(row.tag) is row
    assert row.cpp.startswith("cutlass::layout::")
    assert row.interleave in (1, 32)
    assert row.rank in (2, 4)
    assert eval(str(row), {"cutlass": cutlass}) is row.tag


def test_names_are_unique():
    for rows, attribute in itertools.product((ELEMENTS, LAYOUTS), ("name", "short", "cpp", "tag")):
        assert len({getattr(row, attribute) for row in rows}) == len(rows)


def test_plain_matrices_are_named_as_cutlass_names_them():
    row, column = layout(cutlass.RowMajor), layout(cutlass.ColumnMajor)
    assert (row.short, row.cpp, row.is_row_major) == ("t", "cutlass::layout::RowMajor", True)
    assert (column.short, column.cpp, column.is_row_major) == ("n", "cutlass::layout::ColumnMajor", False)


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_epsilon(row):
    expected = 2.0**-10 if row.short == "tf32" else float(ml_dtypes.finfo(row.dtype).eps)
    assert row.epsilon == expected
    assert not row.is_integer


@pytest.mark.parametrize("row", INTEGERS, ids=str)
def test_integers_have_no_epsilon(row):
    assert row.is_integer
    assert row.epsilon == 0


@pytest.mark.parametrize("tag", NO_ELEMENTS, ids=repr)
def test_what_is_no_element_type_is_refused_with_those_that_are(tag):
    with pytest.raises(DescriptionError) as caught:
        element(tag)
    assert f"got {shown(tag)}" in str(caught.value)
    assert all(str(row) in str(caught.value) for row in ELEMENTS)


@pytest.mark.parametrize("tag", NO_LAYOUTS, ids=repr)
def test_what_is_no_layout_is_refused_with_those_that_are(tag):
    with pytest.raises(DescriptionError) as caught:
        layout(tag)
    assert f"got {shown(tag)}" in str(caught.value)
    assert all(str(row) in str(caught.value) for row in LAYOUTS)


def test_elements_by_dtype_name():
    assert {
        name: element_of_dtype(name) for name in ("float64", "float32", "float16", "bfloat16", "int32", "int8")
    } == {
        "float64": BY_SHORT_NAME["f64"],
        "float32": BY_SHORT_NAME["f32"],
        "float16": BY_SHORT_NAME["f16"],
        "bfloat16": BY_SHORT_NAME["bf16"],
        "int32": BY_SHORT_NAME["s32"],
        "int8": BY_SHORT_NAME["s8"],
    }
    assert element_of_dtype("complex64") is None


# Rounding


@pytest.mark.parametrize("short", FORMATS)
@given(st.lists(bits32, min_size=1, max_size=50))
def test_rounding_is_to_nearest(short, patterns):
    values = np.array(patterns, np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    expected = [nearest(float(value), short) for value in values]
    assert identical(BY_SHORT_NAME[short].round(values), expected)


@pytest.mark.parametrize("short", FORMATS)
@given(st.integers(0, 2**10 - 1), st.integers(-14, 14), st.booleans())
def test_ties_are_broken_as_the_type_does(short, steps, exponent, negative):
    mantissa = FORMATS[short][0]
    between = math.ldexp(2**mantissa + steps % 2**mantissa + 0.5, exponent - mantissa)
    tie = np.float32(-between if negative else between)
    assert identical(BY_SHORT_NAME[short].round(tie), nearest(float(tie), short))


@pytest.mark.parametrize("short", FORMATS)
@given(singles)
def test_rounding_agrees_with_cutlass(short, value):
    row = BY_SHORT_NAME[short]
    assert identical(row.round(np.float32(value)), row.tag(value).value())


@pytest.mark.parametrize("row", [row for row in FLOATS if row.bits > 8], ids=str)
def test_special_values_survive(row):
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    assert identical(row.round(special), special)


@pytest.mark.parametrize("row", FLOATS, ids=str)
@given(st.lists(st.floats(width=32), max_size=20))
def test_rounding_twice_is_rounding_once(row, values):
    once = row.round(np.array(values))
    assert once.dtype == row.dtype
    assert identical(row.round(once), once)


@pytest.mark.parametrize("row", [row for row in FLOATS if 8 < row.bits < 64], ids=str)
def test_values_beyond_the_type_become_infinite_without_a_warning(row):
    assert identical(row.round(np.array([1e300, -1e300])), [np.inf, -np.inf])


@pytest.mark.parametrize(("short", "most"), [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_floats_of_8_bits_saturate_and_keep_nan(short, most):
    row = BY_SHORT_NAME[short]
    values = [np.nan, np.inf, -np.inf, 1e300, -1e300, most * 1.01, 0.0, -0.0, 1.0625, 1.1875]
    expected = [np.nan, most, -most, most, -most, most, 0.0, -0.0, 1.0, 1.25]
    assert row.limits == (-most, most) and row.is_float8
    assert identical(row.round(np.array(values)), expected)


@pytest.mark.parametrize("row", INTEGERS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integers_saturate_and_round_to_even(row, dtype):
    limits = np.iinfo(row.dtype)
    values = [2.5, 3.5, -2.5, 0.5, 1e30, -1e30, np.inf, -np.inf, np.nan, float(limits.max) + 1, float(limits.min) - 1]
    expected = [2, 4, max(-2, limits.min), 0, limits.max, limits.min, limits.max, limits.min, 0, limits.max, limits.min]
    rounded = row.round(np.array(values, dtype))
    assert rounded.dtype == row.dtype
    assert rounded.tolist() == expected


@pytest.mark.parametrize("row", ELEMENTS, ids=str)
def test_rounding_leaves_its_input_and_its_shape(row):
    values = np.random.default_rng().standard_normal((3, 1, 5)).astype(np.float32)
    before = values.copy()
    assert row.round(values).shape == (3, 1, 5)
    assert np.array_equal(values, before)


@pytest.mark.parametrize("tag", [bool, np.bool_, np.dtype(bool)])
def test_booleans_are_read_as_int8(tag: Any) -> None:
    with pytest.raises(DescriptionError, match=r"cutlass.int8 or cutlass.uint8: pass mask.view\(torch.uint8\)"):
        element(tag)
