"""Functions that make results of many elements of D, beside operands that GEMV kernels alone take."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu")

M, N = 8, 16


@pycutlass.epilogue_function
def with_sums(accum: Any) -> Any:
    return {"D": accum, "sums": epilogue.sum(accum, axis=1)}


@pycutlass.epilogue_function
def gated(accum: Any) -> Any:
    even, odd = epilogue.pairs(accum)
    return even * odd


@pytest.mark.parametrize("library", ["NumPy", "torch"])
@pytest.mark.parametrize("k", [32, 5])
@pytest.mark.parametrize("lying", ["B by rows", "A by columns", "both"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_operands_are_told_to_lie_along_k(batch: tuple[int, ...], lying: str, k: int, library: str) -> None:
    """int8 has no other kernels of CUDA cores than GEMV, which have single elements of D."""
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (*batch, *shape)).astype(np.int8) for shape in ((M, k), (k, N)))
    exact = (a.astype(int) @ b.astype(int)).astype(np.float32)
    if lying != "B by rows":
        a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if lying == "A by columns":
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    names: dict[str, Any] = {"a": a, "b": b}
    if library == "torch":
        names = {name: torch.from_numpy(each) for name, each in names.items()}
    sums = np.zeros((*batch, M), np.float32)

    def run(function: Any, **inputs: Any) -> Any:
        return pycutlass.matmul(
            names["a"], names["b"], epilogue=function, epilogue_inputs=inputs, out_dtype=cutlass.float32
        )

    with pytest.raises(ArgumentError, match="needs more of D than one element") as refused:
        run(with_sums, sums=sums)
    with pytest.raises(ArgumentError, match="gated needs more of D than one element"):
        run(gated)
    text = re.search(r"elements of K are adjacent: pass (.*?)\. The kernels", str(refused.value))
    assert text, refused.value
    told = re.findall(r"as ([AB]) (.+?) of NumPy, or (\S+) of torch", text[1])
    assert [name for name, _, _ in told] == {"B by rows": ["B"], "A by columns": ["A"], "both": ["A", "B"]}[lying]
    for name, of_numpy, of_torch in told:
        names[name.lower()] = eval(of_numpy if library == "NumPy" else of_torch, dict(names))
    np.testing.assert_array_equal(np.asarray(run(with_sums, sums=sums)), exact)
    np.testing.assert_array_equal(sums, exact.sum(-1))
    np.testing.assert_array_equal(np.asarray(run(gated)), exact[..., ::2] * exact[..., 1::2])


def test_floats_of_8_bits_have_no_tensor_cores_before_hopper() -> None:
    a, b = torch.ones(M, 32).to(torch.float8_e4m3fn), torch.ones(N, 32).to(torch.float8_e4m3fn).T
    sums = torch.zeros(M)

    def run(a: Any, b: Any) -> Any:
        return pycutlass.matmul(a, b, epilogue=with_sums, epilogue_inputs={"sums": sums})

    with pytest.raises(ArgumentError, match=r"with_sums needs more .* Hopper-native .* both operands as float16\."):
        run(a, b)
    assert (run(a.half(), b.half()) == 32).all() and (sums == 32 * N).all()
