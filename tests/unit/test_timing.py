"""`DeviceTimer` on a stand-in for the driver, whose GPUs have a clock: a kernel takes 5 us, a byte that is set 1 ns.

A stream that the host has let wait is 1 ms late then, and nothing runs before somebody waits for it.
"""

from __future__ import annotations

import fake_gpu
import pytest

import pycutlass
from pycutlass.errors import DeviceError
from pycutlass.timing import Timing

_GEMM = """
from pycutlass import timing
from pycutlass.timing import DeviceTimer
a, b = on_host(8, 16, 1), on_host(16, 12, 2, "F")
operation = gemm()
timing._LEAST_FLUSHED_BYTES = 3000
def launches(ordinal=0, stream=None):
    A, B, D = Array(ordinal, a), Array(ordinal, b), Array(ordinal, np.zeros((8, 12), np.float32))
    arguments = pycutlass.GemmArguments(operation, (8, 12, 16), A, B, None, D)
    return lambda: operation.run(arguments, stream)
def near(value, expected):
    assert abs(value - expected) < 1e-3, (value, expected)
"""


def run(program: str) -> str:
    return fake_gpu.run(f"{_GEMM}\n{program}")


def test_the_time_of_one_run_is_measured():
    run("""
made = []
launch = launches()
def work():
    made.append(1)
    launch()
    launch()
timing_ = DeviceTimer(seconds=0, least_rounds=7, warmup=4, batch_seconds=100e-6).time(work)
near(timing_.median, 10)
assert len(timing_.times) == 7 and set(round(t, 3) for t in timing_.times) == {10.0}
assert len(made) == 4 + 3 + 7 * 10, len(made)  # warm-up, a first look, rounds of 100 us
""")


def test_what_the_host_takes_does_not_count():
    """The mark before the work and the work run together, when the stream is let go."""
    run("""
import time
launch = launches()
def slow():
    time.sleep(0.002)
    launch()
near(DeviceTimer(seconds=0, batch_seconds=10e-6).time(slow).median, 5)
log()
DeviceTimer(seconds=0, least_rounds=1, warmup=0, batch_seconds=0).time(launch)
calls = [line.split()[0] for line in log()]
known = {"cuLaunchHostFunc", "cuEventRecord", "cuLaunchKernelEx", "cuStreamSynchronize"}
of_interest = [call for call in calls if call in known]
look = ["cuLaunchHostFunc", "cuEventRecord", *3 * ["cuLaunchKernelEx"], "cuEventRecord", "cuStreamSynchronize"]
once = ["cuLaunchHostFunc", "cuEventRecord", "cuLaunchKernelEx", "cuEventRecord", "cuStreamSynchronize"]
assert of_interest == ["cuStreamSynchronize", *look, *once], of_interest
""")


def test_a_cold_cache_is_flushed_before_every_call_and_not_measured():
    run("""
launch = launches()
log()
timer = DeviceTimer(cold_l2=True, seconds=0, least_rounds=3, warmup=1)
near(timer.time(launch).median, 5)
calls = [line.split()[0] for line in log()]
kinds = [c[2:8] for c in calls if c in ("cuMemsetD8Async", "cuEventRecord", "cuLaunchKernelEx")]
assert kinds == ["Launch", *3 * ["Memset", "EventR", "Launch", "EventR"]], kinds
buffer = timer._flushed
assert buffer.size == 3000
near(timer.time(launch).median, 5)
assert timer._flushed is buffer
timing._LEAST_FLUSHED_BYTES = 100  # less than twice the cache of 1 KiB
small = DeviceTimer(cold_l2=True, seconds=0)
small.time(launch)
assert small._flushed.size == 2048
""")


def test_what_is_compared_takes_turns_in_orders_that_are_drawn():
    run("""
import itertools
launch, order = launches(), []
def named(name, times):
    def work():
        order.append(name)
        for _ in range(times):
            launch()
    return work
timer = DeviceTimer(seconds=0, least_rounds=40, warmup=0, batch_seconds=0)
found = timer.compare({"one": named("a", 1), "two": named("b", 2), "four": named("c", 4)})
assert list(found) == ["one", "two", "four"]
for (name, each), expected in zip(found.items(), (5, 10, 20)):
    near(each.median, expected)
order = "".join(order)
assert order[:9] == "aaabbbccc"
rounds = [order[first : first + 3] for first in range(9, len(order), 3)]
assert len(rounds) == 40 and {*map("".join, itertools.permutations("abc"))} == {*rounds}, rounds
assert all(round == before[::-1] for before, round in zip(rounds[::2], rounds[1::2])), rounds
""")


