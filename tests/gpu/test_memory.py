"""The pool: sizes, sharing, exhaustion, and buffers that go with their arguments."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cases import OPERATIONS

import pycutlass
from pycutlass import _core, memory
from pycutlass.errors import ArgumentError, PoolError


def numpy_arguments() -> pycutlass.GemmArguments:
    operation = OPERATIONS["f16_tnt"]
    A = np.random.default_rng().standard_normal((128, 64)).astype(np.float16)
    B = np.asfortranarray(np.random.default_rng().standard_normal((64, 128)).astype(np.float16))
    return pycutlass.GemmArguments(operation, (128, 128, 64), A, B, None, np.empty((128, 128), np.float16))


def test_buffers_go_with_their_arguments() -> None:
    assert pycutlass.get_allocated_size() == 0
    arguments = numpy_arguments()
    assert pycutlass.get_allocated_size() == 2 * (128 * 64 * 2) + 128 * 128 * 2
    arguments.operation.run(arguments)
    del arguments
    assert pycutlass.get_allocated_size() == 0


def test_a_pool_in_use_is_not_replaced() -> None:
    arguments = numpy_arguments()
    with pytest.raises(ArgumentError, match="in use"):
        pycutlass.get_memory_pool(2**20, 2**21)
    del arguments
    pool = pycutlass.get_memory_pool(2**25, 2**26)
    assert pool.pool_size() == 2**25
    assert pycutlass.get_memory_pool(2**25, 2**26) is pool


def test_a_pool_that_is_too_small_says_the_sizes() -> None:
    pool = memory.MemoryPool(0, 2**20, 2**20)
    with pytest.raises(PoolError) as caught:
        pool.allocate(2**22, _core.Stream(0))
    assert (caught.value.requested, caught.value.used, caught.value.limit) == (2**22, 0, 2**20)
    assert "4,194,304" in str(caught.value) and "1,048,576" in str(caught.value)


def test_a_process_that_ends_with_buffers_says_nothing() -> None:
    """Also where they are in a cycle, which is torn down last."""
    program = """
import pycutlass
from pycutlass import memory
class Node:
    pass
node = Node()
node.itself, node.buffer = node, memory.DeviceBuffer(0, 1000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_libraries_can_share_the_pool(library: str) -> None:
    """In a process of its own: the allocators are process-wide."""
    program = f"""
import pycutlass
pool = pycutlass.get_memory_pool(2**26, 2**28)
pycutlass.share_with_{library}()
import {library}
if "{library}" == "torch":
    tensor = torch.zeros(2**20, dtype=torch.uint8, device="cuda")
else:
    tensor = cupy.zeros(2**20, dtype="u1")
assert pool.get_allocated_size() >= 2**20, pool.get_allocated_size()
del tensor
print("shared")
"""
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "shared" in done.stdout, done.stderr
