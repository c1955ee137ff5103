"""What a message says of a parameter's annotation is the parameter's own, and is followed to the letter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Column, PerBatch, Row, Scalar, Source, Tensor, pairs
from pycutlass.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("without_gpu")

M, N, K = 8, 16, 8
A, B = np.ones((M, K), np.float16), np.ones((K, N), np.float16)
MARKERS = {"Row": (Row, (N,)), "Column": (Column, (M,)), "Tensor": (Tensor, (M, N)), "PerBatch": (PerBatch, (1,))}


def times(marker: Any) -> Any:
    """Return a function that multiplies by a parameter, which is annotated so."""

    def function(accum: Any, x: Any) -> Any:
        return accum * x

    function.__annotations__["x"] = marker
    return pycutlass.epilogue_function(function)


def said(call: Any) -> str:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as refused:
        call()
    return str(refused.value)


@pytest.mark.parametrize("name", MARKERS)
def test_the_type_is_declared_behind_the_parameter_s_own_annotation(name: str) -> None:
    marker, shape = MARKERS[name]
    x = np.full(shape, 3, np.float32)
    text = said(lambda: pycutlass.matmul(A, B, epilogue=times(marker), epilogue_inputs={"x": x}))
    code = re.search(
        r"in the function, x: (\w+\(cutlass\.float32\)), or when the function is given its types, (x=\S+)\.", text
    )
    assert code, text
    names = {"cutlass": cutlass, **{each: of for each, (of, _) in MARKERS.items()}}
    got = pycutlass.matmul(A, B, epilogue=times(eval(code[1], names)), epilogue_inputs={"x": x})
    np.testing.assert_array_equal(got, np.full((M, N), 3 * K))
    functor = times(marker)(cutlass.float16, 8, **eval(f"dict({code[2]})", names))
    got = pycutlass.matmul(A, B, epilogue=functor, epilogue_inputs={"x": x})
    np.testing.assert_array_equal(got, np.full((M, N), 3 * K))


@pytest.mark.parametrize("name", MARKERS)
def test_flags_are_declared_behind_the_parameter_s_own_annotation(name: str) -> None:
    marker, shape = MARKERS[name]
    x = np.ones(shape, bool)
    text = said(lambda: pycutlass.matmul(A, B, epilogue=times(marker), epilogue_inputs={"x": x}))
    code = re.search(r"in the function as in x: (\w+\(cutlass\.uint8\)), or .*, and pass (x\.view\(np\.uint8\))", text)
    assert code, text
    names = {"cutlass": cutlass, "np": np, "x": x, **{each: of for each, (of, _) in MARKERS.items()}}
    inputs = {"x": eval(code[2], names)}
    got = pycutlass.matmul(A, B, epilogue=times(eval(code[1], names)), epilogue_inputs=inputs)
    np.testing.assert_array_equal(got, np.full((M, N), K))


BATCH = 3


def one_matrix(marker: Any, x: Any) -> Any:
    return pycutlass.matmul(A, B, epilogue=times(marker), epilogue_inputs={"x": x})


def one_of_a_batch(marker: Any, x: Any) -> Any:
    a, b = np.ones((BATCH, M, K), np.float16), np.ones((BATCH, K, N), np.float16)
    return pycutlass.matmul(a, b, epilogue=times(marker), epilogue_inputs={"x": x})


def one_of_a_group(marker: Any, x: Any) -> Any:
    return pycutlass.grouped_matmul([A], [B], epilogue=times(marker), epilogue_inputs={"x": [x]})[0]


def one_filter_of_a_pixel(marker: Any, x: Any) -> Any:
    images, filters = A.reshape(1, M, 1, K), np.ascontiguousarray(B.T).reshape(N, 1, 1, K)
    return pycutlass.conv2d(images, filters, epilogue=times(marker), epilogue_inputs={"x": x})


RUNS = [one_matrix, one_of_a_batch, one_of_a_group, one_filter_of_a_pixel]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("given", ["Row", "Column", "Tensor"])
@pytest.mark.parametrize("name", ["Row", "Column", "Tensor"])
def test_a_tensor_of_another_annotation_is_told_its_own(name: str, given: str, run: Any) -> None:
    shapes = [MARKERS[given][1]]
    if run is one_of_a_batch:
        shapes.append((BATCH, *shapes[0]))
    for shape in shapes:
        if run is one_filter_of_a_pixel and given == "Tensor":
            shape = (1, M, 1, N)
        x = np.full(shape, 3, np.float16)
        if name == given:
            assert (run(MARKERS[name][0], x) == 3 * K).all()
            continue
        text = said(lambda x=x: run(MARKERS[name][0], x))
        code = re.search(r"\. For a tensor of that shape write x: (\w+)\.?$", text)
        assert code, text
        assert code[1] == given
        assert (run(MARKERS[code[1]][0], x) == 3 * K).all()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ["Row", "Column", "Tensor"])
def test_a_single_number_is_told_to_be_a_scalar(name: str, run: Any) -> None:
    for x in (3.0, 3, np.float32(3), np.full((), 3, np.float16), np.full((1, 1), 3, np.float16)):
        text = said(lambda x=x: run(MARKERS[name][0], x))
        assert re.search(r"\. For a single number write x: Scalar\.?$", text), text
    if run is not one_of_a_group:
        assert (run(Scalar, 3.0) == 3 * K).all()


def test_numbers_of_each_matrix_are_told_to_be_per_batch() -> None:
    x = np.full(BATCH, 3, np.float16)
    for name in ("Row", "Column", "Tensor"):
        text = said(lambda name=name: one_of_a_batch(MARKERS[name][0], x))
        assert re.search(r"\. For a tensor of that shape write x: PerBatch\.?$", text), text
    assert (one_of_a_batch(PerBatch, x) == 3 * K).all()


def test_results_have_no_annotation() -> None:
    function = pycutlass.epilogue_function(lambda accum: {"D": accum, "x": accum})
    for x, end in ((0.0, "is written to memory: pass a tensor of float16, got float 0"), (np.ones(N, "f2"), "got 16")):
        text = said(lambda x=x: pycutlass.matmul(A, B, epilogue=function, epilogue_inputs={"x": x}))
        assert text.endswith(end), text


def test_what_is_combined_with_pairs_has_half_of_the_columns() -> None:
    def gated(accum: Any, x: Any) -> Any:
        gate, up = pairs(accum)
        return gate * up * x

    for marker, whole in ((Row, (N,)), (Tensor, (M, N))):
        gated.__annotations__["x"] = marker
        function = pycutlass.epilogue_function(gated)
        text = said(
            lambda f=function, s=whole: pycutlass.matmul(A, B, epilogue=f, epilogue_inputs={"x": np.ones(s, "f2")})
        )
        assert re.search(r"\. It is combined with what pairs returns, which has 8 columns\.?$", text), text
        half = np.ones((*whole[:-1], N // 2), np.float16)
        assert (pycutlass.matmul(A, B, epilogue=function, epilogue_inputs={"x": half}) == K * K).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["Row", "PerBatch", "Tensor"])
def test_one_tensor_of_all_problems_has_its_own_name(name: str, library: str) -> None:
    """Where one tensor was given, x[0] is none that anyone has."""
    marker, (*shape,) = MARKERS[name]
    whole: Any = np.full((2,) if name == "PerBatch" else (2, *shape), 3, np.float32)
    given: Any = whole if library == "numpy" else torch.from_numpy(whole)

    def run(x: Any, epilogue: Any) -> Any:
        return pycutlass.grouped_matmul([A, A], [B, B], epilogue=epilogue, epilogue_inputs={"x": x})

    text = said(lambda: run(given, times(marker)))
    assert text.startswith("operand x must be float16"), text
    code = re.search(r"Pass (x\..*\)), which rounds its values, or .* in the function, x: (\S+), or", text)
    assert code, text
    names = {
        "cutlass": cutlass,
        "np": np,
        "torch": torch,
        "x": given,
        **{each: of for each, (of, _) in MARKERS.items()},
    }
    for got in (run(eval(code[1], names), times(marker)), run(given, times(eval(code[2], names)))):
        for each in got:
            np.testing.assert_array_equal(each, np.full((M, N), 3 * K))
    listed = said(lambda: run([given[:1] if name == "PerBatch" else given[0]] * 2, times(marker)))
    assert listed.startswith("operand x[0] must be float16"), listed


def test_numbers_of_a_group_of_another_shape() -> None:
    def run(x: Any) -> Any:
        return pycutlass.grouped_matmul([A] * 3, [B] * 3, epilogue=times(PerBatch), epilogue_inputs={"x": x})

    numbers = np.array([1, 2, 3], np.float16)
    for x in (numbers[:2], numbers.reshape(1, 3)):
        text = said(lambda x=x: run(x))
        wanted = re.search(r"one tensor that holds them, of shape (\(3,\)); got shape", text)
        assert wanted, text
        got = run(numbers.reshape(eval(wanted[1])))
        assert [each[0, 0] for each in got] == [K, 2 * K, 3 * K]


def test_one_row_for_all_problems_is_given_to_each() -> None:
    names = {"x": np.full(N, 3, np.float16)}

    def run(x: Any) -> Any:
        return pycutlass.grouped_matmul([A] * 3, [B] * 3, epilogue=times(Row), epilogue_inputs={"x": x})

    text = said(lambda: run(names["x"]))
    code = re.search(r"For one that all share, pass (.*)$", text)
    assert code, text
    np.testing.assert_array_equal(run(eval(code[1], names)), np.full((3, M, N), 3 * K))


STACK, ENDS = np.ones((2, K, N), np.float16), np.array([3, M], np.int32)


@pytest.mark.parametrize("shape", [(M,), (M, 1)], ids=str)
def test_a_column_is_divided_in_either_shape(shape: tuple[int, ...]) -> None:
    x = np.arange(M, dtype=np.float16).reshape(shape)
    got = pycutlass.grouped_matmul(A, STACK, offs=ENDS, epilogue=times(Column), epilogue_inputs={"x": x})
    np.testing.assert_array_equal(got, K * np.arange(M)[:, None] * np.ones(N))


def test_a_column_that_is_too_long_is_told_what_is_divided() -> None:
    def run(x: Any) -> Any:
        return pycutlass.grouped_matmul(A, STACK, offs=ENDS, epilogue=times(Column), epilogue_inputs={"x": x})

    text = said(lambda: run(np.ones((M + 1, 1), np.float16)))
    wanted = re.search(
        r"or one of shape (\(8,\)), which offs divides; got shape \(9, 1\), which is of 9 problems", text
    )
    assert wanted, text
    np.testing.assert_array_equal(run(np.ones(eval(wanted[1]), np.float16)), np.full((M, N), K))


@pytest.mark.parametrize("ends", [ENDS, ENDS.tolist(), torch.from_numpy(ENDS)], ids=["numpy", "list", "torch"])
def test_ends_of_groups_that_are_passed_as_the_third(ends: Any) -> None:
    text = said(lambda: pycutlass.grouped_matmul(A, STACK, ends))
    assert text.endswith("cs, the third parameter, is of integers, as offs are: pass them by name, offs=..."), text
    np.testing.assert_array_equal(pycutlass.grouped_matmul(A, STACK, offs=ends), np.full((M, N), K))


@pytest.mark.parametrize("number", [2.0, np.float32(2), 2, np.int64(2)], ids=lambda number: type(number).__name__)
@pytest.mark.parametrize("is_first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("is_group", [False, True], ids=["matmul", "grouped_matmul"])
def test_a_number_for_a_perbatch_is_told_from_memory(is_group: bool, is_first: bool, number: Any) -> None:
    """An integer was taken for an address, and a float for no tensor, where a plan was there."""

    def run(x: Any, marker: Any = PerBatch) -> Any:
        operands = ([A], [B]) if is_group else (A, B)
        call = pycutlass.grouped_matmul if is_group else pycutlass.matmul
        return call(*operands, epilogue=times(marker), epilogue_inputs={"x": x}, alpha=None if is_first else 1)

    numbers = np.full(1, 2, np.float16)
    if not is_first:
        run(numbers)
    for x in (number, [number]) if is_group else (number,):
        text = said(lambda x=x: run(x))
        assert text.endswith(f"got {type(number).__name__} 2. What is a number itself is a Scalar"), text
    for got in (run(numbers), run(2.0, Scalar)):
        np.testing.assert_array_equal(got[0] if is_group else got, np.full((M, N), 2 * K))


def test_a_source_is_told_to_be_c() -> None:
    @pycutlass.epilogue_function
    def added(accum: Any, residual: Source) -> Any:  # type: ignore[valid-type]
        return accum + residual

    C = np.ones((M, N), np.float16)
    images, filters = A.reshape(1, M, 1, K), np.ascontiguousarray(B.T).reshape(N, 1, 1, K)
    calls: list[tuple[Any, tuple[Any, ...], str, Any]] = [
        (pycutlass.matmul, (A, B), "c", C),
        (pycutlass.grouped_matmul, ([A], [B]), "cs", [C]),
        (pycutlass.conv2d, (images, filters), "c", C.reshape(1, M, 1, N)),
    ]
    for call, operands, name, c in calls:
        inputs: dict[str, Any] = {"epilogue": added, "epilogue_inputs": {"residual": c}}
        text = said(lambda call=call, operands=operands, inputs=inputs: call(*operands, **inputs))
        assert text.endswith(f": give {name}, which its parameter residual stands for, beside epilogue_inputs"), text
        text = said(lambda call=call, all=(*operands, c), inputs=inputs: call(*all, **inputs))
        assert text.endswith("residual is a Source, which stands for c (of groups cs): give it as that."), text
        made = call(*operands, c, epilogue=added)
        assert (np.asarray(made) == K + 1).all()
