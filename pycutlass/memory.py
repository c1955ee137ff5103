"""Device memory, from a pool of RMM unless another allocator was chosen.

``get_memory_pool(init, max)`` makes the pool of the present GPU; without that call one is made at first use. Nothing
here touches RMM's process-wide current resource unless the user asks for it with `share_with_torch` or
`share_with_cupy`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pycutlass import _core, device
from pycutlass.allocators import Allocator, may_give_back, take
from pycutlass.calls import public, shown
from pycutlass.deferred_release import later, let_go
from pycutlass.errors import ArgumentError, ArgumentTypeError, DeviceError, DriverError, PoolError, ToolkitError
from pycutlass.imported import imported
from pycutlass.integers import as_int

__all__ = [
    "DeviceBuffer",
    "MemoryPool",
    "get_allocated_size",
    "get_memory_pool",
    "pool_of",
    "share_with_cupy",
    "share_with_torch",
]

_DEFAULT_INITIAL = 64 << 20
_DEFAULT_SHARE = 0.5  # of the memory that is free when the pool is made, as its maximum
_LARGEST_POOL = 2**63  # no address space has more


@public
class MemoryPool:
    """A pool of device memory on one GPU.

    Parameters
    ----------
    ordinal : int
        The GPU.
    init_pool_size, max_pool_size : int
        Bytes reserved at once, and bytes that the pool may grow to. Both are rounded up to 256 bytes.

    Raises
    ------
    ArgumentError
        Sizes that are negative, or a maximum below the initial size.
    ArgumentTypeError
        Sizes that are no integers.
    DeviceError
        There is no GPU, or it has less memory than that.

    Examples
    --------
    >>> import pycutlass
    >>> pool = pycutlass.get_memory_pool(2**28, 2**32)  # doctest: +SKIP
    >>> pool.get_allocated_size()  # doctest: +SKIP
    0
    """

    def __init__(self, ordinal: int, init_pool_size: int, max_pool_size: int) -> None:
        self.init_pool_size, self.max_pool_size = _checked_sizes(init_pool_size, max_pool_size)
        self.ordinal = ordinal
        # RMM works on the current GPU, and makes GPU 0 current where there is none.
        with _core.DeviceScope(ordinal):
            import rmm.mr

            try:
                pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), self.init_pool_size, self.max_pool_size)
            except MemoryError as error:
                free, total = _core.memory_info(ordinal)
                raise DeviceError(
                    f"GPU {ordinal} cannot reserve a pool of {self.init_pool_size:,} bytes: {free:,} of {total:,} "
                    f"bytes are free. Ask for a smaller init_pool_size."
                ) from error
            self._pool = pool
            self.mr = rmm.mr.TrackingResourceAdaptor(pool)

    def get_allocated_size(self) -> int:
        """Return the bytes in use."""
        return int(self.mr.get_allocated_bytes())

    def pool_size(self) -> int:
        """Return the bytes that the pool has taken from the GPU."""
        return int(self._pool.pool_size())

    def allocate(self, size: int, stream: _core.Stream) -> int:
        """Return the address of `size` bytes, usable on `stream`, which belongs to this GPU.

        Raises
        ------
        PoolError
            The pool cannot hold them; the message has the sizes asked, used and allowed.
        """
        try:
            with _core.DeviceScope(self.ordinal):
                return int(self.mr.allocate(size, _rmm_stream(stream.handle)))
        except MemoryError as error:
            used, most = self.get_allocated_size(), self.max_pool_size
            free, total = _core.memory_info(self.ordinal)
            if used + size <= most and free < size:  # others have what it may grow to
                raise PoolError(size, total - free, total, gpu=self.ordinal) from error
            raise PoolError(size, used, most) from error

    def deallocate(self, pointer: int, size: int, stream: _core.Stream) -> None:
        """Give memory back, once what is on `stream` now has run."""
        with _core.DeviceScope(self.ordinal):
            self.mr.deallocate(pointer, size, _rmm_stream(stream.handle))


class DeviceBuffer:
    """Device memory that goes back to its pool when it is no longer referenced.

    `stream` is where it was last used: giving it back is ordered behind that. By default it is the legacy default
    stream of its GPU. `allocator` is where it comes from and goes back to; None is the pool of RMM.
    """

    def __init__(
        self,
        ordinal: int,
        size: int,
        stream: _core.Stream | None = None,
        allocator: Allocator | None = None,
    ) -> None:
        self.size = size
        self.pointer = 0
        self.stream = _core.Stream(ordinal) if stream is None else stream
        self._pool: Allocator = pool_of(ordinal) if allocator is None else allocator
        let_go()
        if allocator is None:
            self.pointer = self._pool.allocate(max(size, 1), self.stream)
        else:
            self.pointer = take(allocator, max(size, 1), self.stream)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the process ends the pool's memory goes with it, and nothing can be imported or called any more.
        if self.pointer and not _is_finalizing():
            give_back = functools.partial(_give_back, self._pool, self.pointer, max(self.size, 1), self.stream)
            self.pointer = 0
            if not give_back():
                later(give_back)


def _give_back(pool: Allocator, pointer: int, size: int, stream: _core.Stream) -> bool:
    """Give memory back; False, and it is not, while its stream is captured and a mark on that would be of the graph."""
    try:
        if not may_give_back(pool, pointer, stream):
            return False
        pool.deallocate(pointer, size, stream)
    except DriverError:  # of a driver that has ended, or of a process that has been forked: the memory is not ours
        pass
    return True


class _HostPool(MemoryPool):
    """The pool of a machine without a GPU: operations are executed on the host, and nothing is ever in use."""

    def __init__(self, init_pool_size: int, max_pool_size: int) -> None:
        self.init_pool_size, self.max_pool_size = _checked_sizes(init_pool_size, max_pool_size)

    def get_allocated_size(self) -> int:
        """Return 0."""
        return 0

    def pool_size(self) -> int:
        """Return 0."""
        return 0


# One pool a GPU for the whole process, since its point is that everybody takes from the same one. No lock: making a
# pool may wait for the GPU. Of threads that make one at the same time the first wins.
_pools: dict[int, MemoryPool] = {}


@public
def get_memory_pool(init_pool_size: int = 0, max_pool_size: int = 2**34) -> MemoryPool:
    """Make the pool of the present GPU. Without a GPU nothing is reserved, so that the same script runs on the host.

    Parameters
    ----------
    init_pool_size, max_pool_size : int
        Bytes reserved at once, and bytes that the pool may grow to.

    Raises
    ------
    ArgumentError
        The sizes contradict each other, or the present pool is in use.
    ArgumentTypeError
        The sizes are no integers.
    DeviceError
        The GPU has less memory than that.
    """
    sizes = _checked_sizes(init_pool_size, max_pool_size)
    if not device.available():
        return _HostPool(*sizes)
    ordinal = device.current()
    present = _pools.get(ordinal)
    if present is not None:
        if (present.init_pool_size, present.max_pool_size) == sizes:
            return present
        used = present.get_allocated_size()
        if used:
            raise ArgumentError(
                f"GPU {ordinal} has a pool of at most {present.max_pool_size:,} bytes with {used:,} in use: call "
                f"get_memory_pool before the first arguments are made, or free those first"
            )
        with _core.DeviceScope(ordinal):
            del _pools[ordinal], present  # its memory goes back before the other pool takes some
    return _pools.setdefault(ordinal, MemoryPool(ordinal, *sizes))


def pool_of(ordinal: int) -> MemoryPool:
    """Return the pool of GPU `ordinal`, made with default sizes where nobody has made one."""
    pool = _pools.get(ordinal)
    if pool is None:
        free, _ = _core.memory_info(ordinal)
        limit = int(free * _DEFAULT_SHARE)
        pool = _pools.setdefault(ordinal, MemoryPool(ordinal, min(_DEFAULT_INITIAL, limit), max(limit, 256)))
    return pool


@public
def get_allocated_size() -> int:
    """Return the bytes in use in the pool of the present GPU; 0 where there is no pool or no GPU."""
    if not device.available():
        return 0
    let_go()
    pool = _pools.get(device.current())
    return 0 if pool is None else pool.get_allocated_size()


@public
def share_with_torch() -> None:
    """Let torch take its memory from the present GPU's pool too.

    Makes the pool RMM's current resource and RMM torch's allocator, both for the whole process. Call it before torch
    has allocated anything on the GPU; torch refuses otherwise.

    Raises
    ------
    DeviceError, PoolError
        There is no GPU, or its memory does not hold a pool.
    ToolkitError
        torch or RMM is not installed.
    """
    try:
        import torch  # noqa: F401 (found by its name below)
        from rmm.allocators.torch import rmm_torch_allocator
    except ImportError as error:
        raise ToolkitError(f"share_with_torch needs torch and rmm, and one is missing: {error}") from error

    change_allocator = imported("torch", "cuda", "memory", "change_current_allocator")
    if change_allocator is None:
        raise ToolkitError("share_with_torch needs torch.cuda.memory, which the module torch of this process lacks")
    _make_current()
    change_allocator(rmm_torch_allocator)


@public
def share_with_cupy() -> None:
    """Let cupy take its memory from the present GPU's pool too.

    Makes the pool RMM's current resource and RMM cupy's allocator, both for the whole process.

    Raises
    ------
    DeviceError, PoolError
        There is no GPU, or its memory does not hold a pool.
    ToolkitError
        cupy or RMM is not installed.
    """
    try:
        import cupy  # noqa: F401 (found by its name below)
        from rmm.allocators.cupy import rmm_cupy_allocator
    except ImportError as error:
        raise ToolkitError(f"share_with_cupy needs cupy and rmm, and one is missing: {error}") from error

    set_allocator = imported("cupy", "cuda", "set_allocator")
    if set_allocator is None:
        raise ToolkitError("share_with_cupy needs cupy.cuda, which the module cupy of this process lacks")
    _make_current()
    set_allocator(rmm_cupy_allocator)


def _checked_sizes(init_pool_size: Any, max_pool_size: Any) -> tuple[int, int]:
    """Return both sizes rounded up to the 256 bytes that RMM counts in."""
    initial, most = _bytes("init_pool_size", init_pool_size), _bytes("max_pool_size", max_pool_size)
    if initial < 0 or most <= 0 or most < initial or most > _LARGEST_POOL:
        raise ArgumentError(
            f"a pool needs 0 <= init_pool_size <= max_pool_size and a maximum above 0 and of at most {_LARGEST_POOL:,} "
            f"bytes, got init_pool_size={initial:,} and max_pool_size={most:,}"
        )
    return -(-initial // 256) * 256, -(-most // 256) * 256


def _bytes(name: str, size: Any) -> int:
    count = as_int(size)
    if count is None:
        raise ArgumentTypeError(
            f"{name} is a number of bytes, an integer as in get_memory_pool(2**28, 2**30); got {shown(size)}"
        )
    return count


def _make_current() -> None:
    ordinal = device.current()
    pool = pool_of(ordinal)
    import rmm.mr

    with _core.DeviceScope(ordinal):
        rmm.mr.set_per_device_resource(ordinal, pool.mr)


def _rmm_stream(handle: int) -> Any:
    from rmm.pylibrmm.stream import Stream

    return Stream(_Handle(handle))


class _Handle:
    """A stream handle under the ``__cuda_stream__`` protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle
