"""Numbers of epilogue functions that the type that is computed in does not hold: refused with their lines."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from descriptions import parts

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, cutlass
from pycutlass.epilogue import EpilogueVisitTree, Scalar, fusions, rsqrt
from pycutlass.epilogue.handles import handle_of, read_handle
from pycutlass.errors import ArgumentError, DescriptionError

PARALLEL = cutlass.gemm.Mode.GemmSplitKParallel
F16, BF16, F32, F64 = cutlass.float16, cutlass.bfloat16, cutlass.float32, cutlass.float64


def typed(function: Any, compute: Any) -> Any:
    output = F64 if compute is F64 else F16
    return pycutlass.epilogue_function(function)(output, 1, F64 if compute is F64 else F32, compute)


def normed(accum: Any) -> Any:
    x = accum * 0.5
    return x * rsqrt(x * x + 1e-9)


def test_one_that_becomes_0_is_refused_with_its_line() -> None:
    line = normed.__code__.co_firstlineno + 2
    said = (
        f"normed, line {line} (return x * rsqrt(x * x + 1e-9)): normed has the number 1e-09, which becomes 0 in "
        f"cutlass.float16, the type that it is computed in: use one of at least 5.96e-08 in magnitude, or "
        f"element_epilogue=cutlass.float32"
    )
    with pytest.raises(DescriptionError, match=f"^{re.escape(said)}$"):
        typed(normed, F16)
    for compute in (BF16, F32, F64):
        assert typed(normed, compute).compute.tag is compute


def test_one_that_becomes_infinite_is_refused_with_its_line() -> None:
    def large(accum: Any) -> Any:
        return accum * 1e5

    line = large.__code__.co_firstlineno + 1
    said = (
        rf"^large, line {line} \(return accum \* 1e5\): large has the number 100000, which is beyond cutlass.float16: "
    )
    with pytest.raises(DescriptionError, match=f"{said}.* It would be inf there$"):
        typed(large, F16)


@pytest.mark.parametrize(("compute", "number", "least", "remedy"), [
    (F16, -2.0**-25, "5.96e-08", "element_epilogue=cutlass.float32"),
    (F16, 1e-60, "5.96e-08", "float64 operands with element_epilogue=cutlass.float64"),
    (BF16, 1e-41, "9.18e-41", "element_epilogue=cutlass.float32"),
    (F32, 1e-60, "1.4e-45", "float64 operands with element_epilogue=cutlass.float64"),
])  # fmt: skip
def test_of_each_type(compute: Any, number: float, least: str, remedy: str) -> None:
    becomes = "-0" if number < 0 else "0"
    said = f"which becomes {becomes} in cutlass.{compute.__name__}, the type"
    with pytest.raises(DescriptionError, match=f"{said}.*at least {least} in magnitude, or {remedy}$"):
        typed(lambda accum: accum + number, compute)
    typed(lambda accum: accum + 2.0 * float(least), compute)


@pytest.mark.parametrize("compute", [F16, BF16, F32, F64])
@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, math.nan, np.float16(0), 6e-8])
def test_those_that_are_meant_so_are_taken(compute: Any, number: Any) -> None:
    typed(lambda accum: accum + number, compute)


def shifted(accum: Any, eps: Scalar = 1e-9, small: Scalar = -1e-10) -> Any:
    return accum + eps + small


def test_defaults_that_become_0_are_refused_with_their_line_where_they_are_used() -> None:
    line = shifted.__code__.co_firstlineno
    functor = typed(shifted, F16)
    of_line = rf"^shifted, line {line} \(def shifted.*\): shifted has the number"
    for given, said in (
        ({}, "eps=1e-09, which becomes 0 in cutlass.float16.*: give or use one of at least 5.96e-08"),
        ({"small": 2}, "eps=1e-09, which becomes 0"),
        ({"eps": 0.5}, "small=-1e-10, which becomes -0 in cutlass.float16"),
    ):
        with pytest.raises(ArgumentError, match=f"{of_line} {said}"):
            functor.epilogue_type(**given)
    assert functor.epilogue_type(eps=0.5, small=2).values == (0.5, 2.0)
    assert functor.epilogue_type(eps=1e-9, small=2).values == (1e-9, 2.0)  # who gives it means it
    assert typed(shifted, F32).epilogue_type().values == (1e-9, -1e-10)


def large(accum: Any, eps: Scalar = 1e9, small: Scalar = 1.0) -> Any:
    return accum + eps + small


@pytest.mark.parametrize(
    ("function", "said"), [(shifted, "eps=1e-09, which becomes 0"), (large, "eps=1e[+]09, which is beyond")]
)
def test_arguments_refuse_such_defaults(function: Any, said: str) -> None:
    functor = pycutlass.epilogue_function(function)(F16, 8, F32, F16)
    operation = GemmOperationUniversal(**parts("f16", tile=(64, 64, 32)) | {"epilogue_functor": functor})
    a, b, out = np.ones((64, 64), np.float16), np.ones((64, 64), np.float16, "F"), np.zeros((64, 64), np.float16)
    with pytest.raises(ArgumentError, match=said):
        GemmArguments(operation, (64, 64, 64), a, b, None, out)
    given = GemmArguments(operation, (64, 64, 64), a, b, None, out, output_op=operation.epilogue_type(0.5, 2))
    operation.run(given)
    given.sync()
    assert np.all(out == 66.5)
    GemmArguments(operation, (64, 64, 64), a, b, gemm_mode=PARALLEL, split_k_slices=2)  # sums, which have no scalars


@pytest.mark.parametrize(
    ("default", "said"), [(1e-60, "eps=1e-60, which becomes 0 in"), (1e39, "eps=1e[+]39, which is")]
)
def test_plans_and_products_refuse_such_defaults(default: float, said: str) -> None:
    @pycutlass.epilogue_function
    def moved(accum: Any, eps: Scalar = default) -> Any:
        return accum + eps

    a = np.ones((8, 8), np.float32)
    for call in (pycutlass.Gemm, pycutlass.matmul):
        with pytest.raises(ArgumentError, match=rf"moved has the number {said}.* cutlass\.float32"):
            call(a, a, epilogue=moved)
    assert np.all(pycutlass.matmul(a, a, epilogue=moved, epilogue_inputs={"eps": 2}) == 10)


class Normed(EpilogueVisitTree):
    def __call__(self, accum: "tensor", alpha: "scalar") -> Any:  # type: ignore # noqa
        D = alpha * accum + 1e-9
        return D


def test_of_classes() -> None:
    with pytest.raises(
        DescriptionError, match=r"__call__, line \d+ \(D = .*1e-9.*1e-09, which becomes 0 in cutlass.fl"
    ):
        of_class(F16)
    of_class(F32)


def of_class(compute: Any) -> Any:
    described = parts("f16", tile=(64, 64, 32))
    functor, tile = described["epilogue_functor"], described["tile_description"]
    return Normed(functor, tile, F32, 8, compute, F16).functor


@pytest.mark.parametrize("compute", [F16, BF16])
def test_every_ready_made_function_has_numbers_of_16_bits(compute: Any) -> None:
    for function in fusions.ALL.values():
        assert function(compute, 8, F32, compute).compute.tag is compute


def test_a_transposed_graph_keeps_its_lines() -> None:
    function = pycutlass.epilogue_function(normed).transposed()
    with pytest.raises(DescriptionError, match=r"^normed, line \d+ "):
        function(F16, 8, F32, F16)


def test_lines_make_no_function_another_one() -> None:
    def other(accum: Any) -> Any:
        x = accum * 0.5
        return x * rsqrt(x * x + 1e-9)

    one, another = pycutlass.epilogue_function(normed), pycutlass.epilogue_function(other)
    assert one == another
    assert (hash(one), repr(one.graph)) == (hash(another), repr(another.graph))


def test_one_that_was_read_from_text_has_no_line() -> None:
    function, _ = read_handle(handle_of(pycutlass.epilogue_function(normed), {}))
    with pytest.raises(DescriptionError, match=r"^from_handle has the number 1e-09, which becomes 0"):
        function(F16, 8, F32, F16)
