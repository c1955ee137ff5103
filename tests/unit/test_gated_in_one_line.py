"""Epilogues that combine pairs of columns, in products of one line and in plans: with results that the caller gives."""

from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass.epilogue import Row
from pycutlass.epilogue.fusions import bias_swiglu, geglu, swiglu
from pycutlass.errors import ArgumentError, PyCutlassError

RNG = np.random.default_rng(13)
TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-11}
ACTIVATIONS = {swiglu: pycutlass.silu, geglu: pycutlass.gelu}


def random(*shape: int, dtype: Any = np.float16) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def exact(a: Any, b: Any, epilogue: Any = swiglu, added: Any = 0) -> Any:
    x = np.matmul(a.astype(np.float64), b.astype(np.float64)) + added
    return ACTIVATIONS[epilogue].numpy(x[..., 0::2]) * x[..., 1::2]


def close(got: Any, right: Any) -> None:
    tolerance = TOLERANCE[str(got.dtype)]
    assert got.shape == right.shape
    np.testing.assert_allclose(got.astype(np.float64), right, rtol=tolerance, atol=16 * tolerance)


def poisoned(*shape: int, dtype: Any = np.float16) -> Any:
    return np.full(shape, 99, dtype)


@pytest.mark.parametrize("columns", [4, 8, 12, 16, 24, 28, 40, 72, 128])
@pytest.mark.parametrize("epilogue", [swiglu, geglu])
def test_any_number_of_pairs(columns: int, epilogue: Any) -> None:
    """D is as aligned as its own columns are, of which there are half as many."""
    a, b = random(70, 16), random(16, columns)
    right = exact(a, b, epilogue)
    close(pycutlass.matmul(a, b, epilogue=epilogue), right)
    out = poisoned(70, columns // 2)
    assert pycutlass.matmul(a, b, epilogue=epilogue, out=out) is out
    close(out, right)
    w = np.ascontiguousarray(b.T)
    assert pycutlass.linear(a, w, activation=epilogue, out=out) is out
    close(out, right)
    plan = pycutlass.Gemm(a, b, epilogue=epilogue, out=out)
    for each in (plan, pickle.loads(pickle.dumps(plan))):
        out[...] = 99
        for rows in (70, 3):
            assert each.run(a[:rows], b, out=out[:rows]) is not None
            close(out[:rows], right[:rows])
        close(each.run(a, b), right)


@pytest.mark.parametrize(
    ("a", "b"), [((3, 5, 16), (16, 24)), ((3, 5, 16), (3, 16, 24)), ((2, 3, 5, 16), (2, 3, 16, 24)), ((16,), (16, 24))]
)
def test_stacks_and_vectors(a: Any, b: Any) -> None:
    left, right = random(*a), random(*b)
    result = exact(left, right)
    out = poisoned(*result.shape)
    assert pycutlass.matmul(left, right, epilogue=swiglu, out=out) is out
    close(out, result)
    torch = pytest.importorskip("torch")
    there = torch.full(result.shape, 99, dtype=torch.float16)
    given = torch.from_numpy(left), torch.from_numpy(right)
    for _ in range(2):
        assert pycutlass.matmul(*given, epilogue=swiglu, out=there) is there
        close(there.numpy(), result)


@pytest.mark.parametrize(("dtype", "precision"), [(np.float32, "3xtf32"), (np.float64, None)])
def test_other_types(dtype: Any, precision: Any) -> None:
    a, b = random(33, 16, dtype=dtype), random(16, 24, dtype=dtype)
    out = poisoned(33, 12, dtype=dtype)
    close(pycutlass.matmul(a, b, epilogue=swiglu, precision=precision, out=out), exact(a, b))
    groups = [a, a[:5]], [b, b[:, :8]]
    for got, right in zip(
        pycutlass.grouped_matmul(*groups, epilogue=swiglu, precision=precision),
        [exact(*each) for each in zip(*groups, strict=True)],
        strict=True,
    ):
        close(got, right)


def test_padded_rows_of_a_result() -> None:
    a, b, wide = random(20, 16), random(16, 24), poisoned(20, 20)
    pycutlass.matmul(a, b, epilogue=swiglu, out=wide[:, 4:16])
    close(wide[:, 4:16], exact(a, b))
    assert (wide[:, :4] == 99).all() and (wide[:, 16:] == 99).all(), "nothing is written beside it"


def test_a_bias_is_a_row_of_the_function() -> None:
    a, b, bias = random(20, 16), random(16, 24), random(24)
    out = poisoned(20, 12)
    pycutlass.matmul(a, b, epilogue=bias_swiglu, epilogue_inputs={"bias": bias}, out=out)
    close(out, exact(a, b, added=bias))
    with pytest.raises(ArgumentError, match=r"reads one of its own: pass it in epilogue_inputs=\{\"bias\": bias\}"):
        pycutlass.matmul(a, b, bias=bias, epilogue=bias_swiglu)


def test_groups_write_to_stacks_and_lists() -> None:
    xs, ws = random(3, 5, 16), random(3, 16, 24)
    out = poisoned(3, 5, 12)
    assert pycutlass.grouped_matmul(xs, ws, epilogue=swiglu, out=out) is out
    close(out, exact(xs, ws))
    listed = [poisoned(5, 12) for _ in range(3)]
    assert pycutlass.grouped_matmul(list(xs), list(ws), epilogue=swiglu, out=listed) is listed
    close(np.stack(listed), exact(xs, ws))


def test_a_result_by_columns_is_copied_where_that_is_allowed() -> None:
    a, b, out = random(20, 16), random(16, 24), poisoned(12, 20).T
    for call in (
        lambda: pycutlass.matmul(a, b, epilogue=swiglu, out=out),
        lambda: pycutlass.Gemm(a, b, epilogue=swiglu, out=out),
    ):
        with pytest.raises(ArgumentError, match="pass an out whose rows are adjacent"):
            call()
    assert pycutlass.matmul(a, b, epilogue=swiglu, out=out, allow_copy=True) is out
    close(out, exact(a, b))


@pycutlass.epilogue_function
def with_row(accum: Any, bias: Row) -> Any:
    even, odd = pycutlass.epilogue.pairs(accum + bias)
    return even * odd


A, B = random(20, 16), random(16, 24)
F32 = A.astype(np.float32), B.astype(np.float32)
REFUSED: list[tuple[str, Any]] = [
    (
        r"out must have shape \(20, 12\), got \(20, 24\)",
        lambda: pycutlass.matmul(A, B, epilogue=swiglu, out=poisoned(20, 24)),
    ),
    ("a multiple of 4 columns.*columns of zeros", lambda: pycutlass.matmul(A, B[:, :6].copy(), epilogue=swiglu)),
    (
        "a multiple of 4 columns, and has 9 columns. Pad b with 3 columns of zeros",
        lambda: pycutlass.matmul(A, B[:, :9].copy(), epilogue=swiglu),
    ),
    (
        "a multiple of 4 columns, and has 9 columns. Pad b with 3 columns of zeros",
        lambda: pycutlass.Gemm(A, B[:, :9].copy(), epilogue=swiglu).operation,
    ),
    (
        "a multiple of 4 columns, and has 1 column. Pad b with 3 columns of zeros",
        lambda: pycutlass.matmul(A, B[:, 0].copy(), epilogue=swiglu),
    ),
    (
        r"a multiple of 4 columns, and has 9 columns. Pad ws\[0\] with 3 columns of zeros",
        lambda: pycutlass.grouped_matmul([A], [B[:, :9].copy()], epilogue=swiglu),
    ),
    ("single elements: pass precision='3xtf32' or 'tf32'", lambda: pycutlass.matmul(*F32, epilogue=swiglu)),
    ("multiples of 2 elements", lambda: pycutlass.matmul(A, B, epilogue=swiglu, out=poisoned(20, 13)[:, :12])),
    ("multiples of 2 elements", lambda: pycutlass.matmul(A, B, epilogue=swiglu, out=poisoned(241)[1:].reshape(20, 12))),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=range(len(REFUSED)))
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


PRODUCTS: dict[str, Any] = {
    "matmul": lambda a, b, **out: pycutlass.matmul(a, b, epilogue=swiglu, **out),
    "Gemm": lambda a, b, **out: pycutlass.Gemm(a, b, epilogue=swiglu, **out).run(a, b, **out),
    "grouped_matmul": lambda a, b, out=None: pycutlass.grouped_matmul(
        [a], [b], epilogue=swiglu, out=None if out is None else [out]
    )[0],
}


@pytest.mark.parametrize("columns", [6, 9, 10, 1002])
@pytest.mark.parametrize("name", PRODUCTS)
def test_as_many_columns_are_padded_as_is_said(name: str, columns: int) -> None:
    compute, a, b = PRODUCTS[name], A, random(16, columns)
    with pytest.raises(ArgumentError) as caught:
        compute(a, b)
    said = re.search(r"Pad \S+ with (\d+) columns? of zeros, for an out of (\d+) columns", str(caught.value))
    assert said is not None, caught.value
    added, left = map(int, said.groups())
    padded, pairs = np.pad(b, ((0, 0), (0, added))), columns // 2
    for made in (compute(a, padded), compute(a, padded, out=poisoned(20, left))):
        assert made.shape == (20, left)
        close(made[:, :pairs], exact(a, b[:, : 2 * pairs]))


def test_numbers_of_columns_by_fours_are_taken_by_every_type() -> None:
    for dtype, columns in itertools.product((np.float16, np.float64), range(4, 40, 4)):
        a, b = random(9, 8, dtype=dtype), random(8, columns, dtype=dtype)
        close(pycutlass.matmul(a, b, epilogue=geglu), exact(a, b, geglu))
