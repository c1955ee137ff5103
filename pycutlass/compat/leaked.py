"""Names of other libraries that the original's star import brought along.

``bfloat16`` is that of ml_dtypes. ``torch`` and ``rmm`` are the libraries themselves where a script has imported them,
else stand-ins that import them when they are first used.
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


class _OnFirstUse(ModuleType):
    """A library that is imported when one of its names is first asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, imported on first use>"


def __getattr__(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    if name in ("rmm", "torch"):
        return sys.modules.get(name) or _OnFirstUse(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
