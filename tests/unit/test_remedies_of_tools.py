"""What messages about compilers, headers and targets tell to do is done here, and leads to what is taken."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from cached import REPORT
from test_compiler_key import OPTIONS_OF_DIRECTORIES, OPTIONS_OF_LIBRARIES
from test_toolkit import bare_machine, make_cutlass, make_program, make_toolkit  # noqa: F401 (a fixture among them)
from trivial_kernels import Operation

import pycutlass
from pycutlass import cli, compiler, toolkit
from pycutlass.cache import Artifact, Entry, KernelCache, make_key
from pycutlass.cache.selection import narrowed, selected
from pycutlass.compiler import choice, session, tools
from pycutlass.errors import ArgumentError, ArgumentTypeError, NotCompiledError, ToolkitError
from pycutlass.toolkit import find, models


@pytest.fixture
def own_session(monkeypatch, tmp_path):
    """A cache of the test's own."""
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(session, "_session", session._Session())
    for name in ("TARGET", "BACKEND", "NO_COMPILE", "STRICT"):
        monkeypatch.delenv(f"PYCUTLASS_{name}", raising=False)


# What is not there.


def test_all_that_is_missing_is_said_at_once(monkeypatch, tmp_path, own_session):
    monkeypatch.setattr(find, "CHECKOUT", Path(find.__file__).resolve().parents[2])
    monkeypatch.setattr(find, "_cutlass_roots", lambda tried: iter(()))
    with pytest.raises(ToolkitError) as caught:
        compiler.add_module([Operation("kernel_a")])
    said = str(caught.value)
    assert caught.value.absent
    monkeypatch.undo()
    named = {"CUTLASS_PATH": make_cutlass(tmp_path / "cutlass"), "CUDA_HOME": make_toolkit(tmp_path / "cuda")}
    named["CXX"] = make_program(tmp_path / "bin" / "g++", "exit 0")
    for variable, value in named.items():
        assert f"set {variable} to" in said
        monkeypatch.setenv(variable, str(value))
    assert toolkit.find_cutlass().root == named["CUTLASS_PATH"]
    assert toolkit.find_nvcc().root == named["CUDA_HOME"]
    assert toolkit.find_host_compiler() == (str(named["CXX"]),)


def test_what_is_named_and_wrong_comes_before_what_is_missing(monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(
        ToolkitError, match=r"(?s)^there is no device compiler\..*CUDA_HOME is /nowhere.*C\+\+"
    ) as caught:
        tools.find_tools(None, toolkit.without_memo)
    assert not caught.value.absent


def test_the_variable_that_decides_is_the_one_to_correct(monkeypatch, tmp_path):
    whole = make_toolkit(tmp_path / "whole", nvrtc="13.0")
    without = make_toolkit(tmp_path / "without", version=12080, nvcc=False)
    for look in (toolkit.find_nvcc, toolkit.find_nvrtc):
        monkeypatch.setenv("CUDA_INSTALL_PATH", str(without))
        monkeypatch.setenv("CUDA_HOME", str(whole))
        with pytest.raises(ToolkitError) as caught:
            look()
        (name,) = re.findall(r"correct (\w+) or unset it", str(caught.value))
        monkeypatch.setenv(name, str(whole))
        assert look().root == whole
        monkeypatch.delenv(name)
        assert look().root == whole


def test_packages_are_named_as_a_shell_and_the_project_take_them(tmp_path):
    (tmp_path / "nvidia-cuda-nvrtc==13.0.1").touch()  # an unquoted star would stand for it
    said = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\n' {find.GET_NVRTC}"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split()
    assert said == shlex.split(find.GET_NVRTC)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {*said[2:]} <= {*project["dependencies"]}
    assert shlex.split(find.GET_BINDINGS)[2] in project["dependencies"]
    assert re.search(r"nvidia-cutlass==[\d.]+", find.GET_CUTLASS)[0] in project["dependencies"]
    assert "pycutlass[nvcc]" in find.GET_NVCC and "nvcc" in project["optional-dependencies"]


@pytest.mark.parametrize("option", [*OPTIONS_OF_DIRECTORIES, *OPTIONS_OF_LIBRARIES, "-specs /x", "-march=native"])
def test_an_option_that_is_left_out_leaves_nothing_of_itself(monkeypatch, tmp_path, option):
    program = make_program(tmp_path / "g++", "exit 0")
    monkeypatch.setenv("CXX", f"{program} -O1 {option} -g")
    with pytest.raises(ToolkitError) as caught:
        toolkit.find_host_compiler()
    (named,) = re.findall(r"-g', and (?:what )?(-.*?) (?:adds|names|has|means)", str(caught.value))
    monkeypatch.setenv("CXX", f"{program} -O1 {option} -g".replace(named, ""))
    assert toolkit.find_host_compiler() == (str(program), "-O1", "-g")


# What is there in another version.


def apply(note: str, monkeypatch, places: dict[str, Path], bare) -> int:
    """Follow each alternative of a remedy, see that nothing is left to say, and return how many there are."""
    variable = re.search(r"[Ss]et (C\w+) to", note)[1]
    with monkeypatch.context() as patch:
        patch.setenv(variable, str(places["another"]))
        assert places["look"]().note == ""
    if "pip install" not in note:
        return 1
    before, bare[places["package"]] = bare.get(places["package"]), [places["installed"]]
    assert places["look"]().note == ""
    bare[places["package"]] = before or []
    return 2


@pytest.mark.parametrize("via", ["CUDA_INSTALL_PATH", "CUDA_HOME", "PATH", "package"])
def test_another_toolkit_is_had_as_its_note_says(monkeypatch, tmp_path, bare_machine, via):  # noqa: F811
    old, new = make_toolkit(tmp_path / "old", version=12080), make_toolkit(tmp_path / "new")
    if via == "package":
        bare_machine["nvidia.cu13"] = [old]
    else:
        monkeypatch.setenv(via, str(old / "bin" if via == "PATH" else old))
    found = toolkit.find_nvcc()
    places = {"look": toolkit.find_nvcc, "another": new, "package": "nvidia.cu13", "installed": new}
    assert apply(found.note, monkeypatch, places, bare_machine) == (2 if via == "package" else 1)


@pytest.mark.parametrize("via", ["CUTLASS_PATH", "checkout", "package"])
def test_another_cutlass_is_had_as_its_note_says(monkeypatch, tmp_path, bare_machine, via):  # noqa: F811
    new = make_cutlass(tmp_path / "new" / "source")
    monkeypatch.setattr(find, "CHECKOUT", tmp_path / "checkout")
    (tmp_path / "checkout").mkdir()
    if via == "checkout":
        (tmp_path / "checkout" / "setup.py").touch()
        make_cutlass(tmp_path / "checkout" / "third_party" / "cutlass", (3, 5, 1))
    elif via == "package":
        make_cutlass(tmp_path / "old" / "source", (3, 5, 1))
        bare_machine["cutlass_library"] = [tmp_path / "old"]
    else:
        monkeypatch.setenv(via, str(make_cutlass(tmp_path / "old", (3, 5, 1))))
    places = {"look": toolkit.find_cutlass, "another": new, "package": "cutlass_library", "installed": tmp_path / "new"}
    note = toolkit.find_cutlass().note
    assert apply(note, monkeypatch, places, bare_machine) == (2 if via == "package" else 1)


@pytest.mark.parametrize("variable", ["CUDA_INSTALL_PATH", "CUDA_HOME"])
def test_headers_that_cannot_be_read_name_the_variable_that_leads_elsewhere(monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, str(make_toolkit(tmp_path / "one")))
    found = toolkit.find_nvcc()
    named = re.search(r"set (\w+) to another one", str(models._unreadable(found, OSError("denied"))))
    monkeypatch.setenv(named[1], str(make_toolkit(tmp_path / "two")))
    assert toolkit.find_nvcc().root == tmp_path / "two"


# What kernels are built for.


@pytest.mark.parametrize("backwards", [False, True])
def test_the_target_that_is_named_does_for_all_kernels_of_the_call(backwards):
    kinds = {"a": (80, False), "b": (90, False), "c": (90, True)}
    operations = [Operation(name, compute_capability=cc, native=native) for name, (cc, native) in kinds.items()]
    for wanted in (operations[:1], operations[:2], operations):
        wanted = wanted[::-1] if backwards else wanted
        with pytest.raises(ArgumentError) as caught:
            session.requests(wanted, "sm_75", "add_module")
        (target,) = re.findall(r"pass target='(\w+)'", str(caught.value))
        assert len(session.requests(wanted, target, "add_module")) == len(wanted)


@pytest.mark.parametrize(
    "spelling", [80, 8.0, "80", "sm80", "SM_80", "compute_90", "80a", "sm89a", "90f", "90a", "100a", 100, "10.0"]
)
def test_the_target_that_is_meant_is_one(spelling):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        choice.choose_target(Operation("a").source(), spelling)
    (meant,) = re.findall(r"Did you mean '(\w+)'\?", str(caught.value))
    assert choice.choose_target(Operation("a").source(), meant) == meant


@pytest.mark.parametrize("spelling", ["70", 5.0, "sm_7", "native", "hopper"])
def test_what_is_older_than_all_kernels_is_not_meant(spelling):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        choice.choose_target(Operation("a").source(), spelling)
    assert "Did you mean" not in str(caught.value)


# Kernels that must not be compiled.


def test_kernels_of_elsewhere_are_what_a_machine_without_compilers_is_told(monkeypatch, tmp_path, own_session):
    source = Operation("kernel_a").source()
    fields = choice.portable_fields(source, "sm_80", toolkit.own_headers_digest())
    elsewhere = KernelCache(tmp_path / "elsewhere")
    elsewhere.put(Artifact(make_key(fields), "kernel_a", "sm_80", fields, b"cubin", b"host", REPORT))
    elsewhere.export(tmp_path / "FILE")
    elsewhere.close()
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    with pytest.raises(NotCompiledError) as caught:
        compiler.add_module([Operation("kernel_a")], target="sm_80")
    said = str(caught.value)
    assert "g++ (Debian, Ubuntu: apt install g++" in said and "pip install 'pycutlass[nvcc]'" in said
    assert "unset the variable and get what is missing: " in said and "Unset the variable to" not in said
    words = shlex.split(re.search(r"pycutlass (cache import \S+)\.", said)[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pycutlass", *words])
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main()
    assert [made.name for made in compiler.add_module([Operation("kernel_a")], target="sm_80")] == ["kernel_a"]


# Where memory comes from.


def test_a_class_in_the_place_of_an_allocator():
    with pytest.raises(ArgumentTypeError, match=r"make one, TorchAllocator\(\)$"):
        pycutlass.set_allocator(pycutlass.TorchAllocator)
    pycutlass.set_allocator("rmm")


class Odd(str):
    """Text that can be neither compared nor looked up."""

    __slots__ = ()

    def __eq__(self, other):
        raise ZeroDivisionError

    def __hash__(self):
        raise ZeroDivisionError


def test_text_that_cannot_be_compared_is_taken_as_text():
    pycutlass.set_allocator(Odd("rmm"))
    with pycutlass.allocating_with(Odd("rmm")):
        pass
    with pytest.raises(ArgumentError, match=r"one of rmm, torch, cupy.*Did you mean torch\?"):
        pycutlass.set_allocator(Odd("Torch"))
    assert choice.several_targets([Odd("sm_80"), Odd("sm_80")]) == ["sm_80"]
    where, entry = Path("kernels.db"), Entry("0" * 64, "kernel_a", "sm_80", {}, {}, 1, 0.0, 0.0)
    assert selected([entry], [Odd("kernel_a")], where) == narrowed([entry], Odd("kernel"), [Odd("sm_80")], where)