def test_it_measures_as_long_as_it_was_told():
    run("""
import time
started = time.perf_counter()
found = DeviceTimer(seconds=0.3, least_rounds=1).time(launches())
assert 0.3 <= time.perf_counter() - started < 5 and len(found.times) > 5
""")


@pytest.mark.parametrize("current", ["0", "1", "None"])
def test_the_stream_that_is_named_on_its_own_gpu(current):
    run(f"""
stream = Stream(1)
launch = launches(1, stream.ptr)
with current_device({current}):
    for timer in (DeviceTimer(stream.ptr, device=1, seconds=0), DeviceTimer(stream, device=1, seconds=0, cold_l2=True)):
        near(timer.time(launch).median, 5)
    assert refused(lambda: DeviceTimer(stream.ptr, device=0), "belongs to GPU 1") == "ArgumentError"
""")


def test_without_a_stream_it_is_the_current_one_of_the_library():
    run("""
stream = Stream(1)
launch = launches(1)
timer = DeviceTimer(device=1, seconds=0)
with busy(1, stream):
    near(timer.time(launch).median, 5)
near(timer.time(launch).median, 5)
with current_device(1):
    assert DeviceTimer()._ordinal == 1
class Theirs:
    ptr, device_id = stream.ptr, 1
assert DeviceTimer(Theirs())._ordinal == 1
""")


def test_work_that_waits_for_the_gpu_is_refused_and_the_stream_goes_on():
    run("""
timing._PATIENCE = 0.05
launch = launches()
stream = _stream = pycutlass._core.Stream(0)
def waits():
    launch()
    stream.synchronize()
timer = DeviceTimer(seconds=0)
assert refused(lambda: timer.time(waits), "work cannot be timed", "queued=False") == "ArgumentError"
assert refused(lambda: timer.compare({"ours": launch, "theirs": waits}), "theirs cannot be timed") == "ArgumentError"
near(timer.time(launch).median, 5)
as_it_runs = DeviceTimer(seconds=0, queued=False, batch_seconds=0, least_rounds=3)
near(as_it_runs.time(waits).median, 5)
log()
as_it_runs.time(launch)
assert not [line for line in log() if line.startswith("cuLaunchHostFunc")]
""")


def test_a_host_that_stands_still_once_is_no_reason_to_refuse():
    run("""
timing._PATIENCE = 0.5
launch = launches()
import time
stopped = iter([0, 0.8, 0.8])  # the first call warms up
def work():
    launch()
    time.sleep(next(stopped, 0))
near(DeviceTimer(seconds=0, cold_l2=True, least_rounds=3).time(work).median, 5)
assert next(stopped, None) is None
""")


def test_kernels_that_went_are_unloaded_before_anything_is_queued():
    """Unloading waits for all streams: begun while one of them waits for the host, it holds up both."""
    run("""
import gc
import time
gc.disable()  # the timer collects
timing._PATIENCE, timing._ATTEMPTS = 0.5, 1
launch = launches()
kept, operation = operation, gemm("stream_k")
other = launches()
other()
driver.fake_run()
in_a_cycle = [operation, other]
in_a_cycle.append(in_a_cycle)
operation, other, in_a_cycle = kept, None, None
def work():
    time.sleep(0.03)  # three rounds of the thread that unloads
    launch()
near(DeviceTimer(seconds=0, cold_l2=True, least_rounds=2).time(work).median, 5)
assert driver.fake_libraries() == 1
""")


def test_a_batch_that_the_queue_does_not_hold_becomes_smaller():
    run("""
timing._PATIENCE = 0.05
launch = launches()
stream, queued, seen = pycutlass._core.Stream(0), [0], []
def work():
    launch()
    queued[0] += 1
    if queued[0] > 10:  # the driver waits for room
        stream.synchronize()
        queued[0] = 0
class Emptied(timing._Contestant):
    def run(self, *given):
        queued[0] = 0
        batch = super().run(*given)
        seen.append(batch.calls)
        return batch
timing._Contestant = Emptied
near(DeviceTimer(seconds=0, warmup=0, batch_seconds=1e-3).time(work).median, 5)
assert seen[0] == 3 and all(calls < 11 for calls in seen[1:]), seen
""")


