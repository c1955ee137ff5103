"""The house's floors: who may import whom, read from the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

import pytest

import pycutlass

ROOT = Path(pycutlass.__file__).parent

#: Rooms by floor, the ground floor first. A module may import from its own room and from lower floors; imports for
#: type checkers count as well.
FLOORS: tuple[str, ...] = (
    "errors version",
    "_core config report log remedies imported",
    "integers calls",
    "types cutlass device enums tensor cache toolkit cubin interleave deferred_release allocators",
    "families source memory trials",
    "spec timing",
    "library",
    "epilogue toolchain",
    "compiler operands",
    "operation",
    "kernel reference",
    "launch",
    "arguments",
    "plan",
    "tuning exports",
    "pytorch compat",
    "__init__",
    "cli",
    "__main__",
)
#: Scripts that run in a process of their own and import nothing of the package.
ALONE = {"nvrtc_main", "supervisor_main"}
#: Optional or heavy libraries, imported inside the functions that need them, and nothing else is.
HEAVY = {
    *(
        "cuda",
        "cupy",
        "difflib",
        "graphviz",
        "matplotlib",
        "ml_dtypes",
        "platformdirs",
        "ray",
        "rich",
        "rmm",
        "sqlite3",
    ),
    *("torch", "typer"),
}
#: What a module may import at its top, besides numpy and what the command line needs to be one.
LIGHT = (sys.stdlib_module_names - HEAVY) | {"numpy", "pycutlass"}

#: What a room imports at its top that is heavy for others, since nobody imports the room who does not want it.
FRONT_ENDS = {"cli": {"typer"}, "pytorch": {"torch"}}

FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}


@dataclass(frozen=True)
class Import:
    """One imported name: the module that it comes from, and when it is loaded."""

    module: str
    line: int
    when: Literal["at the top", "in a function", "for type checkers"]

    @property
    def library(self) -> str:
        return self.module.split(".")[0]


def name_of(path: Path) -> str:
    parts = ["pycutlass", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


SOURCES = {name_of(path): ast.parse(path.read_text(), path.name) for path in sorted(ROOT.rglob("*.py"))}
MODULES = {*SOURCES, "pycutlass._core"}


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports(module: str) -> Iterator[Import]:
    whens: dict[int, Any] = {}
    for outer in ast.walk(SOURCES[module]):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            whens |= dict.fromkeys(map(id, ast.walk(outer)), "in a function")
        elif isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING":
            whens |= dict.fromkeys(map(id, ast.walk(outer)), "for type checkers")
    for node in ast.walk(SOURCES[module]):
        when = whens.get(id(node), "at the top")
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(resolved(alias.name), node.lineno, when)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            for alias in node.names:
                yield Import(resolved(str(node.module), alias.name), node.lineno, when)


def resolved(module: str, name: str = "") -> str:
    """Return the module that ``from module import name`` loads: a submodule, or the module that has the name."""
    submodule = f"{module}.{name}"
    if submodule in MODULES:
        return submodule
    return "pycutlass.__init__" if module == "pycutlass" else module


def own_imports(module: str) -> list[Import]:
    return [found for found in imports(module) if found.library == "pycutlass"]


def test_every_module_has_a_room():
    rooms = {room_of(module) for module in MODULES}
    assert rooms - ALONE == set(FLOOR_OF)


@pytest.mark.parametrize("module", SOURCES)
def test_imports_go_down(module):
    room = room_of(module)
    for found in own_imports(module):
        assert found.module in MODULES, f"{module}:{found.line}: there is no {found.module}"
        other = room_of(found.module)
        assert room not in ALONE, f"{module}:{found.line} imports {found.module}, and runs alone"
        assert other == room or FLOOR_OF[other] < FLOOR_OF[room], (
            f"{module}:{found.line} on floor {FLOOR_OF[room]} imports {found.module} on floor {FLOOR_OF[other]}"
        )


def test_there_are_no_cycles():
    graph = {module: {found.module for found in own_imports(module)} - {module} for module in SOURCES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", SOURCES)
def test_heavy_libraries_and_nothing_else_are_imported_inside_functions(module):
    light = LIGHT | FRONT_ENDS.get(room_of(module), set())
    for found in imports(module):
        allowed = {"at the top": light, "in a function": HEAVY, "for type checkers": light | HEAVY}[found.when]
        assert found.library in allowed, f"{module}:{found.line} imports {found.module} {found.when}"


def test_nothing_is_called_cutlass_but_our_namespace():
    # The name at top level belongs to another package.
    for module in SOURCES:
        assert not [found for found in imports(module) if found.library == "cutlass"], module
    beside = {path.name for path in ROOT.parent.iterdir()}
    assert not {"cutlass", "cutlass.py"} & beside


@pytest.mark.parametrize("module", SOURCES)
def test_environment_variables_are_read_in_one_place(module):
    reads = [
        node
        for node in ast.walk(SOURCES[module])
        if (isinstance(node, ast.Attribute) and node.attr in {"getenv", "getenvb"})
        or (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ")
        or (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("os.environ."))
    ]
    assert bool(reads) == (module == "pycutlass.config")


def test_helpers_of_tests_have_names_of_their_own() -> None:
    """Tests of all directories are collected by one process, in which a name is one module."""
    files = [path for path in ROOT.parent.glob("tests/*/*.py") if not path.name.startswith(("test_", "conftest", "__"))]
    names = [path.stem for path in files]
    assert len(names) > 20 and sorted(names) == sorted(set(names))
