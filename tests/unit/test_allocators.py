"""Where workspaces come from: RMM's pool, another library's memory, or the user's own. On a stand-in for the driver."""

from __future__ import annotations

import sys
import threading

import fake_gpu
import pytest

import pycutlass
from pycutlass import allocators
from pycutlass.errors import ArgumentError, ArgumentTypeError, ToolkitError

_PROGRAM = """
import gc, ctypes
from pycutlass import _core, memory

class Own:
    \"\"\"An allocator of the user's.\"\"\"
    def __init__(self):
        self.alive, self.taken, self.given_back = {}, [], []
    def allocate(self, size, stream):
        pointer = ctypes.c_uint64()
        before = current()
        use(stream.ordinal)
        assert driver.cuMemAlloc_v2(ctypes.byref(pointer), size + 256) == 0
        use(before)
        address = -(-pointer.value // 256) * 256
        self.alive[address] = size
        self.taken.append((size, stream))
        return address
    def deallocate(self, pointer, size, stream):
        assert self.alive.pop(pointer) == size
        self.given_back.append((size, stream))

M, N, K = 8, 12, 16
a, b, nothing = on_host(M, K, 1), on_host(K, N, 2, "F"), np.full((M, N), np.nan, np.float32)
operation = gemm()
def split(stream=None, D=None):
    A, B = Array(1, a), Array(1, b)
    D = D or Array(1, nothing)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=2)
    operation.run(arguments, stream)
    return arguments, D
"""


def run(program: str) -> None:
    fake_gpu.run(f"{_PROGRAM}\n{program}")


def test_a_workspace_comes_from_the_allocator_that_was_chosen_and_goes_back():
    run("""
own = Own()
with pycutlass.allocating_with(own):
    arguments, D = split()
pool = pycutlass.memory._pools.get(1)
assert pool is None, "RMM is not asked"
arguments.sync()
assert (D.now() == a @ b).all()
[(size, stream)] = own.taken
assert stream.ordinal == 1 and size == arguments._execution._buffers["workspace"].size
del arguments
gc.collect()
assert own.given_back == [(size, stream)] and not own.alive
arguments, D = split()
assert len(own.taken) == 1 and pycutlass.memory._pools[1].get_allocated_size() > 0
""")


def test_copies_of_host_arrays_and_later_updates_come_from_the_same():
    run("""
own, other = Own(), Own()
d = nothing.copy()
with pycutlass.allocating_with(own):
    arguments = pycutlass.GemmArguments(operation, (M, N, K), Array(1, a), b, None, d)
assert len(own.taken) == 2, "B, and D"
pycutlass.set_allocator(other)
arguments.update(B=2 * b)
operation.run(arguments)
arguments.sync()
assert (d == 2 * (a @ b)).all() and not other.taken and len(own.taken) == 3
more, _ = split()
assert len(other.taken) == 1
more.sync()
del arguments, more
gc.collect()
pycutlass.set_allocator(None)
soon(lambda: not own.alive and not other.alive)
assert not own.alive and not other.alive
""")


def test_partial_sums_and_what_flushes_caches_too():
    run("""
from pycutlass import timing
own = Own()
timing._LEAST_FLUSHED_BYTES = 3000
with pycutlass.allocating_with(own):
    A, B = Array(0, a), Array(0, b)
    mode = pycutlass.cutlass.gemm.Mode.GemmSplitKParallel
    partial = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, None, mode, split_k_slices=2)
    assert partial.ptr_D in own.alive
    pycutlass.DeviceTimer(seconds=0, cold_l2=True).time(lambda: operation.run(partial))
assert 3000 in [size for size, _ in own.taken]
del partial
gc.collect()
assert soon(lambda: not own.alive)
""")


def test_memory_is_given_back_behind_the_stream_that_used_it_last():
    run("""
own, stream = Own(), Stream(1)
with pycutlass.allocating_with(own):
    arguments, D = split(stream)
taken_on = own.taken[0][1]
assert taken_on.handle == 0
del arguments
gc.collect()
_core.Stream(1, stream.ptr).synchronize()
assert soon(lambda: own.given_back), "once the launch has ended"
""")


_OTHERS = """
class Theirs:
    def __init__(self, size, device):
        pointer = ctypes.c_uint64()
        with current_device(device):
            assert driver.cuMemAlloc_v2(ctypes.byref(pointer), size + 256) == 0
        self.ptr, self.size = -(-pointer.value // 256) * 256, size
        self.freed = freed
    def data_ptr(self):
        return self.ptr
    def __del__(self):
        self.freed.append(self.ptr)
freed, entered = [], []
class External:
    def __init__(self, handle, device, kind="external"):
        self.handle = self.cuda_stream = handle
        self.device, self.kind = device, kind
    def __enter__(self):
        entered.append((self.handle, self.device, self.kind))
    def __exit__(self, *exception):
        entered.append("left")
import sys
from types import ModuleType
class OutOfMemoryError(RuntimeError):
    pass
class AcceleratorError(RuntimeError):
    pass
def give(size, device):
    if size > 10**9:  # as torch says it where its own look at the memory fails
        raise (AcceleratorError if name == "torch" else OutOfMemoryError)("CUDA error: out of memory")
    if size > 10**6:
        raise OutOfMemoryError("full")
    return Theirs(size, device)
"""

