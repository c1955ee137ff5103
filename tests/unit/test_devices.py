"""Every call of the driver goes to the device that it is about, whichever is current, and leaves that one current.

The programs run on a stand-in for the driver with two GPUs (fake_gpu), where nothing runs before somebody waits for it
and a default stream is that of the current context. Tensors are on GPU 1.
"""

from __future__ import annotations

import fake_gpu
import pytest

#: A product on GPU 1 and its operands. They are small whole numbers, so results are exact.
_GEMM = """
M, N, K = 8, 12, 16
a, b, c = on_host(M, K, 1), on_host(K, N, 2, "F"), on_host(M, N, 3)
nothing = np.full((M, N), np.nan, np.float32)
operation = gemm()
Mode = pycutlass.cutlass.gemm.Mode

def check(D, expected=None, written=True):
    expected = a @ b if expected is None else expected
    now = D.now() if isinstance(D, Array) else D
    assert (now == expected).all() if written else np.isnan(now).all(), now
"""

_SCENARIOS = {
    "addresses, which have the default stream": """
def scenario():
    A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A.data.ptr, B.data.ptr, None, D.data.ptr)
    operation.run(arguments)
    check(D, written=False)
    arguments.sync()
    check(D)
""",
    "a stream of a library": """
stream = Stream(1)
def scenario():
    A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
    with busy(1, stream):
        arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
        operation.run(arguments)
        other = Array(1, nothing)
        arguments.update(D=other)
        operation.run(arguments)
        check(D, written=False)
        check(other, written=False)
    arguments.sync()
    check(D)
    check(other)
""",
    "numpy operands": """
def scenario():
    A, d = Array(1, a), nothing.copy()
    arguments = pycutlass.GemmArguments(
        operation, (M, N, K), A, b, c, d, output_op=operation.epilogue_type(2.0, 3.0)
    )
    operation.run(arguments)
    check(d, written=False)
    arguments.sync()
    check(d, 2 * (a @ b) + 3 * c)
    arguments.update(C=2 * c)
    operation.run(arguments)
    arguments.sync()
    check(d, 2 * (a @ b) + 6 * c)
""",
    "numpy operands alone, on the GPU that is current": """
def scenario():
    d = nothing.copy()
    arguments = pycutlass.GemmArguments(operation, (M, N, K), a, b, None, d)
    assert arguments._execution.ordinal == (current() or 0)
    operation.run(arguments)
    arguments.sync()
    check(d)
""",
    "serial split-K": """
first, second = Stream(1), Stream(1)
def scenario():
    A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=2)
    operation.run(arguments)
    for stream in (first, second, first):
        with busy(1, stream):
            operation.run(arguments)
    operation.run(arguments, second)
    operation.run(arguments)
    check(D, written=False)
    arguments.sync()
    check(D)
""",
    "a workspace that is cleared before every launch": """
streaming = gemm("stream_k")
def scenario():
    A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
    arguments = pycutlass.GemmArguments(streaming, (M, N, K), A, B, None, D)
    for _ in range(3):
        streaming.run(arguments)
    check(D, written=False)
    arguments.sync()
    check(D)
""",
    "parallel split-K": """
adding = reduction(operation, M, N)
def scenario():
    A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
    arguments = pycutlass.GemmArguments(
        operation, (M, N, K), A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=2
    )
    sums = pycutlass.ReductionArguments(adding, (M, N), 2, arguments.ptr_D, D)
    operation.run(arguments)
    adding.run(sums)
    check(D, written=False)
    sums.sync()
    check(D)
""",
    "a stream that is named": """
def scenario():
    stream = Stream(1)
    A, B, D, other = Array(1, a), Array(1, b), Array(1, nothing), Array(1, nothing)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments, stream)
    arguments.update(D=other)  # D is kept until the launch has ended
    operation.run(arguments, stream.ptr)
    operation.run(arguments, 0)
    operation.run(arguments)
    check(D, written=False)
    arguments.sync()
    check(D)
    check(other)
    del arguments
    driver.fake_run()
    stream.destroy()
""",
    "a stream that is named, with buffers": """
def scenario():
    stream, d = Stream(1), nothing.copy()
    B = Array(1, b)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), a, B, None, d, split_k_slices=2)
    for _ in range(2):
        operation.run(arguments, stream)
        operation.run(arguments)
    operation.run(arguments, stream)
    arguments.sync()
    check(d)
""",
    "graphs": """
stream = Stream(1)
def scenario():
    A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    with busy(1, stream), captured(stream) as graph:
        operation.run(arguments)
    with captured(stream) as named:
        operation.run(arguments, stream)
    for each in (graph, named):
        D.set(nothing)
        each.replay()
        check(D, written=False)
        driver.fake_run()
        check(D)
""",
    "destruction in another thread": """
def scenario():
    B, d = Array(1, b), nothing.copy()
    held = [pycutlass.GemmArguments(operation, (M, N, K), a, B, None, d, split_k_slices=2)]
    operation.run(held[0])
    held[0].sync()
    in_a_thread(held.clear)
    check(d)
    assert not held
""",
    "the pool": """
from pycutlass import device, memory
def scenario():
    ordinal = device.current()
    assert ordinal == (current() or 0)
    pool = pycutlass.get_memory_pool(0, 2**30)
    assert pool.ordinal == ordinal and pycutlass.get_memory_pool(0, 2**30) is pool
    for other in (0, 1):
        buffer = memory.DeviceBuffer(other, 100)
        assert memory.pool_of(other).get_allocated_size() == 100
        del buffer
    assert pycutlass.get_allocated_size() == 0
    del pool
    assert pycutlass.get_memory_pool(0, 2**29).ordinal == ordinal
""",
}

_GROUPS = """
sizes = [(4, 8, 16), (8, 4, 8), (12, 12, 4)]
As = [on_host(m, k, 10 * i) for i, (m, n, k) in enumerate(sizes)]
Bs = [on_host(k, n, 10 * i + 1, "F") for i, (m, n, k) in enumerate(sizes)]
operations = [group("device"), group("host")]
stream = Stream(1)

def fresh():
    return [Array(1, np.full((m, n), np.nan, np.float32)) for m, n, _ in sizes]

def check(Ds, written=True):
    for A, B, D in zip(As, Bs, Ds):
        assert (D.now() == A @ B).all() if written else np.isnan(D.now()).all()

def scenario():
    for operation in operations:
        A, B, D = [Array(1, x) for x in As], [Array(1, x) for x in Bs], fresh()
        arguments = pycutlass.GemmGroupedArguments(operation, sizes, A, B, None, D)
        operation.run(arguments)
        check(D, written=False)
        other = fresh()
        arguments.update(D=other)
        with busy(1, stream):
            operation.run(arguments)
        operation.run(arguments, stream)
        arguments.sync()
        check(D)
        check(other)
        last = fresh()
        mixed = pycutlass.GemmGroupedArguments(operation, sizes, As, B, None, last)
        operation.run(mixed)
        check(last, written=False)
        mixed.sync()
        check(last)
        with busy(1, stream), captured(stream) as graph:
            operation.run(mixed)
        for D in last:
            D.set(np.full(D.shape, np.nan, np.float32))
        graph.replay()
        check(last, written=False)
        driver.fake_run()
        check(last)
"""


@pytest.mark.parametrize("name", _SCENARIOS)
def test_on_the_other_gpu(name: str) -> None:
    fake_gpu.run(_GEMM + _SCENARIOS[name] + "everywhere(scenario)")


def test_groups_on_the_other_gpu() -> None:
    fake_gpu.run(_GROUPS + "everywhere(scenario)")


_FAULTS = {
    "arguments that are made, launched and dropped": """
def scenario():
    d = nothing.copy()
    arguments = pycutlass.GemmArguments(operation, (M, N, K), a, B, None, d, split_k_slices=2)
    operation.run(arguments)
    operation.run(arguments, stream)
    arguments.sync()
    check(d)
""",
    "launches": """
D = Array(1, nothing)
arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=2)
def scenario():
    D.set(nothing)
    operation.run(arguments, stream)
    operation.run(arguments)
    arguments.sync()
    check(D)
""",
}


