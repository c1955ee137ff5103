"""Partial sums of parallel split-K: a plane for each slice, in the accumulator's type."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.errors import ArgumentError, PoolError
from pycutlass.launch import Operand, ordinal_of
from pycutlass.library import TensorDescription
from pycutlass.memory import DeviceBuffer
from pycutlass.operands import Matrix
from pycutlass.operation import GemmOperationUniversal
from pycutlass.tensor import TensorView

__all__ = ["HostPlanes", "PartialSums", "check_slices", "host_planes"]


class PartialSums:
    """Device memory for the partial sums.

    CUTLASS rounds the length of a slice up to whole cache lines, so fewer slices than asked may have work. Planes that
    no slice writes stay zero, and the reduction may add them all.
    """

    def __init__(
        self, description: TensorDescription, rows: int, columns: int, slices: int, operands: dict[str, Operand]
    ) -> None:
        self._description, self._rows, self._columns, self._slices = description, rows, columns, slices
        size = slices * rows * columns * description.type.bits // 8
        ordinal = ordinal_of(operands)
        free, _ = _core.memory_info(ordinal)
        if size > free:
            raise PoolError(size, 0, free)
        self.buffer = DeviceBuffer(ordinal, size)
        _core.fill(self.buffer.pointer, 0, size, 0)
        _core.synchronize(0)
        self._view = TensorView(self.buffer.pointer, None, None, None, ordinal, "workspace", self)

    def operand(self) -> Matrix:
        """Return the planes as the D of the partial GEMM."""
        step = self._rows * self._columns
        line = self._columns if self._description.is_row_major else self._rows
        return Matrix("D", self._description, self._view, self._rows, self._columns, line, self._slices, step)


class HostPlanes:
    """The same on a machine without a GPU, where the reference fills one plane and leaves zeros in the others."""

    def __init__(
        self, description: TensorDescription, rows: int, columns: int, slices: int, operands: dict[str, Operand]
    ) -> None:
        self.array = np.zeros((slices, rows, columns), description.type.dtype)
        self._description, self._rows, self._columns = description, rows, columns
        address = self.array.ctypes.data
        self._view = TensorView(address, None, None, None, None, "workspace", self)
        _host_planes[address] = self

    def operand(self) -> Matrix:
        """Return the first plane as the D of the partial GEMM."""
        line = self._columns if self._description.is_row_major else self._rows
        return Matrix("D", self._description, self._view, self._rows, self._columns, line)


# Scripts hand the workspace to the reduction as a bare address; only addresses made here may be read on the host.
_host_planes: weakref.WeakValueDictionary[int, HostPlanes] = weakref.WeakValueDictionary()


def host_planes(address: int) -> NDArray[Any] | None:
    """Return the planes that begin at `address` on the host, or None where no arguments of this process made them."""
    found = _host_planes.get(address)
    return None if found is None else found.array


def check_slices(operation: GemmOperationUniversal, k: int, slices: int) -> None:
    """Raise ArgumentError where K cannot be divided into `slices` slices."""
    if operation.is_native:
        raise ArgumentError(f"Hopper-native kernels do not split K; got split_k_slices={slices}")
    step = max(128 // operation.A.type.bits, 128 // operation.B.type.bits)
    most = -(-k // step)
    if slices > most:
        raise ArgumentError(
            f"K={k} has {most} parts of {step} elements, the least that a slice takes: split_k_slices must be at most "
            f"{most}, got {slices}"
        )
    if slices > 65535:
        raise ArgumentError(f"split_k_slices must be at most 65535, the extent of a grid along z; got {slices}")
