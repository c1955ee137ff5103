"""Threadblock swizzles: tiles, grids, and the C++ types that they name."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import cutlass
from pycutlass.cutlass.conv import Conv2dProblemSize, Operator, implicit_gemm_problem_size
from pycutlass.cutlass.gemm import GemmCoord

GEMM = "cutlass::gemm::threadblock::"
CONV = "cutlass::conv::threadblock::"
IDENTITY = {
    cutlass.IdentitySwizzle1: 1,
    cutlass.IdentitySwizzle2: 2,
    cutlass.IdentitySwizzle4: 4,
    cutlass.IdentitySwizzle8: 8,
}
STRIDED = {cutlass.StridedDgradIdentitySwizzle1: 1, cutlass.StridedDgradIdentitySwizzle4: 4}
HORIZONTAL = [cutlass.HorizontalSwizzle, cutlass.StridedDgradHorizontalSwizzle]
TAGS = {
    **{swizzle: f"{GEMM}GemmIdentityThreadblockSwizzle<{n}>" for swizzle, n in IDENTITY.items()},
    **{swizzle: f"{CONV}StridedDgradIdentityThreadblockSwizzle<{n}>" for swizzle, n in STRIDED.items()},
    cutlass.HorizontalSwizzle: f"{GEMM}GemmSplitKHorizontalThreadblockSwizzle",
    cutlass.BatchedIdentitySwizzle: "pycutlass::BatchedIdentitySwizzle",
    cutlass.StridedDgradHorizontalSwizzle: f"{CONV}StridedDgradHorizontalThreadblockSwizzle",
    cutlass.ThreadblockSwizzleStreamK: f"{GEMM}ThreadblockSwizzleStreamK",
}
WITH_GRID = [swizzle for swizzle in TAGS if swizzle is not cutlass.ThreadblockSwizzleStreamK]
FOR_GEMM = [*IDENTITY, cutlass.HorizontalSwizzle, cutlass.BatchedIdentitySwizzle]

extents = st.integers(1, 700)
tiles = st.sampled_from([16, 32, 64, 128, 256])


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tile_of_block(swizzle: type, log_tile: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    """The tile that a thread block computes, by the rule that the kernels follow."""
    x, y, z = block
    if swizzle in HORIZONTAL:
        return y, x, z
    if swizzle is cutlass.BatchedIdentitySwizzle:  # its log_tile carries the tiles along m
        return x % log_tile, y, x // log_tile
    return x >> log_tile, (y << log_tile) + (x & ((1 << log_tile) - 1)), z


@pytest.mark.parametrize(("swizzle", "tag"), TAGS.items())
def test_tags_are_the_names_of_the_cpp_types(swizzle, tag):
    assert swizzle.tag() == swizzle().tag() == tag


@pytest.mark.parametrize("swizzle", TAGS)
def test_swizzles_are_values_without_state(swizzle):
    assert swizzle() == swizzle() and hash(swizzle()) == hash(swizzle())
    assert eval(repr(swizzle()), vars(cutlass)) == swizzle()
    assert pickle.loads(pickle.dumps(swizzle())) == swizzle() == copy.deepcopy(swizzle())
    assert pickle.loads(pickle.dumps(swizzle)) is swizzle
    assert len({other() for other in TAGS}) == len(TAGS)


@pytest.mark.parametrize("swizzle", FOR_GEMM)
@given(m=extents, n=extents, k=extents, tile_m=tiles, tile_n=tiles, slices=st.integers(1, 9))
def test_tiled_shape_rounds_up(swizzle, m, n, k, tile_m, tile_n, slices):
    problem, tile = GemmCoord(m, n, k), GemmCoord(tile_m, tile_n, 32)
    expected = GemmCoord(ceil_div(m, tile_m), ceil_div(n, tile_n), slices)
    assert swizzle.get_tiled_shape(problem, tile, slices) == expected
    assert swizzle().get_tiled_shape(problem_size=problem, tile_size=tile, split_k_slices=slices) == expected


@pytest.mark.parametrize("swizzle", WITH_GRID)
@given(m=st.integers(1, 12), n=st.integers(1, 20), k=st.integers(1, 3))
def test_the_grid_covers_every_tile_once(swizzle, m, n, k):
    tiled = GemmCoord(m, n, k)
    grid = swizzle.get_grid_shape(tiled)
    log_tile = swizzle.get_log_tile(tiled)
    computed = [tile_of_block(swizzle, log_tile, block) for block in itertools.product(*map(range, grid))]
    inside = [t for t in computed if t[0] < m and t[1] < n and t[2] < k]
    assert sorted(inside) == list(itertools.product(range(m), range(n), range(k)))


@pytest.mark.parametrize(("swizzle", "width"), [*IDENTITY.items(), *STRIDED.items()])
@pytest.mark.parametrize("n", range(1, 12))
def test_identity_swizzles_widen_with_n(swizzle, width, n):
    log_tile = 3 if width >= 8 and n >= 6 else 2 if width >= 4 and n >= 3 else 1 if width >= 2 and n >= 2 else 0
    assert swizzle.get_log_tile(GemmCoord(5, n, 2)) == log_tile
    grid = cutlass.dim3(5 << log_tile, ceil_div(n, 1 << log_tile), 2)
    assert (
        swizzle.get_grid_shape(GemmCoord(5, n, 2)) == grid == swizzle().get_grid_shape(tiled_shape=GemmCoord(5, n, 2))
    )


@pytest.mark.parametrize("swizzle", IDENTITY)
@pytest.mark.parametrize("operator", Operator)
def test_convolutions_are_tiled_by_their_implicit_gemm(swizzle, operator):
    problem = Conv2dProblemSize(N=3, H=17, W=19, C=40, K=72, R=3, S=3, pad_h=1, pad_w=1, stride_h=2)
    tile = GemmCoord(128, 64, 32)
    gemm = implicit_gemm_problem_size(operator, problem)
    assert swizzle.get_tiled_shape(operator, problem, tile, 4) == swizzle.get_tiled_shape(gemm, tile, 4)


@pytest.mark.parametrize("swizzle", [*STRIDED, cutlass.StridedDgradHorizontalSwizzle])
@given(
    n=st.integers(1, 4), h=st.integers(3, 30), w=st.integers(3, 30), c=extents, u=st.integers(1, 3), v=st.integers(1, 3)
)
def test_strided_dgrad_has_tiles_for_every_start_of_the_filter(swizzle, n, h, w, c, u, v):
    problem = Conv2dProblemSize(N=n, H=h, W=w, C=c, K=8, R=3, S=3, stride_h=u, stride_w=v)
    tiled = swizzle.get_tiled_shape(Operator.dgrad, problem, GemmCoord(64, 128, 32), 1)
    pixels_per_start = n * ceil_div(h, u) * ceil_div(w, v)
    assert tiled == GemmCoord(ceil_div(pixels_per_start, 64) * u * v, ceil_div(c, 128), 1)
    with pytest.raises(TypeError):
        swizzle.get_tiled_shape(GemmCoord(1, 1, 1), GemmCoord(64, 128, 32), 1)


@pytest.mark.parametrize("swizzle", FOR_GEMM)
def test_sizes_that_cannot_be_tiled_are_refused(swizzle):
    problem, tile = GemmCoord(8, 8, 8), GemmCoord(8, 8, 8)
    with pytest.raises(ValueError, match=r"tile_size.n\(\) must be at least 1; got 0"):
        swizzle.get_tiled_shape(problem, GemmCoord(8, 0, 8), 1)
    with pytest.raises(ValueError, match=r"problem_size.m\(\) must be at least 0; got -1"):
        swizzle.get_tiled_shape(GemmCoord(-1, 8, 8), tile, 1)
    with pytest.raises(ValueError, match="32-bit index"):
        swizzle.get_tiled_shape(GemmCoord(2**31 - 1, 8, 8), tile, 1)
    with pytest.raises(ValueError, match="split_k_slices must be from 1"):
        swizzle.get_tiled_shape(problem, tile, 0)
    if swizzle is cutlass.BatchedIdentitySwizzle:  # its batch lies along x; CUTLASS's own would make 65537 batches one
        assert swizzle.get_grid_shape(swizzle.get_tiled_shape(problem, tile, 65537)) == cutlass.dim3(65537, 1, 1)
        return
    with pytest.raises(ValueError, match="at most 65535, the most blocks that a CUDA grid has along z; got 65537"):
        swizzle.get_tiled_shape(problem, tile, 65537)


@pytest.mark.parametrize("swizzle", WITH_GRID)
def test_grids_that_cuda_cannot_launch_are_refused(swizzle):
    long = GemmCoord(65536, 1, 1) if swizzle in HORIZONTAL else GemmCoord(1, 65536 * 8, 1)
    with pytest.raises(ValueError, match="at most 65535 blocks along y and z"):
        swizzle.get_grid_shape(long)
    with pytest.raises(ValueError, match=r"tiled_shape.m\(\) must be at least 0"):
        swizzle.get_grid_shape(GemmCoord(-1, 1, 1))


def test_strided_dgrad_refuses_overflow():
    problem = Conv2dProblemSize(N=1, H=2**15, W=2**15, C=1, K=1, R=1, S=1, stride_h=2**16, stride_w=2**16)
    with pytest.raises(ValueError, match="stride_h \\* stride_w"):
        cutlass.StridedDgradIdentitySwizzle1.get_tiled_shape(Operator.dgrad, problem, GemmCoord(1, 1, 1), 1)


def stream_k(problem: GemmCoord, slices: int = 1, **device: int) -> cutlass.dim3:
    device = {"sm_occupancy": 1, "device_sms": 132, "epilogue_acc_fragments": 8} | device
    return cutlass.ThreadblockSwizzleStreamK.get_grid_dims(problem, GemmCoord(128, 128, 32), slices, **device)


def test_stream_k_is_data_parallel_where_waves_are_full():
    assert stream_k(GemmCoord(128 * 12, 128 * 11, 4096)) == cutlass.dim3(132)
    assert stream_k(GemmCoord(128 * 12, 128 * 22, 4096)) == cutlass.dim3(264)


def test_stream_k_spreads_few_tiles_over_the_device():
    few = GemmCoord(128 * 3, 128 * 3, 2**16)
    assert 9 < stream_k(few).x
    assert stream_k(few, avail_sms=1) == cutlass.dim3(9)


def test_stream_k_emulates_split_k():
    # 4 tiles in 2 slices each, whole waves of 8 blocks on 8 multiprocessors
    assert stream_k(GemmCoord(256, 256, 4096), slices=2, device_sms=8) == cutlass.dim3(8)
    # 4 tiles in 3 slices each: a wave of 12, and a block that reduces for each of the 8 fragments of a tile
    few = GemmCoord(256, 256, 4096)
    assert stream_k(few, slices=3, device_sms=12, avail_sms=12, sm_occupancy=4) == cutlass.dim3(max(12 + 4 * 8, 4 * 12))


def test_stream_k_tiles():
    tiled_shape = cutlass.ThreadblockSwizzleStreamK.get_tiled_shape
    assert tiled_shape(GemmCoord(129, 256, 64), GemmCoord(128, 128, 32), 4) == GemmCoord(2, 2, 1)
    with pytest.raises(ValueError, match=r"problem_size.k\(\) must be at least 1"):
        tiled_shape(GemmCoord(1, 1, 0), GemmCoord(128, 128, 32), 1)
    with pytest.raises(ValueError, match="32-bit index"):
        tiled_shape(GemmCoord(2**20, 2**20, 32), GemmCoord(8, 8, 32), 1)
    with pytest.raises(ValueError, match="device_sms must be from 1"):
        stream_k(GemmCoord(1, 1, 1), device_sms=0)
