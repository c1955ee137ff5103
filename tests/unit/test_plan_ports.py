"""Tensors of an epilogue that a plan is made with: what does not fit is refused when the plan is made."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import TensorSpec, cutlass
from pycutlass.epilogue import Column, PerBatch, Row, Scalar, Tensor
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, PyCutlassError

M, N, K = 256, 128, 64


@pycutlass.epilogue_function
def dressed(accum: Any, bias: Row, scale: Column, residual: Tensor, alpha: Scalar = 1.0) -> Any:
    return alpha * accum * scale + bias + residual


@pycutlass.epilogue_function
def numbered(accum: Any, factor: PerBatch) -> Any:
    return accum * factor


def spec(*shape: int, dtype: str = "float16", strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(shape, dtype, strides)


def gemm(**inputs: Any) -> pycutlass.Gemm:
    return pycutlass.Gemm(spec(M, K), spec(K, N), epilogue=dressed, epilogue_inputs=inputs)


WRONG = [
    ({"bias": spec(K)}, ArgumentError, r"bias must be a contiguous vector of 128 elements.*got shape \(64,\)"),
    ({"bias": spec(N, dtype="float32")}, ArgumentTypeError, "bias must be float16.*got a TensorSpec of float32"),
    ({"scale": spec(N)}, ArgumentError, r"scale must be .* 256 elements.*got shape \(128,\)"),
    ({"residual": spec(M, N - 1)}, ArgumentError, r"residual must have shape \(256, 128\).*got shape \(256, 127\)"),
    ({"residual": spec(M, N, strides=(N + 2, 1))}, AlignmentError, "residual is described with alignment 8"),
    ({"residual": spec(M, N, strides=(1, M))}, ArgumentError, "residual is described as RowMajor"),
    ({"bias": "a bias"}, ArgumentTypeError, "bias"),
    ({"residual": (M, N)}, ArgumentTypeError, r"TensorSpec\(\(256, 128\), dtype\)"),
]


@pytest.mark.parametrize(("inputs", "kind", "message"), WRONG, ids=[message[:24] for *_, message in WRONG])
def test_what_does_not_fit_is_refused(inputs: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as error:
        gemm(**inputs)
    for again in (copy.deepcopy(error.value), pickle.loads(pickle.dumps(error.value))):
        assert type(again) is type(error.value) and str(again) == str(error.value)


def test_what_fits_is_taken_and_not_kept() -> None:
    plan = gemm(bias=spec(N), scale=spec(M), residual=spec(M, N), alpha=2.0)
    assert plan._scalars == {"alpha": 2.0}
    a, b = np.ones((M, K), np.float16), np.ones((K, N), np.float16)
    ones = {name: np.ones(shape, np.float16) for name, shape in (("bias", N), ("scale", M), ("residual", (M, N)))}
    assert (plan.run(a, b, epilogue_inputs=ones) == 2 * K + 2).all()
    with pytest.raises(ArgumentError, match="the epilogue has the tensors bias, scale, residual"):
        plan.run(a, b, epilogue_inputs={"bias": ones["bias"]})
    gemm(bias=None, scale=spec(M))  # some of them, too


def test_a_batch_has_a_tensor_of_all_or_one_for_all() -> None:
    def plan(**inputs: Any) -> pycutlass.Gemm:
        return pycutlass.Gemm(spec(3, M, K), spec(3, K, N), epilogue=dressed, epilogue_inputs=inputs)

    plan(bias=spec(N), residual=spec(M, N))
    plan(bias=spec(3, N), residual=spec(3, M, N))
    for wrong in ({"bias": spec(2, N)}, {"residual": spec(2, M, N)}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            plan(**wrong)
    with pytest.raises(ArgumentTypeError, match="a number of the epilogue, lies in memory: pass a tensor"):
        pycutlass.Gemm(spec(3, M, K), spec(3, K, N), epilogue=numbered, epilogue_inputs={"factor": 2.0})


def test_products_of_stacks_have_their_tensors_in_any_shape_that_calls_take() -> None:
    """A plan is made of matrices: what lies beside a result of many axes is taken apart first."""
    a, b = np.ones((2, 3, 8, 16), np.float16), np.ones((2, 3, 16, 8), np.float16)
    residual = np.full((2, 3, 8, 8), 2, np.float16)
    inputs = {"bias": np.ones(8, np.float16), "scale": np.ones(8, np.float16), "residual": residual}
    made = pycutlass.matmul(a, b, epilogue=dressed, epilogue_inputs=inputs)
    assert made.shape == (2, 3, 8, 8) and (made == 19).all()


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_of_convolutions_as_well(kind: str) -> None:
    x, w = spec(2, 8, 8, 16), spec(32, 3, 3, 16)
    y = spec(2, 8, 8, 32)
    a, b, result = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (y, x, w)}[kind]
    size = None if kind == "fprop" else result.shape

    def plan(**inputs: Any) -> pycutlass.Conv2d:
        return pycutlass.Conv2d(
            a, b, kind=kind, result_size=size, padding=1, epilogue=dressed, epilogue_inputs=inputs
        )  # fmt: skip

    rows, columns = (32, 9 * 16) if kind == "wgrad" else (128, result.shape[3])
    plan(bias=spec(columns), scale=spec(rows), residual=result)
    for wrong in ({"bias": spec(columns + 1)}, {"scale": spec(rows + 1)}, {"residual": spec(2, 8, 9, 16)}):
        with pytest.raises(PyCutlassError, match=next(iter(wrong))):
            plan(**wrong)


def test_of_groups_the_lists() -> None:
    xs, ws = [spec(M, K), spec(32, K)], [spec(K, N)] * 2

    def plan(**inputs: Any) -> pycutlass.GroupedGemm:
        return pycutlass.GroupedGemm(xs, ws, epilogue=dressed, epilogue_inputs=inputs)

    plan(bias=[spec(N)] * 2, scale=[spec(M), spec(32)], residual=[spec(M, N), None])
    with pytest.raises(ArgumentError, match=r"operand scale\[1\] must be .* 32 elements.*got shape \(256,\)"):
        plan(scale=[spec(M)] * 2)
    with pytest.raises(ArgumentError, match="bias in epilogue_inputs has 1 tensor, and the group has 2 problems"):
        plan(bias=[spec(N)])


def test_results_are_looked_at_like_other_tensors() -> None:
    @pycutlass.epilogue_function
    def twofold(accum: Any) -> dict[str, Any]:
        return {"D": accum, "T": accum * 2}

    a, b = spec(M, K), spec(K, N)
    functor = twofold(cutlass.float16, 8, cutlass.float32, T=cutlass.float32)
    pycutlass.Gemm(a, b, epilogue=functor, epilogue_inputs={"T": spec(M, N, dtype="float32")})
    with pytest.raises(ArgumentTypeError, match="T must be float32"):
        pycutlass.Gemm(a, b, epilogue=functor, epilogue_inputs={"T": spec(M, N)})


def test_a_refusal_is_said_once() -> None:
    """Of a range of M and of an M alone, of a launch that is kept and of a new one: not as two errors in a chain."""
    with pytest.raises(ArgumentError, match="Elements of K must be adjacent") as error:
        pycutlass.Gemm(spec(M, K, dtype="float8_e4m3fn"), spec(K, N, dtype="float8_e4m3fn")).explain()
    assert error.value.__context__ is None
    a, b = np.ones((M, K), np.float16), np.ones((K, N), np.float16)
    plan, out = pycutlass.Gemm(a, b), np.empty((M, N), np.float16)
    for _ in range(2):
        plan.run(a, b, out=out)
    with pytest.raises(ArgumentError, match="is for out with adjacent elements along rows") as refused:
        plan.run(a, b, out=out[:, ::-1])
    assert refused.value.__context__ is None
