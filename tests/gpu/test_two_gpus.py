"""Everything on GPU 1 while GPU 0 is current, behind a stream that is busy: what does not wait for it comes too early.

The current device must be the same after every call, in a thread without one as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cases import assert_matches, poisoned, random_matrix
from grouped_cases import BY_SCHEDULER, GROUPED, SIZES, Group
from matrix import KERNELS, REDUCTIONS, Mode

import pycutlass
from pycutlass import device, memory
from pycutlass.errors import ArgumentError

OPERATION, STREAM_K, REDUCTION = KERNELS["f16-f16-tnt"], KERNELS["f16-streamk"], REDUCTIONS["f16-f16-tnt"]
M, N, K = 80, 48, 512
LONG = 100_000_000  # cycles


def current_context() -> int | None:
    """Return the driver's current context in this thread."""
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


@contextlib.contextmanager
def same_device() -> Iterator[None]:
    """Fail where something changes the current device."""
    before = current_context()
    yield
    assert current_context() == before


def in_a_thread(what: Callable[[], object]) -> None:
    """Do something in a fresh thread, where no device is current, before or after."""

    def run() -> None:
        try:
            assert current_context() is None
            what()
            assert current_context() is None
        except BaseException as error:
            failed.append(error)

    failed: list[BaseException] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.fixture(autouse=True)
def gpu_0_is_current() -> Iterator[None]:
    """GPU 0 is current, and what both load at first use is there: that may wait for the device."""
    import torch

    torch.cuda.set_device(0)
    with torch.cuda.device(1):
        torch.cuda._sleep(1)
        arguments = multiply(*operands())
        OPERATION.run(arguments)
        arguments.sync()
        torch.cuda.synchronize()
    with same_device():
        yield
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)


def operands(operation: Any = OPERATION, k: int = K) -> tuple[Any, Any, Any]:
    """Return A, B and D on GPU 1."""
    import torch

    with torch.cuda.device(1):
        made = random_matrix(operation.A, M, k), random_matrix(operation.B, k, N), poisoned(operation.C, M, N)
        torch.cuda.synchronize()
    return made


def multiply(A: Any, B: Any, D: Any, operation: Any = OPERATION, **how: Any) -> pycutlass.GemmArguments:
    """Return arguments, made without changing the current device."""
    with same_device():
        return pycutlass.GemmArguments(operation, (M, N, A.shape[1]), A, B, None, D, **how)


@contextlib.contextmanager
def busy(stream: Any = None) -> Iterator[Callable[[], bool]]:
    """Have a stream of GPU 1 busy, its default stream by default; gives whether it still is."""
    import torch

    stream = torch.cuda.default_stream(1) if stream is None else stream
    with torch.cuda.device(1), torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        slept = torch.cuda.Event()
        slept.record()
    yield lambda: not slept.query()


def as_numpy(tensor: Any) -> Any:
    """Return a tensor's values as an array with the same strides."""
    array = np.empty(tensor.T.shape, "f2").T if tensor.stride(0) == 1 else np.empty(tensor.shape, "f2")
    array[...] = tensor.cpu().numpy()
    return array


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in a fresh thread"])
def test_sync_waits_for_the_stream_of_the_tensors_gpu(elsewhere: bool) -> None:
    A, B, D = operands()
    arguments = multiply(A, B, D)

    def run_and_sync() -> None:
        with same_device():
            OPERATION.run(arguments)
        assert is_busy()
        with same_device():
            arguments.sync()
        assert not is_busy()

    with busy() as is_busy:
        in_a_thread(run_and_sync) if elsewhere else run_and_sync()
    assert_matches(OPERATION, A, B, None, D)


def test_arguments_that_are_made_in_a_fresh_thread() -> None:
    import torch

    A, B, D = operands()
    written, host_A, host_B = as_numpy(D), as_numpy(A), as_numpy(B)

    def everything() -> None:
        arguments = multiply(A, host_B, written, split_k_slices=4)
        OPERATION.run(arguments)
        arguments.sync()
        alone = pycutlass.GemmArguments(OPERATION, (M, N, K), host_A, host_B, None, np.empty_like(written))
        assert alone._execution.ordinal == device.current() == 0
        OPERATION.run(alone)
        alone.sync()

    in_a_thread(everything)
    D.copy_(torch.from_numpy(written))
    assert_matches(OPERATION, A, B, None, D, slices=4)


