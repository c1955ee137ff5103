"""The original's module of device memory, over this library's pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycutlass import _core, device
from pycutlass.errors import ArgumentTypeError
from pycutlass.integers import as_int
from pycutlass.memory import DeviceBuffer, MemoryPool, get_allocated_size, get_memory_pool

__all__ = ["PoolMemoryManager", "align_size", "device_mem_alloc", "get_allocated_size", "todevice"]


def PoolMemoryManager(init_pool_size: int, max_pool_size: int) -> MemoryPool:
    """Make the pool of the present GPU: another name for `pycutlass.get_memory_pool`."""
    return get_memory_pool(init_pool_size, max_pool_size)


def todevice(host_data: Any, dtype: Any = np.float32) -> DeviceBuffer:
    """Return device memory with a copy of an array, or of a list as an array of `dtype`; its address is ``pointer``.

    Raises
    ------
    ArgumentTypeError
        Neither a list nor an array.
    DeviceError, PoolError
        There is no GPU, or no memory.
    """
    if isinstance(host_data, list):
        host_data = np.array(host_data, dtype)
    if not isinstance(host_data, np.ndarray):
        raise ArgumentTypeError(f"host_data must be a list or an array, got {type(host_data).__name__}")
    data = np.ascontiguousarray(host_data).reshape(-1).view(np.uint8)
    buffer = device_mem_alloc(data.nbytes)
    if data.nbytes:
        _core.copy_to_device(buffer.pointer, data, buffer.stream)
        buffer.stream.synchronize()
    return buffer


def device_mem_alloc(size: int) -> DeviceBuffer:
    """Return device memory of `size` bytes; it goes back to the pool when it is no longer referenced.

    Raises
    ------
    ArgumentTypeError
        The size is not an integer of at least 0.
    DeviceError, PoolError
        There is no GPU, or no memory.
    """
    count = as_int(size)
    if count is None or count < 0:
        raise ArgumentTypeError(f"size must be a number of bytes, got {size!r}")
    return DeviceBuffer(device.current(), count)


def align_size(size: int, alignment: int = 256) -> int:
    """Return `size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment
