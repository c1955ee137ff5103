"""The package of kernels: what is taken from it, in which order, and what never is."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import threading
import time
from typing import Any

import pytest
from cached import warnings_in
from kernel_packages import NAMES, package, refuses, without_compilers
from trivial_kernels import Operation, environment, write_script

import pycutlass
from pycutlass import _core, compiler
from pycutlass.cache import KernelCache, make_key
from pycutlass.cache.bundle import write_bundle
from pycutlass.cache.package import PackagedBundle, write_index
from pycutlass.compiler import session
from pycutlass.errors import NotCompiledError, ToolkitError
from pycutlass.toolkit import own_headers_digest
from pycutlass.version import __version__

pytestmark = pytest.mark.usefixtures("private_session")

# What is taken.


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_kernel_of_the_package_is_not_compiled(tmp_path, packaged, package_site, builds, is_compressed):
    shutil.rmtree(package_site.parent)
    package(package_site.parent, packaged, is_compressed=is_compressed)
    operation = Operation("kernel_a")
    assert compiler.add_module([operation]) == [packaged[0]]
    assert operation.artifacts["sm_80"] == packaged[0]
    assert builds == [] and KernelCache().entries() == [], "what is installed already is not copied"


def test_every_target_has_its_own(packaged, package_site, builds):
    [for_80, for_90] = compiler.add_module([Operation("kernel_a")], target=["sm_80", "sm_90"])
    assert (for_80, for_90) == (packaged[0], packaged[3])
    compiler.add_module([Operation("kernel_a")], target="sm_86")
    assert builds == ["kernel_a"], "a kernel for another target is not taken"


def test_compile_many_takes_it_as_well(packaged, package_site, builds):
    results = [each.result for each in compiler.compile_many([Operation(name) for name in (*NAMES, "kernel_d")])]
    assert results[:3] == packaged[:3]
    assert builds == ["kernel_d"]


def test_the_cache_comes_first(packaged, package_site, builds, monkeypatch):
    monkeypatch.setenv("CXX", "g++ -DX")  # for which the package is passed by
    [compiled] = compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]
    assert compiled != packaged[0]
    assert compiler.add_module([Operation("kernel_a")]) == [compiled]
    without_compilers(monkeypatch)
    monkeypatch.delenv("CXX")
    assert compiler.add_module([Operation("kernel_a")]) == [compiled]
    assert compiler.add_module([Operation("kernel_b")]) == [packaged[1]]


def test_no_compiler_and_no_headers_are_needed(packaged, package_site, monkeypatch):
    without_compilers(monkeypatch)
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    assert compiler.add_module([Operation(name) for name in NAMES]) == packaged[:3]
    refuses(r"The package pycutlass-kernels does not have it: .*3 kernels for sm_80, 1 kernel for sm_90", "kernel_d")
    monkeypatch.delenv("PYCUTLASS_NO_COMPILE")
    with pytest.raises(ToolkitError, match=r"The package pycutlass-kernels does not have it"):
        compiler.add_module([Operation("kernel_d")])


def test_a_program_without_any_compiler(package_site, tmp_path):
    program = write_script(
        tmp_path / "program.py",
        """
import subprocess

def refuse(*args, **kwargs):
    raise AssertionError(f"a program is started: {args}")

