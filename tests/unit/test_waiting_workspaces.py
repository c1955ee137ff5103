"""Launches with memory of their own that wait for tensors, on a stand-in for the driver: split-K and workspaces."""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import THERE, TORCH

pytest.importorskip("torch")

_PLAN = f"""{TORCH}
import ctypes, gc
from fake_gpu.inside import _ExchangeApi, _load, log as asked
import pycutlass.plan.choices
from pycutlass.plan import Candidate, launches as of_plans
from pycutlass.plan.measured import generation
from pycutlass.plan.shortcut import products

M, N, K = 5, 6, 8
where = [0]  # the current stream, for whoever asks torch
device.follow_streams = lambda call, libraries, ordinal: (call.follow_callable(lambda: where[0]), [])[1]
reordered.current_stream_source = split_k.current_stream_source = lambda library, ordinal: lambda: where[0]
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def current(kind, ordinal, stream):
    stream[0] = where[0]
    return 0

get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
api = _ExchangeApi.from_address(get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
api.current_work_stream = ctypes.cast(current, ctypes.c_void_p).value
of_plans._is_of_torch = lambda tensor: isinstance(tensor, torch.Tensor)  # which lie in the memory of the host here
Candidate.has_workspace = True

class Own:
    # What torch is to launches: memory that may also be taken while a graph is captured.
    def __init__(self):
        self.used, self.of_graphs = {{}}, [Array(0, np.zeros(4096, np.uint8)) for _ in range(2)]

    def allocate(self, size, stream):
        array = self.of_graphs.pop() if stream.is_capturing() else Array(0, np.zeros(size, np.uint8))
        self.used[array.data.ptr] = array
        return array.data.ptr

    def deallocate(self, pointer, size, stream):
        array = self.used.pop(pointer)
        with current_device(0):
            assert driver.fake_free_on(ctypes.c_uint64(pointer), ctypes.c_void_p(stream.handle)) == 0
        array.data.ptr = 0  # it is freed then

own = Own()
of_plans.allocating_with = lambda library: pycutlass.allocating_with(own)

plain, stream_k = gemm(), gemm("stream_k")
kinds = {{
    "serial": Candidate(plain, split_k_slices=2),
    "parallel": Candidate(plain, split_k_slices=2, is_parallel=True),
    "stream-K": Candidate(stream_k),
}}
_load(kinds["parallel"].reduction, "reduction")
chosen = kinds["serial"]
pycutlass.plan.choices.Choices.of = lambda self, m: chosen
recorded = pycutlass.matmul.__wrapped__.__wrapped__
known_calls = recorded.__closure__[recorded.__code__.co_freevars.index("self")].cell_contents.calls

{THERE}
alive = []
def drawn(m=M):
    a, b = of(m, K), of(N, K)
    given = a, b.t(), there(np.full((m, N), np.nan, np.float32))
    alive.append((a, b, given))
    return given

def launches():
    return sum(line.startswith("cuLaunchKernel") for line in asked())

def used():
    return sum(each.shape[0] for each in own.used.values())

def right(a, b, d, c=0):
    driver.fake_run()
    return torch.equal(d, a @ b + c)
"""

