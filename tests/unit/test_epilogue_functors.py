"""Every functor and activation against formulas written without NumPy, their text against CUTLASS's headers."""

from __future__ import annotations

import copy
import math
import pickle
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from activations import BOUNDED, points, too_wrong
from descriptions import BY_SHORT_NAME, TAG, ampere
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import (
    FastLinearCombinationClamp,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    cutlass,
    reference,
)
from pycutlass.epilogue import Activation, EpilogueFunctor
from pycutlass.errors import DescriptionError
from pycutlass.toolkit import find_cutlass

NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__}

#: What each activation does to a number, in Python's own arithmetic.
FORMULAS: dict[str, Any] = {
    "identity": lambda x: x,
    "relu": lambda x: x if x > 0 else 0.0,
    "leaky_relu": lambda x, slope=0.2: x if x > 0 else slope * x,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "silu": lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0,
    "hardswish": lambda x: 0.0 if x < -3 else x if x > 3 else x * (x + 3) / 6,
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + math.exp(min(700.0, -2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
}
ACTIVATIONS = [getattr(pycutlass, name) for name in FORMULAS]

numbers = st.floats(-50, 50, width=32)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS, ids=list(FORMULAS))


def generic(activation: Any, short: str = "f64", accumulator: str | None = None) -> LinearCombinationGeneric:
    return LinearCombinationGeneric(activation, TAG[short], 1, TAG[accumulator or short], TAG[short])


def all_functors() -> list[EpilogueFunctor]:
    """Return every functor of every output that it can have, and every activation."""
    f32 = cutlass.float32
    made: list[EpilogueFunctor] = []
    for row in BY_SHORT_NAME.values():
        width = 128 // row.bits
        made.append(LinearCombination(row.tag, width, f32, f32))
        if row.is_integer or row.bits == 16:
            made.append(LinearCombinationClamp(row.tag, width, f32, f32))
        made += [LinearCombinationGeneric(activation, row.tag, width, f32, f32) for activation in ACTIVATIONS]
    return [*made, FastLinearCombinationClamp(cutlass.int8, 16), FastLinearCombinationClamp(cutlass.int8, 4)]


def test_every_activation_is_here():
    assert {cls.__name__ for cls in Activation.__subclasses__() if cls.__module__.startswith("pycutlass.")} == {
        *FORMULAS
    }


# Meaning


@every_activation
@given(st.lists(numbers, min_size=1, max_size=20), st.sampled_from([1.0, -0.5, 0.1]), st.sampled_from([0.0, 2.0, -0.3]))
def test_each_activation_after_the_sum(activation, values, alpha, beta):
    accumulator, source = np.array([values]), np.array([values[::-1]])
    result = generic(activation).reference(accumulator, source, (alpha, beta))
    exact = [FORMULAS[activation.__name__](alpha * x + beta * c) for x, c in zip(values, values[::-1], strict=True)]
    np.testing.assert_allclose(result[0], exact, rtol=1e-12, atol=1e-13)


@given(st.lists(numbers, min_size=1, max_size=20), st.floats(0, 2, width=16))
def test_the_slope_is_the_third_scalar(values, slope):
    functor = generic(pycutlass.leaky_relu)
    scalars = functor.epilogue_type(2.0, 0.0, slope)
    result = functor.reference(np.array([values]), None, scalars.values)
    np.testing.assert_array_equal(result[0], [2 * x if x > 0 else slope * (2 * x) for x in values])


@every_activation
@pytest.mark.parametrize("short", ["f16", "f32"])
def test_the_compute_type_decides_the_precision(activation, short):
    functor, row = generic(activation, short), BY_SHORT_NAME[short]
    x = np.linspace(-8, 8, 257).astype(row.dtype)[None]
    result = functor.reference(x, None, functor.epilogue_type().values)
    assert result.dtype == row.dtype
    exact = np.array([[FORMULAS[activation.__name__](float(each)) for each in x[0]]])
    assert np.abs(result - exact).max() <= 24 * row.epsilon


@pytest.mark.parametrize("activation", BOUNDED)
@pytest.mark.parametrize("short", ["f16", "f32", "f64"])
def test_the_reference_is_right_to_what_is_stated(activation, short):
    x = points(short)
    functor = generic(activation, short)
    result = functor.reference(x[None], None, functor.epilogue_type().values)[0]
    assert too_wrong(activation, short, x, result) == []


def test_the_guide_states_the_errors():
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "epilogues.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| ?(\d*) \| ?(\d*) ?\|$", guide, re.M)
    stated = {name: (float(relative or 0), float(absolute or 0)) for name, relative, absolute in rows}
    assert stated == {each.__name__: (each.relative_error, each.absolute_error) for each in ACTIVATIONS}


