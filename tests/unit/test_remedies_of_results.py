"""What is written is made anew, and what is read is copied, whatever either is called: nobody reads a kernel's copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass.epilogue import Row
from pycutlass.errors import ArgumentTypeError

pytestmark = pytest.mark.usefixtures("without_gpu")

M, N, K = 4, 8, 8
A, B = np.ones((M, K), np.float16), np.ones((K, N), np.float16)
NAMES = {"np": np, "torch": torch}


@pycutlass.epilogue_function
def added(accum: Any, delta: Row) -> Any:  # type: ignore[valid-type]
    """Of a parameter that begins as D does, and of a result that does not."""
    return {"D": accum + delta, "twice": accum * 2}


def said(call: Callable[[], Any]) -> str:
    with pytest.raises(ArgumentTypeError) as refused:
        call()
    return str(refused.value)


def one_product(**given: Any) -> Any:
    return pycutlass.matmul(A, B, epilogue=added, epilogue_inputs=given)


def one_of_a_group(**given: Any) -> Any:
    inputs = {name: [each] for name, each in given.items()}
    return pycutlass.grouped_matmul([A], [B], epilogue=added, epilogue_inputs=inputs)[0]


def planned(**given: Any) -> Any:
    plan = pycutlass.Gemm(A, B, epilogue=added, epilogue_inputs=given)
    return plan.run(A, B, epilogue_inputs=given)


WRONG: dict[str, Callable[[Any], Any]] = {
    "big-endian": lambda array: array.astype(">f2"),
    "masked": lambda array: np.ma.masked_array(array, mask=False),
    "sparse": lambda array: torch.from_numpy(array).to_sparse(),
}


@pytest.mark.parametrize("run", [one_product, one_of_a_group, planned])
@pytest.mark.parametrize("wrong", WRONG)
def test_results_of_an_epilogue(wrong: str, run: Callable[..., Any]) -> None:
    twice, delta = np.zeros((M, N), np.float16), np.full(N, 3, np.float16)
    names = NAMES | {"twice": WRONG[wrong](twice), "delta": WRONG[wrong](delta)}
    text = said(lambda: run(twice=names["twice"], delta=delta))
    made = re.search(r"Make twice(?:\[0\])? as (.*) and read the result from there\.", text)
    assert made, text
    result = eval(made[1].replace("[0]", ""), dict(names))
    run(twice=result, delta=delta)
    assert (np.asarray(result) == 2 * K).all()

    text = said(lambda: run(twice=result, delta=names["delta"]))
    passed = re.search(r"Pass (\S.*?)(?:, or fill in .*)?\.$", text)
    assert passed, text
    assert (np.asarray(run(twice=result, delta=eval(passed[1].replace("[0]", ""), dict(names)))) == K + 3).all()


@pytest.mark.parametrize("wrong", [each for each in WRONG if each != "masked"])
def test_out(wrong: str) -> None:
    out = WRONG[wrong](np.zeros((M, N), np.float16))
    text = said(lambda: pycutlass.matmul(A, B, out=out))
    made = re.search(r"Make out as (.*) and read the result from there\.", text)
    assert made, text
    result = eval(made[1], NAMES | {"out": out})
    pycutlass.matmul(A, B, out=result)
    assert (np.asarray(result) == K).all()


def test_lists_of_numbers_are_no_memory() -> None:
    delta = np.zeros(N, np.float16)
    for name, given in (("twice", {"twice": [[0.0] * N] * M, "delta": delta}), ("out", None)):
        call = (lambda given=given: one_product(**given)) if given else (lambda: pycutlass.matmul(A, B, out=[0.0] * N))
        assert re.search(rf"operand {name} .* got list\. Pass memory for the result, of shape \(.*\)\.$", said(call))
    text = said(lambda: one_product(delta=[1.0] * N, twice=np.zeros((M, N), np.float16)))
    assert text.endswith("got list. Pass np.asarray(delta).")
