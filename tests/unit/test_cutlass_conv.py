"""Convolution problem sizes and their implicit matrix products."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pycutlass.cutlass import MatrixCoord, Tensor4DCoord, conv
from pycutlass.cutlass.conv import Conv2dProblemSize, Mode, Operator, SplitKMode
from pycutlass.cutlass.gemm import GemmCoord

INTEGERS = [
    "N",
    "H",
    "W",
    "C",
    "K",
    "R",
    "S",
    "P",
    "Q",
    "pad_h",
    "pad_w",
    "stride_h",
    "stride_w",
    "dilation_h",
    "dilation_w",
    "split_k_slices",
    "groups",
]

small = st.integers(1, 40)
problems = st.fixed_dictionaries(
    dict.fromkeys(("N", "H", "W", "C", "K", "split_k_slices"), small)
    | {name: st.integers(1, 9) for name in ("R", "S", "stride_h", "stride_w", "dilation_h", "dilation_w")}
    | {name: st.integers(0, 9) for name in ("pad_h", "pad_w")}
    | {"mode": st.sampled_from(Mode)}
)


def positions(extent: int, filter_extent: int, pad: int, stride: int, dilation: int) -> int:
    """Count the places of a dilated filter inside the padded input, one by one."""
    last = extent + 2 * pad - ((filter_extent - 1) * dilation + 1)
    return sum(1 for _ in range(0, last + 1, stride))


def fits(p: dict) -> bool:
    return all(
        positions(p[x], p[f], p[f"pad_{a}"], p[f"stride_{a}"], p[f"dilation_{a}"]) > 0
        for x, f, a in (("H", "R", "h"), ("W", "S", "w"))
    )


def example(**changes) -> Conv2dProblemSize:
    return Conv2dProblemSize(**({"N": 2, "H": 9, "W": 8, "C": 6, "K": 4, "R": 3, "S": 2} | changes))


@given(problems)
def test_output_extents_follow_the_frameworks(p):
    assume(fits(p))
    built = Conv2dProblemSize(**p)
    assert built.P == positions(p["H"], p["R"], p["pad_h"], p["stride_h"], p["dilation_h"])
    assert built.Q == positions(p["W"], p["S"], p["pad_w"], p["stride_w"], p["dilation_w"])


@given(problems)
def test_both_constructors_agree(p):
    assume(fits(p))
    from_coords = Conv2dProblemSize(
        Tensor4DCoord(p["N"], p["H"], p["W"], p["C"]),
        Tensor4DCoord(p["K"], p["R"], p["S"], p["C"]),
        Tensor4DCoord(p["pad_h"], p["pad_h"], p["pad_w"], p["pad_w"]),
        MatrixCoord(p["stride_h"], p["stride_w"]),
        MatrixCoord(p["dilation_h"], p["dilation_w"]),
        p["mode"],
        p["split_k_slices"],
        1,
    )
    assert from_coords == Conv2dProblemSize(**p)
    assert eval(repr(from_coords), vars(conv)) == from_coords
    assert pickle.loads(pickle.dumps(from_coords)) == from_coords
    assert from_coords.padding() == Tensor4DCoord(p["pad_h"], p["pad_h"], p["pad_w"], p["pad_w"])
    assert from_coords.stride() == MatrixCoord(p["stride_h"], p["stride_w"])
    assert from_coords.dilation() == MatrixCoord(p["dilation_h"], p["dilation_w"])


def test_dilated_output_is_not_one_short():
    # 5 + 2 * 2 - (2 * 2 + 1) = 4 steps, so 5 places; CUTLASS's own constructor says 4
    p = Conv2dProblemSize(N=1, H=5, W=5, C=1, K=1, R=3, S=3, pad_h=2, pad_w=2, dilation_h=2, dilation_w=2)
    assert (p.P, p.Q) == (5, 5)


def test_all_integers_in_the_order_of_cutlass():
    p = Conv2dProblemSize(2, 9, 8, 6, 4, 3, 2, 7, 5, 1, 0, 3, 4, 1, 2, Mode.convolution, 6, 2)
    expected = dict(zip(INTEGERS, (2, 9, 8, 6, 4, 3, 2, 7, 5, 1, 0, 3, 4, 1, 2, 6, 2), strict=True))
    assert {name: getattr(p, name) for name in INTEGERS} == expected
    assert p.mode is Mode.convolution
    assert (p.P, p.Q) == (7, 5)  # taken as given


def test_defaults():
    p = Conv2dProblemSize(Tensor4DCoord(1, 4, 4, 8), Tensor4DCoord(8, 1, 1, 8))
    assert p == Conv2dProblemSize(1, 4, 4, 8, 8, 1, 1)
    assert (p.pad_h, p.pad_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w) == (0, 0, 1, 1, 1, 1)
    assert (p.mode, p.split_k_slices, p.groups) == (Mode.cross_correlation, 1, 1)


@pytest.mark.parametrize(("padding", "axis"), [((1, 2, 0, 0), "h"), ((0, 0, 0, 3), "w"), ((0, 1, 1, 0), "h")])
def test_asymmetric_padding_is_refused_with_its_axis(padding, axis):
    with pytest.raises(ValueError, match=rf"same before and after; along {axis} it is"):
        Conv2dProblemSize(Tensor4DCoord(1, 8, 8, 8), Tensor4DCoord(8, 3, 3, 8), Tensor4DCoord(*padding))


def test_filter_channels_must_match_those_of_a_group():
    with pytest.raises(ValueError, match=r"filter_size.c must be input_size.c / groups; got 16, and 16 / 2"):
        Conv2dProblemSize(Tensor4DCoord(1, 8, 8, 16), Tensor4DCoord(8, 3, 3, 16), groups=2)
    grouped = Conv2dProblemSize(Tensor4DCoord(1, 8, 8, 16), Tensor4DCoord(8, 3, 3, 8), groups=2)
    assert grouped.filter_extent() == Tensor4DCoord(8, 3, 3, 8)
    assert grouped.filter_size() == 8 * 3 * 3 * 8
    assert conv.implicit_gemm_problem_size(Operator.fprop, grouped) == GemmCoord(36, 8, 3 * 3 * 8)


@pytest.mark.parametrize(("groups", "name", "channels"), [(4, "C", 6), (3, "K", 4)])
def test_groups_must_divide_the_channels(groups, name, channels):
    with pytest.raises(ValueError, match=f"groups must divide {name}; got groups = {groups} and {name} = {channels}"):
        example(groups=groups)


def test_a_filter_larger_than_the_input_is_refused():
    with pytest.raises(ValueError, match="along h the filter spans 13 and the padded input has 11"):
        example(R=7, dilation_h=2, pad_h=1)


@pytest.mark.parametrize("name", INTEGERS)
def test_every_integer_is_checked_at_construction_and_at_assignment(name):
    least = 0 if name in ("N", "C", "K", "pad_h", "pad_w") else 1
    p = example()
    for wrong in (least - 1, 2**31):
        message = f"Conv2dProblemSize: {name} must be from {least} to 2147483647; got {wrong}"
        with pytest.raises(ValueError, match=message):
            example(**{name: wrong})
        with pytest.raises(ValueError, match=message):
            setattr(p, name, wrong)
    with pytest.raises(TypeError):
        setattr(p, name, 1.5)
    assert p == example()
    setattr(p, name, 5)
    assert getattr(p, name) == 5 and p != example()


def test_assignment_leaves_the_other_attributes_alone():
    p = example()
    p.H = 20
    assert (p.H, p.P) == (20, example().P)
    p.mode = Mode.convolution
    assert p.mode is Mode.convolution


def test_it_is_a_mutable_value():
    p = example()
    assert p == example() and p != "p"
    assert p != example(mode=Mode.convolution)
    assert p != example(split_k_slices=2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(p)
    twin = copy.copy(p)
    twin.N = 7
    assert p.N == 2


def test_resets_return_copies():
    p = example()
    assert p.reset_split_k_slices(3) == example(split_k_slices=3)
    assert p.reset_mode(Mode.convolution) == example(mode=Mode.convolution)
    assert p == example()
    with pytest.raises(ValueError, match="split_k_slices must be from 1"):
        p.reset_split_k_slices(0)


@given(problems)
def test_extents_sizes_and_implicit_gemm_agree(p):
    assume(fits(p))
    c = Conv2dProblemSize(**p)
    activation, filters, output = c.activation_extent(), c.filter_extent(), c.output_extent()
    assert tuple(activation) == (c.N, c.H, c.W, c.C)
    assert tuple(filters) == (c.K, c.R, c.S, c.C)
    assert tuple(output) == (c.N, c.P, c.Q, c.K)
    assert (c.activation_size(), c.filter_size(), c.output_size()) == (
        activation.size(),
        filters.size(),
        output.size(),
    )
    operands = {
        Operator.fprop: (activation, filters, output),
        Operator.dgrad: (output, filters, activation),
        Operator.wgrad: (output, activation, filters),
    }
    for operator, expected in operands.items():
        extents = (
            conv.implicit_gemm_tensor_a_extent(operator, c),
            conv.implicit_gemm_tensor_b_extent(operator, c),
            conv.implicit_gemm_tensor_c_extent(operator, c),
        )
        sizes = (
            conv.implicit_gemm_tensor_a_size(operator, c),
            conv.implicit_gemm_tensor_b_size(operator, c),
            conv.implicit_gemm_tensor_c_size(operator, c),
        )
        assert extents == expected
        assert sizes == tuple(extent.size() for extent in expected)
        gemm = conv.implicit_gemm_problem_size(operator, c)
        assert math.prod(gemm.mn()) == sizes[2]
    assert conv.implicit_gemm_problem_size(Operator.fprop, c).k() == c.R * c.S * c.C
    assert conv.implicit_gemm_problem_size(Operator.dgrad, c).k() == c.R * c.S * c.K
    assert conv.implicit_gemm_problem_size(Operator.wgrad, c).k() == c.N * c.P * c.Q


@pytest.mark.parametrize("operator", Operator)
def test_an_implicit_gemm_beyond_32_bits_is_refused(operator):
    huge = Conv2dProblemSize(N=2**11, H=2**10, W=2**10, C=1, K=1, R=1, S=1)
    with pytest.raises(ValueError, match="32-bit index cannot hold"):
        conv.implicit_gemm_problem_size(operator, huge)


def test_split_k_mode_none_can_be_written():
    assert SplitKMode.NoSplit is getattr(SplitKMode, "None")
    assert [mode.value for mode in (SplitKMode.NoSplit, SplitKMode.Serial, SplitKMode.Parallel)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("enumeration", "names"),
    [
        (Operator, "fprop dgrad wgrad"),
        (Mode, "cross_correlation convolution"),
        (conv.IteratorAlgorithm, "analytic optimized fixed_channels few_channels"),
        (conv.StrideSupport, "strided unity"),
    ],
)
def test_enumerations_have_the_values_of_cutlass(enumeration, names):
    assert {member.name: member.value for member in enumeration} == {n: i for i, n in enumerate(names.split())}
    assert all(pickle.loads(pickle.dumps(member)) is member for member in enumeration)
    assert enumeration.__module__ == "pycutlass.cutlass.conv"