@every_activation
def test_large_numbers_are_no_trouble(activation):
    """Neither overflow nor NaN: warnings are errors here."""
    x = np.array([[-1e30, -1e4, -100.0, 100.0, 1e4]], np.float32)
    result = generic(activation, "f32").reference(x[:, 1:], None, (1.0, 0.0))
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result[0, -1], FORMULAS[activation.__name__](1e4), rtol=1e-6)


@given(st.floats(-20, 20))
def test_what_the_activations_have_to_do_with_one_another(x):
    def at(activation: Any, value: float) -> float:
        return float(activation.numpy(np.array(value)))

    assert at(pycutlass.relu, x) - at(pycutlass.relu, -x) == x
    assert at(pycutlass.tanh, -x) == -at(pycutlass.tanh, x)
    assert at(pycutlass.sigmoid, x) + at(pycutlass.sigmoid, -x) == pytest.approx(1.0, abs=1e-15)
    assert at(pycutlass.silu, x) == pytest.approx(x * at(pycutlass.sigmoid, x), abs=1e-15)
    assert at(pycutlass.gelu, x) - at(pycutlass.gelu, -x) == pytest.approx(x, abs=1e-14)
    assert at(pycutlass.gelu_tanh, x) == pytest.approx(at(pycutlass.gelu, x), abs=5e-4)
    assert at(pycutlass.leaky_relu, x) == pytest.approx(at(pycutlass.relu, x) - 0.2 * at(pycutlass.relu, -x), abs=1e-15)


def test_gelu_of_minus_infinity_is_its_limit():
    assert pycutlass.gelu.numpy([-np.inf, -1e30, np.inf]).tolist() == [0.0, 0.0, np.inf]
    assert np.isnan(pycutlass.gelu.numpy(np.nan))


def test_the_two_forms_of_gelu_are_told_apart():
    x = np.linspace(-3, 3, 101)
    assert np.abs(pycutlass.gelu.numpy(x) - pycutlass.gelu_tanh.numpy(x)).max() > 1e-4
    assert generic(pycutlass.gelu).emit() != generic(pycutlass.gelu_tanh).emit()


def rounded(value: Fraction, low: int, high: int) -> int:
    return max(low, min(high, round(value)))  # Python rounds halves to even, as the hardware does


@given(
    st.lists(st.tuples(st.integers(-(2**20), 2**20), st.integers(-128, 127)), min_size=1, max_size=20),
    st.sampled_from([1.0, 0.5, -0.25, 2.0**-10]),
    st.sampled_from([0.0, 1.0, -2.0, 0.5]),
    st.sampled_from(
        [
            FastLinearCombinationClamp(cutlass.int8, 4),
            LinearCombinationClamp(cutlass.int8, 1, cutlass.int32, cutlass.float32),
            LinearCombinationClamp(cutlass.int32, 1, cutlass.int32, cutlass.float32),
        ]
    ),
)
def test_clamps_to_the_bit(pairs, alpha, beta, functor):
    row = functor.output
    accumulator, source = (np.array([each]) for each in zip(*pairs, strict=True))
    result = functor.reference(accumulator.astype(np.int32), source.astype(row.dtype), (alpha, beta))
    low, high = (-128, 127) if row.short == "s8" else (-(2**31), 2**31 - 1)
    exact = [rounded(Fraction(alpha) * x + Fraction(beta) * c, low, high) for x, c in pairs]
    assert row.round(result)[0].tolist() == exact


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(-1000, 1000)), min_size=1), st.integers(-9, 9))
def test_integer_epilogues_compute_in_integers(pairs, alpha):
    functor = LinearCombination(cutlass.int32, 4, cutlass.int32, cutlass.int32)
    accumulator, source = (np.array([each], np.int32) for each in zip(*pairs, strict=True))
    result = functor.reference(accumulator, source, functor.epilogue_type(alpha, -3).values)
    assert result.dtype == np.int32
    assert result[0].tolist() == [alpha * x - 3 * c for x, c in pairs]


@pytest.mark.parametrize("short", ["f16", "bf16"])
def test_a_clamp_of_floats_keeps_what_fits(short):
    row = BY_SHORT_NAME[short]
    functor = LinearCombinationClamp(row.tag, 1, cutlass.float64, cutlass.float64)
    most = row.limits[1]
    values = np.array([[-2 * most, -most, -1.5, 0.0, 1.5, most, 2 * most]])
    assert functor.reference(values, None, (1.0, 0.0)).tolist() == [[-most, -most, -1.5, 0.0, 1.5, most, most]]


