"""Tensors of every library, wrapped: without a copy, without importing the library, without a GPU."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from descriptions import plainly, run_python
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import _core
from pycutlass.device import current_stream_source
from pycutlass.errors import ArgumentTypeError
from pycutlass.tensor import TensorView, wrap
from pycutlass.tensor.capsule import DLTensor
from pycutlass.tensor.device_array import DeviceArray

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int32"]

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


def numpy_dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> type:
    """Put a module in the place of cupy, with an array class and a current stream."""

    class ndarray:
        def __init__(self, array: np.ndarray, pointer: int, device: int) -> None:
            self.dtype, self.shape, self.strides = array.dtype, array.shape, array.strides
            self.data = SimpleNamespace(ptr=pointer, device_id=device)

    def get_current_stream(device: int) -> SimpleNamespace:
        return SimpleNamespace(ptr=0xABC0 + device)

    cupy = SimpleNamespace(ndarray=ndarray, cuda=SimpleNamespace(get_current_stream=get_current_stream))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return ndarray


def _pointer_of(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, b"dltensor")
    assert isinstance(address, int)
    return address


def _capsule(tensor: DLTensor) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(tensor), b"dltensor", None)


class Exporter:
    """A tensor of a library that PyCUTLASS has never heard of; its memory is torch's."""

    def __init__(self, tensor: torch.Tensor, device: tuple[int, int] = (1, 0), *, modern: bool = True) -> None:
        self.tensor, self.device, self.modern = tensor, device, modern
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        self.streams.append(stream)
        capsule = self.tensor.__dlpack__(**options if self.modern else {})
        if not self.modern:
            said = DLTensor.from_address(_pointer_of(capsule))
            said.device_type, said.device_id = self.device
        return capsule


# numpy and torch


