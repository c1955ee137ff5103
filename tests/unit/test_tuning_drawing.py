"""Operands that are drawn: their distribution, how they lie in memory, and that large ones are as random."""

from __future__ import annotations

import numpy as np
import pytest

from pycutlass import cutlass
from pycutlass.tuning import drawing
from pycutlass.tuning.drawing import Drawing
from pycutlass.types import element

BF16 = element(cutlass.bfloat16)


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 8)])
def test_operands_lie_in_memory_as_they_are_packed(shape: tuple[int, ...], by_rows: bool) -> None:
    made = Drawing("normal", 3).operands(BF16, [shape, shape], by_rows)
    first, second = (made.values(number) for number in range(2))
    assert first.shape == second.shape == shape and not np.array_equal(first, second)
    packed = first if by_rows else first.swapaxes(-1, -2)
    assert packed.flags.c_contiguous and np.shares_memory(first, made.values(0))
    assert sorted(first.ravel().tolist()) == sorted(second.ravel().tolist()), "a shift of each other"


def test_large_operands_repeat_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_MOST_DRAWN", 997)
    values = Drawing("normal", 0).operands(BF16, [(64, 128)]).values(0)
    flat = values.ravel()
    assert flat.dtype == BF16.dtype and np.array_equal(flat[:997], flat[997:1994])
    assert len({row.tobytes() for row in values}) == 64, "no two rows are equal"
    assert 0.9 < float(values.astype(np.float32).std()) < 1.1


def test_as_many_are_drawn_as_a_prime_number() -> None:
    most = drawing._MOST_DRAWN
    assert all(most % divisor for divisor in range(2, int(most**0.5) + 1))


def test_equal_seeds_draw_equal_operands() -> None:
    one, two, other = (Drawing("uniform", seed).operands(BF16, [(9, 9)]).values(0) for seed in (1, 1, 2))
    assert np.array_equal(one, two) and not np.array_equal(one, other)
