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
def compiled(request: pytest.FixtureRequest) -> None:
    """Compile what the selected tests name, all at once: kernels build in parallel."""
    if not device.available():
        return
    from cases import OPERATIONS
    from matrix import INTERLEAVED_KERNEL, KERNELS, REDUCTIONS

    from pycutlass import compiler

    named = {name for item in request.session.items for name in _named(item)}
    operations = [OPERATIONS[name] for name in OPERATIONS if name in named or name in _EVERYWHERE]
    plain = [KERNELS[name] for name in KERNELS if name not in REDUCTIONS and (name in named or name in _IN_MODES)]
    compiler.add_module([INTERLEAVED_KERNEL, *operations, *plain])
    split = [name for name in REDUCTIONS if name in named or name in _IN_MODES]
    if split:
        compiler.add_module([*(KERNELS[name] for name in split), *(REDUCTIONS[name] for name in split)])


#: Operations that tests take without naming them in a parameter.
_EVERYWHERE = {"bf16_tnt", "f16_swizzle2", "f16_tnt", "f64", "hopper_cooperative_2x1", "hopper_pingpong"}
_IN_MODES = {"f16-f16-tnt", "f16-streamk", "f64-tnt", "s8-s8-fast-tnt", "s8-s8-tnt"}


def _named(item: pytest.Item) -> set[str]:
    """Return the kernels that a test's parameters name."""
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters is not None else ()
    return {getattr(value, "kernel", value) for value in values if isinstance(getattr(value, "kernel", value), str)}