subprocess.Popen = refuse
assert compiler.session.Supply()._choice is None
[artifact] = compiler.add_module([Operation("kernel_a")])
print(artifact.key)
""",
    )
    # The interpreter alone, with what PyCUTLASS imports of its environment, and no headers of CUTLASS and CUDA.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find_spec = importlib.util.find_spec\n"
        "absent = ('cutlass_library', 'nvidia.cu13', 'nvidia')\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in absent else find_spec(name, *rest)\n"
    )
    variables = environment(PATH="/nowhere", PYCUTLASS_NO_COMPILE="1")
    variables["PYTHONPATH"] = os.pathsep.join([str(hidden), str(package_site.parent), variables["PYTHONPATH"]])
    done = subprocess.run(program, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 64


@pytest.mark.compile
def test_a_plan_finds_its_kernel(tmp_path, monkeypatch):
    """From a problem to a kernel of a package: what the pick chooses is described anew, and its text is the same."""
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_80")
    a, b = pycutlass.TensorSpec((1, 512), "float32"), pycutlass.TensorSpec((512, 64), "float32")
    packaged = [each.result for each in compiler.compile_many(pycutlass.Gemm(a, b).candidate.kernels)]
    directory = tmp_path / "site" / "pycutlass_kernels"
    directory.mkdir(parents=True)
    write_bundle(directory / "a100.zip", packaged)
    write_index(directory, __version__, own_headers_digest(), [PackagedBundle("a100.zip", ("sm_80",), len(packaged))])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.delenv("PYCUTLASS_BACKEND")
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    without_compilers(monkeypatch)
    plan = pycutlass.Gemm(a, b)
    plan.compile()
    assert [kernel.artifacts["sm_80"] for kernel in plan.candidate.kernels] == packaged
    _core.HostLibrary(packaged[0].host)
    with pytest.raises(NotCompiledError, match="does not have it"):
        pycutlass.Gemm(a, b, epilogue=pycutlass.relu).compile()


def test_a_lookup_is_quick(packaged, package_site, monkeypatch):
    without_compilers(monkeypatch)
    compiler.add_module([Operation("kernel_a")])
    installed, spans = session._session.installed, []
    fields = {label: packaged[1].fields[label] for label in ("schema", "kernel", "name", "target", "headers")}
    for _ in range(20):
        began = time.perf_counter()
        assert installed.find(fields, None) == packaged[1]
        spans.append(time.perf_counter() - began)
    assert min(spans) < 1e-3


def test_threads_and_children_read_at_the_same_time(packaged, package_site, monkeypatch):
    without_compilers(monkeypatch)
    compiler.add_module([Operation("kernel_a")])
    found: list[Any] = []

    def read() -> None:
        for _ in range(20):
            found.append(compiler.add_module([Operation(name) for name in NAMES]) == packaged[:3])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


def test_an_upgrade_below_a_process_changes_nothing_in_it(packaged, package_site, monkeypatch):
    without_compilers(monkeypatch)
    compiler.add_module([Operation("kernel_a")])
    shutil.rmtree(package_site)
    package(
        package_site.parent, [dataclasses.replace(each, report={**each.report, "registers": 7}) for each in packaged]
    )
    assert compiler.add_module([Operation("kernel_b")]) == [packaged[1]]


def test_a_package_that_cannot_be_written_is_read(packaged, package_site, monkeypatch):
    for path in package_site.iterdir():
        path.chmod(0o444)
    package_site.chmod(0o555)
    try:
        assert compiler.add_module([Operation("kernel_a")]) == [packaged[0]]
    finally:
        package_site.chmod(0o755)


# What never is.

VARIABLES = {
    "PYCUTLASS_BACKEND": "nvrtc",
    "CXX": "g++",
    "CUTLASS_PATH": "/a/checkout",
    "CUDA_HOME": "/a/toolkit",
    "CUDA_INSTALL_PATH": "/a/toolkit",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_who_names_a_compiler_gets_its_kernels(name, packaged, package_site, monkeypatch):
    fields = {label: packaged[0].fields[label] for label in ("schema", "kernel", "name", "target", "headers")}
    monkeypatch.setenv(name, VARIABLES[name])
    installed = session._session.installed
    assert installed.find(fields, None) is None
    assert f"is not used: {package_site}" in installed.said(fields["headers"], None)
    assert f"{name} names what kernels are made with" in installed.said(fields["headers"], None)
    monkeypatch.setenv(name, "")
    assert installed.find(fields, None) == packaged[0]
    assert installed.find(fields, "nvrtc") is None


def test_a_backend_that_the_program_chooses_makes_the_kernels(package_site, builds):
    compiler.nvrtc()
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]


@pytest.mark.parametrize("change", [{"body": "params.out[0] = 2;"}, {"name": "kernel_d"}], ids=["text", "name"])
def test_another_text_is_another_kernel(change, package_site, builds):
    operation = Operation(**{"name": "kernel_a", **change})
    compiler.add_module([operation])
    assert builds == [operation.name]


FIELDS = ("schema", "kernel", "headers", "cutlass")


@pytest.mark.parametrize("label", FIELDS)
def test_a_kernel_of_other_sources_is_not_taken(label, packaged, package_site, builds):
    fields = {**packaged[0].fields, label: "other"}
    shutil.rmtree(package_site)
    package(package_site.parent, [dataclasses.replace(packaged[0], key=make_key(fields), fields=fields), packaged[3]])
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]


def test_a_kernel_of_another_cutlass_is_taken_where_none_is_installed(packaged, package_site, monkeypatch):
    fields = {**packaged[0].fields, "cutlass": "other", "device_compiler": "other"}
    shutil.rmtree(package_site)
    other = dataclasses.replace(packaged[0], key=make_key(fields), fields=fields)
    package(package_site.parent, [other, packaged[3]])
    without_compilers(monkeypatch)
    assert compiler.add_module([Operation("kernel_a")]) == [other]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": "0.0.1"}, rf"for PyCUTLASS 0\.0\.1, and this is {__version__}: pip install pycutlass-kernels=="),
        ({"headers": "0" * 64}, r"built from other headers than those of this PyCUTLASS"),
    ],
    ids=["version", "headers"],
)
def test_a_package_for_another_pycutlass_is_not_used(
    change, match, packaged, package_site, builds, caplog, monkeypatch
):
    shutil.rmtree(package_site)
    package(package_site.parent, packaged, **change)
    compiler.add_module([Operation("kernel_a")])
    compiler.add_module([Operation("kernel_b")])
    assert builds == ["kernel_a", "kernel_b"]
    [said] = warnings_in(caplog)
    assert f"the package pycutlass-kernels in {package_site} is not used" in said
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    refuses(match, "kernel_c")


def test_a_package_of_another_call_record_is_not_used(packaged, package_site, monkeypatch):
    monkeypatch.setattr(_core, "ABI_VERSION", _core.ABI_VERSION + 1)
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    refuses("built from other headers than those of this PyCUTLASS")


# Of several, the first that Python would import; all parts of one that lies in several directories.


def test_of_two_packages_the_first_on_the_path_counts(packaged, package_site, builds, tmp_path, monkeypatch):
    package(tmp_path / "before", [packaged[1], packaged[3]])
    monkeypatch.syspath_prepend(str(tmp_path / "before"))
    compiler.add_module([Operation("kernel_b"), Operation("kernel_a")])
    assert builds == ["kernel_a"]


def test_a_package_in_two_directories_is_read_in_both(packaged, package_site, builds, tmp_path, monkeypatch, caplog):
    second = package(tmp_path / "second", [packaged[1], packaged[3]])
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    for directory in (package_site, second):
        (directory / "__init__.py").unlink()
    (second / "sm_80.zip").write_bytes(b"no bundle")
    assert compiler.add_module([Operation("kernel_b"), Operation("kernel_a")]) == [packaged[1], packaged[0]]
    assert builds == []
    assert f"{second} is not used: it is damaged: {second / 'sm_80.zip'}" in caplog.text
