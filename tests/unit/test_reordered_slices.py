"""Parts of a reordered B: whole blocks are known wherever they come from, what goes through blocks is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reordering import SIZE, K, M, Mode, N, operands, product
from test_gemm_modes_refused import INTERLEAVED8

from pycutlass import (
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    deinterleave_columns,
    interleave_columns,
    interleave_rows,
    reorder_column,
)
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu", "nothing_reordered")


def layers(count: int = 3) -> tuple[Any, list[tuple[Any, Any, Any]]]:
    """Return the packed B of some problems in one array of (count, K / 32, N, 32), and the problems."""
    each = [operands(seed) for seed in range(count)]
    return np.concatenate([interleave_rows(B) for _, B, _ in each]).reshape(count, K // 32, N, 32), each


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_slice_of_whole_blocks_is_reordered_as_well(library, inference, caplog):
    stacked, each = layers()
    with torch.inference_mode(inference):
        reordered = reorder_column(library(stacked))
        slices = [part.reshape(-1) for part in reordered]
        del reordered
        for part, (A, _, exact) in zip(slices, each, strict=True):
            for given in (part, part.numpy() if hasattr(part, "numpy") else torch.from_numpy(part)):
                np.testing.assert_array_equal(product(given, A), exact)
    assert "reorder_column" not in caplog.text


def test_a_slice_of_groups_of_columns_or_of_rows_is_reordered_as_well():
    _, ((A, B, exact), *_) = layers(1)
    reordered = reorder_column(interleave_rows(B)).reshape(K // 32, N, 32)
    D = np.zeros(M * 32, np.int8)
    for group in range(N // 32):
        columns = slice(32 * group, 32 * group + 32)
        first = reordered[:1, columns].reshape(-1)
        assert np.shares_memory(first, reordered)
        INTERLEAVED8.run(GemmArguments(INTERLEAVED8, (M, 32, 32), interleave_columns(A[:, :32]), first, None, D))
        found = np.clip(A[:, :32].astype(int) @ B[:32, columns], -128, 127)
        np.testing.assert_array_equal(deinterleave_columns(D, M, 32), found)
        gathered = reordered[:, columns].reshape(-1)  # a copy
        assert not np.shares_memory(gathered, reordered)
        with pytest.raises(ArgumentError, match="or of a part of one, in other memory"):
            GemmArguments(INTERLEAVED8, (M, 32, K), interleave_columns(A), gathered, None, D)
        options = {"reordered": True}
        INTERLEAVED8.run(GemmArguments(INTERLEAVED8, (M, 32, K), interleave_columns(A), gathered, None, D, **options))
        np.testing.assert_array_equal(deinterleave_columns(D, M, 32), exact[:, columns])


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_slice_through_blocks_is_refused(library):
    stacked, ((A, _, _), *_) = layers(1)
    flat = reorder_column(library(stacked)).reshape(-1)
    D = np.zeros(M * 32, np.int8)
    for first in (16, 16 * 32, 1008):
        with pytest.raises(ArgumentError, match=r"begins or ends within a block of 32 columns by 32 rows.*reordered="):
            GemmArguments(INTERLEAVED8, (M, 32, 32), interleave_columns(A[:, :32]), flat[first : first + 1024], None, D)


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_slice_of_a_copy_is_refused(library):
    stacked, each = layers()
    for copy in (reorder_column(library(stacked)) + 0, library(np.array(reorder_column(stacked)))):
        for part, (A, _, exact) in zip(copy, each, strict=True):
            with pytest.raises(ArgumentError, match=r"or of a part of one, in other memory.*Pass reordered=True if"):
                product(part.reshape(-1), A)
            np.testing.assert_array_equal(product(part.reshape(-1), A, reordered=True), exact)


def test_what_is_plain_in_part_is_refused_and_plain_slices_of_it_are_plain():
    stacked, each = layers()
    reordered = reorder_column(stacked)
    reordered[1] = stacked[1]
    reordered[2, 0] = stacked[2, 0]
    for part, (A, _, exact) in zip(reordered[:2], each[:2], strict=True):
        np.testing.assert_array_equal(product(part.reshape(-1), A), exact)
    with pytest.raises(ArgumentError, match="some of its blocks have been written since"):
        product(reordered[2].reshape(-1), each[2][0])
    with pytest.raises(ArgumentError, match="some of its blocks have been written since"):
        batched(reordered.reshape(-1), each)


def batched(B: Any, each: list[tuple[Any, Any, Any]], mode: Any = Mode.Batched) -> None:
    """Run a batch, and check it."""
    A, D = np.concatenate([interleave_columns(A) for A, _, _ in each]), np.zeros(len(each) * M * N, np.int8)
    arguments = GemmArguments(INTERLEAVED8, SIZE, A, B, None, D, gemm_mode=mode, batch=len(each))
    INTERLEAVED8.run(arguments)
    for found, (_, _, exact) in zip(D.reshape(len(each), -1), each, strict=True):
        np.testing.assert_array_equal(deinterleave_columns(found, M, N), exact)


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_slices_in_batches_arrays_and_groups(library):
    stacked, each = layers(4)
    stacked[3] = 0  # is in both orders
    each[3] = (each[3][0], 0, np.zeros((M, N), np.int8))
    reordered = reorder_column(library(stacked)).reshape(4, -1)
    batched(reordered.reshape(-1), each)
    batched(reordered[1:].reshape(-1), each[1:])
    batched(list(reordered), each, Mode.Array)
    batched([*reordered[:2], *library(stacked.reshape(4, -1))[2:]], each, Mode.Array)
    fields = ("compute_capability", "tile_description", "A", "B", "C", "epilogue_functor")
    grouped = GemmOperationGrouped(*(getattr(INTERLEAVED8, name) for name in fields))
    A, D = [interleave_columns(A) for A, _, _ in each], [np.zeros(M * N, np.int8) for _ in each]
    grouped.run(GemmGroupedArguments(grouped, [SIZE] * 4, A, list(reordered), None, D))
    for found, (_, _, exact) in zip(D, each, strict=True):
        np.testing.assert_array_equal(deinterleave_columns(found, M, N), exact)


def test_reordering_a_slice_again_makes_it_plain():
    stacked, each = layers()
    reordered = reorder_column(stacked)
    for part, (A, _, exact) in zip(reordered, each, strict=True):
        np.testing.assert_array_equal(product(reorder_column(part).reshape(-1), A), exact)
