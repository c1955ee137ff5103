"""What programs on the stand-in driver need: tensors, kernels, a memory pool, and what the driver was asked."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from convolutions import OPERATIONS
from descriptions import ampere, parts
from numpy.typing import NDArray

import pycutlass
from fake_gpu import FAMILIES
from pycutlass import _core, cutlass, kernel
from pycutlass.cache import Artifact

__all__ = [
    "Array",
    "SimpleNamespace",
    "Stream",
    "busy",
    "captured",
    "current",
    "current_device",
    "driver",
    "everywhere",
    "finish",
    "forget_kernels",
    "fprop",
    "gemm",
    "group",
    "in_a_thread",
    "log",
    "memory_at",
    "np",
    "on_host",
    "pycutlass",
    "reduction",
    "refused",
    "soon",
    "use",
    "violations",
    "with_every_fault",
]

driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # kernels look for what they tell the driver
driver.fake_log.restype = driver.fake_violations.restype = ctypes.c_char_p
driver.fake_calls.restype = ctypes.c_long
driver.fake_blocked.argtypes = [ctypes.c_double]
driver.fake_begin_capture.argtypes = driver.fake_end_capture.argtypes = [ctypes.c_void_p]
driver.fake_replay.argtypes = [ctypes.c_int, ctypes.c_void_p]
driver.fake_free_on.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
driver.fake_lend.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
driver.fake_fail_at.argtypes = [ctypes.c_long, ctypes.c_int]


class _ExchangeApi(ctypes.Structure):
    """What ``__dlpack_c_exchange_api__`` has (csrc/dlpack.h)."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 4),
        ("current_work_stream", ctypes.c_void_p),
    )


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _default_stream(_kind: int, _ordinal: int, stream: Any) -> int:
    stream[0] = None
    return 0


