"""Epilogue functions in kernels and launches: which take them, which tensors and scalars they ask for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from descriptions import native_parts, parts
from epilogue_functions import FUNCTIONS, biased, reduced
from extra_epilogue import ExtraEpilogue
from traced_functions import make

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass, epilogue
from pycutlass.epilogue import Row, Scalar, Tensor
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError


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
