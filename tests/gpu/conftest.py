"""GPU tests: `make test-gpu` runs them and insists on a GPU; elsewhere they are left out, and counted as skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pycutlass import device

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not device.available():
                item.add_marker(pytest.mark.skip(reason="needs a GPU: run make test-gpu on a machine with one"))


@pytest.fixture(autouse=True)
def memory_is_given_back() -> object:
    """Every test frees what it took from the pool."""
    import gc

    import pycutlass

    yield
    gc.collect()
    assert pycutlass.get_allocated_size() == 0


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile every operation of the shared list at once: they build in parallel."""
    if not device.available():
        return
    from cases import OPERATIONS
    from matrix import INTERLEAVED_KERNEL, KERNELS, REDUCTIONS

    from pycutlass import compiler

    compiler.add_module(
        [INTERLEAVED_KERNEL, *OPERATIONS.values(), *(KERNELS[name] for name in KERNELS if name not in REDUCTIONS)]
    )
    compiler.add_module([*(KERNELS[name] for name in REDUCTIONS), *REDUCTIONS.values()])
