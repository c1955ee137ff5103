"""Calls in and of epilogue functions that cannot be made: each is answered with the rule, the place and the remedy."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from descriptions import parts
from torch.nn import functional
from traced_functions import plain, refused

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.epilogue import Column, Row, Scalar, Tensor, gelu, leaky_relu, relu, where
from pycutlass.errors import ArgumentTypeError, DescriptionError

f16 = cutlass.float16


def _selects(accum: Any, k: Scalar) -> Any:
    return {"D": accum, "values": epilogue.top_k(accum, k)[0]}


def _along(accum: Any, k: Scalar) -> Any:
    return {"D": accum, "total": epilogue.sum(accum, axis=k)}


def _of_tiles(accum: Any, k: Scalar) -> Any:
    return {"D": accum, "total": epilogue.sum(accum, axis=1, tile=k)}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: {"D": x, "m": epilogue.max(x, x)}, "the greater of two is pycutlass.epilogue.maximum(x, y)"),
        (lambda x: {"D": x, "m": epilogue.min(x, x)}, "the lesser of two is pycutlass.epilogue.minimum(x, y)"),
        (
            _selects,
            "top_k is given a value of the function as k: k is part of the kernel, an integer that is known when",
        ),
        (_along, "sum is given a value of the function as axis: axis is part of the kernel"),
        (_of_tiles, "sum is given a value of the function as tile: tile is part of the kernel"),
        (
            lambda x: {"D": x, "m": relu(epilogue.sum(x))},
            "what sum returned is used: a reduction is complete when all of",
        ),
        (lambda x: leaky_relu(x, 1, 2), "given to leaky_relu with 1, 2: write leaky_relu(x, 0.01), with one slope"),
        (
            lambda x: leaky_relu(x, 1, leaky_alpha=2),
            "given to leaky_relu with 1, leaky_alpha=2: write leaky_relu(x, 0.01)",
        ),
        (lambda x: leaky_relu(x, negative_slope=0.01), "with negative_slope=0.01: write leaky_relu(x, 0.01), with one"),
        (lambda x: gelu(x, approximate="tanh"), "with approximate='tanh': write gelu(x), or gelu_tanh(x)"),
        (
            lambda x: where((x > 0) ^ (x > 1), 1.0, x),
            "combined by ^: where one of two conditions holds, and not both, is",
        ),
    ],
)
def test_a_call_in_a_function_is_explained(function: Any, said: str) -> None:
    message = refused(function)
    assert said in message and message.startswith((f"{function.__name__}, line ",))


@pytest.mark.parametrize("given", [5.0, 5, np.ones(3), [1.0], torch.ones(2), np.float32(1)], ids=repr)
def test_an_activation_of_numbers_is_its_numpy(given: Any) -> None:
    with pytest.raises(DescriptionError, match=r"gelu takes a value of an epilogue function.* it is gelu\.numpy\(x\)"):
        gelu(given)
    assert gelu(np.dtype("float32")) == gelu(cutlass.float32) == gelu(torch.float32)


def test_a_scalar_is_written_without_parentheses() -> None:
    said = "Scalar is written without parentheses in an epilogue function, as in alpha: Scalar, or with a default"
    with pytest.raises(DescriptionError, match=said):
        Scalar()

    def function(accum: Any, s: "Scalar()") -> Any:  # type: ignore # noqa
        return accum * s

    assert said in refused(function)


def _of_row(accum: Row) -> Any:  # type: ignore[valid-type]
    return accum


def _of_scalar(acc: Scalar) -> Any:
    return acc


def _with_default(accum: Any = 1) -> Any:
    return accum


def test_an_accumulator_is_no_other_parameter() -> None:
    assert refused(_of_row).endswith("which is the accumulator and has no annotation: def _of_row(accum)")
    assert "has acc: Scalar as its first parameter" in refused(_of_scalar)
    assert "has accum = 1 as its first parameter, which is the accumulator and has no default" in refused(_with_default)


class _Unsigned:
    __signature__ = 5

    def __call__(self, accum: Any) -> Any:
        return accum


@pytest.mark.parametrize("function", [torch.relu, functional.gelu, _Unsigned()], ids=["relu", "gelu", "object"])
def test_a_function_without_a_signature_is_wrapped(function: Any) -> None:
    name = getattr(function, "__name__", "_Unsigned")
    assert f"write a function that calls it, as in def f(accum): return {name}(accum)" in refused(function)


class _SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def _raises(accum: Any) -> Any:
    raise _SilentError


def test_an_exception_that_cannot_be_read_has_a_line() -> None:
    assert refused(_raises).endswith("(raise _SilentError): _raises raised _SilentError while it was traced")


@pytest.mark.parametrize("kind", [np.float16, np.dtype("float16"), torch.float16, ml_dtypes.bfloat16])
def test_types_of_every_library_are_types(kind: Any) -> None:
    assert plain(kind, 8).output.short == ("bf16" if kind is ml_dtypes.bfloat16 else "f16")
    with pytest.raises(ArgumentTypeError, match=r"on arrays it is computed by plain\.numpy"):
        plain(np.ones(3, kind) if kind is not torch.float16 else torch.ones(3), 8)


def test_what_the_functor_has_is_said_of_the_function() -> None:
    with pytest.raises(
        AttributeError, match=r"function plain has no attribute 'cost'\. The functor has it.*plain\(cutl"
    ):
        plain.cost  # noqa: B018
    with pytest.raises(AttributeError, match=r"the epilogue function plain has no attribute 'costs'$"):
        plain.costs  # noqa: B018
    assert pickle.loads(pickle.dumps(plain)) == copy.deepcopy(plain) == plain


def test_a_cost_is_of_a_problem_and_of_operations() -> None:
    functor = plain(f16, 8)
    with pytest.raises(ArgumentTypeError, match=r"M, N and K, or a list .* got \(-128, 128, 128\)"):
        functor.cost((-128, 128, 128))
    for bandwidth in (math.nan, math.inf, 0, -1.0):
        with pytest.raises(ArgumentTypeError, match="in bytes per second and positive"):
            functor.cost((1, 2, 3), bandwidth)
    with pytest.raises(
        ArgumentTypeError, match=r"plain is a compiled operation, whose registers are compared; got 0\.001"
    ):
        functor.cost((1, 2, 3), plain=1e-3)


def test_more_than_the_parameters_of_a_kernel_hold_is_refused() -> None:
    def function(count: int) -> Any:
        names = [f"s{number}" for number in range(count)]
        given, product = ", ".join(f"{name}: Scalar" for name in names), " * ".join(["accum", *names])
        text = f"def scaled(accum, {given}):\n  return {product}"
        exec(text, {"Scalar": Scalar}, made := {})
        return pycutlass.epilogue_function(made["scaled"])

    with pytest.raises(
        DescriptionError, match="has 2,200 scalars and 0 tensors, 35,200 bytes of a launch, and parameters"
    ):
        function(2200)(f16, 8)
    assert len(function(100)(f16, 8).scalar_names) == 100


def _by_column(accum: Any, left: Column, bias: Tensor) -> Any:
    return accum * left + bias


def test_a_type_is_declared_behind_the_annotation_that_is_there() -> None:
    functor = pycutlass.epilogue_function(_by_column)(f16, 8, cutlass.float32)
    operation = pycutlass.GemmOperationUniversal(**parts("f16") | {"epilogue_functor": functor})
    A, D = np.ones((8, 8), np.float16), np.ones((8, 8), np.float16)
    said = r"in the function, left: Column\(cutlass.float64\), or when .*, left=cutlass.float64"
    with pytest.raises(ArgumentTypeError, match=said):
        pycutlass.GemmArguments(operation, (8, 8, 8), A, A.T, None, D, epilogue={"left": np.ones(8), "bias": D.copy()})
