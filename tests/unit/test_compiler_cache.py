"""`add_module` and the cache: what is found again, by whom, and what makes another key."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import subprocess

import pytest
from trivial_kernels import Operation, environment, write_script

from pycutlass import compiler, toolkit
from pycutlass.cache import make_key
from pycutlass.compiler import choice, tools
from pycutlass.errors import ArgumentError, NotCompiledError, ToolkitError
from pycutlass.source import KernelSource

pytestmark = pytest.mark.usefixtures("private_session")


# The cache.


def test_a_second_call_compiles_nothing(builds):
    compiler.add_module([Operation("kernel_a")])
    again = Operation("kernel_a")
    compiler.add_module([again])
    assert builds == ["kernel_a"] and again.artifacts["sm_80"].name == "kernel_a"


def test_a_second_process_starts_no_program_and_is_quick(tmp_path):
    compiler.add_module([Operation("kernel_a")])
    command = write_script(
        tmp_path / "second.py",
        """
import sqlite3, subprocess, time

def refuse(*args, **kwargs):
    raise AssertionError(f"a program is started: {args}")

subprocess.Popen = refuse
operation = Operation("kernel_a")
started = time.perf_counter()
compiler.add_module([operation])
seconds = time.perf_counter() - started
heavy = [name for name in sys.modules if name.split(".")[0] in {"cuda", "rich"}]
print(json.dumps({"seconds": seconds, "heavy": heavy, "targets": list(operation.artifacts)}))
""",
    )
    runs = [
        json.loads(subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    assert runs[0]["targets"] == ["sm_80"] and runs[0]["heavy"] == []
    # 10 ms on a quiet machine, and a compiler cannot run; the rest is for machines that are busy.
    assert min(run["seconds"] for run in runs) < 0.15


def test_processes_that_want_the_same_kernel_build_it_once(tmp_path):
    command = write_script(
        tmp_path / "racing.py",
        """
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
compiler.add_module([Operation("kernel_a")])
""",
    )
    running = [subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sum("compiled kernel_a for sm_80" in output for output in outputs) == 1


@pytest.mark.parametrize("call", [compiler.add_module, lambda given: list(compiler.compile_many(given))])
def test_a_variable_that_says_neither_is_noticed_with_a_kernel_in_the_cache(monkeypatch, builds, call):
    compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "maybe")
    with pytest.raises(ArgumentError, match=r"PYCUTLASS_NO_COMPILE must be one of 1, .*'maybe'"):
        call([Operation("kernel_a")])
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "yes")
    call([Operation("kernel_a")])


def test_a_cache_that_lacks_a_kernel_when_compiling_is_forbidden(monkeypatch, builds):
    compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    compiler.add_module([Operation("kernel_a")])
    with pytest.raises(NotCompiledError) as caught:
        compiler.add_module([Operation("kernel_a"), Operation("kernel_b")])
    for part in ("PYCUTLASS_NO_COMPILE", "kernel_b for sm_80", "device_compiler: nvrtc", "cutlass: 4.", "host_flags:"):
        assert part in str(caught.value)
    assert builds == ["kernel_a"]


def test_without_a_compiler_the_cache_is_searched_for_the_text(monkeypatch, builds, caplog):
    compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("PATH", "/nowhere")
    found = Operation("kernel_a")
    with caplog.at_level(logging.INFO, "pycutlass"):
        compiler.add_module([found])
    assert found.artifacts["sm_80"].name == "kernel_a" and "kernels come from the cache alone" in caplog.text
    with pytest.raises(ToolkitError, match=r"(?s)g\+\+ \(on PATH\).*the cache .* does not have kernel_a for sm_90"):
        compiler.add_module([found], target="sm_90")
    with pytest.raises(ToolkitError, match="kernel_b for sm_80"):
        compiler.add_module([Operation("kernel_b")])


@pytest.mark.parametrize("path", [None, "/nowhere"], ids=["with compilers", "without"])
def test_where_compiling_is_forbidden_a_miss_is_said_alike_with_and_without_compilers(monkeypatch, path):
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    if path:
        monkeypatch.setenv("PATH", path)
    source = Operation("kernel_b").source()
    with pytest.raises(NotCompiledError) as caught:
        compiler.add_module([Operation("kernel_b")])
    message = str(caught.value)
    text = hashlib.sha256(source.text.encode()).hexdigest()
    for part in ("lacks 1 kernel: kernel_b for sm_80", f"kernel: {text}", "target: sm_80", "cache import FILE"):
        assert part in message
    with pytest.raises(NotCompiledError, match="kernel_b for sm_80"):
        [*compiler.compile_many([Operation("kernel_b")])]


def test_a_miss_names_the_targets_that_the_cache_has(monkeypatch):
    compiler.add_module([Operation("kernel_a")], target=["sm_90", "sm_80"])
    compiler.add_module([Operation("kernel_b")], target="sm_86")
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    with pytest.raises(NotCompiledError, match=r"kernel_a for sm_86\. It has kernel_a for sm_80, sm_90\. The first"):
        compiler.add_module([Operation("kernel_a")], target="sm_86")
    monkeypatch.setenv("CXX", "g++ -DX")
    with pytest.raises(NotCompiledError, match=r"It has kernel_a for sm_80, sm_90 \(made by other compilers\)"):
        compiler.add_module([Operation("kernel_a")], target="sm_80")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotCompiledError, match=r"kernel_a for sm_86\. It has kernel_a for sm_80, sm_90\. The first"):
        compiler.add_module([Operation("kernel_a")], target="sm_86")
    monkeypatch.delenv("PYCUTLASS_NO_COMPILE")
    with pytest.raises(ToolkitError, match=r"does not have kernel_a for sm_86\. It has kernel_a for sm_80, sm_90\.$"):
        compiler.add_module([Operation("kernel_a")], target="sm_86")


# Every field of the key counts.


def key_of(source: KernelSource, target: str, found: tools.Tools) -> str:
    return make_key(found.key_fields(source, target))


@pytest.mark.parametrize("change", ["name", "text"])
def test_key_follows_the_kernel(change):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    source = Operation("kernel_a").source()
    other = dataclasses.replace(source, **{change: getattr(source, change) + "x"})
    assert key_of(source, "sm_80", found) != key_of(other, "sm_80", found)


@pytest.mark.parametrize(
    "field", ["cutlass", "cuda_headers", "device_compiler", "nvrtc_steps", "host_compiler", "headers"]
)
def test_key_follows_every_tool(field):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    source = Operation("kernel_a").source()
    assert found.key_fields(source, "sm_80")[field]
    before = key_of(source, "sm_80", found)
    assert key_of(source, "sm_80", found) == before
    other = dataclasses.replace(found, fields={**found.fields, field: "another"})
    assert key_of(source, "sm_80", other) != before


def test_key_follows_the_schema(monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    before = key_of(Operation("kernel_a").source(), "sm_80", found)
    monkeypatch.setattr(choice, "_SCHEMA", "next")
    assert key_of(Operation("kernel_a").source(), "sm_80", found) != before


@pytest.mark.parametrize("side", ["device", "host"])
def test_key_follows_the_flags(side, monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    source = Operation("kernel_a").source()
    before = key_of(source, "sm_80", found)
    kind = type(getattr(found, side))
    flags = kind.flags
    monkeypatch.setattr(kind, "flags", lambda self, target: (*flags(self, target), "-DANOTHER"))
    assert key_of(source, "sm_80", tools.find_tools("nvrtc", toolkit.without_memo)) != before
    assert "-DNDEBUG" in tools.find_tools("nvrtc", toolkit.without_memo).device.flags("sm_80")


def test_key_follows_target_and_not_the_place_of_the_headers(monkeypatch, tmp_path):
    source = Operation("kernel_a").source()
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    assert key_of(source, "sm_80", found) != key_of(source, "sm_90", found)
    (tmp_path / "a place").symlink_to(toolkit.find_cutlass().root)
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "a place"))
    elsewhere = tools.find_tools("nvrtc", toolkit.without_memo)
    assert elsewhere.device.includes != found.device.includes
    assert key_of(source, "sm_80", elsewhere) == key_of(source, "sm_80", found)
