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
        driver.fake_free_on(pointer, stream.handle)
        self.used.pop(pointer).data.ptr = 0

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
assert used() == before
""")


@pytest.mark.parametrize("kind", KINDS)
def test_launches_on_another_stream_wait_for_the_memory(kind: str) -> None:
    """Streams take turns as far as events allow: sums of one launch would be those of another."""
    fake_gpu.run(f"""{_PLAN}
chosen = kinds["{kind}"]
plan, streams = pycutlass.Gemm(*drawn()[:2]), [Stream(0), Stream(0)]
for way in (lambda a, b, d: plan.run(a, b, out=d), lambda a, b, d: pycutlass.matmul(a, b, out=d)):
    for _ in range(3):
        computed = []
        for each in (streams[0], streams[1], streams[0], streams[0], streams[1]):
            where[0] = each.ptr
            computed.append(drawn())
            way(*computed[-1])
        driver.fake_run_in_turns()
        for a, b, d in computed:
            assert right(a, b, d)
where[0] = 0
plan.run(*drawn()[:2], out=drawn()[2])
assert len(plan._waiting) == 1
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


def test_large_memory_is_not_kept() -> None:
    fake_gpu.run(f"""{_PLAN}
chosen = kinds["parallel"]
plan = pycutlass.Gemm(*drawn()[:2])
before = used()
large = (64 << 20) // (2 * 4 * N) + 1
counts = []
for m in (large, large // 2, large // 2 - 1, 3):  # what is more than all is kept with its tensors
    a, b, d = drawn(m)
    for _ in range(2):
        plan.run(a, b, out=d)
        assert right(a, b, d)
    counts.append((len(plan._waiting), len(plan._launches._of_thread)))
    assert used() - before >= 2 * 4 * m * N
assert counts == [(0, 1), (1, 1), (2, 1), (1, 1)], counts
""")


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
            assert launches() == 1 + {is_parallel}
            computed.append((x, w, c, y))
        driver.fake_run_in_turns()
        for x, w, c, y in computed:
            wanted = functional.conv2d(x, w)
            assert torch.equal(y, wanted if c is None else wanted + 2 * c)
    assert len(each._waiting) == 1 and not each._launches._of_thread
""")