def test_an_exception_of_the_work_passes_and_lets_the_stream_go():
    run("""
launch, calls = launches(), [0]
def breaks():
    calls[0] += 1
    if calls[0] > 5:
        raise ZeroDivisionError
    launch()
import time
started = time.perf_counter()
try:
    DeviceTimer(seconds=0).time(breaks)
    raise AssertionError("it did not pass")
except ZeroDivisionError:
    pass
pycutlass._core.Stream(0).synchronize()
assert time.perf_counter() - started < 1, "the stream stood still"
import gc
assert gc.isenabled()
gc.disable()
DeviceTimer(seconds=0).time(launch)
assert not gc.isenabled()
""")


def test_what_the_driver_refuses_is_told():
    run("""
launch = launches()
launch()
def scenario():
    DeviceTimer(seconds=0, least_rounds=1, warmup=0, cold_l2=True).time(launch)
untold = with_every_fault(scenario)
assert set(untold) <= {"cuEventDestroy", "cuCtxSetCurrent", "cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode",
                       "cuEventQuery"}, untold
scenario()
""")


def test_nothing_stays_behind():
    run("""
launch = launches()
before = driver.fake_events()
timer = DeviceTimer(seconds=0, cold_l2=True)
timer.time(launch)
assert driver.fake_events() == before
assert pycutlass.get_allocated_size() == 3000
del timer
import gc
gc.collect()
pycutlass._core.Stream(0).synchronize()
assert pycutlass.get_allocated_size() == 0
""")


def test_a_stream_that_is_captured_is_refused():
    run("""
stream = Stream(0)
launch = launches(0, stream.ptr)
launch()
timer = DeviceTimer(stream.ptr, seconds=0)
with captured(stream) as graph:
    assert refused(lambda: timer.time(launch), "being captured") == "ArgumentError"
    launch()
near(timer.time(graph.replay).median, 5)
""")


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"cold_l2": 1}, "ArgumentTypeError", "cold_l2 must be True or False, got 1"),
        ({"queued": None}, "ArgumentTypeError", "queued must be True or False"),
        ({"seconds": -1}, "ArgumentError", "seconds must be a number of seconds of at least 0, got -1"),
        ({"seconds": float("nan")}, "ArgumentError", "got nan"),
        ({"seconds": "long"}, "ArgumentTypeError", "seconds must be a number"),
        ({"batch_seconds": float("inf")}, "ArgumentError", "batch_seconds"),
        ({"least_rounds": 0}, "ArgumentError", "least_rounds must be at least 1, got 0"),
        ({"least_rounds": 2.5}, "ArgumentTypeError", "least_rounds must be an integer"),
        ({"warmup": -1}, "ArgumentError", "warmup must be at least 0"),
        ({"device": 7}, "DeviceError", "there is no GPU 7"),
        ({"device": "cuda"}, "ArgumentTypeError", "device must be the ordinal"),
        ({"rounds": 3}, "ArgumentTypeError", "no keyword rounds"),
    ],
    ids=str,
)
def test_what_a_timer_cannot_be(keywords, error, words):
    text = repr(keywords).replace("nan", "float('nan')").replace("inf", "float('inf')")
    run(f"assert refused(lambda: DeviceTimer(**{text}), {words!r}) == {error!r}")


def test_what_cannot_be_timed():
    run("""
timer = DeviceTimer(seconds=0)
assert refused(lambda: timer.time(3), "work must be a function") == "ArgumentTypeError"
assert refused(lambda: timer.compare({}), "a dict of functions by name") == "ArgumentTypeError"
assert refused(lambda: timer.compare([print]), "a dict of functions by name") == "ArgumentTypeError"
assert refused(lambda: timer.compare({"ours": print, "theirs": None}), "theirs must be") == "ArgumentTypeError"
""")


def test_the_timer_of_the_original():
    run("""
from pycutlass.compat.testing import GpuTimer
timer, launch, stream = GpuTimer(), launches(), Stream(0)
assert refused(timer.duration, "no duration yet") == "ArgumentError"
timer.start()
launch()
launch()
timer.stop_and_wait()
near(1000 * timer.duration(), 10)
near(1000 * timer.duration(iterations=2), 5)
timer.start(stream.ptr)
timer.stop_and_wait(stream.ptr)
near(timer.duration(), 0)
""")


def test_without_a_gpu_it_is_refused(without_gpu):
    with pytest.raises(DeviceError, match="no GPU can be used"):
        pycutlass.DeviceTimer()


def test_the_summary():
    found = Timing((5.0, 1.0, 2.0, 3.0, 4.0))
    assert (found.median, found.low, found.high) == (3.0, 1.4, 4.6)
    assert Timing((2.0,)).low == Timing((2.0,)).high == 2.0
    assert str(found) == "3.00 us (1.40 - 4.60, 5 rounds)"
