"""Epilogue functors: what is valid, the text, the scalars of a launch, and the meaning."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import BY_SHORT_NAME, TAG
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import (
    FastLinearCombinationClamp,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    cutlass,
)
from pycutlass.epilogue import Activation, EpilogueFunctor
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

COMPUTE = ("f16", "f32", "f64", "s32")
NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__}
F16 = LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)

ACTIVATIONS = [cls for cls in Activation.__subclasses__() if cls.__module__.startswith("pycutlass.")]
ACTIVATION_NAMES = {cls.__name__: cls for cls in ACTIVATIONS}

#: What each activation is in torch.
TORCH = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.2),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "hardswish": torch.nn.functional.hardswish,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@st.composite
def functors(draw: st.DrawFn) -> EpilogueFunctor:
    kind = draw(st.sampled_from([LinearCombination, LinearCombinationClamp, LinearCombinationGeneric]))
    output = draw(st.sampled_from(list(TAG)))
    width = min(draw(st.sampled_from([1, 2, 4, 8, 16])), 128 // BY_SHORT_NAME[output].bits)
    accumulator, compute = draw(st.sampled_from(list(TAG))), draw(st.sampled_from(COMPUTE))
    types = (TAG[output], width, TAG[accumulator], TAG[compute])
    if kind is LinearCombinationGeneric:
        named = draw(st.sampled_from([None, TAG[compute]]))
        return LinearCombinationGeneric(draw(st.sampled_from(ACTIVATIONS))(named), *types)
    return kind(*types)


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


# Values


@given(functors())
def test_functors_are_values(functor):
    assert eval(repr(functor), dict(NAMES)) == functor
    for twin in (pickle.loads(pickle.dumps(functor)), copy.deepcopy(functor), dataclasses.replace(functor)):
        assert twin == functor
        assert hash(twin) == hash(functor)
    with pytest.raises(dataclasses.FrozenInstanceError):
        functor.element_output = cutlass.float32


def test_what_is_left_out_is_the_output_type():
    assert LinearCombination(cutlass.float32, 4) == LinearCombination(
        cutlass.float32, 4, cutlass.float32, cutlass.float32
    )


def test_text():
    assert F16.emit() == (
        "cutlass::epilogue::thread::LinearCombination<cutlass::half_t, 8, float, float>"
    )  # fmt: skip
    assert F16.emit_fusion() == "cutlass::epilogue::fusion::LinearCombination<cutlass::half_t, float>"


@given(functors(), functors())
def test_different_functors_have_different_text(left, right):
    assert (left == right) == (left.emit() == right.emit())


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"element_output": "half"}, ["element type", "'half'", "cutlass.float16"]),
    ({"element_accumulator": 32}, ["element type", "32"]),
    ({"element_epilogue": np.float32}, ["element type", "numpy.float32"]),
    *[
        ({"element_epilogue": TAG[short]}, ["element_epilogue", str(BY_SHORT_NAME[short]), "cutlass.float32"])
        for short in TAG
        if short not in COMPUTE
    ],
    *[
        ({"epilogue_vector_length": length}, ["epilogue_vector_length", "8 elements of cutlass.float16", repr(length)])
        for length in (0, -8, 3, 16, 8.0, "8", None)
    ],
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=str)
def test_one_wrong_thing_is_named(change, words):
    with pytest.raises(DescriptionError) as caught:
        dataclasses.replace(F16, **change)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_given_in_any_way(activation):
    made = [
        LinearCombinationGeneric(given, cutlass.float16, 8, cutlass.float32, cutlass.float32)
        for given in (activation, activation(), activation(cutlass.float32))
    ]
    assert made[0] == made[1] == made[2]
    assert len({functor.emit() for functor in made}) == 1
    assert activation.tag in made[0].emit()
    assert activation.tag in made[0].emit_fusion()


@pytest.mark.parametrize("activation", [None, "relu", 1, Activation, np.tanh], ids=repr)
def test_what_is_no_activation_is_refused(activation):
    with pytest.raises(DescriptionError) as caught:
        LinearCombinationGeneric(activation, cutlass.float16, 8)
    assert all(name in str(caught.value) for name in ACTIVATION_NAMES)


def test_an_activation_computes_in_the_type_of_the_epilogue():
    with pytest.raises(DescriptionError) as caught:
        LinearCombinationGeneric(pycutlass.relu(cutlass.float16), cutlass.float16, 8, cutlass.float32, cutlass.float32)
    assert all(word in str(caught.value) for word in ("cutlass.float16", "cutlass.float32", "the same"))


def test_the_fast_clamp_has_only_its_own_types():
    fast = FastLinearCombinationClamp(cutlass.int8, 16)
    assert eval(repr(fast), dict(NAMES)) == fast
    assert fast.emit() == "cutlass::epilogue::thread::FastLinearCombinationClamp<int8_t, 16>"
    for wrong, word in (
        ({"element_output": cutlass.float16, "epilogue_vector_length": 8}, "writes integers"),
        ({"element_accumulator": cutlass.float32}, "element_accumulator=cutlass.float32"),
        ({"element_epilogue": cutlass.int32}, "element_epilogue=cutlass.int32"),
    ):
        with pytest.raises(DescriptionError, match=word):
            dataclasses.replace(fast, **wrong)


# Scalars


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
    ids=repr,
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


@pytest.mark.parametrize("tensor", [DeviceTensor("float16"), DeviceTensor("float64"), DeviceTensor("float32", 2)])
def test_device_scalars_of_another_kind_are_refused(tensor):
    with pytest.raises(ArgumentError) as caught:
        F16.epilogue_type(1.0, tensor)
    words = ["beta", f"{tensor.size} of {tensor.dtype}", "one element of float32", "element_epilogue"]
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "value", ["2.0", b"1", None, [1.0], 1j, np.ones(2), np.ones(1), torch.ones(2), object()], ids=repr
)
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_what_is_no_number_is_refused(name, value):
    with pytest.raises(ArgumentTypeError) as caught:
        F16.epilogue_type(**{name: value})
    assert name in str(caught.value)
    assert type(value).__name__ in str(caught.value)
    assert "must be a number" in str(caught.value)


@pytest.mark.parametrize("value", [0.5, float("inf"), float("nan")])
def test_integer_epilogues_take_integers(value):
    functor = LinearCombination(cutlass.int8, 16, cutlass.int32, cutlass.int32)
    assert functor.epilogue_type(3.0, -2).values == (3.0, -2.0)
    with pytest.raises(ArgumentError) as caught:
        functor.epilogue_type(1, value)
    assert all(word in str(caught.value) for word in ("beta", repr(value), "integer", "cutlass.int32"))


def test_an_activation_may_have_a_scalar_of_its_own():
    functor = LinearCombinationGeneric(pycutlass.leaky_relu, cutlass.float16, 8, cutlass.float32, cutlass.float32)
    assert functor.scalar_names == ("alpha", "beta", "leaky_alpha")
    assert functor.epilogue_type(1.0, 2.0).values == (1.0, 2.0, 0.2)
    assert functor.epilogue_type(1.0, 2.0, 0.5).values == (1.0, 2.0, 0.5)
    with pytest.raises(ArgumentTypeError) as caught:
        functor.epilogue_type(1.0, 2.0, 0.5, 3.0)
    assert all(word in str(caught.value) for word in ("alpha, beta, leaky_alpha", "4"))
    with pytest.raises(ArgumentTypeError, match="alpha, beta; got 3"):
        F16.epilogue_type(1.0, 2.0, 0.5)


# Meaning


@pytest.mark.parametrize(
    ("output", "compute"), list(itertools.product(["f16", "bf16", "f32", "f64"], ["f16", "f32", "f64"]))
)
def test_the_meaning(output, compute):
    random = np.random.default_rng()
    functor = LinearCombination(TAG[output], 1, TAG["f32"], TAG[compute])
    accumulator = random.standard_normal((5, 7)).astype(np.float32)
    source = random.standard_normal((5, 7)).astype(functor.output.dtype)
    alpha, beta = random.standard_normal(2)
    result = functor.reference(accumulator, source, (alpha, beta))
    exact = alpha * accumulator.astype(np.float64) + beta * source.astype(np.float64)
    assert result.dtype == functor.compute.dtype
    scale = np.abs(alpha * accumulator.astype(np.float64)) + np.abs(beta * source.astype(np.float64))
    assert (np.abs(result.astype(np.float64) - exact) <= 2 * functor.compute.epsilon * scale + 1e-7).all()


def test_the_source_is_not_read_where_beta_is_zero():
    accumulator = np.ones((2, 2), np.float32)
    poison = np.full((2, 2), np.nan, np.float16)
    assert np.array_equal(F16.reference(accumulator, poison, (2.0, 0.0)), 2 * accumulator)
    assert np.array_equal(F16.reference(accumulator, None, (2.0, 0.0)), 2 * accumulator)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("short", ["f32", "f64"])
def test_activations_are_those_of_torch(activation, short):
    x = np.concatenate([np.random.default_rng().normal(0, 3, 200), [0.0, -0.0, 3.0, -3.0, 20.0, -20.0]])
    x = x.astype(BY_SHORT_NAME[short].dtype)
    right = TORCH[activation.__name__](torch.from_numpy(x.astype(np.float64))).numpy()
    result = activation.numpy(x)
    assert result.dtype == x.dtype
    np.testing.assert_allclose(result, right, rtol=20 * BY_SHORT_NAME[short].epsilon, atol=5 * np.finfo(x.dtype).eps)


def test_the_activation_comes_last():
    functor = LinearCombinationGeneric(pycutlass.relu, cutlass.float32, 1)
    accumulator, source = np.array([[1.0, -1.0, -4.0]], np.float32), np.array([[-3.0, 3.0, 1.0]], np.float32)
    assert functor.reference(accumulator, source, (2.0, 1.0)).tolist() == [[0.0, 1.0, 0.0]]
    assert functor.without_activation().reference(accumulator, source, (2.0, 1.0)).tolist() == [[-1.0, 1.0, -7.0]]


@pytest.mark.parametrize("output", ["s8", "f16", "bf16"])
def test_a_clamp_limits_the_result(output):
    row = BY_SHORT_NAME[output]
    functor = LinearCombinationClamp(row.tag, 1, cutlass.float32, cutlass.float32)
    most = np.finfo(np.float32).max
    result = row.round(functor.reference(np.array([[most, -most, 1.0]], np.float32), None, (1.0, 0.0)))
    assert result.astype(np.float64).tolist() == [[row.limits[1], row.limits[0], 1.0]]


def test_another_type_to_compute_in():
    functor = LinearCombination(cutlass.float32, 1)
    accumulator = np.full((1, 1), 3.0)
    result = functor.reference(accumulator, None, (0.1, 0.0), np.dtype(np.float64))
    assert result.dtype == np.float64
    assert abs(result[0, 0] - 0.3) < 1e-15
