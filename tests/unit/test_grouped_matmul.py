"""`grouped_matmul` against NumPy in float64: forms of operands, layouts, empty groups, epilogues, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycutlass
from pycutlass.epilogue import Column, PerBatch, Row, Scalar, Tensor
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.plan import grouped_matmul as module
from pycutlass.plan.options import KeptPlans

RNG = np.random.default_rng(11)
TOLERANCE = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-13}


def random(shape: Any, dtype: Any = np.float32, order: Any = "C") -> Any:
    if len(shape) == 3 and order == "F":
        return random((shape[0], shape[2], shape[1]), dtype).swapaxes(1, 2)
    return np.array(RNG.standard_normal(shape), dtype, order=order)


def check(got: Any, exact: Any, tolerance: float = 1e-5) -> None:
    assert len(got) == len(exact)
    for one, other in zip(got, exact, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=tolerance, atol=tolerance * 16)


def products(xs: Any, ws: Any) -> list[Any]:
    return [x.astype(np.float64) @ w.astype(np.float64) for x, w in zip(xs, ws, strict=True)]


def parts(tensor: Any, offs: Any, axis: int) -> list[Any]:
    ends = [int(end) for end in offs]
    return [np.take(tensor, range(begin, end), axis) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("order_x", "order_w"), ["CC", "CF", "FC", "FF"])
def test_lists_have_extents_of_their_own(order_x: str, order_w: str, dtype: Any) -> None:
    sizes = [(3, 5, 7), (16, 8, 24), (0, 4, 6), (1, 1, 1), (7, 3, 0), (5, 0, 2)]
    xs = [random((m, k), dtype, order_x) for m, _, k in sizes]
    ws = [random((k, n), dtype, order_w) for _, n, k in sizes]
    got = pycutlass.grouped_matmul(xs, ws)
    assert isinstance(got, list)
    assert all(each.dtype == dtype for each in got)
    check(got, products(xs, ws), TOLERANCE[dtype])


_LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=8)
_EXTENT = st.integers(1, 20)
_LAYOUT = st.sampled_from("CF")


@settings(max_examples=40, deadline=None)
@given(_LENGTHS, _EXTENT, _EXTENT, _LAYOUT, _LAYOUT, st.integers(0, 3), st.sampled_from([0, 1, 8]), st.booleans())
def test_rows_are_divided(
    lengths: list[int], n: int, k: int, order_x: str, order_w: str, rest: int, offset: int, into: bool
) -> None:
    offs, total = np.cumsum(lengths), sum(lengths) + rest
    xs = random((total + offset, k + offset), np.float16, order_x)[offset:, offset:]
    ws = random((len(lengths), k, n), np.float16, order_w)
    memory = np.full((total + 2, n + 5), np.nan, np.float16)
    out = memory[1:-1, 2 : 2 + n] if into else None
    got = pycutlass.grouped_matmul(xs, ws, offs=offs.astype(np.int32), out=out)
    assert got.shape == (total, n)
    check(parts(got, offs, 0), products(parts(xs, offs, 0), ws), 4e-3)
    if into:
        assert got is out
        memory[1 : 1 + sum(lengths), 2 : 2 + n] = np.nan
        assert np.isnan(memory).all(), "nothing was written beside the groups"
    else:
        assert not got[sum(lengths) :].any(), "what belongs to no group is zero"


@settings(max_examples=25, deadline=None)
@given(_LENGTHS, _EXTENT, _EXTENT, _LAYOUT, _LAYOUT, st.integers(0, 3))
def test_k_is_divided(lengths: list[int], m: int, n: int, order_x: str, order_w: str, rest: int) -> None:
    offs, total = np.cumsum(lengths), sum(lengths) + rest
    xs, ws = random((m, total), order=order_x), random((total, n), order=order_w)
    got = pycutlass.grouped_matmul(xs, ws, offs=offs.tolist())
    assert got.shape == (len(lengths), m, n)
    check(list(got), products(parts(xs, offs, 1), parts(ws, offs, 0)))


@settings(max_examples=25, deadline=None)
@given(_LENGTHS, _EXTENT, _EXTENT, _LAYOUT, _LAYOUT, st.booleans())
def test_columns_are_divided(lengths: list[int], m: int, k: int, order_x: str, order_w: str, listed: bool) -> None:
    offs = np.cumsum(lengths)
    xs, ws = random((len(lengths), m, k), order=order_x), random((k, sum(lengths)), order=order_w)
    got = pycutlass.grouped_matmul(list(xs) if listed else xs, ws, offs=offs.tolist())
    assert got.shape == (m, sum(lengths))
    check(parts(got, offs, 1), products(xs, parts(ws, offs, 1)))


def test_stacks_are_a_batch() -> None:
    xs, ws, cs = random((3, 4, 5)), random((3, 5, 6)), random((3, 4, 6))
    for further, exact in (({}, 0), ({"cs": cs, "beta": 2}, 2 * cs), ({"bias": cs[0, 0]}, cs[0, 0])):
        got = pycutlass.grouped_matmul(xs, ws, **further)  # type: ignore[arg-type]
        assert got.shape == (3, 4, 6)
        check(got, np.matmul(xs.astype(np.float64), ws) + exact)
    out = np.empty((3, 4, 6), np.float32)
    assert pycutlass.grouped_matmul(xs, ws, out=out) is out
    check(out, products(xs, ws))
    check(pycutlass.grouped_matmul(xs, ws, bias=cs[:, 0]), products(xs, ws) + cs[:, :1])


def test_a_stack_takes_the_place_of_a_list() -> None:
    xs, ws = [random((m, 5)) for m in (2, 0, 7)], random((3, 5, 4))
    check(pycutlass.grouped_matmul(xs, ws), products(xs, ws))
    rows, offs = np.concatenate(xs), [2, 2, 9]
    check(parts(pycutlass.grouped_matmul(rows, list(ws), offs=offs), offs, 0), products(xs, ws))


@pytest.mark.parametrize("count", [1, 200])
def test_one_group_and_two_hundred(count: int) -> None:
    lengths = RNG.integers(0, 5, count)
    offs, ws = np.cumsum(lengths), random((count, 6, 10), np.float16)
    xs = random((int(offs[-1]), 6), np.float16)
    got = pycutlass.grouped_matmul(xs, ws, offs=offs)
    check(parts(got, offs, 0), products(parts(xs, offs, 0), ws), 4e-3)


def test_groups_without_problems() -> None:
    assert pycutlass.grouped_matmul([], []) == []
    got = pycutlass.grouped_matmul(random((3, 4)), np.empty((0, 4, 5), np.float32), offs=[])
    assert got.shape == (3, 5)
    assert not got.any()
    got = pycutlass.grouped_matmul(random((3, 4)), [], offs=[])
    assert got.shape == (3, 0)
    assert pycutlass.grouped_matmul(random((3, 4)), random((2, 4, 5)), offs=[0, 0]).shape == (3, 5)
    assert pycutlass.grouped_matmul(random((0, 4)), random((2, 4, 5)), offs=[0, 0]).shape == (0, 5)


def test_without_a_sum_there_is_what_is_added() -> None:
    xs, ws, cs = random((4, 0)), random((2, 0, 3)), random((4, 3))
    check([pycutlass.grouped_matmul(xs, ws, cs, offs=[1, 4], beta=-2)], [-2.0 * cs])
    bias = random((2, 3))
    got = pycutlass.grouped_matmul(xs, ws, offs=[1, 4], bias=bias, epilogue=pycutlass.relu)
    check([got], [np.maximum(np.stack([bias[0], *[bias[1]] * 3]).astype(np.float64), 0)])
    deep = pycutlass.grouped_matmul(random((2, 5)), random((5, 3)), offs=[0, 5, 5])
    assert not deep[0].any()
    assert not deep[2].any()
    assert deep[1].any()


def test_scalars_that_are_left_out_are_those_of_the_function() -> None:
    @pycutlass.epilogue_function
    def twice(accum: Any, alpha: Scalar = 2.0) -> Any:
        return alpha * accum

    xs, ws = [random((5, 6)), random((3, 6))], [random((6, 4)), random((6, 8))]
    for said, factor in (({}, 2), ({"alpha": 1}, 1), ({}, 2)):
        check(pycutlass.grouped_matmul(xs, ws, epilogue=twice, **said), [factor * e for e in products(xs, ws)])


def test_scalars_source_and_bias() -> None:
    offs, xs, ws = [2, 2, 9], random((9, 6)), random((3, 6, 4))
    exact = products(parts(xs, offs, 0), ws)
    cs = random((9, 4))
    got = pycutlass.grouped_matmul(xs, ws, cs, offs=offs, alpha=2, beta=-1)
    check(parts(got, offs, 0), [2 * each - c for each, c in zip(exact, parts(cs, offs, 0), strict=True)])
    bias = random((3, 4))
    for given_bias in (bias, list(bias)):
        got = pycutlass.grouped_matmul(xs, ws, offs=offs, bias=given_bias)
        check(parts(got, offs, 0), [each + b for each, b in zip(exact, bias, strict=True)])
    check(parts(pycutlass.grouped_matmul(xs, ws, offs=offs, bias=bias[0]), offs, 0), [e + bias[0] for e in exact])
    got = pycutlass.grouped_matmul(parts(xs, offs, 0), ws, list(bias))
    check(got, [each + b for each, b in zip(exact, bias, strict=True)])
    wide, ends = random((6, 9)), [4, 9]
    along = random((9,))
    got = pycutlass.grouped_matmul(random((2, 3, 6)) * 0, wide, offs=ends, bias=along)
    check([got], [np.tile(along, (3, 1)).astype(np.float64)])


def test_results_may_take_the_place_of_what_is_added() -> None:
    offs, xs, ws, cs = [1, 4], random((4, 6)), random((2, 6, 8)), random((4, 8))
    exact = [each + c for each, c in zip(products(parts(xs, offs, 0), ws), parts(cs.copy(), offs, 0), strict=True)]
    assert pycutlass.grouped_matmul(xs, ws, cs, offs=offs, beta=1, out=cs) is cs
    check(parts(cs, offs, 0), exact)


def test_lists_of_results_are_written_in_place() -> None:
    xs, ws = [random((2, 3)), random((4, 5))], [random((3, 6)), random((5, 2))]
    for order in "CF":
        out = [np.full((2, 6), np.nan, np.float32, order=order), np.full((4, 2), np.nan, np.float32, order=order)]  # type: ignore[call-overload]
        assert pycutlass.grouped_matmul(xs, ws, out=out) is out
        check(out, products(xs, ws))


@pycutlass.epilogue_function
def several(accum: Any, row: Row, column: Column, residual: Tensor, factor: Scalar = 1.0) -> Any:
    return pycutlass.relu(accum * column + row) * factor + residual


def test_epilogue_functions_have_tensors_of_each_problem() -> None:
    offs, xs, ws = [2, 2, 9], random((9, 16), np.float16), random((3, 16, 8), np.float16)
    row, column, residual = random((3, 8), np.float16), random((9,), np.float16), random((9, 8), np.float16)
    inputs = {"row": row, "column": column, "residual": residual, "factor": 2.0}
    listed = {"row": list(row), "column": parts(column, offs, 0), "residual": parts(residual, offs, 0), "factor": 2.0}
    exact = [
        np.maximum(product * c[:, None] + r, 0) * 2 + s
        for product, r, c, s in zip(
            products(parts(xs, offs, 0), ws), row, listed["column"], listed["residual"], strict=True
        )
    ]
    for each in (inputs, listed):
        got = pycutlass.grouped_matmul(xs, ws, offs=offs, epilogue=several, epilogue_inputs=each)
        check(parts(got, offs, 0), exact, 2e-2)
    got = pycutlass.grouped_matmul(parts(xs, offs, 0), ws, epilogue=several, epilogue_inputs=listed)
    check(got, exact, 2e-2)
    for missing in ({**inputs, "row": row[:2]}, {**inputs, "column": column[:4]}, {"row": row}):
        with pytest.raises(PyCutlassError):
            pycutlass.grouped_matmul(xs, ws, offs=offs, epilogue=several, epilogue_inputs=missing)


def test_a_number_of_each_problem() -> None:
    @pycutlass.epilogue_function
    def scaled(accum: Any, scale: PerBatch) -> Any:
        return accum * scale

    xs, ws = [random((m, 16), np.float16) for m in (3, 0, 5)], random((3, 16, 8), np.float16)
    scale = np.array([2, 3, 4], np.float16)
    got = pycutlass.grouped_matmul(xs, ws, epilogue=scaled, epilogue_inputs={"scale": scale})
    check(got, [each * by for each, by in zip(products(xs, ws), scale, strict=True)], 2e-2)


def test_pairs_of_columns_are_written_in_place_as_well() -> None:
    xs, ws = random((5, 16), np.float16), random((2, 16, 24), np.float16)
    swiglu = pycutlass.epilogue.fusions.swiglu
    fresh = pycutlass.grouped_matmul(xs, ws, offs=[2, 5], epilogue=swiglu)
    assert fresh.shape == (5, 12)
    out = np.empty((5, 12), np.float16)
    pycutlass.grouped_matmul(xs, ws, offs=[2, 5], epilogue=swiglu, out=out)
    np.testing.assert_array_equal(out, fresh)
    product = np.concatenate(products(parts(xs, [2, 5], 0), ws))
    gate, up = product[:, ::2], product[:, 1::2]
    check([fresh], [gate / (1 + np.exp(-gate)) * up], 2e-2)
    stacked, plan = random((2, 3, 16), np.float16), pycutlass.GroupedGemm(xs, ws, offs=[2, 5], epilogue=swiglu)
    for refused in (  # the plan is of the same kind
        lambda: pycutlass.grouped_matmul(stacked, ws[0], offs=[4, 24], epilogue=swiglu),
        lambda: plan(stacked, ws[0], offs=[4, 8]),
        lambda: plan.run(stacked, ws[0], offs=[4, 8]),
        lambda: pycutlass.grouped_matmul(stacked, ws[0], offs=[4, 8], plan=plan),
    ):
        with pytest.raises(ArgumentError, match="pairs of columns"):
            refused()


def test_integers_are_summed_in_int32() -> None:
    xs = RNG.integers(-8, 8, (9, 32)).astype(np.int8)
    ws = RNG.integers(-8, 8, (2, 16, 32)).astype(np.int8)
    got = pycutlass.grouped_matmul(xs, ws.swapaxes(1, 2), offs=[4, 9])
    assert got.dtype == np.int32
    assert np.array_equal(got[:4], xs[:4].astype(np.int64) @ ws[0].T)
    assert np.array_equal(got[4:], xs[4:].astype(np.int64) @ ws[1].T)
    with pytest.raises(ArgumentError, match=r"w\.mT of weights by rows"):
        pycutlass.grouped_matmul(xs, np.ascontiguousarray(ws.swapaxes(1, 2)), offs=[4, 9])


def test_float32_is_rounded_only_where_that_is_asked_for() -> None:
    xs, ws = [random((16, 64))], [random((64, 16))]
    exact = products(xs, ws)[0]
    errors = [np.abs(pycutlass.grouped_matmul(xs, ws, precision=how)[0] - exact).max() for how in (None, "tf32")]
    assert errors[0] < 1e-4 < errors[1]


def test_copies_are_taken_only_where_that_is_allowed() -> None:
    xs, ws = [random((4, 8)), random((8, 4)).T], [random((8, 3)), random((8, 5))]
    with pytest.raises(ArgumentError, match=r"some of xs lie by rows and others by columns.*allow_copy=True"):
        pycutlass.grouped_matmul(xs, ws)
    check(pycutlass.grouped_matmul(xs, ws, allow_copy=True), products(xs, ws))
    wide = random((6, 16))[:, ::2]
    with pytest.raises(ArgumentError, match=r"xs of shape .* has strides .*allow_copy=True"):
        pycutlass.grouped_matmul(wide, random((2, 8, 3)), offs=[1, 6])
    stacked = random((2, 8, 6))[:, :, ::2]
    got = pycutlass.grouped_matmul(wide, stacked, offs=[1, 6], allow_copy=True)
    check(parts(got, [1, 6], 0), products(parts(wide, [1, 6], 0), stacked))
    deep, by_columns = random((2, 4, 16))[:, :, ::2], np.empty((5, 4), np.float32).T
    with pytest.raises(ArgumentError, match="xs of shape"):
        pycutlass.grouped_matmul(deep, random((2, 8, 3)))
    check(pycutlass.grouped_matmul(deep, ones := random((2, 8, 3)), allow_copy=True), products(deep, ones))
    rows, ends, sources = random((4, 8)), [3, 4], np.array(random((4, 5)), order="F")
    ws = random((2, 8, 5))
    exact = [d + c for d, c in zip(products(parts(rows, ends, 0), ws), parts(sources, ends, 0), strict=True)]
    with pytest.raises(ArgumentError, match="cs does not lie by rows"):
        pycutlass.grouped_matmul(rows, ws, sources, offs=ends, beta=1)
    for out in (None, by_columns):
        got = pycutlass.grouped_matmul(rows, ws, sources, offs=ends, beta=1, out=out, allow_copy=True)
        check(parts(got, ends, 0), exact)
    strided = [random((8, 16))[:, ::2]]
    with pytest.raises(ArgumentError, match=r"xs\[0\] of shape \(8, 8\) has strides \(16, 2\)"):
        pycutlass.grouped_matmul(strided, [random((8, 4))])


X, W = np.ones((6, 8), np.float32), np.ones((3, 8, 4), np.float32)
XS, WS = [np.ones((2, 8), np.float32), np.ones((4, 8), np.float32)], [np.ones((8, 4), np.float32)] * 2
OFFS = [1, 3, 6]
REFUSED: list[tuple[str, Any]] = [
    (r"offs\[1\] is 4, and offs\[2\] is 3", lambda: pycutlass.grouped_matmul(X, W, offs=[1, 4, 3])),
    (r"begins at 0, and offs\[0\] is -1", lambda: pycutlass.grouped_matmul(X, W, offs=[-1, 4, 6])),
    (r"offs\[2\] is 7, beyond the 6", lambda: pycutlass.grouped_matmul(X, W, offs=[1, 4, 7])),
    ("offs must be of int32, got float64", lambda: pycutlass.grouped_matmul(X, W, offs=np.array([1.0, 3.0, 6.0]))),
    (r"offs\[1\] must be an integer", lambda: pycutlass.grouped_matmul(X, W, offs=[1, 3.5, 6])),
    (r"offs\[0\] must be an integer", lambda: pycutlass.grouped_matmul(X, W, offs=[True, 3, 6])),
    ("offs must have one dimension", lambda: pycutlass.grouped_matmul(X, W, offs=np.ones((3, 1), np.int32))),
    ("offs must be a list of integers", lambda: pycutlass.grouped_matmul(X, W, offs=6)),
    ("xs is of 2 problems and ws of 3", lambda: pycutlass.grouped_matmul(X, W, offs=[3, 6])),
    ("xs is of 2 problems and ws of 1", lambda: pycutlass.grouped_matmul(XS, WS[:1])),
    ("offs, which divides it, is missing", lambda: pycutlass.grouped_matmul(X, W)),
    ("no matrix that it divides", lambda: pycutlass.grouped_matmul(XS, WS, offs=[2, 6])),
    ("no matrix that it divides", lambda: pycutlass.grouped_matmul(W, W.swapaxes(1, 2), offs=OFFS)),
    ("different K in problem 0: 8 columns of xs and 2 rows", lambda: pycutlass.grouped_matmul(XS, XS)),
    ("xs is float32 and ws is float64", lambda: pycutlass.grouped_matmul(X, W.astype(np.float64), offs=OFFS)),
    ("xs must be of one type", lambda: pycutlass.grouped_matmul([XS[0], XS[1].astype(np.float16)], WS)),
    (r"xs\[1\] must be a matrix", lambda: pycutlass.grouped_matmul([XS[0], XS[1][0]], WS)),
    ("must be a list of matrices, a matrix, or a stack", lambda: pycutlass.grouped_matmul(X[0], W, offs=OFFS)),
    ("ws must have one N", lambda: pycutlass.grouped_matmul(X, [WS[0], WS[0][:, :2]], offs=[1, 6])),
    ("beta is 0", lambda: pycutlass.grouped_matmul(X, W, X[:, :4], offs=OFFS)),
    ("cs is missing", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, beta=1)),
    ("cs is given and beta is 0", lambda: pycutlass.grouped_matmul(X, W, X[:, :4], offs=OFFS, bias=X[0, :4])),
    (r"cs must have shape \(6, 4\), got \(6, 3\)", lambda: pycutlass.grouped_matmul(X, W, X[:, :3], offs=OFFS, beta=1)),
    ("bias must have 4 elements", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, bias=X[0, :3])),
    ("bias is of 2 problems", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, bias=X[:2, :4])),
    ("bias must be a vector", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, bias=W)),
    (r"out must have shape \(6, 4\)", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, out=X.copy())),
    (
        r"out must have shape \(2, 4\) in problem 0",
        lambda: pycutlass.grouped_matmul(XS, WS, out=[x.copy() for x in XS]),
    ),
    ("out is of 1 problem", lambda: pycutlass.grouped_matmul(XS, WS, out=[np.ones((2, 4), np.float32)])),
    ("out must be a matrix or a list", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, out=W.copy())),
    (r"^out\[[01]\] overlaps out\[[01]\] ", lambda: pycutlass.grouped_matmul(XS, WS, out=[SHARED[:2], SHARED[1:]])),
    ("^out overlaps xs .*, xs at .* Give out ", lambda: pycutlass.grouped_matmul(CUBE, OTHER, out=CUBE)),
    ("^out overlaps ws ", lambda: pycutlass.grouped_matmul(OTHER, CUBE, out=CUBE)),
    ("^out overlaps cs ", lambda: pycutlass.grouped_matmul(OTHER, OTHER, LONG[1:], beta=1, out=LONG[:3])),
    ("^out overlaps bias ", lambda: pycutlass.grouped_matmul(OTHER, OTHER, bias=CUBE[1, 2], out=CUBE)),
    ("precision must be one of", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, precision="half")),
    ("has no keyword of", lambda: pycutlass.grouped_matmul(X, W, of=OFFS)),
    ("epilogue must be", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, epilogue="relu")),
    (r"plan must be a pycutlass\.GroupedGemm", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, plan=GEMM)),
    ("allow_copy must be True or False", lambda: pycutlass.grouped_matmul(X, W, offs=OFFS, allow_copy=1)),
    ("ws is missing", lambda: pycutlass.grouped_matmul(X, None, offs=OFFS)),
]
SHARED = np.ones((5, 4), np.float32)
CUBE, OTHER, LONG = (np.ones((problems, 4, 4), np.float32) for problems in (3, 3, 4))
GEMM = pycutlass.Gemm(X, W[0])


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    xs, ws, offs = torch.randn(9, 8), torch.randn(3, 8, 16), torch.tensor([2, 2, 7], dtype=torch.int32)
    got = pycutlass.grouped_matmul(xs, ws, offs=offs)
    assert isinstance(got, torch.Tensor)
    exact = torch.cat([xs[:2] @ ws[0], xs[2:7] @ ws[2], torch.zeros(2, 16)])
    torch.testing.assert_close(got, exact, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        got[:7], torch._grouped_mm(xs.bfloat16(), ws.bfloat16(), offs).float()[:7], atol=0.2, rtol=0.1
    )
    wrong = {"offs": offs.long().tolist(), "bias": torch.randn(3, 16, requires_grad=True)}
    with pytest.raises(ArgumentError, match=r"bias\[0\] requires a gradient"):
        pycutlass.grouped_matmul(xs, ws, **wrong)
    parameters = [each.clone().requires_grad_(True) for each in ws]
    with pytest.raises(ArgumentError, match=r"ws\[0\]\.detach"):
        pycutlass.grouped_matmul(xs, parameters, offs=offs)
    with torch.no_grad():
        torch.testing.assert_close(pycutlass.grouped_matmul(xs, parameters, offs=offs), got)


def test_plans_are_kept_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_plans", KeptPlans(2, "grouped_matmul"))
    for rows in (4, 4, 5, 6):
        pycutlass.grouped_matmul([np.ones((rows, 8), np.float32)], WS[:1])
    assert len(module._plans) == 1, "problems of any size are of one kind"
    for dtype in (np.float16, np.float64):
        pycutlass.grouped_matmul([np.ones((4, 8), dtype)], [np.ones((8, 4), dtype)])
    assert len(module._plans) == 2
    for factor in (2.0, 3.0):  # a scalar belongs to a plan, which is not kept
        got = pycutlass.grouped_matmul(XS, WS, epilogue=times, epilogue_inputs={"factor": factor}, precision="tf32")
        assert got[0][0, 0] == 8 * factor
    assert len(module._plans) == 2


@pycutlass.epilogue_function
def times(accum: Any, factor: Scalar = 1.0) -> Any:
    return accum * factor


def test_a_plan_has_its_own_options() -> None:
    plan = pycutlass.GroupedGemm(X, W, offs=OFFS)
    np.testing.assert_allclose(pycutlass.grouped_matmul(X, W, offs=OFFS, plan=plan), np.full((6, 4), 8), rtol=1e-5)
    check(pycutlass.grouped_matmul(XS, WS, plan=plan), products(XS, WS))
    for option in ({"alpha": 2}, {"precision": "tf32"}, {"out_dtype": np.float32}, {"epilogue": pycutlass.relu}):
        with pytest.raises(ArgumentError, match=f"{next(iter(option))} and a plan are given"):
            pycutlass.grouped_matmul(X, W, offs=OFFS, plan=plan, **option)
    with pytest.raises(ArgumentTypeError, match=r"alpha must be a number.*: pass alpha\[0\]"):
        pycutlass.grouped_matmul(X, W, offs=OFFS, alpha=[1])


@pycutlass.epilogue_function
def with_sums(accum: Any, residual: Tensor) -> Any:
    shifted = accum + residual
    return {"D": shifted, "row_sum": pycutlass.epilogue.sum(shifted, axis=1)}


def test_what_an_epilogue_writes_beside_the_result() -> None:
    offs, xs, ws = [4, 9], random((9, 16), np.float16), random((2, 16, 8), np.float16)
    residual, sums = random((9, 8), np.float16), np.full(9, np.nan, np.float32)
    inputs = {"residual": residual, "row_sum": sums}
    got = pycutlass.grouped_matmul(xs, ws, offs=offs, epilogue=with_sums, epilogue_inputs=inputs)
    exact = np.concatenate(products(parts(xs, offs, 0), ws)) + residual
    check([got], [exact], 2e-2)
    check([sums], [exact.sum(axis=1)], 5e-2)
    got = pycutlass.grouped_matmul(xs, ws, offs=[9, 9], epilogue=with_sums, epilogue_inputs=inputs)
    check([sums], [(xs.astype(np.float64) @ ws[0] + residual).sum(axis=1)], 5e-2)


@pycutlass.epilogue_function
def with_totals(accum: Any) -> Any:
    return {"D": accum, "totals": pycutlass.epilogue.sum(accum, axis=0)}


def test_a_problem_without_elements_has_no_totals() -> None:
    """Nothing would be left in them."""
    xs, ws, totals = random((9, 16), np.float16), random((2, 16, 8), np.float16), np.full((2, 8), np.nan, np.float32)
    how = {"epilogue": with_totals, "epilogue_inputs": {"totals": totals}}
    pycutlass.grouped_matmul(xs, ws, offs=[4, 9], **how)  # type: ignore[arg-type]
    check(totals, [each.sum(axis=0) for each in products(parts(xs, [4, 9], 0), ws)], 5e-2)
    for ends in ([9, 9], [0, 0]):
        with pytest.raises(ArgumentError, match="leave such problems out"):
            pycutlass.grouped_matmul(xs, ws, offs=ends, **how)  # type: ignore[arg-type]
