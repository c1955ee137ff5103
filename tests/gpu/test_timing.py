"""`DeviceTimer` on a GPU, compared with events of torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from cases import OPERATIONS, poisoned, random_matrix

from pycutlass import DeviceTimer, GemmArguments
from pycutlass.errors import ArgumentError

torch = pytest.importorskip("torch")

# The sanitizers leave them out: what is timed takes another time there, and a capture in which torch allocates ends,
# since it keeps no pools then.
pytestmark = pytest.mark.slow


def by_torch(work: Callable[[], object], rounds: int = 7) -> float:
    """Return microseconds of one call, as torch's events have them; the device is kept busy meanwhile."""
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000_000)
        begin.record()
        for _ in range(20):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / 20)
    return sorted(times)[rounds // 2]


@pytest.fixture(scope="module")
def product() -> Callable[[], object]:
    A, B, D = (torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in range(3))
    return lambda: torch.mm(A, B, out=D)


def test_it_agrees_with_events_of_torch(product):
    ours, theirs = DeviceTimer(least_rounds=15).time(product).median, by_torch(product)
    assert 0.7 < ours / theirs < 1.4, (ours, theirs)


def test_the_host_does_not_count():
    tensor = torch.zeros(1, device="cuda")

    def slow() -> None:
        time.sleep(0.0005)
        tensor.add_(1)

    assert DeviceTimer(least_rounds=7).time(slow).median < 100


def test_long_work_takes_its_time():
    timer = DeviceTimer(seconds=0, least_rounds=3)
    one, two = (timer.time(lambda cycles=cycles: torch.cuda._sleep(cycles)).median for cycles in (4_000_000, 8_000_000))
    assert 1.7 < two / one < 2.3, (one, two)


def test_a_cold_cache_is_cold():
    """Sixteen megabytes that are read: from the L2 cache, or from memory."""
    source, target = (torch.zeros(1 << 21, device="cuda", dtype=torch.float64) for _ in range(2))

    def work() -> None:
        torch.add(source, 1, out=target)

    warm = DeviceTimer(least_rounds=15).time(work).median
    cold = DeviceTimer(least_rounds=15, cold_l2=True).time(work).median
    assert cold > 1.2 * warm, (cold, warm)


def test_more_launches_than_the_queue_holds():
    tensor = torch.zeros(1, device="cuda")

    def many() -> None:
        for _ in range(100):
            tensor.add_(1)

    started = time.perf_counter()
    found = DeviceTimer(seconds=0, batch_seconds=1).time(many)
    assert 30 < found.median < 5000 and time.perf_counter() - started < 60


def test_work_that_waits_is_refused_and_may_be_measured_as_it_runs(product):
    def waits() -> None:
        product()
        torch.cuda.synchronize()

    with pytest.raises(ArgumentError, match="queued=False"):
        DeviceTimer().time(waits)
    assert DeviceTimer(queued=False, batch_seconds=0).time(waits).median > DeviceTimer().time(product).median


def test_streams_and_graphs(product):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        named = DeviceTimer(stream).time(product).median
        current = DeviceTimer().time(product).median
    assert 0.6 < named / current < 1.6, (named, current)
    product()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            product()
    replayed = DeviceTimer().time(graph.replay).median / 10
    assert 0.5 < replayed / current < 1.5, (replayed, current)


def test_what_is_compared(product):
    A, B, D = (torch.randn(2048, 2048, device="cuda", dtype=torch.float16) for _ in range(3))
    found = DeviceTimer().compare({"small": product, "large": lambda: torch.mm(A, B, out=D)})
    assert found["large"].median > 2 * found["small"].median


_WITHOUT_TORCH = """
import sys
import numpy as np
import pycutlass
from pycutlass import cutlass
f32 = cutlass.float32
instruction = pycutlass.MathInstruction([1, 1, 1], f32, f32, f32)
tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
row = pycutlass.TensorDescription(f32, cutlass.RowMajor)
operation = pycutlass.GemmOperationUniversal(80, tile, row, row, row, pycutlass.LinearCombination(f32, 1))
pycutlass.compiler.add_module([operation])
A, B, D = (np.ones((512, 512), np.float32) for _ in range(3))
arguments = pycutlass.GemmArguments(operation, (512, 512, 512), A, B, None, D)
for cold in (False, True):
    found = pycutlass.DeviceTimer(cold_l2=cold).time(lambda: operation.run(arguments))
    assert 5 < found.median < 2000, found
arguments.sync()
assert (D == 512).all()
assert not {"torch", "cupy"} & set(sys.modules)
"""


def test_it_works_without_torch():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_launch_of_ours():
    operation, m = OPERATIONS["f16_tnt"], 1024
    A, B = random_matrix(operation.A, m, m), random_matrix(operation.B, m, m)
    arguments = GemmArguments(operation, (m, m, m), A, B, None, poisoned(operation.C, m, m))

    def launch() -> None:
        operation.run(arguments)

    ours, theirs = DeviceTimer().time(launch).median, by_torch(launch)
    assert 0.7 < ours / theirs < 1.4, (ours, theirs)
