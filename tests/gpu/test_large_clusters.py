"""Clusters of 16 threadblocks, which a kernel has to be allowed, and which not all of a GPU has room for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from descriptions import COLUMN, ROW
from hopper_classes import described, of_tma
from hopper_launches import integers, launch, matrix

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, KernelSchedule, cutlass
from pycutlass.errors import DeviceError

STREAM_K = cutlass.ThreadblockSwizzleStreamK
PINGPONG = KernelSchedule.Pingpong
KERNELS: dict[str, GemmOperationUniversal] = {
    "4x4": described(C=of_tma("f16"), cluster=(4, 4)),
    "2x8, pingpong": described(C=of_tma("f16"), cluster=(2, 8), shape=(64, 128, 64), schedule=PINGPONG),
    "8x2, neither along K": described(layouts=(COLUMN, ROW), C=of_tma("f16"), cluster=(8, 2)),
    "16x1, small slices": described(C=of_tma("f16"), cluster=(16, 1), shape=(64, 16, 64)),
    "1x16, by columns": described(C=of_tma("f16", COLUMN), cluster=(1, 16)),
    "1x16, three warp groups, slices of 12 lines": described(
        C=of_tma("f16"), cluster=(1, 16), shape=(192, 96, 64), schedule=KernelSchedule.Cooperative
    ),
    "4x4, stream-K": described(C=of_tma("f16"), cluster=(4, 4), swizzle=STREAM_K),
    "4x4, A in registers, slices of 52 lines": described(
        "u8", "s8", "s32", layouts=(ROW, ROW), C=of_tma("s8"), shape=(64, 208, 256), cluster=(4, 4), schedule=PINGPONG
    ),
    "2x1, A in registers, slices of 4 lines": described(
        "tf32", layouts=(COLUMN, COLUMN), C=of_tma("f16"), shape=(64, 8, 32), cluster=(2, 1), schedule=PINGPONG
    ),
}


@pytest.fixture(scope="module", autouse=True)
def compiled_at_once() -> None:
    pycutlass.compiler.add_module(list(KERNELS.values()))


def run_or_learn_why_not(name: str, size: tuple[int, int, int], batch: int | None = None, **options: Any) -> None:
    """Launch, or skip where the GPU has no room for one such cluster, which has to be said when arguments are made."""
    try:
        launch(KERNELS[name], size, batch, **options)
    except DeviceError as error:
        assert "clusters of 16 threadblocks" in str(error) and "at most 8 threadblocks" in str(error)
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [(16, 16, 16), (272, 144, 80), (1040, 2064, 1024), (4112, 528, 400)])
@pytest.mark.parametrize("name", KERNELS)
def test_every_element_is_exact(name: str, size: tuple[int, int, int]) -> None:
    run_or_learn_why_not(name, size)


@pytest.mark.parametrize("name", KERNELS)
def test_a_batch_and_few_multiprocessors(name: str) -> None:
    run_or_learn_why_not(name, (1040, 272, 96), 3)
    for limit in (16, 40, 1000):
        run_or_learn_why_not(name, (1040, 2064, 192), sm_count=limit)


def test_slices_of_k() -> None:
    for slices in (2, 5):
        run_or_learn_why_not("4x4, stream-K", (272, 144, 2064), split_k_slices=slices)
    run_or_learn_why_not("4x4, stream-K", (512, 512, 8192))


@pytest.mark.parametrize("name", ["4x4", "4x4, stream-K"])
def test_a_launch_has_as_many_clusters_as_can_be_active(name: str) -> None:
    operation, (m, n, k) = KERNELS[name], (8192, 8192, 64)
    A, B = matrix(operation.A, integers(m, k)), matrix(operation.B, integers(k, n))
    D = torch.empty(m, n, device="cuda", dtype=torch.float16)
    try:
        arguments = GemmArguments(operation, (m, n, k), A, B, None, D)
    except DeviceError as error:
        pytest.skip(str(error))
    x, y, _ = arguments.launch_config.grid
    assert x * y % 16 == 0
    assert 16 <= x * y <= torch.cuda.get_device_properties(0).multi_processor_count
