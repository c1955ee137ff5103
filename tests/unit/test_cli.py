"""The command line: what it prints, and with which code it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cached import REPORT
from command_line import Result, Run

from pycutlass import __version__, config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.toolkit import Finding, own_headers_digest


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
        monkeypatch.setattr(sys.modules["pycutlass.toolkit.diagnostics"], name, refuse)  # a function has its name, too
    monkeypatch.setattr("pycutlass._core.driver_problem", refuse)
    monkeypatch.setattr(KernelCache, "info", refuse)
    result = run("doctor")
    assert result.code == 1
    assert result.out.count("RuntimeError: something that nobody thought of") == 1
    assert result.out.count("  as CUTLASS headers") == 7
    assert "Traceback" not in result.out + result.err


def test_doctor_shows_a_host_compiler_that_is_no_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "'unclosed")
    result = run("doctor")
    assert result.code == 1
    assert "No closing quotation" in result.out
    assert "Traceback" not in result.out + result.err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PYCUTLASS_TARGET", "sm80", "Did you mean 'sm_80'?"),
        ("PYCUTLASS_TARGET", "sm_80a", "Did you mean 'sm_80'?"),
        ("PYCUTLASS_BACKEND", "nvc", "Did you mean nvcc?"),
        ("PYCUTLASS_JOBS", "many", "'many'"),
        ("PYCUTLASS_STRICT", "ture", "1, true, yes, on, 0, false, no, off; it is 'ture'"),
        ("PYCUTLASS_NO_COMPILE", "ture", "1, true, yes, on, 0, false, no, off; it is 'ture'"),
        ("CUDA_HOME", "/opt/none", "/opt/none"),
        ("CUTLASS_PATH", "/opt/none", "/opt/none"),
        ("CXX", "/opt/none/g++", "/opt/none/g++"),
    ],
)
def test_doctor_says_that_a_variable_is_wrong(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    result = run("doctor", "--json")
    wrong = [entry for entry in json.loads(result.out) if entry["remedy"] == f"correct {name} or unset it"]
    assert result.code == 1 and wrong
    for entry in wrong:
        assert not entry["ok"] and said in " ".join([entry["value"], *entry["tried"]])
    assert any(entry["required"] for entry in wrong)


def test_doctor_says_what_is_wrong_with_a_relative_cache(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", "relative/cache")
    [row] = [entry for entry in json.loads(run("doctor", "--json").out) if entry["name"] == "kernel cache"]
    assert "must be an absolute path, not relative/cache: correct or unset PYCUTLASS_CACHE_DIR. Kern" in row["remedy"]


def test_doctor_shows_choices_that_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycutlass.toolkit.findings", list)
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    assert [line.split() for line in run("doctor").out.splitlines()][1] == ["ok", "PYCUTLASS_TARGET", "sm_90a"]


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


def test_doctor_says_that_kernels_of_the_cache_need_no_compiler(
    run: Run, monkeypatch: pytest.MonkeyPatch, kernels: list[Artifact]
) -> None:
    """As on a machine that serves kernels from a bundle."""
    said = "in the cache can be used without a compiler"
    assert said not in doctor(run, monkeypatch, finding("g++", ok=False)).out  # they are of another PyCUTLASS
    fields = {"headers": own_headers_digest(), "target": "sm_80"}
    KernelCache().put(Artifact(make_key(fields), "ours", "sm_80", fields, b"x", b"", REPORT))
    result = doctor(run, monkeypatch, finding("nvcc", ok=True), finding("g++", ok=False))
    assert result.code == 1 and result.out.splitlines()[2].startswith("MISSING")
    assert result.out.splitlines()[-1].startswith("1 kernel in the cache can be used without a compiler. ")
    assert said not in doctor(run, monkeypatch, finding("g++", ok=True)).out
    wrong = Finding("NVRTC", False, "CUDA_HOME is /none", (), "correct CUDA_HOME or unset it", required=True)
    assert said not in doctor(run, monkeypatch, wrong).out  # with which none is used
    monkeypatch.setenv("PYCUTLASS_NO_COMPILE", "1")
    result = doctor(run, monkeypatch, finding("g++", ok=False))
    assert result.code == 0 and result.out.splitlines()[1].split()[:2] == ["absent", "g++"]
    assert "not needed: PYCUTLASS_NO_COMPILE is set" in result.out and said not in result.out
    assert doctor(run, monkeypatch, wrong).code == 1


def test_doctor_says_once_what_stops_several(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/none")
    result = run("doctor")
    assert result.code == 1
    assert result.out.count("/opt/none") == 1 and result.out.count("orrect ") == 1
    rows = {line.split()[1]: line for line in result.out.splitlines() if line.startswith(("absent", "MISSING"))}
    assert "correct CUDA_HOME or unset it" in rows["nvcc"]
    assert rows["NVRTC"].split() == ["MISSING", "NVRTC", "as", "nvcc"]
    found = {entry["name"]: entry["value"] for entry in json.loads(run("doctor", "--json").out)}
    assert found["nvcc"] == found["NVRTC"]


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


@pytest.mark.parametrize("command", [["env"], ["cache", "info"], ["doctor"], ["--help"], ["burn"]], ids=" ".join)
def test_nothing_of_the_command_line_waits_for_rich(command: list[str], tmp_path: Path) -> None:
    """It takes longer to import than the whole program, and only a build that is watched shows a bar."""
    program = f"""if True:
        import sys
        from pycutlass.cli import main

        sys.argv = ["pycutlass", *{command}]
        try:
            main()
        except SystemExit:
            pass
        else:
            sys.exit("main always exits")
        sys.exit("rich was imported" if "rich" in sys.modules else 0)
    """
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYCUTLASS_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ | paths, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


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
