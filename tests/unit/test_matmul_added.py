"""What products in one line add, c and a bias in one kernel, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import K, M, N, close, integers, product, random

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Source, activations
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError

ACTIVATIONS = [None, *(getattr(activations, name) for name in activations.__all__ if name[0].islower())]
ACTIVATIONS = [each for each in ACTIVATIONS if each is None or isinstance(each, type)]


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


@pytest.mark.parametrize("batch", [M, M + 1])
def test_a_c_that_all_matrices_share_is_a_matrix_however_many_there_are(batch: int) -> None:
    a, b, c = random(batch, M, K), random(batch, K, N), random(M, N)
    repeated = np.broadcast_to(c, (batch, M, N))
    exact = product(a, b) + 2.0 * c.astype(np.float64)
    close(pycutlass.matmul(a, b, repeated, beta=2), exact)
    close(pycutlass.Gemm(a, b, repeated, beta=2).run(a, b, repeated), exact)
    plan = pycutlass.Gemm(a, b, c, beta=2)
    for _ in range(2):  # the second one by the launch of the first
        close(plan.run(a, b, c), exact)


@pytest.mark.parametrize("shape", [(1, 8, 16), (8, 16), (128,), (1, 1, 128), (8, 16, 1)])
def test_a_c_of_as_many_rows_as_matrices_is_never_a_bias_of_each(shape: tuple[int, ...]) -> None:
    """A plan of 8 matrices of 8 rows took what has 8 x 16 elements for 8 biases, one of each matrix."""
    a, b, c = random(8, 8, 16), random(8, 16, 16), random(8, 16)
    plan = pycutlass.Gemm(a, b, random(8, 8, 16), beta=1)
    try:
        found = plan.run(a, b, c.reshape(shape))
    except ArgumentError:
        assert shape not in ((8, 16), (128,))
    else:
        close(found, product(a, b) + c)


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("by_columns", [False, True])
def test_large_products_of_every_type_add_both(dtype: Any, by_columns: bool) -> None:
    """With more rows and columns than GEMV kernels take: float32 by CUDA cores."""
    a, b, bias = random(130, 24, dtype=dtype), random(24, 100, dtype=dtype), random(100, dtype=dtype)
    order = "F" if by_columns else "C"
    c, out = np.asarray(random(130, 100, dtype=dtype), order=order), np.full((130, 100), 99, dtype, order=order)
    pycutlass.matmul(a, b, c, beta=2, bias=bias, out=out, epilogue=pycutlass.silu)
    close(out, pycutlass.silu.numpy(product(a, b) + 2.0 * c.astype(np.float64) + bias), dtype)
    pycutlass.matmul(a, b, bias=bias, beta=-1, out=out)
    close(out, product(a, b) - bias.astype(np.float64), dtype)


def test_a_c_that_lies_otherwise_is_copied_where_that_is_allowed() -> None:
    a, b, c, bias = random(12, 8), random(8, 16), random(12, 16), random(16)
    right = product(a, b) + c + bias
    for out in (np.full((12, 16), 99, np.float32), np.full((16, 12), 99, np.float32).T, None):
        for laid in (c, np.asfortranarray(c), np.repeat(c, 2, axis=1)[:, ::2]):
            close(pycutlass.matmul(a, b, laid, beta=1, bias=bias, out=out, allow_copy=True), right)
    for refusing in (pycutlass.matmul, pycutlass.Gemm):  # a plan when it is made
        with pytest.raises(ArgumentError, match=r"C and D lie differently.*allow_copy=True"):
            refusing(a, b, np.asfortranarray(c), beta=1, bias=bias)
    stack = product(random(3, 12, 8) * 0, b) + c
    laid = np.ascontiguousarray(stack.swapaxes(1, 2)).swapaxes(1, 2).astype(np.float32)
    close(pycutlass.matmul(np.zeros((3, 12, 8), np.float32), b, laid, beta=1, allow_copy=True), stack)


def test_a_column_of_c_says_how_a_column_of_d_lies() -> None:
    """Which lies either way, and C does not."""
    a, b, wide = random(3, 5, 8), random(8, 1), random(3, 5, 4)
    out = np.full((3, 5, 1), 99, np.float32)
    close(pycutlass.matmul(a, b, wide[..., :1], beta=1, out=out), product(a, b) + wide[..., :1])


@pytest.mark.parametrize(("a", "b"), [((5, 1), (1, 24)), ((1, 8), (8, 24)), ((5, 8), (8, 1))])
def test_vectors_of_int8_lie_as_kernels_take_them(a: Any, b: Any) -> None:
    left, right = integers(*a), np.asfortranarray(integers(*b))
    np.testing.assert_array_equal(pycutlass.matmul(left, right), left.astype(int) @ right)


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


def test_what_is_added_has_the_type_of_the_result() -> None:
    a, b = random(8, 16, dtype=np.float16), random(16, 24, dtype=np.float16)
    bias = random(24, dtype=np.float32)
    for options in ({}, {"scales": (1, 2)}, {"epilogue": pycutlass.gelu}):
        with pytest.raises(
            ArgumentTypeError, match=r"^bias is float32 and the result float16: convert bias to float16"
        ):
            pycutlass.matmul(a, b, bias=bias, **options)
    with pytest.raises(ArgumentTypeError, match=r"^c is float32 and the result float16: convert c to float16"):
        pycutlass.matmul(a, b, random(8, 24, dtype=np.float32), beta=1)
    close(pycutlass.matmul(a, b, bias=bias, out_dtype=np.float32), product(a, b) + bias, np.float32)
