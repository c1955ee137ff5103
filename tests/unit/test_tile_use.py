"""What the tiles of a kernel make of a problem."""

from __future__ import annotations

import math

import pytest
from convolutions import OPERATIONS as CONVOLUTIONS
from descriptions import COLUMN, ROW, ampere
from gemv_classes import gemv
from groups import grouped
from hopper_classes import STREAM_K, described, of_tma
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import GemmProblemSize, cutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError


def hopper(shape=(128, 256, 64), **options):
    return described(C=of_tma("f16"), shape=shape, **options)


def test_a_problem_that_tiles_divide_wastes_nothing_but_the_last_wave():
    use = pycutlass.tile_use(hopper(), (4096, 4096, 4096), sm_count=132)
    assert (use.tile, use.tiles, use.at_once, use.waves, use.outside) == ((128, 256, 64), 512, 132, 4, 0)
    assert use.last_wave == pytest.approx(116 / 132)
    assert use.useful == pytest.approx(512 / (4 * 132))
    assert str(use) == (
        "512 tiles of 128x256x64 in 4 waves of 132, the last 88% full; 0% of what is multiplied is outside the "
        "problem, 97% of the GPU is used"
    )
    assert "in 1 wave of 132, 97% full;" in str(pycutlass.tile_use(hopper(), (2048, 2048, 4096), sm_count=132))


@given(m=st.integers(1, 80), n=st.integers(1, 80), k=st.integers(1, 40), sm_count=st.integers(8, 200))
def test_what_is_outside_is_counted_element_by_element(m, n, k, sm_count):
    size = (8 * m, 8 * n, 8 * k)
    use = pycutlass.tile_use(hopper((64, 128, 64), cluster=(2, 1)), size, sm_count=sm_count)
    tiles_m, tiles_n, steps = 2 * math.ceil(size[0] / 128), math.ceil(size[1] / 128), math.ceil(size[2] / 64)
    assert use.tiles == tiles_m * tiles_n
    assert 1 - use.outside == pytest.approx(math.prod(size) / (tiles_m * tiles_n * steps * 64 * 128 * 64))
    assert use.at_once == sm_count // 2 * 2
    assert (use.waves - 1) * use.at_once < use.tiles <= use.waves * use.at_once
    assert 0 < use.last_wave <= 1 and 0 < use.useful <= 1 - use.outside + 1e-9


def test_the_transposed_problem_has_its_rows_along_n():
    plain = pycutlass.tile_use(hopper((64, 16, 64)), (8, 4096, 512), 132)
    swapped = pycutlass.tile_use(hopper((64, 16, 64), swap_ab=True), (8, 4096, 512), 132)
    assert (plain.tiles, plain.outside) == (256, 0.875)
    assert (swapped.tiles, swapped.outside) == (64, 0.5)
    by_columns = ampere("f16", (ROW, COLUMN, COLUMN), tile=(128, 64, 32))
    assert pycutlass.tile_use(by_columns, (64, 128, 32), 108).outside == 0


@pytest.mark.parametrize("of_d", [ROW, COLUMN])
def test_a_gemv_kernel_has_rows_along_m_whatever_the_order_of_d(of_d):
    use = pycutlass.tile_use(gemv(of_d=of_d), (1, 128, 1024), 132)
    assert (use.tiles, use.outside) == (16, 0)
    use = pycutlass.tile_use(gemv(of_d=of_d, swap_ab=True), (128, 1, 1024), 132)
    assert (use.tiles, use.outside) == (16, 0)


def test_batches_and_slices_are_work_of_their_own():
    operation, mode = hopper(), cutlass.gemm.Mode
    assert pycutlass.tile_use(operation, GemmProblemSize(128, 256, 64, mode.Batched, batch=7), 132).tiles == 7
    split = GemmProblemSize(128, 256, 192, mode.GemmSplitKParallel, split_k_slices=2)
    use = pycutlass.tile_use(operation, split, 132)
    assert (use.tiles, use.outside) == (2, 0.25)  # each slice has 96 of K, in two steps of 64


def test_a_swizzle_fills_the_number_of_tiles_up():
    tiles = {
        swizzle: pycutlass.tile_use(hopper((128, 128, 64), swizzle=swizzle), (3 * 128, 5 * 128, 64), 132).tiles
        for swizzle in (cutlass.IdentitySwizzle1, cutlass.IdentitySwizzle2, cutlass.IdentitySwizzle8)
    }
    assert list(tiles.values()) == [15, 24, 32]


def test_stream_k_leaves_no_multiprocessor_without_work():
    use = pycutlass.tile_use(hopper((128, 128, 64), swizzle=STREAM_K), (1280, 128, 4096), 132)
    assert (use.tiles, use.last_wave, use.useful) == (10, 1, 1)
    assert "divided by stream-K" in str(use)


def test_threadblocks_of_one_multiprocessor():
    use = pycutlass.tile_use(ampere("f16", tile=(128, 128, 32)), (1024, 1024, 64), 108, threadblocks=2)
    assert (use.tiles, use.at_once, use.waves) == (64, 216, 1)


def test_groups_and_convolutions():
    use = pycutlass.tile_use(grouped(tile=(128, 128, 32)), [(128, 128, 32), (0, 8, 8), (8, 136, 32)], 132)
    assert use.tiles == 3
    assert 1 - use.outside == pytest.approx((128 * 128 + 8 * 136) / (3 * 128 * 128))
    operation = CONVOLUTIONS["f32_simt_fprop"]
    size = cutlass.conv.Conv2dProblemSize(N=2, H=9, W=8, C=16, K=24, R=3, S=3, pad_h=1, pad_w=1)
    rows, columns, depth = operation.tile_description.threadblock_shape
    use = pycutlass.tile_use(operation, size, 132)
    assert use.tiles == math.ceil(144 / rows) * math.ceil(24 / columns)
    assert 1 - use.outside == pytest.approx(
        144 * 24 * 144 / (use.tiles * rows * columns * depth * math.ceil(144 / depth))
    )


def test_nothing_to_do():
    use = pycutlass.tile_use(hopper(), (0, 256, 64), 132)
    assert (use.tiles, use.waves, use.outside, use.last_wave, use.useful) == (0, 0, 0, 1, 1)


def test_what_cannot_be_answered(monkeypatch):
    with pytest.raises(ArgumentError, match="must be"):
        pycutlass.tile_use(hopper(), (128, 255, 64), 132)
    with pytest.raises(ArgumentTypeError, match="operation must be"):
        pycutlass.tile_use(None, (128, 256, 64), 132)
    monkeypatch.setattr(pycutlass.device, "available", lambda: False)
    with pytest.raises(ArgumentError, match="sm_count is needed where there is no GPU"):
        pycutlass.tile_use(hopper(), (128, 256, 64))
    for wrong in ({"sm_count": 0}, {"sm_count": 132, "threadblocks": 0}):
        with pytest.raises(ArgumentError):
            pycutlass.tile_use(hopper(), (128, 256, 64), **wrong)
