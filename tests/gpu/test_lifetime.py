"""What is let go of by itself: tensors of launches that have ended, and kernels that nothing uses any more."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import ampere, assert_matches, f16, f32, poisoned, random_matrix
from matrix import KERNELS

import pycutlass
from pycutlass import compiler, deferred_release, kernel, memory

OPERATION = KERNELS["f16-f16-tnt"]
M, N, K = 80, 48, 64
LONG = 100_000_000  # cycles


def soon(happens: Callable[[], bool], seconds: float = 10) -> bool:
    """Return whether something happens, in another thread."""
    end = time.monotonic() + seconds
    while not happens() and time.monotonic() < end:
        time.sleep(0.01)
    return happens()


def described(tile: tuple[int, int, int]) -> Any:
    """Return an operation, compiled, that is kept nowhere else: each test has a tile of its own."""
    operation = ampere(f16, f32, f16, tile=tile)
    compiler.add_module([operation])
    return operation


def operands() -> tuple[Any, Any, Any]:
    import torch

    made = random_matrix(OPERATION.A, M, K), random_matrix(OPERATION.B, K, N), poisoned(OPERATION.C, M, N)
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    return made


def is_unloaded(seen: weakref.ref[Any]) -> Callable[[], bool]:
    return lambda: seen() is None and not deferred_release._keeper.attempts


def test_unloading_waits_for_what_runs_and_what_is_queued() -> None:
    import torch

    (A, B, D), operation = operands(), described((64, 64, 64))
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    torch.cuda.synchronize()
    D.fill_(float("nan"))
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    seen = weakref.ref(kernel.load(operation, 0))
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            operation.run(arguments)
    del arguments, operation
    gc.collect()
    assert soon(is_unloaded(seen))
    torch.cuda.synchronize()
    assert_matches(OPERATION, A, B, None, D)


def test_a_captured_kernel_stays_loaded() -> None:
    import torch

    (A, B, D), operation = operands(), described((128, 64, 64))
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    seen = weakref.ref(kernel.load(operation, 0))
    del arguments, operation
    gc.collect()
    assert not soon(is_unloaded(seen), 0.2)
    D.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_matches(OPERATION, A, B, None, D)
    assert kernel.load(described((128, 64, 64)), 0) is seen()


@pytest.mark.slow  # for compute-sanitizer: under memcheck the capture was invalidated, without it it goes on
def test_a_capture_goes_on_while_things_are_let_go() -> None:
    """Kernels, tensors of a launch on a named stream, and buffers of the stream that is captured."""
    import torch

    (A, B, D), (_, _, other), stream = operands(), operands(), torch.cuda.Stream()
    kept = pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, None, D)
    operation = described((64, 128, 64))
    dropped = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, other)
    operation.run(dropped, stream)
    OPERATION.run(kept)
    unloaded, gone = is_unloaded(weakref.ref(kernel.load(operation, 0))), weakref.ref(other)
    graph, capturing = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(capturing):
        host = np.zeros((M, K), np.float16)
        buffers = pycutlass.GemmArguments(OPERATION, (M, N, K), host, B, None, D)
        OPERATION.run(buffers)
    torch.cuda.synchronize()
    before = memory.pool_of(0).get_allocated_size()
    assert before > 0
    with torch.cuda.graph(graph, stream=capturing):
        OPERATION.run(kept)
        del dropped, other, operation, buffers
        assert soon(lambda: gone() is None)
        assert memory.pool_of(0).get_allocated_size() == before
        soon(unloaded, 0.5)  # then, or later
    assert soon(unloaded)
    assert soon(lambda: memory.pool_of(0).get_allocated_size() == 0)
    D.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_matches(OPERATION, A, B, None, D)


@pytest.mark.parametrize("how", ["update", "drop"])
def test_tensors_go_when_their_launch_has_ended_without_another_call(how: str) -> None:
    import torch

    (A, B, D), (_, _, other), stream = operands(), operands(), torch.cuda.Stream()
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, None, D)
    gc.collect()  # takes long in a process with torch, the second time less
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20 * LONG)
    OPERATION.run(arguments, stream)
    gone = weakref.ref(D)
    if how == "update":
        arguments.update(D=other)
    else:
        del arguments
    del D
    gc.collect()
    assert gone() is not None and not stream.query()
    assert soon(lambda: gone() is None)
    assert stream.query(), "not before the launch had ended"
