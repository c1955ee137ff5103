"""What a search has found is taken again only as long as everything that it has looked at is as it was."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import CHANGES, Machine, front, launcher_among_compilers, relink
from tool_trees import same_size_and_time, script
from trivial_kernels import Operation

from pycutlass import compiler, toolkit
from pycutlass.cache import KernelCache
from pycutlass.compiler import choice, session, tools
from pycutlass.errors import ToolkitError


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine", monkeypatch) if (tmp_path / "machine").mkdir() is None else None
    assert made
    yield made
    made.cache.close()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_leads_to_another_search(machine, change):
    before = machine.learned()
    CHANGES[change](machine)
    assert machine.recalled() is None
    now = machine.searched()
    assert now != before
    if isinstance(now, str):
        with pytest.raises(ToolkitError):
            tools.search(None, machine.cache)
    else:
        assert machine.learned() == now


@pytest.mark.parametrize("seed", range(6))
def test_what_is_recalled_is_what_a_search_would_find(machine, seed):
    """Changes drawn one after another, each of them done and some undone: the two never differ."""
    drawn = random.Random(seed)
    hits = 0
    for name in drawn.choices(list(CHANGES), k=12):
        try:
            CHANGES[name](machine)
        except OSError:  # a change for which another one has left nothing
            continue
        if drawn.random() < 0.5:
            for variable in ("CUTLASS_PATH", "CUDA_HOME", "CUDA_INSTALL_PATH", "CXX", "PYCUTLASS_BACKEND"):
                machine.unset(variable)
        now, recalled = machine.searched(), machine.recalled()
        assert recalled in (None, now), name
        if not isinstance(now, str):
            hits += machine.learned() == now
        else:
            assert recalled is None
    assert hits or seed


def test_nothing_else_leads_to_another_search(machine, monkeypatch):
    before = machine.learned()
    (machine.root / "cuda one/include/thrust").mkdir()  # of which kernels include nothing, like the following
    (machine.root / "cuda one/lib").mkdir()
    (machine.root / "bin/clang").touch()
    (machine.root / "package/other.py").touch()
    machine.set("PYCUTLASS_TARGET", "sm_90")
    machine.set("CPATH", "/surprise")
    monkeypatch.chdir(machine.root)
    relisted = machine.recalled()
    assert relisted is None, "the list of CUDA's headers was asked for"
    machine.learned()
    (machine.root / "bin/gcc").touch()
    assert machine.recalled() == before


def test_what_a_script_runs_is_found_where_it_is_now(machine):
    front(machine, "cuda two")
    assert "V13" not in (before := tools.search(None, machine.cache).fields["device_compiler"]) and ".116" in before
    front(machine, "cuda one")
    assert ".111" in tools.search(None, machine.cache).fields["device_compiler"]


def test_a_script_that_only_runs_another_program_is_that_program(machine):
    relink(machine.root / "present", machine.root / "cuda two")
    script(machine.root / "first/nvcc", f'# comes first\nexec {machine.root}/present/bin/nvcc "$@"')
    assert ".116" in machine.learned()["device_compiler"]
    relink(machine.root / "present", machine.root / "cuda one")
    assert machine.recalled() is None
    assert ".111" in machine.learned()["device_compiler"]


def test_another_thread_may_set_a_variable_for_a_while(machine, monkeypatch):
    """The answer is that of the variables as they are before and afterwards."""
    find_cutlass = tools.find_cutlass

    def meanwhile():
        machine.set("CUTLASS_PATH", str(machine.root / "cutlass two"))
        try:
            return find_cutlass()
        finally:
            machine.unset("CUTLASS_PATH")

    before = machine.searched()
    monkeypatch.setattr(tools, "find_cutlass", meanwhile)
    found = tools.search(None, machine.cache)
    assert machine.recalled() in (None, before) and found.fields == before


def test_a_process_with_older_rules_leaves_no_answer(machine, monkeypatch, tmp_path):
    """PyCUTLASS was upgraded below it: the next process has other rules."""
    upgraded = tmp_path / "models.py"
    upgraded.touch()
    monkeypatch.setattr(toolkit.models, "__file__", str(upgraded))
    tools.search(None, machine.cache)
    assert machine.recalled() is None


def test_each_environment_has_its_own(machine):
    first = machine.learned()
    machine.set("CUDA_HOME", str(machine.root / "cuda two"))
    second = machine.learned()
    assert first != second and machine.recalled() == second
    machine.unset("CUDA_HOME")
    assert machine.recalled() == first
    machine.set("CXX", "g++ -O2")
    assert machine.recalled() is None and machine.recalled("nvrtc") is None


def test_only_the_last_environments_are_kept(machine, monkeypatch):
    monkeypatch.setattr(choice, "_MOST_ENVIRONMENTS", 3)
    for number in range(5):
        machine.set("PATH", f"{machine.root}/bin:/nowhere/{number}")
        machine.learned()
    known = []
    for number in range(5):
        machine.set("PATH", f"{machine.root}/bin:/nowhere/{number}")
        known.append(machine.recalled() is not None)
    assert known == [False, False, True, True, True]


@pytest.mark.parametrize(
    "make",
    [
        lambda m: m.set("CUTLASS_PATH", "cutlass one"),
        lambda m: m.set("CUDA_HOME", "cuda one"),
        lambda m: m.set("PATH", f"bin:{m.root}/bin"),
        lambda m: m.set("PATH", f":{m.root}/bin"),
        lambda m: m.set("CXX", "./bin/g++"),
        lambda m: m.set("CXX", f"env {m.root}/bin/g++"),
        lambda m: m.set("CXX", str(script(m.root / "cxx", "echo g++ 14"))),
        lambda m: (m.unset("HOME"), m.set("CUTLASS_PATH", "~")),
        lambda m: script(m.root / "first/nvcc", "exit 1"),
        lambda m: front(m, "cuda two"),
        lambda m: script(m.root / "cuda one/bin/nvcc", "echo V13.0.99"),
        lambda m: launcher_among_compilers(m),
        lambda m: (m.set("HOME", "."), m.set("CUTLASS_PATH", "~/cutlass one")),
    ],
)
def test_what_means_something_else_elsewhere_is_searched_each_time(machine, monkeypatch, make):
    monkeypatch.chdir(machine.root)
    (machine.root / "bin/env").symlink_to("/usr/bin/env")
    make(machine)
    with contextlib.suppress(ToolkitError):
        tools.search(None, machine.cache)
    assert machine.recalled() is None


@pytest.mark.parametrize(
    "value", ["", "{", "[]", "{}", '{"fields": {}, "notes": [], "trace": {"places": [1], "answers": 0, "trees": [[]]}}']
)
def test_a_damaged_row_is_no_answer(machine, value):
    machine.learned()
    machine.cache.remember(choice._KIND, choice.environment(None), value, most=9)
    assert machine.recalled() is None
    machine.learned()
    changed = "UPDATE memo_v1 SET value = replace(value, 'g++ one', 'g++ two')"
    machine.cache._disk.run(lambda store: store._run(changed))
    assert machine.recalled() is None
    machine.learned()


def test_a_cache_in_memory_knows_it_as_well(machine, monkeypatch):
    machine.cache = KernelCache("relative")  # which is refused
    machine.learned()


# Nothing is read beside the recorder.

_WATCHED = """
import json, os, sys
from pycutlass import config
from pycutlass.cache import KernelCache
from pycutlass.compiler import tools
from pycutlass.toolkit import find, trace

cache = KernelCache(sys.argv[2])
tools.search(sys.argv[1], cache)  # so that memos have their texts, and modules are imported
config.package_directories("nvidia.cu13")
touched, asked, inside = set(), set(), [0]

def watch(module, name):
    real = getattr(module, name)
    def call(path=".", *rest, **options):
        if not inside[0] and isinstance(path, str | bytes | os.PathLike):
            touched.add((name, os.fsdecode(path)))
        return real(path, *rest, **options)
    setattr(module, name, call)

def quietly(function):  # what goes on in there is no part of the search
    def call(*given, **options):
        inside[0] += 1
        try:
            return function(*given, **options)
        finally:
            inside[0] -= 1
    return call

class Environment(type(os.environ)):
    def __getitem__(self, name):
        if not inside[0]:
            asked.add(name)
        return super().__getitem__(name)

os.environ.__class__ = Environment
for name in ("stat", "lstat", "access", "readlink", "open", "scandir", "listdir", "getcwd", "statvfs"):
    watch(os, name)
sys.addaudithook(lambda event, given: inside[0] or (
    event in ("open", "os.scandir", "os.listdir") and isinstance(given[0], str) and touched.add((event, given[0]))
    or event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system") and touched.add((event, str(given[0])))
))
config.package_directories = quietly(config.package_directories)
remember = cache.remember
kept = []
cache.memo, cache.remember = quietly(cache.memo), lambda kind, subject, text, most: kept.append(json.loads(text))
tools.search(sys.argv[1], cache)
inside[0] = 1
print(json.dumps([sorted(touched), sorted(asked), kept[0]["trace"], config._OF_THE_SEARCH]))
"""


@pytest.mark.parametrize("backend", ["nvcc", "nvrtc"])
def test_a_search_reads_nothing_that_is_not_kept(tmp_path, backend):
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, backend, str(tmp_path / "cache")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    touched, asked, trace, variables = json.loads(done.stdout)
    assert set(asked) <= set(variables) and {"PATH", "CXX"} <= set(asked)
    looked_at = {place[1:] for place in trace["places"]}
    ends = {os.path.realpath(place[1:]) for place in trace["places"] if place[0] == "r"}
    ends |= {str(parent) for end in ends for parent in Path(end).parents}  # links on the way are read one by one
    beside = {(how, path) for how, path in touched if path not in looked_at and os.path.realpath(path) not in ends}
    assert not beside, beside
    assert len(touched) > 50 and len(trace["trees"]) == 2


# The story of `add_module`.


@pytest.mark.usefixtures("private_session")
class TestAddModule:
    def test_another_process_searches_no_more(self, monkeypatch, builds, said):
        compiler.add_module([Operation("kernel_a")])
        searches = []
        monkeypatch.setattr(session, "_find_tools", lambda cache: searches.append(cache))
        monkeypatch.setattr(session, "_session", session._Session())
        compiler.add_module([Operation("kernel_a")])
        assert [done.result.name for done in compiler.compile_many([Operation("kernel_a")])] == ["kernel_a"]
        assert (builds, searches) == (["kernel_a"], [])

    def test_what_no_longer_holds_is_never_handed_over(self, monkeypatch, builds, tmp_path):
        tree = tmp_path / "cutlass"
        Machine.make_cutlass(tree, "one")
        monkeypatch.setenv("CUTLASS_PATH", str(tree))
        (first,) = compiler.add_module([Operation("kernel_a")])
        same_size_and_time(tree / "include/cutlass/cutlass.h", "// two\n")
        (second,) = compiler.add_module([Operation("kernel_a")])
        assert first.key != second.key and builds == ["kernel_a"] * 2
        same_size_and_time(tree / "include/cutlass/cutlass.h", "// six\n")
        [done] = compiler.compile_many([Operation("kernel_a")])
        assert done.result.key not in (first.key, second.key)
        shutil.rmtree(tree)
        with pytest.raises(ToolkitError, match="CUTLASS_PATH is"):
            compiler.add_module([Operation("kernel_a")])

    def test_compilers_are_searched_for_where_one_is_needed(self, builds):
        compiler.add_module([Operation("kernel_a")])
        compiler.add_module([Operation("kernel_a"), Operation("kernel_b")])
        assert builds == ["kernel_a", "kernel_b"]

    def test_what_is_said_once_is_said_of_a_cached_kernel_too(self, monkeypatch, tmp_path, said):
        tree = tmp_path / "cutlass"
        Machine.make_cutlass(tree, "one")
        monkeypatch.setenv("CUTLASS_PATH", str(tree))
        compiler.add_module([Operation("kernel_a")])
        before = said()
        assert any("is written for and tested with" in line for line in before)
        monkeypatch.setattr("pycutlass.log._said", set())
        compiler.add_module([Operation("kernel_a")])
        assert said() == before * 2
