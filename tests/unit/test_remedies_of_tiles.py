"""Refused tiles and slices, drawn at random: what a message about them tells to do is done, and is accepted."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, ROW, TAG, TENSOR_OP, ampere
from hypothesis import example, given
from hypothesis import strategies as st

from pycutlass import GemmArguments, KernelSchedule, MathInstruction, MathOperation, TileDescription
from pycutlass.errors import ArgumentError, DescriptionError

CHANGES = {
    "stages": re.compile(r"\b(?:at most )?(\d+) stages"),
    "tile": re.compile(r"threadblock_shape \[(\d+), (\d+), (\d+)\]"),
    "warps": re.compile(r"warp_count \[(\d+), (\d+), (\d+)\]"),
}


def advised(text: str) -> list[dict[str, Any]]:
    """Return the changes that a message about shared memory tells to make, each of which is enough."""
    found = []
    for alternative in text.rpartition(": use ")[2].split(" or "):
        for name, pattern in CHANGES.items():
            if match := pattern.fullmatch(alternative):
                numbers = tuple(map(int, match.groups()))
                found.append({name: numbers[0] if name == "stages" else numbers})
    return found


@given(
    st.sampled_from(["f16", "f32_simt"]),
    st.sampled_from([64, 128, 256]),
    st.sampled_from([64, 128, 256]),
    st.sampled_from([8, 16, 32, 64, 128]),
    st.integers(3, 40),
)
@example("f16", 128, 128, 32, 40)
def test_what_a_message_about_shared_memory_tells_to_do_is_accepted(
    name: str, m: int, n: int, k: int, stages: int
) -> None:
    described: dict[str, Any] = {"tile": (m, n, k), "stages": stages}
    try:
        ampere(name, (ROW, COLUMN, ROW), **described)
        return
    except DescriptionError as error:
        text = str(error)
    if "bytes of shared memory" in text:
        changes = advised(text)
        assert changes or "a smaller threadblock_shape" in text
        for change in changes:
            ampere(name, (ROW, COLUMN, ROW), **{**described, **change})


FAST = MathOperation.multiply_add_fast_accum
#: What of a message about a Hopper-native tile is done, and how its extents and its operation are then.
NATIVE: dict[str, Any] = {
    r"use threadblock_shape \[(\d+), (\d+), (\d+)\]$": lambda shape, *to: to,
    r"use at most (\d+) columns": lambda shape, to: (shape[0], to, shape[2]),
    r"threadblock_shape N=\d+ .*the nearest is (\d+)$": lambda shape, to: (shape[0], to, shape[2]),
    r"threadblock_shape N=8; use (\d+)$": lambda shape, to: (shape[0], to, shape[2]),
    r"threadblock_shape K=\d+ .*the nearest is (\d+)$": lambda shape, to: (*shape[:2], to),
    r"use K of 32, (64) or 128": lambda shape, to: (*shape[:2], to),
}


@pytest.mark.parametrize("schedule", [KernelSchedule.Cooperative, KernelSchedule.Pingpong])
@pytest.mark.parametrize(
    ("operand", "accumulator", "operation"),
    [
        *(("f16", sums, MathOperation.multiply_add) for sums in ("f32", "f16")),
        *(("tf32", "f32", MathOperation.multiply_add), ("s8", "s32", MathOperation.multiply_add)),
        *(("e4m3", "f32", operation) for operation in (MathOperation.multiply_add, FAST)),
    ],
)
def test_what_a_message_about_a_native_tile_tells_to_do_is_accepted(
    operand: str, accumulator: str, operation: MathOperation, schedule: KernelSchedule
) -> None:
    def tile(shape: Any, by: MathOperation = operation) -> TileDescription:
        math = MathInstruction(None, TAG[operand], TAG[operand], TAG[accumulator], TENSOR_OP, by)
        return TileDescription(shape, None, None, math, [1, 1], schedule)

    rows = (192, 256, 64 if schedule is KernelSchedule.Pingpong else 128)
    columns, depths = (1, 8, 16, 24, 40, 48, 112, 144, 176, 192, 208, 228, 240, 272), (4, 16, 24, 40, 64, 80, 192)
    refused = 0
    for shape in itertools.product(rows, columns, depths):
        try:
            tile(shape)
            continue
        except DescriptionError as error:
            text = str(error)
        refused += 1
        found = [(match, change) for pattern, change in NATIVE.items() if (match := re.search(pattern, text))]
        assert found, text
        for match, change in found[:1]:
            tile(change(shape, *map(int, match.groups())))
        if "or MathOperation.multiply_add_fast_accum" in text:
            tile(shape, FAST)
    assert refused


@given(st.integers(1, 4000), st.integers(2, 4000))
def test_as_many_slices_as_a_message_allows_are_accepted(k: int, slices: int) -> None:
    operation = ampere("f32_simt", (ROW, ROW, ROW))
    A, B, D = np.ones((4, k), np.float32), np.ones((k, 4), np.float32), np.zeros((4, 4), np.float32)
    try:
        GemmArguments(operation, (4, 4, k), A, B, None, D, split_k_slices=slices)
        return
    except ArgumentError as error:
        most = re.search(r"split_k_slices must be at most (\d+), got", str(error))
    assert most is not None
    operation.run(GemmArguments(operation, (4, 4, k), A, B, None, D, split_k_slices=int(most[1])))
    np.testing.assert_array_equal(D, np.full((4, 4), k))


def test_the_alternatives_are_read() -> None:
    with pytest.raises(DescriptionError) as caught:
        ampere("f16", (ROW, COLUMN, ROW), tile=(128, 128, 32), stages=40)
    assert "stages" in {name for change in advised(str(caught.value)) for name in change}, caught.value