def test_addresses_in_a_fresh_thread() -> None:
    A, B, D = operands()

    def everything() -> None:
        arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), A.data_ptr(), B.data_ptr(), None, D.data_ptr())
        assert arguments._execution.ordinal == 1
        OPERATION.run(arguments)
        arguments.sync()

    in_a_thread(everything)
    assert_matches(OPERATION, A, B, None, D)


def test_numpy_operands_are_copied_to_the_gpu_of_the_tensors() -> None:
    import torch

    A, B, D = operands()
    locked, written, plain = A.cpu().pin_memory(), as_numpy(D), as_numpy(A)
    with busy() as is_busy:
        arguments = multiply(locked.numpy(), B, written)
        locked.fill_(float("nan"))  # page-locked memory: the copy has ended
        assert not is_busy()
    with busy() as is_busy, same_device():
        arguments.update(A=plain)
        OPERATION.run(arguments)
        arguments.sync()
        assert not is_busy()
    assert_matches(OPERATION, A, B, None, torch.from_numpy(written).cuda(1))


@pytest.mark.parametrize("name", ["serial split-K", "stream-K"])
def test_a_workspace_on_two_streams(name: str) -> None:
    """What clears it is ordered with the launches, and they with each other."""
    import torch

    operation, k = (OPERATION, K) if name == "serial split-K" else (STREAM_K, 4096)
    A, B, D = operands(operation, k)
    stream = torch.cuda.Stream(1)
    with busy() as is_busy:
        arguments = multiply(A, B, D, operation, **({"split_k_slices": 4} if operation is OPERATION else {}))
        with same_device():
            operation.run(arguments)
            with torch.cuda.stream(stream):  # torch makes GPU 1 current meanwhile
                operation.run(arguments)
            operation.run(arguments, stream)
        arguments.sync()
        assert not is_busy()
    assert_matches(operation, A, B, None, D, slices=4)


def test_parallel_split_k() -> None:
    A, B, D = operands()
    with busy() as is_busy, same_device():
        partial = pycutlass.GemmArguments(
            OPERATION, (M, N, K), A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=4
        )
        arguments = pycutlass.ReductionArguments(REDUCTION, (M, N), 4, partial.ptr_D, D)
        OPERATION.run(partial)
        REDUCTION.run(arguments)
        arguments.sync()
        assert not is_busy()
    assert_matches(OPERATION, A, B, None, D, slices=4)


@pytest.mark.parametrize("name", BY_SCHEDULER)
def test_groups(name: str) -> None:
    """Their tables are sent to GPU 1, in the order of its stream."""
    import torch

    operation = GROUPED[name]
    with torch.cuda.device(1):
        group, other = Group(operation, SIZES), Group(operation, SIZES)
        torch.cuda.synchronize()
    with busy() as is_busy, same_device():
        arguments = group.arguments(1.0, 1.0)
        operation.run(arguments)
        arguments.update(A=other.A, B=other.B, C=other.C, D=other.D)
        operation.run(arguments, torch.cuda.Stream(1))
        operation.run(arguments)
        arguments.sync()
        assert not is_busy()
    group.check(1.0, 1.0)
    other.check(1.0, 1.0)
    other.poison()
    written = [as_numpy(each) if each.dtype == torch.float16 else each for each in other.D]
    torch.cuda.synchronize(1)
    in_a_thread(lambda: other.run(1.0, 1.0, D=written))
    for array, target in zip(written, other.D, strict=True):
        if array is not target:
            target.copy_(torch.from_numpy(array))
    other.check(1.0, 1.0)


def test_graphs() -> None:
    import torch

    A, B, D = operands()
    arguments = multiply(A, B, D)
    for named in (False, True):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(1)
        with torch.cuda.device(1), torch.cuda.graph(graph, stream=stream), torch.cuda.device(0), same_device():
            OPERATION.run(arguments, *([stream] if named else []))
        D.fill_(float("nan"))
        torch.cuda.synchronize(1)
        with torch.cuda.device(1):
            graph.replay()
        torch.cuda.synchronize(1)
        assert_matches(OPERATION, A, B, None, D)


