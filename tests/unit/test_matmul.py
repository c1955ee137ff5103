"""`matmul` and `linear` against NumPy: shapes, strides, types, batches that broadcast, and what is refused."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Scalar
from pycutlass.epilogue.handles import handle_of
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.plan import matmul as module
from pycutlass.plan.options import KeptPlans

RNG = np.random.default_rng(5)
TOLERANCE = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-13}
SHAPES = [
    *(((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((1, 8), (8, 16)), ((8, 16), (16, 1))),
    *(((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))),
    *(((6, 2, 3, 4), (6, 2, 4, 5)), ((6, 1, 3, 4), (1, 1, 4, 5)), ((1, 3, 4), (1, 4, 5)), ((2, 3, 16), (16, 8))),
    *(((0, 3, 4), (4, 5)), ((3, 0), (0, 5)), ((0, 4), (4, 5)), ((3, 4), (4, 0)), ((2, 3, 0), (2, 0, 5))),
]


def random(shape: tuple[int, ...], dtype: Any) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def check(a: Any, b: Any, got: Any, tolerance: float) -> None:
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert got.shape == exact.shape
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=tolerance, atol=tolerance * 8)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_it_is_numpys_product(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> None:
    left, right = random(a, dtype), random(b, dtype)
    got = pycutlass.matmul(left, right)
    assert got.dtype == dtype
    check(left, right, got, TOLERANCE[dtype])


_EXTENT = st.integers(1, 24)


@settings(max_examples=40, deadline=None)
@given(_EXTENT, _EXTENT, _EXTENT, st.sampled_from("CF"), st.sampled_from("CF"), st.integers(0, 3), st.booleans())
def test_any_strides_that_kernels_take(
    m: int, n: int, k: int, order_a: Any, order_b: Any, offset: int, into: bool
) -> None:
    wide_a = np.array(random((m + offset, k + offset), np.float32), order=order_a)
    wide_b = np.array(random((k + offset, n + offset), np.float32), order=order_b)
    a, b = wide_a[offset:, offset:], wide_b[offset:, offset:]
    memory = np.full((m + 2, n + 5), np.nan, np.float32)
    out = memory[1:-1, 2 : 2 + n] if into else None
    got = pycutlass.matmul(a, b, out=out)
    check(a, b, got, 1e-5)
    if into:
        assert got is out
        memory[1:-1, 2 : 2 + n] = np.nan
        assert np.isnan(memory).all()  # nothing was written beside it


def test_a_column_major_result_is_written_in_place() -> None:
    a, b, out = random((16, 8), np.float32), random((8, 4), np.float32), np.empty((4, 16), np.float32).T
    check(a, b, pycutlass.matmul(a, b, out=out), 1e-5)


def test_what_would_be_copied_is_refused_unless_that_is_allowed() -> None:
    a, b = random((8, 16), np.float32)[:, ::2], random((8, 4), np.float32)
    with pytest.raises(ArgumentError, match="allow_copy=True"):
        pycutlass.matmul(a, b)
    check(a, b, pycutlass.matmul(a, b, allow_copy=True), 1e-5)
    left, right = random((6, 1, 3, 4), np.float32), random((1, 2, 4, 5), np.float32)
    with pytest.raises(ArgumentError, match="allow_copy=True"):
        pycutlass.matmul(left, right)
    check(left, right, pycutlass.matmul(left, right, allow_copy=True), 1e-5)
    out = np.zeros((8, 8), np.float32)
    with pytest.raises(ArgumentError, match="allow_copy=True"):
        pycutlass.matmul(b, b[:4], out=out[:, ::2])
    check(b, b[:4], pycutlass.matmul(b, b[:4], out=out[:, ::2], allow_copy=True), 1e-5)
    assert not out[:, 1::2].any()


@pytest.mark.parametrize(("a", "b"), [((2, 1), (1, 3)), ((2, 3), (3,)), ((2, 3), (2, 1))])
def test_what_is_repeated_along_some_axes_of_a_batch_is_told_as_that(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = random((*a, 4, 8), np.float32), random((*b, 8, 4), np.float32)
    for x, y in ((left, right), (torch.from_numpy(left), torch.from_numpy(right))):
        with pytest.raises(
            ArgumentError, match=r"of shape .* is repeated along some axes of the batch \(2, 3\)"
        ) as caught:
            pycutlass.matmul(x, y)
        assert "contiguous copy" not in str(caught.value)
        given = {"a": x, "b": y}
        name, code = re.match(r"([ab]) of shape .* pass allow_copy=True, or (.*)$", str(caught.value)).groups()
        given[name] = eval(code, {"np": np, **given})
        if b == (1, 3):  # where both are repeated
            given["b"] = given["b"] + 0 * given["a"][..., :1, :1]
        check(left, right, np.asarray(pycutlass.matmul(given["a"], given["b"])), 1e-5)
        check(left, right, np.asarray(pycutlass.matmul(x, y, allow_copy=True)), 1e-5)


def test_scalars_source_and_bias() -> None:
    a, b, c = random((16, 8), np.float32), random((8, 4), np.float32), random((16, 4), np.float32)
    product = a.astype(np.float64) @ b
    got = pycutlass.matmul(a, b, c, alpha=2, beta=-1)
    np.testing.assert_allclose(got, 2 * product - c, atol=1e-4)
    np.testing.assert_allclose(pycutlass.matmul(a, b, c[0]), product + c[0], atol=1e-4)
    np.testing.assert_allclose(pycutlass.matmul(a, b, bias=c[0]), product + c[0], atol=1e-4)
    np.testing.assert_allclose(pycutlass.matmul(a, b, c, beta=1, out=c.copy()), product + c, atol=1e-4)


def test_a_bias_of_a_single_column_and_of_a_result_by_columns() -> None:
    a, b = random((108, 7), np.float32), random((7, 1), np.float32)
    out, bias = np.empty((108, 1), np.float32), random((1,), np.float32)
    assert pycutlass.matmul(a, b, bias=bias, out=out) is out
    np.testing.assert_allclose(out, a @ b + bias, atol=1e-4)
    a = random((8, 8), np.float32)
    for out in (np.empty((8, 8), np.float32), np.empty((8, 8), np.float32).T):  # along which kernels read vectors
        np.testing.assert_allclose(pycutlass.matmul(a, a, bias=a[0], out=out), a @ a + a[0], atol=1e-4)


def test_linear_is_that_of_torch() -> None:
    x, w, bias = random((2, 3, 8), np.float16), random((16, 8), np.float16), random((16,), np.float16)
    exact = np.maximum(x.astype(np.float64) @ w.T + bias, 0)
    np.testing.assert_allclose(pycutlass.linear(x, w, bias, pycutlass.relu), exact, atol=2e-2)
    assert pycutlass.linear(x[0, 0], w).shape == (16,)


@pytest.mark.parametrize("shape", [(0, 16), (2, 0, 16), (0, 3, 16)])
def test_tensors_of_an_epilogue_are_not_dropped_where_nothing_is_launched(shape: tuple[int, ...]) -> None:
    def summed(accum: Any, row: pycutlass.epilogue.Row) -> Any:
        return {"D": accum + row, "total": pycutlass.epilogue.sum(accum, axis=0)}

    def twice(accum: Any, row: pycutlass.epilogue.Row) -> Any:
        return {"D": accum + row, "T": accum}

    a, b, row = np.zeros(shape, np.float16), np.zeros((16, 8), np.float16), np.zeros(8, np.float16)
    total, T = np.zeros(8, np.float32), np.zeros((*shape[:-1], 8), np.float16)
    reducing, writing = map(pycutlass.epilogue_function, (summed, twice))
    with pytest.raises(ArgumentError, match="reduces D to total, and D has no elements"):
        pycutlass.matmul(a, b, epilogue=reducing, epilogue_inputs={"row": row, "total": total})
    assert pycutlass.matmul(a, b, epilogue=writing, epilogue_inputs={"row": row, "T": T}).shape == T.shape
    with pytest.raises(ArgumentError, match="the epilogue has the tensors row, T, and epilogue_inputs has row"):
        pycutlass.matmul(a, b, epilogue=writing, epilogue_inputs={"row": row})


def test_epilogue_functions_take_their_inputs_by_name() -> None:
    def scaled(accum: Any, row: pycutlass.epilogue.Row, factor: pycutlass.epilogue.Scalar = 1.0) -> Any:
        return accum * row * factor

    function = pycutlass.epilogue_function(scaled)
    a, b, row = random((16, 8), np.float16), random((8, 16), np.float16), random((16,), np.float16)
    got = pycutlass.matmul(a, b, epilogue=function, epilogue_inputs={"row": row, "factor": 2.0})
    np.testing.assert_allclose(got, a.astype(np.float64) @ b * row * 2, atol=5e-2)
    with pytest.raises(ArgumentTypeError, match="rows"):
        pycutlass.matmul(a, b, epilogue=function, epilogue_inputs={"rows": row})
    with pytest.raises(ArgumentError, match="row"):
        pycutlass.matmul(a, b, epilogue=function)


def test_integers_are_summed_in_int32() -> None:
    a = RNG.integers(-8, 8, (16, 32)).astype(np.int8)
    b = RNG.integers(-8, 8, (64, 32)).astype(np.int8)
    got = pycutlass.matmul(a, b.T)
    assert got.dtype == np.int32
    assert np.array_equal(got, a.astype(np.int64) @ b.T.astype(np.int64))


def test_float32_is_rounded_only_where_that_is_asked_for() -> None:
    a, b = random((16, 64), np.float32), random((64, 16), np.float32)
    exact = a.astype(np.float64) @ b
    errors = [np.abs(pycutlass.matmul(a, b, precision=how) - exact).max() for how in (None, "float32", "tf32")]
    assert errors[0] == errors[1] < 1e-4 < errors[2]


SQUARE = np.ones((8, 8), np.float32)
OTHER, LONG = np.ones((8, 8), np.float32), np.ones((9, 8), np.float32)
A, B = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
REFUSED: list[tuple[str, Any]] = [
    ("different K: 8 columns of a and 4 rows of b", lambda: pycutlass.matmul(A, A)),
    ("do not broadcast", lambda: pycutlass.matmul(np.ones((2, 4, 8)), np.ones((3, 8, 4)))),
    ("equal types", lambda: pycutlass.matmul(A, B.astype(np.float16))),
    ("one dimension or more", lambda: pycutlass.matmul(np.ones((), np.float32), B)),
    ("beta is 0", lambda: pycutlass.matmul(A, B, np.ones((4, 4), np.float32))),
    ("c is missing", lambda: pycutlass.matmul(A, B, beta=1)),
    ("bias must be a vector", lambda: pycutlass.matmul(A, B, bias=A)),
    ("a bias has one number", lambda: pycutlass.matmul(A, B, bias=np.ones(5, np.float32))),
    ("c must have the shape", lambda: pycutlass.matmul(A, B, np.ones((4, 3), np.float32), beta=1)),
    (r"out must have shape \(4, 4\), got \(4, 8\)", lambda: pycutlass.matmul(A, B, out=A.copy())),
    ("precision must be one of", lambda: pycutlass.matmul(A, B, precision="half")),
    (
        "is for operands of float32",
        lambda: pycutlass.matmul(A.astype(np.float64), B.astype(np.float64), precision="tf32"),
    ),
    ("has no keyword oout", lambda: pycutlass.matmul(A, B, oout=A)),
    ("epilogue must be", lambda: pycutlass.matmul(A, B, epilogue="relu")),
    ("plan must be", lambda: pycutlass.matmul(A, B, plan=3)),
    ("^operand x must be a tensor.* Pass np.asarray\\(x\\)", lambda: pycutlass.linear([[1.0]], A)),
    ("^x is of int64", lambda: pycutlass.linear(A.astype(int), A)),
    ("^x is float32 and w is float16", lambda: pycutlass.linear(A, A.astype(np.float16))),
    ("w must be a matrix", lambda: pycutlass.linear(A, A[0])),
    (r"w is \(out, in\), and the last extent of x must be 5", lambda: pycutlass.linear(A, A[:, :5])),
    ("^linear has no keyword scale; it has x, w, .* mean scales", lambda: pycutlass.linear(A, A, scale=(1.0, 1.0))),
    ("^activation must be .* got 'gelu': pass pycutlass.gelu$", lambda: pycutlass.linear(A, A, activation="gelu")),
    ("got 'swiglu': pass the activation or the function itself", lambda: pycutlass.matmul(A, A.T, epilogue="swiglu")),
    (
        r"pass the function itself, pycutlass\.pytorch\.epilogue_of\(handle\)$",
        lambda: pycutlass.matmul(A, A.T, epilogue=handle_of(pycutlass.epilogue_function(lambda accum: accum * 2))),
    ),
    ("pass pycutlass.tanh$", lambda: pycutlass.matmul(A, A.T, epilogue=np.tanh)),
    ("operand b must be a tensor", lambda: pycutlass.matmul(A, None)),
    ("to multiply by a number, pass it as alpha$", lambda: pycutlass.matmul(A, np.ones((), np.float32))),
    ("allow_copy must be True or False, got 'no'$", lambda: pycutlass.matmul(A, B, allow_copy="no")),
    (r"alpha must be a number.* of shape \(2,\)\. For one number", lambda: pycutlass.matmul(A, B, alpha=np.ones(2))),
    (r"beta must be a number.*: pass beta\[0\]$", lambda: pycutlass.matmul(A, B, A @ B, beta=[1.0])),
    (r"alpha must be a number.* of shape \(2,\)\. For one number", lambda: pycutlass.Gemm(A, B, alpha=np.ones(2))),
    (r"a is of int64.* Convert it, for example a\.astype\(np\.float32\)$", lambda: pycutlass.matmul(A.astype(int), B)),
    (r"pass contiguous copies of b\.real and of b\.imag$", lambda: pycutlass.matmul(A, B.astype(complex))),
    ("out is of bool.*: make out of one that they write", lambda: pycutlass.matmul(A, B, out=np.ones((4, 4), bool))),
    ("a is of object.*: pass numbers, for example of float32$", lambda: pycutlass.matmul(A.astype(object), B)),
    ("^out overlaps b .*, b at .* Give out ", lambda: pycutlass.matmul(np.eye(8, dtype="f4"), SQUARE, out=SQUARE)),
    ("^out overlaps a .*, a at .* Give out ", lambda: pycutlass.matmul(SQUARE, np.eye(8, dtype="f4"), out=SQUARE)),
    ("^out overlaps c ", lambda: pycutlass.matmul(OTHER, OTHER, LONG[1:], beta=1, out=LONG[:8])),
    ("^out overlaps c ", lambda: pycutlass.matmul(OTHER, OTHER, SQUARE[3], out=SQUARE)),
    ("^out overlaps bias ", lambda: pycutlass.matmul(OTHER, OTHER, bias=SQUARE[3], out=SQUARE)),
    ("^out overlaps bias ", lambda: pycutlass.matmul(OTHER, OTHER, OTHER, beta=1, bias=SQUARE[3], out=SQUARE)),
    ("^out overlaps x .*, x at ", lambda: pycutlass.linear(SQUARE, OTHER, out=SQUARE)),
    ("^out overlaps w .*, w at ", lambda: pycutlass.linear(OTHER, SQUARE, out=SQUARE)),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


class OfDLPack:
    """An array of a library that has nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def test_a_layer_of_a_library_that_is_known_by_dlpack_alone() -> None:
    x, w = random((4, 8), np.float32), random((5, 8), np.float32)
    check(x, w.T, pycutlass.linear(OfDLPack(x), OfDLPack(w)), 1e-5)
    check(x, w.T, pycutlass.linear(x, OfDLPack(np.asfortranarray(w))), 1e-5)


