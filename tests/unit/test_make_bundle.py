"""`make bundle`: from a list of kernels to an installed package that needs no compiler."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cached import kernel
from trivial_kernels import ON_THE_STACK, Operation, environment, write_script

from pycutlass import compiler
from pycutlass.cache import KernelCache
from pycutlass.compiler import session
from pycutlass.version import __version__
from tools import make_bundle

pytestmark = pytest.mark.usefixtures("private_session")

KERNELS = {"sm_80": [Operation("kernel_a"), Operation("kernel_b")], "sm_90a": [Operation("kernel_a")]}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run the tool on a copy of the package, with kernels that compile in no time."""
    tree = tmp_path / "tree"
    shutil.copytree(make_bundle.PACKAGE, tree, ignore=shutil.ignore_patterns("*.zip", "kernels.json", "build"))
    monkeypatch.setattr(make_bundle, "default_kernels", lambda target, most: tuple(KERNELS[target][:most]))

    def run(*arguments: str) -> int:
        given = ["--package", str(tree), "--out", str(tmp_path / "out"), "--targets", "sm_80,sm_90a", *arguments]
        return make_bundle.main(given)

    return run


@pytest.fixture
def report(tmp_path: Path) -> Callable[[], Any]:
    return lambda: json.loads((tmp_path / "out" / "kernels-report.json").read_text())


def test_from_a_list_to_a_program_without_a_compiler(make, report, tmp_path, capsys):
    assert make() == 0
    said = capsys.readouterr().out
    assert "sm_80: 2 kernels (2 for sm_80)" in said
    assert "sm_90a: 1 kernels (1 for sm_90)" in said, "what is not Hopper-native is built for what a plan asks for"
    assert report()["sm_80"]["kernels"] == 2 and report()["sm_80"]["problems"] == {}
    [wheel] = (tmp_path / "out").glob("*.whl")
    assert wheel.name == f"pycutlass_kernels-{__version__}-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {f"pycutlass_kernels/{name}" for name in ("kernels.json", "sm_80.zip", "sm_90a.zip")} <= {*names}
    assert f"Requires-Dist: pycutlass=={__version__}" in metadata
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, installed, wheel], check=True)
    program = write_script(
        tmp_path / "program.py",
        """
[artifact] = compiler.add_module([Operation("kernel_b")])
[other] = compiler.add_module([Operation("kernel_a")], target="sm_90")
print(artifact.name, other.target, artifact.key)
""",
    )
    variables = environment(PATH="/nowhere", PYCUTLASS_NO_COMPILE="1", PYCUTLASS_CACHE_DIR=str(tmp_path / "another"))
    del variables["PYCUTLASS_BACKEND"]
    variables["PYTHONPATH"] = os.pathsep.join([str(installed), variables["PYTHONPATH"]])
    done = subprocess.run(program, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [compiled] = compiler.add_module([Operation("kernel_b")], target="sm_80")
    assert done.stdout.split() == ["kernel_b", "sm_90", compiled.key]


def test_what_the_cache_has_is_not_compiled_again(make, builds, tmp_path):
    compiler.add_module([Operation("kernel_b")], target="sm_80")
    assert make("--no-wheel") == 0
    assert sorted(builds) == ["kernel_a", "kernel_a", "kernel_b"]
    bundle = tmp_path / "tree" / "pycutlass_kernels" / "sm_80.zip"
    before = bundle.read_bytes()
    assert make("--no-wheel") == 0
    assert len(builds) == 3 and bundle.read_bytes() == before, "the same kernels make the same bundle"
    assert make("--no-wheel", "--targets", "sm_90a") == 0
    assert not bundle.exists(), "the package has what was asked for and no bundle of an earlier run"
    assert len(KernelCache().entries()) == 3


def test_an_installed_package_is_not_made_into_another_one(make, builds, tmp_path, monkeypatch):
    assert make("--no-wheel") == 0
    monkeypatch.syspath_prepend(str(tmp_path / "tree"))
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.setattr(session, "_session", session._Session())
    builds.clear()
    assert make("--no-wheel") == 0
    assert sorted(builds) == ["kernel_a", "kernel_a", "kernel_b"]


def test_most_takes_the_first(make, report):
    assert make("--no-wheel", "--most", "1") == 0
    assert [each["kernels"] for each in report().values()] == [1, 1]


def test_kernels_that_do_not_compile_and_slow_ones_are_reported(make, report, monkeypatch, capsys):
    slow, broken = Operation("kernel_a", body=ON_THE_STACK), Operation("kernel_b", body="no C++")
    monkeypatch.setitem(KERNELS, "sm_80", [slow, broken])
    assert make("--no-wheel", "--targets", "sm_80") == 1
    facts = report()["sm_80"]
    assert facts["kernels"] == 1 and [*facts["failed"]] == ["kernel_b"]
    assert "stack frame" in facts["problems"]["kernel_a"][0]
    said = capsys.readouterr().out
    assert "kernel_b could not be compiled" in said and "stack frame" in said


def test_what_is_too_large_is_refused(make, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(make_bundle, "MOST_BYTES", 1000)
    assert make() == 1
    assert "would have 2 of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and not (tmp_path / "tree" / "pycutlass_kernels" / "kernels.json").exists()


def test_too_many_kernels_are_refused(tmp_path):
    with pytest.raises(
        make_bundle.BundleError, match=r"at most 400 kernels of 100 MB, and that of sm_80 would have 401"
    ):
        make_bundle.bundled(tmp_path, "sm_80", [kernel(number) for number in range(401)])


def test_symbols_that_the_platform_lacks_are_found() -> None:
    names = ["GLIBC_2.2.5", "GLIBC_2.28", "CXXABI_1.3.11", "GLIBCXX_3.4.24", "GCC_3.0", "xGLIBC_2.40"]
    assert make_bundle.too_new(b"\0" + b"\0".join(name.encode() for name in names) + b"\0") == []
    newer = ["CXXABI_1.3.13", "GLIBCXX_3.4.30", "GLIBC_2.34"]
    assert make_bundle.too_new(b"\0" + b"\0".join(name.encode() for name in newer) + b"\0") == sorted(newer)


def test_a_host_side_that_needs_more_is_refused(tmp_path):
    newer = dataclasses.replace(kernel(1), host=b"\0GLIBC_2.2.5\0GLIBC_2.38\0")
    with pytest.raises(make_bundle.BundleError, match=r"cutlass_gemm_1 needs GLIBC_2\.38, which manylinux_2_28 lacks"):
        make_bundle.bundled(tmp_path / "folder", "sm_90a", [kernel(0), newer])
    assert not (tmp_path / "folder").exists()


def test_a_tree_without_kernels_makes_no_wheel(tmp_path, make):
    with pytest.raises(make_bundle.BundleError, match="run `make bundle`"):
        make_bundle.built_wheel(tmp_path / "tree", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [(("--targets", "sm_70"), "not for sm_70"), (("--most", "0"), "1 to 400"), (("--most", "401"), "1 to 400")],
)
def test_other_arguments_are_refused(arguments, match, capsys):
    with pytest.raises(SystemExit):
        make_bundle.main(arguments)
    assert match in capsys.readouterr().err
