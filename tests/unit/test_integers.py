"""Integers of every library, as extents, counts and alignments of descriptions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from descriptions import native_parts, parts

from pycutlass import TensorDescription, TileDescription, cutlass
from pycutlass.errors import DescriptionError

TILE = parts()["tile_description"]
F16, HOPPER = TILE.math_instruction, native_parts()["tile_description"].math_instruction


class Count:
    """Something that counts."""

    def __index__(self) -> int:
        return 8


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8])
def test_integers_of_numpy_are_integers(integer):
    def array(*values: int) -> Any:
        return np.array(values, integer)

    math = dataclasses.replace(F16, instruction_shape=array(16, 8, 16))
    tile = TileDescription(array(128, 128, 32), integer(3), array(2, 2, 1), math)
    native = TileDescription(array(128, 128, 64), integer(4), None, HOPPER, array(2, 1))
    tensor = TensorDescription(cutlass.float16, cutlass.RowMajor, integer(8))
    assert (math, tile, tensor) == (F16, TILE, TensorDescription(cutlass.float16, cutlass.RowMajor, 8))
    assert native == TileDescription([128, 128, 64], 4, None, HOPPER, [2, 1])
    assert repr(tile) == repr(TILE)
    stored = [*math.instruction_shape, *tile.threadblock_shape, *tile.warp_count, *native.cluster_shape]
    stored += [tile.stages, native.stages, tensor.alignment]
    assert {type(each) for each in stored} == {int}


def test_whatever_has_an_index_is_an_integer():
    assert TensorDescription(cutlass.float16, cutlass.RowMajor, Count()).alignment == 8
    assert TileDescription([128, 128, 32], Count(), [2, 2, 1], F16).stages == 8
    assert dataclasses.replace(F16, instruction_shape=[16, Count(), 16]) == F16


@pytest.mark.parametrize("wrong", [True, np.True_, np.float64(8), np.array([8, 8]), "8", None], ids=repr)
def test_what_is_no_integer_is_refused(wrong):
    def refused(make: Any, what: str) -> None:
        with pytest.raises(DescriptionError, match=what):
            make()

    refused(lambda: TensorDescription(cutlass.float16, cutlass.RowMajor, wrong), "alignment must be a power of two")
    refused(lambda: TileDescription([128, 128, 32], wrong, [2, 2, 1], F16), "stages")
    refused(lambda: TileDescription([128, 128, 32], 3, [wrong, 2, 1], F16), "warp_count must be three positive")
    refused(lambda: TileDescription([128, wrong, 32], 3, [2, 2, 1], F16), "threadblock_shape must be three positive")
    refused(
        lambda: TileDescription([128, 128, 64], None, None, HOPPER, [wrong, 1]),
        "cluster_shape must be two positive integers",
    )
    refused(lambda: dataclasses.replace(F16, instruction_shape=[16, wrong, 16]), "instruction_shape must be three")
