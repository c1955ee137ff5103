"""What is given as a stream: handles and streams of every library, and nothing else, before anything is launched."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import fake_gpu
import numpy as np
import pytest
from misuse import GEMM
from odd_streams import ODD_STREAMS, RAISING_STREAMS

import pycutlass
from pycutlass import _core
from pycutlass.errors import ArgumentTypeError

_REMEDY = r"\. Pass None for the current stream, or a stream such as torch\.cuda\.current_stream\(\)"


class _Index:
    def __index__(self) -> int:
        return 0xABC0


class CUstream:
    """As the first versions of cuda.bindings had it."""

    def __int__(self) -> int:
        return 0xABC0


@pytest.mark.parametrize(
    "stream",
    [
        0xABC0,
        np.uint64(0xABC0),
        _Index(),
        CUstream(),
        SimpleNamespace(cuda_stream=0xABC0),
        SimpleNamespace(ptr=np.int64(0xABC0)),
        SimpleNamespace(handle=CUstream()),
        SimpleNamespace(handle=ctypes.c_void_p(0xABC0)),
        SimpleNamespace(__cuda_stream__=lambda: (0, 0xABC0)),
        SimpleNamespace(__cuda_stream__=(0, 0xABC0)),
        SimpleNamespace(__cuda_stream__=lambda: [np.int32(0), CUstream()], cuda_stream="not asked"),
    ],
    ids=["int", "numpy", "index", "CUstream", "cuda_stream", "ptr", "handle", "numba", "protocol", "property", "first"],
)
def test_streams_of_every_library(stream):
    assert _core.stream_handle(stream) == 0xABC0


def test_default_streams():
    assert [_core.stream_handle(handle) for handle in range(3)] == [0, 1, 2]
    assert _core.stream_handle(SimpleNamespace(handle=ctypes.c_void_p())) == 0


@pytest.mark.parametrize("name", ODD_STREAMS)
def test_what_is_no_stream_is_refused(name):
    with pytest.raises(ArgumentTypeError, match=rf"(?s)^stream.*{_REMEDY}"):
        _core.stream_handle(ODD_STREAMS[name]())


@pytest.mark.parametrize("name", RAISING_STREAMS)
def test_what_a_stream_raises_is_the_cause(name):
    with pytest.raises(
        ArgumentTypeError, match=rf"raised an exception where its .* was asked for({_REMEDY}|$)"
    ) as seen:
        _core.stream_handle(RAISING_STREAMS[name]())
    assert isinstance(seen.value.__cause__, ZeroDivisionError | TypeError)


def test_an_interrupt_stays_one():
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for stream in (SimpleNamespace(__cuda_stream__=interrupt), type("Odd", (), {"ptr": property(interrupt)})()):
        with pytest.raises(KeyboardInterrupt):
            _core.stream_handle(stream)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("size", [(4, 8, 16), (0, 8, 16)])
def test_the_host_refuses_what_a_gpu_would(size):
    M, N, K = size
    A, B, D = np.ones((M, K), np.float32), np.ones((K, N), np.float32), np.zeros((M, N), np.float32)
    arguments = pycutlass.GemmArguments(GEMM, size, A, B, None, D)
    for make in (ODD_STREAMS["half"], RAISING_STREAMS["protocol that raises"]):
        with pytest.raises(ArgumentTypeError):
            GEMM.run(arguments, make())
        assert not D.any()
    GEMM.run(arguments, SimpleNamespace(ptr=0))
    assert (D == K).all()


_PROGRAM = """
from odd_streams import *

operation = gemm()
A, B = Array(0, on_host(5, 7, 1)), Array(0, on_host(7, 6, 2, order="F"))
D = Array(0, np.zeros((5, 6), np.float32))
arguments = pycutlass.GemmArguments(operation, (5, 6, 7), A, B, None, D)
given = {**ODD_STREAMS, **RAISING_STREAMS}
for name, make in ODD_DEVICES.items():
    given[name + " as a device"] = lambda make=make: SimpleNamespace(cuda_stream=0, device_index=make())
raising = type("Odd", (), {"cuda_stream": 0, "device_index": property(lambda self: 1 // 0)})
given["device that raises"] = raising
log()
for name, make in given.items():
    assert refused(lambda: operation.run(arguments, make())) == "ArgumentTypeError", name
    assert not any("Launch" in call for call in log()), name
other = SimpleNamespace(cuda_stream=0, device_index=1)
assert refused(lambda: operation.run(arguments, other), "GPU 1") == "ArgumentError"
driver.fake_run()
assert not D.now().any()
for stream in (0, np.int64(0), SimpleNamespace(cuda_stream=0, device_index=np.int64(0)), Stream(0)):
    D.set(np.zeros((5, 6), np.float32))
    operation.run(arguments, stream)
    arguments.sync()
    assert (D.now() == A.now() @ B.now()).all()
"""


def test_nothing_is_launched_on_what_is_no_stream():
    fake_gpu.run(_PROGRAM)


_ORDINALS = """
from odd_streams import ODD_DEVICES, ODD_STREAMS

for name, make in ODD_DEVICES.items():
    assert refused(lambda: pycutlass.device_cc(make())), name
    assert name == "None" or refused(lambda: pycutlass.DeviceTimer(device=make())), name
for name in ("half", "True", "text in ptr"):
    assert refused(lambda: pycutlass.DeviceTimer(ODD_STREAMS[name]())), name
assert pycutlass.device_cc(np.int64(1)) == pycutlass.device_cc() == 80
"""


def test_what_is_no_number_of_a_gpu_is_refused():
    fake_gpu.run(_ORDINALS)


class _Claims:
    """What says that it was made for an operation."""

    operation = GEMM


@pytest.mark.parametrize(
    "arguments",
    [_Claims(), pycutlass.GemmArguments, pycutlass.GemmArguments.__new__],
    ids=["an operation alone", "a class", "a method"],
)
def test_what_only_looks_like_arguments_is_refused(arguments):
    with pytest.raises(ArgumentTypeError, match="run needs arguments made for this operation"):
        GEMM.run(arguments)


def test_arguments_that_were_never_made_are_refused():
    arguments = pycutlass.GemmArguments.__new__(pycutlass.GemmArguments)
    arguments.operation = GEMM
    with pytest.raises(ArgumentTypeError, match="run needs arguments made for this operation"):
        GEMM.run(arguments)