def test_what_is_given_up_on_a_named_stream_is_kept() -> None:
    import torch

    A, B, D = operands()
    stream = torch.cuda.Stream(1)
    arguments = multiply(A, B, D)
    expected = D.clone()
    with busy(stream) as is_busy, same_device():
        OPERATION.run(arguments, stream)
        arguments.update(D=expected)
        before = torch.cuda.memory_allocated(1)
        del D  # nobody else has it: it must outlive the launch
        assert torch.cuda.memory_allocated(1) == before
        OPERATION.run(arguments)  # behind the launch on the stream
        assert is_busy()
        arguments.sync()
        assert not is_busy()
    assert_matches(OPERATION, A, B, None, expected)


def test_streams_of_the_other_gpu_are_refused() -> None:
    import torch

    A, B, D = operands()
    arguments = multiply(A, B, D)
    for stream in (torch.cuda.Stream(0), torch.cuda.default_stream(0)):
        with pytest.raises(ArgumentError, match=r"stream belongs to GPU 0, the operands are on GPU 1"):
            OPERATION.run(arguments, stream)
    for stream in (torch.cuda.Stream(1), torch.cuda.default_stream(1)):
        OPERATION.run(arguments, stream)
    arguments.sync()
    assert_matches(OPERATION, A, B, None, D)


def test_arrays_of_cupy_have_the_stream_of_their_gpu() -> None:
    import cupy
    import torch

    A, B, D = operands()
    with cupy.cuda.Device(1):
        arrays = [cupy.asarray(each) for each in (A, B.T, D)]
        stream = cupy.cuda.Stream(non_blocking=True)
        arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), arrays[0], arrays[1].T, None, arrays[2])
        OPERATION.run(arguments)
        cupy.cuda.Device(1).synchronize()
        arrays[2].fill(float("nan"))
        cupy.cuda.Device(1).synchronize()
        stream.use()
    try:
        torch.cuda.set_device(0)
        with busy(torch.cuda.ExternalStream(stream.ptr, device=1)) as is_busy, same_device():
            OPERATION.run(arguments)  # on the stream that cupy uses on GPU 1, whichever is current
            assert is_busy()
            arguments.sync()
            assert not is_busy()
    finally:
        with cupy.cuda.Device(1):
            cupy.cuda.Stream.null.use()
        torch.cuda.set_device(0)
    assert_matches(OPERATION, A, B, None, torch.from_numpy(arrays[2].get()).cuda(1))


def test_buffers_are_taken_from_and_given_back_to_their_own_gpu() -> None:
    A, B, D = operands()
    written = as_numpy(D)
    before = [memory.pool_of(ordinal).get_allocated_size() for ordinal in (0, 1)]
    held = [multiply(A, as_numpy(B), written, split_k_slices=4)]
    with same_device():
        OPERATION.run(held[0])
        held[0].sync()
    assert memory.pool_of(0).get_allocated_size() == before[0]
    assert memory.pool_of(1).get_allocated_size() > before[1]
    in_a_thread(held.clear)
    assert [memory.pool_of(ordinal).get_allocated_size() for ordinal in (0, 1)] == before


def test_what_asks_for_a_device_changes_none() -> None:
    import torch

    for ordinal in (0, 1):
        torch.cuda.set_device(ordinal)
        with same_device():
            assert device.current() == ordinal
            pool = pycutlass.get_memory_pool(2**26, 2**28)
            assert pool.ordinal == ordinal
            assert pycutlass.get_memory_pool(2**26, 2**29) is not pool
            assert pycutlass.get_allocated_size() == 0
            assert device.describe(1 - ordinal).ordinal == 1 - ordinal
    torch.cuda.set_device(0)


def test_one_operation_on_both_gpus_at_once() -> None:
    import torch

    made = []
    for ordinal in (0, 1):
        with torch.cuda.device(ordinal):
            A, B, D = random_matrix(OPERATION.A, M, K), random_matrix(OPERATION.B, K, N), poisoned(OPERATION.C, M, N)
            torch.cuda.synchronize()
        made.append((A, B, D, multiply(A, B, D)))
    with busy() as is_busy, same_device():
        for *_, arguments in made:
            OPERATION.run(arguments)
        made[0][3].sync()
        assert is_busy(), "GPU 0 does not wait for GPU 1"
        made[1][3].sync()
        assert not is_busy()
    for A, B, D, _ in made:
        assert_matches(OPERATION, A, B, None, D)
