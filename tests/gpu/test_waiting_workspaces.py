"""Launches that wait for tensors with memory of their own, on a GPU: split-K, stream-K and reductions of functions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from two_streams import on_two_streams  # noqa: E402

import pycutlass  # noqa: E402
from pycutlass import epilogue as functions  # noqa: E402
from pycutlass import epilogue_function  # noqa: E402
from pycutlass.plan import conv2d_candidates, conv_choices  # noqa: E402
from pycutlass.plan.candidates import candidates  # noqa: E402
from pycutlass.plan.choices import Choices  # noqa: E402

M, N, K = 200, 192, 4096


@epilogue_function
def summed(accum: Any) -> Any:
    return {"D": accum, "rows": functions.sum(accum, axis=1), "largest": functions.absmax(accum, axis=0)}


#: Kernels whose launches have memory of their own: the compute capability that lists them, and which.
KINDS: dict[str, tuple[int, Callable[[Any], bool]]] = {
    "serial split-K": (80, lambda each: each.split_k_slices == 3 and not each.is_parallel and not each.is_stream_k),
    "parallel split-K": (80, lambda each: each.split_k_slices == 3 and each.is_parallel),
    "stream-K": (80, lambda each: each.is_stream_k),
    "Hopper, parallel split-K": (90, lambda each: each.split_k_slices == 2 and each.is_parallel),
    "Hopper, stream-K": (90, lambda each: each.is_stream_k),
    "reductions": (80, lambda each: each.split_k_slices == 1 and not each.operation.tile_description.is_gemv),
    "Hopper, reductions": (90, lambda each: each.split_k_slices == 1 and not each.operation.tile_description.is_gemv),
}


def random(*shape: int, scale: float = 1.0) -> Any:
    return (torch.randn(shape, device="cuda") * scale).half()


class _Case:
    """A plan with a kernel of one kind, and tensors for it."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        capability, fits = KINDS[kind]
        if capability > 10 * torch.cuda.get_device_capability()[0]:
            pytest.skip("these kernels are for newer GPUs")
        self.function = summed if kind.endswith("reductions") else None
        a, b, _, inputs = self.drawn()
        how: dict[str, Any] = {"epilogue": summed, "epilogue_inputs": inputs} if self.function else {}
        self.plan = pycutlass.Gemm(a, b, **how)
        chosen = next(each for each in candidates(self.plan.kind, capability) if fits(each))
        monkeypatch.setattr(Choices, "of", lambda _self, _m: chosen)

    def drawn(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        a, b = random(M, K, scale=K**-0.5), random(K, N)
        out = torch.full((M, N), float("nan"), device="cuda", dtype=torch.float16)
        if self.function is None:
            return a, b, out, {}
        return a, b, out, {name: torch.full((size,), float("nan"), device="cuda") for name, size in _SUMS}

    def run(self, a: Any, b: Any, out: Any, inputs: dict[str, Any]) -> None:
        how = {"epilogue_inputs": inputs} if inputs else {}
        assert self.plan.run(a, b, out=out, **how) is out


_SUMS = (("rows", M), ("largest", N))


def check(a: Any, b: Any, out: Any, inputs: dict[str, Any]) -> None:
    exact = a.double() @ b.double()
    torch.testing.assert_close(out.double(), exact, rtol=4e-3, atol=4e-3)
    if inputs:
        torch.testing.assert_close(inputs["rows"].double(), exact.sum(1), rtol=4e-3, atol=4e-2)
        torch.testing.assert_close(inputs["largest"].double(), exact.abs().amax(0), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_of_plans(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first launch on one waits, with its memory; two streams and a graph are kept apart."""
    case = _Case(kind, monkeypatch)
    case.run(*case.drawn())
    assert len(case.plan._waiting) == 1 and not case.plan._launches._of_thread
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(20):
        computed = []
        for stream in streams:
            with torch.cuda.stream(stream):
                computed.append([case.drawn() for _ in range(2)])
                for each in computed[-1]:
                    case.run(*each)
        torch.cuda.synchronize()
        for on_stream in computed:
            for each in on_stream:
                check(*each)
    waiting = len(case.plan._waiting)
    assert waiting == 3  # for the first stream and these two

    a, b, out, inputs = case.drawn()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run(a, b, out, inputs)
    assert len(case.plan._waiting) == waiting  # a captured launch has memory of the graph
    for _ in range(5):
        a.copy_(random(M, K, scale=K**-0.5))
        others = case.drawn()
        graph.replay()
        case.run(*others)
        check(a, b, out, inputs)
        check(*others)


@pytest.mark.parametrize("kind", KINDS)
def test_of_threads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _Case(kind, monkeypatch)
    case.run(*case.drawn())
    torch.cuda.synchronize()

    def work() -> None:
        for _ in range(20):
            each = case.drawn()
            case.run(*each)
            torch.cuda.current_stream().synchronize()
            check(*each)

    on_two_streams(work)


@pytest.mark.parametrize("kind", KINDS)
def test_no_memory_is_left_behind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _Case(kind, monkeypatch)
    tensors = case.drawn()
    case.run(*tensors)
    torch.cuda.synchronize()
    used = torch.cuda.memory_allocated()
    for _ in range(50):
        case.run(*tensors)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == used
    assert len(case.plan._waiting) == 1
    case.plan._waiting.clear()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < used


@pytest.mark.parametrize("kind", KINDS)
def test_memory_goes_with_the_plan(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else keeps either."""
    case = _Case(kind, monkeypatch)
    case.run(*case.drawn())
    torch.cuda.synchronize()
    used, gone = torch.cuda.memory_allocated(), weakref.ref(case.plan)
    del case.plan
    gc.collect()
    assert gone() is None, gc.get_referrers(gone())
    assert torch.cuda.memory_allocated() < used


def test_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of parallel split-K end in a reduction, which knows images as matrices."""

    def images(*shape: int, scale: float = 1.0) -> Any:
        return random(*shape, scale=scale).contiguous(memory_format=torch.channels_last)

    x, dy = images(4, 32, 14, 14), images(4, 64, 14, 14, scale=0.05)
    plan = pycutlass.Conv2d(dy, x, kind="wgrad", result_size=(64, 32, 3, 3), padding=1)
    fitting = conv2d_candidates(plan.kind, 80)
    chosen = next(each for each in fitting if each.split_k_slices > 1 and each.is_parallel)
    monkeypatch.setattr(conv_choices.Conv2dChoices, "of", lambda _self, _n: chosen)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(10):
        computed = []
        for stream in streams:
            with torch.cuda.stream(stream):
                x, dy, dw = images(4, 32, 14, 14), images(4, 64, 14, 14, scale=0.05), images(64, 32, 3, 3)
                plan.run(dy, x, out=dw.fill_(float("nan")))
                computed.append((x, dy, dw))
        torch.cuda.synchronize()
        for x, dy, dw in computed:
            exact = torch.nn.grad.conv2d_weight(x.double(), (64, 32, 3, 3), dy.double(), padding=1)
            torch.testing.assert_close(dw.double(), exact, rtol=4e-3, atol=2e-2)
    assert len(plan._waiting) == 2  # one for each stream
