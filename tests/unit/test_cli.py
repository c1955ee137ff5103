"""The command line: what it prints, and with which code it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cached import REPORT
from hypothesis import given
from hypothesis import strategies as st

from pycutlass import __version__, cli, config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.cli.table import folded, table
from pycutlass.toolkit import Finding


class Result(NamedTuple):
    code: int | str | None
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command line on a cache of its own."""
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["pycutlass", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Result(end.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def kernels(run: Run) -> list[Artifact]:
    """Put three kernels into the cache of the command line."""
    cache, made = KernelCache(), []
    for number, target in enumerate(["sm_80", "sm_90a", "sm_90a"]):
        fields = {"kernel": str(number), "target": target}
        made.append(Artifact(make_key(fields), f"gemm_[{number}]", target, fields, os.urandom(40_000), b"", REPORT))
        cache.put(made[-1])
    cache.close()
    return made


def test_ls_lists_kernels(run: Run, kernels: list[Artifact]) -> None:
    result = run("cache", "ls")
    assert result.code == 0
    header, *lines = result.out.splitlines()
    assert header.split() == ["key", "kernel", "target", "size", "built", "used"]
    assert len(lines) == 3
    for line, kernel in zip(lines, reversed(kernels), strict=True):
        assert line.split()[:5] == [kernel.key[:12], kernel.name, kernel.target, "39.1", "KiB"]
        assert line.count("seconds ago") == 2


def test_ls_and_info_print_json(run: Run, kernels: list[Artifact], tmp_path: Path) -> None:
    listed = json.loads(run("cache", "ls", "--json").out)
    assert {entry["key"] for entry in listed} == {kernel.key for kernel in kernels}
    assert listed[0]["fields"] == kernels[2].fields
    assert listed[0]["report"] == REPORT
    facts = json.loads(run("cache", "info", "--json").out)
    assert facts["kernels"] == 3
    assert facts["directory"] == str(tmp_path / "cache")
    assert facts["kernel_bytes"] == sum(entry["size"] for entry in listed) < facts["file_bytes"]


def test_ls_and_info_of_a_new_cache(run: Run, tmp_path: Path) -> None:
    assert json.loads(run("cache", "ls", "--json").out) == []
    result = run("cache", "info")
    assert result.code == 0
    rows = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert rows["directory"].strip() == str(tmp_path / "cache")
    assert rows["state"].strip() == "read-write"


def test_rm_deletes_by_name_and_key(run: Run, kernels: list[Artifact]) -> None:
    result = run("cache", "rm", "gemm_[0]", kernels[1].key[:10])
    assert result.code == 0
    assert "2 kernels deleted" in result.out
    assert [entry.name for entry in KernelCache().entries()] == ["gemm_[2]"]
    assert run("cache", "rm", "--all").code == 0
    assert KernelCache().entries() == []


def test_rm_wants_to_know_what(run: Run, kernels: list[Artifact]) -> None:
    assert run("cache", "rm").code == 2
    assert run("cache", "rm", "--all", "gemm_[0]").code == 2
    result = run("cache", "rm", "gemm_[7]")
    assert result.code == 1
    assert result.err.startswith("pycutlass: no kernel in ")
    assert "'gemm_[7]'" in result.err
    assert len(KernelCache().entries()) == 3


@pytest.mark.parametrize(
    ("size", "left"),
    [("1GiB", 3), ("0.1 MB", 2), ("80kib", 2), ("79 KiB", 2), ("41000", 1), ("41kB", 1), ("0", 0), ("0.0", 0)],
)
def test_prune_keeps_what_fits(run: Run, kernels: list[Artifact], size: str, left: int) -> None:
    result = run("cache", "prune", "--max-size", size)
    assert result.code == 0
    assert f"{3 - left} kernels deleted" in result.out
    assert len(KernelCache().entries()) == left


@pytest.mark.parametrize("size", ["2", "1023", "0.5", "500"])
def test_prune_wants_a_unit(run: Run, kernels: list[Artifact], size: str) -> None:
    """``2`` was meant to be 2 GiB, and would delete everything."""
    result = run("cache", "prune", "--max-size", size)
    assert result.code == 2
    assert f"'{size}' has no unit" in result.err and f"{size}GiB" in result.err
    assert len(KernelCache().entries()) == 3


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5000, "9" * 400 + ".5 GiB"], ids=len)
def test_prune_takes_any_size(run: Run, kernels: list[Artifact], size: str) -> None:
    result = run("cache", "prune", "--max-size", size)
    assert (result.code, result.err) == (0, "")
    assert "0 kernels deleted" in result.out


