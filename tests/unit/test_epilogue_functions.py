"""Epilogue functions: what is traced, what becomes of it, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from descriptions import native_parts, parts
from epilogue_functions import FUNCTIONS, biased, reduced, residual
from extra_epilogue import ExtraEpilogue
from torch.nn import functional

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass, epilogue
from pycutlass.epilogue import Column, Family, Row, Scalar, Source, Tensor, gelu, relu
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from tools.fuzz.drawn_functions import drawn_function


def make(function: Any, kind: str = "f16", **types: Any) -> GemmOperationUniversal:
    described = parts(kind)
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32, **types)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def refused(function: Any) -> str:
    with pytest.raises(DescriptionError) as caught:
        pycutlass.epilogue_function(function)
    return str(caught.value)


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


def test_a_name_is_the_same_in_every_process() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/unit')\n"
        "from test_epilogue_functions import make\nfrom epilogue_functions import residual\n"
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
    ],
)
def test_functions_of_torch_trace(function: Any, same: Any) -> None:
    assert pycutlass.epilogue_function(function) == pycutlass.epilogue_function(same)


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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_take_functions(name: str) -> None:
    assert make(FUNCTIONS[name]).procedural_name() != make(biased, bias=cutlass.float32).procedural_name()
    described = native_parts()
    functor = FUNCTIONS[name](described["C"].element, described["C"].alignment)
    GemmOperationUniversal(**described | {"epilogue_functor": functor})


def test_descriptions_that_take_none_say_so() -> None:
    described = parts("f16")
    described["epilogue_functor"] = biased(described["C"].element, described["C"].alignment)
    tree = {"epilogue_functor": ExtraEpilogue(cutlass.float16, cutlass.float16, 8)}
    by_columns = {"C": pycutlass.TensorDescription(cutlass.float16, cutlass.ColumnMajor, 8)}
    with pytest.raises(DescriptionError, match=r"a C of cutlass\.ColumnMajor, in place of RowMajor"):
        GemmOperationUniversal(**described | tree | by_columns)
    GemmOperationUniversal(**described | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK})
    simt = parts("f32_simt")
    with pytest.raises(DescriptionError, match=r"Simt kernels, in place of OpClass\.TensorOp"):
        GemmOperationUniversal(**simt | {"epilogue_functor": ExtraEpilogue(cutlass.float32, cutlass.float32, 1)})
    assert "GemmVisitor" in GemmOperationUniversal(**simt | {"epilogue_functor": biased(cutlass.float32, 1)}).body()


def test_hopper_kernels_write_rows_of_wide_types() -> None:
    described = native_parts()
    by_columns = pycutlass.TensorDescription(cutlass.float16, cutlass.ColumnMajor, 8)
    function, linear = biased(cutlass.float16, 8), FUNCTIONS["linear"](cutlass.float16, 8)
    cases = (
        ({"C": by_columns, "D": described["C"], "epilogue_functor": linear}, "writes D in the same order; got C of"),
        (
            {
                "C": pycutlass.TensorDescription(cutlass.int32, cutlass.RowMajor, 4),
                "epilogue_functor": biased(cutlass.int32, 4, bias=cutlass.float32),
            },
            r"can write f32, f16, bf16, s8, e4m3, e5m2; got cutlass\.int32",
        ),
    )
    for changes, said in cases:
        with pytest.raises(DescriptionError, match=said):
            GemmOperationUniversal(**described | changes)
    assert GemmOperationUniversal(**described | {"D": by_columns, "epilogue_functor": function})
    # What is not read does not matter.
    unread = GemmOperationUniversal(**described | {"C": by_columns, "D": described["C"], "epilogue_functor": function})
    plain = GemmOperationUniversal(**described | {"epilogue_functor": function})
    assert unread.body() == plain.body()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"accum": "text", "bias": [1.0]}, "accum must be an array of numbers, got str"),
        ({"accum": [[1.0]], "bias": object()}, "bias must be an array of numbers, got object"),
        ({"accum": [[1.0]]}, "bias is missing"),
        ({"accum": [[1.0]], "bias": [1.0], "other": 1}, "has no parameter other: it has bias"),
        ({"accum": [[1.0, 2.0]], "bias": [1.0]}, "is a row, of shape"),
    ],
)
def test_numpy_says_what_is_wrong(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=said):
        biased.numpy(given.pop("accum"), **given)


def test_a_missing_tensor_or_a_wrong_one_is_refused(without_gpu: None) -> None:
    operation = make(biased)
    A, B, D = np.zeros((8, 8), np.float16), np.zeros((8, 8), np.float16, order="F"), np.zeros((8, 8), np.float16)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "bias, a row of the epilogue, is missing"),
        ({"bias": np.zeros(9, np.float16)}, "bias"),
        ({"bias": np.zeros(8, np.float32)}, "float32"),
        ({"bias": np.zeros(8, np.float16), "other": D}, "other"),
    ]
    for given, said in cases:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=said):
            pycutlass.GemmArguments(operation, (8, 8, 8), A, B, None, D, epilogue=given)
    with pytest.raises(ArgumentError, match=r"C is given, and the epilogue biased.* does not read it"):
        pycutlass.GemmArguments(operation, (8, 8, 8), A, B, D.copy(), D, epilogue={"bias": np.zeros(8, np.float16)})


def test_nothing_is_reduced_of_no_elements() -> None:
    operation = make(reduced)
    assert operation.supports((8, 8, 0))
    assert "D of 0 x 8 has no elements" in operation.supports((0, 8, 8)).reason


def test_sums_are_of_all_of_d(without_gpu: None) -> None:
    operation = make(reduced)
    random = np.random.default_rng(2)
    A, B = random.standard_normal((2, 40, 32)), random.standard_normal((2, 24, 32))
    A, B = A.astype(np.float16), B.astype(np.float16).swapaxes(1, 2)
    bias, D = random.standard_normal(24).astype(np.float16), np.empty((2, 40, 24), np.float16)
    shapes = {"row_sum": (2, 40), "row_max": (2, 40), "column_sum": (2, 24), "column_squares": (2, 24)}
    made = {name: np.full(shapes.get(name, (2, 1)), np.nan, np.float32) for name, _ in reduced.graph.reductions}
    arguments = pycutlass.GemmArguments(
        operation,
        (40, 24, 32),
        A,
        B,
        None,
        D,
        gemm_mode=cutlass.gemm.Mode.Batched,
        batch=2,
        epilogue={"bias": bias, **made},
    )
    operation.run(arguments)
    arguments.sync()
    exact = reduced.numpy(A.astype(float) @ B.astype(float), bias=bias)
    for name, values in made.items():
        np.testing.assert_allclose(values.reshape(exact[name].shape), exact[name], rtol=1e-4, atol=1e-3)


def test_what_is_read_is_asked_for(without_gpu: None) -> None:
    A, B, D = np.zeros((8, 8), np.float16), np.zeros((8, 8), np.float16, order="F"), np.zeros((8, 8), np.float16)
    operation = make(FUNCTIONS["linear"])
    with pytest.raises(ArgumentError, match=r"C is None, and the epilogue linear.* reads it: give C"):
        pycutlass.GemmArguments(operation, (8, 8, 8), A, B, None, D)
    scalars = make(FUNCTIONS["biased"]).epilogue_type()
    with pytest.raises(ArgumentError, match=r"output_op has no scalars, this .* takes the scalars alpha"):
        pycutlass.GemmArguments(operation, (8, 8, 8), A, B, D, D, output_op=scalars)
    assert operation.splits_in_parallel


def test_scalars_without_a_default_are_asked_for() -> None:
    @pycutlass.epilogue_function
    def multiplied(accum: Any, factor: Scalar) -> Any:
        return accum * factor

    functor = multiplied(cutlass.float32, 4)
    with pytest.raises(ArgumentError, match="factor is missing"):
        functor.epilogue_type()
    assert functor.epilogue_type(2.0)["factor"] == 2.0


@pytest.mark.parametrize("of_torch", [False, True])
def test_floats_of_8_bits_are_tensors_of_functions(of_torch: bool, without_gpu: None) -> None:
    """As D, beside it and as what is read; what is beyond their range saturates."""

    @pycutlass.epilogue_function
    def narrowed(accum: Any, x: Tensor(torch.float8_e5m2), scale: Row) -> Any:
        t = accum * scale + x
        return {"D": t, "small": t, "kept": epilogue.cast(t, torch.float8_e4m3fn)}

    types = {"scale": ml_dtypes.float8_e4m3fn, "small": cutlass.float_e5m2, "kept": cutlass.float32}
    functor = narrowed(torch.float8_e4m3fn, 16, **types)
    C = pycutlass.TensorDescription(torch.float8_e4m3fn, cutlass.RowMajor, 16)
    operation = GemmOperationUniversal(**parts("f16") | {"C": C, "epilogue_functor": functor})
    random, (m, n, k) = np.random.default_rng(0), (32, 48, 64)
    A, B = random.standard_normal((m, k)).astype(np.float16), random.standard_normal((n, k)).astype(np.float16).T
    x = random.standard_normal((m, n)).astype(ml_dtypes.float8_e5m2)
    scale = (2.0 ** random.integers(-9, 9, n)).astype(ml_dtypes.float8_e4m3fn)
    made = {"D": np.empty((m, n), C.type.dtype), "small": np.empty((m, n), ml_dtypes.float8_e5m2)}
    made["kept"] = np.empty((m, n), np.float32)
    given: dict[str, Any] = {"A": A, "B": B, "x": x, "scale": scale, **made}
    if of_torch:
        given = {
            name: torch.from_numpy(np.asarray(each).view(np.uint8 if each.itemsize == 1 else each.dtype)).view(
                getattr(torch, each.dtype.name)
            )
            for name, each in given.items()
        }
    ports = {name: given[name] for name in ("x", "scale", "small", "kept")}
    arguments = pycutlass.GemmArguments(operation, (m, n, k), given["A"], given["B"], None, given["D"], epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    t = A.astype(np.float64) @ B.astype(np.float64) * scale.astype(np.float64) + x.astype(np.float64)
    assert np.abs(t).max() > 448 and np.abs(t).min() < 2.0**-6
    for name, most, kind in (("D", 448, C.type.dtype), ("small", 57344, ml_dtypes.float8_e5m2), ("kept", 448, None)):
        found = made[name].astype(np.float64)
        exact = np.clip(t, -most, most)
        step = 0.125 if name == "small" else 0.0625
        assert (np.abs(found - exact) <= step * np.abs(exact) + 2.0**-9).all(), name
        assert kind is None or made[name].dtype == kind
    assert np.array_equal(made["kept"], made["D"].astype(np.float32))


def test_functors_write_no_floats_of_8_bits() -> None:
    C = pycutlass.TensorDescription(cutlass.float_e4m3, cutlass.RowMajor, 16)
    functor = pycutlass.LinearCombination(C.element, 16, cutlass.float32, cutlass.float32)
    with pytest.raises(DescriptionError, match="or write an epilogue function, which can"):
        GemmOperationUniversal(**parts("f16") | {"C": C, "epilogue_functor": functor})
    for each in (functor, biased(C.element, 16)):
        assert GemmOperationUniversal(**native_parts() | {"C": C, "epilogue_functor": each})
        with pytest.raises(DescriptionError, match="Hopper-native groups write f16, bf16, f32"):
            pycutlass.GemmOperationGrouped(**native_parts() | {"C": C, "epilogue_functor": each})
    with pytest.raises(DescriptionError):
        pycutlass.MathInstruction([16, 8, 32], C.element, C.element, cutlass.float32, cutlass.OpClass.TensorOp)
    with pytest.raises(DescriptionError, match=r"multiplies cutlass\.float16"):
        GemmOperationUniversal(**parts("f16") | {"A": C})
    with pytest.raises(
        DescriptionError, match=r"can be of cutlass\.float64, cutlass\.float32; got cutlass\.float_e5m2"
    ):
        reduced(cutlass.float16, 8, row_sum=cutlass.float_e5m2)


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
