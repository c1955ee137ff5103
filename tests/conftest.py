"""What tests of several directories share."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "unit"))  # for the modules beside the unit tests

# In each process that compiles, Inductor first builds a program for each kind of vectors that the CPU has, and runs it
# with a torch of its own: that is half of what it does here. Regions are the same in code without vectors.
if os.environ.get("HEADERS") != "plain":  # which asks for what a user has
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

#: Directories that come first where several processes share the tests: examples are the file that takes longest, and
#: those that begin with headers of their own do not wait for each other.
_FIRST = ("examples", "emulation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put them first; all others stay in their order."""
    ranks = {name: rank for rank, name in enumerate(_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(_FIRST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage in what tests make, and not in modules and 16,000 tests, which stay until the end.

    To look through these again and again is an eighth of the work of the tests that need no compiler.
    """
    gc.disable()
    try:
        made = yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()
    return made


@pytest.fixture(scope="session")
def kernel_headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What to include before a kernel's own text, so that a host compiler need not read CUTLASS again."""
    from host_headers import compiled_headers  # which is only found with the path above

    return compiled_headers(tmp_path_factory)


@pytest.fixture(scope="session")
def host_compiler(kernel_headers: Path) -> Any:
    """The host compiler, for tests of what host sides say and plan: it has compiled the headers of kernels before.

    They are most of the work. That a kernel's text includes what it needs is seen where it goes through the compilers
    as they are: test_extra_epilogue.py, test_grouped.py, and some examples.
    """
    from pycutlass import toolkit
    from pycutlass.compiler.tools import find_tools
    from pycutlass.toolchain import HostCompiler

    plain = find_tools("nvcc", toolkit.without_memo).host
    return HostCompiler((*toolkit.find_host_compiler(), "-include", str(kernel_headers)), plain.includes)


@pytest.fixture
def quick_host_compiler(request: pytest.FixtureRequest) -> dict[str, str]:
    """Environment variables for a program that builds kernels: their headers are most of what g++ has to do.

    Not so with a GPU, or where HEADERS=plain asks for what a user has.
    """
    from host_headers import are_wanted, linked

    if not are_wanted():
        return {}
    from pycutlass import toolkit

    header = linked(request.getfixturevalue("kernel_headers"))
    return {"CXX": shlex.join((*toolkit.find_host_compiler(), "-include", str(header)))}


@pytest.fixture
def quick_host_sides(monkeypatch: pytest.MonkeyPatch, quick_host_compiler: dict[str, str]) -> None:
    """Let kernels that this process builds, and processes that it starts, have these headers as well."""
    for name, value in quick_host_compiler.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test of `torch.compile` compile what others have compiled, with the same random numbers."""
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
