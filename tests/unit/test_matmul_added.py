"""What products in one line are scaled by and added to: scales, c and a bias, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Source, activations
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError

RNG = np.random.default_rng(11)
M, N, K = 12, 16, 32
ACTIVATIONS = [None, *(getattr(activations, name) for name in activations.__all__ if name[0].islower())]
ACTIVATIONS = [each for each in ACTIVATIONS if each is None or isinstance(each, type)]


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def integers(*shape: int) -> Any:
    return RNG.integers(-8, 9, shape).astype(np.int8)


def positive(*shape: int, dtype: Any = np.float32) -> Any:
    return (0.5 + RNG.random(shape)).astype(dtype)


def product(a: Any, b: Any) -> Any:
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


def close(got: Any, exact: Any, dtype: Any = np.float32) -> None:
    tolerance = {np.float16: 4e-3, np.float32: 2e-5, np.float64: 1e-12}[dtype]
    assert got.shape == exact.shape and got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=tolerance, atol=16 * tolerance)


# c and bias


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda each: getattr(each, "__name__", "none"))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_c_and_a_bias_are_added_in_one_kernel(activation: Any, dtype: Any) -> None:
    a, b, c, bias = (random(*shape, dtype=dtype) for shape in ((M, K), (K, N), (M, N), (N,)))
    x = 0.5 * product(a, b) - 2.0 * c.astype(np.float64) + bias
    exact = x if activation is None else activation.numpy(x)
    got = pycutlass.matmul(a, b, c, alpha=0.5, beta=-2, bias=bias, epilogue=activation)
    close(got, exact, dtype)
    plan = pycutlass.Gemm(a, b, c, alpha=0.5, beta=-2, bias=bias, epilogue=activation)
    assert len(plan.candidate.kernels) == 1
    close(plan.run(a, b, c, bias=bias), exact, dtype)
    close(plan.run(a, b, c, epilogue_inputs={}, bias=bias), exact, dtype)
    close(pycutlass.linear(a, np.ascontiguousarray(b.T), bias, activation, c=c, alpha=0.5, beta=-2), exact, dtype)


@pytest.mark.parametrize(
    ("a", "b"), [((M, K), (K, N)), ((3, M, K), (K, N)), ((3, M, K), (3, K, N)), ((K,), (K, N)), ((M, K), (K,))]
)
def test_they_have_the_shape_of_the_product(a: Any, b: Any) -> None:
    left, right = random(*a), random(*b)
    exact = product(left, right)
    columns = 1 if len(b) == 1 else N
    c, bias = random(*exact.shape), random(columns)
    added = exact + 3 * c.astype(np.float64) + (bias[0] if columns == 1 else bias)
    close(pycutlass.matmul(left, right, c, beta=3, bias=bias), added)


def test_a_bias_of_each_column_is_one_whatever_the_layout_of_out() -> None:
    a, b, bias, c = random(N, K), random(K, N), random(N), random(N, N)
    for out in (np.empty((N, N), np.float32), np.empty((N, N), np.float32).T):
        for source in ({"bias": bias}, {"c": bias}):
            pycutlass.matmul(a, b, out=out, **source)
            close(out, product(a, b) + bias)
        pycutlass.matmul(a, b, bias=bias, beta=-2, out=out, epilogue=pycutlass.relu)
        close(out, np.maximum(product(a, b) - 2.0 * bias, 0))
        like_out = np.asarray(c, order="C" if out.flags.c_contiguous else "F")  # no kernel reads C in another layout
        pycutlass.matmul(a, b, like_out, beta=2, bias=bias, out=out)
        close(out, product(a, b) + 2.0 * c + bias)


def test_leaky_relu_has_its_slope() -> None:
    a, b, c, bias = random(M, K), random(K, N), random(M, N), random(N)
    x = product(a, b) + c + bias
    for slope in (0.2, 0.5):
        how = {"epilogue": pycutlass.leaky_relu, "epilogue_inputs": {"leaky_alpha": slope}}
        close(pycutlass.matmul(a, b, c, beta=1, bias=bias, **how), np.where(x > 0, x, slope * x))


def test_plans_with_both_are_pickled_and_take_any_m() -> None:
    import pickle

    a, b, c, bias = random(M, K), random(K, N), random(M, N), random(N)
    plan = pickle.loads(pickle.dumps(pycutlass.Gemm(a, b, c, beta=1, bias=bias)))
    for rows in (M, 1, 5):
        close(plan.run(a[:rows], b, c[:rows], bias=bias), product(a[:rows], b) + c[:rows] + bias)
    alone = pycutlass.Gemm(a, b, bias=bias)
    close(alone.run(a, b, bias=bias), product(a, b) + bias)
    close(alone.run(a, b, bias), product(a, b) + bias)
    for call, word in (
        (lambda: plan.run(a, b, c), "reads bias"),
        (lambda: plan.run(a, b, bias=bias), "reads c"),
        (lambda: alone.run(a, b), "reads bias"),
        (lambda: alone.run(a, b, c, bias=bias), "made without c"),
        (lambda: pycutlass.Gemm(a, b).run(a, b, bias=bias), "made without bias"),
        (lambda: pycutlass.matmul(a, b, bias=bias, plan=pycutlass.Gemm(a, b)), "made without"),
        (lambda: plan.run(a, b, c, bias=bias[:4]), "bias"),
        (lambda: plan.run(a, b, c, bias=bias.astype(np.float16)), "float16"),
    ):
        with pytest.raises(PyCutlassError, match=word):
            call()


A, B, C, V = random(M, K), random(K, N), random(M, N), random(N)


def own(accum: Any, c: Source, alpha: pycutlass.epilogue.Scalar = 1.0) -> Any:
    return accum * alpha + c


OWN = pycutlass.epilogue_function(own)
REFUSED: list[tuple[str, Any]] = [
    ("beta is 0", lambda: pycutlass.matmul(A, B, C, bias=V)),
    ("bias must be a vector", lambda: pycutlass.matmul(A, B, C, beta=1, bias=C)),
    ("a bias has one number for each of 16", lambda: pycutlass.matmul(A, B, C, beta=1, bias=V[:5])),
    ("bias is another one", lambda: pycutlass.matmul(A, B, V, beta=1, bias=V)),
    ("c and bias and the epilogue", lambda: pycutlass.matmul(A, B, C, beta=1, bias=V, epilogue=OWN)),
    (
        "computed in fractions",
        lambda: pycutlass.matmul(integers(M, K), integers(K, N), C.astype(np.int32), beta=1, bias=V.astype(np.int32)),
    ),
    ("bias", lambda: pycutlass.matmul(A, B, C, beta=1, bias=V.astype(np.float16))),
    ("a vector", lambda: pycutlass.Gemm(A, B, C, beta=1, bias=C)),
    ("bias must be", lambda: pycutlass.Gemm(A, B, bias=3.5)),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


# Scales

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
    (r"scales\[0\] must be one number, or one for each row of a.*\(12,\) or \(12, 1\); got \(16,\)", (positive(N), 1)),
    (r"one for each column of b.*\(16,\) or \(1, 16\); got \(12,\)", (1.0, positive(M))),
    (r"got \(1, 12\)", (positive(1, M), 1.0)),
    (r"got \(16, 1\)", (1.0, positive(N, 1))),
    (r"got \(12, 16\)", (positive(M, N), 1.0)),
    ("must be contiguous", (positive(2 * M)[::2], 1.0)),
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


def test_a_bias_of_a_product_with_a_vector_is_one_number() -> None:
    a, x = random(M, K), random(K)
    close(pycutlass.matmul(a, x, bias=np.full(1, 2, np.float32)), product(a, x) + 2)
    c = random(M)
    close(pycutlass.matmul(a, x, c), product(a, x) + c)
    with pytest.raises(ArgumentError, match="bias has one number for each of 1 columns"):
        pycutlass.matmul(a, x, bias=c)


def test_a_bias_of_a_vector_times_a_stack() -> None:
    x, b, bias = random(K), random(3, K, N), random(N)
    for given in ({"bias": bias}, {"c": bias}, {"c": np.zeros((3, N), np.float32), "beta": 1, "bias": bias}):
        close(pycutlass.matmul(x, b, **given), product(x, b) + bias)
    with pytest.raises(ArgumentError, match=f"a bias has one number for each of {N} columns"):
        pycutlass.matmul(x, b, bias=bias[1:])


@pytest.mark.parametrize("beside_c", [False, True])
def test_a_strided_bias_is_copied_where_that_is_allowed(beside_c: bool) -> None:
    a, b, every_second = random(M, K), random(K, N), random(2 * N)[::2]
    given: dict[str, Any] = {"c": random(M, N), "beta": 1} if beside_c else {}
    exact = product(a, b) + every_second + given.get("c", 0)
    close(pycutlass.matmul(a, b, bias=every_second, allow_copy=True, **given), exact)
    with pytest.raises(PyCutlassError, match="contiguous"):
        pycutlass.matmul(a, b, bias=every_second, **given)


@pytest.mark.parametrize("alpha", [np.float32(2), np.int64(2), True, 0.5])
def test_alpha_is_any_number_beside_scales_that_are_numbers(alpha: Any) -> None:
    a, b = random(M, K), random(K, N)
    close(pycutlass.matmul(a, b, alpha=alpha, scales=(3, 0.5)), float(alpha) * 1.5 * product(a, b))


def test_alpha_that_is_no_number_beside_scales() -> None:
    a, b = random(M, K), random(K, N)
    for alpha in ("2", None, 2j, np.ones(2)):
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


def test_uint8_says_which_kernels_multiply_it() -> None:
    a, b = np.ones((M, K), np.uint8), np.ones((K, N), np.uint8)
    with pytest.raises(ArgumentError, match=r"Only Hopper-native kernels multiply uint8.*pass int8"):
        pycutlass.matmul(a, b)


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "words"),
    [
        (np.float16, cutlass.float64, "float16 write float32, float16, bfloat16, int8, and none writes cutlass"),
        (np.float64, cutlass.float32, r"float64 write float64, and none writes cutlass\.float32"),
        (np.int8, cutlass.float64, "int8 write float32, float16, bfloat16, int32, int8, and none"),
    ],
)
def test_results_that_no_kernel_writes(dtype: Any, out_dtype: Any, words: str) -> None:
    a, b = np.ones((M, K), dtype), np.ones((N, K), dtype).T
    with pytest.raises(ArgumentError, match=words):
        pycutlass.matmul(a, b, out_dtype=out_dtype)


def test_int8_with_adjacent_elements_of_k_in_neither_operand() -> None:
    a, b = integers(K, M).T, integers(K, N)
    with pytest.raises(ArgumentError, match="Elements of K must be adjacent in A or B of int8"):
        pycutlass.matmul(a, b)
    assert np.array_equal(pycutlass.matmul(a, integers(N, K).T).shape, (M, N))
