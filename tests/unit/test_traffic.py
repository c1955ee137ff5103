"""The tiles that the model counts, beside those of `tile_use` and of a walk through the order that CUTLASS has."""

from __future__ import annotations

import random

import numpy as np
import pytest
from recorded_gemms import tnt

from pycutlass import tile_use
from pycutlass.device import Device
from pycutlass.plan import Candidate, candidates
from pycutlass.plan.features import Features
from pycutlass.plan.traffic import Tiling

H200 = Device(0, "NVIDIA H200", 90, 132)
NATIVE = [each for each in candidates(tnt(), 90) if each.operation.is_sm90 and not each.has_workspace]


def tiling(chosen: list[Candidate], m: int, n: int, capability: int = 90) -> Tiling:
    features = Features.of(chosen, capability)
    rows, columns = np.where(features.is_transposed, n, m), np.where(features.is_transposed, m, n)
    return Tiling.of(features, rows.astype(float), columns.astype(float))


@pytest.mark.parametrize("seed", range(6))
def test_as_many_tiles_are_visited_as_tile_use_counts(seed: int) -> None:
    rng = random.Random(seed)
    m, n = int(2 ** rng.uniform(0, 14)), 8 * int(2 ** rng.uniform(0, 11))
    counted = [tile_use(each.operation, each.size(m, n, 64), H200.sm_count).tiles for each in NATIVE]
    assert tiling(NATIVE, m, n).visited.tolist() == counted


def walked(candidate: Candidate, m: int, n: int) -> list[tuple[int, int]]:
    """Return the tiles in the order of CUTLASS's persistent scheduler: get_work_idx_m_and_n, in whole clusters."""
    operation = candidate.operation
    rows, columns, _ = operation.tile_description.threadblock_shape
    of_m, of_n, _ = operation.tile_description.cluster_shape or (1, 1, 1)
    m, n = (n, m) if operation.swap_ab else (m, n)
    along_m, along_n = (-(-extent // (tile * of)) * of for extent, tile, of in ((m, rows, of_m), (n, columns, of_n)))
    fewest = min(along_m, along_n)
    asked = operation.swizzle_size
    log = 3 if asked >= 8 and fewest >= 6 else 2 if asked >= 4 and fewest >= 3 else 1 if asked >= 2 <= fewest else 0
    along_m, along_n = (-(-tiles // (of << log)) * (of << log) for tiles, of in ((along_m, of_m), (along_n, of_n)))
    is_along_m = along_n > along_m
    major, minor = (along_m // of_m, along_n // of_n) if is_along_m else (along_n // of_n, along_m // of_m)
    order = []
    for cluster in range(major * minor):
        offset, rest = cluster & ((1 << log) - 1), cluster >> log
        across = (rest // major << log) + offset
        place = (rest % major, across) if is_along_m else (across, rest % major)
        order += [(place[0] * of_m + i, place[1] * of_n + j) for i in range(of_m) for j in range(of_n)]
    return order


@pytest.mark.parametrize("size", [(1536, 4608), (300, 5000), (8192, 640), (129, 129)], ids=str)
def test_strips_are_those_that_cutlass_goes_along(size: tuple[int, int]) -> None:
    """Of the first tiles, as many as a strip has, what varies across it has `width` values, and the rest all it has."""
    of_all = tiling(NATIVE, *size)
    for place, candidate in enumerate(NATIVE):
        order = walked(candidate, *size)
        assert len(order) == of_all.visited[place]
        is_along_m = bool(of_all.is_along_m[place])
        length = {tile[0 if is_along_m else 1] for tile in order}
        width = len({tile[1 if is_along_m else 0] for tile in order[: len(length)]})
        limit = of_all.along_n[place] if is_along_m else of_all.along_m[place]
        assert min(width, limit) <= of_all.width[place] <= limit
        if of_all.width[place] == limit:
            continue  # there is but one strip, which tiles outside of D may fill up
        strip = order[: len(length) * int(of_all.width[place])]
        assert {tile[0 if is_along_m else 1] for tile in strip} == length
        assert len({tile[1 if is_along_m else 0] for tile in strip}) <= of_all.width[place] + 1e-9


def test_operands_that_stay_in_the_cache_are_read_once() -> None:
    of_all = tiling(NATIVE, 8192, 8192)
    small, large = np.full(len(NATIVE), 1e5), np.full(len(NATIVE), 1e9)
    places = np.full(len(NATIVE), 132.0)
    assert np.allclose(of_all.read(small, small, places, 3e7, 4.0, 0.5), 2e5)
    read = of_all.read(large, large, places, 3e7, 4.0, 0.5)
    assert (read >= 2e9).all()
    by_name = dict(zip((each.name for each in NATIVE), read, strict=True))
    tile = "Pingpong 128x128x64, cluster 1x1, swizzle"
    assert by_name[f"{tile} 8"] < by_name[f"{tile} 4"] < by_name[f"{tile} 1"]


def test_threadblocks_of_ampere_style_kernels_end_at_once_outside_of_d() -> None:
    styled = [each for each in candidates(tnt(), 80) if not each.operation.tile_description.is_gemv]
    features = Features.of(styled, 80)
    of_all = tiling(styled, 1300, 2900, 80)
    assert np.array_equal(of_all.visited, np.ceil(1300 / features.rows) * np.ceil(2900 / features.columns))
    assert of_all.is_along_m.all()
