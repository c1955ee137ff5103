"""Operations with some of their parameters exchanged."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from typing import Any

import pytest
from convolutions import conv, fprop
from descriptions import COLUMN, ROW, ampere, hopper, parts

from pycutlass import GemmOperationGrouped, GemmOperationUniversal, SchedulerMode, TensorDescription, cutlass
from pycutlass.errors import ArgumentTypeError, DescriptionError

GROUP = GemmOperationGrouped(**parts("f16"))


@pytest.mark.parametrize(
    "operation",
    [
        ampere("f16"),
        hopper(),
        hopper().replace(swap_ab=True),
        GROUP,
        conv(fprop, "optimized"),
    ],
    ids=str,
)
def test_nothing_exchanged_is_an_equal_operation(operation: Any) -> None:
    assert operation.replace() == operation and operation.replace() is not operation
    assert operation.__replace__() == operation
    with pytest.raises(ArgumentTypeError, match=r"has no keyword tile.*Did you mean tile_description"):
        operation.replace(tile=operation.tile_description)
    with pytest.raises(DescriptionError, match="tile_description must be a TileDescription"):
        operation.replace(tile_description=None)


def test_what_is_named_is_exchanged_and_all_else_is_kept() -> None:
    operation = ampere("f16")
    tile = replace(operation.tile_description, stages=4)
    made = operation.replace(tile_description=tile, compute_capability=86)
    assert made == GemmOperationUniversal(**parts("f16") | {"tile_description": tile, "compute_capability": 86})
    assert operation == ampere("f16")
    assert GROUP.replace(precompute_mode=SchedulerMode.Host).precompute_mode is SchedulerMode.Host
    assert (
        conv(fprop, "optimized").replace(swizzling_functor=cutlass.IdentitySwizzle4).swizzling_functor
        is cutlass.IdentitySwizzle4
    )


def test_d_follows_c_unless_it_is_apart() -> None:
    operation, by_columns = hopper(), TensorDescription(cutlass.float16, COLUMN, 8)
    assert operation.replace(C=by_columns).D == by_columns
    apart = operation.replace(D=by_columns)
    assert apart.is_apart and (apart.C.layout, apart.D.layout) == (ROW, COLUMN)
    assert apart.replace(C=by_columns) == operation.replace(C=by_columns)
    swapped = operation.replace(swap_ab=True)
    assert swapped.replace(C=TensorDescription(cutlass.float16, COLUMN, 8)).swap_ab


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is new in Python 3.13")
def test_the_standard_library_replaces() -> None:
    change: Any = copy.replace  # type: ignore[attr-defined]
    assert change(ampere("f16"), compute_capability=86) == ampere("f16").replace(compute_capability=86)
