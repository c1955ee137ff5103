"""Workspaces from the memory of torch and cupy, and from the pool of a graph that is captured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from cases import OPERATIONS, poisoned, random_matrix

import pycutlass
from pycutlass import GemmArguments, deferred_release

M, N, K = 264, 136, 144
SLICES = 3


def split(D: Any = None) -> tuple[Any, Any, Any, Any]:
    """Return arguments of serial split-K, whose workspace has a semaphore for each tile, and their tensors."""
    operation = OPERATIONS["f16_tnt"]
    A, B = random_matrix(operation.A, M, K), random_matrix(operation.B, K, N)
    D = poisoned(operation.C, M, N) if D is None else D
    return GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=SLICES), A, B, D


def check(A: Any, B: Any, D: Any) -> None:
    import torch

    torch.cuda.synchronize()
    torch.testing.assert_close(D.double(), A.double() @ B.double(), rtol=2e-2, atol=0.5)


def workspace(arguments: Any) -> Any:
    return arguments._execution._buffers["workspace"]


def soon(happens: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not happens() and time.monotonic() < end:
        time.sleep(0.01)
    return happens()


@pytest.fixture(autouse=True)
def settled() -> None:
    """What earlier tests have let go of is gone: it counts as allocated, and unloads kernels in a thread of its own."""
    gc.collect()
    assert soon(lambda: not (deferred_release._keeper.deferred or deferred_release._keeper.attempts))


# Under memcheck torch keeps no pools, so that each tensor is an allocation of its own: it does not count them, a graph
# has no pool, and what torch allocates while one is captured ends the capture. So sanitizers leave these out.
@pytest.mark.slow
def test_a_workspace_from_torch() -> None:
    import torch

    torch.cuda.synchronize()
    before = pycutlass.get_allocated_size()
    with pycutlass.allocating_with("torch"):
        held = torch.cuda.memory_allocated()
        arguments, A, B, D = split()
        of_tensors = sum(-(-each.numel() * each.element_size() // 512) * 512 for each in (A, B, D))
        assert torch.cuda.memory_allocated() - held > of_tensors, "tensors, and a workspace"
    assert pycutlass.get_allocated_size() == before, "RMM gave nothing"
    for _ in range(3):
        arguments.operation.run(arguments)
    check(A, B, D)
    allocated, size = torch.cuda.memory_allocated(), workspace(arguments).size
    del arguments
    gc.collect()
    assert soon(lambda: torch.cuda.memory_allocated() <= allocated - size)


def test_a_workspace_used_on_another_stream_is_not_reused_too_early() -> None:
    import torch

    other = torch.cuda.Stream()
    with pycutlass.allocating_with("torch"):
        arguments, A, B, D = split()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(200_000_000)
    arguments.operation.run(arguments, other)
    size = workspace(arguments).size
    del arguments
    gc.collect()
    for _ in range(20):  # were the memory free now, one of these would have it
        torch.full((size // 4 + 1,), -1, dtype=torch.int32, device="cuda")
    check(A, B, D)


def test_a_workspace_from_cupy() -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    held = pool.used_bytes()
    with pycutlass.allocating_with("cupy"):
        arguments, A, B, D = split()
    assert pool.used_bytes() > held
    arguments.operation.run(arguments)
    check(A, B, D)
    del arguments
    gc.collect()
    assert soon(lambda: pool.used_bytes() == held)


def test_copies_of_numpy_arrays_from_torch() -> None:
    import numpy as np

    operation = OPERATIONS["f16_tnt"]
    A = np.random.default_rng(1).standard_normal((128, 64)).astype(np.float16)
    B = np.asfortranarray(np.random.default_rng(2).standard_normal((64, 128)).astype(np.float16))
    D = np.empty((128, 128), np.float16)
    with pycutlass.allocating_with(pycutlass.TorchAllocator()):
        arguments = GemmArguments(operation, (128, 128, 64), A, B, None, D)
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_allclose(D, A.astype(np.float64) @ B.astype(np.float64), rtol=2e-2, atol=0.2)


@pytest.mark.slow
def test_a_workspace_from_the_pool_of_a_graph() -> None:
    """The proof of the seam: made while a graph is captured, from the graph's own pool, and zeroed by the graph."""
    import torch

    loaded, *_ = split()  # kernels are loaded before the capture
    operation = OPERATIONS["f16_tnt"]
    A, B = random_matrix(operation.A, M, K), random_matrix(operation.B, K, N)
    D = poisoned(operation.C, M, N)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pycutlass.allocating_with("torch"), torch.cuda.graph(graph):
        arguments = GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=SLICES)
        operation.run(arguments)
    pointer, size = workspace(arguments).pointer, workspace(arguments).size
    pools = [
        tuple(segment["segment_pool_id"])
        for segment in torch.cuda.memory_snapshot()
        if segment["address"] <= pointer < segment["address"] + segment["total_size"]
    ]
    assert pools == [tuple(graph.pool())], "the workspace lies in the graph's pool"
    for _ in range(3):
        A.copy_(random_matrix(operation.A, M, K))
        D.fill_(float("nan"))
        pycutlass._core.fill(pointer, 0xFF, size, pycutlass._core.Stream(0))  # as other tensors of the pool may
        torch.cuda.synchronize()
        graph.replay()
        check(A, B, D)
    del arguments
    gc.collect()
    D.fill_(float("nan"))
    graph.replay()  # which needs the memory, not the arguments
    check(A, B, D)
    del loaded


@pytest.mark.slow
def test_two_graphs_share_a_pool() -> None:
    import torch

    loaded, *_ = split()
    pool, graphs, made = torch.cuda.graph_pool_handle(), [], []
    operation = OPERATIONS["f16_tnt"]
    for _ in range(2):
        A, B = random_matrix(operation.A, M, K), random_matrix(operation.B, K, N)
        D = poisoned(operation.C, M, N)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with pycutlass.allocating_with("torch"), torch.cuda.graph(graph, pool=pool):
            arguments = GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=SLICES)
            operation.run(arguments)
        graphs.append(graph)
        made.append((arguments, A, B, D))
    for graph, (_, A, B, D) in zip(graphs, made, strict=True):
        graph.replay()
        check(A, B, D)
    del loaded


@pytest.mark.slow  # a cudaMalloc that is refused is an error to compute-sanitizer
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_memory_that_is_not_there(library: str) -> None:
    with pytest.raises(pycutlass.errors.PoolError):
        pycutlass.allocators.take(
            pycutlass.TorchAllocator() if library == "torch" else pycutlass.CupyAllocator(),
            1 << 50,
            pycutlass._core.Stream(0),
        )
