"""Calls of operators like earlier ones on a GPU: launched again without what chose their kernels, and right."""

# mypy: disable-error-code="valid-type,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional, grad  # noqa: E402
from torch_operators import ops  # noqa: E402

from pycutlass import epilogue_function  # noqa: E402
from pycutlass.epilogue import Row, relu  # noqa: E402
from pycutlass.epilogue import sum as sum_of  # noqa: E402
from pycutlass.pytorch import epilogue_handle, operators  # noqa: E402

M, N, K = 136, 72, 64


def random(*shape: int, dtype: Any = torch.float16, scale: float = 1.0) -> Any:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def images(*shape: int) -> Any:
    return random(*shape, scale=0.3).contiguous(memory_format=torch.channels_last)


def parameter(tensor: Any) -> Any:
    return torch.nn.Parameter(tensor)


@epilogue_function
def biased(accum: Any, bias: Row) -> Any:
    t = relu(accum + bias)
    return {"D": t, "sums": sum_of(t, axis=1)}


def of_biased(a: Any, b: Any, bias: Any) -> Any:
    made = torch.relu(a @ b + bias)
    return made, made.sum(1)


def doubled(*tensors: Any) -> Any:
    return [each.double() for each in tensors]


#: Of each operator: a call, what it computes in float64, and how its tensors are made.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], list[Any]]]] = {
    "addmm": (
        lambda c, a, b: ops.addmm(c, a, b, alpha=2, beta=-1),
        lambda c, a, b: 2 * (a @ b) - c,
        lambda: [random(M, N), random(M, K), random(N, K).T],
    ),
    "addmm with a bias": (
        lambda c, a, b: ops.addmm(c, a, b, activation="relu"),
        lambda c, a, b: (c + a @ b).relu(),
        lambda: [random(N), random(M, K), random(K, N)],
    ),
    "addmm.out": (
        lambda c, a, b: (
            made := torch.full((M, N), float("nan"), device="cuda", dtype=c.dtype),
            ops.addmm.out(c, a, b, out=made),
        )[0],
        lambda c, a, b: c + a @ b,
        lambda: [random(M, N), random(M, K), random(N, K).T],
    ),
    "linear": (
        lambda x, w, bias: ops.linear(x, w, bias, "relu"),
        lambda x, w, bias: functional.linear(x, w, bias).relu(),
        lambda: [random(2, M, K), parameter(random(N, K)), parameter(random(N))],
    ),
    "swiglu": (
        ops.swiglu,
        lambda x, gate, up: functional.silu(functional.linear(x, gate)) * functional.linear(x, up),
        lambda: [random(2, M, K), random(N, K, scale=0.1), random(N, K, scale=0.1)],
    ),
    "interleaved_swiglu": (
        ops.interleaved_swiglu,
        lambda x, w: functional.silu(functional.linear(x, w[0::2])) * functional.linear(x, w[1::2]),
        lambda: [random(M, K), random(2 * N, K, scale=0.1)],
    ),
    "fused_mm": (
        lambda a, b, bias: ops.fused_mm(a, b, epilogue_handle(biased), [bias]),
        of_biased,
        lambda: [random(M, K, scale=0.1), random(N, K).T, random(N)],
    ),
    "conv2d": (
        lambda x, w, bias: ops.conv2d(x, w, bias, [2, 1], [1, 0], [1, 2]),
        lambda x, w, bias: functional.conv2d(x, w, bias, (2, 1), (1, 0), (1, 2)),
        lambda: [images(2, 16, 9, 8), parameter(images(32, 16, 3, 3)), random(32)],
    ),
    "conv2d of pixels": (
        ops.conv2d,
        functional.conv2d,
        lambda: [images(2, 16, 9, 8), images(32, 16, 1, 1)],
    ),
    "conv2d_input": (
        lambda w, dy: ops.conv2d_input([2, 16, 9, 8], w, dy, [1, 1], [1, 1]),
        lambda w, dy: grad.conv2d_input((2, 16, 9, 8), w, dy, 1, 1),
        lambda: [images(32, 16, 3, 3), images(2, 32, 9, 8)],
    ),
    "conv2d_weight": (
        lambda x, dy: ops.conv2d_weight(x, torch.Size([32, 16, 3, 3]), dy, [1, 1], [1, 1]),
        lambda x, dy: grad.conv2d_weight(x, (32, 16, 3, 3), dy, 1, 1),
        lambda: [images(2, 16, 9, 8), images(2, 32, 9, 8)],
    ),
    "mixed_mm": (
        lambda a, b, scale: ops.mixed_mm(a, b, scale),
        lambda a, b, scale: a @ b * scale,
        lambda: [random(M, K), torch.randint(-9, 9, (N, K), device="cuda", dtype=torch.int8).T, random(N, scale=0.1)],
    ),
    "scaled_mm": (
        lambda a, b, one, other: ops.scaled_mm(a, b, one, other, out_dtype=torch.float16),
        lambda a, b, one, other: a @ b * one * other,
        lambda: [
            random(M, K).to(torch.float8_e4m3fn),
            random(N, K).to(torch.float8_e4m3fn).T,
            random(M, 1, dtype=torch.float32, scale=0.1),
            random(1, N, dtype=torch.float32),
        ],
    ),
}


