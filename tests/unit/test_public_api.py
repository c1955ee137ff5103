"""The public names: complete, documented, with examples that run; and what importing the package does not do."""

from __future__ import annotations

import ast
import builtins
import doctest
import enum
import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from descriptions import run_python

import pycutlass
from pycutlass import compat, cutlass, errors

# Programs, which run when they are imported; and what only says that it is not here.
RUN_ONLY = {"pycutlass.__main__", "pycutlass.nvrtc_main"}
MODULES: dict[str, ModuleType] = {
    name: importlib.import_module(name)
    for name in [
        "pycutlass",
        *(found.name for found in pkgutil.walk_packages(pycutlass.__path__, "pycutlass.")),
    ]
    if name not in RUN_ONLY
}
DOCUMENTED = [name for name in MODULES if name != "pycutlass._core"]
#: Names of the original that the star import brings along; those of other libraries are not ours to document.
OLD = set(compat.NAMES)
LEAKED = {name for name, module in compat.NAMES.items() if module == "pycutlass.compat.leaked"}
PUBLIC_CLASSES = {
    name: value
    for name in pycutlass.__all__
    if name not in LEAKED and inspect.isclass(value := getattr(pycutlass, name))
}

#: Names that the guide's scripts write.
GUIDE = [
    "pycutlass.get_memory_pool",
    "get_allocated_size",
    "pycutlass.compiler.add_module",
    "pycutlass.compiler.nvcc",
    "pycutlass.compiler.nvrtc",
    "MathInstruction",
    "MathOperation.multiply_add",
    "MathOperation.multiply_add_saturate",
    "MathOperation.multiply_add_fast_f32",
    "MathOperation.multiply_add_fast_f16",
    "MathOperation.multiply_add_fast_bf16",
    "TileDescription",
    "TensorDescription",
    "LinearCombination",
    "GemmOperationUniversal",
    "GemmArguments",
    "GemmOperationUniversal.run",
    "GemmOperationUniversal.epilogue_type",
    "GemmOperationUniversal.rt_module",
    "GemmOperationUniversal.emit",
    "GemmOperationUniversal.procedural_name",
    "GemmArguments.sync",
    "cutlass.float16",
    "cutlass.bfloat16",
    "cutlass.tfloat32",
    "cutlass.float32",
    "cutlass.float64",
    "cutlass.int8",
    "cutlass.int32",
    "cutlass.RowMajor",
    "cutlass.ColumnMajor",
    "cutlass.RowMajorInterleaved32",
    "cutlass.ColumnMajorInterleaved32",
    "cutlass.TensorNHWC",
    "cutlass.TensorNC32HW32",
    "cutlass.TensorC32RSK32",
    "cutlass.OpClass.TensorOp",
    "cutlass.OpClass.Simt",
    "cutlass.IdentitySwizzle1",
    "cutlass.IdentitySwizzle2",
    "cutlass.IdentitySwizzle4",
    "cutlass.IdentitySwizzle8",
    "cutlass.BatchedIdentitySwizzle",
    "cutlass.MatrixCoord",
    "cutlass.Tensor4DCoord",
    "cutlass.dim3",
    "cutlass.gemm.GemmCoord",
    "cutlass.gemm.Mode.Gemm",
    "cutlass.gemm.Mode.GemmSplitKParallel",
    "cutlass.gemm.Mode.Batched",
    "cutlass.gemm.Mode.Array",
    "cutlass.conv.Conv2dProblemSize",
    "cutlass.conv.Operator.fprop",
    "cutlass.conv.Operator.dgrad",
    "cutlass.conv.Operator.wgrad",
    "cutlass.conv.Mode.cross_correlation",
    "cutlass.conv.IteratorAlgorithm.analytic",
    "cutlass.conv.IteratorAlgorithm.optimized",
    "cutlass.conv.IteratorAlgorithm.fixed_channels",
    "cutlass.conv.IteratorAlgorithm.few_channels",
    "cutlass.conv.StrideSupport.strided",
    "cutlass.conv.StrideSupport.unity",
    "cutlass.conv.SplitKMode.Serial",
    "cutlass.conv.SplitKMode.Parallel",
]

