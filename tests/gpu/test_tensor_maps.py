"""Tensor maps that took another address are those that the driver makes for it, and kernels of any order use them."""

from __future__ import annotations

import numpy as np
import pytest

import pycutlass

torch = pytest.importorskip("torch")
driver = pytest.importorskip("cuda.bindings.driver")


@pytest.fixture(autouse=True)
def on_hopper() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("only Hopper has tensor maps")


def encoded(address: int) -> object:
    """Return a tensor map of f16 in boxes of 64 x 64, as CUTLASS asks for it."""
    kinds = driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    word, half = driver.cuuint64_t, driver.cuuint32_t
    code, made = driver.cuTensorMapEncodeTiled(
        *(kinds, 2, address, [word(256), word(96)], [word(512)], [half(64), half(64)], [half(1), half(1)]),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    assert code == driver.CUresult.CUDA_SUCCESS
    return made


def test_another_address_makes_the_map_that_the_driver_would_make() -> None:
    first, second = (torch.empty(96, 256, device="cuda", dtype=torch.float16).data_ptr() for _ in range(2))
    made = encoded(first)
    assert driver.cuTensorMapReplaceAddress(made, second)[0] == driver.CUresult.CUDA_SUCCESS
    words = [[int(word) for word in each.opaque] for each in (made, encoded(second), encoded(first))]
    assert words[0] == words[1]
    assert words[0] != words[2] or first == second


def test_plans_of_many_forms_take_turns() -> None:
    """More forms than a thread keeps maps of, with new tensors each time."""
    drawn = np.random.default_rng(20261125)
    sizes = [(64 * int(m), 64 * int(n), 64 * int(k)) for m, n, k in drawn.integers(1, 9, (8, 3))]
    plans = {}
    for _ in range(3):
        for m, n, k in sizes:
            a = torch.randn(m, k, device="cuda", dtype=torch.float16)
            b = torch.randn(n, k, device="cuda", dtype=torch.float16).t()
            out = torch.full((m, n), torch.nan, device="cuda", dtype=torch.float16)
            plan = plans.setdefault((m, n, k), pycutlass.Gemm(a, b, out=out))
            plan.run(a, b, out=out)
            torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-3 * k**0.5)
