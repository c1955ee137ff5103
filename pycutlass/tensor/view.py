"""What PyCUTLASS needs to know of a tensor, whichever library it comes from."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TensorView"]


@dataclass(frozen=True)
class TensorView:
    """A borrowed look at a tensor.

    Attributes
    ----------
    pointer : int
        Address of the first element.
    dtype_name : str or None
        ``"float16"``, ``"bfloat16"``, ...; None for a raw pointer, which says nothing of its elements.
    shape, strides : tuple of int, or None
        Extents, and steps in elements; None for a raw pointer.
    device : int or None
        Ordinal of the GPU; None for host memory.
    library : str
        ``"torch"``, ``"cupy"``, ``"numpy"``, ``"dlpack"`` or ``"pointer"``.
    owner : object
        What keeps the memory alive.
    writable : bool
        False for a read-only array.
    requires_grad : bool
        Whether autograd of torch follows what is done with it.
    has_tangent : bool
        Whether torch differentiates it in forward mode.
    """

    pointer: int
    dtype_name: str | None
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    device: int | None
    library: str
    owner: Any
    writable: bool = True
    requires_grad: bool = False
    has_tangent: bool = False

    def host_array(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return host memory as an array of `shape` with `strides` in elements, without a copy."""
        span = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
        if 0 in shape:
            return np.empty(shape, dtype)
        memory: Any = (ctypes.c_char * (span * dtype.itemsize)).from_address(self.pointer)
        return np.ndarray(shape, dtype, memory, strides=tuple(step * dtype.itemsize for step in strides))
