"""Whether matrices share memory, found for hundreds of them at once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.errors import ArgumentTypeError


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Return begin, bytes, line and pitch of a matrix in a small memory."""
    line, lines, pitch = draw(st.integers(0, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 12))
    pitch = max(pitch, line)
    begin = 1000 + draw(st.integers(0, 90))
    return (begin, (lines - 1) * pitch + line if line else 0, line, pitch if lines > 1 and line else 0)


def addresses(span: tuple[int, int, int, int]) -> set[int]:
    begin, size, line, pitch = span
    lines = 1 + (size - line) // pitch if pitch else 1
    return {begin + step * pitch + byte for step in range(lines) for byte in range(line)}


def as_array(rows: list[tuple[int, int, int, int]]) -> NDArray[Any]:
    return np.array(rows, np.uint64).reshape(-1, 4)


@settings(max_examples=300, deadline=None)
@given(st.lists(spans(), max_size=8), st.lists(spans(), max_size=8))
def test_overlaps_are_found_and_none_is_missed(targets, sources):
    found = _core.find_overlap(as_array(targets), as_array(sources))
    real = any(addresses(target) & addresses(source) for target in targets for source in sources)
    if found is None:
        assert not real
        return
    assert addresses(targets[found[0]]) & addresses(sources[found[1]])


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.integers(1, 60), st.integers(-3000, 3000))
def test_many_lines_with_any_pitches(line, other_line, lines, other_lines, shift):
    # Pitches without a common divisor: the answer lies anywhere in the middle.
    pairs = [(line + gap, other_line + other) for gap in (0, 1, 50, 97) for other in (0, 3, 49, 101)]
    for pitch, other_pitch in pairs:
        target = (10_000, (lines - 1) * pitch + line, line, pitch if lines > 1 else 0)
        source = (10_000 + shift, (other_lines - 1) * other_pitch + other_line, other_line, other_pitch)
        if other_lines == 1:
            source = (*source[:3], 0)
        found = _core.find_overlap(as_array([target]), as_array([source]))
        assert (found is not None) == bool(addresses(target) & addresses(source)), (target, source)


def test_a_single_byte_in_millions_of_lines():
    pitch, other_pitch, count = 1_000_003, 999_983, 900_000
    target = (2**40, (count - 1) * pitch + 1, 1, pitch)
    # The lines of the source meet the line 123456 of the target, and no other within its extent.
    for number, shared in ((123_456, True), (count, False)):
        begin = 2**40 + number * pitch - 654_321 * other_pitch
        source = (begin, 800_000 * other_pitch + 1, 1, other_pitch)
        assert (_core.find_overlap(as_array([target]), as_array([source])) is not None) == shared


@settings(max_examples=100, deadline=None)
@given(st.lists(spans(), min_size=1, max_size=8))
def test_what_is_written_in_place_overlaps_the_others_only(targets):
    assume(all(size for _, size, _, _ in targets))
    found = _core.find_overlap(as_array(targets), as_array(targets), True)
    pairs = [(i, j) for i in range(len(targets)) for j in range(len(targets)) if i != j]
    real = any(addresses(targets[i]) & addresses(targets[j]) for i, j in pairs)
    if found is None:
        assert not real
    else:
        assert found[0] != found[1]


def test_overlaps_of_hundreds_are_found_fast():
    count = 1000
    rng = np.random.default_rng()
    begins = rng.permutation(4 * count) * 4096 + 2**40
    apart = as_array([(int(begin), 4096, 64, 64) for begin in begins])
    targets, sources = apart[:count], apart[count:]
    start = time.perf_counter()
    assert _core.find_overlap(targets, sources) is None
    assert time.perf_counter() - start < 0.5  # all pairs would be 3 million looks
    sources[-1] = (int(targets[617, 0]) + 100, 8, 8, 0)
    assert _core.find_overlap(targets, sources) == (617, len(sources) - 1)


def test_spans_of_another_form_are_refused():
    for wrong in (np.zeros((2, 3), np.uint64), np.zeros((2, 4), np.int32), np.zeros((4, 4), np.uint64)[:, ::2]):
        with pytest.raises(ArgumentTypeError, match="spans must be"):
            _core.find_overlap(wrong, wrong)
