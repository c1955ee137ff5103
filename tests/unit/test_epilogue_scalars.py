"""Scalars of an epilogue: numbers of every kind, device memory, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import TAG, parts, plainly
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import (
    GemmOperationUniversal,
    GemmProblemSize,
    LinearCombination,
    LinearCombinationGeneric,
    cutlass,
)
from pycutlass.epilogue import PerBatch
from pycutlass.epilogue.scalars import check_scalars
from pycutlass.errors import ArgumentError, ArgumentTypeError

F16 = LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)


class CUdeviceptr:
    """Stands for ``cuda.bindings.driver.CUdeviceptr``, which is known by its name."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __int__(self) -> int:
        return self.address


class DeviceTensor:
    """Looks like a tensor of cupy."""

    __cuda_array_interface__ = None  # cupy has a dict here; that there is one is what counts

    def __init__(self, dtype: str, size: int = 1) -> None:
        self.data = SimpleNamespace(ptr=0x7F0000001000)
        self.dtype = np.dtype(dtype)
        self.size = size


@pytest.mark.parametrize(
    ("alpha", "value"),
    [
        (2, 2.0),
        (0.1, 0.1),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.array(0.25), 0.25),
        (torch.tensor(3.0), 3.0),
        (cutlass.float16(1.5), 1.5),
        (cutlass.int32(7), 7.0),
    ],
    ids=plainly,
)
def test_numbers_of_every_kind(alpha, value):
    scalars = F16.epilogue_type(alpha, alpha)
    assert scalars.values == (value, value)
    assert scalars.pointers == (0, 0)
    assert scalars.alpha_is_known
    assert scalars.needs_source


def test_alpha_is_one_and_beta_zero_by_default():
    scalars = F16.epilogue_type()
    assert scalars.values == (1.0, 0.0)
    assert not scalars.needs_source


def test_a_number_that_records_gradients_is_a_number():
    assert F16.epilogue_type(torch.tensor(2.0, requires_grad=True)).values[0] == 2.0


@pytest.mark.parametrize("value", [1j, np.complex128(2), torch.tensor(1 + 1j)], ids=plainly)
def test_complex_scalars_are_told_what_is_wrong_with_them(value):
    with pytest.raises(ArgumentTypeError, match=r"beta must be a number without an imaginary part.*Pass beta\.real"):
        F16.epilogue_type(1.0, value)


#: The least number that is no zero in a compute type, by way of f32 to f16.
LEAST = {"f16": 2.0**-25 * (1 + 2.0**-23), "f32": 2.0**-150 * (1 + 2.0**-52), "f64": 5e-324}


@pytest.mark.parametrize("compute", LEAST)
def test_c_is_read_where_beta_is_not_zero_in_the_compute_type(compute):
    functor = LinearCombination(TAG[compute], 1)
    least = LEAST[compute]
    assert functor.epilogue_type(1.0, least).needs_source
    assert functor.epilogue_type(1.0, -least).needs_source
    below = np.nextafter(least, 0) if compute != "f16" else 2.0**-25 * (1 + 2.0**-25)  # which f32 makes a tie
    assert not functor.epilogue_type(1.0, below).needs_source
    assert functor.reference(np.ones(2), None, (2.0, float(below))).tolist() == [2.0, 2.0]
    poison = np.full(2, np.nan)
    exact = functor.reference(np.ones(2), poison, (2.0, float(below)), np.dtype(np.float64))
    assert exact.tolist() == [2.0, 2.0]


def test_the_operation_decides_whether_beta_is_zero():
    wide, narrow = LinearCombination(cutlass.float64, 1), F16
    scalars = wide.epilogue_type(1.0, 1e-60)
    assert scalars.needs_source
    assert not check_scalars(narrow, scalars).needs_source


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_f64_scalars_stay_f64(alpha):
    functor = LinearCombination(cutlass.float64, 1)
    assert functor.epilogue_type(alpha).values[0] == alpha


