"""The memory pool, as far as it can be seen without a GPU: RMM's resources are replaced by ones that only count."""

from __future__ import annotations

import functools
import gc
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from descriptions import run_python
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import _core, device, memory
from pycutlass.errors import ArgumentError, ArgumentTypeError, DeviceError, PoolError, PyCutlassError

FREE = 10 << 30


class Pool:
    """RMM's PoolMemoryResource, without memory."""

    made: list[Pool] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, upstream: Any, initial: int, maximum: int) -> None:
        if initial > FREE:
            raise MemoryError("out of memory")
        self.initial, self.maximum = initial, maximum
        Pool.made.append(self)

    def pool_size(self) -> int:
        return self.initial


class Tracking:
    """RMM's TrackingResourceAdaptor: addresses count up, nothing is behind them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.alive: dict[int, int] = {}
        self.streams: list[int] = []
        self.next = 1 << 20

    def allocate(self, size: int, stream: Any) -> int:
        if self.get_allocated_bytes() + size > self.pool.maximum:
            raise MemoryError("maximum pool size exceeded")
        self.next += size
        self.alive[self.next] = size
        self.streams.append(stream)
        return self.next

    def deallocate(self, pointer: int, size: int, stream: Any) -> None:
        assert self.alive.pop(pointer) == size
        self.streams.append(stream)

    def get_allocated_bytes(self) -> int:
        return sum(self.alive.values())


def _stream(handle: int) -> Any:
    return SimpleNamespace(handle=handle, is_capturing=lambda: False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU that only counts bytes."""
    mr = SimpleNamespace(CudaMemoryResource=lambda: None, PoolMemoryResource=Pool, TrackingResourceAdaptor=Tracking)
    rmm = ModuleType("rmm")
    rmm.mr = mr  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    monkeypatch.setitem(sys.modules, "rmm.mr", mr)
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr(_core, "current_device", lambda: 0)
    monkeypatch.setattr(_core, "DeviceScope", lambda ordinal: nullcontext())
    monkeypatch.setattr(_core, "Stream", lambda ordinal: _stream(0))
    monkeypatch.setattr(_core, "memory_info", lambda ordinal: (FREE, 2 * FREE))
    monkeypatch.setattr(memory, "_rmm_stream", lambda handle: handle)
    monkeypatch.setattr(memory, "_pools", {})
    Pool.made.clear()


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "device_count", lambda: 0)


# Without a GPU


@pytest.mark.usefixtures("no_gpu")
def test_nothing_is_allocated_where_there_is_no_gpu():
    assert pycutlass.get_allocated_size() == 0


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("ask", [pycutlass.get_memory_pool, lambda: pycutlass.get_memory_pool(2**20, 2**30)])
def test_without_a_gpu_a_pool_reserves_nothing(ask):
    pool = ask()
    assert pool.get_allocated_size() == pool.pool_size() == 0
    with pytest.raises(ArgumentError, match="init_pool_size"):
        pycutlass.get_memory_pool(2, 1)


def test_importing_the_module_imports_no_rmm():
    program = "import sys, pycutlass.memory; print(sorted(name for name in sys.modules if name.startswith('rmm')))"
    assert run_python(program).strip() == "[]"


# Errors


@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**50))
def test_a_pool_error_has_its_sizes(requested, used, limit):
    error = PoolError(requested, used, limit)
    assert (error.requested, error.used, error.limit) == (requested, used, limit)
    assert isinstance(error, MemoryError)
    assert isinstance(error, PyCutlassError)
    for word in (f"{requested:,} bytes", f"{used:,} of at most {limit:,} bytes", "get_memory_pool", "max_pool_size"):
        assert word in str(error)


@pytest.mark.parametrize(("initial", "maximum"), [(-1, 100), (0, 0), (0, -1), (200, 100)])
def test_sizes_that_contradict_each_other_are_refused(initial, maximum):
    with pytest.raises(ArgumentError) as caught:
        memory.MemoryPool(0, initial, maximum)
    words = (f"init_pool_size={initial:,}", f"max_pool_size={maximum:,}", "init_pool_size <= max_pool_size")
    assert all(word in str(caught.value) for word in words)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "size", ["1GiB", None, np.zeros(2, np.int64), 0.5, 1e9, float("nan"), True, 2**20 + 0j], ids=repr
)
@pytest.mark.parametrize("name", ["init_pool_size", "max_pool_size"])
def test_sizes_are_integers(name, size):
    for make in (pycutlass.get_memory_pool, functools.partial(memory.MemoryPool, 0)):
        with pytest.raises(ArgumentTypeError) as caught:
            make(**{"init_pool_size": 0, "max_pool_size": 2**30, name: size})
        assert all(word in str(caught.value) for word in (name, "bytes", "integer", "get_memory_pool", repr(size)))