def test_a_layer_is_refused_by_the_names_of_its_parameters() -> None:
    layer, x = torch.nn.Linear(8, 5), torch.ones(4, 8)
    with pytest.raises(ArgumentError, match=r"^w requires a gradient.* pass w\.detach\(\)"):
        pycutlass.linear(x, layer.weight)
    with pytest.raises(ArgumentError, match=r"^x requires a gradient"):
        pycutlass.linear(x.clone().requires_grad_(), layer.weight.detach())


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.randn(3, 4, 8), torch.randn(8, 5)
    got = pycutlass.matmul(a, b)
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, a @ b, atol=1e-4, rtol=1e-4)
    half = a.bfloat16(), b.bfloat16()
    torch.testing.assert_close(pycutlass.matmul(*half), half[0] @ half[1], atol=0.1, rtol=0.1)
    a.requires_grad_(True)
    with pytest.raises(ArgumentError, match=r"a\.detach"):
        pycutlass.matmul(a, b)
    with torch.no_grad():
        assert pycutlass.matmul(a, b).shape == (3, 4, 5)


def test_plans_are_kept_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_plans", KeptPlans(2, "matmul"))
    for rows in (4, 4, 5, 6):
        pycutlass.matmul(np.ones((rows, 8), np.float32), B)
        assert len(module._plans) <= 2
    assert len(module._plans) == 2
    assert pycutlass.matmul(A, B, out_dtype=cutlass.float32).dtype == np.float32