def test_device_memory_of_elements_that_dlpack_lacks():
    with pytest.raises(ArgumentTypeError, match="DLPack has no elements of int4 that kernels take: int8"):
        DeviceArray(1 << 20, "int4", (4, 4), ordinal=0)


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.lists(st.integers(2, 5), min_size=2, max_size=4), st.data())
def test_device_memory_of_no_library(dtype, shape, data):
    """Parts of it begin where those of an array begin, and have the same steps."""
    base, itemsize = 0x7F0000001000, numpy_dtype(dtype).itemsize
    array = np.empty(shape, numpy_dtype(dtype))
    places = tuple(
        slice(start := data.draw(st.integers(0, extent - 1)), data.draw(st.integers(start + 1, extent)))
        for extent in shape[: data.draw(st.integers(1, len(shape)))]
    )
    whole, part = DeviceArray(base, dtype, tuple(shape), ordinal=3), array[places]
    for given_tensor, like in ((whole, array), (whole[places], part)):
        view = wrap("A", given_tensor)
        assert view.pointer - base == like.ctypes.data - array.ctypes.data
        assert view.shape == given_tensor.shape == like.shape
        assert view.strides == tuple(step // itemsize for step in like.strides)
        assert (view.dtype_name, view.device, view.library) == (dtype, 3, "dlpack")
    view = wrap("A", whole[places].as_strided((2, 3), (7, 1)))
    assert view.pointer - base == part.ctypes.data - array.ctypes.data
    assert (view.shape, view.strides) == ((2, 3), (7, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@given(shapes, st.booleans())
def test_numpy_arrays(dtype, shape, transposed):
    array = np.zeros(shape, numpy_dtype(dtype))
    array = array.T if transposed else array
    view = wrap("A", array)
    assert view.pointer == array.ctypes.data
    assert view.dtype_name == dtype
    assert view.shape == array.shape
    assert view.strides == tuple(step // array.itemsize for step in array.strides)
    assert (view.device, view.library, view.writable) == (None, "numpy", True)
    assert view.owner is array


@pytest.mark.parametrize("dtype", DTYPES)
@given(shapes, st.booleans())
def test_torch_tensors(dtype, shape, transposed):
    tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
    tensor = tensor.mT if transposed and tensor.ndim > 1 else tensor
    view = wrap("A", tensor)
    assert view.pointer == tensor.data_ptr()
    assert view.dtype_name == dtype
    assert view.shape == tuple(tensor.shape)
    assert view.strides == tensor.stride()
    assert (view.device, view.library) == (None, "torch")
    assert view.owner is tensor


def test_parameters_are_tensors():
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    assert wrap("A", parameter).pointer == parameter.data_ptr()


def test_read_only_arrays_are_known():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert not wrap("A", array).writable
    assert not wrap("A", np.broadcast_to(np.zeros(1, np.float32), 4)).writable


# cupy and raw pointers


def test_cupy_arrays(monkeypatch):
    ndarray = fake_cupy(monkeypatch)
    tensor = ndarray(np.zeros((4, 6), np.float16)[:, :3], 0x7F0000001000, 3)
    view = wrap("B", tensor)
    assert view == TensorView(0x7F0000001000, "float16", (4, 3), (6, 1), 3, "cupy", tensor)


class CUdeviceptr(int):
    """Stands for ``cuda.bindings.driver.CUdeviceptr``, which is known by its name."""


@pytest.mark.parametrize("pointer", [0x7F0000001000, CUdeviceptr(0x7F0000001000)])
def test_raw_pointers_say_nothing_but_the_address(pointer):
    view = wrap("A", pointer)
    assert (view.pointer, view.dtype_name, view.shape, view.strides) == (0x7F0000001000, None, None, None)
    assert view.library == "pointer"
    assert view.device is not None  # device memory, on whichever GPU


# DLPack


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_host_memory_through_dlpack(dtype):
    tensor = torch.zeros(3, 4, dtype=getattr(torch, dtype)).T
    exporter = Exporter(tensor)
    view = wrap("A", exporter)
    assert view.pointer == tensor.data_ptr()
    assert (view.dtype_name, view.shape, view.strides) == (dtype, (4, 3), (1, 4))
    assert (view.device, view.library, view.writable) == (None, "dlpack", True)
    assert any(owner is exporter for owner in view.owner)


def test_host_memory_of_an_old_exporter_counts_as_read_only():
    # Before DLPack 1.0 an exporter could not say so, and NumPy assumes it.
    assert not wrap("A", Exporter(torch.zeros(3), modern=False)).writable


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 3])
def test_device_memory_through_dlpack(dtype, offset):
    base = torch.zeros(40, dtype=getattr(torch, dtype))
    tensor = base[offset:].as_strided((4, 3), (8, 2))
    exporter = Exporter(tensor, (2, 5), modern=False)
    view = wrap("A", exporter)
    assert view.pointer == tensor.data_ptr()
    assert (view.dtype_name, view.shape, view.strides) == (dtype, (4, 3), (8, 2))
    assert (view.device, view.library) == (5, "dlpack")
    assert exporter.streams == [1]  # the legacy default stream, which is where the launch goes


@pytest.mark.parametrize(("shape", "strides"), [((4, 3), (3, 1)), ((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((), ())])
def test_a_capsule_without_strides_is_packed_and_its_offset_counts(shape, strides):
    extents = (ctypes.c_int64 * len(shape))(*shape)
    tensor = DLTensor(0x7F0000001000, 2, 1, len(shape), 2, 16, 1, extents, None, 0x40)
    capsule = _capsule(tensor)
    exporter = SimpleNamespace(__dlpack_device__=lambda: (2, 1), __dlpack__=lambda stream: capsule)
    view = wrap("A", exporter)
    assert (view.pointer, view.dtype_name, view.device) == (0x7F0000001040, "float16", 1)
    assert (view.shape, view.strides) == (shape, strides)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": None}, "of shape (4, 3) that has no memory"),
        ({"data": None, "byte_offset": 64}, "of shape (4, 3) that has no memory"),
        ({"byte_offset": 2**64 - 8}, "lead out of all memory"),
        ({"device_id": 0}, "on device 0 of type 2, and its __dlpack_device__ says device 1 of type 2"),
        ({"device_type": 1}, "on device 1 of type 1, and its __dlpack_device__ says device 1 of type 2"),
        ({"ndim": -3}, "of -3 dimensions"),
        ({"ndim": 2**31 - 1}, "of 2147483647 dimensions"),
        ({"shape": None}, "of 2 dimensions whose extents are missing"),
        ({"shape": (ctypes.c_int64 * 2)(-4, 3)}, "of shape (-4, 3), which has negative extents"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_capsule_that_contradicts_itself_is_refused(change, words):
    tensor = DLTensor(0x7F0000001000, 2, 1, 2, 2, 16, 1, (ctypes.c_int64 * 2)(4, 3), None, 0)
    exporter = SimpleNamespace(__dlpack_device__=lambda: (2, 1), __dlpack__=lambda stream: _capsule(tensor))
    assert wrap("A", exporter).shape == (4, 3)
    for name, value in change.items():
        setattr(tensor, name, value)
    with pytest.raises(ArgumentTypeError, match=re.escape(words)):
        wrap("A", exporter)


def test_an_empty_capsule_needs_no_memory():
    tensor = DLTensor(None, 2, 1, 2, 2, 16, 1, (ctypes.c_int64 * 2)(0, 3), None, 0)
    exporter = SimpleNamespace(__dlpack_device__=lambda: (2, 1), __dlpack__=lambda stream: _capsule(tensor))
    assert wrap("A", exporter).pointer == 0


@pytest.mark.parametrize("device", [None, 2, (2,), (2, 0, 0), (2, "0"), (2.0, 0), (2, 0.0), (2, True), (2, -1), "20"])
def test_a_device_is_two_integers(device):
    exporter = SimpleNamespace(__dlpack_device__=lambda: device, __dlpack__=lambda stream: None)
    with pytest.raises(ArgumentTypeError, match="as its __dlpack_device__ says"):
        wrap("A", exporter)


def test_a_view_keeps_the_exporter_and_gives_its_memory_back():
    exporter = Exporter(torch.zeros(5), (2, 0), modern=False)
    view = wrap("A", exporter)
    known = weakref.ref(exporter)
    del exporter
    gc.collect()
    assert known() is not None
    del view
    gc.collect()
    assert known() is None


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(2, dtype=torch.complex64), ["type code 5", "64 bits"]),
        (torch.zeros(2, dtype=torch.int64), ["type code 0", "64 bits"]),
    ],
    ids=str,
)
def test_device_memory_of_no_known_type_is_refused(tensor, words):
    with pytest.raises(ArgumentTypeError) as caught:
        wrap("A", Exporter(tensor, (2, 0), modern=False))
    assert all(word in str(caught.value) for word in ["Exporter", *words]), str(caught.value)


def test_a_capsule_that_was_used_is_refused():
    tensor = torch.zeros(2)
    capsule = tensor.__dlpack__()
    torch.from_dlpack(capsule)
    exporter = SimpleNamespace(__dlpack_device__=lambda: (2, 0), __dlpack__=lambda stream: capsule)
    with pytest.raises(ArgumentTypeError, match="exports no DLPack tensor"):
        wrap("A", exporter)


def test_host_memory_that_numpy_cannot_hold_is_refused():
    with pytest.raises(ArgumentTypeError, match="operand C cannot be read through DLPack"):
        wrap("C", Exporter(torch.zeros(2, dtype=torch.bfloat16)))


# What is no tensor


@pytest.mark.parametrize("value", [None, "A", [1.0], (1, 2), 1.5, True, object(), np.float32(1), {}, int], ids=plainly)
def test_what_is_no_tensor_is_refused(value):
    with pytest.raises(ArgumentTypeError) as caught:
        wrap("B", value)
    assert "operand B must be a tensor of torch, numpy or cupy" in str(caught.value)
    assert type(value).__name__ in str(caught.value)


# Streams


def test_the_current_stream_of_torch(monkeypatch):
    asked = []

    def current_stream(device: int) -> Any:
        asked.append(device)
        return SimpleNamespace(cuda_stream=0x1230 + device)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    source = current_stream_source("torch", 2)
    assert source() == 0x1232
    assert asked == [2]


def test_the_current_stream_of_cupy(monkeypatch):
    fake_cupy(monkeypatch)
    assert current_stream_source("cupy", 0)() == 0xABC0
    assert current_stream_source("cupy", 3)() == 0xABC3, "that of the tensors' GPU, whichever is current"


@pytest.mark.parametrize("library", ["numpy", "dlpack", "pointer"])
def test_others_have_the_default_stream(library):
    assert current_stream_source(library, 0)() == 0


# Memory


@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.integers(0, 3), st.booleans())
def test_host_arrays_look_at_the_same_memory(shape, slack, transposed):
    base = np.arange(100, dtype=np.float32)
    view = wrap("A", base)
    step = shape[0 if transposed else 1] + slack
    strides = (1, step) if transposed else (step, 1)
    array = view.host_array(shape, strides, base.dtype)
    rows, columns = np.indices(shape)
    assert np.array_equal(array, base[rows * strides[0] + columns * strides[1]])
    array[-1, -1] = -1.0
    assert base[(shape[0] - 1) * strides[0] + (shape[1] - 1) * strides[1]] == -1.0


def test_handles_of_streams():
    stream = SimpleNamespace(cuda_stream=0xABC0)
    given = (0, 0xABC0, stream, SimpleNamespace(__cuda_stream__=lambda: (0, 0xABC0)), SimpleNamespace(ptr=0xABC0))
    assert [_core.stream_handle(one) for one in given] == [0, 0xABC0, 0xABC0, 0xABC0, 0xABC0]
    for wrong in (-5, 2**64):
        with pytest.raises(ArgumentTypeError, match=f"stream is {wrong}, which is no handle"):
            _core.stream_handle(wrong)
    with pytest.raises(ArgumentTypeError, match="stream must be an integer handle"):
        _core.stream_handle("main")


def test_wrapping_imports_no_library():
    program = """
import sys
import numpy as np
from pycutlass.tensor import wrap
wrap("A", np.zeros(3))
wrap("A", 4096)
print(sorted({"torch", "cupy", "rmm", "cuda.bindings"} & set(sys.modules)))
"""
    assert run_python(program).strip() == "[]"
