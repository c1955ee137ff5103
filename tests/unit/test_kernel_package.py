"""The package of kernels: what is taken from it, in which order, and what never is."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cached import warnings_in
from command_line import runner
from trivial_kernels import Operation, environment, write_script

import pycutlass
from pycutlass import _core, compiler, config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.cache.bundle import write_bundle
from pycutlass.cache.package import PackagedBundle, write_index
from pycutlass.compiler import session
from pycutlass.errors import ArgumentError, NotCompiledError, ToolkitError
from pycutlass.toolkit import own_headers_digest
from pycutlass.version import __version__

pytestmark = pytest.mark.usefixtures("private_session")

NAMES = ("kernel_a", "kernel_b", "kernel_c")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    """Three kernels of two targets, which NVRTC and g++ made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYCUTLASS_BACKEND", "nvrtc")
        patch.setattr(session, "_session", session._Session())
        kernels = compiler.add_module([Operation(name) for name in NAMES], target="sm_80")
        return kernels + compiler.add_module([Operation("kernel_a")], target="sm_90")


@pytest.fixture
def site(tmp_path: Path, made: list[Artifact], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package is installed, with nothing in the cache and no variable that names a compiler."""
    monkeypatch.delenv("PYCUTLASS_BACKEND")
    for name in ("CUDA_HOME", "CUDA_INSTALL_PATH", "CUTLASS_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_80")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return package(tmp_path / "site", made)


def package(
    site: Path,
    made: list[Artifact],
    version: str = __version__,
    headers: str | None = None,
    is_compressed: bool = False,
) -> Path:
    directory = site / "pycutlass_kernels"
    directory.mkdir(parents=True)
    (directory / "__init__.py").write_text("raise AssertionError('nobody imports it')\n")
    bundles = []
    for target in ("sm_80", "sm_90"):
        chosen = [each for each in made if each.target == target]
        write_bundle(directory / f"{target}.zip", chosen, is_compressed=is_compressed)
        bundles.append(PackagedBundle(f"{target}.zip", (target,), len(chosen)))
    write_index(directory, version, own_headers_digest() if headers is None else headers, bundles)
    return directory


def without_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(config, "package_directories", only_kernels(config.package_directories))


def only_kernels(look: Callable[[str], list[Path]]) -> Callable[[str], list[Path]]:
    return lambda name: look(name) if name == "pycutlass_kernels" else []


def refuses(match: str, name: str = "kernel_a") -> None:
    with pytest.raises(NotCompiledError, match=match):
        compiler.add_module([Operation(name)])


# What is taken.


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_kernel_of_the_package_is_not_compiled(tmp_path, made, site, builds, is_compressed):
    shutil.rmtree(site.parent)
    package(site.parent, made, is_compressed=is_compressed)
    operation = Operation("kernel_a")
    assert compiler.add_module([operation]) == [made[0]]
    assert operation.artifacts["sm_80"] == made[0]
    assert builds == [] and KernelCache().entries() == [], "what is installed already is not copied"


def test_every_target_has_its_own(made, site, builds):
    [for_80, for_90] = compiler.add_module([Operation("kernel_a")], target=["sm_80", "sm_90"])
    assert (for_80, for_90) == (made[0], made[3])
    compiler.add_module([Operation("kernel_a")], target="sm_86")
    assert builds == ["kernel_a"], "a kernel for another target is not taken"


def test_compile_many_takes_it_as_well(made, site, builds):
    results = [each.result for each in compiler.compile_many([Operation(name) for name in (*NAMES, "kernel_d")])]
    assert results[:3] == made[:3]
    assert builds == ["kernel_d"]


def test_the_cache_comes_first(made, site, builds, monkeypatch):
    monkeypatch.setenv("CXX", "g++ -DX")  # for which the package is passed by
    [compiled] = compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]
    assert compiled != made[0]
    assert compiler.add_module([Operation("kernel_a")]) == [compiled]
    without_compilers(monkeypatch)
    monkeypatch.delenv("CXX")
    assert compiler.add_module([Operation("kernel_a")]) == [compiled]
    assert compiler.add_module([Operation("kernel_b")]) == [made[1]]


def test_no_compiler_and_no_headers_are_needed(made, site, monkeypatch):
    without_compilers(monkeypatch)
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    assert compiler.add_module([Operation(name) for name in NAMES]) == made[:3]
    refuses(r"The package pycutlass-kernels does not have it: .*3 kernels for sm_80, 1 kernel for sm_90", "kernel_d")
    monkeypatch.delenv("PYCUTLASS_NO_COMPILE")
    with pytest.raises(ToolkitError, match=r"The package pycutlass-kernels does not have it"):
        compiler.add_module([Operation("kernel_d")])


def test_a_program_without_any_compiler(site, tmp_path):
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
    variables["PYTHONPATH"] = os.pathsep.join([str(hidden), str(site.parent), variables["PYTHONPATH"]])
    done = subprocess.run(program, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 64


@pytest.mark.compile
def test_a_plan_finds_its_kernel(tmp_path, monkeypatch):
    """From a problem to a kernel of a package: what the pick chooses is described anew, and its text is the same."""
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_80")
    a, b = pycutlass.TensorSpec((1, 512), "float32"), pycutlass.TensorSpec((512, 64), "float32")
    made = [each.result for each in compiler.compile_many(pycutlass.Gemm(a, b).candidate.kernels)]
    directory = tmp_path / "site" / "pycutlass_kernels"
    directory.mkdir(parents=True)
    write_bundle(directory / "a100.zip", made)
    write_index(directory, __version__, own_headers_digest(), [PackagedBundle("a100.zip", ("sm_80",), len(made))])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.delenv("PYCUTLASS_BACKEND")
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    without_compilers(monkeypatch)
    plan = pycutlass.Gemm(a, b)
    plan.compile()
    assert [kernel.artifacts["sm_80"] for kernel in plan.candidate.kernels] == made
    _core.HostLibrary(made[0].host)
    with pytest.raises(NotCompiledError, match="does not have it"):
        pycutlass.Gemm(a, b, epilogue=pycutlass.relu).compile()


def test_a_lookup_is_quick(made, site, monkeypatch):
    without_compilers(monkeypatch)
    compiler.add_module([Operation("kernel_a")])
    installed, spans = session._session.installed, []
    fields = {label: made[1].fields[label] for label in ("schema", "kernel", "name", "target", "headers")}
    for _ in range(20):
        began = time.perf_counter()
        assert installed.find(fields, None) == made[1]
        spans.append(time.perf_counter() - began)
    assert min(spans) < 1e-3


def test_threads_and_children_read_at_the_same_time(made, site, monkeypatch):
    without_compilers(monkeypatch)
    compiler.add_module([Operation("kernel_a")])
    found: list[Any] = []

    def read() -> None:
        for _ in range(20):
            found.append(compiler.add_module([Operation(name) for name in NAMES]) == made[:3])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


def test_an_upgrade_below_a_process_changes_nothing_in_it(made, site, monkeypatch):
    without_compilers(monkeypatch)
    compiler.add_module([Operation("kernel_a")])
    shutil.rmtree(site)
    package(site.parent, [dataclasses.replace(each, report={**each.report, "registers": 7}) for each in made])
    assert compiler.add_module([Operation("kernel_b")]) == [made[1]]


def test_a_package_that_cannot_be_written_is_read(made, site, monkeypatch):
    for path in site.iterdir():
        path.chmod(0o444)
    site.chmod(0o555)
    try:
        assert compiler.add_module([Operation("kernel_a")]) == [made[0]]
    finally:
        site.chmod(0o755)


# What never is.

VARIABLES = {
    "PYCUTLASS_BACKEND": "nvrtc",
    "CXX": "g++",
    "CUTLASS_PATH": "/a/checkout",
    "CUDA_HOME": "/a/toolkit",
    "CUDA_INSTALL_PATH": "/a/toolkit",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_who_names_a_compiler_gets_its_kernels(name, made, site, monkeypatch):
    fields = {label: made[0].fields[label] for label in ("schema", "kernel", "name", "target", "headers")}
    monkeypatch.setenv(name, VARIABLES[name])
    installed = session._session.installed
    assert installed.find(fields, None) is None
    assert f"is not used: {site}" in installed.said(fields["headers"], None)
    assert f"{name} names what kernels are made with" in installed.said(fields["headers"], None)
    monkeypatch.setenv(name, "")
    assert installed.find(fields, None) == made[0]
    assert installed.find(fields, "nvrtc") is None


def test_a_backend_that_the_program_chooses_makes_the_kernels(site, builds):
    compiler.nvrtc()
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]


@pytest.mark.parametrize("change", [{"body": "params.out[0] = 2;"}, {"name": "kernel_d"}], ids=["text", "name"])
def test_another_text_is_another_kernel(change, site, builds):
    operation = Operation(**{"name": "kernel_a", **change})
    compiler.add_module([operation])
    assert builds == [operation.name]


FIELDS = ("schema", "kernel", "headers", "cutlass")


@pytest.mark.parametrize("label", FIELDS)
def test_a_kernel_of_other_sources_is_not_taken(label, made, site, builds):
    fields = {**made[0].fields, label: "other"}
    shutil.rmtree(site)
    package(site.parent, [dataclasses.replace(made[0], key=make_key(fields), fields=fields), made[3]])
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]


def test_a_kernel_of_another_cutlass_is_taken_where_none_is_installed(made, site, monkeypatch):
    fields = {**made[0].fields, "cutlass": "other", "device_compiler": "other"}
    shutil.rmtree(site)
    other = dataclasses.replace(made[0], key=make_key(fields), fields=fields)
    package(site.parent, [other, made[3]])
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
def test_a_package_for_another_pycutlass_is_not_used(change, match, made, site, builds, caplog, monkeypatch):
    shutil.rmtree(site)
    package(site.parent, made, **change)
    compiler.add_module([Operation("kernel_a")])
    compiler.add_module([Operation("kernel_b")])
    assert builds == ["kernel_a", "kernel_b"]
    [said] = warnings_in(caplog)
    assert f"the package pycutlass-kernels in {site} is not used" in said
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    refuses(match, "kernel_c")


def test_a_package_of_another_call_record_is_not_used(made, site, monkeypatch):
    monkeypatch.setattr(_core, "ABI_VERSION", _core.ABI_VERSION + 1)
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    refuses("built from other headers than those of this PyCUTLASS")


# Of several, the first that Python would import; all parts of one that lies in several directories.


def test_of_two_packages_the_first_on_the_path_counts(made, site, builds, tmp_path, monkeypatch):
    package(tmp_path / "before", [made[1], made[3]])
    monkeypatch.syspath_prepend(str(tmp_path / "before"))
    compiler.add_module([Operation("kernel_b"), Operation("kernel_a")])
    assert builds == ["kernel_a"]


def test_a_package_in_two_directories_is_read_in_both(made, site, builds, tmp_path, monkeypatch, caplog):
    second = package(tmp_path / "second", [made[1], made[3]])
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    for directory in (site, second):
        (directory / "__init__.py").unlink()
    (second / "sm_80.zip").write_bytes(b"no bundle")
    assert compiler.add_module([Operation("kernel_b"), Operation("kernel_a")]) == [made[1], made[0]]
    assert builds == []
    assert f"{second} is not used: it is damaged: {second / 'sm_80.zip'}" in caplog.text


# Damage.


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def with_index(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(site: Path) -> None:
        index = json.loads((site / "kernels.json").read_text())
        (site / "kernels.json").write_text(json.dumps(change(index)))

    return apply


def in_every_kernel(site: Path) -> None:
    """Change one byte of each kernel, and nothing that is looked at when the file is opened."""
    bundle = site / "sm_80.zip"
    content = bytearray(bundle.read_bytes())
    with zipfile.ZipFile(bundle) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".cubin"):
                content[member.header_offset + 200] ^= 1  # behind the name
    bundle.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bundle that is cut off": lambda site: cut(site / "sm_80.zip", 0.6),
    "a bundle without a byte": lambda site: cut(site / "sm_80.zip", 0),
    "no bundle": lambda site: (site / "sm_80.zip").unlink(),
    "a directory": lambda site: ((site / "sm_80.zip").unlink(), (site / "sm_80.zip").mkdir())[0],
    "a pipe": lambda site: ((site / "sm_80.zip").unlink(), os.mkfifo(site / "sm_80.zip"))[0],
    "kernels that were changed": in_every_kernel,
    "no index": lambda site: (site / "kernels.json").unlink(),
    "an index that is cut off": lambda site: cut(site / "kernels.json", 0.5),
    "an index of something else": with_index(lambda index: [index]),
    "an index without bundles": with_index(lambda index: {**index, "bundles": None}),
    "a bundle without targets": with_index(lambda index: {**index, "bundles": [{"file": "sm_80.zip", "kernels": 3}]}),
    "a bundle elsewhere": with_index(
        lambda index: {**index, "bundles": [{"file": "../sm_80.zip", "targets": ["sm_80"], "kernels": 3}]}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_package_is_named_and_kernels_are_compiled(damage, site, builds, caplog, monkeypatch):
    damage(site)
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    refuses(rf"(?s)The package pycutlass-kernels is not used: {site}.*(damaged|index of a package)")
    refuses(rf"(?s)The package pycutlass-kernels is not used: {site}.*(damaged|index of a package)")
    monkeypatch.delenv("PYCUTLASS_NO_COMPILE")
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a"]
    [said] = warnings_in(caplog)
    assert str(site) in said


def test_a_bundle_that_is_cut_off_while_it_is_read(made, site, builds, caplog):
    compiler.add_module([Operation("kernel_a")])
    with (site / "sm_80.zip").open("r+b") as file:
        file.truncate(100)
    compiler.add_module([Operation("kernel_b")])
    assert builds == ["kernel_b"]
    assert "was changed or cut off" in caplog.text


def test_a_variable_that_says_neither_is_noticed(site, monkeypatch):
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "maybe")
    with pytest.raises(ArgumentError, match="PYCUTLASS_NO_COMPILE"):
        compiler.add_module([Operation("kernel_a")])


def test_what_is_said_at_the_level_of_notes(site, caplog, monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    with caplog.at_level(logging.INFO, "pycutlass"):
        compiler.add_module([Operation("kernel_a")])
    assert "is not used: CXX names what kernels are made with" in caplog.text
    assert warnings_in(caplog) == []


def test_nothing_is_looked_for_at_import(site):
    program = "import sys, pycutlass; sys.exit(any('pycutlass_kernels' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)


# The command line.


def test_commands_show_the_package(site, monkeypatch, capsys):
    run = runner(monkeypatch, capsys)
    assert f"{site}, 3 kernels for sm_80, 1 kernel for sm_90" in run("cache", "info").out
    [facts] = json.loads(run("cache", "info", "--json").out)["packages"]
    assert facts == {
        "directory": str(site),
        "bundles": [
            {"file": "sm_80.zip", "targets": ["sm_80"], "kernels": 3},
            {"file": "sm_90.zip", "targets": ["sm_90"], "kernels": 1},
        ],
        "reason": "",
    }
    [row] = [entry for entry in json.loads(run("doctor", "--json").out) if entry["name"] == "kernel package"]
    assert row["ok"] and not row["required"]
    assert "and 4 of the package, as built" in run("cache", "verify").out
    monkeypatch.setenv("CXX", "g++")
    assert "not used: CXX names" in run("cache", "info").out
    [row] = [entry for entry in json.loads(run("doctor", "--json").out) if entry["name"] == "kernel package"]
    assert not row["ok"] and "are compiled" in row["remedy"]


def test_commands_without_a_package_say_none(monkeypatch, capsys):
    run = runner(monkeypatch, capsys)
    assert json.loads(run("cache", "info", "--json").out)["packages"] == []
    assert "kernel package" not in run("doctor").out
    assert "package" not in run("cache", "verify").out


def test_verify_finds_what_was_changed(site, monkeypatch, capsys):
    in_every_kernel(site)
    result = runner(monkeypatch, capsys)("cache", "verify")
    assert result.code == 1 and str(site / "sm_80.zip") in result.err
    with_index(lambda index: {**index, "bundles": index["bundles"][1:]})(site)
    index = json.loads((site / "kernels.json").read_text())
    index["bundles"][0]["kernels"] = 2
    (site / "kernels.json").write_text(json.dumps(index))
    result = runner(monkeypatch, capsys)("cache", "verify")
    assert result.code == 1 and "has 1 kernels, and kernels.json beside it says 2" in result.err
