"""Write pycutlass/_core.pyi from the extension itself: from the signatures that pybind11 puts into docstrings.

::

    python tools/stubs.py              # write the stub
    python tools/stubs.py --check      # 1, and a diff, where it is not what the extension says

What C++ leaves open is open here: a bare ``object`` that is returned is ``Any``. Where a caller needs more, give the
function in csrc/ a type of ``py::typing``.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import enum
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pycutlass import _core  # noqa: E402

STUB = ROOT / "pycutlass" / "_core.pyi"
_HEADER = '''"""Types of the extension: CUTLASS's own types, and the launch path. Written by tools/stubs.py.

Users find the first part in `pycutlass.cutlass`; documentation stands there and in the classes.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsFloat, SupportsIndex, final, overload

from numpy.typing import NDArray
'''
#: What every class has for itself, or what says nothing about its type.
_SILENT = {"__repr__", "__reduce__", "__getattr__", "__setattr__", "__module__", "__doc__", "__new__"}
#: What a docstring says of what is passed, and of what is returned. Other names stay.
_PASSED = {
    "int": "SupportsIndex",
    "SupportsInt | SupportsIndex": "SupportsIndex",
    "float": "SupportsFloat | SupportsIndex",
    "Buffer": "bytes | bytearray | NDArray[Any]",
    "object": "Any",
}
_RETURNED = {"object": "Any"}
_BARE = {"dict": "dict[Any, Any]", "tuple": "tuple[Any, ...]", "list": "list[Any]", "Sequence": "Sequence[Any]"}
#: Classes stand in modules that users see; the extension has them under its own names.
_NAMES = {f"{cls.__module__}.{cls.__qualname__}": name for name, cls in vars(_core).items() if isinstance(cls, type)}


def main(argv: list[str] | None = None) -> int:
    """Write the stub, or compare it; 1 where it differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args(argv).check
    made = _formatted("\n".join([_HEADER, *module(vars(_core))]))
    if not check:
        STUB.write_text(made, encoding="utf-8")
        return 0
    kept = STUB.read_text(encoding="utf-8")
    diff = difflib.unified_diff(kept.splitlines(), made.splitlines(), str(STUB.name), "the extension", lineterm="")
    if kept != made:
        print("\n".join([*diff, "run python tools/stubs.py"]))
    return int(kept != made)


def module(members: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a stub for a module with these members."""
    for name, value in members.items():
        if name.startswith("_"):
            continue
        if isinstance(value, enum.EnumMeta):
            yield from _enumeration(name, value)
        elif isinstance(value, type):
            yield from _class(name, value)
        elif callable(value):
            yield from _function(name, value.__doc__, [])
        else:
            yield f"{name}: {_type_of(value)}\n"


def _enumeration(name: str, cls: enum.EnumMeta) -> Iterator[str]:
    yield f"class {name}(enum.Enum):"
    for member, value in cls.__members__.items():
        if member.isidentifier() and member != "None":
            yield f"    {member} = {value.value}"
    yield ""


def _class(name: str, cls: type) -> Iterator[str]:
    bases = [_NAMES[key] for base in cls.__bases__ if (key := f"{base.__module__}.{base.__qualname__}") in _NAMES]
    if not cls.__subclasses__():
        yield "@final"
    yield f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
    body = [line for member, value in vars(cls).items() for line in _member(member, value)]
    yield from (f"    {line}" for line in body or ["..."])
    yield ""


def _member(name: str, value: Any) -> Iterator[str]:
    if name in _SILENT or (name.startswith("_") and not name.startswith("__")):
        return
    if name == "__hash__" and value is None:
        yield "__hash__ = None  # type: ignore[assignment]  # it can be changed"
    elif name == "__eq__":
        yield "def __eq__(self, other: object, /) -> bool: ..."
    elif isinstance(value, property) and value.fset is not None:
        returned = ast.parse(str(value.fget.__doc__).strip().rpartition(" -> ")[2], mode="eval").body
        yield f"{name}: {ast.unparse(_translated(returned, _RETURNED))}"
    elif isinstance(value, property):
        yield "@property"
        yield from _function(name, "def" + str(value.fget.__doc__), [])
    elif isinstance(value, staticmethod):
        yield from _function(name, value.__func__.__doc__, ["@staticmethod"])
    else:
        yield from _function(name, value.__doc__, [])


def _function(name: str, doc: str | None, decorators: list[str]) -> Iterator[str]:
    """Yield the lines of a function, from what pybind11 says of its signatures."""
    signatures = re.findall(rf"^(?:\d+\. |def|)(?:{name})?(\(.*\) -> .*)$", doc or "", re.MULTILINE)
    for signature in signatures:
        yield from ["@overload"] if len(signatures) > 1 else []
        yield from decorators
        plain = re.sub(r"<[\w.]+: \d+>|<[\w.]+ object at \w+>", "...", signature)
        parsed = ast.parse(f"def {name}{plain}: ...").body[0]
        assert isinstance(parsed, ast.FunctionDef)
        yield ast.unparse(_plain(parsed)).replace("\n    ", " ")


def _plain(function: ast.FunctionDef) -> ast.FunctionDef:
    """Return the function with types as the package calls them, and nameless parameters by position only."""
    given = function.args
    for place, parameter in enumerate(given.args):
        if place == 0 and parameter.arg in ("self", "arg0") and _is_own(parameter.annotation):
            parameter.arg, parameter.annotation = "self", None
        elif parameter.annotation is not None:
            parameter.annotation = _translated(parameter.annotation, _PASSED)
    if any(re.fullmatch(r"arg\d", parameter.arg) for parameter in given.args):
        given.posonlyargs, given.args = given.args, []
    given.defaults = [each if isinstance(each, ast.Constant) else ast.Constant(...) for each in given.defaults]
    for parameter in given.kwonlyargs:
        assert parameter.annotation is not None
        parameter.annotation = _translated(parameter.annotation, _PASSED)
    if given.vararg is not None:
        given.vararg.annotation = ast.Name("Any")
    assert function.returns is not None
    function.returns = _translated(function.returns, _RETURNED)
    return function


def _is_own(annotation: ast.expr | None) -> bool:
    """Whether it is one of the extension's classes, or what a property without a type of its own takes."""
    said = ast.unparse(annotation) if annotation is not None else ""
    return said in _NAMES or said == "object"


def _translated(annotation: ast.expr, words: dict[str, str]) -> ast.expr:
    said = ast.unparse(annotation)
    said = re.sub(r"[\w.]+\.\w+", lambda match: _NAMES.get(match[0], match[0].rpartition(".")[2]), said)
    for word, meant in words.items():
        said = re.sub(rf"(?<![\w.]){re.escape(word)}(?!\w)", meant.replace("SupportsIndex", "~"), said)
    said = said.replace("~", "SupportsIndex")
    said = re.sub(r"\b(dict|tuple|list|Sequence)\b(?!\[)", lambda match: _BARE[match[0]], said)
    return ast.parse(said, mode="eval").body


def _type_of(value: Any) -> str:
    if isinstance(value, dict):
        key, content = next(iter(value.items()))
        return f"dict[{type(key).__name__}, {type(content).__name__}]"
    if isinstance(value, tuple):
        return f"tuple[{type(value[0]).__name__}, ...]"
    return type(value).__name__


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff"]
    fixed = subprocess.run(
        [*command, "check", "--quiet", "--fix", "--select", "F401,I", "--stdin-filename", str(STUB), "-"],
        **(options := {"cwd": ROOT, "check": True, "text": True, "stdout": subprocess.PIPE}),
        input=text,
    )
    return subprocess.run(
        [*command, "format", "--quiet", "--stdin-filename", str(STUB), "-"], **options, input=fixed.stdout
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
