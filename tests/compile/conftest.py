"""Tests that compile need a toolkit and no GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "unit")]  # for records.py, and the descriptions of the unit tests


@pytest.fixture(scope="session")
def host_compiler(kernel_headers: Path) -> Any:
    """The host compiler, for tests of what host sides say and plan: it has compiled the headers of kernels before.

    They are most of the work. That a kernel's text includes what it needs is seen where it goes through the compilers
    as they are: test_toolchain.py, test_extra_epilogue.py, test_grouped.py, and examples.
    """
    from pycutlass import toolkit
    from pycutlass.compiler.tools import find_tools
    from pycutlass.toolchain import HostCompiler

    plain = find_tools("nvcc", toolkit.without_memo).host
    return HostCompiler((*toolkit.find_host_compiler(), "-include", str(kernel_headers)), plain.includes)