@pytest.mark.parametrize("name", _FAULTS)
def test_a_call_that_fails(name: str) -> None:
    """Whichever it is: our own exception comes out, the current device stays, and the next time all is well."""
    program = (
        """
A, B, stream = Array(1, a), Array(1, b), Stream(1)
"""
        + _FAULTS[name]
        + """
untold = with_every_fault(scenario)
# Questions that have an answer without the driver's, and what destructors do.
questions = {"cuThreadExchangeStreamCaptureMode", "cuStreamGetCtx", "cuEventQuery"}
assert set(untold) <= {*questions, "cuEventDestroy", "cuCtxGetCurrent", "cuCtxSetCurrent"}, untold
with current_device(0):
    scenario()
"""
    )
    fake_gpu.run(_GEMM + program)


_BLOCKING = (
    *("cuDevicePrimaryCtxRetain", "cuMemHostAlloc"),  # at first need only
    *("cuLaunchKernelEx", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuStreamSynchronize"),
    *("cuEventRecord", "cuStreamWaitEvent", "cuLibraryLoadData", "cuKernelGetFunction"),
)


def test_no_lock_is_held_while_the_driver_waits() -> None:
    """Other threads go on, and could make a host callback ahead on the stream return."""
    program = f"""
import faulthandler, threading
faulthandler.dump_traceback_later(40, exit=True)
first, second = Stream(1), Stream(1)

def scenario(problems):
    use(0)
    line, B = Array(1, a[:1]), Array(1, b)
    groups, streaming = group("host"), gemm("stream_k")
    Ds = [Array(1, nothing)] + [Array(1, nothing[:1]) for _ in range(problems)]
    sizes, As = [D.shape + (K,) for D in Ds], [Array(1, a)] + [line] * problems
    many = pycutlass.GemmGroupedArguments(groups, sizes, As, [B] * len(sizes), None, Ds)
    groups.run(many)
    many.sync()
    check(Ds[0])
    d = nothing.copy()
    arguments = pycutlass.GemmArguments(streaming, (M, N, K), a, B, None, d)
    streaming.run(arguments, first)
    streaming.run(arguments, second)
    streaming.run(arguments)
    arguments.sync()
    check(d)

for number, name in enumerate({_BLOCKING!r}):
    forget_kernels()
    driver.fake_block(name.encode())
    thread = threading.Thread(target=scenario, args=(1000 * (number + 1) if number < 2 else 5,))
    thread.start()
    assert driver.fake_blocked(20), name + " was not called"
    assert thread.is_alive(), name
    driver.fake_block(b"")
    thread.join()
    print(name)
"""
    assert fake_gpu.run(_GEMM + program).split() == list(_BLOCKING)


def test_a_refused_update_forgets_no_move() -> None:
    """What stays in place is watched where the launch would read it, not where it has gone since."""
    program = """
import torch
D = Array(1, nothing)
arguments = pycutlass.GemmArguments(operation, (M, N, K), Array(1, a), Array(1, b), None, D)
call, A, B = arguments._execution.call, torch.ones(M, K), torch.ones(N, K).t()
f32, plain = pycutlass._core.ELEMENTS["f32"], pycutlass._core.FORMS["tensor"]
for role, name, tensor in (0, "A", A), (1, "B", B):
    call.set_operand(role, tensor.data_ptr(), (K,), 4 * tensor.numel(), 4, f32, plain)
    call.remember(name, tensor, name)
A.data = torch.zeros(M, K)
assert not call.update(torch.ones(M, K), torch.ones(3, 5), None, None)
try:
    call.run()
except pycutlass.errors.ArgumentError as error:
    print("operand A" in str(error))
"""
    assert fake_gpu.run(_GEMM + program) == "True\n"
