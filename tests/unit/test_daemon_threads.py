"""Daemon threads that are in the driver when the interpreter ends: Python would end them in the midst of C++."""

from __future__ import annotations

import fake_gpu

_PROGRAM = """
import atexit, os, sys, threading, time

from pycutlass import _core

class Lasting:
    def __del__(self, write=os.write, sleep=time.sleep):  # the modules are cleared by then
        write(1, b"the interpreter ends\\n")
        sleep(0.6)  # the thread comes back meanwhile

operation, ended, entered = gemm(), threading.Event(), threading.Event()
stream = Stream(0)
A, B = Array(0, on_host(3, 4, 1)), Array(0, on_host(4, 5, 2, "F"))
D = Array(0, np.zeros((3, 5), np.float32))
arguments = pycutlass.GemmArguments(operation, (3, 5, 4), A, B, None, D)
operation.run(arguments, stream)

def wait():
    ended.wait()
    entered.set()
    arguments.sync()

def end():
    global gate
    gate = _core.Gate(_core.Stream(0, stream.ptr), 0.3)
    operation.run(arguments, stream)
    ended.set()
    entered.wait()
    time.sleep(0.05)

sys.lasting = Lasting()
threading.Thread(target=wait, daemon=True).start()
atexit.register(end)
"""


def test_a_daemon_thread_in_the_driver_does_not_abort_the_process():
    assert fake_gpu.run(_PROGRAM) == "the interpreter ends\n"
