"""What products in one line are scaled by, numbers and tensors, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import K, M, N, close, integers, positive, product, random

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Scalar, Source, exp, where
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError

A, B = random(M, K), random(K, N)


def own(accum: Any, c: Source, alpha: pycutlass.epilogue.Scalar = 1.0) -> Any:
    return accum * alpha + c


OWN = pycutlass.epilogue_function(own)


SCALES = {
    "numbers": (2.0, -0.5),
    "numbers of NumPy": (np.float32(2), np.float64(-0.5)),
    "one element": (positive(1), positive(1, 1)),
    "no dimensions": (positive(), positive()),
    "vectors": (positive(M), positive(N)),
    "as torch has them": (positive(M, 1), positive(1, N)),
    "a vector and a number": (positive(M), 3.0),
    "a number and a vector": (3, positive(N)),
    "one element and a vector": (positive(1), positive(1, N)),
    "float16": (positive(M, dtype=np.float16), positive(1, dtype=np.float16)),
}


def factor(scales: Any) -> Any:
    left, right = (np.asarray(each, np.float64) for each in scales)
    return (left.reshape(-1, 1) if left.size > 1 else left.reshape(())) * right.reshape(-1)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("operands", ["int8", "float16", "float32", "float64"])
def test_products_are_scaled(kind: str, operands: str) -> None:
    scales = SCALES[kind]
    a, b = (
        (integers(M, K), integers(N, K).T)
        if operands == "int8"
        else (random(*s, dtype=operands) for s in ((M, K), (K, N)))
    )
    dtype = np.float32 if operands == "int8" else np.dtype(operands).type
    exact = product(a, b) * factor(scales)
    close(pycutlass.matmul(a, b, scales=scales), exact, dtype)
    close(pycutlass.matmul(a, b, scales=list(scales), alpha=-2), -2 * exact, dtype)
    c, bias = random(M, N, dtype=dtype), random(N, dtype=dtype)
    got = pycutlass.matmul(a, b, c, beta=0.5, bias=bias, scales=scales, epilogue=pycutlass.relu)
    close(got, np.maximum(exact + 0.5 * c.astype(np.float64) + bias, 0), dtype)
    close(pycutlass.matmul(a, b, bias=bias, scales=scales), exact + bias, dtype)
    close(pycutlass.matmul(a, b, c, beta=2, scales=scales), exact + 2.0 * c.astype(np.float64), dtype)
    into = np.empty((N, M), dtype).T
    assert pycutlass.matmul(a, b, scales=scales, bias=bias, out=into) is into
    close(into, exact + bias, dtype)


def test_floats_of_8_bits_are_scaled() -> None:
    torch = pytest.importorskip("torch")
    a = torch.randn(M, K).to(torch.float8_e4m3fn)
    b = torch.randn(N, K).to(torch.float8_e4m3fn).T
    for scales in ((0.25, 2.0), (torch.tensor(0.25), torch.tensor([2.0])), (torch.rand(M, 1), torch.rand(1, N))):
        got = pycutlass.matmul(a, b, scales=scales)
        assert got.dtype is torch.bfloat16
        left, right = (torch.as_tensor(each).double() for each in scales)
        torch.testing.assert_close(got.double(), left * (a.double() @ b.double()) * right, rtol=1e-2, atol=1e-2)
        half = pycutlass.matmul(a, b, scales=scales, out_dtype=torch.float16)
        torch.testing.assert_close(half.double(), left * (a.double() @ b.double()) * right, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_strided_scales_are_copied_where_that_is_allowed(batch: tuple[int, ...]) -> None:
    a, b = random(*batch, M, K), random(*batch, K, N)
    rows, columns = positive(*batch, 2 * M)[..., ::2], positive(*batch, 1, 3 * N)[..., ::3]
    exact = rows.astype(np.float64)[..., None] * product(a, b) * columns
    close(pycutlass.matmul(a, b, scales=(rows, columns), allow_copy=True), exact)
    with pytest.raises(ArgumentError, match=r"scales\[0\] of shape .* must be contiguous: .*allow_copy=True"):
        pycutlass.matmul(a, b, scales=(rows, columns))


def test_an_int8_result_is_rounded_and_limited() -> None:
    a, b = integers(M, K), integers(N, K).T
    got = pycutlass.matmul(a, b, scales=(positive(M), 0.5), out_dtype=cutlass.int8)
    assert got.dtype == np.int8 and got.max() == 127


def test_scales_of_batches() -> None:
    a, shared, b = random(3, M, K), random(K, N), random(3, K, N)
    column, row = positive(N), positive(3, M)
    for scales in ((row, column), (row[..., None], column[None]), (positive(1), column), (2.0, positive(1))):
        left = np.asarray(scales[0], np.float64)
        left = left.reshape(3, M, 1) if left.size > 1 else left
        exact = left * product(a, shared) * np.asarray(scales[1], np.float64).reshape(-1)
        close(pycutlass.matmul(a, shared, scales=scales), exact)
    of_each = positive(3, N)
    for scales in ((row, of_each), (row[..., None], of_each[:, None]), (positive(M), column), (positive(1), of_each)):
        left, right = (np.asarray(each, np.float64) for each in scales)
        left = left.reshape(-1, M, 1) if left.size > 1 else left
        close(pycutlass.matmul(a, b, scales=scales), left * product(a, b) * right.reshape(-1, 1, N))
    vector = random(K)
    close(pycutlass.matmul(vector, shared, scales=(positive(1) * 0 + 2, column)), 2 * product(vector, shared) * column)
    assert pycutlass.matmul(a[:0], shared, scales=(row[:0], column)).shape == (0, M, N)


def test_scales_stay_what_they_are_at_each_product() -> None:
    """Plans are kept, and scales are not: neither values nor types are those of an earlier product."""
    for _ in range(3):
        for dtype in (np.float32, np.float16):
            scales = positive(M, dtype=dtype), positive(1, dtype=dtype)
            close(pycutlass.matmul(A, B, scales=scales), product(A, B) * factor(scales))


REFUSED_SCALES: list[tuple[str, Any]] = [
    ("must be a pair", 2.0),
    ("must be a pair", (1.0,)),
    ("must be a pair", "ab"),
    ("must be a pair", positive(2)),
    (r"scales\[0\] must be a number or a tensor", (None, 1.0)),
    (r"scales\[1\] must be a number or a tensor", (1.0, True)),
    (r"scales\[1\] must be a tensor", (1.0, "two")),
    (r"scales\[0\] must be a real number", (np.complex64(1), 1.0)),
    (r"scales\[1\] must be .* \(1, 16\); got \(16, 1\): pass scales\[1\]\.T$", (1.0, positive(N, 1))),
    (r"scales\[0\] must be one number, or one for each row of a.*\(12,\) or \(12, 1\); got \(16,\)", (positive(N), 1)),
    (r"one for each column of b.*\(16,\) or \(1, 16\); got \(12,\)", (1.0, positive(M))),
    (r"got \(1, 12\)", (positive(1, M), 1.0)),
    (r"got \(12, 16\)", (positive(M, N), 1.0)),
    ("must be contiguous: pass a copy, or allow_copy=True", (positive(2 * M)[::2], 1.0)),
    ("got float64: convert it", (positive(M, dtype=np.float64), 1.0)),
    ("got int32: convert it", (1.0, np.ones(N, np.int32))),
    (r"scales\[1\] is of int64", (1.0, np.ones(N, np.int64))),
]


@pytest.mark.parametrize(("message", "scales"), REFUSED_SCALES, ids=range(len(REFUSED_SCALES)))
def test_scales_that_are_refused(message: str, scales: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        pycutlass.matmul(A, B, scales=scales)


def test_what_else_is_refused_of_scales() -> None:
    a, b = integers(M, K), integers(N, K).T
    for call, word in (
        (lambda: pycutlass.matmul(a, b, scales=(0.5, 2), out_dtype=cutlass.int32), "out_dtype=cutlass.float32"),
        (lambda: pycutlass.matmul(a, b, scales=(positive(M), 2), out=np.empty((M, N), np.int32)), "int32"),
        (lambda: pycutlass.matmul(A, B, scales=(positive(M), 1), epilogue=OWN), "scales and the epilogue"),
        (lambda: pycutlass.matmul(A, B, scales=(1, 1), plan=pycutlass.Gemm(A, B)), "scales and a plan"),
        (lambda: pycutlass.matmul(A, B, scales=(2, 1), alpha=positive(1)), "alpha must be a number"),
        (
            lambda: pycutlass.matmul(A, B, scales=(positive(M), 1), epilogue_inputs={"row_scale": positive(M)}),
            "which are the same",
        ),
    ):
        with pytest.raises(PyCutlassError, match=word):
            call()


def test_scales_that_require_a_gradient_or_are_elsewhere_are_refused() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.randn(M, K), torch.randn(K, N)
    with pytest.raises(ArgumentError, match=r"scales\[0\] requires a gradient"):
        pycutlass.matmul(a, b, scales=(torch.rand(M, requires_grad=True), 1.0))
    with pytest.raises(ArgumentTypeError, match="meta"):
        pycutlass.matmul(a, b, scales=(torch.rand(M, device="meta"), 1.0))


@pytest.mark.parametrize("alpha", [np.float32(2), np.int64(2), True, 0.5])
def test_alpha_is_any_number_beside_scales_that_are_numbers(alpha: Any) -> None:
    a, b = random(M, K), random(K, N)
    close(pycutlass.matmul(a, b, alpha=alpha, scales=(3, 0.5)), float(alpha) * 1.5 * product(a, b))


def test_scales_are_no_scalar_of_a_function() -> None:
    """Whose alpha may be anything, such as the slope of an activation."""

    @pycutlass.epilogue_function
    def elu(accum: Any, alpha: Scalar = 1.0) -> Any:
        return where(accum > 0, accum, alpha * (exp(accum) - 1))

    a, b = random(M, K), random(K, N)
    with pytest.raises(ArgumentError, match=r"scales and the epilogue .* says itself what it computes"):
        pycutlass.matmul(a, b, scales=(3.0, 1.0), epilogue=elu)
    pycutlass.matmul(a, b, scales=(1.0, 1.0), epilogue=elu)


def test_alpha_that_is_no_number_beside_scales() -> None:
    a, b = random(M, K), random(K, N)
    for alpha in ("2", 2j, np.ones(2)):
        with pytest.raises(ArgumentTypeError, match="alpha must be a number"):
            pycutlass.matmul(a, b, alpha=alpha, scales=(3, 0.5))
    with pytest.raises(ArgumentError, match="beyond float64"):
        pycutlass.matmul(a, b, alpha=10**400, scales=(3, 0.5))


@pytest.mark.parametrize(
    ("a", "b"), [((0, 8), (8, 5)), ((3, 8), (8, 0)), ((0, 0), (0, 0)), ((2, 0, 8), (8, 5)), ((0, 3, 8), (8, 5))]
)
def test_scales_of_a_product_without_elements(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    scales = np.ones(a[:-1], np.float32), np.ones(b[-1], np.float32)
    got = pycutlass.matmul(np.ones(a, np.float32), np.ones(b, np.float32), scales=scales)
    assert got.shape == (*a[:-1], b[-1])


def test_scales_of_one_line_may_have_any_step() -> None:
    """As a batch that is the last axis has them: an extent of 1 says nothing about its stride."""
    a, b = np.ones((3, 1, 8), np.float32), np.ones((3, 8, 2), np.float32)
    scale = np.lib.stride_tricks.as_strided(np.array([1, 2, 3], np.float32), (3, 1), (4, 12))
    wanted = 8 * scale[..., None] * np.ones((1, 1, 2), np.float32)
    for given in (scale, scale[..., None]):
        np.testing.assert_allclose(pycutlass.matmul(a, b, scales=(given, 1.0)), wanted)