@pytest.mark.parametrize("make", [CUdeviceptr, lambda address: DeviceTensor("float32")])
def test_scalars_in_device_memory(make):
    beta = make(0x7F0000001000)
    scalars = F16.epilogue_type(2.0, beta)
    assert scalars.pointers == (0, 0x7F0000001000)
    assert scalars.values[0] == 2.0
    assert scalars.owners[1] is beta
    assert scalars.needs_source
    assert not F16.epilogue_type(beta).alpha_is_known


@pytest.mark.parametrize("tensor", [DeviceTensor("float16"), DeviceTensor("float64"), DeviceTensor("float64", 2)])
def test_device_scalars_of_another_kind_are_refused(tensor):
    with pytest.raises(ArgumentError) as caught:
        F16.epilogue_type(1.0, tensor)
    words = ["beta", f"{tensor.size} of {tensor.dtype}", "one element of float32", "element_epilogue"]
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        *("2.0", b"1", None, [1.0], 1j, np.ones(2), np.ones(1), torch.ones(2), torch.ones((), device="meta"), object()),
        *(np.complex64(1), np.array(1 + 2j), torch.tensor(1j), np.ma.masked, np.ma.masked_array(2.0, True)),
    ],
    ids=plainly,
)
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_what_is_no_number_is_refused(name, value):
    with pytest.raises(ArgumentTypeError) as caught:
        F16.epilogue_type(**{name: value})
    assert name in str(caught.value)
    assert type(value).__name__ in str(caught.value)
    assert "must be a number" in str(caught.value)


@pytest.mark.parametrize("value", [[1.0, 2.0], (1, 2), np.ones(2), torch.ones(2)], ids=plainly)
def test_several_numbers_are_for_an_epilogue_function(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="one number for each matrix of a batch, write an epilogue function wi"):
        F16.epilogue_type(1.0, value)

    @pycutlass.epilogue_function
    def scaled(accum: Any, beta: PerBatch(cutlass.float32)) -> Any:  # type: ignore[valid-type]
        return accum * beta

    operation = GemmOperationUniversal(**parts() | {"epilogue_functor": scaled(cutlass.float16, 8)})
    batches = GemmProblemSize(8, 8, 8, cutlass.gemm.Mode.Batched, batch=2)
    assert operation.supports(batches, {"beta": np.asarray(value, np.float32)})


@pytest.mark.parametrize("value", [0.5, float("inf"), float("nan")])
def test_integer_epilogues_take_integers(value):
    functor = LinearCombination(cutlass.int8, 16, cutlass.int32, cutlass.int32)
    assert functor.epilogue_type(3.0, -2).values == (3.0, -2.0)
    with pytest.raises(ArgumentError) as caught:
        functor.epilogue_type(1, value)
    words = ("beta", repr(value), "integer", "cutlass.int32", "compute in cutlass.float32 (element_epilogue)")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40, 1e30])
def test_integer_epilogues_take_integers_of_their_range(value):
    functor = LinearCombination(cutlass.int32, 4, cutlass.int32, cutlass.int32)
    assert functor.epilogue_type(2**31 - 1, -(2**31)).values == (2**31 - 1, -(2**31))
    with pytest.raises(ArgumentError) as caught:
        functor.epilogue_type(value)
    words = (
        f"alpha={value:.0f}",
        "-2147483648 to 2147483647",
        "cutlass.int32",
        "compute in cutlass.float32 (element_epilogue)",
    )
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("compute", ["f32", "s32"])
def test_more_digits_than_any_type_has(compute):
    with pytest.raises(ArgumentError, match=r"beta is beyond float64"):
        LinearCombination(cutlass.int32, 4, cutlass.int32, TAG[compute]).epilogue_type(1, 10**400)


OVERFLOWING = [("f16", 65520.0), ("f16", -70000.0), ("f32", 1e39), ("f32", -(2.0**128))]