def flat(results: Any) -> list[Any]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


@pytest.mark.parametrize("name", CASES)
def test_they_are_right_and_chosen_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each stream, and captured in a graph; the function behind the operator is reached by the first call alone."""
    call, exact, draw = CASES[name]
    chosen: list[int] = []
    keep = operators.KnownCalls._keep
    monkeypatch.setattr(
        operators.KnownCalls, "_keep", lambda self, recording, *of: (chosen.append(1), keep(self, recording, *of))[1]
    )

    def is_right(found: Any, tensors: list[Any]) -> None:
        for one, wanted in zip(flat(found), flat(exact(*doubled(*tensors))), strict=True):
            torch.testing.assert_close(one.double(), wanted, rtol=1e-2, atol=2e-2)

    with torch.no_grad():
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                for turn in range(4):
                    tensors = draw()
                    for each in flat(exact(*doubled(*tensors))):  # where results are to be
                        torch.full(each.shape, float("nan"), device="cuda", dtype=torch.float16)
                    chosen.clear()
                    found = call(*tensors)
                    assert not chosen or turn == 0
                    is_right(found, tensors)
            stream.synchronize()
        tensors, others = draw(), draw()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call(*tensors)
        for one, other in zip(tensors, others, strict=True):
            one.copy_(other)
        for each in flat(found):
            each.fill_(float("nan"))
        graph.replay()
        is_right(found, others)
        is_right(call(*others), others)


def test_tensors_that_are_one_in_memory() -> None:
    """A square matrix with itself, and slices of one buffer: what a launch takes is of which of them is not said."""
    square = random(N, N, scale=0.1)
    for _ in range(3):
        torch.testing.assert_close(
            ops.linear(square, square).double(), square.double() @ square.double().T, rtol=1e-2, atol=1e-2
        )
        torch.testing.assert_close(
            ops.linear(square, square.T).double(), square.double() @ square.double(), rtol=1e-2, atol=1e-2
        )
    for _ in range(3):
        x, w = random(N, N, scale=0.1), random(N, N, scale=0.1)
        torch.testing.assert_close(ops.linear(x, w).double(), x.double() @ w.double().T, rtol=1e-2, atol=1e-2)
    for _ in range(3):
        both = random(2 * N, N, scale=0.1)
        x, w = both[:N], both[N:]
        torch.testing.assert_close(ops.linear(x, w).double(), x.double() @ w.double().T, rtol=1e-2, atol=1e-2)
        c = random(N, N)
        expected = c.double() + x.double() @ w.double()
        ops.addmm.out(c, x, w, out=c)
        torch.testing.assert_close(c.double(), expected, rtol=1e-2, atol=1e-2)
