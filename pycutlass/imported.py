"""Parts of libraries that others have imported, asked for in one place. A library that is not there is not imported.

What goes by a library's name may be something else, or the library while another thread is still importing it: it has
the parts that it has. And parts of this package that are imported when somebody asks for them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["imported", "imports_later", "is_of"]


def imported(module: str, *path: str) -> Any:
    """Return a part of a module that has been imported, or of a part of it; None where there is none."""
    found: Any = sys.modules.get(module)
    try:
        for name in path:
            found = getattr(found, name, None)
    except Exception:  # of whoever goes by that name
        return None
    return found


def is_of(value: Any, module: str, name: str) -> bool:
    """Return whether `value` is an instance of a module's class, which it cannot be before that was imported."""
    kind = imported(module, name)
    return isinstance(kind, type) and isinstance(value, kind)


def imports_later(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports what not every program needs when it is first asked for.

    Parameters
    ----------
    package : str
        Its name.
    modules : mapping
        For each name that it lacks until then, the module that has it.
    """

    def later(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        return vars(sys.modules[package]).setdefault(name, found)

    return later
