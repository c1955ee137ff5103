"""Functions of ours inside of torch.compile: it leaves them to Python, and looks into none of their frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError

A, B = torch.randn(8, 16), torch.randn(16, 8)
X = torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)
W = torch.randn(4, 3, 3, 8).permute(0, 3, 1, 2)
PLAN = pycutlass.Gemm(A, B)

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda a: pycutlass.matmul(a * 2, B) + 1,
    "with an epilogue": lambda a: pycutlass.matmul(a, B, epilogue=pycutlass.relu, alpha=0.5) * 3,
    "linear": lambda a: pycutlass.linear(a, B.T, torch.ones(8)).relu(),
    "grouped_matmul": lambda a: pycutlass.grouped_matmul([a, A], [B, B])[0] + 1,
}


@pytest.fixture(autouse=True)
def anew() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CALLS)
def test_they_are_called_as_they_are(name: str) -> None:
    call = CALLS[name]
    compiled = torch.compile(call, backend="eager")
    for _ in range(3):
        a = torch.randn(8, 16)
        torch.testing.assert_close(compiled(a), call(a))


def test_convolutions_are_called_as_they_are() -> None:
    compiled = torch.compile(lambda x: pycutlass.conv2d(x + 1, W, padding=1) * 2, backend="eager")
    torch.testing.assert_close(compiled(X), 2 * pycutlass.conv2d(X + 1, W, padding=1))


def test_what_is_around_them_is_compiled() -> None:
    graphs = []

    def noted(graph: Any, inputs: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    torch.compile(lambda a: pycutlass.matmul(a.sin(), B).cos(), backend=noted)(A)
    named = [str(each) for graph in graphs for each in graph]
    assert len(graphs) == 2 and not any("matmul" in each for each in named), graphs


def test_an_exception_leaves_torch_as_it_was() -> None:
    def wrong(a: torch.Tensor) -> torch.Tensor:
        return pycutlass.matmul(a, A) + 1

    with pytest.raises(ArgumentError, match=r"16.*8"):
        torch.compile(wrong, backend="eager")(A)
    seen: list[int] = []

    def noted(graph: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return graph

    torch.compile(lambda a: a.sin() + 1, backend=noted)(A)
    assert seen, "torch compiles what comes later"


def test_methods_say_what_to_call() -> None:
    with pytest.raises(ArgumentTypeError, match=r"Inside of torch\.compile, call it from a function that torch\.comp"):
        torch.compile(lambda a: PLAN.run(a, B) + 1, backend="eager")(A)
    left = torch.compiler.disable(lambda a: PLAN.run(a, B))
    made = torch.compile(lambda a: left(a) + 1, backend="eager")(A)
    np.testing.assert_allclose(made, A @ B + 1, rtol=1e-4, atol=1e-4)
