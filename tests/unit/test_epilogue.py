"""Epilogue functors: what is valid, the text, and the meaning."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from functools import partial
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
from pycutlass.errors import DescriptionError

COMPUTE = ("f16", "f32", "f64", "s32")
NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__}
F16 = LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32)

ACTIVATIONS = [cls for cls in Activation.__subclasses__() if cls.__module__.startswith("pycutlass.")]
ACTIVATION_NAMES = {cls.__name__: cls for cls in ACTIVATIONS}
#: The activations that an epilogue which computes in int32 can have.
OF_INTEGERS = [pycutlass.identity, pycutlass.relu]
#: What clamps can write.
CLAMPED = ("s8", "s32", "f16", "bf16")

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
    output = draw(st.sampled_from(CLAMPED if kind is LinearCombinationClamp else list(TAG)))
    width = min(draw(st.sampled_from([1, 2, 4, 8, 16])), 128 // BY_SHORT_NAME[output].bits)
    accumulator = draw(st.sampled_from(list(TAG)))
    lacking = ["s32"] if output == "bf16" else []
    if kind is LinearCombinationClamp and accumulator == "s32" and output in ("f16", "bf16"):
        lacking.append("f32")
    compute = draw(st.sampled_from([short for short in COMPUTE if short not in lacking]))
    types = (TAG[output], width, TAG[accumulator], TAG[compute])
    if kind is LinearCombinationGeneric:
        named = draw(st.sampled_from([None, TAG[compute]]))
        activation = draw(st.sampled_from(OF_INTEGERS if compute == "s32" else ACTIVATIONS))
        return LinearCombinationGeneric(activation(named), *types)
    return kind(*types)


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
    """But for a linear combination that is written to int8, which is a clamped one."""
    to_int8 = [type(each) is LinearCombination and each.output.short == "s8" for each in (left, right)]
    left, right = (each._clamped if clamped else each for each, clamped in zip((left, right), to_int8, strict=True))
    assert (left == right) == (left.emit() == right.emit())


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"element_output": "half"}, ["element type", "'half'", "cutlass.float16"]),
    ({"element_accumulator": 32}, ["element type", "32"]),
    ({"element_epilogue": np.uint16}, ["element type", "numpy.uint16"]),
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
        ({"element_output": cutlass.float16, "epilogue_vector_length": 8}, "float16: use LinearCombination$"),
        ({"element_output": cutlass.int32, "epilogue_vector_length": 4}, "int32: use LinearCombinationClamp$"),
        ({"element_accumulator": cutlass.float32}, "element_accumulator=cutlass.float32"),
        ({"element_epilogue": cutlass.int32}, "element_epilogue=cutlass.int32"),
        ({"epilogue_vector_length": 2}, "4 elements at a time, got .*=2: use LinearCombinationClamp"),
    ):
        with pytest.raises(DescriptionError, match=word):
            dataclasses.replace(fast, **wrong)


@pytest.mark.parametrize("kind", [LinearCombination, partial(LinearCombinationGeneric, pycutlass.relu)])
def test_integers_do_not_become_bf16(kind):
    assert kind(cutlass.float16, 8, cutlass.int32, cutlass.int32)
    assert kind(cutlass.bfloat16, 8, cutlass.int32, cutlass.float32)
    with pytest.raises(DescriptionError) as caught:
        kind(cutlass.bfloat16, 8, cutlass.int32, cutlass.int32)
    words = ("cutlass.int32 cannot write cutlass.bfloat16", "rounding", "compute in cutlass.float32 (element_epilogue)")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("output", ["s32", "f32"])
def test_few_activations_are_of_integers(activation, output):
    types = (TAG[output], 4, cutlass.int32, cutlass.int32)
    if activation in OF_INTEGERS:
        assert LinearCombinationGeneric(activation(cutlass.int32), *types)
        return
    with pytest.raises(DescriptionError) as caught:
        LinearCombinationGeneric(activation(cutlass.int32), *types)
    words = (activation.__name__, "needs fractions", "cutlass.int32", "compute in cutlass.float32 (element_epilogue)")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("compute", ["f16", "f32", "f64", "s32"])
@pytest.mark.parametrize("accumulator", ["f16", "f32", "f64", "s32"])
@pytest.mark.parametrize("output", ["f32", "tf32", "f64"])
def test_clamps_do_not_write_wide_floats(output, accumulator, compute):
    with pytest.raises(DescriptionError) as caught:
        LinearCombinationClamp(TAG[output], 1, TAG[accumulator], TAG[compute])
    words = ("LinearCombinationClamp limits", f"got {BY_SHORT_NAME[output]}", "use LinearCombination")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("output", CLAMPED)
@pytest.mark.parametrize("accumulator", ["f16", "f32", "s32"])
def test_a_clamp_from_int32_computed_in_f32_writes_integers(output, accumulator):
    types = (TAG[output], 4, TAG[accumulator], cutlass.float32)
    if accumulator != "s32" or output in ("s8", "s32"):
        assert LinearCombinationClamp(*types)
        return
    with pytest.raises(DescriptionError) as caught:
        LinearCombinationClamp(*types)
    words = ("an accumulator of cutlass.int32", "in cutlass.float32", "writes integers alone", "use LinearCombination")
    assert all(word in str(caught.value) for word in words), str(caught.value)


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


@pytest.mark.parametrize(
    ("functor", "least"),
    [
        (LinearCombinationClamp(cutlass.float16, 8, cutlass.float32, cutlass.float32), -65504.0),
        (LinearCombinationClamp(cutlass.float16, 8, cutlass.float16, cutlass.float16), -65504.0),
        (LinearCombinationClamp(cutlass.bfloat16, 8, cutlass.float32, cutlass.float32), -(2.0**128 - 2.0**120)),
        (LinearCombinationClamp(cutlass.int8, 16, cutlass.float32, cutlass.float32), -128.0),
        # The conversion alone, which makes 0 of NaN
        (LinearCombinationClamp(cutlass.int8, 16, cutlass.int32, cutlass.float32), 0.0),
        (LinearCombinationClamp(cutlass.int32, 4, cutlass.int32, cutlass.float32), 0.0),
        (FastLinearCombinationClamp(cutlass.int8, 16), -128.0),
    ],
    ids=repr,
)
def test_nan_does_not_pass_a_clamp(functor, least):
    accumulator = np.array([[1, 2]], functor.accumulator.dtype)
    D = functor.output.round(functor.reference(accumulator, None, (float("nan"), 0.0)))
    assert D.astype(np.float64).tolist() == [[least, least]]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("output", "integers"),
    [
        # Rounded to nearest even, and limited
        ("f32", [1, -1, 0, 2, 2, -2, 2**31 - 1, -(2**31), 0]),
        # Cut off
        ("f16", [0, 0, 0, 1, 2, -2, 2**31 - 1, -(2**31), 0]),
    ],
)
def test_a_source_of_fractions_is_made_integers(output, integers, exact):
    functor = LinearCombination(TAG[output], 1, cutlass.int32, cutlass.int32)
    source = np.array([[0.7, -0.7, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan]], functor.output.dtype)
    accumulator = np.zeros(source.shape, np.int32)
    result = functor.reference(accumulator, source, (1.0, 1.0), np.dtype(np.float64) if exact else None)
    assert result.tolist() == [integers]


def test_another_type_to_compute_in():
    functor = LinearCombination(cutlass.float32, 1)
    accumulator = np.full((1, 1), 3.0)
    result = functor.reference(accumulator, None, (0.1, 0.0), np.dtype(np.float64))
    assert result.dtype == np.float64
    assert abs(result[0, 0] - 0.3) < 1e-15
