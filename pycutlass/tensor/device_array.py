"""Device memory that has no library of tensors, as an array that every library can read."""

from __future__ import annotations

import ctypes
from typing import Any

from pycutlass.tensor.capsule import CUDA, DLTensor, code_of, packed

__all__ = ["DeviceArray"]

_NAME = b"dltensor"


class _Managed(ctypes.Structure):
    """``DLManagedTensor``: nothing is given back with it."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class DeviceArray:
    """Device memory with a shape and strides, behind ``__dlpack__``; whoever makes it keeps the memory.

    Parameters
    ----------
    pointer : int
        Address of the first element.
    dtype_name : str
        Type of the elements, as views call it.
    shape, strides : tuple of int
        Extents, and steps in elements; packed by default.
    ordinal : int
        The GPU.
    """

    def __init__(
        self,
        pointer: int,
        dtype_name: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        ordinal: int,
    ) -> None:
        self._pointer, self._dtype_name, self._ordinal = pointer, dtype_name, ordinal
        self.shape = shape
        self._strides = packed(shape) if strides is None else strides
        rank = len(shape)
        steps = ctypes.c_int64 * rank
        code, bits = code_of(dtype_name)
        self._itemsize = bits // 8
        self._extents, self._steps = steps(*shape), steps(*self._strides)  # which the capsule points to
        tensor = DLTensor(pointer, CUDA, ordinal, rank, code, bits, 1, self._extents, self._steps, 0)
        self._managed = _Managed(tensor, None, None)

    def __getitem__(self, places: tuple[slice, ...]) -> DeviceArray:
        """Return a part along the first dimensions, in the same memory."""
        pointer, shape = self._pointer, list(self.shape)
        for axis, place in enumerate(places):
            start, stop, _ = place.indices(shape[axis])
            pointer += start * self._strides[axis] * self._itemsize
            shape[axis] = max(0, stop - start)
        return self._at(pointer, tuple(shape), self._strides)

    def as_strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceArray:
        """Return the same memory with other extents and strides."""
        return self._at(self._pointer, shape, strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._ordinal

    def __dlpack__(self, **options: Any) -> Any:
        return _new_capsule(ctypes.addressof(self._managed), _NAME, None)

    def _at(self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceArray:
        return DeviceArray(pointer, self._dtype_name, shape, strides, ordinal=self._ordinal)
