"""Names of other libraries that the original's star import brought along.

``bfloat16`` is that of ml_dtypes. ``torch`` is the library itself where a script has imported it, else a stand-in that
imports it when it is first used. ``rmm`` is always one, which also finds what RMM has moved since.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["np", "os", "re"]

#: Names that were RMM's own, and the modules that have them now.
_MOVED = {"rmm_cupy_allocator": "rmm.allocators.cupy", "rmm_torch_allocator": "rmm.allocators.torch"}


class _OnFirstUse(ModuleType):
    """A library that is imported when one of its names is first asked for."""

    def __getattr__(self, name: str) -> Any:
        module = _MOVED[name] if self.__name__ == "rmm" and name in _MOVED else self.__name__
        return getattr(importlib.import_module(module), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, imported on first use>"


def __getattr__(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    if name == "rmm":
        return _OnFirstUse(name)
    if name == "torch":
        return sys.modules.get(name) or _OnFirstUse(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
