"""The key of a kernel follows what its compilers read and run besides the kernel, CUTLASS and CUDA's headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from machines import Machine, relink
from tool_trees import key_now, program, same_size_and_time, script

from pycutlass import toolkit
from pycutlass.cache import KernelCache
from pycutlass.compiler import choice, tools
from pycutlass.errors import ToolkitError
from pycutlass.toolchain import HostCompiler, Nvcc, Nvrtc
from pycutlass.toolkit import Toolkit

pytestmark = pytest.mark.usefixtures("private_session")


def recalled(cache: KernelCache) -> bool:
    """Return whether a search in this cache is known and holds."""
    found = choice.recall("nvrtc", cache)
    return found is not None and found.holds()


# What the words of the host command have the compiler include.

INCLUDE = ["-include {}", "-include{}", "-imacros {}", "--include={}", "-Wp,-include,{}", "@{}"]


@pytest.mark.parametrize("words", INCLUDE)
def test_what_a_named_header_includes_is_in_the_key(monkeypatch, tmp_path, words):
    """A change in it is seen by a search, and a search that is kept no longer holds."""
    folder = tmp_path / "a folder"
    (folder / "deeper").mkdir(parents=True)
    (folder / "inner.h").write_text('#include "deeper/last.h"\n')
    (folder / "deeper" / "last.h").write_text("// one\n")
    outer = tmp_path / "outer.h"
    outer.write_text(f'#include "{folder}/inner.h"\n#include <cstddef>\n')
    named = outer
    if words.startswith("@"):
        named = tmp_path / "words"
        named.write_text(f"-include {outer}")
    monkeypatch.setenv("CXX", "g++ " + words.format(named))
    cache = KernelCache(tmp_path / "cache")
    tools.search("nvrtc", cache)
    keys = [key_now()]
    assert recalled(cache) or words.startswith("@"), "such a word might be a program of the working directory"
    same_size_and_time(folder / "deeper" / "last.h", "// two\n")
    assert not recalled(cache)
    keys.append(key_now())
    tools.search("nvrtc", cache)
    (folder / "cstddef").write_text("")  # beside a header of the chain, and included by none
    assert not recalled(cache)
    (folder / "inner.h").write_text('#include "deeper/last.h"\n#include "cstddef"\n')
    keys.append(key_now())
    assert len(set(keys)) == 3
    cache.close()


def test_a_named_header_is_included_with_the_directories_of_a_kernel(monkeypatch, tmp_path):
    (tmp_path / "outer.h").write_text("#include <cutlass/version.h>\n")
    monkeypatch.setenv("CXX", f"g++ -include {tmp_path}/outer.h")
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    assert len(found.fields["host_includes"]) == 64
    monkeypatch.setenv("CXX", "g++")
    assert "host_includes" not in tools.find_tools("nvrtc", toolkit.without_memo).fields


def test_a_header_that_was_compiled_before_is_in_the_key(monkeypatch, tmp_path):
    """The compiler reads it in place of the header, which may be as it was."""
    (tmp_path / "outer.h").write_text("#error it was to be compiled before\n")
    host = tools.find_tools("nvrtc", toolkit.without_memo).host
    command = [word for word in host.command(Path("x.h"), tmp_path / "outer.h.gch", "sm_80") if word != "-shared"]
    command[command.index("c++")] = "c++-header"
    monkeypatch.setenv("CXX", f"g++ -include {tmp_path}/outer.h")
    keys = []
    for text in ("int one;", "int two;"):
        (tmp_path / "x.h").write_text(text)
        subprocess.run([word for word in command if not word.startswith("-Wl,")], cwd=tmp_path, check=True)
        keys.append(key_now())
    assert len(set(keys)) == 2


def test_a_named_header_that_cannot_be_read_is_refused(monkeypatch, tmp_path):
    (tmp_path / "outer.h").write_text('#include "nowhere.h"\n')
    monkeypatch.setenv("CXX", f"g++ -include {tmp_path}/outer.h")
    with pytest.raises(ToolkitError, match=r"CXX is g\+\+ -include (?s:.)*nowhere\.h(?s:.)*Correct the variable"):
        tools.find_tools("nvrtc", toolkit.without_memo)
    compiler = script(tmp_path / "g++", "echo version")
    with pytest.raises(ToolkitError, match="does not say what is included"):
        HostCompiler((str(compiler), "-include", f"{tmp_path}/outer.h"), ()).signature()


@pytest.mark.parametrize(
    "line", ["INCLUDES += --pre-include=/x.h", 'CUDAFE_FLAGS += "-include" /x.h', "PTXAS_FLAGS += -optf /x"]
)
def test_a_profile_of_nvcc_that_names_files_is_refused(tmp_path, line):
    (tmp_path / "bin").mkdir()
    nvcc = script(tmp_path / "bin" / "nvcc", "echo 'release 13.0, V13.0.88'")
    device = Nvcc(Toolkit(tmp_path, tmp_path, "13.0", "test", nvcc, None), (), ("/usr/bin/g++",))
    profile = tmp_path / "bin" / "nvcc.profile"
    profile.write_text('INCLUDES += "-I$(TOP)/x86-include" --include-path=/include -includes\n')
    device.signature()
    profile.write_text(f"TOP = $(_HERE_)/..\n{line}\n")
    with pytest.raises(ToolkitError, match=r"nvcc\.profile has -.* does not know: .* Leave it out"):
        device.signature()


@pytest.mark.parametrize(
    "line", ["CICC_PATH = /opt/nvvm/bin", "TOP=$(_HERE_)/../other", "PATH += /opt:$(_HERE_):", "NVVMIR_LIBRARY_DIR = x"]
)
def test_a_profile_of_nvcc_that_moves_its_programs_is_refused(tmp_path, monkeypatch, line):
    """Both of its remedies lead to a toolkit that is taken."""
    roots = [tmp_path / name for name in ("moved", "other")]
    for root in roots:
        (root / "bin").mkdir(parents=True)
        (root / "include").mkdir()
        (root / "include" / "cuda_runtime.h").touch()
        script(root / "bin" / "nvcc", "echo 'release 13.0, V13.0.88'")
        (root / "bin" / "nvcc.profile").write_text(OWN_PROFILE)

    def signature():
        return Nvcc(toolkit.find_nvcc(), (), ("/usr/bin/g++",)).signature()

    for variable in ("CUDA_HOME", "CUDA_INSTALL_PATH"):
        monkeypatch.setenv(variable, str(roots[0]))
        profile = roots[0] / "bin" / "nvcc.profile"
        profile.write_text(f"{OWN_PROFILE}{line}\n")
        with pytest.raises(ToolkitError, match=r"nvcc\.profile sets .* to .* does not know") as caught:
            signature()
        named = re.search(r"set (CUDA_\w+) to another toolkit", str(caught.value))
        with monkeypatch.context() as patch:
            patch.setenv(named[1], str(roots[1]))
            signature()
        profile.write_text(OWN_PROFILE)  # "as CUDA's own profile does"
        signature()


OWN_PROFILE = """
TOP              = $(_HERE_)/..

CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/$(_NVVM_BRANCH_)/libdevice

LD_LIBRARY_PATH += $(TOP)/lib:
PATH            += $(CICC_PATH):$(TOP)/$(_NVVM_BRANCH_)/bin:$(_HERE_):
PTXAS_FLAGS     +=
"""


# Programs and libraries.


def test_programs_that_the_host_compiler_runs_are_in_the_key(tmp_path, monkeypatch):
    found = HostCompiler(("/usr/bin/g++",), ()).signature()["host_programs"]
    assert [part.split()[0] for part in found.split(", ")] == ["cc1plus", "collect2", "as", "ld"]
    (tmp_path / "as").write_text("another")
    (tmp_path / "as").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    other = HostCompiler(("/usr/bin/g++",), ()).signature()["host_programs"]
    assert other != found and other.split(", ")[1] == found.split(", ")[1]
    shutil.copy("/bin/true", tmp_path / "ld.own")
    named = HostCompiler(("/usr/bin/g++", "-fuse-ld=own"), ()).signature()["host_programs"]
    assert named.startswith(f"{other}, ld.own ")


def test_contents_are_read_once_also_where_a_script_runs_the_compiler(tmp_path):
    """What a script says may change while it does not, so it is asked each time; programs have states."""
    wrapper = script(tmp_path / "g++", 'echo "$@" >> "$0.log"; exec /usr/bin/g++ "$@"')
    cache, computed = KernelCache(), []

    def memo(kind, of, state, compute):
        return cache.memo(kind, of, state, lambda: (computed.append(kind), compute())[1])

    for _ in range(2):
        host = HostCompiler((str(wrapper),), (), memo)
        with host.ask_ahead():
            fields = host.signature()
    assert "cc1plus" in fields["host_programs"]
    assert computed == ["programs of compiler"]
    assert sorted((tmp_path / "g++.log").read_text().split()) == ["--version"] * 2 + ["-print-search-dirs"] * 2


def test_a_program_among_those_of_the_compiler_comes_before_one_on_path(tmp_path, monkeypatch):
    """Where the compiler looks is remembered, and what is there is looked at."""
    own = tmp_path / "own programs"
    own.mkdir()
    compiler = program(tmp_path / "g++", f"programs: ={own}/:/nowhere/:{own}/")
    monkeypatch.setenv("CXX", str(compiler))
    cache = KernelCache(tmp_path / "cache")
    before = tools.search("nvrtc", cache).fields["host_programs"]
    assert recalled(cache)
    script(own / "as", "exit 1")
    assert not recalled(cache)
    assert tools.search("nvrtc", cache).fields["host_programs"] != before
    cache.close()


def test_rules_beside_the_compiler_are_in_the_key(tmp_path, monkeypatch):
    """g++ reads them where it is installed, in the place of its own; some distributions put them there."""
    monkeypatch.setenv("CXX", str(program(tmp_path / "g++", f"install: {tmp_path}/\\nprograms: =/nowhere")))
    cache, keys = KernelCache(tmp_path / "cache"), [key_now()]
    tools.search("nvrtc", cache)
    assert recalled(cache)
    for text in ("*link:\n-one\n", "*link:\n-two\n"):
        (tmp_path / "specs").write_text(text)
        assert not recalled(cache)
        tools.search("nvrtc", cache)
        keys.append(key_now())
    cache.close()
    assert len(set(keys)) == 3


def test_what_nvrtc_builds_into_kernels_is_in_the_key(tmp_path):
    found = toolkit.find_nvrtc()
    assert "libnvrtc-builtins.so" in Nvrtc(found, ()).signature()["device_compiler"]
    (tmp_path / "libnvrtc.so.13").write_text("library")
    (tmp_path / "libnvrtc-builtins.so.13.0").write_text("one")
    made = Toolkit(tmp_path, tmp_path, "13.0", "test", None, tmp_path / "libnvrtc.so.13")
    states = [Nvrtc(made, (), lambda kind, of, state, compute: state).signature()["device_compiler"]]
    same_size_and_time(tmp_path / "libnvrtc-builtins.so.13.0", "two")
    states.append(Nvrtc(made, (), lambda kind, of, state, compute: state).signature()["device_compiler"])
    assert states[0] != states[1]


# Links.


@pytest.mark.parametrize("how", ["CUDA_HOME", "nvcc on PATH", "what nvcc says"])
def test_a_switched_link_to_a_toolkit_leads_to_the_other_one(tmp_path, monkeypatch, how):
    (tmp_path / "machine").mkdir()
    machine = Machine(tmp_path / "machine", monkeypatch)
    present = machine.root / "present"
    relink(present, machine.root / "cuda two")
    if how == "CUDA_HOME":
        machine.set("CUDA_HOME", str(present))
    elif how == "nvcc on PATH":
        (machine.root / "first" / "nvcc").symlink_to(present / "bin" / "nvcc")
    else:  # a program, so that what it says is remembered
        program(machine.root / "first" / "nvcc", f"#$ TOP={present}/bin/..")
    before = machine.learned()
    assert "V13" not in before["device_compiler"] and ".116" in before["device_compiler"]
    relink(present, machine.root / "cuda one")
    assert machine.recalled() is None
    found = tools.find_device_compiler(None, machine.cache.memo)[1]
    assert found.root.resolve() == machine.root / "cuda one"
    after = machine.learned()
    assert ".111" in after["device_compiler"] and after["cuda_headers"] != before["cuda_headers"]
    relink(present, machine.root / "cuda two")
    assert machine.learned() == before
    machine.cache.close()


def test_what_an_nvcc_says_follows_its_profile(tmp_path, monkeypatch):
    (tmp_path / "machine").mkdir()
    machine = Machine(tmp_path / "machine", monkeypatch)
    asked: list[str] = []

    def memo(kind, subject, fingerprint, compute):
        if kind == "top of nvcc":
            asked.append(fingerprint)
        return compute()

    program(machine.root / "first" / "nvcc", f"#$ TOP={machine.root}/cuda two")
    toolkit.find_nvcc(memo)
    (machine.root / "first" / "nvcc.profile").write_text("TOP = elsewhere\n")
    toolkit.find_nvcc(memo)
    machine.cache.close()
    assert len(set(asked)) == 2


def test_a_file_of_options_that_clang_reads_is_refused(tmp_path, monkeypatch):
    """What a program says is remembered, for one that is no script; clang says what it reads beside its version."""
    clang, file, cache = tmp_path / "clang++", tmp_path / "clang++.cfg", KernelCache()
    (tmp_path / "clang.cpp").write_text(f"""#include <cstdio>
int main(int words, char**) {{
  std::puts("clang version 18");
  if (words == 2 && std::fopen("{file}", "r")) std::puts("Configuration file: {file}");
}}""")
    subprocess.run(["/usr/bin/g++", tmp_path / "clang.cpp", "-o", clang], check=True, timeout=60)

    def signature():
        return HostCompiler(toolkit.find_host_compiler(), (), cache.memo).signature()

    monkeypatch.setenv("CXX", str(clang))
    before = signature()
    file.write_text("-DNAME")
    with pytest.raises(
        ToolkitError, match=rf"reads options from {re.escape(str(file))}.* Add --no-default-config to CXX"
    ):
        signature()
    monkeypatch.setenv("CXX", f"{clang} --no-default-config")
    assert signature()["host_compiler"] == before["host_compiler"]
