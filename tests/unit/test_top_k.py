"""The k largest elements of each row and their columns, as routers of a mixture of experts select them."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from epilogue_functions import selecting
from routers import K, M, N, _Mode, f16, f32, make, route

import pycutlass
from pycutlass import (
    GemmProblemSize,
    ReductionOperation,
    TensorDescription,
    cutlass,
    epilogue,
)
from pycutlass.epilogue import Family, Row, Scalar, pairs, top_k
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError

# What it means


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("kind", ["integers", "normal", "infinities and NaN"])
def test_it_is_a_stable_sort_with_nan_first(kind: str, k: int) -> None:
    random = np.random.default_rng(k)
    x = random.integers(-2, 3, (3, 5, 9)).astype(float) if kind == "integers" else random.standard_normal((3, 5, 9))
    if kind.startswith("inf"):
        x[random.random(x.shape) < 0.3] = np.nan
        x[random.random(x.shape) < 0.2] = -np.inf
        x[random.random(x.shape) < 0.2] = np.inf
    values, indices = top_k(x, k)
    assert indices.dtype == np.int32 and values.dtype == x.dtype
    found = selecting(k).numpy(x)
    np.testing.assert_array_equal(found["values"], values)
    np.testing.assert_array_equal(found["indices"], indices)
    for row, line, chosen in zip(x.reshape(-1, 9), values.reshape(-1, k), indices.reshape(-1, k), strict=True):
        order = sorted(range(9), key=lambda i: (row[i] == row[i], -row[i] if row[i] == row[i] else 0.0, i))
        assert chosen.tolist() == order[:k]
        np.testing.assert_array_equal(line, row[chosen])
    of_torch = torch.from_numpy(x).topk(k).values.numpy()
    np.testing.assert_array_equal(values, of_torch)


def test_zeros_of_two_signs_are_equal() -> None:
    assert top_k([[-0.0, 0.0, -0.0]], 3)[1].tolist() == [[0, 1, 2]]


def test_it_selects_before_d_is_rounded() -> None:
    operation = make(selecting(2))
    x = np.float32([[1.0, 1.0 + 2.0**-12, 0.0]])
    found = operation.epilogue_functor.evaluate(x, None, {}, {})
    assert found["indices"].tolist() == [[1, 0]] and found["values"].tolist() == [[1.0 + 2.0**-12, 1.0]]


def test_a_row_vector_alone_is_selected_from_for_each_row() -> None:
    @pycutlass.epilogue_function
    def f(accum: Any, bias: Row) -> Any:
        return {"D": accum, "experts": top_k(bias, 1)[1]}

    assert f.numpy(np.zeros((2, 3)), bias=[0, 2, 1])["experts"].tolist() == [[1], [1]]


def test_equal_functions_are_equal() -> None:
    def again(accum: Any, bias: Row) -> Any:
        t = accum + bias
        found = top_k(t, 2)
        return {"D": t, "values": found[0], "experts": found[1]}

    def turned(accum: Any, bias: Row) -> Any:
        t = accum + bias
        experts, values = top_k(t, 2)
        return {"D": t, "values": values, "experts": experts}

    def three(accum: Any, bias: Row) -> Any:
        t = accum + bias
        values, experts = top_k(t, 3)
        return {"D": t, "values": values, "experts": experts}

    same, *others = (pycutlass.epilogue_function(each) for each in (again, turned, three))
    assert same == route == pickle.loads(pickle.dumps(route)) and hash(same) == hash(route)
    assert make(same).emit() == make().emit()
    assert route not in others and len({make(each).emit() for each in (route, *others)}) == 3


def test_values_or_indices_are_returned_alone() -> None:
    @pycutlass.epilogue_function
    def first(accum: Any) -> Any:
        _, best = top_k(accum, 1)
        return {"D": accum, "best": best}

    functor = first(f16, 8)
    (port,) = functor.outputs
    assert (port.form, port.selected, port.tag) == ("top_k", 1, cutlass.int32)
    assert "pycutlass::TopK<1, pycutlass::List<>, pycutlass::List<pycutlass::Matrix<" in make(first).emit()
    assert first.numpy([[1.0, 2.0]])["best"].tolist() == [[1]]


def test_it_is_drawn_with_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "graphviz", None)
    lines = route(f16, 8).visualize().splitlines()
    assert "  %3 = values of top_k(%2, 2)  : (M, 2) float32" in lines
    assert "  %4 = indices of top_k(%2, 2)  : (M, 2) int32" in lines
    assert lines[-2:] == ["  values = %3  : (M, 2) float32", "  experts = %4  : (M, 2) int32"]
    assert "indices of top_k, k=2" in epilogue.drawing.as_dot("route", route.graph, {}, "float32")


def test_cost_counts_what_is_selected() -> None:
    plain = selecting(4)(f16, 8).cost((1000, 64, 32))
    assert plain.written_bytes == 1000 * 4 * (4 + 4) and plain.read_bytes == 0


# What is refused


def _condition(accum: Any) -> Any:
    return {"D": accum, "x": top_k(accum > 0, 2)[0]}


def _used(accum: Any) -> Any:
    values, _ = top_k(accum, 2)
    return values * 2.0


def _used_beside(accum: Any) -> Any:
    values, _ = top_k(accum, 2)
    return accum * values


def _indexed(accum: Any) -> Any:
    values, _ = top_k(accum, 2)
    return {"D": accum, "x": values[:, 0]}


def _of_torch(accum: Any) -> Any:
    return {"D": accum, "x": torch.topk(accum, 2)[0]}


def _as_d(accum: Any) -> Any:
    return top_k(accum, 2)[0]


def _both(accum: Any) -> Any:
    return {"D": accum, "x": top_k(accum, 2)}


def _unused(accum: Any) -> Any:
    top_k(accum, 2)
    return accum


def _other_k_unused(accum: Any) -> Any:
    top_k(accum, 3)
    return {"D": accum, "x": top_k(accum, 2)[0]}


def _of_a_scalar(accum: Any, alpha: Scalar) -> Any:
    return {"D": accum, "x": top_k(alpha, 2)[0]}


def _of_a_reduction(accum: Any) -> Any:
    return {"D": accum, "x": top_k(epilogue.sum(accum, axis=1), 2)[0]}


def _of_itself(accum: Any) -> Any:
    return {"D": accum, "x": top_k(top_k(accum, 3)[0], 2)[0]}


def _nine(accum: Any) -> Any:
    return {"D": accum, "x": top_k(accum, 9)[0]}


def _a_half(accum: Any) -> Any:
    return {"D": accum, "x": top_k(accum, 2.5)[0]}  # type: ignore[arg-type]


def _before_pairs(accum: Any) -> Any:
    even, odd = pairs(accum)
    return {"D": even * odd, "x": top_k(accum, 2)[0]}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_condition, "line .*: top_k takes numbers, and is given a condition: use where"),
        (
            _used,
            r"line .*: what top_k returned is used: the largest of a row .* only be returned, as in values, indices",
        ),
        (_used_beside, "line .*: multiply is given what top_k returned: the largest of a row are known when"),
        (_indexed, r"line .*: what top_k returned is used: the largest of a row"),
        (_of_torch, r"line .*given to torch's topk: use values, indices = pycutlass.epilogue.top_k\(x, k\)"),
        (_as_d, "returns what top_k selects as D: D is the whole matrix, .* as in values, indices = top_k"),
        (lambda accum: epilogue.sum(accum, axis=1), "returns a reduction as D: .* as in return {'D': x, 'total': py"),
        (_both, r"_both returns a tuple as x: .* a name each, as in values, indices = top_k\(x, 2\)"),
        (_unused, r"line .*: the result of top_k is unused"),
        (_other_k_unused, r"line .*: the result of top_k is unused"),
        (_of_a_scalar, "line .*: top_k takes a value that differs from column to column"),
        (_of_a_reduction, "line .*: what sum returned is used: a reduction is complete"),
        (_of_itself, "line .*: what top_k returned is used: the largest of a row"),
        (lambda accum: top_k(accum, 0), "from 1 to 8, .* got k=0: 1 is the least"),
        (lambda accum: top_k(accum, True), "from 1 to 8, .* got k=True: k is an integer that is known when"),
        (_nine, r"line .*: top_k takes k from 1 to 8, .* got k=9: for more, write D"),
        (_a_half, r"line .*: top_k takes k from 1 to 8, .* got k=2.5: k is an integer that is known when"),
        (_before_pairs, "selects the 2 largest of a value with all N columns, to x: .* as in top_k"),
    ],
)
def test_what_has_no_meaning_is_refused(function: Any, said: str) -> None:
    with pytest.raises(DescriptionError, match=said):
        pycutlass.epilogue_function(function)


def test_arrays_that_have_no_rows_of_k() -> None:
    with pytest.raises(ArgumentError, match="top_k takes k of at most the columns of x, which are 1; got k=2"):
        top_k([[1.0]], 2)
    with pytest.raises(ArgumentTypeError, match="top_k takes a value of an epilogue function, or an array"):
        top_k(1.0, 1)
    with pytest.raises(
        ArgumentError, match=r"route selects the 2 largest elements of each row to values, experts, .* at most 1$"
    ):
        route.numpy([[1.0]], bias=[0.0])
    with pytest.raises(ArgumentError, match=r"route makes values, experts of the elements of D, .* has no elements"):
        route.numpy(np.ones((0, 4)), bias=np.ones(4))


def test_types() -> None:
    assert [port.type.short for port in route(f16, 8, values=cutlass.bfloat16).outputs] == ["bf16", "s32"]
    assert [port.type.short for port in route(cutlass.float64, 1).outputs] == ["f64", "s32"]
    with pytest.raises(DescriptionError, match=r"experts, indices that top_k of route returns, are of cutlass.int32"):
        route(f16, 8, experts=f32)
    with pytest.raises(DescriptionError, match="values of route is a top_k, which has no layout: give its type alone"):
        route(f16, 8, values=TensorDescription(f32, cutlass.ColumnMajor, 1))


@pytest.mark.parametrize("family", Family)
def test_who_takes_it(family: Family) -> None:
    said = route(f16, 8).why_not(family)
    begin, end = {
        Family.REDUCTION: ("route has top_k, which selects", "split_k_slices in Mode.Gemm, or stream-K"),
        Family.GEMV: ("route makes values, experts of many elements", "use an Ampere-style or a Hopper-native GEMM"),
    }.get(family, ("", ""))
    assert (said == "") == (begin == "")
    assert said.startswith(begin) and said.endswith(end)


def test_reductions_of_partial_sums_are_refused() -> None:
    C = TensorDescription(f16, cutlass.RowMajor, 8)
    with pytest.raises(DescriptionError, match="route has top_k"):
        ReductionOperation((4, 256), C, f32, None, None, route(f16, 8), 8)
    size = GemmProblemSize(M, N, K, _Mode.GemmSplitKParallel, split_k_slices=2)
    assert (
        "parallel split-K leaves the epilogue to a reduction, which has tiles of its own: use"
        in make().supports(size).reason
    )


def test_rows_of_a_tile_are_rows_of_d() -> None:
    column_major = TensorDescription(f16, cutlass.ColumnMajor, 8)
    for kernel, changes in (
        ("ampere", {"C": column_major}),
        ("hopper", {"C": column_major}),
        ("hopper", {"D": column_major}),
    ):
        with pytest.raises(DescriptionError, match=r"describe D as cutlass.RowMajor; got cutlass.ColumnMajor"):
            make(route, kernel, **changes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16", "float32"])
def test_arrays_of_any_float_have_nan_first_and_zeros_without_a_sign(dtype: str) -> None:
    x = np.array([1, np.nan, 2, -0.0, 0.0, 4], np.float32).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    values, indices = top_k(x[None], 5)
    assert indices.tolist() == [[1, 5, 2, 0, 3]] and values.dtype == x.dtype
    assert np.isnan(values[0, 0].astype(np.float32)) and values[0, 1:].astype(np.float32).tolist() == [4, 2, 1, 0]
    assert not np.signbit(values[0, 4].astype(np.float32))


@pytest.mark.parametrize("use", [lambda i: i == 0, lambda i: i != 0, lambda i: i // 2, lambda i: 0 == i, len, int])
def test_what_is_selected_is_compared_with_nothing(use: Any) -> None:
    def function(accum: Any) -> Any:
        values, indices = top_k(accum, 1)
        return {"D": accum if use(indices) else 2 * accum, "values": values}

    with pytest.raises(DescriptionError, match="can only be returned"):
        pycutlass.epilogue_function(function)
