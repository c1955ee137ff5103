"""Epilogue functions in one line that no kernel takes as they are: the remedy is followed, and gives what was meant."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.epilogue import Tensor, fusions, pairs, silu
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu")

M, N, K = 16, 36, 32
RANDOM = np.random.default_rng(7)
A, B = (RANDOM.integers(-2, 3, shape).astype(np.float16) for shape in ((M, K), (K, N)))
PRODUCT = A.astype(float) @ B.astype(float)


def said(call: Any) -> str:
    with pytest.raises(ArgumentError) as refused:
        call()
    return str(refused.value)


@pycutlass.epilogue_function
def gated_behind(accum: Any, c: Tensor) -> Any:
    gate, up = pairs(accum)
    return silu(gate) * up + c


@pycutlass.epilogue_function
def gated_before(accum: Any, c: Tensor) -> Any:
    gate, up = pairs(accum + c)
    return silu(gate) * up


@pytest.mark.parametrize("columns", [N, N // 2], ids=["of the product", "of the result"])
def test_a_c_beside_pairs_is_a_tensor_of_the_function(columns: int) -> None:
    """Source, which others are told to write, does not go with pairs; and no c has the shape of the product there."""
    c = RANDOM.integers(-2, 3, (M, columns)).astype(np.float16)
    text = said(lambda: pycutlass.matmul(A, B, c, beta=1, epilogue=fusions.swiglu))
    assert "Source" not in text
    told = "give the function a parameter of Tensor, of (M, N / 2) behind pairs or of (M, N) before them, and pass c in"
    assert told in text
    function = gated_before if columns == N else gated_behind
    got = pycutlass.matmul(A, B, epilogue=function, epilogue_inputs={"c": c})
    np.testing.assert_allclose(got, function.numpy(PRODUCT, c=c), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("columns", [33, 35, 34, 38])
def test_products_of_pairs_are_padded_to_fours_at_once(columns: int) -> None:
    """To pad an odd product to an even one would be refused again."""
    b = RANDOM.integers(-2, 3, (K, columns)).astype(np.float16)
    text = said(lambda: pycutlass.matmul(A, b, epilogue=fusions.swiglu))
    assert said(lambda: pycutlass.Gemm(A, b, epilogue=fusions.swiglu)) == text
    of_group = said(lambda: pycutlass.grouped_matmul([A], [b], epilogue=fusions.swiglu))
    assert of_group in (text, text.replace("Pad b", "Pad ws[0]"))
    assert "the product must have a multiple of 4 columns" in text
    told = re.search(r"Pad b with (\d) columns? of zeros, for an out of (\d+) columns$", text)
    assert told, text
    padded = np.concatenate((b, np.zeros((K, int(told[1])), np.float16)), axis=1)
    got = pycutlass.matmul(A, padded, epilogue=fusions.swiglu)
    assert got.shape == (A.shape[0], int(told[2]))
    exact = fusions.swiglu.numpy(A.astype(float) @ padded.astype(float))
    np.testing.assert_allclose(got, exact, rtol=2e-3, atol=2e-3)


X, W = np.ones((1, 8, 8, 16), np.float32), np.ones((32, 1, 1, 16), np.float32)
LAYERS: dict[str, Any] = {
    "matmul": lambda **given: pycutlass.matmul(X[0, 0], W[:, 0, 0].T, **given),
    "conv2d": lambda **given: pycutlass.conv2d(X, W, stride=2, **given),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_functor_that_writes_several_elements_of_float32(name: str) -> None:
    """Tensors are aligned, and no alignment helps: kernels of float32 store single elements."""
    inputs = {"bias": np.ones(32, np.float32)}

    def run(length: int, **more: Any) -> Any:
        functor = fusions.bias_relu(cutlass.float32, length)
        return LAYERS[name](epilogue=functor, epilogue_inputs=inputs, **more)

    text = said(lambda: run(4))
    assert "aligned" not in text
    told = re.search(
        r"single elements: make it with epilogue_vector_length=(\d), or .*precision='(\w+)' or '(\w+)'", text
    )
    assert told, text
    for got in (run(int(told[1])), run(4, precision=told[2]), run(4, precision=told[3])):
        assert (got == 17).all()


def of_tiles(columns: int = 0, rows: int = 0) -> Any:
    @pycutlass.epilogue_function
    def sums(accum: Any) -> Any:
        found = {"D": accum}
        if columns:
            found["q"] = epilogue.sum(accum, axis=1, tile=columns)
        if rows:
            found["r"] = epilogue.sum(accum, axis=0, tile=rows)
        return found

    return sums


WIDE = RANDOM.integers(-2, 3, (K, 256)).astype(np.float16)


@pytest.mark.parametrize("is_group", [False, True], ids=["matmul", "grouped_matmul"])
def test_tiles_that_no_kernel_has(is_group: bool) -> None:
    expected = A.astype(float) @ WIDE.astype(float)

    def run(extents: dict[str, int]) -> Any:
        inputs = {}
        if "columns" in extents:
            inputs["q"] = np.zeros(-(-256 // extents["columns"]) * M, np.float32)
        if "rows" in extents:
            inputs["r"] = np.zeros(-(-M // extents["rows"]) * 256, np.float32)
        if is_group:
            listed = {name: [each] for name, each in inputs.items()}
            pycutlass.grouped_matmul([A], [WIDE], epilogue=of_tiles(**extents), epilogue_inputs=listed)
        else:
            pycutlass.matmul(A, WIDE, epilogue=of_tiles(**extents), epilogue_inputs=inputs)
        return inputs

    for extents, order in (({"columns": 96}, ("columns",)), ({"columns": 96, "rows": 64}, ("rows", "columns"))):
        text = said(lambda extents=extents: run(extents))
        assert "q of 96 columns" in text
        listed = re.search(r"that kernels have: ([\d, and]+);", text)
        assert listed, text
        found = [tuple(map(int, each.split(" and "))) for each in listed[1].split(", ")]
        assert len(found) > 1
        for each in found:
            made = dict(zip(order, each, strict=True))
            inputs = run(made)
            tiles = expected.reshape(M, -1, made["columns"]).sum(-1)
            np.testing.assert_array_equal(inputs["q"], tiles.T.reshape(-1))
            if "r" in inputs:
                np.testing.assert_array_equal(inputs["r"], expected.sum(0))


def test_what_a_function_writes_is_memory_of_the_caller() -> None:
    text = said(lambda: pycutlass.matmul(A, WIDE, epilogue=of_tiles(128)))
    told = re.search(
        r"(\w+) is written: pass memory that you make, .* (plan\.operation\.outputs)\(problem_size\)", text
    )
    assert told, text
    plan = pycutlass.Gemm(A, WIDE, epilogue=of_tiles(128))
    spec = eval(told[2], {"plan": plan})((M, 256, K))[told[1]]
    made = {told[1]: np.zeros(spec.shape, spec.dtype)}
    pycutlass.matmul(A, WIDE, epilogue=of_tiles(128), epilogue_inputs=made)
    exact = (A.astype(float) @ WIDE.astype(float)).reshape(M, 2, 128).sum(-1).T.reshape(-1)
    np.testing.assert_array_equal(made[told[1]], exact)
