"""Epilogue functions: what is traced, what becomes of it, and what is refused."""

from __future__ import annotations

import decimal
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import parts
from epilogue_functions import biased, residual
from torch.nn import functional
from traced_functions import make, refused

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass, epilogue
from pycutlass.epilogue import Column, Family, Row, Scalar, Source, Tensor, gelu, relu
from pycutlass.errors import ArgumentTypeError, DescriptionError
from tools.fuzz.drawn_functions import drawn_function


def test_equal_functions_are_equal() -> None:
    @pycutlass.epilogue_function
    def one(accum: Any, bias: Row, extra: Tensor) -> Any:
        left, right = accum + bias, extra * 2
        return left * right

    @pycutlass.epilogue_function
    def two(accum: Any, bias: Row, extra: Tensor) -> Any:
        right = extra * 2.0
        again = accum + bias  # noqa: F841 (is the same value)
        return (accum + bias) * right

    assert one == two
    assert hash(one) == hash(two)
    made = [each(cutlass.float16, 8) for each in (one, two)]
    assert made[0] == made[1] and hash(made[0]) == hash(made[1])
    assert made[0].definitions(Family.SM90_GEMM) == made[1].definitions(Family.SM90_GEMM)
    assert one(cutlass.float16, 8) != one(cutlass.float16, 4)
    assert pickle.loads(pickle.dumps(made[0])) == made[0]


def test_zeros_of_two_signs_are_two_constants() -> None:
    plus = pycutlass.epilogue_function(lambda accum: 1.0 / (accum + 0.0))
    minus = pycutlass.epilogue_function(lambda accum: 1.0 / (accum + -0.0))
    assert plus != minus


def _inverse(accum: Any, s: Scalar = 0.0) -> Any:
    return accum / s


def _inverse_of_minus(accum: Any, s: Scalar = -0.0) -> Any:
    return accum / s


def test_zeros_of_two_signs_are_two_defaults() -> None:
    plus, minus = (pycutlass.epilogue_function(each) for each in (_inverse, _inverse_of_minus))
    assert plus != minus and plus(cutlass.float32, 4) != minus(cutlass.float32, 4)
    assert len({plus, minus, pickle.loads(pickle.dumps(minus)), minus.transposed().transposed()}) == 2
    assert [each.numpy([[1.0]]).item() for each in (plus, minus)] == [np.inf, -np.inf]


@pytest.mark.parametrize(
    "constant",
    [np.timedelta64(5, "ns"), np.datetime64(5, "ns"), np.str_("2"), np.array(True), torch.tensor(True), np.bool_(True)],
    ids=repr,
)
def test_what_is_no_number_is_no_constant(constant: Any) -> None:
    assert "takes values of the function and real numbers, and is given" in refused(lambda accum: accum + constant)


@pytest.mark.parametrize("constant", [np.longdouble("1e400"), decimal.Decimal("1e400"), 10**400])
def test_a_number_beyond_f64_is_no_infinity(constant: Any) -> None:
    assert "is given a number that is too large" in refused(lambda accum: accum + constant)
    assert "inf" in pycutlass.epilogue_function(lambda accum: accum + decimal.Decimal("inf")).graph.values[1].data


def test_a_complex_tensor_is_no_constant() -> None:
    said = refused(lambda accum: accum + torch.tensor(1j))
    assert said.startswith("<lambda>, line ") and "real numbers, and is given tensor(0.+1.j): what is known" in said


def test_a_trained_tensor_is_no_constant() -> None:
    """It would stay what it was when the function was traced."""
    parameter, followed = torch.nn.Parameter(torch.tensor(2.0)), torch.ones(1, requires_grad=True)[0]
    for said in (refused(lambda accum: accum * parameter), refused(lambda accum: followed / accum)):
        assert (
            "requires a gradient, and would be a constant of the kernel: make it a parameter, as in x: Scalar" in said
        )
    assert pycutlass.epilogue_function(lambda accum: torch.tensor(2.0) * accum).graph.values


