"""Testbeds, under the original's name. Its star import brought the whole library along, and test files rely on that."""

import importlib as _importlib
from typing import Any as _Any

from pycutlass.compat.testing import (
    Conv2dLauncher,
    GemmUniversalLauncher,
    GpuTimer,
    TestbedGrouped,
    test_all_conv2d,
    test_all_gemm,
)

_library = _importlib.import_module("pycutlass")

__all__ = [
    "Conv2dLauncher",
    "GemmUniversalLauncher",
    "GpuTimer",
    "TestbedGrouped",
    "test_all_conv2d",
    "test_all_gemm",
]
__all__ += _library.__all__


def __getattr__(name: str) -> _Any:
    """Return a name of the library."""
    if name in _library.__all__:
        return getattr(_library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
