"""What a variable has named and does not work, beside a cache that has the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tool_trees import bare, script, without_nvcc
from trivial_kernels import Operation

from pycutlass import compiler, toolkit
from pycutlass.errors import ToolkitError
from pycutlass.toolkit import models

pytestmark = pytest.mark.usefixtures("private_session")


@pytest.mark.parametrize("elsewhere", ["nothing is installed", "all is installed"])
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CUTLASS_PATH", "/typo"),
        ("CUDA_HOME", "/typo"),
        ("CUDA_INSTALL_PATH", "/typo"),
        ("CXX", "/typo/g++"),
        ("CXX", "'"),
        ("PYCUTLASS_BACKEND", "nvcc"),
        ("CUDA_HOME", "x" * 5000),
        ("CUTLASS_PATH", "/" + "x" * 300),
        ("CXX", "/" + "x" * 5000),
    ],
)
def test_a_variable_that_does_not_work_is_an_error_beside_a_cached_kernel(monkeypatch, variable, value, elsewhere):
    compiler.add_module([Operation("kernel_a")])
    if elsewhere == "nothing is installed":
        bare(monkeypatch)
    if variable == "PYCUTLASS_BACKEND":
        without_nvcc(monkeypatch)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ToolkitError) as caught:
        compiler.add_module([Operation("kernel_a")])
    assert not caught.value.absent
    assert variable in str(caught.value)


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("variable", ["CXX", "CUDA_HOME", "CUDA_INSTALL_PATH", "CUTLASS_PATH"])
def test_what_a_variable_names_must_run_beside_a_cached_kernel(monkeypatch, tmp_path, variable, installed):
    """It is there, and does not work: this is found by trying it, though something else may be missing altogether."""
    compiler.add_module([Operation("kernel_a")])
    if not installed:
        bare(monkeypatch)
    monkeypatch.delenv("PYCUTLASS_BACKEND", raising=False)
    named = tmp_path / "tree"
    for folder in ("bin", "include/cutlass", "include/cute"):
        (named / folder).mkdir(parents=True)
    for header in ("cutlass/cutlass.h", "cuda_runtime.h"):
        (named / "include" / header).touch()
    if variable == "CUTLASS_PATH":
        deny(monkeypatch, named / "include")
    elif variable == "CXX":
        named = script(tmp_path / "tree" / "bin" / "g++", "echo it is broken >&2; exit 3")
    else:
        script(named / "bin" / "nvcc", "echo it is broken >&2; exit 3")
    monkeypatch.setenv(variable, str(named))
    with pytest.raises(ToolkitError) as caught:
        compiler.add_module([Operation("kernel_a")])
    assert not caught.value.absent
    assert str(named) in str(caught.value)
    assert installed or f"{variable} is {named}, which does not work" in str(caught.value)
    assert installed or "Correct the variable or unset it" in str(caught.value)


def deny(monkeypatch, folder: Path) -> None:
    """Let nothing below `folder` be read; who runs as root reads everything."""
    made = models._core.FileStates

    class Refused:
        def finish(self) -> bytes:
            raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(
        models._core, "FileStates", lambda places: Refused() if os.fsencode(folder) in places else made(places)
    )


def test_where_nothing_is_installed_the_cache_serves(monkeypatch, builds):
    compiler.add_module([Operation("kernel_a")])
    bare(monkeypatch)
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]
    with pytest.raises(ToolkitError, match="cannot be found") as caught:
        toolkit.find_cutlass()
    assert caught.value.absent


def test_a_compiler_that_is_installed_and_broken_is_an_error(monkeypatch, tmp_path):
    compiler.add_module([Operation("kernel_a")])
    (tmp_path / "path").mkdir()
    script(tmp_path / "path" / "g++", "echo broken >&2; exit 3")
    monkeypatch.setenv("CXX", str(tmp_path / "path" / "g++"))
    with pytest.raises(ToolkitError, match=r"(?s)--version ended with exit status 3:.*broken"):
        compiler.add_module([Operation("kernel_a")])
