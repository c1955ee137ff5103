"""Streams, graphs, updates, device scalars, lifetimes: everything around the launch itself."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from cases import OPERATIONS, assert_grows_nothing, assert_matches, poisoned, random_matrix

import pycutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError, NotCompiledError

M, N, K = 264, 136, 72
BOTH = pytest.mark.parametrize("name", ["f16_tnt", "hopper_cooperative_2x1"])


def operands(name: str) -> tuple[Any, Any, Any, Any, Any]:
    operation = OPERATIONS[name]
    return (
        operation,
        random_matrix(operation.A, M, K),
        random_matrix(operation.B, K, N),
        random_matrix(operation.C, M, N),
        poisoned(operation.C, M, N),
    )


@BOTH
def test_current_stream_of_torch(name: str) -> None:
    import torch

    operation, A, B, _, D = operands(name)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    A.mul_(1)  # what torch loads at first use may wait for the device
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        A.mul_(2)  # only a launch on the same stream sees this
        operation.run(arguments)
        assert not stream.query()
    arguments.sync()
    assert_matches(operation, A, B, None, D)


@BOTH
def test_explicit_streams(name: str) -> None:
    import cupy
    import torch

    operation, A, B, _, D = operands(name)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    torch.cuda.synchronize()
    mine, other = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    for stream in (mine, mine.cuda_stream, other, other.ptr):
        D.fill_(float("nan"))
        torch.cuda.synchronize()
        operation.run(arguments, stream=stream)
        arguments.sync()
        assert_matches(operation, A, B, None, D)
    with pytest.raises(ArgumentTypeError, match="stream must be"):
        operation.run(arguments, stream="main")
    with pytest.raises(ArgumentTypeError, match="stream is -5"):
        operation.run(arguments, stream=-5)


def test_numpy_operands_on_a_named_stream() -> None:
    """They are copied on the current stream, which is busy here; the launch on the other stream has to wait."""
    import cupy
    import numpy as np
    import torch

    operation = OPERATIONS["f16_tnt"]
    side = cupy.cuda.Stream(non_blocking=True)
    for _ in range(3):
        A, B = (np.random.default_rng().standard_normal(shape).astype("f2") for shape in ((M, K), (N, K)))
        D = np.full((M, N), np.nan, "f2")
        torch.cuda._sleep(50_000_000)
        arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B.T, None, D)
        operation.run(arguments, stream=side)
        A = np.random.default_rng().standard_normal((M, K)).astype("f2")
        torch.cuda._sleep(50_000_000)
        arguments.update(A=A)
        operation.run(arguments, stream=side)
        arguments.sync()
        np.testing.assert_allclose(D.astype(float), A.astype(float) @ B.T.astype(float), rtol=2e-3, atol=2e-3)


@BOTH
def test_memory_outlives_its_names_on_a_stream_of_the_callers(name: str) -> None:
    """Arguments and tensors go while the launch waits; nothing may take their memory before it has run."""
    import torch

    operation, A, B, _, D = operands(name)
    expected_A = A.clone()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    operation.run(arguments, stream=side)
    del A, arguments
    gc.collect()
    for _ in range(8):  # torch would hand the freed memory out here, on its current stream
        random_matrix(operation.A, M, K).fill_(float("inf"))
    side.synchronize()
    assert_matches(operation, expected_A, B, None, D)


@BOTH
def test_torch_graph(name: str) -> None:
    import torch

    operation, A, B, _, D = operands(name)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    arguments.sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    for _ in range(3):
        A.copy_(random_matrix(operation.A, M, K))
        D.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_matches(operation, A, B, None, D)


def test_arguments_made_under_capture() -> None:
    import torch

    operation, A, B, _, D = operands("f16_tnt")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
        operation.run(arguments)
    D.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_matches(operation, A, B, None, D)


@BOTH
def test_cupy_graph(name: str) -> None:
    import cupy
    import torch

    operation, A, B, _, D = operands(name)
    a, b, d = (cupy.from_dlpack(tensor) for tensor in (A, B, D))
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        arguments = pycutlass.GemmArguments(operation, (M, N, K), a, b, None, d)
        operation.run(arguments)
        stream.begin_capture()
        operation.run(arguments)
        graph = stream.end_capture()
        D.fill_(float("nan"))
        torch.cuda.synchronize()
        graph.launch(stream)
    stream.synchronize()
    assert_matches(operation, A, B, None, D)
    del arguments


@BOTH
def test_update_exchanges_tensors(name: str) -> None:
    operation, A, B, C, D = operands(name)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, C, D, output_op=operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    for _ in range(3):
        _, A, B, C, D = operands(name)
        arguments.update(A=A, B=B, C=C, D=D)
        assert arguments.ptr_A == A.data_ptr() and arguments.ptr_D == D.data_ptr()
        operation.run(arguments)
        arguments.sync()
        assert_matches(operation, A, B, C, D, 1.0, 1.0)
    arguments.update(output_op=operation.epilogue_type(-0.5, 0.25))
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, C, D, -0.5, 0.25)


@BOTH
def test_update_on_error_changes_nothing(name: str) -> None:
    operation, A, B, _, D = operands(name)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    before = (arguments.ptr_A, arguments.ptr_B, arguments.ptr_D)
    other = random_matrix(operation.A, M, K)
    for wrong in (A[:, :-8], A.float(), A.cpu(), D):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            arguments.update(B=random_matrix(operation.B, K, N), A=wrong)
        assert before == (arguments.ptr_A, arguments.ptr_B, arguments.ptr_D)
    flat = other.reshape(-1)
    arguments.update(A=flat)  # another form of the same matrix is no error
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, other, B, None, D)


def test_update_lets_go_of_the_old_tensor() -> None:
    import weakref

    operation, A, B, _, D = operands("f16_tnt")
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    watched = weakref.ref(A)
    arguments.update(A=random_matrix(operation.A, M, K))
    del A
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("name", ["f16_tnt", "f16_acc16_tnt", "hopper_cooperative_2x1", "hopper_pingpong"])
def test_scalars_in_device_memory(name: str) -> None:
    import torch

    operation, A, B, C, D = operands(name)
    dtype = getattr(torch, operation.epilogue_functor.compute.dtype_name)
    alpha, beta = torch.tensor([1.0], device="cuda", dtype=dtype), torch.tensor(0.5, device="cuda", dtype=dtype)
    arguments = pycutlass.GemmArguments(
        operation, (M, N, K), A, B, C, D, output_op=operation.epilogue_type(alpha, beta)
    )
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, C, D, 1.0, 0.5)
    alpha.fill_(-2.0)
    beta.fill_(0.0)
    C.fill_(float("nan"))
    operation.run(arguments)  # no new arguments: the kernel reads them when it runs
    arguments.sync()
    assert_matches(operation, A, B, None, D, -2.0, 0.0)
    two = operation.epilogue_type(torch.ones(2, device="cuda", dtype=dtype), 0.0)
    with pytest.raises(ArgumentError, match="alpha on the device has 2 elements, and must have one"):
        pycutlass.GemmArguments(operation, (M, N, K), A, B, C, D, output_op=two)


def test_threads() -> None:
    operation = OPERATIONS["f16_tnt"]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                _, A, B, _, D = operands("f16_tnt")
                arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
                operation.run(arguments)
                arguments.sync()
                assert_matches(operation, A, B, None, D)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_launch_config_and_leading_dimensions() -> None:
    operation, A, B, _, D = operands("f16_tnt")
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    config = arguments.launch_config
    assert config.grid == (3, 2, 1)
    assert config.block == (operation.tile_description.num_threads, 1, 1)
    assert config.shared_memory_capacity == operation.tile_description.stage_bytes() * 3
    assert (arguments.lda, arguments.ldb, arguments.ldd) == (K, K, N)


def test_wrong_owner_and_uncompiled_operations() -> None:
    operation, A, B, _, D = operands("f16_tnt")
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    with pytest.raises(ArgumentError, match="were made for"):
        OPERATIONS["f16_swizzle2"].run(arguments)
    fields = {field: getattr(operation, field) for field in operation._FIELDS}
    fresh = type(operation)(**fields | {"swizzling_functor": pycutlass.cutlass.IdentitySwizzle8})
    with pytest.raises(NotCompiledError, match="add_module"):
        pycutlass.GemmArguments(fresh, (M, N, K), A, B, None, D)


@pytest.mark.slow
def test_a_hundred_thousand_launches_grow_nothing() -> None:
    operation, A, B, _, D = operands("f16_tnt")
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    other = A.clone()

    def launch(index: int) -> None:
        arguments.update(A=other if index % 2 else A)
        operation.run(arguments)

    assert_grows_nothing(launch)