def test_a_plan_has_its_own_options() -> None:
    plan = pycutlass.Gemm(A, B)
    np.testing.assert_allclose(pycutlass.matmul(A, B, plan=plan), A @ B, rtol=1e-5)
    for option in ({"alpha": 2}, {"precision": "tf32"}, {"out_dtype": cutlass.float32}, {"epilogue": pycutlass.relu}):
        with pytest.raises(ArgumentError, match=f"{next(iter(option))} and a plan are given"):
            pycutlass.matmul(A, B, plan=plan, **option)
    C = np.ones((A.shape[0], B.shape[1]), np.float32)
    adding = pycutlass.Gemm(A, B, C, beta=3)
    np.testing.assert_allclose(pycutlass.matmul(A, B, C, beta=3, plan=adding), A @ B + 3, rtol=1e-5)
    with pytest.raises(ArgumentError, match="beta and a plan are given"):
        pycutlass.matmul(A, B, C, beta=2, plan=adding)


def test_what_is_considered_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    """Descriptions that nobody asked for are tried, some of which would be slow."""
    a, b = np.ones((64, 60), np.float16), np.ones((60, 64), np.float16)
    plan = pycutlass.Gemm(a, b)
    plan.explain()
    plan(a, b)
    said = [record.getMessage() for record in caplog.records if not record.getMessage().startswith("no GPU")]
    assert said == []


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_without_a_gpu_a_target_may_be_named(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_TARGET", target)
    a, b = np.ones((128, 64), np.float16), np.ones((64, 256), np.float16)
    plan = pycutlass.Gemm(a, b)
    assert plan.operation.is_sm90 == (target == "sm_90a")
    assert "compute capability" in plan.explain()
    np.testing.assert_array_equal(plan(a, b), np.full((128, 256), 64, np.float16))


def test_options_that_are_arrays_are_named() -> None:
    with pytest.raises(ArgumentTypeError, match=r"alpha must be a number.*: pass alpha\.item\(\)"):
        pycutlass.matmul(A, B, alpha=np.array([2.0]))
    with pytest.raises(ArgumentTypeError, match="precision of matmul must be"):
        pycutlass.matmul(A, B, precision=["tf32"])


def test_wide_integers_are_refused_by_name() -> None:
    wide = np.ones((8, 8), np.int32)
    with pytest.raises(ArgumentError, match=r"kernels multiply int8 and uint8, and A is of cutlass\.int32: convert it"):
        pycutlass.matmul(wide, wide)


def test_a_copy_of_a_batch_of_one() -> None:
    a, b = np.ones((1, 5, 4), np.float32)[..., ::2], np.full((1, 2, 2), 2, np.float32)
    np.testing.assert_array_equal(pycutlass.matmul(a, b, allow_copy=True), np.matmul(a, b))
    np.testing.assert_array_equal(pycutlass.matmul(b, np.swapaxes(a, 1, 2), allow_copy=True), b @ np.swapaxes(a, 1, 2))


def test_single_rows_and_columns_that_are_added_lie_as_the_result() -> None:
    for rows, columns in ((1, 9), (9, 1), (1, 1)):
        a, b = np.ones((rows, 4), np.float32), np.ones((4, columns), np.float32)
        c = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        np.testing.assert_array_equal(pycutlass.matmul(a, b, c, beta=2), 4 + 2 * c)
    np.testing.assert_array_equal(pycutlass.matmul(a[0], np.ones((4, 9), np.float32), bias=np.ones(9, np.float32)), 5)


@pycutlass.epilogue_function
def times(accum: Any, factor: Scalar = 1.0) -> Any:
    return accum * factor


def test_a_kind_without_kernels_says_what_to_change() -> None:
    a, b = np.ones((100, 8), np.float32), np.ones((8, 100), np.float32)
    with pytest.raises(ArgumentError, match="C and D lie differently"):
        pycutlass.matmul(a, b, np.ones((100, 100), np.float32).T, beta=1)
    with pytest.raises(ArgumentError, match="precision='3xtf32'"):
        pycutlass.matmul(a, b, epilogue=pycutlass.epilogue.fusions.swiglu)
    for precision in (None, "3xtf32"):
        np.testing.assert_allclose(pycutlass.matmul(a, b, epilogue=times, precision=precision), 8)


def test_a_stack_of_torch_permits_copies_of_what_it_is_multiplied_with() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.randn(2, 3, 8), torch.randn(16, 10)[::2, ::2]
    with pytest.raises(ArgumentError, match="allow_copy"):
        pycutlass.matmul(a, b)
    torch.testing.assert_close(pycutlass.matmul(a, b, allow_copy=True), a @ b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("columns", [1, 4])
def test_batches_without_a_sum_are_copied_too(columns: int) -> None:
    """A batch that has no common step is copied, also where it has no elements."""
    a, b = np.ones((3, 2, 5, 8), np.float32)[..., :0], np.ones((2, 8, columns), np.float32)[:, :0]
    assert np.array_equal(pycutlass.matmul(a, b, allow_copy=True), a @ b)


def test_weights_that_have_no_transposed_view() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(4, 8), torch.eye(8)
    with warnings.catch_warnings():  # torch warns once a process that these are new
        warnings.simplefilter("ignore", UserWarning)
        compressed = w.to_sparse_csr()
    for sparse in (w.to_sparse(), compressed):
        with pytest.raises(ArgumentTypeError, match="must be a dense tensor"):
            pycutlass.linear(x, sparse)