def test_a_name_is_the_same_in_every_process() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/unit')\n"
        "from traced_functions import make\nfrom epilogue_functions import residual\n"
        "print(make(residual).procedural_name())"
    )
    run = [sys.executable, "-c", program]
    names = {
        subprocess.run(run, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout
        for seed in "12"
    }
    assert names == {make(residual).procedural_name() + "\n"}


def test_every_node_is_a_function_or_an_operator() -> None:
    x = np.linspace(-2, 2, 9)
    cases: dict[Any, Any] = {
        lambda t: -t: -x,
        lambda t: +t: x,
        lambda t: 3 - t: 3 - x,
        lambda t: t // 0.75: x // 0.75,
        lambda t: 3 % (abs(t) + 1): 3 % (np.abs(x) + 1),
        lambda t: t % 0.75: x % 0.75,
        lambda t: t**3: x**3,
        lambda t: 2**t: 2**x,
        lambda t: np.exp(t): np.exp(x),
        lambda t: np.where(t > 0, t, 0.0): np.maximum(x, 0),
        lambda t: np.maximum(0.5, t): np.maximum(0.5, x),
        lambda t: relu(t): np.maximum(x, 0),
        lambda t: relu.numpy(t): np.maximum(x, 0),
        lambda t: epilogue.leaky_relu(t): np.where(x > 0, x, 0.2 * x),
        lambda t: epilogue.leaky_relu(t, 0.5): np.where(x > 0, x, 0.5 * x),
        lambda t: epilogue.identity(t) + 0.5: x + 0.5,
        lambda t: gelu(t): gelu.numpy(x),
        lambda t: epilogue.clamp(t, -1, 1): np.clip(x, -1, 1),
        lambda t: epilogue.clamp(t, high=1): np.minimum(x, 1),
        lambda t: round(t): np.rint(x),
        lambda t: epilogue.where((t > 0) & ~(t > 1) | (t < -1), 1.0, t): np.where(
            ((x > 0) & ~(x > 1)) | (x < -1), 1.0, x
        ),
        lambda t: epilogue.cast(t * 100, cutlass.int8): np.clip(np.rint(x * 100), -128, 127),
        lambda t: epilogue.rsqrt(t * t + 1): 1 / np.sqrt(x * x + 1),
        lambda t: epilogue.softplus(t): np.log1p(np.exp(x)),
    }
    for function, expected in cases.items():
        made = pycutlass.epilogue_function(function).numpy(x[None, :])
        np.testing.assert_allclose(made[0], expected, rtol=1e-14)


def _floor_divided(accum: Any, x: Tensor) -> Any:
    return {"D": accum // x, "rest": accum % x}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floor_division_is_numpys(dtype: Any) -> None:
    random = np.random.default_rng(3)
    special = [0.0, -0.0, 0.1, -0.1, 1.0, -1.0, 7.0, 1e-20, -1e-20, 3e38, -3e38, 2e38, np.inf, -np.inf, np.nan]
    x, y = (each.astype(dtype) for each in np.meshgrid(special, special))
    drawn = (random.standard_normal((2, 200, 15)) * 10.0 ** random.integers(-2, 4, (2, 200, 15))).astype(dtype)
    x, y = np.concatenate([x, drawn[0]]), np.concatenate([y, drawn[1]])
    with np.errstate(all="ignore"):
        exact = np.floor_divide(x, y)
    is_small = ~(np.abs(exact) > 2.0 ** (np.finfo(dtype).nmant - 1))  # beyond that quotients are rounded themselves
    found = pycutlass.epilogue_function(_floor_divided).numpy(x, x=y)
    np.testing.assert_array_equal(found["D"][is_small], exact[is_small])
    is_number = is_small & ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(found["D"][is_number]), np.signbit(exact[is_number]))


@pytest.mark.parametrize("divisor", [0.0, -0.0, 0.1, -3.0, np.inf, -np.inf, np.nan])
def test_floor_division_by_a_constant_is_numpys(divisor: float) -> None:
    x = np.array([[0.0, 1.0, -1.0, 0.3, 1e-20, -1e-20, 1e30, np.inf, -np.inf, np.nan]])
    with np.errstate(all="ignore"):
        exact = np.floor_divide(x, divisor)
    np.testing.assert_array_equal(pycutlass.epilogue_function(lambda accum: accum // divisor).numpy(x), exact)


@pytest.mark.parametrize(
    "function",
    [lambda t: np.float32(7) // t, lambda t: np.floor_divide(7.0, t), lambda t: torch.floor_divide(7.0, t)],
)
def test_floor_division_traces_by_every_name(function: Any) -> None:
    assert pycutlass.epilogue_function(function) == pycutlass.epilogue_function(lambda t: 7.0 // t)


@pytest.mark.parametrize("by", [divmod, np.divmod])
@pytest.mark.parametrize("operands", [lambda t: (t, 0.3), lambda t: (7.5, t), lambda t: (np.float32(7.5), t)])
def test_divmod_is_quotient_and_remainder(by: Any, operands: Any) -> None:
    def function(accum: Any) -> Any:
        quotient, rest = by(*operands(accum))
        return {"D": quotient, "rest": rest}

    def apart(accum: Any) -> Any:
        x, y = operands(accum)
        return {"D": x // y, "rest": x % y}

    made, x = pycutlass.epilogue_function(function), np.array([[-2.5, -0.3, 0.7, 6.0]])
    assert made.graph == pycutlass.epilogue_function(apart).graph
    exact = np.divmod(*operands(x))
    found = made.numpy(x)
    np.testing.assert_array_equal(found["D"], exact[0])
    np.testing.assert_allclose(found["rest"], exact[1], rtol=1e-6)
    single = pycutlass.epilogue_function(lambda accum: by(*operands(accum))[1])
    np.testing.assert_allclose(single.numpy(x), exact[1], rtol=1e-6)


def test_divmod_of_which_nothing_is_used_is_refused() -> None:
    def function(accum: Any) -> Any:
        divmod(accum, 0.3)
        return accum * 2.0

    with pytest.raises(DescriptionError, match="the result of divide is unused"):
        pycutlass.epilogue_function(function)


@pytest.mark.parametrize("seed", range(20))
def test_numpy_means_the_same_as_the_function_itself(seed: int) -> None:
    function = drawn_function(seed).function
    random = np.random.default_rng(seed)
    given = {}
    for each in function.graph.inputs[1:]:
        columns = 8 if each.halved else 16
        shape = {"row": columns, "column": 5, "number": (), "scalar": ()}.get(each.form, (5, columns))
        given[each.name] = random.integers(-8, 9, shape) / 4.0
    accumulator = random.integers(-256, 257, (5, 16)).astype(np.float64)
    found = function.numpy(accumulator, **given)
    if isinstance(found, dict):
        assert {*found} == {name for name, _ in function.graph.outputs}
    else:
        assert found.shape == (5, 8 if function.graph.is_gated else 16)


def test_the_reference_runs_where_there_is_no_gpu(without_gpu: None) -> None:
    operation = make(residual, T=cutlass.float32)
    random = np.random.default_rng(1)
    A, B = random.standard_normal((40, 32)).astype(np.float16), random.standard_normal((32, 24)).astype(np.float16)
    bias, addend = random.standard_normal(24).astype(np.float16), random.standard_normal((40, 24)).astype(np.float16)
    D, T = np.full((40, 24), np.nan, np.float16), np.full((40, 24), np.nan, np.float32)
    B = np.asfortranarray(B)
    arguments = pycutlass.GemmArguments(
        operation,
        (40, 24, 32),
        A,
        B,
        None,
        D,
        output_op=operation.epilogue_type(alpha=2.0),
        epilogue={"bias": bias, "addend": addend, "T": T},
    )
    operation.run(arguments)
    arguments.sync()
    exact = residual.numpy(A.astype(float) @ B.astype(float), bias=bias, addend=addend, alpha=2.0)
    np.testing.assert_allclose(T, exact["T"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(D, exact["D"], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda accum: accum if accum > 0 else 0 * accum, "asked for its truth"),
        (lambda accum: max(accum, 0.0), "asked for its truth"),
        (lambda accum: float(accum), "made a number"),
        (lambda accum: accum[0], "indexed"),
        (lambda accum: np.asarray(accum), "made an array"),
        (lambda accum: np.linalg.norm(accum), "numpy"),
        (lambda accum: np.sin(accum), "numpy.sin"),
        (lambda accum: accum.relu(), "asked for .relu"),
        (lambda accum: accum + np.ones(4), "of shape (4,)"),
        (lambda accum: accum + True, "and is given True"),
        (lambda accum: accum > 0, "returns a condition as D"),
        (lambda accum: (accum > 0) + 1, "takes numbers, and is given a condition"),
        (lambda accum: epilogue.where(accum, 1.0, 0.0), "takes a condition, and is given a number"),
        (lambda accum: {"T": accum}, "one output must be D"),
        (lambda accum: {"D": 1.0}, "no value of the function"),
        (lambda accum: None, "a return is missing"),
        (lambda accum: {"D": accum, "accum": accum}, "also an input"),
        (lambda accum: 1 / 0, "raised ZeroDivisionError"),
        (lambda: 1, "takes no parameters"),
        (lambda accum, bias: accum + bias, "no annotation"),
        (lambda accum, *more: accum, "name each parameter"),
        (lambda accum: {"D": accum, "total": epilogue.sum(accum) * 2}, "a reduction is complete when"),
        (lambda accum: epilogue.sum(accum), "the whole matrix"),
        (lambda accum: {"D": accum, "total": epilogue.sum(accum, axis=2)}, "axis=1"),
        (lambda accum: epilogue.cast(accum, cutlass.tfloat32), "cast rounds to one of"),
        (lambda accum: epilogue.clamp(accum), "takes low, high or both"),
    ],
)
def test_what_cannot_be_traced_is_refused(function: Any, said: str) -> None:
    assert said in refused(function)


@pytest.mark.parametrize(
    ("function", "same"),
    [
        (lambda t: functional.gelu(t + 1), lambda t: gelu(t + 1)),
        (lambda t: functional.gelu(t, approximate="tanh"), lambda t: epilogue.gelu_tanh(t)),
        (lambda t: functional.relu(t) * torch.sigmoid(t), lambda t: relu(t) * epilogue.sigmoid(t)),
        (lambda t: functional.silu(t), lambda t: epilogue.silu(t)),
        (lambda t: functional.leaky_relu(t, 0.1), lambda t: epilogue.leaky_relu(t, 0.1)),
        (lambda t: functional.hardswish(t), lambda t: epilogue.hardswish(t)),
        (lambda t: torch.where(t > 0, torch.exp(t), t), lambda t: epilogue.where(t > 0, epilogue.exp(t), t)),
        (lambda t: torch.maximum(t, t * 2), lambda t: epilogue.maximum(t, t * 2)),
        (lambda t: torch.rsqrt(torch.abs(t)), lambda t: epilogue.rsqrt(abs(t))),
        (lambda t: torch.mul(t, 2.0), lambda t: t * 2.0),
        (lambda t: torch.nn.Softplus()(t), lambda t: epilogue.softplus(t)),
        (lambda t: functional.softplus(t, beta=1.0), lambda t: epilogue.softplus(t)),
        (lambda t: torch.nn.GELU()(t) + torch.nn.GELU("tanh")(t), lambda t: gelu(t) + epilogue.gelu_tanh(t)),
        (lambda t: torch.nn.ReLU()(torch.nn.LeakyReLU()(t)), lambda t: relu(epilogue.leaky_relu(t, 0.01))),
        (lambda t: torch.add(t, t * 2.0, alpha=1), lambda t: t + t * 2.0),
        (lambda t: torch.where(torch.lt(t, 1), t, 1.0), lambda t: epilogue.where(t < 1, t, 1.0)),
        (lambda t: torch.where(torch.eq(t, 1), 0.0, t), lambda t: epilogue.where(t == 1, 0.0, t)),
        (lambda t: torch.tensor(7.0) // t, lambda t: 7.0 // t),
    ],
)
def test_functions_of_torch_trace(function: Any, same: Any) -> None:
    assert pycutlass.epilogue_function(function) == pycutlass.epilogue_function(same)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda t: torch.where(torch.equal(t, t + 1), 1.0, t), "equal: it is one truth value for all elements"),
        (lambda t: functional.gelu(t, approximate="foo"), "gelu with approximate='foo': torch's functions that trace"),
        (lambda t: torch.add(t, t * 2.0, alpha=False), "add with alpha=False: .* For another alpha write x"),
        (lambda t: torch.add(t, t * 2.0, alpha=2), "add with alpha=2: "),
        (lambda t: functional.relu(t, inplace=True), "relu with inplace=True: "),
        (lambda t: torch.nn.Softplus(2.0)(t), r"softplus with beta=2.0: .* For another beta write softplus\(beta \* x"),
        (lambda t: functional.leaky_relu(t, negative_slope=False), "real numbers, and is given False"),
        (lambda t: torch.clamp(t, min=False), "real numbers, and is given False"),
        (lambda t: torch.div(t, 2.0, rounding_mode="trunc"), "div with rounding_mode='trunc'"),
    ],
)
def test_what_torch_computes_otherwise_is_refused(function: Any, said: str) -> None:
    assert re.search(said, refused(function))


@pytest.mark.parametrize(
    "function", [lambda t: torch.sin(t), lambda t: torch.softmax(t, 0), lambda t: torch.round(t, decimals=2)]
)
def test_other_functions_of_torch_say_so(function: Any) -> None:
    assert "given to torch's" in refused(function)


def test_a_message_names_the_line() -> None:
    def branching(accum: Any) -> Any:
        if accum > 0:
            return accum
        return -accum

    assert "branching, line " in refused(branching)
    assert "(if accum > 0:)" in refused(branching)


def test_what_is_unused_is_refused() -> None:
    def of_a_parameter(accum: Any, bias: Row) -> Any:
        return accum

    def of_a_value(accum: Any) -> Any:
        gelu(accum)
        return accum

    def of_the_accumulator(accum: Any, x: Tensor) -> Any:
        return x

    assert "the parameter 'bias' is unused" in refused(of_a_parameter)
    assert "the result of gelu is unused" in refused(of_a_value)
    assert "the accumulator, the first parameter, is unused" in refused(of_the_accumulator)


def test_values_of_two_functions_do_not_mix() -> None:
    kept = []

    def first(accum: Any) -> Any:
        kept.append(accum)
        return accum

    pycutlass.epilogue_function(first)
    assert "a value of another function" in refused(lambda accum: accum + kept[0])


def test_types_are_checked() -> None:
    with pytest.raises(ArgumentTypeError, match="has no tensor 'bais' beside C and D: it has bias"):
        biased(cutlass.float16, 8, bais=cutlass.float32)
    with pytest.raises(DescriptionError, match="computes in fractions"):
        biased(cutlass.float16, 8, cutlass.int32, cutlass.int32)
    with pytest.raises(DescriptionError, match="a tensor of biased, can be of"):
        biased(cutlass.float16, 8, bias=cutlass.tfloat32)
    with pytest.raises(DescriptionError, match="must be a power of two of at most 128 bits"):
        biased(cutlass.float16, 16)
    typed = pycutlass.epilogue_function(_typed)
    assert typed(cutlass.float16, 8).inputs[0].type.short == "f32"
    with pytest.raises(DescriptionError, match="says that bias is"):
        typed(cutlass.float16, 8, bias=cutlass.float16)


def _typed(accum: Any, bias: Row(cutlass.float32)) -> Any:  # type: ignore[valid-type]
    return accum + bias


def test_a_number_beyond_f32_is_refused() -> None:
    function = pycutlass.epilogue_function(lambda accum: accum * 1e60)
    with pytest.raises(DescriptionError, match="has the number 1e\\+60"):
        function(cutlass.float32, 4)
    assert function(cutlass.float64, 1).compute.short == "f64"


def test_each_number_is_looked_at() -> None:
    def near(accum: Any) -> Any:
        return epilogue.where(accum > 0, 65520.0, 65519.99)

    with pytest.raises(DescriptionError, match=r"has the number 65520, which is beyond cutlass\.float16"):
        pycutlass.epilogue_function(near)(cutlass.float16, 8, cutlass.float32, cutlass.float16)


def test_markers_may_be_text() -> None:
    def function(accum: "tensor", bias: "row", left: "column", c: "source", alpha: "scalar") -> Any:  # type: ignore # noqa
        return accum * alpha + bias * left + c

    def of_batch(accum: Any, scale: "PerBatch") -> Any:  # type: ignore # noqa
        return accum * scale

    assert pycutlass.epilogue_function(of_batch).graph.inputs[1].form == "number"
    forms = [each.form for each in pycutlass.epilogue_function(function).graph.inputs]
    assert forms == ["accumulator", "row", "column", "source", "scalar"]
    assert (Column.form, Source.form) == ("column", "source")


@pytest.mark.parametrize("kinds", [(), (cutlass.float16, cutlass.float32)])
def test_a_marker_is_called_with_one_type(kinds: tuple[Any, ...]) -> None:
    with pytest.raises(DescriptionError, match=f"Row is called with one element type, got {len(kinds)}: write Row, or"):
        Row(*kinds)


def _by_alpha(accum: Any, alpha: Scalar) -> Any:
    return accum * alpha


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (lambda accum: accum * 2.0, (1.0, 0.0), "got tuple: it has no scalars, so leave output_op out"),
        (_by_alpha, {"alpha": 2.0}, r"got dict: pass output_op=operation.epilogue_type\(alpha=2.0\)"),
        (_by_alpha, {"beta": 2.0}, "returns, got dict$"),
    ],
)
def test_what_is_no_scalars_of_a_launch_is_explained(function: Any, given: Any, said: str) -> None:
    functor = pycutlass.epilogue_function(function)(cutlass.float16, 8, cutlass.float32)
    operation = GemmOperationUniversal(**parts("f16") | {"epilogue_functor": functor})
    A, B, D = np.ones((8, 8), np.float16), np.ones((8, 8), np.float16).T, np.ones((8, 8), np.float16)
    with pytest.raises(ArgumentTypeError, match=said):
        pycutlass.GemmArguments(operation, (8, 8, 8), A, B, None, D, output_op=given)
