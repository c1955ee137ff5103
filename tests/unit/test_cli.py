"""The command line: what it prints, and with which code it ends."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from cached import REPORT

from pycutlass import __version__, cli, config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.toolkit import Finding


class Result(NamedTuple):
    code: int | str | None
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command line on a cache of its own; its tables are wide enough for one line per row."""
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "400")

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
    ("size", "left"), [("1GiB", 3), ("0.1 MB", 2), ("80kib", 2), ("79 KiB", 2), ("41000", 1), ("41kB", 1), ("0", 0)]
)
def test_prune_keeps_what_fits(run: Run, kernels: list[Artifact], size: str, left: int) -> None:
    result = run("cache", "prune", "--max-size", size)
    assert result.code == 0
    assert f"{3 - left} kernels deleted" in result.out
    assert len(KernelCache().entries()) == left


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
