"""GPU tests: `make test-gpu` runs them and insists on a GPU; elsewhere they are left out, and counted as skipped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pycutlass import device
from pycutlass.operation import Operation

#: What -k and -m have left, before it is shared out.
_SELECTED: pytest.StashKey[list[pytest.Item]] = pytest.StashKey()

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "unit"))  # for activations.py


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
            elif item.path.name.startswith("test_two_gpus") and device.count() < 2:
                item.add_marker(pytest.mark.skip(reason="needs two GPUs: run make test-gpu on a machine with them"))
            if config.pluginmanager.hasplugin("xdist") and (kernel := _kernel_of(item)):
                item.add_marker(pytest.mark.xdist_group(kernel))
    yield  # -m, which sees the marks, and -k choose first: what they leave is shared out
    config.stash[_SELECTED] = list(items)
    shard = config.getoption("shard", None)  # there is no such option where these are not the tests that were named
    if shard is not None:
        chosen = _share(items, shard)
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


def _kernel_of(item: pytest.Item) -> str:
    """Return a name of the kernel of a test of epilogue functions, which tests compile when they need it.

    With ``-n 14 --dist loadgroup`` one process compiles it for all of its tests, and the others do not wait for it.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    known = [str(getattr(parameters[key], "name", parameters[key])) for key in _OF_KERNELS if key in parameters]
    return "-".join((item.path.stem, *known)) if "kernel" in parameters else ""


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
    from pycutlass import memory

    yield
    gc.collect()
    assert pycutlass.get_allocated_size() == 0
    assert [pool.get_allocated_size() for pool in memory._pools.values() if pool.get_allocated_size()] == []


@pytest.fixture(scope="session", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """Compile what the selected tests need, all at once: kernels build in parallel.

    Of processes that share the tests one compiles for all of them, with all cores, and the others find it in the cache.
    """
    if not device.available():
        return
    from pycutlass import compiler

    with _one_at_a_time():
        for operations in _needed(request.config.stash[_SELECTED]):
            compiler.add_module(operations)


def _needed(items: Sequence[pytest.Item]) -> Iterator[list[Operation]]:
    """Return what tests need: operations alone, and those that split K in parallel together with their reductions."""
    from apart import APART
    from cases import OPERATIONS
    from conv_cases import OPERATIONS as CONVOLUTIONS
    from conv_cases import SPLIT, reduction
    from extra_operations import EXTRA
    from grouped_cases import BY_SCHEDULER, GROUPED
    from matrix import INTERLEAVED_KERNEL, KERNELS, REDUCTIONS

    named, files = {name for item in items for name in _named(item)}, {item.path.name for item in items}
    alone: list[Operation] = [OPERATIONS[name] for name in OPERATIONS if name in named or name in _EVERYWHERE]
    alone += [KERNELS[name] for name in KERNELS if name not in REDUCTIONS and (name in named or name in _IN_MODES)]
    alone += CONVOLUTIONS.values() if files & _CONVOLUTIONS else ()
    alone += [apart[name] for apart in (APART, EXTRA) for name in apart if name in named]
    if any(file.startswith("test_grouped") for file in files):
        alone += GROUPED.values()
    elif "test_storage.py" in files or ("test_two_gpus.py" in files and device.count() > 1):
        alone += [GROUPED[name] for name in BY_SCHEDULER]
    yield [INTERLEAVED_KERNEL, *alone]
    split = [name for name in REDUCTIONS if name in named or name in _IN_MODES]
    pairs: list[Operation] = [kernel for name in split for kernel in (KERNELS[name], REDUCTIONS[name])]
    if files & _CONVOLUTIONS:
        pairs += [kernel for name in SPLIT for kernel in (CONVOLUTIONS[name], reduction(CONVOLUTIONS[name]))]
    if pairs:
        yield pairs


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait until no other process is here."""
    with (Path(tempfile.gettempdir()) / f"pycutlass-gpu-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: Tests that watch the memory of the whole device, which nobody else may use meanwhile.
_ALONE = {"test_a_hundred_thousand_launches_grow_nothing", "test_a_hundred_thousand_updates_grow_nothing"}

#: Parameters of tests of epilogue functions that decide which kernel they have.
_OF_KERNELS = ("kernel", "name", "function", "kind")
#: Files whose tests take any convolution.
_CONVOLUTIONS = {"test_conv2d.py", "test_known_convolutions.py", "test_prepared_reductions.py"}

#: Operations that tests take without naming them in a parameter.
_EVERYWHERE = {"bf16_tnt", "f16_swizzle2", "f16_tnt", "f64", "hopper_cooperative_2x1", "hopper_pingpong"}
_IN_MODES = {"f16-f16-tnt", "f16-streamk", "f64-tnt", "s8-s8-fast-tnt", "s8-s8-tnt"}


def _named(item: pytest.Item) -> set[str]:
    """Return the kernels that a test's parameters name."""
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters is not None else ()
    return {getattr(value, "kernel", value) for value in values if isinstance(getattr(value, "kernel", value), str)}