@pytest.mark.parametrize("file", ["", ".", "/"])
def test_export_wants_a_file(run: Run, kernels: list[Artifact], file: str) -> None:
    result = run("cache", "export", file)
    assert result.code == 1
    assert result.err.startswith("pycutlass: the bundle cannot be written to ")
    assert "Give a file name" in result.err


def test_doctor_shows_a_host_compiler_that_is_no_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "'unclosed")
    result = run("doctor")
    assert result.code == 1
    assert "No closing quotation" in result.out
    assert "Traceback" not in result.out + result.err


@pytest.mark.parametrize("size", ["much", "3 XB", "-1", "", "1e3", "GiB"])
def test_prune_refuses_what_is_no_size(run: Run, kernels: list[Artifact], size: str) -> None:
    result = run("cache", "prune", f"--max-size={size}")
    assert result.code == 2
    assert "KiB" in result.err
    assert len(KernelCache().entries()) == 3


def test_export_and_import(run: Run, kernels: list[Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "kernels.zip"
    assert "1 kernels written" in run("cache", "export", bundle, "gemm_[1]").out
    assert "3 kernels written" in run("cache", "export", bundle).out
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "there"))
    assert run("cache", "import", bundle).out.startswith("3 kernels taken in, 0 were here")
    assert run("cache", "import", bundle).out.startswith("0 kernels taken in, 3 were here")
    assert KernelCache().find(kernel="1") == kernels[1]