#: What an import of the package does, told by the interpreter itself and by the list of mapped files.
WATCHED_IMPORT = """
import json, os, sys
import numpy

seen = []
def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = isinstance(mode, str) and set(mode) & set("wax+")
        if writes or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            seen.append(f"open {path} {mode}")
    elif event.split(".")[0] in {"subprocess", "socket", "sqlite3", "tempfile", "shutil"} or event in {
        "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.system", "os.exec", "os.fork",
        "os.posix_spawn", "os.putenv", "os.unsetenv", "ctypes.dlopen",
    }:
        seen.append(f"{event} {arguments}")
sys.addaudithook(watch)

import pycutlass

mapped = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/" in line}
driver = [name for name in mapped if name.startswith(("libcuda.", "libcudart", "libnvrtc", "libnvidia", "librmm"))]
print(json.dumps({"seen": seen, "modules": list(sys.modules), "driver": driver}))
"""


def found(dotted: str) -> Any:
    """Return what a dotted name means to a script that begins with both of the guide's imports."""
    namespace: dict[str, Any] = {}
    exec("import pycutlass\nfrom pycutlass import *", namespace)
    return eval(dotted, namespace)


# Names


@pytest.mark.parametrize("name", [name for name in MODULES if name not in {"pycutlass._core", "pycutlass.cli"}])
def test_all_is_sorted_and_complete(name):
    module = MODULES[name]
    assert module.__doc__
    public = module.__all__
    if name == "pycutlass.test":  # which brings the library along
        public = [each for each in public if each not in pycutlass.__all__]
    assert list(public) == sorted(set(public), key=lambda each: (name == "pycutlass" and each in OLD, rank(each)))
    assert all(hasattr(module, each) for each in public)
    defined = {
        each
        for each, value in vars(module).items()
        if not each.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and value.__module__ == name
    }
    helpers = defined - set(public)
    assert all(used_elsewhere(name, each) for each in helpers), f"{helpers} are public by name and used by nobody"


#: Where users look for names: packages, and the modules of the original. `pycutlass.cli` is a program.
NAMESPACES = [
    name
    for name, module in MODULES.items()
    if (
        hasattr(module, "__path__")
        or "/compat/modules/" in str(module.__file__)
        or name.startswith("pycutlass.cutlass")
    )
    and name != "pycutlass.cli"
]


@pytest.mark.parametrize("name", [*NAMESPACES, "pycutlass.errors"])
def test_a_namespace_shows_what_is_meant_and_modules_of_ours(name):
    module = MODULES[name]
    shown = {each for each in dir(module) if not each.startswith("_")}
    modules = {each for each in shown if getattr(sys.modules.get(f"{name}.{each}"), "__spec__", None) is not None}
    # Some of the functions that epilogue functions call have names of Python's own, which no star may hide.
    beside = set(sys.modules["pycutlass.epilogue.functions"].__all__) if name == "pycutlass.epilogue" else set()
    assert shown - modules <= set(module.__all__) | beside
    kept = set(module.__all__) - (set(pycutlass.__all__) if name == "pycutlass.test" else OLD)
    assert shown >= kept, "what is imported on first use is shown, too"


def rank(name: str) -> Any:
    """Return the order of names: CONSTANTS, Classes, functions, each as a reader counts (int8 before int32)."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def used_elsewhere(module: str, name: str) -> bool:
    """Whether a module of the package imports `name` from `module`: shared inside the house, not offered to users."""
    statement = f"from {module} import"
    return any(
        isinstance(node, ast.ImportFrom) and node.module == module and any(alias.name == name for alias in node.names)
        for path in Path(pycutlass.__path__[0]).rglob("*.py")
        if statement in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
    )


def test_the_star_import_brings_the_public_names_and_hides_no_builtin():
    namespace: dict[str, Any] = {}
    exec("from pycutlass import *", namespace)
    del namespace["__builtins__"]
    assert sorted(namespace) == sorted(pycutlass.__all__)
    assert namespace["cutlass"] is cutlass
    assert not set(namespace) & set(vars(builtins))


@pytest.mark.parametrize("dotted", GUIDE)
def test_the_guides_names_are_there(dotted):
    assert found(dotted) is not None


def test_the_version_is_that_of_the_distribution():
    text = (Path(pycutlass.__path__[0]).parent / "pyproject.toml").read_text()
    assert f'\nversion = "{pycutlass.__version__}"\n' in text


def declared(body: list[ast.stmt]) -> set[str]:
    """Return the public names that a module or class of a stub file declares."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_the_stub_declares_what_the_extension_has():
    core = MODULES["pycutlass._core"]
    stub = ast.parse(Path(pycutlass.__path__[0], "_core.pyi").read_text())
    assert declared(stub.body) == {name for name in vars(core) if not name.startswith("_")}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            cls = getattr(core, node.name)
            members = cls.__members__ if issubclass(cls, enum.Enum) else vars(cls)
            there = {name for name in members if not name.startswith("_") and name.isidentifier()}
            assert declared(node.body) - there == set(), node.name
            assert there - declared(node.body) - {"None"} == set(), node.name


def test_every_error_is_ours_and_a_fitting_builtin():
    for name in errors.__all__:
        error = getattr(errors, name)
        assert issubclass(error, pycutlass.PyCutlassError)
        builtin = (ValueError, TypeError, RuntimeError, MemoryError)
        assert error is errors.PyCutlassError or issubclass(error, builtin)
        assert name in str(errors.__doc__)


# Documentation


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_run(name):
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner(verbose=False)
    output: list[str] = []
    for example in finder.find(MODULES[name], name):
        runner.run(example, out=output.append)
    assert runner.failures == 0, "".join(output)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_is_public_is_documented(name):
    module = MODULES[name]
    for each in getattr(module, "__all__", []):
        value = getattr(module, each)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        assert value.__doc__, f"{name}.{each}"
        if (
            not inspect.isclass(value)
            or issubclass(value, enum.Enum)
            or value.__module__.startswith("pycutlass.cutlass")
        ):
            continue
        for member, function in vars(value).items():
            if not member.startswith("_") and (inspect.isroutine(function) or isinstance(function, property)):
                assert inspect.getdoc(getattr(value, member)), f"{name}.{each}.{member}"


@pytest.mark.parametrize("name", [name for name in PUBLIC_CLASSES if not issubclass(PUBLIC_CLASSES[name], Exception)])
def test_public_classes_have_an_example_that_runs(name):
    cls = PUBLIC_CLASSES[name]
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(cls) or "")
    running = [example for example in examples if not example.options.get(doctest.SKIP)]
    assert any(name in example.source for example in running), f"{name} has no example that runs"


# Importing


@pytest.fixture(scope="module")
def watched() -> dict[str, list[str]]:
    # -B: the interpreter's own .pyc files are none of the package's writing.
    result: dict[str, list[str]] = json.loads(run_python(WATCHED_IMPORT, options=("-B",)))
    return result


def test_importing_writes_nothing_and_starts_nothing(watched):
    assert watched["seen"] == []


def test_importing_loads_no_gpu_library(watched):
    assert watched["driver"] == []


def searched_libraries(program: str) -> str:
    """Return what the dynamic linker of glibc was asked to find while `program` ran."""
    environment = {**os.environ, "LD_DEBUG": "libs"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return " ".join(re.findall(r"find library=(\S+)", done.stderr))


def test_importing_does_not_even_look_for_the_driver():
    assert "libcuda.so" not in searched_libraries("import pycutlass")
    assert "libcuda.so" in searched_libraries("from pycutlass import device; device.count()")


def test_importing_imports_no_heavy_library(watched):
    heavy = {"torch", "cupy", "rmm", "cuda", "cuda.bindings", "rich", "typer", "sqlite3", "ml_dtypes", "platformdirs"}
    assert not heavy & set(watched["modules"])
    assert "pycutlass" in watched["modules"]


def test_importing_leaves_the_name_cutlass_alone(watched):
    assert "cutlass" not in watched["modules"]
    assert "pycutlass.cutlass" in watched["modules"]


def test_the_watch_sees_what_it_is_to_see():
    program = WATCHED_IMPORT.replace("import pycutlass\n", "import ctypes\nctypes.CDLL(None)\nopen(os.devnull, 'w')\n")
    seen = json.loads(run_python(program, options=("-B",)))["seen"]
    assert [event.split()[0] for event in seen] == ["ctypes.dlopen", "open"]