@pytest.mark.parametrize("functor", all_functors(), ids=repr)
def test_the_source_broadcasts_and_is_not_read_for_nothing(functor):
    accumulator = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], functor.accumulator.dtype)
    vector = np.array([[1, 2, 3]], functor.output.dtype)
    whole = functor.reference(accumulator, np.repeat(vector, 2, axis=0), functor.epilogue_type(1.0, 2.0).values)
    np.testing.assert_array_equal(functor.reference(accumulator, vector, functor.epilogue_type(1.0, 2.0).values), whole)
    alone = functor.reference(accumulator, None, functor.epilogue_type(1.0, 0.0).values)
    assert alone.shape == (2, 3)
    assert np.isfinite(alone.astype(float)).all()


@every_activation
def test_the_error_of_an_activation_is_in_the_tolerance(activation):
    made = {**ampere("f32_simt").__dict__}
    fields = ("compute_capability", "tile_description", "A", "B", "C")
    functor = LinearCombinationGeneric(activation, cutlass.float32, 1)
    operation = pycutlass.GemmOperationUniversal(*(made[field] for field in fields), functor)
    relative, absolute = reference.tolerance(operation, 64)
    plain = reference.tolerance(ampere("f32_simt"), 64)
    assert (relative - plain[0], absolute - plain[1]) == pytest.approx(activation.error(BY_SHORT_NAME["f32"]))


# Values and text


@pytest.mark.parametrize("functor", all_functors(), ids=repr)
def test_functors_are_values(functor):
    for twin in (eval(repr(functor), dict(NAMES)), pickle.loads(pickle.dumps(functor)), copy.deepcopy(functor)):
        assert twin == functor
        assert hash(twin) == hash(functor)
        assert twin.emit() == functor.emit()
        assert type(twin) is type(functor)


def test_no_two_functors_have_one_text():
    functors = all_functors()
    # Written to bytes, LinearCombination is LinearCombinationClamp.
    clamped = [each for each in functors if type(each) is LinearCombination and each.output.is_byte]
    assert len({*functors}) == len(functors)
    assert len({functor.emit() for functor in functors}) == len(functors) - len(clamped)


@pytest.mark.parametrize(
    ("functor", "text"),
    [
        (LinearCombination(TAG["f64"], 2), "LinearCombination<double, 2, double, double>"),
        (
            LinearCombinationClamp(TAG["s8"], 16, TAG["s32"], TAG["f32"]),
            "LinearCombinationClamp<int8_t, 16, int32_t, float>",
        ),
        (FastLinearCombinationClamp(TAG["s8"], 8), "FastLinearCombinationClamp<int8_t, 8>"),
        (
            LinearCombinationGeneric(pycutlass.gelu, TAG["bf16"], 8, TAG["f32"], TAG["f32"]),
            "LinearCombinationGeneric<pycutlass::Gelu, cutlass::bfloat16_t, 8, float, float>",
        ),
    ],
    ids=repr,
)
def test_text(functor, text):
    assert functor.emit() == f"cutlass::epilogue::thread::{text}"


def test_the_names_are_those_of_the_headers():
    headers = find_cutlass().root / "include" / "cutlass" / "epilogue" / "thread"
    declared = "\n".join(path.read_text() for path in headers.glob("*.h"))
    for functor in all_functors():
        for name in re.findall(r"cutlass::epilogue::thread::(\w+)", functor.emit()):
            assert re.search(rf"\b(struct|class) {name}\b", declared), name
    own = (Path(pycutlass.__file__).parent / "include" / "pycutlass" / "activation.h").read_text()
    for functor in all_functors():
        for name in re.findall(r"pycutlass::(\w+)", functor.emit()):
            assert f"struct {name} : activation::Each<{name}, T>" in own, name


@every_activation
def test_the_fusion_has_the_activation(activation):
    functor = generic(activation, "f16", "f32")
    assert functor.emit_fusion() == (
        f"cutlass::epilogue::fusion::LinCombEltAct<{activation.tag}, cutlass::half_t, cutlass::half_t>"
    )
    assert functor.without_activation() == LinearCombination(TAG["f16"], 1, TAG["f32"], TAG["f16"])


# Refusals


@pytest.mark.parametrize("kind", [LinearCombinationClamp, FastLinearCombinationClamp])
def test_clamps_have_no_fusion(kind):
    functor = kind(cutlass.int8, 16, cutlass.int32, cutlass.float32)
    with pytest.raises(
        DescriptionError, match=rf"{kind.__name__} has no Hopper-native counterpart; use LinearCombination"
    ):
        functor.emit_fusion()


