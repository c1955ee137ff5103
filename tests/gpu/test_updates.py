"""Arguments that go over to tensors of another kind or library, and launches of one object on several streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import assert_matches, poisoned, random_matrix, random_values
from matrix import KERNELS, Mode

import pycutlass
from pycutlass.errors import ArgumentError

M, N, K = 80, 48, 64
OPERATION = KERNELS["f16-f16-tnt"]
LONG = 100_000_000  # cycles, so that what does not wait comes too early


def host(tensor: Any) -> Any:
    """Return a tensor as a NumPy array with the same strides."""
    copy = np.empty_like(np.lib.stride_tricks.as_strided(np.empty(1, "f2"), tensor.shape, [0] * tensor.ndim))
    copy = np.empty(tensor.T.shape, "f2").T if tensor.ndim == 2 and tensor.stride(0) == 1 else copy
    copy[...] = tensor.cpu().numpy()
    return copy


def device(array: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def operands(k: int = K) -> tuple[Any, Any, Any, Any]:
    return (
        random_matrix(OPERATION.A, M, k),
        random_matrix(OPERATION.B, k, N),
        random_matrix(OPERATION.C, M, N),
        poisoned(OPERATION.C, M, N),
    )


# Updates


def test_a_bias_of_numpy_becomes_a_matrix_and_a_bias_again() -> None:
    A, B, C, D = operands()
    bias, scalars = random_values(OPERATION.C, (N,)), OPERATION.epilogue_type(1.0, 1.0)
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), host(A), host(B), host(bias), host(D), output_op=scalars)
    for source in (bias, C, bias):
        written = host(D)
        arguments.update(C=host(source), D=written)
        OPERATION.run(arguments)
        arguments.sync()
        assert_matches(OPERATION, A, B, source.expand(M, N), device(written), 1.0, 1.0)


def test_a_result_goes_to_the_d_that_was_given_last() -> None:
    A, B, _, D = operands()
    array = host(D)
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, None, array)
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, None, device(array))
    array[...] = 5
    for _ in range(3):  # the first time D comes from another library, then it is of the same form
        D = poisoned(OPERATION.C, M, N)
        arguments.update(D=D)
        OPERATION.run(arguments)
        arguments.sync()
        assert_matches(OPERATION, A, B, None, D)
        assert np.all(array == 5)
    array[...] = np.nan
    arguments.update(D=array)
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, None, device(array))
    array[...] = 5
    arguments.update(D=D.fill_(float("nan")))
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, None, D)
    assert np.all(array == 5)


def test_tensors_that_take_the_place_of_arrays_bring_their_stream() -> None:
    import torch

    A, B, _, D = operands()
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), host(A), host(B), None, host(D))
    OPERATION.run(arguments)
    A.mul_(1)  # what torch loads at first use may wait for the device
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        arguments.update(A=A, B=B, D=D)
        torch.cuda._sleep(LONG)
        A.mul_(2)  # only a launch on the same stream sees this
        OPERATION.run(arguments)
        assert not stream.query()
    arguments.sync()
    assert_matches(OPERATION, A, B, None, D)


def test_d_over_another_part_of_c_is_refused_by_update_as_well() -> None:
    A, B, C, D = operands()
    scalars = OPERATION.epilogue_type(1.0, 1.0)
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, C, D, output_op=scalars)
    both = random_matrix(OPERATION.C, M + 1, N)
    with pytest.raises(ArgumentError, match="D overlaps C"):
        arguments.update(C=both[:M], D=both[1:])
    assert (arguments.ptr_C, arguments.ptr_D) == (C.data_ptr(), D.data_ptr())
    kept = C.clone()
    arguments.update(D=C)
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, kept, C, 1.0, 1.0)


def test_page_locked_arrays_may_change_when_the_arguments_are_made() -> None:
    import torch

    A, B, _, D = operands()
    locked, written = A.cpu().pin_memory(), host(D)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        torch.cuda._sleep(LONG)
        arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), locked.numpy(), host(B), None, written)
        locked.fill_(float("nan"))
        OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, None, device(written))


# Streams


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("first", ["named", "current"])
def test_a_launch_on_another_stream_waits_where_nobody_else_orders_it(first: str, slices: int) -> None:
    """Behind a launch on a named stream, and wherever two launches would share the semaphores of split-K."""
    import torch

    k = 512
    A, B, _, D = operands(k)
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, k), A, B, None, D, split_k_slices=slices)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(LONG)
        OPERATION.run(arguments, *([streams[0]] if first == "named" else []))
    with torch.cuda.stream(streams[1]):
        OPERATION.run(arguments)
    OPERATION.run(arguments, streams[2])
    streams[1].synchronize()
    ordered = first == "named" or slices > 1
    assert streams[0].query() or not ordered
    streams[2].synchronize()
    assert streams[0].query() or not ordered
    torch.cuda.synchronize()
    assert_matches(OPERATION, A, B, None, D, slices=slices)


def test_stream_k_on_two_current_streams() -> None:
    import torch

    operation, (m, n, k) = KERNELS["f16-streamk"], (192, 192, 4096)
    A, B, D = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n), poisoned(operation.C, m, n)
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, None, D)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                operation.run(arguments)
    torch.cuda.synchronize()
    assert_matches(operation, A, B, None, D)


def test_the_stream_of_an_earlier_launch_may_be_gone() -> None:
    import cupy

    k = 512
    A, B, _, D = operands(k)
    arrays = [cupy.asarray(each) for each in (A, B.T, D)]
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, k), arrays[0], arrays[1].T, None, arrays[2], split_k_slices=4)
    cupy.cuda.Device().synchronize()
    for _ in range(10):
        with cupy.cuda.Stream(non_blocking=True):
            OPERATION.run(arguments)
    OPERATION.run(arguments)
    cupy.cuda.Device().synchronize()
    assert_matches(OPERATION, A, B, None, device(arrays[2].get()), slices=4)


def test_a_graph_keeps_a_buffer_that_an_update_outgrows() -> None:
    import torch

    A, B, C, D = operands()
    bias, scalars = random_values(OPERATION.C, (N,)), OPERATION.epilogue_type(1.0, 1.0)
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, host(bias), D, output_op=scalars)
    OPERATION.run(arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        OPERATION.run(arguments)
    other = poisoned(OPERATION.C, M, N)
    arguments.update(C=host(C), D=other)
    others = [  # of the same pool, where the bias would be if it had been given back
        pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, host(bias * 0 + 7), other, output_op=scalars)
        for _ in range(4)
    ]
    D.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_matches(OPERATION, A, B, bias.expand(M, N), D, 1.0, 1.0)
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, C, other, 1.0, 1.0)
    del others


# Arrays


def test_one_tensor_for_all_matrices_of_an_array() -> None:
    batch = 3
    A, B = random_matrix(OPERATION.A, M, K, batch), random_matrix(OPERATION.B, K, N, batch)
    C, D = random_matrix(OPERATION.C, M, N, batch), poisoned(OPERATION.C, M, N, batch)
    scalars = OPERATION.epilogue_type(1.0, 2.0)
    arguments = pycutlass.GemmArguments(
        OPERATION, (M, N, K), A, B, C.reshape(-1), D, Mode.Array, batch=batch, output_op=scalars
    )
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, C, D, 1.0, 2.0)


def test_a_table_of_biases() -> None:
    import torch

    batch = 3
    A, B = random_matrix(OPERATION.A, M, K, batch), random_matrix(OPERATION.B, K, N, batch)
    bias, D = random_values(OPERATION.C, (batch, N)), poisoned(OPERATION.C, M, N, batch)
    table = torch.tensor([each.data_ptr() for each in bias], device="cuda")
    scalars = OPERATION.epilogue_type(1.0, 1.0)
    arguments = pycutlass.GemmArguments(
        OPERATION, (M, N, K), A, B, table, D, Mode.Array, batch=batch, bias=True, output_op=scalars
    )
    assert arguments.ldc == 0
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, bias[:, None].expand(batch, M, N), D, 1.0, 1.0)
