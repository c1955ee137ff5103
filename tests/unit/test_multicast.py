"""Clusters of up to 16 threadblocks, and how they divide the tiles that they share."""

from __future__ import annotations

import pytest
from descriptions import COLUMN, ROW
from hopper_classes import described, of_tma

from pycutlass.errors import DescriptionError
from pycutlass.families.sm90_multicast import slice_bytes

LARGE = [(4, 4), (2, 8), (8, 2), (16, 1), (1, 16)]


@pytest.mark.parametrize("cluster", LARGE)
@pytest.mark.parametrize("layouts", [(ROW, COLUMN), (COLUMN, ROW)])
def test_clusters_of_sixteen_are_described(cluster, layouts):
    operation = described(layouts=layouts, C=of_tma("f16"), cluster=cluster)
    m, n = cluster
    assert f"cute::Shape<cute::Int<{m}>, cute::Int<{n}>, cute::Int<1>>" in operation.source().text
    assert f"_{m}x{n}_" in operation.procedural_name()


@pytest.mark.parametrize(
    ("cluster", "nearest"),
    [((16, 2), (16, 1)), ((8, 4), (8, 2)), ((32, 1), (16, 1)), ((3, 1), (2, 1)), ((2, 1, 2), (2, 1))],
)
def test_larger_and_odd_ones_are_not(cluster, nearest):
    with pytest.raises(DescriptionError, match=r"1, 2, 4, 8 or 16 along M and N, .* at most 16 threadblocks") as caught:
        described(C=of_tma("f16"), cluster=cluster)
    assert f"use cluster_shape={list(nearest)}" in str(caught.value)
    assert described(C=of_tma("f16"), cluster=nearest)


# What CUTLASS's tensor maps have as their boxes, in bytes; tests/compile/test_plans_sm90.py compares some.
@pytest.mark.parametrize(
    ("layouts", "shape", "cluster", "of_A", "of_B"),
    [
        ((ROW, COLUMN), (64, 8, 64), (8, 1), 8192, 128),
        ((ROW, COLUMN), (64, 48, 64), (16, 1), 8192, 384),
        ((ROW, COLUMN), (128, 80, 192), (16, 1), 16384, 640),
        ((ROW, COLUMN), (128, 128, 48), (1, 16), 256, 4096),
        ((COLUMN, ROW), (64, 8, 64), (8, 1), 8192, 128),
        ((COLUMN, ROW), (128, 80, 192), (16, 1), 24576, 384),
        ((COLUMN, ROW), (192, 32, 64), (4, 4), 2048, 1024),
    ],
)
def test_the_slices_are_those_of_cutlass(layouts, shape, cluster, of_A, of_B):
    operation = described(layouts=layouts, C=of_tma("f16"), shape=shape, cluster=cluster)
    tile, (m, n) = operation.tile_description, cluster
    assert slice_bytes(tile, operation.A, "A", n) == of_A
    assert slice_bytes(tile, operation.B, "B", m) == of_B


@pytest.mark.parametrize(
    ("layouts", "shape", "cluster", "fewer"),
    [
        ((ROW, COLUMN), (64, 8, 64), (16, 1), 8),
        ((ROW, COLUMN), (64, 8, 32), (8, 1), 4),
        ((ROW, COLUMN), (64, 16, 16), (8, 1), 4),
        ((ROW, COLUMN), (64, 16, 32), (16, 1), 8),
        ((COLUMN, ROW), (64, 8, 32), (8, 1), 4),
    ],
)
def test_a_slice_that_tma_cannot_place_is_refused_with_what_fits(layouts, shape, cluster, fewer):
    with pytest.raises(DescriptionError, match=f"use at most {fewer} threadblocks along M"):
        described(layouts=layouts, C=of_tma("f16"), shape=shape, cluster=cluster)
    described(layouts=layouts, C=of_tma("f16"), shape=shape, cluster=(fewer, 1))


def test_the_transposed_problem_divides_the_other_operand():
    with pytest.raises(DescriptionError, match="divides each tile of B"):
        described(C=of_tma("f16"), shape=(64, 8, 64), cluster=(16, 1), swap_ab=True)
