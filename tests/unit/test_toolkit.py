"""Finding CUTLASS, CUDA and the host compiler, in made-up directory trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pycutlass import config, toolkit
from pycutlass.errors import ToolkitError
from pycutlass.toolkit import find


def make_cutlass(root: Path, version: tuple[int, int, int] = (4, 2, 0)) -> Path:
    headers = root / "include" / "cutlass"
    headers.mkdir(parents=True)
    (root / "include" / "cute").mkdir()
    (headers / "cutlass.h").write_text("// cutlass\n")
    names = zip(("MAJOR", "MINOR", "PATCH"), version, strict=True)
    (headers / "version.h").write_text("".join(f"#define CUTLASS_{name} {number}\n" for name, number in names))
    return root


def make_toolkit(root: Path, *, version: int = 13000, nvcc: bool = True, nvrtc: str = "", headers: bool = True) -> Path:
    (root / "bin").mkdir(parents=True)
    if headers:
        library = root / "include" / "cccl" / "cuda" / "std" / "__cccl"
        library.mkdir(parents=True)
        (library / "version.h").write_text("#define CCCL_VERSION 3000001\n")
        (root / "include" / "cuda_runtime.h").touch()
        (root / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    if nvcc:
        make_program(root / "bin" / "nvcc", "exit 1")
    if nvrtc:
        (root / "lib64").mkdir()
        (root / "lib64" / "libnvrtc.so.13").touch()
        (root / "lib64" / f"libnvrtc-builtins.so.{nvrtc}").touch()
    return root


def make_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[Path]]:
    """A machine with nothing on it; what a test puts into the result counts as an installed package."""
    for name in ("CUTLASS_PATH", "CUDA_INSTALL_PATH", "CUDA_HOME", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    packages: dict[str, list[Path]] = {}
    usual_place = Path("/usr/local/cuda")
    roots = find._all_cuda_roots

    def elsewhere(memo, tried):  # the machine that runs the test may have a toolkit in the usual place
        return ((root, via) for root, via in roots(memo, tried) if root != usual_place)

    monkeypatch.setattr(find, "_all_cuda_roots", elsewhere)
    monkeypatch.setattr(config, "package_directories", lambda package: packages.get(package, []))
    return packages


def test_cutlass_path_comes_before_the_package(monkeypatch, tmp_path, bare_machine):
    bare_machine["cutlass_library"] = [tmp_path / "package"]
    make_cutlass(tmp_path / "package" / "source")
    assert toolkit.find_cutlass().root == tmp_path / "package" / "source"
    monkeypatch.setenv("CUTLASS_PATH", str(make_cutlass(tmp_path / "my checkout")))
    found = toolkit.find_cutlass()
    assert (found.root, found.version, found.found_via) == (tmp_path / "my checkout", "4.2.0", "CUTLASS_PATH")
    (tmp_path / "my checkout" / "tools" / "util" / "include").mkdir(parents=True)
    assert found.includes == (tmp_path / "my checkout" / "include",), "nothing that the digest does not cover"


@pytest.mark.parametrize(
    ("command", "words"),
    [("'unclosed", ["No closing quotation"]), ("g++ \\", ["No escaped character"]), ("''", ["names no program"]),
     ("  ", ["names no program"])],
)  # fmt: skip
def test_a_host_compiler_that_is_no_command_is_refused(monkeypatch, command, words):
    monkeypatch.setenv("CXX", command)
    with pytest.raises(ToolkitError) as caught:
        toolkit.find_host_compiler()
    words = [f"CXX is {command!r}", "Correct the variable or unset it", *words]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    finding = next(finding for finding in toolkit.findings() if finding.name == "host compiler")
    assert not finding.ok and f"{finding.value} Correct the variable or unset it." == str(caught.value)


def test_a_home_of_nobody_is_refused(monkeypatch):
    monkeypatch.setenv("CUTLASS_PATH", "~nobody-of-this-name/cutlass")
    with pytest.raises(ToolkitError, match=r"CUTLASS_PATH is ~nobody-of-this-name/cutlass, and there is no"):
        toolkit.find_cutlass()


def test_cutlass_path_that_holds_no_cutlass_is_refused(monkeypatch, tmp_path, bare_machine):
    bare_machine["cutlass_library"] = [tmp_path / "package"]
    make_cutlass(tmp_path / "package" / "source")
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "typo"))
    with pytest.raises(ToolkitError, match=r"CUTLASS_PATH is .*typo.*no include/cutlass/cutlass.h"):
        toolkit.find_cutlass()


def test_missing_cutlass_names_places_and_remedy():
    with pytest.raises(ToolkitError) as caught:
        toolkit.find_cutlass()
    for part in ("$CUTLASS_PATH (not set)", "third_party/cutlass", "nvidia-cutlass (not installed)", "pip install"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("version", "known"), [((4, 2, 0), True), ((4, 2, 1), True), ((4, 20, 0), False), ((3, 5, 1), False)]
)
def test_other_cutlass_versions_are_noted(monkeypatch, tmp_path, version, known):
    monkeypatch.setenv("CUTLASS_PATH", str(make_cutlass(tmp_path / "cutlass", version)))
    note = toolkit.find_cutlass().note
    assert (note == "") is known
    assert known or (".".join(map(str, version)) in note and "4.2" in note)


@pytest.mark.parametrize(("version", "compared"), [((4, 7, 0), True), ((4, 7, 1), True), ((4, 70, 0), False)])
def test_the_note_says_what_was_tested_of_a_later_cutlass(monkeypatch, tmp_path, version, compared):
    monkeypatch.setenv("CUTLASS_PATH", str(make_cutlass(tmp_path / "cutlass", version)))
    note = toolkit.find_cutlass().note
    assert ("tools/compare_cutlass.py" in note) is compared
    assert ("may not compile" in note) is not compared
    assert "tested with 4.2" in note and "Set CUTLASS_PATH to a checkout of CUTLASS 4.2" in note


def test_cutlass_digest_follows_the_content(tmp_path, monkeypatch):
    root = make_cutlass(tmp_path / "cutlass")
    monkeypatch.setenv("CUTLASS_PATH", str(root))
    cutlass = toolkit.find_cutlass()
    before = cutlass.digest()
    assert cutlass.digest() == before
    (root / "include" / "cute" / "tensor.hpp").write_text("x")
    changed = cutlass.digest()
    (root / "include" / "cute" / "tensor.hpp").write_text("y")
    assert len({before, changed, cutlass.digest()}) == 3


def test_cutlass_digest_is_remembered_by_stat(tmp_path, monkeypatch):
    root = make_cutlass(tmp_path / "cutlass")
    monkeypatch.setenv("CUTLASS_PATH", str(root))
    remembered: dict[tuple[str, str, str], str] = {}
    computed = []

    def memo(kind, subject, fingerprint, compute):
        if (kind, subject, fingerprint) not in remembered:
            computed.append(kind)
            remembered[kind, subject, fingerprint] = compute()
        return remembered[kind, subject, fingerprint]

    cutlass = toolkit.find_cutlass()
    assert cutlass.digest(memo) == cutlass.digest(memo) == cutlass.digest()
    assert len(computed) == 1
    header = root / "include" / "cutlass" / "cutlass.h"
    os.utime(header, ns=(0, header.stat().st_mtime_ns + 1))
    cutlass.digest(memo)
    assert len(computed) == 2


def test_order_of_cuda_roots(monkeypatch, tmp_path, bare_machine):
    roots = {name: make_toolkit(tmp_path / name) for name in ("install", "home", "path", "wheels")}
    bare_machine["nvidia.cu13"] = [roots["wheels"]]
    assert toolkit.find_nvcc().root == roots["wheels"]
    monkeypatch.setenv("PATH", str(roots["path"] / "bin"))
    assert toolkit.find_nvcc().root == roots["path"]
    monkeypatch.setenv("CUDA_HOME", str(roots["home"]))
    assert toolkit.find_nvcc().root == roots["home"]
    monkeypatch.setenv("CUDA_INSTALL_PATH", str(roots["install"]))
    found = toolkit.find_nvcc()
    assert (found.root, found.found_via) == (roots["install"], "CUDA_INSTALL_PATH")
    assert found.nvcc == roots["install"] / "bin" / "nvcc"
    assert found.includes == (roots["install"] / "include", roots["install"] / "include" / "cccl")
    assert found.headers_version == "13.0, C++ library 3000001"


def test_headers_and_nvcc_come_from_one_root(monkeypatch, tmp_path, bare_machine):
    bare_machine["nvidia.cu13"] = [
        make_toolkit(tmp_path / "headers", nvcc=False),
        make_toolkit(tmp_path / "nvcc", headers=False),
        make_toolkit(tmp_path / "both"),
    ]
    assert toolkit.find_nvcc().root == tmp_path / "both"


def test_a_named_toolkit_without_nvcc_is_not_replaced_by_another(monkeypatch, tmp_path, bare_machine):
    bare_machine["nvidia.cu13"] = [make_toolkit(tmp_path / "wheels")]
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "home", nvcc=False)))
    with pytest.raises(ToolkitError, match="no bin/nvcc"):
        toolkit.find_nvcc()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ToolkitError, match=r"CUDA_HOME is .*nowhere.*no include/cuda_runtime.h"):
        toolkit.find_nvcc()


def test_nvcc_behind_a_link_and_behind_a_script(monkeypatch, tmp_path):
    root = make_toolkit(tmp_path / "real toolkit")
    (tmp_path / "path").mkdir()
    link = tmp_path / "path" / "nvcc"
    link.symlink_to(root / "bin" / "nvcc")
    assert toolkit.find_nvcc().root == root
    link.unlink()
    # What nvcc says to --dryrun; a real one runs other programs and ignores them.
    make_program(link, f"echo '#$ TOP={root}/bin/..'")
    assert toolkit.find_nvcc().root == root
    assert toolkit.find_nvcc().nvcc == root / "bin" / "nvcc"
    assert toolkit.find_nvcc(lambda kind, subject, fingerprint, compute: str(root)).root == root


def test_nvrtc_and_headers_from_one_root_first(monkeypatch, tmp_path, bare_machine):
    make_toolkit(tmp_path / "path", nvcc=True)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    bare_machine["nvidia.cu13"] = [make_toolkit(tmp_path / "wheels", nvrtc="13.0")]
    found = toolkit.find_nvrtc()
    assert (found.root, found.nvrtc) == (tmp_path / "wheels", tmp_path / "wheels" / "lib64" / "libnvrtc.so.13")


@pytest.mark.parametrize(("library", "fits"), [("13.0", True), ("13.3", False)])
def test_nvrtc_from_elsewhere_must_have_the_version_of_the_headers(tmp_path, bare_machine, library, fits):
    bare_machine["nvidia.cu13"] = [
        make_toolkit(tmp_path / "headers"),
        make_toolkit(tmp_path / "library", headers=False, nvrtc=library),
    ]
    if fits:
        found = toolkit.find_nvrtc()
        assert (found.include.parent, found.nvrtc.parent.parent) == (tmp_path / "headers", tmp_path / "library")
    else:
        with pytest.raises(ToolkitError, match=r"one is 13\.3, the other 13\.0"):
            toolkit.find_nvrtc()


@pytest.mark.parametrize(
    ("number", "version", "words"), [(13000, "13.0", None), (13020, "13.2", "tested"), (12080, "12.8", "only CUDA 13")]
)
def test_other_cuda_versions_are_noted(monkeypatch, tmp_path, number, version, words):
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", version=number)))
    found = toolkit.find_nvcc()
    assert found.version == version
    assert found.note == "" if words is None else words in found.note


def test_host_compiler(monkeypatch, tmp_path):
    with pytest.raises(ToolkitError, match=r"g\+\+ \(on PATH\)"):
        toolkit.find_host_compiler()
    program = make_program(tmp_path / "path" / "g++", "exit 0")
    assert toolkit.find_host_compiler() == (str(program),)
    launcher = make_program(tmp_path / "path" / "ccache", "exit 0")
    monkeypatch.setenv("CXX", "ccache g++")
    assert toolkit.find_host_compiler() == (str(launcher), "g++")
    monkeypatch.setenv("CXX", "/nowhere/clang++")
    with pytest.raises(ToolkitError, match=r"/nowhere/clang\+\+ \(CXX\)"):
        toolkit.find_host_compiler()


def test_findings_tell_of_everything_and_never_raise(monkeypatch, tmp_path):
    found = {finding.name: finding for finding in toolkit.findings()}
    assert {"CUTLASS headers", "nvcc", "NVRTC", "host compiler", "GPU driver", "nvdisasm", "cuobjdump"} == set(found)
    assert not found["CUTLASS headers"].ok and found["CUTLASS headers"].required
    assert found["CUTLASS headers"].tried and "pip install" in found["CUTLASS headers"].remedy
    assert found["NVRTC"].required, "without nvcc, NVRTC is the only device compiler"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    broken = {finding.name: finding for finding in toolkit.findings()}
    assert "CUDA_HOME is" in broken["nvcc"].value and not broken["nvdisasm"].ok


def test_findings_of_what_is_there(monkeypatch, tmp_path):
    root = make_toolkit(tmp_path / "cuda", version=13010, nvrtc="13.1")
    make_program(root / "bin" / "nvcc", "echo 'release 13.1, V13.1.7'; echo Build")
    make_program(root / "bin" / "nvdisasm", "exit 0")
    monkeypatch.setenv("CUDA_HOME", str(root))
    monkeypatch.setenv("CUTLASS_PATH", str(make_cutlass(tmp_path / "cutlass")))
    make_program(tmp_path / "path" / "g++", "echo 'g++ 14.2'; echo more")
    found = {finding.name: finding for finding in toolkit.findings()}
    assert found["CUTLASS headers"].ok and found["CUTLASS headers"].remedy == ""
    assert found["nvcc"].value.startswith("13.1.7 in ") and "tested with 13.0" in found["nvcc"].remedy
    assert found["NVRTC"].ok and not found["NVRTC"].required
    assert found["host compiler"].value.endswith("g++, g++ 14.2")
    assert found["nvdisasm"].value == str(root / "bin" / "nvdisasm")


def test_own_headers_are_found():
    assert (toolkit.own_include() / "pycutlass" / "abi.h").is_file()
    assert len(toolkit.own_headers_digest()) == 64