@pytest.mark.usefixtures("no_gpu")
def test_sizes_may_be_integers_of_numpy_and_not_absurd():
    pool = pycutlass.get_memory_pool(np.int64(100), np.uint64(1000))
    assert (pool.init_pool_size, pool.max_pool_size) == (256, 1024)
    assert type(pool.init_pool_size) is int
    with pytest.raises(ArgumentError, match=r"at most 9,223,372,036,854,775,808 bytes"):
        pycutlass.get_memory_pool(0, 10**30)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_without_enough_memory_is_an_error():
    with pytest.raises(DeviceError) as caught:
        pycutlass.get_memory_pool(2 * FREE, 4 * FREE)
    words = ("GPU 0", f"{2 * FREE:,} bytes", f"{FREE:,} of {2 * FREE:,} bytes are free", "smaller init_pool_size")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert pycutlass.get_memory_pool(0, 1024).max_pool_size == 1024


# Pools


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("asked", "whole"), [(1, 256), (256, 256), (257, 512), (2**30, 2**30)])
def test_sizes_are_whole(asked, whole):
    pool = pycutlass.get_memory_pool(asked, asked)
    assert (pool.init_pool_size, pool.max_pool_size) == (whole, whole)
    assert (Pool.made[0].initial, Pool.made[0].maximum) == (whole, whole)
    assert pool.pool_size() == whole


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("initial", "maximum"), [(2**20, 2**30), (1000, 5000)])
def test_the_same_call_gives_the_same_pool_also_while_it_is_used(initial, maximum):
    pool = pycutlass.get_memory_pool(initial, maximum)
    buffer = memory.DeviceBuffer(0, 100)
    assert pycutlass.get_memory_pool(initial, maximum) is pool
    assert memory.pool_of(0) is pool
    assert pycutlass.get_allocated_size() == buffer.size
    assert len(Pool.made) == 1


@pytest.mark.usefixtures("gpu")
def test_another_size_makes_another_pool_while_nothing_is_used():
    first = pycutlass.get_memory_pool(0, 1024)
    second = pycutlass.get_memory_pool(0, 2048)
    assert second is not first
    buffer = memory.DeviceBuffer(0, 300)
    with pytest.raises(ArgumentError) as caught:
        pycutlass.get_memory_pool(0, 4096)
    words = ("at most 2,048 bytes", "300 in use", "before the first arguments", "free those")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert memory.pool_of(0) is second
    del buffer
    gc.collect()
    assert pycutlass.get_memory_pool(0, 4096).max_pool_size == 4096


@pytest.mark.usefixtures("gpu")
def test_a_pool_is_made_at_first_use():
    assert pycutlass.get_allocated_size() == 0
    assert Pool.made == []
    buffer = memory.DeviceBuffer(0, 1000)
    assert pycutlass.get_allocated_size() == 1000
    assert Pool.made[0].initial <= Pool.made[0].maximum == FREE // 2
    del buffer
    gc.collect()
    assert pycutlass.get_allocated_size() == 0


@pytest.mark.usefixtures("gpu")
def test_a_small_gpu_gets_a_small_pool(monkeypatch):
    monkeypatch.setattr(_core, "memory_info", lambda ordinal: (1000, 2000))
    pool = memory.pool_of(0)
    assert pool.init_pool_size <= pool.max_pool_size == 512


@pytest.mark.usefixtures("gpu")
def test_a_pool_that_is_full_says_how_full():
    pycutlass.get_memory_pool(0, 1024)
    kept = memory.DeviceBuffer(0, 1000)
    with pytest.raises(PoolError) as caught:
        memory.DeviceBuffer(0, 500)
    assert (caught.value.requested, caught.value.used, caught.value.limit) == (500, kept.size, 1024)
    assert pycutlass.get_allocated_size() == 1000


@pytest.mark.usefixtures("gpu")
def test_a_buffer_goes_back_behind_its_last_stream():
    pool = pycutlass.get_memory_pool(0, 1 << 20)
    buffer = memory.DeviceBuffer(0, 64, _stream(11))
    assert buffer.pointer in pool.mr.alive
    buffer.stream = _stream(22)
    del buffer
    gc.collect()
    assert pool.mr.streams == [11, 22]
    assert pool.mr.alive == {}


@pytest.mark.usefixtures("gpu")
def test_an_empty_buffer_has_an_address():
    buffer = memory.DeviceBuffer(0, 0)
    assert buffer.pointer
    del buffer
    gc.collect()
    assert pycutlass.get_allocated_size() == 0


@pytest.mark.usefixtures("gpu")
def test_the_device_of_a_pool_is_the_current_one(monkeypatch):
    monkeypatch.setattr(_core, "device_count", lambda: 2)
    monkeypatch.setattr(_core, "current_device", lambda: 1)
    pool = pycutlass.get_memory_pool(0, 1024)
    assert pool.ordinal == device.current() == 1
    assert memory.pool_of(0) is not pool
