"""Epilogue functions of the user, found by the module or the file that they are in."""

from __future__ import annotations

import importlib
import importlib.util
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

from pycutlass.calls import shown, suggestion
from pycutlass.epilogue import EpilogueFunction
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError

__all__ = ["own_function"]


def own_function(text: str) -> EpilogueFunction:
    """Return the function that ``"package.module:name"`` or ``"file.py:name"`` names: the module is imported.

    A file is looked for from the working directory on, and runs each time that a function of it is named.

    Raises
    ------
    ArgumentError
        The module cannot be imported, or lacks the name.
    ArgumentTypeError
        What it names is no epilogue function.
    """
    where, _, name = text.rpartition(":")
    try:
        module = _of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except PyCutlassError:
        raise
    except (Exception, SystemExit) as error:  # of whatever the module does
        raise ArgumentError(
            f"epilogue={shown(text)} is a function of {where or 'no module'}, which cannot be imported: "
            f"{_said(error)}. Write package.module:name or path/to/file.py:name"
        ) from error
    members = vars(module) if isinstance(module, ModuleType) else {}  # a module may put anything in its own place
    found: Any = members.get(name)
    if found is None:
        functions = [each for each, value in members.items() if isinstance(value, EpilogueFunction)]
        listed = f"; its epilogue functions are {', '.join(functions)}" if functions else ""
        raise ArgumentError(
            f"epilogue={shown(text)} is not there: {where} has no {name}{listed}.{suggestion(name, functions)}"
        )
    if not isinstance(found, EpilogueFunction):
        raise ArgumentTypeError(
            f"epilogue={shown(text)} must be an epilogue function, and it is {shown(found)}: decorate it with "
            f"pycutlass.epilogue_function"
        )
    return found


def _said(error: BaseException) -> str:
    """Return the class of an exception and what it says, if it can say anything."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # of whoever wrote the class
        return type(error).__name__


def _of_file(path: Path) -> ModuleType:
    """Run a file as a module of its own, which no other name finds."""
    spec = importlib.util.spec_from_file_location(f"pycutlass_epilogues_{uuid.uuid4().hex}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
