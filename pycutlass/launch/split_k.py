"""Partial sums of parallel split-K: a plane for each slice, in the accumulator's type."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Protocol

import numpy as np

from pycutlass import _core, device
from pycutlass.allocators import chosen
from pycutlass.device import current_stream_source
from pycutlass.errors import PoolError
from pycutlass.launch.problem import ordinal_of
from pycutlass.library import TensorDescription
from pycutlass.memory import DeviceBuffer
from pycutlass.operands import Matrix, Operand
from pycutlass.tensor import TensorView

__all__ = ["Planes", "new_planes", "planes_at"]


class _Maker(Protocol):
    """The arguments of the GEMM or convolution that makes partial sums."""

    @property
    def launched(self) -> bool:
        """Whether there was a launch with them."""


class Planes(ABC):
    """Partial sums, wherever they are: a plane for each slice.

    Attributes
    ----------
    shape : tuple of 3 int
        Slices, rows and columns.
    k : int
        Products that each sum has over all slices.
    view : TensorView
        Their memory.
    """

    def __init__(
        self,
        description: TensorDescription,
        rows: int,
        columns: int,
        slices: int,
        operands: dict[str, Operand],
        maker: _Maker,
    ) -> None:
        self._description = description
        self.shape = (slices, rows, columns)
        self.k = _products(operands, columns)
        self._maker = weakref.ref(maker)
        self._written = False
        self.view = self._zeros(operands)
        _planes[self.view.pointer] = self

    @abstractmethod
    def _zeros(self, operands: dict[str, Operand]) -> TensorView:
        """Return memory for the planes that is zero, and alive as long as the view."""

    def operand(self) -> Matrix:
        """Return the first plane as the D of the operation that makes them."""
        _, rows, columns = self.shape
        line = columns if self._description.is_row_major else rows
        return Matrix("D", self._description, self.view, rows, columns, line)

    @property
    def written(self) -> bool:
        """Whether the arguments that they were made for have been launched."""
        maker = self._maker()
        return self._written or (maker is not None and maker.launched)

    @written.setter
    def written(self, value: bool) -> None:
        """Keep what the arguments say at their end."""
        self._written = value


class _DevicePlanes(Planes):
    """Device memory for the partial sums.

    CUTLASS rounds the length of a slice up to whole cache lines, so fewer slices than asked may have work. Planes that
    no slice writes stay zero, and the reduction may add them all.
    """

    def _zeros(self, operands: dict[str, Operand]) -> TensorView:
        size = self._description.type.bytes_of(math.prod(self.shape))
        ordinal = ordinal_of(operands)
        free, total = _core.memory_info(ordinal)
        if size > free:
            raise PoolError(size, total - free, total, gpu=ordinal)
        stream = _current_stream(operands, ordinal)
        buffer = DeviceBuffer(ordinal, size, stream, chosen.get().allocator)
        _core.fill(buffer.pointer, 0, size, stream)
        return TensorView(buffer.pointer, self._description.type.dtype_name, None, None, ordinal, "workspace", buffer)

    def operand(self) -> Matrix:
        """Return all planes as the D of the operation that makes them."""
        slices, rows, columns = self.shape
        return replace(super().operand(), batch=slices, batch_stride=rows * columns)


class _HostPlanes(Planes):
    """The same on a machine without a GPU, where the reference fills one plane and leaves zeros in the others."""

    def _zeros(self, operands: dict[str, Operand]) -> TensorView:
        array = np.zeros(self.shape, self._description.type.dtype)
        dtype_name = self._description.type.dtype_name
        return TensorView(array.ctypes.data, dtype_name, None, None, None, "workspace", array)


def new_planes(
    description: TensorDescription, rows: int, columns: int, slices: int, operands: dict[str, Operand], maker: _Maker
) -> Planes:
    """Return planes of zeros for the partial sums that `maker` launches, where launches are executed.

    Parameters
    ----------
    description : TensorDescription
        Of the sums.
    rows, columns, slices : int
        Extents of one plane, and how many there are.
    operands : dict
        A and B of the operation, which say on which GPU it runs, and how long its sums are.
    maker : Arguments
        Those of the operation that writes the sums.

    Raises
    ------
    PoolError
        The GPU has no memory for them.
    """
    kind = _DevicePlanes if device.available() else _HostPlanes
    return kind(description, rows, columns, slices, operands, maker)


# Scripts hand the workspace to the reduction as a bare address: this is what is known of those made here.
_planes: weakref.WeakValueDictionary[int, Planes] = weakref.WeakValueDictionary()


def planes_at(address: int) -> Planes | None:
    """Return the planes that begin at `address`, or None where no arguments of this process made them."""
    return _planes.get(address)


def _products(operands: dict[str, Operand], columns: int) -> int:
    """Return K: operand B has K elements for each column of the sums, also where it is the filter of a convolution.

    But for wgrad, whose B is the activation. That adds up no integers, and only sums of those are limited by K.
    """
    B = operands["B"]
    assert isinstance(B, Matrix)
    return B.rows * B.columns // columns


def _current_stream(operands: dict[str, Operand], ordinal: int) -> _core.Stream:
    """Return the stream that a launch without a named one goes to: the same choice as `pycutlass.launch` makes."""
    libraries = {operand.view.library for operand in operands.values()}
    first = next((name for name in ("torch", "cupy") if name in libraries), "")
    return _core.Stream(ordinal, current_stream_source(first, ordinal)())