_TORCH = """
torch = ModuleType("torch")
theirs = {}
def external(handle, device):
    assert handle > 1, "torch makes a stream of its own of what is no handle"
    return External(handle, device)
class Tensor:
    pass
torch.__dict__.update(Tensor=Tensor, AcceleratorError=AcceleratorError)
torch.__dict__.update(uint8=None, is_grad_enabled=lambda: False, device=lambda kind, ordinal: ordinal,
    empty=lambda size, dtype, device: give(size, device),
    cuda=SimpleNamespace(ExternalStream=external, stream=lambda stream: stream, OutOfMemoryError=OutOfMemoryError,
                         current_stream=lambda device: External(theirs.get(device, 7), device, "current"),
                         default_stream=lambda device: External(0, device, "default")))
sys.modules["torch"] = torch
name = "torch"
"""

_CUPY = """
import cupy
class Device:
    now = []
    def __init__(self, ordinal):
        self.ordinal = ordinal
    def __enter__(self):
        Device.now.append(self.ordinal)
    def __exit__(self, *exception):
        Device.now.pop()
def external(handle, device):
    assert handle, "which is Stream.null"
    return External(handle, device)
Null = SimpleNamespace(null=External(0, 1, "null"))
alloc = lambda size: give(size, Device.now[-1])
memory_ = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
cupy.cuda.__dict__.update(Device=Device, ExternalStream=external, Stream=Null, alloc=alloc, memory=memory_)
name = "cupy"
"""


@pytest.mark.parametrize("library", [_TORCH, _CUPY], ids=["torch", "cupy"])
def test_memory_of_a_library(library):
    run(
        _OTHERS
        + library
        + """
stream = Stream(1)
with pycutlass.allocating_with(name):
    arguments, D = split()
assert entered == [(0, 1, "default" if name == "torch" else "null"), "left"], entered
arguments.sync()
assert (D.now() == a @ b).all()
workspace = arguments._execution._buffers["workspace"].pointer
log()
operation.run(arguments, stream)
assert not freed
del arguments
gc.collect()
_core.Stream(1, stream.ptr).synchronize()
assert soon(lambda: freed == [workspace])
allocator = pycutlass.TorchAllocator() if name == "torch" else pycutlass.CupyAllocator()
taken_on, used_on = _core.Stream(1), _core.Stream(1, stream.ptr)
log()
entered.clear()
pointer = allocator.allocate(64, used_on)
assert entered == [(stream.ptr, 1, "external"), "left"], entered
allocator.deallocate(pointer, 64, used_on)
if name == "torch":
    theirs[1] = stream.ptr
    entered.clear()
    allocator.deallocate(allocator.allocate(64, used_on), 64, used_on)
    assert entered == [(stream.ptr, 1, "current"), "left"], entered
    del theirs[1]
pointer = allocator.allocate(64, taken_on)
allocator.deallocate(pointer, 64, taken_on)
assert not [line for line in log() if line.startswith("cuStreamWaitEvent")], "on the same stream it is in order"
pointer = allocator.allocate(64, taken_on)
allocator.deallocate(pointer, 64, used_on)
calls = [line for line in log() if line.startswith(("cuStreamWaitEvent", "cuEventRecord"))]
assert calls == ["cuEventRecord 1", "cuStreamWaitEvent 1"], calls
assert freed[-1] == pointer and not allocator._held
assert refused(lambda: allocator.allocate(10**7, taken_on), "10,000,000") == "PoolError"
assert refused(lambda: allocator.allocate(10**10, taken_on), "10,000,000,000") == "PoolError"
"""
    )


def test_what_an_allocator_may_not_do():
    run("""
class Raises(Own):
    def allocate(self, size, stream):
        raise self.error
class Returns(Own):
    def allocate(self, size, stream):
        return self.answer(super().allocate(size, stream))
    def deallocate(self, pointer, size, stream):
        self.given_back.append(pointer)
full, broken, ours = Raises(), Raises(), Raises()
full.error, broken.error = MemoryError("full"), OSError("gone")
ours.error = pycutlass.errors.PoolError(1, 2, 3)
refusals = [
    (full, "PoolError", []),
    (broken, "ArgumentError", ["Raises cannot give", "gone"]),
    (ours, "PoolError", ["1 bytes"]),
]
for own, kind, words in refusals:
    with pycutlass.allocating_with(own):
        assert refused(split, *words) == kind
odd, text, nothing_ = Returns(), Returns(), Returns()
odd.answer, text.answer, nothing_.answer = (lambda p: p + 16), str, lambda p: 0
for own, kind, words in (
    (odd, "ArgumentError", ["aligned to 256"]),
    (text, "ArgumentTypeError", ["must return an address"]),
    (nothing_, "ArgumentTypeError", ["must return an address", "got 0"]),
):
    with pycutlass.allocating_with(own):
        assert refused(split, *words) == kind
assert odd.given_back, "what was no good went back"
arguments, D = split()
arguments.sync()
assert (D.now() == a @ b).all()
""")