def test_import_that_is_not_kept_is_a_failure(
    run: Run, kernels: list[Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "kernels.zip"
    run("cache", "export", bundle)
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(bundle))
    result = run("cache", "import", bundle)
    assert result.code == 1
    assert "3 kernels could not be written" in result.err


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_file_that_does_not_serve(run: Run, kernels: list[Artifact], tmp_path: Path, command: str) -> None:
    result = run("cache", command, tmp_path / "missing" / "kernels.zip")
    assert result.code == 1
    assert result.err.startswith("pycutlass: ")
    assert "kernels.zip" in result.err


def test_export_takes_prefix_and_target(run: Run, kernels: list[Artifact], tmp_path: Path) -> None:
    assert "2 kernels written" in run("cache", "export", tmp_path / "a.zip", "--target", "sm_90a").out
    assert "3 kernels written" in run("cache", "export", tmp_path / "a.zip", "--prefix", "gemm_").out
    result = run("cache", "export", tmp_path / "a.zip", "--prefix", "gemm_[0]", "--target", "sm_90a")
    assert result.code == 1 and "it has kernels for sm_80" in result.err


def test_verify_names_what_is_damaged(run: Run, kernels: list[Artifact], tmp_path: Path) -> None:
    assert run("cache", "verify") == Result(0, "3 kernels, all as they were built\n", "")
    connection = sqlite3.connect(tmp_path / "cache" / "kernels.db", isolation_level=None)
    connection.execute("UPDATE artifact_v1 SET cubin = x'00' WHERE key = ?", [kernels[1].key])
    connection.close()
    result = run("cache", "verify")
    assert result.code == 1
    assert kernels[1].key in result.err


def finding(name: str, *, ok: bool, required: bool = True) -> Finding:
    value, remedy = (f"/opt/{name}", "") if ok else ("not found", f"install [{name}]")
    return Finding(name, ok, value, ("PATH", "CUDA_HOME"), remedy, required)


def doctor(run: Run, monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> Result:
    monkeypatch.setattr("pycutlass.toolkit.findings", lambda: list(findings))
    return run("doctor")


def test_doctor_and_env_print_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = finding("g++", ok=False)
    monkeypatch.setattr("pycutlass.toolkit.findings", lambda: [finding("nvcc", ok=True), missing])
    result = run("doctor", "--json")
    listed = {entry["name"]: entry for entry in json.loads(result.out)}
    assert result.code == 1 and set(listed) == {"nvcc", "g++", "kernel cache"}
    assert listed["g++"] == {**vars(missing), "tried": ["PATH", "CUDA_HOME"]}
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    monkeypatch.delenv("CXX", raising=False)
    listed = {entry["name"]: entry for entry in json.loads(run("env", "--json").out)}
    assert list(listed) == [variable.name for variable in config.VARIABLES]
    assert (listed["PYCUTLASS_TARGET"]["value"], listed["CXX"]["value"]) == ("sm_90a", None)


def test_doctor_never_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("something that nobody thought of")

    for name in ("search_cutlass", "search_nvcc", "search_nvrtc", "search_host_compiler", "find_tool"):
        monkeypatch.setattr(sys.modules["pycutlass.toolkit.findings"], name, refuse)  # a function has its name, too
    monkeypatch.setattr("pycutlass._core.driver_problem", refuse)
    monkeypatch.setattr(KernelCache, "info", refuse)
    result = run("doctor")
    assert result.code == 1
    assert result.out.count("RuntimeError: something that nobody thought of") == 8
    assert "Traceback" not in result.out + result.err


def test_doctor_is_content(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = finding("GPU", ok=False, required=False)
    result = doctor(run, monkeypatch, finding("nvcc", ok=True), absent)
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[1] == ["ok", "nvcc", "/opt/nvcc"]
    assert lines[2] == ["absent", "GPU", "not", "found", "install", "[GPU]"]
    assert lines[3] == ["tried:", "PATH,", "CUDA_HOME"]
    assert lines[4][:3] == ["ok", "kernel", "cache"]


def test_doctor_fails_if_something_required_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(run, monkeypatch, finding("nvcc", ok=True), finding("g++", ok=False))
    assert result.code == 1
    assert result.out.splitlines()[2].split() == ["MISSING", "g++", "not", "found", "install", "[g++]"]


def test_doctor_speaks_of_a_cache_in_memory(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    result = doctor(run, monkeypatch)
    assert result.code == 0
    assert result.out.splitlines()[1].startswith("absent")
    assert "memory only" in result.out
    assert "every process" in result.out


def test_doctor_examines_this_machine(run: Run) -> None:
    result = run("doctor")
    rows = [line.split() for line in result.out.splitlines() if line.startswith(("ok", "absent", "MISSING"))]
    assert {"CUTLASS", "nvcc", "NVRTC", "host", "kernel"} <= {row[1] for row in rows}
    assert result.code == int("MISSING" in result.out)


def test_env_shows_every_variable(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    lines = run("env").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [variable.name for variable in config.VARIABLES]
    by_name = {line.split()[0]: line for line in lines}
    assert " sm_90a " in by_name["PYCUTLASS_TARGET"]
    assert str(tmp_path / "cache") in by_name["PYCUTLASS_CACHE_DIR"]


def test_without_arguments_it_helps(run: Run) -> None:
    for arguments in ([], ["cache"]):
        result = run(*arguments)
        assert "Usage: pycutlass" in result.out + result.err


def test_an_unknown_command_is_an_error(run: Run) -> None:
    assert run("cache", "burn").code == 2


def test_it_runs_as_a_module() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-m", "pycutlass", "--version"], env=environment, capture_output=True)
    assert (ended.returncode, ended.stdout.decode(), ended.stderr) == (0, f"pycutlass {__version__}\n", b"")


def test_tables_are_made_only_where_they_are_shown() -> None:
    program = "import sys, pycutlass.cli; sys.exit('rich' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


# Looking at a kernel

SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E R2, [R4.64] ;
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/               @P1 HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0040*/             @UP0 UIADD3 UR4, UR4, 0x1, URZ ;
"""


@pytest.fixture
def inspected(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A kernel with a source, and a disassembler that says the same of every kernel."""
    (tmp_path / "nvdisasm").write_text(f"#!/bin/sh\ncat <<'END'\n{SASS}END\n")
    (tmp_path / "nvdisasm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = REPORT | {"registers": 168, "spill_store_bytes": 24, "source": "// the source\nint x;\n"}
    name = "cutlass_tensorop_f16_s16816gemm_f16_128x128_32x3_tn_align8_0123456789ab"
    fields = {"kernel": "x", "target": "sm_80"}
    artifact = Artifact(make_key(fields), name, "sm_80", fields, b"\x7fELF", b"", report)
    KernelCache().put(artifact)
    return artifact


def test_inspect_shows_what_a_kernel_consists_of(run: Run, inspected: Artifact) -> None:
    for selector in (inspected.name, inspected.key[:8]):
        result = run("inspect", selector)
        assert result.code == 0
        rows = dict(re.split(r"  +", line, maxsplit=1) for line in result.out.partition("\n\n")[0].splitlines())
        assert (rows["stages"], rows["registers"], rows["spill store bytes"]) == ("3", "168", "24")
        assert rows["instructions"] == "5: HMMA 2, MOV 1, LDG 1, UIADD3 1"
        assert rows["warnings"] == "a warning"
        assert result.out.endswith("\n// the source\nint x;\n")
    assert list(Path(tempfile.gettempdir()).glob("pycutlass*")) == []


def test_inspect_prints_json(run: Run, inspected: Artifact) -> None:
    (facts,) = json.loads(run("inspect", inspected.name, "--json").out)
    assert facts["source"] == "// the source\nint x;\n" and "source" not in facts["report"]
    assert facts["instructions"] == {"HMMA": 2, "MOV": 1, "LDG": 1, "UIADD3": 1}
    assert facts["fields"] == inspected.fields


def test_inspect_without_a_disassembler_or_a_source(
    run: Run, kernels: list[Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pycutlass.toolkit.disassembly.find_tool", lambda name, memo: None)
    result = run("inspect", kernels[0].key[:12])
    assert result.code == 0
    assert "neither nvdisasm nor cuobjdump" in result.out and "Its source was not kept" in result.out
    assert run("inspect", "nothing").code == 1


def test_looking_at_a_kernel_is_no_use_of_it(run: Run, inspected: Artifact) -> None:
    before = KernelCache().entries()
    run("inspect", inspected.name)
    assert KernelCache().entries() == before


# Where the output goes


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **options.pop("env", {})}
    line = [sys.executable, "-m", "pycutlass", *map(str, arguments)]
    return subprocess.run(line, env=environment, text=True, check=False, **{"stderr": subprocess.PIPE, **options})


@pytest.mark.parametrize(
    "arguments", [("env",), ("cache", "ls"), ("doctor",), ("cache", "info", "--json"), ("--help",)]
)
def test_a_full_disk_is_said_in_a_sentence(run: Run, kernels: list[Artifact], arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = command(*arguments, stdout=full)
        assert (done.returncode, done.stderr) == (
            1,
            "pycutlass: not everything could be written: No space left on device\n",
        )
        assert command(*arguments, stdout=full, stderr=full).returncode == 1


def test_a_reader_that_has_seen_enough_is_no_error(run: Run, kernels: list[Artifact]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = command("env", stdout=write)
    os.close(write)
    assert done.returncode == 1 and done.stderr == ""


def test_output_that_is_closed(run: Run) -> None:
    line = f'"{sys.executable}" -m pycutlass env >&-'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_path_that_the_output_cannot_show(run: Run, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    for encoding in ("ascii", "utf-8"):
        env = {"PYCUTLASS_CACHE_DIR": odd, "PYTHONIOENCODING": encoding}
        for arguments in (("cache", "info"), ("doctor",), ("env",)):
            done = command(*arguments, stdout=subprocess.PIPE, env=env)
            assert "Traceback" not in done.stderr and "caf" in done.stdout


def test_a_pipe_gets_whole_lines_without_styles(run: Run, tmp_path: Path) -> None:
    env = {"PYCUTLASS_CACHE_DIR": str(tmp_path / ("long" * 40)), "COLUMNS": "40", "FORCE_COLOR": "1"}
    for arguments in (("cache", "info"), ("doctor",), ("env",)):
        done = command(*arguments, stdout=subprocess.PIPE, env=env)
        assert str(tmp_path / ("long" * 40)) in done.stdout
        assert "\x1b" not in done.stdout


def test_a_terminal_gets_lines_that_fit(run: Run, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 70, 0, 0))
    env = {"PYCUTLASS_CACHE_DIR": str(tmp_path / "a-directory" / "and-another-one" / "cache"), "COLUMNS": ""}
    done = command("doctor", stdout=theirs, env=env)
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := os.read(ours, 65536):
            text += part
    os.close(ours)
    lines = text.decode().splitlines()
    assert done.returncode in (0, 1) and len(lines) > 10
    assert max(map(len, lines)) <= 70


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("/usr/local/cuda/include", 12, ["/usr/local/", "cuda/include"]),
        ("in /usr/local/cuda/include here", 14, ["in /usr/local/", "cuda/include", "here"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("a\nb", 4, ["a", "b"]),
        ("", 4, [""]),
        ("x" * 5 + " " + "y" * 9, 5, ["xxxxx", "yyyyy", "yyyy"]),
        ("nvidia-cuda-nvrtc==13.0.*", 12, ["nvidia-cuda-", "nvrtc==13.0.", "*"]),
    ],
)
def test_long_words_are_folded_behind_separators(text: str, width: int, lines: list[str]) -> None:
    assert folded(text, width) == lines


@given(st.text(st.sampled_from("ab/_- "), max_size=60), st.integers(1, 30))
def test_folding_loses_nothing_and_fits(text: str, width: int) -> None:
    lines = folded(text, width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(st.lists(st.tuples(*[st.text(st.sampled_from("ab/ "), max_size=50)] * 3), max_size=4), st.integers(56, 100))
def test_a_table_fits_its_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    assert max((len(line) for line in table(("one", "two", "three"), rows, width)), default=0) <= width
    assert len(table(("one", "two", "three"), rows, None)) == 1 + sum(max(map(_lines, row)) for row in rows)


def _lines(cell: str) -> int:
    return max(1, len(cell.splitlines()))
