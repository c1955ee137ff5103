"""Arguments that one thread updates or launches while another launches them: the driver reads what they hold."""

from __future__ import annotations

import fake_gpu
import pytest

_PROGRAM = """
import sys, threading, time

def given(operation, seed):
    A, B = Array(0, on_host(5, 7, seed)), Array(0, on_host(7, 6, seed + 1, "F"))
    return [A, B, Array(0, np.zeros((5, 6), np.float32))]

ended, refused, failed = threading.Event(), [], []

def launch():
    try:
        while not ended.is_set():
            operation.run(arguments, stream)
    except BaseException as error:
        failed.append(error)

def update(**tensors):
    try:
        arguments.update(**tensors)
    except pycutlass.errors.ArgumentError as error:
        assert "cannot be updated now" in str(error), error
        refused.append(str(error))

stream = Stream(0)
first, second = given(None, 1), given(None, 3)
"""
_FAMILIES = {
    "gemm": "operation = gemm()\narguments = pycutlass.GemmArguments(operation, (5, 6, 7), *first[:2], None, first[2])",
    "group": """operation = group("device")
first, second = [[each] for each in first], [[each] for each in second]
arguments = pycutlass.GemmGroupedArguments(operation, [(5, 6, 7)], *first[:2], None, first[2])""",
}


@pytest.mark.parametrize("family", _FAMILIES)
def test_an_update_during_a_launch_is_refused(family: str) -> None:
    fake_gpu.run(
        f"""{_PROGRAM}
{_FAMILIES[family]}
sys.setswitchinterval(1e-5)
thread = threading.Thread(target=launch)
thread.start()
end = time.monotonic() + 20
while not refused and time.monotonic() < end:
    for A, B, D in (second, first):
        update(A=A, B=B, D=D)
ended.set()
thread.join()
assert not failed, failed
assert refused, "no update came while a launch was under way"
arguments.update(A=second[0], B=second[1], D=second[2])
operation.run(arguments, stream)
arguments.sync()
""",
        seconds=120,
    )


_LAUNCHING = """
def inside(launch):
    # Return a thread that is in the driver, launching, until `go_on` is called.
    driver.fake_block(b"cuLaunchKernelEx")
    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    assert driver.fake_blocked(20)
    return thread

def go_on():
    driver.fake_block(b"")
"""


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_launch_that_begins_during_an_update_is_seen(family: str) -> None:
    """The update has found no launch when it began, and reads its tensors when one begins."""
    fake_gpu.run(
        f"""{_PROGRAM}
{_LAUNCHING}
class Slow(Array):
    # Whoever asks where it is lets another thread launch.
    @property
    def data(self):
        if self.ready and not threads:
            threads.append(inside(lambda: operation.run(arguments, stream)))
        return self.place
    @data.setter
    def data(self, place):
        self.place = place
    ready = False

def given(operation, seed, before=given):
    A, B, D = before(operation, seed)
    return [Slow(0, A.now()), B, D]

first, second = given(None, 1), given(None, 3)
{_FAMILIES[family]}
threads = []
operation.run(arguments)
arguments.sync()
before = first[2][0].now() if isinstance(first[2], list) else first[2].now()
slow = Slow(0, on_host(5, 7, 9))
slow.ready = True
update(A=[slow] if isinstance(first[0], list) else slow)
go_on()
assert threads, "nobody asked where the tensor is"
threads[0].join()
assert refused, "the update changed what the driver was reading"
arguments.sync()
after = first[2][0].now() if isinstance(first[2], list) else first[2].now()
assert (before == after).all() and before.any()
slow.ready = False
update(A=[slow] if isinstance(first[0], list) else slow)
assert len(refused) == 1
""",
        seconds=120,
    )


@pytest.mark.parametrize("family", ["stream_k", "host"])
def test_launches_of_two_threads_take_turns(family: str) -> None:
    """Both would clear the same semaphores, or write to the same table, where neither stream waits for the other."""
    made = {
        "stream_k": """operation = gemm("stream_k")
arguments = pycutlass.GemmArguments(operation, (5, 6, 7), *first[:2], None, first[2])""",
        "host": """operation = group("host")
many = [[each] * 3 for each in first[:2]]
targets = [first[2], *given(None, 5)[2:], *given(None, 7)[2:]]
arguments = pycutlass.GemmGroupedArguments(operation, [(5, 6, 7)] * 3, *many, None, targets)""",
    }
    fake_gpu.run(
        f"""{_PROGRAM}
{_LAUNCHING}
{made[family]}
other = Stream(0)
operation.run(arguments, stream)
arguments.sync()
one = inside(lambda: operation.run(arguments, stream))
log()
two = threading.Thread(target=lambda: operation.run(arguments, other), daemon=True)
two.start()
time.sleep(0.2)
assert two.is_alive()
begun = ("cuLaunchKernelEx", "cuMemsetD8Async", "cuMemcpyHtoDAsync")
calls = [line.split()[0] for line in log()]
assert not any(call in begun for call in calls), calls
go_on()
for thread in (one, two):
    thread.join(20)
    assert not thread.is_alive()
calls = [line.split()[0] for line in log()]
assert calls.count("cuStreamWaitEvent") >= 1, calls
arguments.sync()
""",
        seconds=120,
    )


def test_an_interrupt_ends_the_wait_for_a_turn() -> None:
    fake_gpu.run(
        f"""{_PROGRAM}
{_LAUNCHING}
{_FAMILIES["gemm"]}
import signal
def interrupted(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupted)
thread = inside(lambda: operation.run(arguments, stream))
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    operation.run(arguments, stream)
except KeyboardInterrupt:
    failed.append("interrupted")
go_on()
thread.join()
assert failed == ["interrupted"]
operation.run(arguments, stream)
arguments.sync()
""",
        seconds=120,
    )