@pytest.mark.parametrize(("compute", "value"), OVERFLOWING)
@pytest.mark.parametrize("name", ["alpha", "beta", "leaky_alpha"])
def test_a_number_that_the_compute_type_would_make_infinite_is_refused(compute, value, name):
    functor = LinearCombinationGeneric(pycutlass.leaky_relu(), cutlass.float16, 8, cutlass.float32, TAG[compute])
    with pytest.raises(ArgumentError) as caught:
        functor.epilogue_type(**{name: value})
    remedy = "compute in cutlass.float32 (element_epilogue)" if compute == "f16" and abs(value) < 1e38 else "Scale"
    words = (f"{name}={value}", f"beyond {functor.compute}", "would be infinite", remedy)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(("compute", "value"), [("f16", 65519.0), ("f32", 3.4e38), ("f64", 1e300)])
def test_the_largest_numbers_and_infinities_that_are_given_are_taken(compute, value):
    functor = LinearCombination(cutlass.float16, 8, cutlass.float32, TAG[compute])
    for number in (value, -value, float("inf"), float("-inf")):
        assert functor.epilogue_type(number).values[0] == number
    assert np.isnan(functor.epilogue_type(float("nan")).values[0])


def test_scalars_of_a_wider_functor_are_refused_where_they_overflow():
    narrow = LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float16)
    assert check_scalars(narrow, F16.epilogue_type(60000.0)).compute is narrow.compute
    with pytest.raises(ArgumentError, match=r"alpha=70000.0 is beyond cutlass.float16"):
        check_scalars(narrow, F16.epilogue_type(70000.0))


def test_an_activation_may_have_a_scalar_of_its_own():
    functor = LinearCombinationGeneric(pycutlass.leaky_relu, cutlass.float16, 8, cutlass.float32, cutlass.float32)
    assert functor.scalar_names == ("alpha", "beta", "leaky_alpha")
    assert functor.epilogue_type(1.0, 2.0).values == (1.0, 2.0, 0.2)
    assert functor.epilogue_type(1.0, 2.0, 0.5).values == (1.0, 2.0, 0.5)


@pytest.mark.parametrize("value", [CUdeviceptr(0x7F0000001000), DeviceTensor("float32"), "0.5"], ids=plainly)
def test_the_scalar_of_an_activation_is_a_number(value):
    functor = LinearCombinationGeneric(pycutlass.leaky_relu, cutlass.float16, 8, cutlass.float32, cutlass.float32)
    with pytest.raises(ArgumentTypeError) as caught:
        functor.epilogue_type(1.0, 2.0, value)
    words = ["leaky_alpha must be a number", type(value).__name__]
    words += [] if isinstance(value, str) else ["alpha and beta alone", "Copy it to the host"]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert isinstance(value, str) or any(functor.epilogue_type(value, value, 0.5).pointers)


def test_scalars_are_given_and_found_by_name():
    functor = pycutlass.LinearCombinationGeneric(
        pycutlass.leaky_relu(), cutlass.float16, 8, cutlass.float32, cutlass.float32
    )
    scalars = functor.epilogue_type(2.0, leaky_alpha=0.125, beta=0.5)
    assert scalars.names == ("alpha", "beta", "leaky_alpha")
    assert [scalars[name] for name in scalars.names] == [2.0, 0.5, 0.125] == [*scalars.values]
    assert functor.epilogue_type(leaky_alpha=0.125)["alpha"] == 1.0
    with pytest.raises(KeyError, match="gamma"):
        scalars["gamma"]
    with pytest.raises(ArgumentTypeError, match="leaky_alfa"):
        functor.epilogue_type(1.0, leaky_alfa=0.1)
    with pytest.raises(ArgumentError, match="leaky_alpha is given twice"):
        functor.epilogue_type(1.0, 0.0, 0.1, leaky_alpha=0.1)
