"""Convolutions whose epilogue converts sums exactly up to a bound: by their length, or by what the operands hold."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from conv_operands import SplitKMode, extents_of, size
from convolutions import conv, fprop, s8, s32

import pycutlass
from pycutlass import Conv2dArguments, log
from pycutlass.errors import ArgumentError

FAST = conv(
    *(fprop, "optimized", (s8, s32, s8)),
    functor=lambda output, length, *rest: pycutlass.FastLinearCombinationClamp(output, length),
)
LONG = size(C=32, K=32)  # R * S * C = 288


def operands(largest: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(2)
    A, B, _ = (random.integers(-largest, largest, extent).astype(np.int8) for extent in extents_of(fprop, LONG))
    D = np.zeros(extents_of(fprop, LONG)[2], np.int8)
    A[0, 0, 0, 0] = B[0, 0, 0, 0] = largest
    return A, B, D


def test_support_is_said_of_any_tensors() -> None:
    assert FAST.supports(size(C=16, K=32))
    support = FAST.supports(LONG)
    assert not support
    for words in ("FastLinearCombinationClamp", "at most 256", "R * S * C = 288", "host memory", "LinearCombinationC"):
        assert words in support.reason


def test_small_elements_in_host_memory_add_up_exactly(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(log, "_said", set())
    A, B, D = operands(120)  # 120 * 120 * 288 = 4,147,200
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            arguments = Conv2dArguments(FAST, LONG, A, B, None, D, FAST.epilogue_type(2**-9))
    assert [record.message for record in caplog.records if "4,194,304" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1, "the bound is said once"
    FAST.run(arguments)
    clamped = pycutlass.LinearCombinationClamp(s8, 16, s32, pycutlass.cutlass.float32)
    plain = conv(fprop, "optimized", (s8, s32, s8), functor=lambda *_: clamped)
    expected = np.empty_like(D)
    plain.run(Conv2dArguments(plain, LONG, A, B, None, expected, plain.epilogue_type(2**-9)))
    np.testing.assert_array_equal(D, expected)
    assert len(np.unique(D)) > 10

    A[0, 1, 1, 1] = -128
    B[0, 1, 1, 1] = 127
    with pytest.raises(ArgumentError, match=r"up to 4,194,304, got K=288 with elements up to 128 in A and 127 in B"):
        Conv2dArguments(FAST, LONG, A, B, None, D)
    with pytest.raises(ArgumentError, match="use LinearCombinationClamp"):
        arguments.update(A=A, B=B)


def test_partial_sums_are_their_reductions_to_convert() -> None:
    A, B, _ = operands(127)
    Conv2dArguments(FAST, LONG, A, B, split_k_mode=SplitKMode.Parallel, split_k_slices=2)
