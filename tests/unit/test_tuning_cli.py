"""``pycutlass tune`` and ``pycutlass profile`` on a machine without a GPU, and what they would print on one."""

from __future__ import annotations

import csv
import dataclasses
import json
from typing import Any

import pytest
from command_line import Run, runner
from tuned import GPU, PROBLEM, Instantly, contestants

from pycutlass.cli import tuning
from pycutlass.tuning import ProblemReport, TuningReport, conv2d_problem_of, group_problem_of, problem_of
from pycutlass.tuning.vendor import Vendor


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
        assert "--compile-only" in err


@pytest.mark.usefixtures("never")
def test_what_is_wrong_is_said_first(run, problems, tmp_path):
    code, _, err = run("tune", tmp_path / "none.csv")
    assert code == 1 and "cannot be read as a list of problems" in err
    code, _, err = run("profile", "--m", 64, "--n", 64, "--k", 64, "--dtype", "flaot16")
    assert code == 1 and "Did you mean" in err
    code, _, err = run("profile", "--m", 64, "--n", 64, "--k", 64, "--budget", "soon")
    assert code == 1 and "budget must be seconds" in err
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("64 x")
    code, _, err = run("profile", "--problem-sizes-file", sizes, "--n", 64, "--k", 64)
    assert code == 1 and f"the sizes in {sizes} must be M or MxNxK of each product" in err
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


@pytest.mark.parametrize("command", ["tune", "profile"])
def test_options_of_the_tuner(run, problems, monkeypatch, tmp_path, command):
    asked: list[Any] = []

    def tuned(given: Any, budget: str, **named: Any) -> TuningReport:
        asked.append(named["options"])
        return report_of(10.0)

    monkeypatch.setattr(tuning, "tune", tuned)
    monkeypatch.setattr(tuning.device, "require", lambda: None)
    problem = [problems] if command == "tune" else ["--m", 16, "--n", 16, "--k", 16]
    assert run(command, *problem).code == 0
    further = "--no-multiprocessing", "--profile-all-alignments", "--threads", 3, "--tmp-dir", tmp_path
    assert run(command, *problem, *further).code == 0
    usual, options = asked
    assert (usual.jobs, usual.profile_all_alignments, usual.tmp_dir) == (None, False, None)
    assert (options.jobs, options.profile_all_alignments, options.tmp_dir) == (1, True, tmp_path)
    assert options.threads == 3


@pytest.fixture
def profiled(monkeypatch) -> list[Any]:
    """Have whatever is to be profiled be measured at once, with cuBLAS; return what was asked."""
    asked: list[Any] = []

    def tuned(given: Any, budget: str, **named: Any) -> TuningReport:
        asked.append((given, named["options"]))
        report = report_of(10.0, 20.0)[0]
        return TuningReport((dataclasses.replace(report, vendor=Vendor("cuBLAS", [12.0] * 5, "")),))

    monkeypatch.setattr(tuning, "tune", tuned)
    monkeypatch.setattr(tuning.device, "require", lambda: None)
    return asked


SIZE = ("--m", 1024, "--n", 1024, "--k", 1024)


def test_a_profile_has_all_candidates_beside_cublas(run, profiled):
    code, out, _ = run("profile", *SIZE)
    ((problem, options),) = profiled
    assert problem == problem_of(1024, 1024, 1024)
    assert code == 0 and options.most_candidates > 1000 and options.vendor
    _, titles, cublas, first, second, remark = out.splitlines()
    assert titles.endswith("  % of cuBLAS")
    assert cublas.split()[:4] == ["cuBLAS,", "by", "torch", "12.00"] and cublas.endswith("100")
    assert first.split()[-1] == "120" and second.split()[-1] == "60"
    assert remark == "cuBLAS, called by torch in the same rounds, computes the same product"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--n", 2, "--h", 8, "--w", 9, "--c", 16, "--k", 24, "--r", 3, "--s", 3, "--pad", "1x2", "--stride", 2),
         lambda: conv2d_problem_of(2, 8, 9, 16, 24, 3, 3, padding=(1, 2), stride=2)),
        (("--n", 2, "--h", 8, "--w", 9, "--c", 16, "--k", 24, "--r", 3, "--s", 3, "--conv-kind", "wgrad"),
         lambda: conv2d_problem_of(2, 8, 9, 16, 24, 3, 3, "wgrad")),
        (("--problem-sizes", "64,2*8", "--n", 64, "--k", 128, "--dtype", "bfloat16"),
         lambda: group_problem_of([64, 8, 8], 64, 128, dtype="bfloat16")),
        ((*SIZE, "--batch", 3, "--epilogue", "gelu", "--source", "bias"),
         lambda: problem_of(1024, 1024, 1024, 3, epilogue="gelu", source="bias")),
    ],
)  # fmt: skip
def test_a_profile_is_of_any_family(run, profiled, options, problem):
    assert run("profile", *options)[0] == 0
    assert profiled[0][0] == problem()


