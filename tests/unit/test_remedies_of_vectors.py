"""Vectors of epilogues that lie otherwise: the remedy is followed to the letter, and gives what was meant."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass import TensorSpec, cutlass, epilogue
from pycutlass.epilogue import Column
from pycutlass.errors import PyCutlassError

pytestmark = pytest.mark.usefixtures("without_gpu")

RANDOM = np.random.default_rng(5)
BATCH, TILES, M, K = 3, 2, 16, 32
A = RANDOM.integers(-3, 4, (BATCH, M, K)).astype(np.float16)
B = RANDOM.integers(-3, 4, (BATCH, K, TILES * 128)).astype(np.float16)
SUMS = (A.astype(int) @ B.astype(int)).reshape(BATCH, M, TILES, 128).sum(-1)  # (batch, M, tiles)


@pycutlass.epilogue_function
def of_rows(accum: Any) -> Any:
    return {"D": accum, "q": epilogue.sum(accum, axis=1, tile=128)}


@pycutlass.epilogue_function
def of_columns(accum: Any) -> Any:
    return {"D": accum, "q": epilogue.sum(accum, axis=0, tile=128)}


@pycutlass.epilogue_function
def scaled(accum: Any, c: Column(cutlass.float32)) -> Any:  # type: ignore[valid-type]
    return accum * c


def said(call: Any) -> str:
    with pytest.raises(PyCutlassError) as refused:
        call()
    return str(refused.value)


def followed(text: str, names: dict[str, Any], run: Any) -> Any:
    """Do what a message about q tells, and return what it tells to read."""
    if passed := re.search(r"\. Pass (q\..+\)): row i (?:of each matrix )?of q is of tile i then\.$", text):
        run(eval(passed[1], names))
        return names["q"]
    made = re.search(r"\. Make q as (.*) and read the result as (q\..+)\.$", text)
    assert made, text
    names["q"] = eval(made[1], {"np": np, **names})
    run(names["q"])
    return eval(made[2], {"np": np, **names})


@pytest.mark.parametrize("library", ["np", "torch"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("axis", [1, 0])
def test_results_of_tiles_are_told_from_their_transpose(axis: int, is_batch: bool, library: str) -> None:
    """Kernels write a tile's results one behind the other: (M, tiles) flattened would have them in another order."""
    function, a, b = (of_rows, A, B) if axis else (of_columns, B.swapaxes(1, 2).copy(), A.swapaxes(1, 2).copy())
    expected, transposed = (SUMS, SUMS.swapaxes(1, 2)) if is_batch else (SUMS[0], SUMS[0].T)
    if not is_batch:
        a, b = a[0], b[0]
    if library == "torch":
        a, b = torch.from_numpy(a), torch.from_numpy(b)

    def run(q: Any) -> Any:
        return pycutlass.matmul(a, b, epilogue=function, epilogue_inputs={"q": q})

    for wanted in (transposed, expected):
        for strided in (False, True):
            q: Any = np.zeros((*wanted.shape, 2), np.float32)[..., 0] if strided else np.zeros(wanted.shape, np.float32)
            names = {"q": torch.from_numpy(q) if library == "torch" else q, "torch": torch}
            text = said(lambda names=names: run(names["q"]))
            assert "16 for each of the 2 tiles, those of the first tile first; got shape" in text
            assert "one for each row" not in text
            assert "one for each column" not in text
            np.testing.assert_array_equal(np.asarray(followed(text, names, run)), wanted)


def test_a_flat_tensor_of_results_of_tiles_that_a_batch_would_share() -> None:
    names: dict[str, Any] = {"np": np, "q": np.zeros(TILES * M, np.float32)}
    text = said(lambda: pycutlass.matmul(A, B, epilogue=of_rows, epilogue_inputs={"q": names["q"]}))
    made = re.search(r"Make q as (.*) and read the result from there\.$", text)
    assert made, text
    q = eval(made[1], names)
    assert q.shape == (BATCH, TILES * M)
    pycutlass.matmul(A, B, epilogue=of_rows, epilogue_inputs={"q": q})
    np.testing.assert_array_equal(q.reshape(BATCH, TILES, M).swapaxes(1, 2), SUMS)


def test_a_described_tensor_of_results_of_tiles() -> None:
    operation = pycutlass.Gemm(A[0], B[0], epilogue=of_rows).operation
    size = (M, TILES * 128, K)
    text = operation.supports(size, {"q": TensorSpec((M, TILES), cutlass.float32)}).reason
    given = re.search(r"Give a (TensorSpec) of shape (\(.*?\))\.?$", text)
    assert given, text
    assert operation.supports(size, {"q": TensorSpec(eval(given[2]), cutlass.float32)})


def test_vectors_of_a_batch_that_were_given_as_columns() -> None:
    c = RANDOM.integers(1, 9, (M, BATCH)).astype(np.float32)
    text = said(lambda: pycutlass.matmul(A, B, epilogue=scaled, epilogue_inputs={"c": c}))
    code = re.search(r"\. Pass (np\..*)\.$", text)
    assert code, text
    got = pycutlass.matmul(A, B, epilogue=scaled, epilogue_inputs={"c": eval(code[1], {"np": np, "c": c})})
    exact = A.astype(int) @ B.astype(int) * c.T[..., None]
    np.testing.assert_array_equal(got, exact.astype(np.float16))

    accumulator = A.astype(float) @ B.astype(float)
    text = said(lambda: scaled.numpy(accumulator, c=c))
    code = re.search(r"\. Pass (c\.T)$", text)
    assert code, text
    np.testing.assert_array_equal(scaled.numpy(accumulator, c=eval(code[1])), exact)


def test_sums_of_a_batch_that_were_given_as_columns() -> None:
    @pycutlass.epilogue_function
    def with_sums(accum: Any) -> Any:
        return {"D": accum, "q": epilogue.sum(accum, axis=1)}

    names: dict[str, Any] = {"q": np.zeros((M, BATCH), np.float32)}

    def run(q: Any) -> Any:
        return pycutlass.matmul(A, B, epilogue=with_sums, epilogue_inputs={"q": q})

    text = said(lambda: run(names["q"]))
    np.testing.assert_array_equal(followed(text, names, run), SUMS.sum(-1).T)
