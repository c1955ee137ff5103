"""Device memory, under the original's name."""

from pycutlass.compat.memory import PoolMemoryManager, align_size, device_mem_alloc, get_allocated_size, todevice

__all__ = ["PoolMemoryManager", "align_size", "device_mem_alloc", "get_allocated_size", "todevice"]
