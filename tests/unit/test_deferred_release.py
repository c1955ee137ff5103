"""What is let go of later: by a thread, also while streams are captured, after a fork, and when the process ends."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import fake_gpu
import pytest
from descriptions import run_python

from pycutlass.deferred_release import _Keeper


class Owner:
    """Something that can be seen to go."""


def soon(happens: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not happens() and time.monotonic() < end:
        time.sleep(0.01)
    return happens()


def test_what_has_ended_goes_without_another_call():
    keeper, ended, running = _Keeper(), SimpleNamespace(done=False), SimpleNamespace(done=False)
    owners = [Owner(), Owner()]
    seen = [weakref.ref(owner) for owner in owners]
    keeper.release_after((owners.pop(),), running)
    keeper.release_after((owners.pop(),), ended)
    time.sleep(0.05)
    assert all(ref() for ref in seen)
    ended.done = True
    assert soon(lambda: seen[0]() is None)
    assert seen[1]() is not None
    running.done = True
    assert soon(lambda: seen[1]() is None)
    keeper.release_after((owner := Owner(),), running)  # the thread has had nothing to do, and is still there
    seen = [weakref.ref(owner)]
    del owner
    assert soon(lambda: seen[0]() is None)
    keeper.stop()


def test_whoever_gives_up_fast_takes_part(monkeypatch):
    keeper = _Keeper()
    monkeypatch.setattr(keeper, "_start", lambda: None)
    for _ in range(1000):
        keeper.release_after(("tensor",), SimpleNamespace(done=True))
    assert len(keeper.deferred) == 1
    for _ in range(10):
        keeper.release_after(("tensor",), SimpleNamespace(done=False))
    assert len(keeper.deferred) == 10
    keeper.release_after(("tensor",), SimpleNamespace(done=True))
    keeper.let_go(len(keeper.deferred))
    assert len(keeper.deferred) == 10


def test_letting_go_may_release_more(monkeypatch):
    """What goes may run a finaliser that gives something up itself: nothing that is in flight is lost meanwhile."""
    keeper = _Keeper()
    monkeypatch.setattr(keeper, "_start", lambda: None)
    running, ended = SimpleNamespace(done=False), SimpleNamespace(done=True)

    class Finalised:
        def __del__(self):
            keeper.release_after(("given up by a finaliser",), running)

    keeper.deferred.extend(
        [(ended, (Finalised(),)), (running, ("first",)), (ended, (Finalised(),)), (running, ("second",))]
    )
    keeper.let_go(4)
    keeper.let_go(6)
    kept = sorted(owners[0] for _, owners in keeper.deferred)
    assert kept == ["first", "given up by a finaliser", "given up by a finaliser", "second"]


def test_attempts_are_made_until_one_succeeds():
    keeper, answers = _Keeper(), [True, False, False]
    keeper.later(lambda: answers.pop())
    assert soon(lambda: not answers)
    time.sleep(0.05)
    assert not keeper.attempts
    keeper.stop()


def test_an_attempt_that_raises_is_said_and_stops_no_other(monkeypatch):
    keeper, said, answers, running = _Keeper(), [], [True, False], SimpleNamespace(done=False)
    monkeypatch.setattr("sys.unraisablehook", lambda what: said.append(str(what.exc_value)))
    owner = Owner()
    seen = weakref.ref(owner)
    keeper.release_after((owner,), running)
    del owner
    keeper.later(lambda: 1 // 0 == 0)
    keeper.later(lambda: answers.pop())
    assert soon(lambda: not answers)
    running.done = True
    assert soon(lambda: seen() is None)
    assert len(said) == 1 and "by zero" in said[0]
    keeper.stop()


_PROGRAM = """
import os, sys, time
from types import SimpleNamespace
from pycutlass import deferred_release

class Owner:
    def __del__(self):
        print("gone", os.getpid() == parent, flush=True)

parent, event = os.getpid(), SimpleNamespace(done=False)
deferred_release.release_after((Owner(),), event)
time.sleep(0.05)
"""


def test_a_process_ends_while_something_is_kept():
    start = time.monotonic()
    assert run_python(_PROGRAM + "import atexit\natexit.register(deferred_release.release_after, (), event)") in (
        "",
        "gone True\n",
    )
    assert time.monotonic() - start < 60


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_lets_go_of_nothing_of_its_parent():
    program = """
child = os.fork()
if not child:
    event.done = True
    assert not deferred_release._keeper.deferred
    deferred_release.let_go()
    own = SimpleNamespace(done=False)
    deferred_release.release_after(("of the child",), own)
    own.done = True
    while deferred_release._keeper.deferred:
        time.sleep(0.01)
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
event.done = True
while deferred_release._keeper.deferred:
    time.sleep(0.01)
time.sleep(0.05)
print("parent")
"""
    assert run_python(_PROGRAM + program).split("\n")[:-1] == ["child", "gone True", "parent"]


_GPU = """
import gc, weakref
M, N, K = 8, 12, 16
a, b = on_host(M, K, 1), on_host(K, N, 2, "F")
nothing = np.full((M, N), np.nan, np.float32)
operation = gemm()
A, B = Array(1, a), Array(1, b)
stream, other = Stream(1), Stream(1)

def make(D, **how):
    return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, **how)

D = Array(1, nothing)
"""


def test_tensors_go_when_their_launch_has_ended() -> None:
    fake_gpu.run(
        _GPU
        + """
arguments = make(D)
operation.run(arguments, stream)
seen = weakref.ref(D)
arguments.update(D=Array(1, nothing))
del D
assert not soon(lambda: seen() is None, 0.1)
driver.fake_run()
assert soon(lambda: seen() is None)
"""
    )


def test_tensors_go_while_a_stream_is_captured_and_the_graph_is_whole() -> None:
    fake_gpu.run(
        _GPU
        + """
first, second = make(D), make(Array(1, nothing))
operation.run(first, stream)
with busy(1, other), captured(other) as graph:
    seen = weakref.ref(D)
    del first, D
    operation.run(second)
    driver.fake_run()
    assert soon(lambda: seen() is None)
graph.replay()
"""
    )


def test_memory_is_not_given_back_into_a_graph() -> None:
    fake_gpu.run(
        _GPU
        + """
from pycutlass import memory
with busy(1, stream):
    arguments = make(nothing.copy(), split_k_slices=2)
    operation.run(arguments)
    groups = group("host")
    held = [pycutlass.GemmGroupedArguments(groups, [(M, N, K)], [A], [B], None, [D])]
    groups.run(held[0])
    held[0].sync()
    with captured(stream) as graph:
        del arguments
        held.clear()
        assert not soon(lambda: memory.pool_of(1).get_allocated_size() == 0, 0.1)
    assert soon(lambda: memory.pool_of(1).get_allocated_size() == 0)
graph.replay()
"""
    )


def test_a_forked_process_with_arguments_ends_quietly() -> None:
    fake_gpu.run(
        _GPU
        + """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
arguments = make(nothing.copy(), split_k_slices=2)
operation.run(arguments, stream)
arguments.update(D=nothing.copy())
child = os.fork()
if not child:
    del arguments
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
arguments.sync()
"""
    )


# Kernels


def test_a_kernel_stays_loaded_as_long_as_something_uses_it() -> None:
    fake_gpu.run(
        _GPU
        + """
for _ in range(3):
    arguments = make(D)
    operation.run(arguments)
    arguments.sync()
    del arguments
assert driver.fake_libraries() == 1, "arguments come and go, the operation is there"
arguments, equal = make(D), gemm()
del operation
assert not soon(lambda: driver.fake_libraries() == 0, 0.1)
equal.run(arguments)
again = pycutlass.GemmArguments(equal, (M, N, K), A, B, None, D)
assert driver.fake_libraries() == 1
del arguments, equal
assert not soon(lambda: driver.fake_libraries() == 0, 0.1)
run, again = again._run, None  # what launches is enough
assert not soon(lambda: driver.fake_libraries() == 0, 0.1)
run(None)
del run
assert soon(lambda: driver.fake_libraries() == 0)
assert (D.now() == a @ b).all(), "unloading waits for what runs"
"""
    )


def test_a_kernel_that_a_graph_has_captured_stays_loaded() -> None:
    fake_gpu.run(
        _GPU
        + """
for _ in range(3):
    operation = gemm()
    arguments = make(D)
    with busy(1, stream), captured(stream) as graph:
        operation.run(arguments)
    del arguments, operation
    assert not soon(lambda: driver.fake_libraries() == 0, 0.1)
    D.set(nothing)
    graph.replay()
    driver.fake_run()
    assert (D.now() == a @ b).all()
assert driver.fake_libraries() == 1, "the next operation finds it"
"""
    )


def test_unloading_breaks_no_capture() -> None:
    """Where the driver refuses it for that, it is tried again."""
    fake_gpu.run(
        _GPU
        + """
streaming = gemm("stream_k")
kept, arguments = pycutlass.GemmArguments(streaming, (M, N, K), A, B, None, D), make(Array(1, nothing))
with busy(1, stream), captured(stream) as graph:
    streaming.run(kept)
    del arguments, operation
    driver.fake_fail(b"cuLibraryUnload", 900)  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert not soon(lambda: driver.fake_libraries() == 1, 0.1)
    driver.fake_fail(b"cuLibraryUnload", 0)
    assert soon(lambda: driver.fake_libraries() == 1)
graph.replay()
"""
    )


def test_loading_and_dropping_grows_nothing() -> None:
    fake_gpu.run(
        _GPU
        + """
from pathlib import Path

def resources():
    gc.collect()
    assert soon(lambda: driver.fake_libraries() == 1)
    maps = Path("/proc/self/maps").read_text()
    return maps.count("pycutlass-host"), len(list(Path("/proc/self/fd").iterdir())), driver.fake_events()

def cycle(count):
    for number in range(count):
        streaming = gemm("stream_k")
        arguments = pycutlass.GemmArguments(streaming, (M, N, K), A, B, None, D)
        streaming.run(arguments, stream)
        arguments.sync()

kept = make(D)
cycle(20)
before = resources()
cycle(200)
assert resources() == before, (before, resources())
"""
    )
