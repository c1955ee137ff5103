"""Tests that compile need a toolkit and no GPU."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycutlass import toolkit
from pycutlass.compiler.tools import Tools, find_tools
from pycutlass.toolchain import HostCompiler

sys.path.insert(0, str(Path(__file__).parent))  # for records.py


@pytest.fixture(scope="session")
def tools(host_compiler: HostCompiler) -> Tools:
    """Nvcc, and the host compiler that has compiled the headers of kernels before."""
    return dataclasses.replace(find_tools("nvcc", toolkit.without_memo), host=host_compiler)


@pytest.fixture
def add_module(monkeypatch: pytest.MonkeyPatch, quick_host_compiler: dict[str, str]) -> Callable[[Any, str, str], Any]:
    """Return a function that returns the kernel of an operation for a target, from one of the two compilers.

    It is kept as any program's is: what a page of the guide compiles as well is compiled once.
    """
    from pycutlass.compiler import session

    def build(operation: Any, target: str, backend: str) -> Any:
        for name, value in {**quick_host_compiler, "PYCUTLASS_BACKEND": backend}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(session, "_session", session._Session())
        [artifact] = session.add_module([operation], target=target)
        return artifact

    return build