def test_the_sizes_of_a_group_may_be_in_a_file(run, profiled, tmp_path):
    file = tmp_path / "sizes.txt"
    file.write_text("64x8x16\n8x8x16\n")
    assert run("profile", "--problem-sizes-file", file)[0] == 0
    assert profiled[0][0] == group_problem_of([(64, 8, 16), (8, 8, 16)])
    code, _, err = run("profile", "--problem-sizes-file", tmp_path / "none.txt")
    assert code == 1 and "none.txt cannot be read as a list of problem sizes: No such file" in err
    code, _, err = run("profile", "--problem-sizes-file", file, "--problem-sizes", "8")
    assert code == 2 and "are both given: leave one out" in err


@pytest.mark.usefixtures("never")
def test_options_that_make_no_problem_say_which_do(run):
    for options, said in (
        (
            ("--m", 8),
            "GEMMs need --n, --k too (convolutions have --n, --h, --w, --c, --k, --r, --s; groups have --prob",
        ),
        (("--h", 8), "convolutions need --n, --w, --c, --k, --r, --s too"),
        ((*SIZE, "--pad", 1), "GEMMs have no --pad: leave it out; they have --m, --n, --k, --batch, --layout"),
        ((*SIZE, "--conv-kind", "fprop"), "GEMMs have no --conv-kind"),
        (("--problem-sizes", "8,x", "--n", 8, "--k", 8), "--problem-sizes must be M or MxNxK of each product"),
    ):
        code, out, err = run("profile", *options)
        assert (code, out) == (1, "") and said in err


def test_json_and_csv(run, profiled, problems):
    code, out, _ = run("profile", *SIZE, "--json")
    rows = json.loads(out)
    assert code == 0 and rows[0]["kernel"] == "cuBLAS" and len(rows) == 3
    assert rows[1]["us"] == 10.0 and rows[1]["vendor_speed"] == 1.2 and rows[0]["vendor_speed"] == 1.0
    assert rows[1]["gflops"] == pytest.approx(2 * 1024**3 / 1e4) and rows[1]["status"] == "ok"
    code, out, _ = run("profile", *SIZE, "--csv")
    listed = list(csv.DictReader(out.splitlines()))
    assert code == 0 and [row["kernel"] for row in listed] == [row["kernel"] for row in rows]
    assert float(listed[2]["us"]) == 20.0 and listed[0]["predicted_us"] == ""
    assert run("tune", problems, "--json")[0] == 0
    for command in (("profile", *SIZE), ("tune", problems)):
        code, _, err = run(*command, "--json", "--csv")
        assert code == 2 and "--json and --csv are both given: leave one out" in err
    code, _, err = run("tune", problems, "--compile-only", "--csv")
    assert code == 2 and "--compile-only measures nothing that --json or --csv could print" in err


def test_where_cublas_is_absent_the_reason_is_said(run, monkeypatch):
    def tuned(given: Any, budget: str, **named: Any) -> TuningReport:
        report = report_of(10.0)[0]
        vendor = Vendor("cuBLAS", [], "it is called by torch, which is not installed")
        return TuningReport((dataclasses.replace(report, vendor=vendor),))

    monkeypatch.setattr(tuning, "tune", tuned)
    monkeypatch.setattr(tuning.device, "require", lambda: None)
    code, out, _ = run("profile", *SIZE)
    last = "cuBLAS is not in the table: it is called by torch, which is not installed"
    assert code == 0 and out.splitlines()[-1] == last and "% of cuBLAS" not in out
    absent, measured, _ = json.loads(run("profile", *SIZE, "--json")[1])
    assert absent["status"] == "absent" and "not installed" in absent["reason"] and measured["vendor_speed"] is None


def test_nothing_measured_is_an_error(run, problems, monkeypatch):
    monkeypatch.setattr(tuning, "tune", lambda *given, **named: report_of())
    monkeypatch.setattr(tuning.device, "require", lambda: None)
    code, _, err = run("tune", problems)
    assert code == 1 and "nothing was measured: give more time with --budget" in err