@pytest.mark.parametrize("length", [0, 3, -1, 32, 1.0, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda length: LinearCombination(cutlass.float16, length),
        lambda length: LinearCombinationClamp(cutlass.float16, length),
        lambda length: FastLinearCombinationClamp(cutlass.int8, length),
        lambda length: LinearCombinationGeneric(pycutlass.silu, cutlass.float16, length),
    ],
    ids=["linear", "clamp", "fast", "generic"],
)
def test_lengths_are_powers_of_two_of_at_most_128_bits(make, length):
    with pytest.raises(DescriptionError, match="power of two of at most 128 bits") as caught:
        make(length)
    assert repr(length) in str(caught.value)


@every_activation
def test_scalars_beyond_those_of_the_activation_are_ignored(activation, said):
    functor = generic(activation)
    extra = [0.5] * len(activation.extra)
    assert len(functor.epilogue_type(1.0, 2.0, *extra).values) == len(functor.scalar_names) == 2 + len(extra)
    for _ in range(2):
        assert functor.epilogue_type(1.0, 2.0, *extra, 0.25).values == (1.0, 2.0, *extra)
    [sentence] = said()
    assert f"{', '.join(functor.scalar_names)}; got {3 + len(extra)}, and ignores" in sentence


@every_activation
def test_an_activation_names_a_real_type(activation):
    assert repr(activation(cutlass.float32)) == f"{activation.__name__}(cutlass.float32)"
    for wrong in ("float32", np.uint16, 32):
        with pytest.raises(DescriptionError, match="element type"):
            activation(wrong)


class leaky_like(pycutlass.relu):
    """Takes the C++ of relu along, which says something else."""

    @staticmethod
    def numpy(x: Any) -> Any:
        return np.where(x > 0, x, 0.1 * x)


class square(Activation):
    """Has no C++ at all."""

    @staticmethod
    def numpy(x: Any) -> Any:
        return x * x


@pytest.mark.parametrize("activation", [leaky_like, leaky_like(), square, square()], ids=repr)
def test_an_activation_of_the_users_own_has_no_kernel(activation):
    with pytest.raises(DescriptionError) as caught:
        generic(activation)
    known, _, got = str(caught.value).partition("; got ")
    assert known == f"the activation must be one of {', '.join(sorted(each.__name__ for each in ACTIVATIONS))}"
    assert "class of your own" in got and ("leaky_like" in got or "square" in got)
    with pytest.raises(DescriptionError) as caught:
        generic("square")
    assert "square" not in str(caught.value).partition("; got ")[0]


@pytest.mark.parametrize("made", all_functors(), ids=repr)
def test_a_functor_of_the_users_own_has_no_kernel(made: EpilogueFunctor) -> None:
    base = type(made)
    with pytest.raises(DescriptionError) as caught:
        type("MyFunctor", (base,), {"evaluate": lambda self, *given: {}})
    for part in (
        f"class MyFunctor derives from {base.__name__}",
        "CUTLASS has no functor",
        "LinearCombinationGeneric(",
    ):
        assert part in str(caught.value)


def test_what_functors_share_is_no_functor() -> None:
    with pytest.raises(DescriptionError, match="EpilogueFunctor is what functors share: use one of LinearCombination,"):
        EpilogueFunctor(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    with pytest.raises(DescriptionError, match="class MyFunctor derives from EpilogueFunctor"):
        type("MyFunctor", (EpilogueFunctor,), {})


@pytest.mark.parametrize("dtype", [np.int8, np.dtype("int8"), cutlass.int8], ids=repr)
def test_types_of_other_libraries_are_taken(dtype: Any) -> None:
    assert FastLinearCombinationClamp(dtype, 16) == FastLinearCombinationClamp(cutlass.int8, 16)
    assert LinearCombinationClamp(dtype, 16, np.int32, np.float32) == LinearCombinationClamp(
        cutlass.int8, 16, cutlass.int32, cutlass.float32
    )


@pytest.mark.parametrize("made", all_functors(), ids=repr)
def test_pickles_have_the_fields_alone(made: EpilogueFunctor) -> None:
    state = made.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[2]
    assert not {"output", "accumulator", "compute"} & set(state)
    twin = pickle.loads(pickle.dumps(made))
    assert twin == made and vars(twin).keys() == vars(made).keys()
    assert twin.output is made.output and twin.accumulator is made.accumulator and twin.compute is made.compute
