"""Products of 8-bit floats whose sums threads add up: all ways in which warp groups take turns, and precision."""

from __future__ import annotations

import pytest
import torch
from epilogue_functions import biased
from hopper_classes import FAST, PINGPONG, STREAM_K, described, of_tma
from hopper_launches import TORCH, launch, matrix

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, cutlass

BF16 = cutlass.bfloat16
KERNELS: dict[str, GemmOperationUniversal] = {
    "two results": described("e4m3", C=of_tma("f32")),
    "two results, cluster of 4": described("e5m2", "e4m3", C=of_tma("bf16"), cluster=(2, 2), shape=(128, 96, 128)),
    "two results, pingpong": described("e4m3", C=of_tma("f32"), shape=(64, 128, 128), schedule=PINGPONG),
    "two stages": described("e4m3", C=of_tma("bf16"), shape=(64, 64, 128), schedule=PINGPONG, stages=2),
    "few columns": described("e5m2", C=of_tma("bf16"), shape=(64, 8, 128), schedule=PINGPONG, swap_ab=True),
    "two blocks": described("e4m3", C=of_tma("bf16"), shape=(256, 96, 128), cluster=(1, 2)),
    "two blocks, pingpong": described("e4m3", "e5m2", C=of_tma("bf16"), shape=(128, 80, 128), schedule=PINGPONG),
    "three blocks, pingpong": described("e4m3", C=of_tma("bf16"), shape=(192, 64, 128), schedule=PINGPONG),
    "four blocks, pingpong": described("e4m3", C=of_tma("bf16"), shape=(256, 32, 128), schedule=PINGPONG),
    "one result": described("e4m3", C=of_tma("bf16"), shape=(128, 192, 128), cluster=(2, 1)),
    "one result of 176 columns": described("e5m2", C=of_tma("bf16"), shape=(128, 176, 128)),
    "halves": described("e4m3", C=of_tma("bf16"), shape=(64, 192, 128), schedule=PINGPONG),
    "halves of 80 columns": described("e5m2", "e4m3", C=of_tma("bf16"), shape=(64, 160, 128), schedule=PINGPONG),
    "stream-K": described("e4m3", C=of_tma("f32"), swizzle=STREAM_K),
    "stream-K, one result": described("e4m3", C=of_tma("bf16"), shape=(128, 160, 128), swizzle=STREAM_K),
    "a function": described("e4m3", C=of_tma("bf16"), functor=biased(BF16, 8)),
    "a function, pingpong": described(
        "e4m3", C=of_tma("bf16"), shape=(64, 128, 128), functor=biased(BF16, 8), schedule=PINGPONG
    ),
    "tiles of 64 along K": described("e4m3", C=of_tma("bf16"), shape=(128, 128, 64)),
}
LONG = {
    "two results": KERNELS["two results"],
    "two results, pingpong": KERNELS["two results, pingpong"],
    "two blocks": described("e4m3", C=of_tma("f32"), shape=(256, 64, 128)),
    "one result": described("e4m3", C=of_tma("f32"), shape=(128, 144, 128)),
    "halves": described("e4m3", C=of_tma("f32"), shape=(64, 144, 128), schedule=PINGPONG),
}
FEW_BITS = described("e4m3", C=of_tma("f32"), operation=FAST)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    pycutlass.compiler.add_module([*KERNELS.values(), *LONG.values(), FEW_BITS])


@pytest.mark.parametrize("name", KERNELS)
def test_every_element_is_exact_whatever_the_number_of_tiles_along_k(name: str) -> None:
    for k in (16, 128, 144, 256, 384, 512, 640, 1040):
        for size in ((64, 80, k), (304, 416, k), (1504, 1040, k)):
            launch(KERNELS[name], size, None)
    launch(KERNELS[name], (144, 208, 400), 3)


def sums_of_many(operation: GemmOperationUniversal) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the kernel and what exact arithmetic make of sums that tensor cores have no bits for."""
    m, n, k = 272, 304, 40_016
    a, b = torch.ones(m, k, device="cuda").double(), torch.randint(1, 4, (k, n), device="cuda").double()
    D = matrix(operation.D, torch.full((m, n), 99.0, device="cuda"))
    A, B = matrix(operation.A, a), matrix(operation.B, b)
    arguments = GemmArguments(operation, (m, n, k), A, B, None, D, output_op=operation.epilogue_type(1.0, 0.0))
    operation.run(arguments)
    arguments.sync()
    return D.double(), (a @ b).to(TORCH["f32"]).double()


@pytest.mark.parametrize("name", LONG)
def test_sums_have_all_bits_of_float32(name: str) -> None:
    made, exact = sums_of_many(LONG[name])
    assert torch.equal(made, exact)


def test_tensor_cores_alone_lose_what_is_small_beside_a_sum() -> None:
    made, exact = sums_of_many(FEW_BITS)
    assert (made < 0.5 * exact).all()  # from 2^15 on, a product of 3 is less than the bits they keep