def test_a_graph_keeps_its_workspace_where_the_allocator_gives_it_under_capture():
    """As torch does: memory from the graph's pool; what zeroes it becomes a part of the graph."""
    run("""
class Slab(Own):  # memory that was there before: nothing may be allocated under capture
    def __init__(self):
        super().__init__()
        self.slab = super().allocate(4096, _core.Stream(1))
        self.alive.clear()
        self.taken.clear()
    def allocate(self, size, stream):
        self.alive[self.slab] = size
        self.taken.append((size, stream))
        return self.slab
own, stream = Slab(), Stream(1)
before, _ = split()  # loads the kernel
before.sync()
A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
with busy(1, stream), captured(stream) as graph, pycutlass.allocating_with(own):
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=2)
    operation.run(arguments)
assert own.taken[0][1] == _core.Stream(1, stream.ptr)
for _ in range(2):
    memory_at(own.slab, (own.taken[0][0] // 4,), np.int32)[:] = -1  # others have used it meanwhile
    D.set(nothing)
    graph.replay()
    _core.Stream(1, stream.ptr).synchronize()
    assert (D.now() == a @ b).all()
del arguments
gc.collect()
assert soon(lambda: not own.alive)
""")


def test_torch_has_its_memory_back_before_the_capture_ends():
    """`torch.compile` refuses what is alive then in a graph's pool, and belongs to no tensor that it knows."""
    run(
        _OTHERS
        + _TORCH
        + """
before, _ = split()  # loads the kernel
before.sync()
slabs, stream = [Theirs(4096, 1) for _ in range(2)], Stream(1)  # nothing may be allocated under capture
class Lent:
    def __init__(self):
        self.ptr = slabs[0].ptr
    def data_ptr(self):
        return self.ptr
    def __del__(self):
        freed.append(self.ptr)
torch.empty = lambda size, dtype, device: Lent()
theirs[1] = stream.ptr
A, B, D = Array(1, a), Array(1, b), Array(1, nothing)
def make():
    with pycutlass.allocating_with("torch"):
        return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=2)
elsewhere = make()  # with memory that was taken on another stream, which a mark would have to be on
slabs.reverse()
with busy(1, stream), captured(stream) as graph:
    arguments = make()
    operation.run(arguments)
    assert not freed
    del arguments
    assert freed == [slabs[0].ptr]
    elsewhere._execution._buffers["workspace"].stream = _core.Stream(1, stream.ptr)
    del elsewhere
    assert freed == [slabs[0].ptr]
assert soon(lambda: freed == [slab.ptr for slab in slabs])
for _ in range(2):
    D.set(nothing)
    graph.replay()
    _core.Stream(1, stream.ptr).synchronize()
    assert (D.now() == a @ b).all()
"""
    )


# What is chosen


def test_scopes_nest_and_belong_to_their_thread():
    class Any:
        def allocate(self, size, stream):
            return 0

        def deallocate(self, pointer, size, stream):
            return None

    one, two, three = Any(), Any(), Any()
    seen = []
    assert allocators.chosen.get().allocator is None
    try:
        pycutlass.set_allocator(one)
        with pycutlass.allocating_with(two):
            with pycutlass.allocating_with(None):
                assert allocators.chosen.get().allocator is None
            pycutlass.set_allocator(three)
            assert allocators.chosen.get().allocator is two
            thread = threading.Thread(target=lambda: seen.append(allocators.chosen.get().allocator))
            thread.start()
            thread.join()
        assert seen == [three] and allocators.chosen.get().allocator is three
    finally:
        pycutlass.set_allocator("rmm")
    assert allocators.chosen.get().allocator is None


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("jax", ArgumentError, ["rmm, torch, cupy", "'jax'"]),
        (3, ArgumentTypeError, ["allocate(size, stream)", "got 3"]),
        (object(), ArgumentTypeError, ["deallocate(pointer, size, stream)"]),
        (pycutlass.TorchAllocator, ArgumentTypeError, ["make one, TorchAllocator()"]),
    ],
)
def test_what_is_no_allocator(given, error, words):
    for choose in (pycutlass.set_allocator, pycutlass.allocating_with):
        with pytest.raises(error) as caught:
            choose(given)
        assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_a_library_that_is_not_there(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolkitError, match=f"needs {name}, which is not installed"):
        pycutlass.set_allocator(name)
    assert allocators.chosen.get().allocator is None
