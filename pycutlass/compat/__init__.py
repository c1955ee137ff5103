"""Names of the original PyCUTLASS that this one has under another name, or not at all.

Its scripts write ``from pycutlass import *`` and then use them. They are made here when a script asks for one, so that
they cost nothing where nobody does; ``pycutlass`` and ``pycutlass.cutlass`` look here for names that they lack. Modules
that they import, such as ``pycutlass.utils.device``, lie in the folder ``modules``, which ``pycutlass`` searches last.

Nothing of the library depends on this room.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from pycutlass.calls import suggestion

__all__ = ["MODULES", "NAMES", "cutlass_name", "old_name"]

#: Where each name of ``pycutlass`` is made.
NAMES = {
    "Conv2dReferenceModule": "pycutlass.compat.reference_modules",
    "DataTypeSize": "pycutlass.compat.tables",
    "GemmKind": "pycutlass.compat.tables",
    "ReferenceModule": "pycutlass.compat.reference_modules",
    "ShortDataTypeNames": "pycutlass.compat.tables",
    "SubstituteTemplate": "pycutlass.compat.tables",
    "bfloat16": "pycutlass.compat.leaked",
    "np": "pycutlass.compat.leaked",
    "os": "pycutlass.compat.leaked",
    "re": "pycutlass.compat.leaked",
    "rmm": "pycutlass.compat.leaked",
    "torch": "pycutlass.compat.leaked",
}
#: Modules of ``pycutlass`` that scripts may use as its attributes, too.
MODULES = ("conv2d_operation", "gemm_operation", "memory_manager", "test", "utils")


def old_name(name: str) -> Any:
    """Return what `name` of ``pycutlass`` stands for.

    Raises
    ------
    AttributeError
        It stands for nothing.
    """
    if name in NAMES:
        return getattr(importlib.import_module(NAMES[name]), name)
    if name in MODULES:
        return importlib.import_module(f"pycutlass.{name}")
    near = suggestion(name, (*sys.modules["pycutlass"].__all__, *NAMES, *MODULES))
    raise AttributeError(f"module 'pycutlass' has no attribute {name!r}.{near}")


def cutlass_name(module: str, name: str) -> Any:
    """Return what `name` of ``pycutlass.cutlass`` or of one of its modules stands for.

    Raises
    ------
    AttributeError
        It stands for nothing.
    """
    found = importlib.import_module("pycutlass.compat.tensor_refs").find(module, name)
    if found is None:
        near = suggestion(name, sys.modules[module].__all__)
        raise AttributeError(f"module {module!r} has no attribute {name!r}.{near}")
    return found
