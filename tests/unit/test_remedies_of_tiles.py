"""Refused tiles and slices, drawn at random: what a message about them tells to do is done, and is accepted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, ROW, ampere
from hypothesis import example, given
from hypothesis import strategies as st

from pycutlass import GemmArguments
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