KINDS = ["serial", "parallel", "stream-K"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_keeps_one_launch_and_its_memory(kind: str) -> None:
    fake_gpu.run(f"""{_PLAN}
chosen, steps = kinds["{kind}"], 2 if "{kind}" == "parallel" else 1
before = used()
plan = pycutlass.Gemm(*drawn()[:2])
made = []
for turn in range(4):
    a, b, d = drawn()
    asked()
    assert plan.run(a, b, out=d) is d
    assert launches() == steps and right(a, b, d)
    assert len(plan._waiting) == 1 and not plan._launches._of_thread
    made.append(used())
assert made[0] > before and set(made) == {{made[0]}}, made
for m in (1, 2, 9):
    for turn in range(2):
        a, b, d = drawn(m)
        plan.run(a, b, out=d)
        assert right(a, b, d)
assert len(plan._waiting) == 4
generation.begin()
plan.run(a, b, out=d)
assert len(plan._waiting) == 1 and right(a, b, d)
del plan
gc.collect()
driver.fake_run()
assert used() == before, (used(), before)
""")


@pytest.mark.parametrize("kind", KINDS)
def test_launches_on_another_stream_wait_for_the_memory(kind: str) -> None:
    """Streams take turns as far as events allow: sums of one launch would be those of another."""
    fake_gpu.run(f"""{_PLAN}
chosen = kinds["{kind}"]
plan, streams = pycutlass.Gemm(*drawn()[:2]), [Stream(0) for _ in range(6)]
for way in (lambda a, b, d: plan.run(a, b, out=d), lambda a, b, d: pycutlass.matmul(a, b, out=d)):
    for _ in range(3):
        computed = []
        for each in (*streams, *streams[::-1], streams[2], streams[4]):
            where[0] = each.ptr
            computed.append(drawn())
            way(*computed[-1])
        driver.fake_run_in_turns()
        for a, b, d in computed:
            assert right(a, b, d)
where[0] = 0
plan.run(*drawn()[:2], out=drawn()[2])
assert len(plan._waiting) == 4  # further streams take turns
in_threads(lambda stream: (plan.run(*(each := drawn())[:2], out=each[2]), right(*each)), 1, 2)
""")


@pytest.mark.parametrize("kind", KINDS)
def test_those_that_are_kept_with_tensors_as_well(kind: str) -> None:
    """What C++ does not read, as arrays of cupy, has its launches kept for each thread."""
    fake_gpu.run(f"""{_PLAN}
chosen = kinds["{kind}"]
def arrays(m=M):
    a, b = on_host(m, K, len(alive)), on_host(N, K, len(alive) + 1)
    alive.append((Array(0, a), Array(0, np.asarray(b.T, order="F")), Array(0, np.full((m, N), np.nan, np.float32))))
    return alive[-1], a @ b.T

plan, streams = pycutlass.Gemm(*arrays()[0][:2]), [Stream(0), Stream(0)]
for _ in range(3):
    computed = []
    for each in (streams[0], streams[1], streams[0], streams[0], streams[1]):
        where[0] = each.ptr
        computed.append(arrays())
        (a, b, d), _ = computed[-1]
        with busy(0, each):
            plan.run(a, b, out=d)
    driver.fake_run_in_turns()
    for (a, b, d), wanted in computed:
        assert np.array_equal(d.now(), wanted)
assert not len(plan._waiting)
where[0] = 0
""")


@pytest.mark.parametrize("kind", KINDS)
def test_products_in_one_line(kind: str) -> None:
    fake_gpu.run(f"""{_PLAN}
chosen, steps = kinds["{kind}"], 2 if "{kind}" == "parallel" else 1
for turn in range(5):
    a, b, d = drawn()
    c = of(M, N)
    alive.append(c)
    asked()
    assert pycutlass.matmul(a, b, out=d) is d
    assert launches() == steps and right(a, b, d)
    assert pycutlass.matmul(a, b, c, beta=1, out=d) is d
    assert right(a, b, d, c)
    pycutlass.matmul(a, b, d, beta=1, out=d)  # in place
    assert right(a, b, d, a @ b + c)
assert (len(known_calls), len(products)) == (2, 1), (len(known_calls), len(products))  # one is in place
""")


@pytest.mark.parametrize("kind", KINDS)
def test_captured_launches_have_memory_of_their_own(kind: str) -> None:
    fake_gpu.run(f"""{_PLAN}
chosen = kinds["{kind}"]
plan, stream = pycutlass.Gemm(*drawn()[:2]), Stream(0)
where[0] = stream.ptr
for _ in range(2):
    a, b, d = drawn()
    plan.run(a, b, out=d)
    assert right(a, b, d)
before = used()
a, b, d = drawn()
with captured(stream) as graph:
    plan.run(a, b, out=d)
assert len(plan._waiting) == 1 and used() > before
for _ in range(3):
    others = drawn()
    graph.replay()
    plan.run(*others[:2], out=others[2])
    assert right(a, b, d) and right(*others)
    d.fill_(float("nan"))
where[0] = 0
""")


def test_memory_is_not_kept_without_end() -> None:
    """There is a limit for one launch, and one for all of the process."""
    fake_gpu.run(
        f"""{_PLAN}
chosen = kinds["parallel"]
plans = [pycutlass.Gemm(*drawn()[:2]) for _ in range(2)]
before, counts = used(), []
large = (64 << 20) // (2 * 4 * N)  # the most that is kept of one
for at, m in enumerate((large + 1, large, large - 1, large - 2, large - 3, large - 4)):
    a, b, d = drawn(m)
    plan = plans[at % 2]
    for _ in range(2):
        plan.run(a, b, out=d)
    assert right(a, b, d)
    counts.append(sum(len(each._waiting) for each in plans))
    alive.clear()
    assert len(plan._launches._of_thread) == (plan is plans[0]), (at, len(plan._launches._of_thread))
assert counts == [0, 1, 2, 3, 4, 1], counts
del plan
plans.clear()
gc.collect()
driver.fake_run()
assert used() == before, (used(), before)
""",
        seconds=120,
    )


@pytest.mark.parametrize(("slices", "is_parallel"), [(1, False), (2, False), (2, True)])
def test_convolutions(slices: int, is_parallel: bool) -> None:
    """Those of parallel split-K end in a reduction, which knows images as matrices."""
    fake_gpu.run(f"""{_PLAN}
import pycutlass.plan.conv_choices
from pycutlass.plan import Conv2dCandidate
from torch.nn import functional
candidate = Conv2dCandidate(fprop(), {slices}, {is_parallel})
if {is_parallel}:
    _load(candidate.reduction, "reduction")
Conv2dCandidate.has_workspace = True
pycutlass.plan.conv_choices.Conv2dChoices.of = lambda self, n: candidate

def images(n, channels, p, q, fill=None):
    tensor = of(n, p, q, channels)
    alive.append(tensor)
    return (tensor if fill is None else tensor.fill_(fill)).permute(0, 3, 1, 2)

plan, streams = pycutlass.Conv2d(images(2, 4, 5, 6), images(6, 4, 3, 2)), [Stream(0), Stream(0)]
with_c = pycutlass.Conv2d(images(2, 4, 5, 6), images(6, 4, 3, 2), images(2, 6, 3, 5), beta=2)
for each in (plan, with_c):
    for turn in range(4):
        computed = []
        for stream in streams:
            where[0] = stream.ptr
            x, w, y = images(2, 4, 5, 6), images(6, 4, 3, 2), images(2, 6, 3, 5, float("nan"))
            c = images(2, 6, 3, 5) if each is with_c else None
            asked()
            before = y._version
            assert each.run(x, w, c, out=y) is y and y._version > before
            assert launches() == 1 + {is_parallel}, turn
            computed.append((x, w, c, y))
        driver.fake_run_in_turns()
        for x, w, c, y in computed:
            wanted = functional.conv2d(x, w)
            assert torch.equal(y, wanted if c is None else wanted + 2 * c)
    assert len(each._waiting) == (1 if {slices} == 1 else 2) and not each._launches._of_thread
""")


def test_memory_of_a_launch_that_fails_goes_back_behind_its_first_kernel() -> None:
    """Another thread frees D while that is launched, and the reduction finds out."""
    fake_gpu.run(f"""{_PLAN}
import threading
use(0)
chosen = kinds["parallel"]
plan, (old, new) = pycutlass.Gemm(*drawn()[:2]), (Stream(0), Stream(0))
for each in (old, new):
    where[0] = each.ptr
    for _ in range(2):
        plan.run(*drawn()[:2], out=drawn()[2])
driver.fake_run()
given_back, deallocate = [], own.deallocate
own.deallocate = lambda pointer, size, stream: (given_back.append(stream.handle), deallocate(pointer, size, stream))
a, b, d = *drawn()[:2], torch.zeros(M, N)
driver.fake_lend(d.data_ptr(), d.nbytes, 0)
driver.fake_block(b"cuLaunchKernelEx")
heard = []
def run():
    use(0)
    heard.append(refused(lambda: plan.run(a, b, out=d), "D"))

thread = threading.Thread(target=run)
thread.start()
assert driver.fake_blocked(5.0)
d.untyped_storage().resize_(0)
driver.fake_block(b"")
thread.join()
assert heard == ["ArgumentError"] and given_back == [new.ptr]
where[0] = 0
""")


def test_memory_does_not_go_back_into_a_capture() -> None:
    """What was taken on a stream that is captured now would have to wait there for the stream of its last use."""
    fake_gpu.run(f"""{_PLAN}
from pycutlass import deferred_release
from pycutlass.allocators import CupyAllocator
from pycutlass.memory import DeviceBuffer

class Alike(CupyAllocator):
    def __init__(self):
        self._held = {{}}

    def allocate(self, size, stream):
        array = Array(0, np.zeros(size, np.uint8))
        return self._hold(array, array.data.ptr, stream)

streams, allocator = [Stream(0), Stream(0)], Alike()
for captured_one in streams:
    taken_on, used_on = (_core.Stream(0, each.ptr) for each in streams)
    buffer = DeviceBuffer(0, 64, taken_on, allocator)
    buffer.stream = used_on
    with captured(captured_one) as graph:
        asked()
        del buffer
        gc.collect()
        assert allocator._held and not any("Wait" in line or "Record" in line for line in asked())
    assert graph.graph >= 0
    deferred_release.wait(5)
    assert not allocator._held
""")
