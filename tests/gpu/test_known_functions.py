"""`matmul`, `linear` and `conv2d` of tensors like those of an earlier call, on a GPU: against float64."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional, grad  # noqa: E402

import pycutlass  # noqa: E402
import pycutlass.plan.convolutions  # noqa: E402
import pycutlass.plan.matmul  # noqa: E402
from pycutlass import epilogue as functions  # noqa: E402
from pycutlass import epilogue_function  # noqa: E402
from pycutlass.epilogue import Row, Tensor, gelu  # noqa: E402


@epilogue_function
def added(accum: Any, bias: Row, residual: Tensor) -> Any:
    t = accum + bias
    return {"T": t, "D": gelu(t) + residual, "rows": functions.sum(t, axis=1)}


def random(*shape: int, scale: float = 1.0) -> Any:
    return (torch.randn(shape, device="cuda") * scale).half()


def images(*shape: int, scale: float = 1.0) -> Any:
    return random(*shape, scale=scale).contiguous(memory_format=torch.channels_last)


def _product() -> tuple[Any, Any]:
    a, b, bias, residual = random(96, 128, scale=0.1), random(128, 80), random(80), random(96, 80)
    t, rows = torch.full((96, 80), float("nan"), device="cuda").half(), torch.full((96,), float("nan"), device="cuda")
    inputs = {"bias": bias, "residual": residual, "T": t, "rows": rows}
    made = pycutlass.matmul(a, b, epilogue=added, epilogue_inputs=inputs)
    exact = a.double() @ b.double() + bias.double()
    wanted = functional.gelu(exact) + residual.double()
    return (made, t, rows), (wanted, exact, exact.sum(1))


def _layer() -> tuple[Any, Any]:
    x, w, bias = random(2, 24, 128, scale=0.1), random(80, 128), random(80)
    made = pycutlass.linear(x, w, bias, pycutlass.silu)
    return (made,), (functional.silu(functional.linear(x.double(), w.double(), bias.double())),)


def _convolution() -> tuple[Any, Any]:
    x, w, bias, out = images(2, 16, 9, 8), images(32, 16, 3, 3, scale=0.1), random(32), images(2, 32, 9, 8)
    assert pycutlass.conv2d(x, w, bias=bias, padding=1, epilogue=pycutlass.relu, out=out) is out
    return (out,), (functional.conv2d(x.double(), w.double(), bias.double(), padding=1).relu(),)


def _of_filters() -> tuple[Any, Any]:
    dy, x = images(2, 32, 9, 8, scale=0.1), images(2, 16, 9, 8)
    made = pycutlass.conv2d_weight(dy, x, (32, 16, 3, 3), padding=1)
    return (made,), (grad.conv2d_weight(x.double(), (32, 16, 3, 3), dy.double(), padding=1),)


CASES: dict[str, tuple[str, Callable[[], tuple[Any, Any]]]] = {
    "matmul": ("matmul", _product),
    "linear": ("matmul", _layer),
    "conv2d": ("convolutions", _convolution),
    "conv2d_weight": ("convolutions", _of_filters),
}


def _noted(name: str, module: str) -> list[Any]:
    """Return where calls are noted that reach the function's Python."""
    recorded = getattr(sys.modules[f"pycutlass.plan.{module}"], name)
    while "call" not in recorded.__code__.co_freevars:
        recorded = recorded.__wrapped__
    kept = recorded.__closure__[recorded.__code__.co_freevars.index("call")]
    function, seen = kept.cell_contents, []
    kept.cell_contents = lambda *args, **named: (seen.append(named), function(*args, **named))[1]
    return seen


@pytest.mark.parametrize("name", CASES)
def test_they_are_right_and_looked_at_once(name: str) -> None:
    module, compute = CASES[name]
    seen = _noted(name, module)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for turn in range(4):
                seen.clear()
                made, wanted = compute()
                assert not seen or turn == 0, turn
                for one, exact in zip(made, wanted, strict=True):
                    torch.testing.assert_close(one.double(), exact, rtol=8e-3, atol=2e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made, wanted = compute()
    for _ in range(3):
        graph.replay()
        for one, exact in zip(made, wanted, strict=True):
            torch.testing.assert_close(one.double(), exact, rtol=8e-3, atol=2e-2)
