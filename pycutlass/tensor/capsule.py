"""Reading a DLPack capsule: device tensors of libraries that PyCUTLASS has no adapter for."""

from __future__ import annotations

import ctypes
from typing import Any

from pycutlass.errors import ArgumentTypeError
from pycutlass.tensor.view import TensorView

__all__ = ["CUDA", "DLTensor", "code_of", "packed", "read_capsule"]

CUDA = 2  # DLPack's number of the device type
_MOST_DIMENSIONS = 64  # more than any library has
_LEGACY_DEFAULT_STREAM = 1  # as __dlpack__ numbers streams of CUDA


class DLTensor(ctypes.Structure):
    """``DLTensor`` (https://dmlc.github.io/dlpack/latest/c_api.html)."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_NAMES = {
    (0, 8): "int8",
    (0, 32): "int32",
    (1, 8): "uint8",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
}


def read_capsule(tensor: Any, ordinal: int) -> TensorView:
    """Return a view of `tensor`, a device tensor with ``__dlpack__``.

    The capsule stays with the view and is never renamed to "used": its destructor gives the memory back to the
    exporting library when the view goes.

    Raises
    ------
    ArgumentTypeError
        The exporter made no version-0 capsule, its element type has no counterpart here, or what it says is
        contradictory: of another device than `ordinal`, of elements that have no memory.
    """
    capsule = tensor.__dlpack__(stream=_LEGACY_DEFAULT_STREAM)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    try:
        address = get_pointer(capsule, b"dltensor")
    except ValueError as error:
        raise ArgumentTypeError(f"{type(tensor).__name__} exports no DLPack tensor: {error}") from error
    view = DLTensor.from_address(address)
    name = _NAMES.get((view.code, view.bits)) if view.lanes == 1 else None
    if name is None:
        raise ArgumentTypeError(
            f"{type(tensor).__name__} has DLPack type code {view.code} with {view.bits} bits and {view.lanes} lanes, "
            f"which no kernel takes"
        )
    shape, strides = _extents(view)
    if problem := _contradiction(view, ordinal, shape):
        raise ArgumentTypeError(
            f"{type(tensor).__name__} exports a DLPack tensor {problem}: copy what it means into a tensor of torch or "
            f"CuPy on that GPU, and pass the copy"
        )
    address = (view.data or 0) + view.byte_offset
    return TensorView(address, name, shape, strides, ordinal, "dlpack", (capsule, tensor))


def _extents(view: DLTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides; nothing of what cannot be a number of dimensions."""
    if not 0 < view.ndim <= _MOST_DIMENSIONS or not view.shape:
        return (), ()
    shape = tuple(view.shape[i] for i in range(view.ndim))
    return shape, tuple(view.strides[i] for i in range(view.ndim)) if view.strides else packed(shape)


def _contradiction(view: DLTensor, ordinal: int, shape: tuple[int, ...]) -> str:
    """Return what is wrong with a DLPack tensor that is said to be on GPU `ordinal`; nothing where all fits."""
    if (view.device_type, view.device_id) != (CUDA, ordinal):
        return (
            f"on device {view.device_id} of type {view.device_type}, and its __dlpack_device__ says device {ordinal} "
            f"of type {CUDA}, which is CUDA"
        )
    if len(shape) != view.ndim:
        return f"of {view.ndim} dimensions whose extents are missing, where there may be 0 to {_MOST_DIMENSIONS}"
    if min(shape, default=1) < 0:
        return f"of shape {shape}, which has negative extents"
    if not view.data and 0 not in shape:
        return f"of shape {shape} that has no memory: its address is 0"
    if (view.data or 0) + view.byte_offset >= 2**64:
        return f"whose address {view.data:#x} and offset {view.byte_offset:,} lead out of all memory"
    return ""


def code_of(dtype_name: str) -> tuple[int, int]:
    """Return DLPack's type code and the bits of an element type, as views call it.

    Raises
    ------
    ArgumentTypeError
        There is none.
    """
    found = next((code for code, name in _NAMES.items() if name == dtype_name), None)
    if found is None:
        raise ArgumentTypeError(
            f"DLPack has no elements of {dtype_name} that kernels take: {', '.join(_NAMES.values())}"
        )
    return found


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of packed memory, in elements."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
