"""Scalars of products in one line: given once, of the plan alone, and numbers where there is no GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass.epilogue import Scalar
from pycutlass.errors import ArgumentError, DeviceError

pytestmark = pytest.mark.usefixtures("without_gpu")

A = np.ones((8, 8), np.float16)
PIXELS, FILTERS = np.ones((1, 4, 4, 8), np.float16), np.ones((8, 3, 3, 8), np.float16)


@pycutlass.epilogue_function
def linear(accum: Any, alpha: Scalar = 0.5, beta: Scalar = 0.25, last: Scalar = 0.125) -> Any:
    return alpha * accum + beta + last


class _DeviceScalar:
    """One element of float32 in memory of a GPU, as a library says it."""

    dtype, shape, size, strides, itemsize = "float32", (1,), 1, (4,), 4
    data = SimpleNamespace(ptr=0x7F0000000000)
    __cuda_array_interface__ = property(lambda self: {"data": (self.data.ptr, False), "version": 3})


class CUdeviceptr(int):
    """An address, as cuda.bindings has it."""


@pytest.mark.parametrize("value", [_DeviceScalar(), CUdeviceptr(0x7F0000000000)], ids=["tensor", "address"])
@pytest.mark.parametrize("name", ["alpha", "beta", "last"])
def test_scalars_in_device_memory_need_a_gpu(name: str, value: Any) -> None:
    with pytest.raises(DeviceError, match=f"^{name} given as device memory, and there is no GPU"):
        pycutlass.matmul(A, A, epilogue=linear, epilogue_inputs={name: value})


_CALLS = {
    "matmul": lambda **options: pycutlass.matmul(A, A, **options),
    "linear": lambda **options: pycutlass.linear(A, A, activation=options.pop("epilogue"), **options),
    "grouped_matmul": lambda **options: pycutlass.grouped_matmul([A], [A], **options)[0],
    "conv2d": lambda **options: pycutlass.conv2d(PIXELS, FILTERS, **options),
    "Gemm": lambda **options: pycutlass.Gemm(A, A, **options)(A, A),
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_scalar_is_given_once(call: Any, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is 2, and epilogue_inputs has {name}=3: give it once, as {name}="):
        call(epilogue=linear, **{name: 2}, epilogue_inputs={name: 3})
    once = call(epilogue=linear, epilogue_inputs={name: 3})
    np.testing.assert_array_equal(call(epilogue=linear, **{name: 3}), once)
    np.testing.assert_array_equal(call(epilogue=linear, **{name: 3}, epilogue_inputs={name: 3.0}), once)


_WITH_PLANS = {
    "matmul": (pycutlass.Gemm(A, A, epilogue=linear), lambda **given: pycutlass.matmul(A, A, **given)),
    "grouped_matmul": (
        pycutlass.GroupedGemm([A], [A], epilogue=linear),
        lambda **given: pycutlass.grouped_matmul([A], [A], **given)[0],
    ),
    "conv2d": (
        pycutlass.Conv2d(PIXELS, FILTERS, epilogue=linear),
        lambda **given: pycutlass.conv2d(PIXELS, FILTERS, **given),
    ),
}


@pytest.mark.parametrize(("plan", "call"), _WITH_PLANS.values(), ids=_WITH_PLANS)
@pytest.mark.parametrize(("name", "own"), [("alpha", 0.5), ("beta", 0.25)])
def test_a_scalar_beside_a_plan_is_the_plans(plan: Any, call: Any, name: str, own: float) -> None:
    usual = call(plan=plan)
    for equal in (own, np.float32(own), np.float64(own)):
        np.testing.assert_array_equal(call(plan=plan, **{name: equal}), usual)
    for other in (0, 1, 2.0, np.float32(1)):
        with pytest.raises(
            ArgumentError, match=f"{name} and a plan are given.* that of the plan {own}: leave {name} out"
        ):
            call(plan=plan, **{name: other})


def test_scalars_beside_a_plan_without_a_function() -> None:
    plain, adding, biased = pycutlass.Gemm(A, A), pycutlass.Gemm(A, A, A, beta=2), pycutlass.Gemm(A, A, bias=A[0])
    np.testing.assert_array_equal(pycutlass.matmul(A, A, plan=plain, alpha=1.0, beta=0), 8)
    np.testing.assert_array_equal(pycutlass.matmul(A, A, A, plan=adding, beta=2.0), 10)
    np.testing.assert_array_equal(pycutlass.matmul(A, A, bias=A[0], plan=biased, beta=1), 9)
    for plan, beta in ((plain, 1), (adding, 0), (adding, 1), (biased, 0)):
        with pytest.raises(ArgumentError, match=f"beta is {beta}, and that of the plan"):
            pycutlass.matmul(A, A, plan=plan, beta=beta)
    with pytest.raises(ArgumentError, match="scales and a plan are given"):
        pycutlass.matmul(A, A, scales=(2.0, 1.0), plan=plain)


def test_numbers_that_are_larger_than_any_float_are_named() -> None:
    beyond, products = 10**400, (pycutlass.matmul, pycutlass.Gemm)
    for call in products:
        with pytest.raises(ArgumentError, match=r"^alpha is beyond float64"):
            call(A, A, alpha=beyond)
        with pytest.raises(ArgumentError, match=r"^beta is beyond float64"):
            call(A, A, A, beta=beyond)
    for group in (pycutlass.grouped_matmul, pycutlass.GroupedGemm):
        with pytest.raises(ArgumentError, match=r"^beta is beyond float64"):
            group([A], [A], [A], beta=beyond)
    with pytest.raises(ArgumentError, match=r"^beta is beyond float64"):
        pycutlass.conv2d(PIXELS, FILTERS, np.ones((1, 2, 2, 8), np.float16), beta=beyond)
    with pytest.raises(ArgumentError, match=r"^scales\[0\] is beyond float64"):
        pycutlass.matmul(A, A, scales=(beyond, 1.0))
    with pytest.raises(ArgumentError, match=r"^bandwidth is beyond float64"):
        pycutlass.epilogue.fusions.bias(pycutlass.cutlass.float16, 8).cost((8, 8, 8), beyond)
