"""``pycutlass tune`` and ``pycutlass profile`` on a machine without a GPU, and what they would print on one."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import Run, runner
from tuned import GPU, PROBLEM, Instantly, contestants

from pycutlass.cli import tuning
from pycutlass.tuning import ProblemReport, TuningReport


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Run:
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    return runner(monkeypatch, capsys)


@pytest.fixture
def problems(tmp_path):
    file = tmp_path / "problems.csv"
    file.write_text("m,n,k\n1024,1024,1024\n")
    return file


@pytest.fixture
def never(monkeypatch):
    def compiles(*given: Any) -> Any:
        raise AssertionError("something was compiled")

    monkeypatch.setattr("pycutlass.tuning.tuner._compiling", compiles)


@pytest.mark.usefixtures("never")
def test_without_a_gpu_nothing_is_compiled(run, problems):
    for command in (("tune", problems), ("profile", "--m", 64, "--n", 64, "--k", 64)):
        code, out, err = run(*command)
        assert (code, out) == (1, "") and err.startswith("pycutlass: no GPU can be used: ")


@pytest.mark.usefixtures("never")
def test_what_is_wrong_is_said_first(run, problems, tmp_path):
    code, _, err = run("tune", tmp_path / "none.csv")
    assert code == 1 and "cannot be read as a list of problems" in err
    code, _, err = run("profile", "--m", 64, "--n", 64, "--k", 64, "--dtype", "flaot16")
    assert code == 1 and "Did you mean" in err
    code, _, err = run("tune", problems, "--split-k-slices", "1,x")
    assert code == 2 and "--split-k-slices takes integers between commas" in err


@pytest.mark.parametrize("text", ["m,n,k\n1024,1024,1024\n", "n,h,w,c,k,r,s,padding\n8,56,56,64,64,3,3,1\n"])
def test_compile_only(run, problems, monkeypatch, text):
    problems.write_text(text)
    monkeypatch.setenv("PYCUTLASS_TARGET", "sm_90a")
    given: list[Any] = []

    def instantly(candidates: Any, target: str, options: Any, executor: Any) -> Instantly:
        given.append((len(candidates), target, options.jobs))
        return Instantly(candidates, broken=[2])

    monkeypatch.setattr("pycutlass.tuning.tuner._compiling", instantly)
    code, out, err = run("tune", problems, "--compile-only", "--candidates", 5, "--threads", 3)
    assert (code, out) == (0, "4 candidates in the cache, 1 did not compile\n")
    assert "it does not compile" in err and given == [(5, "sm_90", 3)]


@pytest.mark.usefixtures("never")
def test_compile_only_needs_a_target(run, problems):
    code, _, err = run("tune", problems, "--compile-only")
    assert code == 1 and "PYCUTLASS_TARGET" in err


def report_of(*medians: float) -> TuningReport:
    found = contestants(2)
    for each, median in zip(found, medians, strict=False):
        each.status, each.times = "ok", [median] * 5
    return TuningReport((ProblemReport(PROBLEM, GPU, tuple(found), 0, 1.5),))


def test_tables(run, problems, monkeypatch):
    asked: list[Any] = []

    def tuned(given: Any, budget: str, **named: Any) -> TuningReport:
        asked.append((given, budget, named["options"]))
        return report_of(10.0)

    monkeypatch.setattr(tuning, "tune", tuned)
    monkeypatch.setattr(tuning.device, "require", lambda: None)
    code, out, _ = run("tune", problems, "--budget", "5min", "--warm-l2", "--split-k-slices", "1,2", "--no-3xtf32")
    assert code == 0 and out.startswith("1024x1024x1024 f16 x f16 -> f16 on NVIDIA H200, 1.5 s\n")
    assert "10.00" in out and "214,748" in out and "not measured" in out
    ((given, budget, options),) = asked
    assert (len(given), budget) == (1, "5min")
    assert (options.cold_l2, options.split_k_slices, options.use_3xtf32) == (False, (1, 2), False)


def test_a_profile_has_all_candidates(run, monkeypatch):
    asked: list[Any] = []

    def tuned(given: Any, budget: str, **named: Any) -> TuningReport:
        asked.append(named["options"].most_candidates)
        return report_of(10.0, 20.0)

    monkeypatch.setattr(tuning, "tune", tuned)
    monkeypatch.setattr(tuning.device, "require", lambda: None)
    monkeypatch.setattr(tuning, "_cublas", lambda *given: 12.0)
    code, out, _ = run("profile", "--m", 1024, "--n", 1024, "--k", 1024)
    assert code == 0 and asked[0] > 1000
    assert "cuBLAS, by torch: 12.00 us" in out and "has 1.20 times its speed" in out


def test_nothing_measured_is_an_error(run, problems, monkeypatch):
    monkeypatch.setattr(tuning, "tune", lambda *given, **named: report_of())
    monkeypatch.setattr(tuning.device, "require", lambda: None)
    code, _, err = run("tune", problems)
    assert code == 1 and "nothing was measured: give more time with --budget" in err
