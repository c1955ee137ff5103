"""What tests of several directories share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "unit"))  # for the modules beside the unit tests


@pytest.fixture(scope="session")
def kernel_headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What to include before a kernel's own text, so that a host compiler need not read CUTLASS again."""
    from host_headers import compiled_headers  # which is only found with the path above

    return compiled_headers(tmp_path_factory)


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
