"""Coordinates: immutable tuples of 32-bit integers."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import cutlass
from pycutlass.cutlass.gemm import GemmCoord, Mode

INT32 = (-(2**31), 2**31 - 1)
COORDS = {
    GemmCoord: ("m", "n", "k"),
    cutlass.MatrixCoord: ("row", "column"),
    cutlass.Tensor4DCoord: ("n", "h", "w", "c"),
    cutlass.Tensor3DCoord: ("w", "h", "n"),
    cutlass.dim3: ("x", "y", "z"),
}
SCOPE = vars(cutlass) | {"GemmCoord": GemmCoord}


def limits(coord: type) -> tuple[int, int]:
    return (0, 2**32 - 1) if coord is cutlass.dim3 else INT32


coord_and_values = st.sampled_from(list(COORDS)).flatmap(
    lambda coord: st.tuples(st.just(coord), st.tuples(*[st.integers(*limits(coord))] * len(COORDS[coord])))
)


@given(coord_and_values)
def test_a_coordinate_is_a_tuple_of_its_values(drawn):
    coord, values = drawn
    c = coord(*values)
    assert tuple(c) == values and len(c) == len(values)
    assert [c[i] for i in range(-len(values), len(values))] == [*values, *values]
    assert c == coord(**dict(zip(COORDS[coord], values, strict=True)))
    assert hash(c) == hash(coord(*values))
    assert eval(repr(c), SCOPE) == c
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(c, protocol)) == c
    assert copy.copy(c) == copy.deepcopy(c) == c


@pytest.mark.parametrize("coord", COORDS)
def test_equality_needs_the_same_type_and_values(coord):
    values = [1] * len(COORDS[coord])
    assert coord(*values) != coord(*values[:-1], 2)
    assert coord(*values) != tuple(values)
    assert {coord(*values): "found"}[coord(*values)] == "found"
    assert GemmCoord(1, 2, 3) != cutlass.Tensor3DCoord(1, 2, 3)


@pytest.mark.parametrize("coord", COORDS)
def test_values_outside_the_range_are_refused_by_name(coord):
    least, most = limits(coord)
    names = COORDS[coord]
    for position, name in enumerate(names):
        for wrong in (least - 1, most + 1, 2**100):
            values = [1] * len(names)
            values[position] = wrong
            with pytest.raises(
                ValueError, match=f"{coord.__name__}: {name} must be from {least} to {most}; got {wrong}"
            ):
                coord(*values)


@pytest.mark.parametrize("coord", COORDS)
def test_integers_only(coord):
    names = COORDS[coord]
    assert coord(*[np.int64(3)] * len(names)) == coord(*[3] * len(names))
    with pytest.raises(TypeError):
        coord(*[1.0] * len(names))
    with pytest.raises(TypeError):
        coord(*["1"] * len(names))
    with pytest.raises(TypeError):
        coord(*[1] * (len(names) + 1))


@pytest.mark.parametrize("coord", COORDS)
def test_coordinates_do_not_change(coord):
    c = coord(*[1] * len(COORDS[coord]))
    with pytest.raises(TypeError):
        c[0] = 2
    with pytest.raises(AttributeError):
        setattr(c, COORDS[coord][0], 2)


@pytest.mark.parametrize("coord", COORDS)
def test_an_index_outside_is_refused(coord):
    rank = len(COORDS[coord])
    c = coord(*range(rank))
    for index in (rank, -rank - 1):
        with pytest.raises(IndexError, match=f"{coord.__name__} has {rank} components; got index {index}"):
            c[index]
    if coord is not cutlass.dim3:
        assert [c.at(dim) for dim in range(rank)] == list(range(rank))
        with pytest.raises(ValueError, match=rf"at\(dim\) must be from 0 to {rank - 1}"):
            c.at(rank)


def test_named_components():
    g = GemmCoord(m=2, n=3, k=4)
    assert (g.m(), g.n(), g.k()) == (2, 3, 4)
    assert (g.mk(), g.kn(), g.mn()) == tuple(cutlass.MatrixCoord(*x) for x in ((2, 4), (4, 3), (2, 3)))
    m = cutlass.MatrixCoord(row=5, column=6)
    assert (m.row(), m.column()) == (5, 6)
    t = cutlass.Tensor4DCoord(n=1, h=2, w=3, c=4)
    assert (t.n(), t.h(), t.w(), t.c()) == (1, 2, 3, 4)
    d = cutlass.dim3(x=7)
    assert (d.x, d.y, d.z) == (7, 1, 1)


@given(st.lists(st.integers(0, INT32[1]), min_size=4, max_size=4))
def test_size_does_not_overflow(values):
    assert cutlass.Tensor4DCoord(*values).size() == math.prod(values)


def test_modes_have_the_values_of_cutlass():
    assert {mode.name: mode.value for mode in Mode} == {
        "Gemm": 0,
        "GemmSplitKParallel": 1,
        "Batched": 2,
        "Array": 3,
        "Invalid": 5,  # 4 is the grouped mode, which has operations of its own
    }
    assert all(pickle.loads(pickle.dumps(mode)) is mode for mode in Mode)
    assert (Mode.__module__, Mode.__qualname__) == ("pycutlass.cutlass.gemm", "Mode")
    assert GemmCoord.__module__ == "pycutlass.cutlass.gemm"
