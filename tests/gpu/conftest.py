"""GPU tests: `make test-gpu` runs them and insists on a GPU; elsewhere they are left out, and counted as skipped."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pycutlass import device

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "run every N-th test from the I-th on, beside other processes; `alone` runs those that N processes leave out"
    parser.addoption("--shard", type=_shard, metavar="I/N", help=what)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not device.available():
                item.add_marker(pytest.mark.skip(reason="needs a GPU: run make test-gpu on a machine with one"))
    yield  # -m, which sees the marks, and -k choose first: what they leave is shared out
    shard = config.getoption("shard", None)  # there is no such option where these are not the tests that were named
    if shard is not None:
        chosen = _share(items, shard)
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


def _shard(text: str) -> slice | str:
    """Return which tests ``--shard`` asks for: every N-th from the I-th on, or "alone"."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    if numbers and 1 <= int(numbers[1]) <= int(numbers[2]):
        return slice(int(numbers[1]) - 1, None, int(numbers[2]))
    if text == "alone":
        return text
    raise pytest.UsageError(f"--shard is I/N with I from 1 to N, such as 2/4, or alone; it is {text!r}")


def _share(items: Sequence[pytest.Item], shard: slice | str) -> list[pytest.Item]:
    """Return the tests of a shard. Neighbours, which take alike, go to different ones."""
    alone = [item for item in items if getattr(item, "originalname", None) in _ALONE]
    if isinstance(shard, str):
        return alone
    return [item for item in items if item not in alone][shard]


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
    compiler.add_module(_from_own_place([INTERLEAVED_KERNEL, *operations, *plain], request.config))
    split = [name for name in REDUCTIONS if name in named or name in _IN_MODES]
    if split:
        both = [kernel for name in split for kernel in (KERNELS[name], REDUCTIONS[name])]
        compiler.add_module(_from_own_place(both, request.config))


#: Tests that watch the memory of the whole device, which nobody else may use meanwhile.
_ALONE = {"test_a_hundred_thousand_launches_grow_nothing", "test_a_hundred_thousand_updates_grow_nothing"}

#: Operations that tests take without naming them in a parameter.
_EVERYWHERE = {"bf16_tnt", "f16_swizzle2", "f16_tnt", "f64", "hopper_cooperative_2x1", "hopper_pingpong"}
_IN_MODES = {"f16-f16-tnt", "f16-streamk", "f64-tnt", "s8-s8-fast-tnt", "s8-s8-tnt"}


def _named(item: pytest.Item) -> set[str]:
    """Return the kernels that a test's parameters name."""
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters is not None else ()
    return {getattr(value, "kernel", value) for value in values if isinstance(getattr(value, "kernel", value), str)}


def _from_own_place(operations: list[object], config: pytest.Config) -> list[object]:
    """Return the operations in an order of the shard's own: in the same one, all shards would wait for one kernel."""
    shard = config.getoption("shard", None)
    first = len(operations) * shard.start // shard.step if isinstance(shard, slice) else 0
    return operations[first:] + operations[:first]
