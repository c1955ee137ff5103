"""Interleaved layouts: packing into them and back, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import plainly

from pycutlass import (
    deinterleave_columns,
    interleave_columns,
    interleave_rows,
    reorder_column,
    reorder_filter,
)
from pycutlass.errors import ArgumentError, ArgumentTypeError


def packings(library: Any) -> list[tuple[Any, Any]]:
    """Return each function of interleaved layouts with what it takes, made of small numbers."""
    matrix_ = library(np.arange(64 * 32).astype(np.int8).reshape(64, 32))
    return [
        (interleave_columns, matrix_),
        (interleave_rows, matrix_),
        (reorder_column, interleave_rows(matrix_)),
        (functools.partial(deinterleave_columns, rows=64, columns=32), interleave_columns(matrix_)),
    ]


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_packing_and_back(library):
    original = np.random.default_rng().integers(-128, 128, (64, 96)).astype(np.int8)
    packed = interleave_columns(library(original))
    assert [int(packed[(c // 32 * 64 + r) * 32 + c % 32]) for r, c in ((0, 1), (5, 33), (63, 95))] == [
        original[0, 1], original[5, 33], original[63, 95]
    ]  # fmt: skip
    np.testing.assert_array_equal(deinterleave_columns(packed, np.int64(64), 96), original)
    rows = interleave_rows(library(original))
    np.testing.assert_array_equal(rows, interleave_columns(library(original.T)))
    for each in (rows, rows.reshape(2, 96, 32), rows.reshape(1, 2, 1, 96, 32)):
        once = reorder_column(each)
        assert once.shape == each.shape
        assert not (np.asarray(once) == np.asarray(each)).all()
        np.testing.assert_array_equal(reorder_column(once), each)
    columns = np.asarray(reorder_column(rows)).reshape(2, 96, 32)
    for n in range(96):  # host_reorder.h
        np.testing.assert_array_equal(columns[:, n // 32 * 32 + n // 2 % 4 * 8 + n // 8 % 4 * 2 + n % 2],
                                      np.asarray(rows).reshape(2, 96, 32)[:, n])  # fmt: skip


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("shape", [(1, 64), (64, 32), (32, 1), (0, 32)], ids=plainly)
def test_packing_always_copies(library, shape):
    array = np.ones(shape, np.int8)
    for pack, by_rows in ((interleave_columns, False), (interleave_rows, True)):
        if shape[0 if by_rows else 1] % 32:
            continue
        packed = pack(library(array))
        packed[...] = 2
        assert (array == 1).all()
        if not by_rows:
            back = deinterleave_columns(packed, *shape)
            back[...] = 3
            assert (np.asarray(packed) == 2).all()


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("use", "shape", "words"),
    [
        (reorder_column, (2, 16, 32), ["(K / 32, N, 32)", "N a multiple of 32", "(2, 16, 32)"]),
        (reorder_column, (64, 64), ["interleave_rows", "(64, 64)"]),
        (reorder_column, (64, 32), ["interleave_rows", "(64, 32)"]),
        (reorder_column, (2, 64, 16), ["(K / 32, N, 32)", "(2, 64, 16)"]),
        (reorder_column, (512,), ["multiple of 1024 elements", "(512,)"]),
        (reorder_column, (), ["shape ()"]),
        (reorder_filter, (1, 3, 3, 16, 32), ["(C / 32, R, S, K, 32)", "(1, 3, 3, 16, 32)"]),
        (reorder_filter, (32, 3, 3, 32, 1), ["(C / 32, R, S, K, 32)", "(32, 3, 3, 32, 1)"]),
        (interleave_columns, (64,), ["shape (rows, columns)", "(64,)"]),
        (interleave_columns, (2, 64, 64), ["shape (rows, columns)", "(2, 64, 64)", "one by one"]),
        (interleave_columns, (64, 40), ["columns", "multiple of 32, got 40", "pad the matrix to 64 columns"]),
        (interleave_rows, (40, 64), ["rows", "multiple of 32, got 40", "pad the matrix to 64 rows"]),
        (interleave_rows, (2, 64, 64), ["shape (rows, columns)", "(2, 64, 64)"]),
        (functools.partial(deinterleave_columns, rows=-1, columns=64), (128,), ["rows", "not be negative", "-1"]),
        (functools.partial(deinterleave_columns, rows=-4, columns=-32), (128,), ["rows", "not be negative", "-4"]),
        (functools.partial(deinterleave_columns, rows=2, columns=48), (96,), ["columns", "multiple of 32, got 48"]),
        (functools.partial(deinterleave_columns, rows=3, columns=64), (128,), ["3 x 64", "192", "has 128"]),
    ],
    ids=plainly,
)
def test_what_is_not_packed_so_is_refused(library, use, shape, words):
    with pytest.raises(ArgumentError) as caught:
        use(library(np.zeros(shape, np.int8)))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("wrong", [None, [[1, 2]], 5, "packed", np.ndarray], ids=repr)
def test_what_is_no_array_is_not_packed(wrong):
    for pack, _ in packings(np.asarray):
        with pytest.raises(ArgumentTypeError, match=rf"array of numpy, cupy or torch .* got {type(wrong).__name__}"):
            pack(wrong)
    with pytest.raises(ArgumentTypeError, match=r"rows must be an integer, got 2.0"):
        deinterleave_columns(np.zeros(64, np.int8), 2.0, 32)


def test_libraries_are_known_by_what_they_do():
    class Array:
        """An array of a library that is not here, such as cupy."""

        def __init__(self, array: Any) -> None:
            self.array, self.shape = array, array.shape

        def reshape(self, *shape: Any) -> Array:
            return Array(self.array.reshape(*shape))

        def swapaxes(self, *axes: int) -> Array:
            return Array(self.array.swapaxes(*axes))

        def copy(self) -> Array:
            return Array(self.array.copy())

    for (pack, given_), (_, same) in zip(packings(Array), packings(np.asarray), strict=True):
        np.testing.assert_array_equal(pack(given_).array, pack(same))