def _keep_torch_from_the_driver() -> None:
    """Have torch name the default stream, as a build without CUDA does: its CUDA runtime needs more of a driver."""
    torch = sys.modules.get("torch")
    if torch is None or torch.version.cuda is None:
        return
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    api = _ExchangeApi.from_address(get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
    api.current_work_stream = ctypes.cast(_default_stream, ctypes.c_void_p).value


_keep_torch_from_the_driver()


def _check(code: int) -> None:
    assert code == 0, f"CUresult {code}"


# What a user does


@contextmanager
def _quietly() -> Iterator[None]:
    """Have the driver neither count nor fail what the program itself asks of it."""
    driver.fake_quiet(1)
    yield
    driver.fake_quiet(0)


def current() -> int | None:
    """Return the ordinal of the calling thread's current context."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    with _quietly():
        _check(driver.cuCtxGetCurrent(ctypes.byref(context)))
        if not context:
            return None
        _check(driver.cuCtxGetDevice(ctypes.byref(device)))
    return device.value


def use(ordinal: int | None) -> None:
    """Make a GPU's context current in the calling thread; None makes none."""
    context = ctypes.c_void_p()
    with _quietly():
        if ordinal is not None:
            _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
        _check(driver.cuCtxSetCurrent(context))


@contextmanager
def current_device(ordinal: int | None) -> Iterator[None]:
    """Have a GPU current for a while; what is done meanwhile must leave it current."""
    before = current()
    use(ordinal)
    yield
    assert current() == ordinal, f"GPU {ordinal} was current, now it is {current()}"
    use(before)


def everywhere(scenario: Callable[[], object]) -> None:
    """Do something with either GPU current, with none, and in a fresh thread."""
    for ordinal in (0, 1, None):
        with current_device(ordinal):
            scenario()
    in_a_thread(scenario)


def in_a_thread(scenario: Callable[[], object]) -> None:
    """Do something in a fresh thread, which has no current GPU, and must have none in the end."""

    def run() -> None:
        with current_device(None):
            scenario()
            done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done, "it failed in a thread"


def with_every_fault(scenario: Callable[[], object], code: int = 700) -> list[str]:
    """Do something again and again, with another one of its calls of the driver failing each time.

    What comes out must be our own exception, and GPU 0 current as before. Returns the calls that were made to fail and
    whose failure nobody told.
    """
    untold, number = [], 0
    while True:
        with current_device(0):
            log()
            driver.fake_fail_at(number, code)
            try:
                scenario()
                told = False
            except pycutlass.errors.PyCutlassError:
                told = True
            driver.fake_fail_at(-1, 0)
            calls = log()
            if len(calls) <= number:
                return untold
            failed = calls[number].split()[0]
            if failed == "cuCtxSetCurrent":  # perhaps the one that was to put GPU 0 back
                use(0)
        untold += [] if told else [failed]
        number += 1


def refused(call: Callable[[], object], *words: str) -> str:
    """Do what must be refused with these words; return the name of the exception."""
    try:
        call()
    except pycutlass.errors.PyCutlassError as error:
        assert all(word in str(error) for word in words), str(error)
        return type(error).__name__
    raise AssertionError("not refused")


class Stream:
    """A stream of a GPU."""

    def __init__(self, ordinal: int) -> None:
        handle = ctypes.c_void_p()
        with current_device(ordinal), _quietly():
            _check(driver.cuStreamCreate(ctypes.byref(handle), 0))
        assert handle.value
        self.ptr = handle.value

    def destroy(self) -> None:
        with _quietly():
            _check(driver.cuStreamDestroy_v2(ctypes.c_void_p(self.ptr)))


_streams: dict[int, int] = {}


@contextmanager
def busy(ordinal: int, stream: Stream) -> Iterator[None]:
    """Have `stream` be the current one of its GPU for a while."""
    _streams[ordinal] = stream.ptr
    yield
    del _streams[ordinal]


def memory_at(address: int, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return what is in device memory now, whoever writes to it."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(shape)


class Array:
    """Device memory with the values of a host array: what cupy.ndarray is."""

    def __init__(self, ordinal: int, values: NDArray[Any]) -> None:
        pointer = ctypes.c_uint64()
        with current_device(ordinal), _quietly():
            _check(driver.cuMemAlloc_v2(ctypes.byref(pointer), max(values.nbytes, 1)))
        self.shape, self.dtype, self.strides = values.shape, values.dtype, values.strides
        self.data = SimpleNamespace(ptr=pointer.value, device_id=ordinal)
        self.order = "C" if values.flags.c_contiguous else "F"
        self.itemsize = values.itemsize
        self.__cuda_array_interface__: dict[str, Any] = {}
        self.set(values)

    def set(self, values: NDArray[Any]) -> None:
        """Write there at once, whatever is under way."""
        ctypes.memmove(self.data.ptr, values.tobytes(self.order), values.nbytes)

    def now(self) -> NDArray[Any]:
        """Return what is there now, whoever writes to it."""
        flat = memory_at(self.data.ptr, (int(np.prod(self.shape)),), self.dtype)
        return flat.reshape(self.shape, order=self.order).copy()  # type: ignore[call-overload]

    def __del__(self) -> None:
        with _quietly():
            driver.cuMemFree_v2(ctypes.c_uint64(self.data.ptr))


class _Strided(Array):
    """Memory of another array, with a shape and steps of its own."""

    def __init__(self, owner: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.owner, self.shape, self.strides, self.dtype = owner, shape, strides, owner.dtype
        self.data, self.order, self.itemsize = owner.data, "C", owner.itemsize
        self.__cuda_array_interface__ = {}

    def __del__(self) -> None:
        """Leave the memory to its owner."""


def on_host(rows: int, columns: int, seed: int, order: str = "C") -> NDArray[np.float32]:
    """Return small whole numbers, whose products are exact."""
    values = np.random.default_rng(seed).integers(-4, 5, (rows, columns)).astype(np.float32)
    return np.asarray(values, order=order)  # type: ignore[call-overload]


# Kernels


def _load(operation: Any, family: str) -> Any:
    """Give an operation a kernel, as if it had been compiled."""
    library = Path(os.environ["LD_LIBRARY_PATH"]) / f"{family}.so"
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)  # the code of the GPU, which stays when the host side goes
    host = library.read_bytes()
    image = f"stand-in {_core.HostLibrary(host).params_bytes}".encode() + b"\0"
    name = operation.procedural_name()
    operation.artifacts["sm_80"] = Artifact(f"{FAMILIES.index(family)}{name}", name, "sm_80", {}, image, host, {})
    return operation


def gemm(family: str = "gemm") -> Any:
    """Return an operation whose kernel multiplies A row-major and B column-major in f32."""
    operation = ampere("f32_simt", stages={"gemm": 4, "stream_k": 3}.get(family, 5))  # another text, another kernel
    if family != "stream_k":
        _load(operation.partial, "gemm")
    return _load(operation, family)


def reduction(operation: Any, rows: int, columns: int) -> Any:
    """Return what adds up the partial sums of `operation`."""
    made = pycutlass.ReductionOperation(
        cutlass.MatrixCoord(4, 32), operation.C, cutlass.float32, epilogue_functor=operation.epilogue_functor, count=1
    )
    return _load(made, "reduction")


def group(mode: str) -> Any:
    """Return a grouped operation, scheduled on the "device" or on the "host"."""
    scheduler = pycutlass.SchedulerMode[mode.capitalize()]
    operation = pycutlass.GemmOperationGrouped(**parts("f32_simt"), precompute_mode=scheduler)
    return _load(operation, f"grouped_{mode}")


def fprop() -> Any:
    """Return an operation whose kernel convolves NHWC tensors in f32."""
    operation = OPERATIONS["f32_simt_fprop"]
    _load(operation.partial, "fprop")
    return _load(operation, "fprop")


def forget_kernels() -> None:
    """Have kernels be loaded anew."""
    kernel._loaded.clear()


def soon(happens: Callable[[], bool], seconds: float = 10) -> bool:
    """Return whether something happens, in another thread."""
    end = time.monotonic() + seconds
    while not happens() and time.monotonic() < end:
        time.sleep(0.01)
    return happens()


# What was asked


def log() -> list[str]:
    """Return the calls since the last look: their name and the GPU that was current, or -."""
    return driver.fake_log().decode().splitlines()


def violations() -> str:
    """Return what was asked of the driver and would have gone wrong."""
    return driver.fake_violations().decode()


class captured:
    """While it lasts a stream is captured; `graph` is the graph's number then."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.graph = stream, -1

    def __enter__(self) -> captured:
        driver.fake_begin_capture(self.stream.ptr)
        return self

    def __exit__(self, *exception: object) -> None:
        self.graph = driver.fake_end_capture(self.stream.ptr)

    def replay(self) -> None:
        assert self.graph >= 0, "the capture was broken"
        driver.fake_replay(self.graph, self.stream.ptr)


def finish() -> None:
    """End a program: everything has to have been right."""
    driver.fake_run()
    assert not violations(), violations()


# A memory pool that allocates anew each time, and checks which GPU is current


class _Tracking:
    def __init__(self, pool: Any) -> None:
        self.used: dict[int, int] = {}
        self.ordinal = current()

    def allocate(self, size: int, stream: Any) -> int:
        assert current() == self.ordinal, f"GPU {current()} is current, the pool belongs to {self.ordinal}"
        pointer = ctypes.c_uint64()
        if driver.cuMemAlloc_v2(ctypes.byref(pointer), size):
            raise MemoryError("the stand-in has no memory")
        self.used[pointer.value] = size
        return pointer.value

    def deallocate(self, pointer: int, size: int, stream: Any) -> None:
        assert current() == self.ordinal, f"GPU {current()} is current, the pool belongs to {self.ordinal}"
        assert self.used.pop(pointer) == size
        _check(driver.fake_free_on(pointer, stream))

    def get_allocated_bytes(self) -> int:
        return sum(self.used.values())


class _Pool:
    def __init__(self, upstream: Any, initial: int, maximum: int) -> None:
        assert current() is not None

    def pool_size(self) -> int:
        return 0


def _install() -> None:
    rmm, mr, stream = ModuleType("rmm"), ModuleType("rmm.mr"), ModuleType("rmm.pylibrmm.stream")
    mr.__dict__.update(CudaMemoryResource=lambda: None, PoolMemoryResource=_Pool, TrackingResourceAdaptor=_Tracking)
    rmm.__dict__.update(mr=mr)
    stream.__dict__.update(Stream=lambda handle: handle.__cuda_stream__()[1])
    cupy = ModuleType("cupy")
    cuda = SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=_streams.get(device, 0)))
    cupy.__dict__.update(ndarray=Array, cuda=cuda)
    tricks = ModuleType("cupy.lib.stride_tricks")
    tricks.__dict__.update(as_strided=_Strided)
    modules = {"rmm": rmm, "rmm.mr": mr, "rmm.pylibrmm": ModuleType("rmm.pylibrmm"), "rmm.pylibrmm.stream": stream}
    strided = {"cupy.lib": ModuleType("cupy.lib"), "cupy.lib.stride_tricks": tricks}
    sys.modules.update({**modules, **strided, "cupy": cupy})


_install()
