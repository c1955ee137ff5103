"""tools/gpu_results.py: what it reads from the parts that it runs, and the page that it writes."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks and the tools are not installed with the package

from benchmarks import (  # noqa: E402
    common,
)
from tools import gpu_page, gpu_plot, gpu_reports  # noqa: E402
from tools import gpu_results as tool  # noqa: E402

JUNIT = """<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
<testcase classname="tests.gpu.test_gemm" name="test_good" time="0.1"/>
<testcase classname="tests.gpu.test_gemm" name="test_bad" time="0.1">
<failure message="assert 1 == 2&#10;more">x</failure></testcase>
<testcase classname="tests.gpu.test_gemm" name="test_broken" time="0.1"><error message="no kernel">x</error></testcase>
<testcase classname="tests.gpu.test_two" name="test_two" time="0">
<skipped type="pytest.skip" message="needs two GPUs">x</skipped></testcase></testsuite></testsuites>"""

MEMCHECK = """========= COMPUTE-SANITIZER
tests/gpu/test_gemm.py ....
========= Invalid __global__ read of size 16 bytes
=========     at gemm+0x10
========= ERROR SUMMARY: 1 error
"""


def result_of_benchmark(name="imports", **changes):
    return {
        "name": name,
        "title": "Imports",
        "about": "About.",
        "complete": True,
        "environment": {"date": "2026-01-02", "commit": "unknown", "GPU": "none"},
        "seconds": 3.0,
        "checks": [{"what": "w", "value": 1.0, "limit": 2.0, "unit": "ms", "at_least": False, "passed": True}],
        "tables": [],
        "failures": [],
        "raw": {},
        "run": {"command": "c", "returncode": 0, "timed_out": False, "seconds": 3.0},
        "output": [],
        **changes,
    }


def result_of_tests(name="tests", **changes):
    counts = {"passed": 3, "failed": 0, "errors": 0, "skipped": 0, "failures": [], "skips": []}
    return {
        **{key: result_of_benchmark()[key] for key in ("environment", "run", "output")},
        "name": name,
        "title": name,
        "tests": counts,
        **changes,
    }


def test_the_page_tells_which_part_was_run_on_another_machine():
    small, large = ({"date": "2026-01-02", "commit": "abc", "GPU": "H200", "CPU": cpu} for cpu in ("16", "32"))
    later = {**large, "date": "2026-01-03", "commit": "def"}
    results = {name: result_of_benchmark(name, environment=small) for name in ("launch", "imports")}
    alike = gpu_page.render(results, {"launch": "Launch", "imports": "Imports"})
    assert "CPU 16" not in alike
    results["tests"] = result_of_tests(environment=later)
    page = gpu_page.render(results, {"launch": "Launch", "imports": "Imports", "tests": "Tests"})
    assert "| date | 2026-01-03 |\n| commit | def |\n| GPU | H200 |\n| CPU | 16 |" in page
    assert "\n- tests: CPU 32\n" in page
    assert page.count("CPU 32") == 1


def test_junit_counts_and_reasons():
    found = gpu_reports.read_junit(JUNIT)
    assert (found["passed"], found["failed"], found["errors"], found["skipped"]) == (1, 1, 1, 1)
    assert found["failures"] == [
        ["tests.gpu.test_gemm::test_bad", "assert 1 == 2"],
        ["tests.gpu.test_gemm::test_broken", "no kernel"],
    ]
    assert found["skips"] == [["tests.gpu.test_two::test_two", "needs two GPUs"]]


def test_pytest_counts_win():
    """Where pytest is interrupted, the junit file has the test that was running as if it had passed."""
    log = "collected 9 items\n=== 1 failed, 5 passed, 2 skipped, 1 error in 7.67s ===\n"
    assert gpu_reports.read_counts(log) == {"passed": 5, "failed": 1, "errors": 1, "skipped": 2}
    assert gpu_reports.read_counts("========= ERROR SUMMARY: 3 errors\n") == {}
    assert gpu_reports.read_counts("=== 182 skipped in 123.71s (0:02:03) ===")["skipped"] == 182


def test_sanitizer_summary():
    found = gpu_reports.read_sanitizer(MEMCHECK)
    assert found["errors"] == 1
    assert found["summaries"] == ["ERROR SUMMARY: 1 error"]
    assert found["found"] == ["========= Invalid __global__ read of size 16 bytes", "=========     at gemm+0x10"]
    assert gpu_reports.read_sanitizer("==================== 4 passed in 1.00s ====================\n")["found"] == []
    hazards = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert gpu_reports.read_sanitizer(hazards)["errors"] == 0
    assert gpu_reports.read_sanitizer("killed")["errors"] is None


INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 16 bytes
=========     at void at::native::elementwise_kernel<4>(int)+0x90
=========     by thread (0,0,0) in block (0,0,0)
========= Uninitialized __global__ memory read of size 8 bytes
=========     at cutlass_tensorop_f16_s16816gemm_0123456789ab+0x1f0
=========     by thread (3,0,0) in block (0,0,0)
========= ERROR SUMMARY: 2 errors
"""


def test_initcheck_counts_our_kernels():
    found = gpu_reports.read_initcheck(INITCHECK)
    assert found["errors"] == 1
    assert "1 uninitialized reads by our kernels, 1 by" in found["summaries"][0]
    assert found["found"][:2] == [
        "========= Uninitialized __global__ memory read of size 8 bytes",
        "=========     at cutlass_tensorop_f16_s16816gemm_0123456789ab+0x1f0",
    ]
    assert gpu_reports.read_initcheck("========= ERROR SUMMARY: 0 errors\n")["errors"] == 0
    assert gpu_reports.read_initcheck("killed")["errors"] is None


def render(results):
    return gpu_page.render(results, {part.name: part.title for part in tool.PARTS})


RUN = result_of_benchmark()["run"]
COUNTS = result_of_tests()["tests"]


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (result_of_benchmark(), "passed"),
        (result_of_benchmark(complete=False), "did not finish"),
        (result_of_benchmark(failures=[{"part": "p", "error": "e", "traceback": "t"}]), "parts failed: 1"),
        (result_of_benchmark(checks=[{"passed": False}]), "limits missed: 1"),
        (result_of_benchmark(run={**RUN, "timed_out": True}), "interrupted after 3 s"),
        (result_of_benchmark(run={**RUN, "returncode": 1}), "failed"),
        (result_of_tests(), "passed"),
        (result_of_tests(tests=None), "did not run"),
        (result_of_tests(tests={**COUNTS, "passed": 0}), "no test ran"),
        (result_of_tests(tests={**COUNTS, "errors": 2}), "tests failed: 2"),
        (result_of_tests(run={**RUN, "returncode": 3}), "ended with 3"),
        (result_of_tests("sanitizer", sanitizer={"errors": 0, "summaries": ["s"], "found": []}), "passed"),
        (result_of_tests("sanitizer", sanitizer={"errors": 4, "summaries": ["s"], "found": []}), "errors found: 4"),
        (
            result_of_tests("sanitizer", sanitizer={"errors": None, "summaries": [], "found": []}),
            "no summary of the sanitizer",
        ),
    ],
)
def test_outcomes(result, outcome):
    assert gpu_page.outcome(result) == outcome


def test_the_page_shows_what_failed_and_what_was_not_run():
    failure = {"part": "hopper", "error": "BenchmarkError: wrong", "traceback": "Traceback\nBenchmarkError: wrong"}
    counts = {
        **COUNTS,
        "failed": 1,
        "failures": [["test_a", "assert False"]],
        "skips": [["test_b", "no"], ["test_c", "no"]],
    }
    page = render({"tests": result_of_tests(tests=counts), "imports": result_of_benchmark(failures=[failure])})
    assert "| tests | 3 | 1 | 0 | 0 | 3 |  |" in page
    assert "- assert False: `test_a`" in page
    assert "- no: `test_b`, `test_c`" in page
    assert "- Imports, hopper: `BenchmarkError: wrong`" in page
    assert "| Throughput | not run |  |  |  |" in page
    assert "| w | 1 ms | at most 2 ms | reached |" in page


def test_an_empty_page():
    assert "Nothing has been run yet." in render({})


def test_results_of_separate_calls_are_merged(tmp_path):
    page, first, second = tmp_path / "page.md", tmp_path / "first", tmp_path / "second"

    def take_in(out):
        return tool.main(["--out", str(out), "--render", "--page", str(page), "--commit", "abc"])

    common.write_json(first / "imports.json", result_of_benchmark())
    assert take_in(first) == 0
    common.write_json(second / "tests.json", result_of_tests())
    assert take_in(second) == 0
    merged = tool.read_results(tmp_path / "page")
    assert list(merged) == ["tests", "imports"]
    assert merged["tests"]["environment"]["commit"] == "abc"
    assert "| GPU tests | passed |" in page.read_text()
    assert "| Imports | passed |" in page.read_text()
    common.write_json(second / "tests.json", result_of_tests(tests=None))
    assert take_in(second) == 1
    assert "| GPU tests | **did not run** |" in page.read_text()


def test_samples_are_not_kept_but_for_figures(tmp_path):
    raw = {"us": [1.0] * 1000, gpu_plot.SPEEDS: [{"batch": 32}]}
    common.write_json(tmp_path / "out" / "conv.json", result_of_benchmark("conv", raw=raw))
    common.write_json(tmp_path / "out" / "imports.json", result_of_benchmark(raw={"us": [1.0]}))
    tool.keep_results(tmp_path / "out", tmp_path / "kept")
    kept = tool.read_results(tmp_path / "kept")
    assert kept["conv"]["raw"] == {gpu_plot.SPEEDS: [{"batch": 32}]}
    assert kept["imports"]["raw"] == {}
    assert json.loads((tmp_path / "out" / "conv.json").read_text())["raw"] == raw


def test_parts_run_in_order_of_importance():
    options = tool._options().parse_args(["--out", "x", "--only", "imports,tests"])
    assert options.only == ["tests", "imports"]
    with pytest.raises(SystemExit):
        tool._options().parse_args(["--out", "x", "--only", "nonsense"])


def test_without_time_nothing_is_started(tmp_path, capsys):
    arguments = ["--out", str(tmp_path), "--page", str(tmp_path / "page.md"), "--only", "imports", "--budget", "1"]
    assert tool.main(arguments) == 1
    assert "imports: not started" in capsys.readouterr().out
    assert not (tmp_path / "imports.json").exists()


def run_tests(tmp_path, code, seconds=60.0):
    file = tmp_path / "test_trial.py"
    file.write_text(code)
    part = tool.Part("tests", "GPU tests", 60, ("-m", "pytest", str(file), "-p", "no:cacheprovider"), "tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # none of them is wanted, and some are slow to import
        return tool.run_part(part, tmp_path, seconds)


def test_tests_are_run_and_counted(tmp_path):
    result = run_tests(tmp_path, "def test_a(): pass\ndef test_b(): assert 1 == 2\n")
    assert (result["tests"]["passed"], result["tests"]["failed"]) == (1, 1)
    assert gpu_page.outcome(result) == "tests failed: 1"
    assert any("1 failed, 1 passed" in line for line in result["output"])
    assert json.loads((tmp_path / "tests.json").read_text()) == result
    assert str(tmp_path) not in result["run"]["command"]


@pytest.mark.parametrize("in_the_background", [False, True])
def test_a_part_that_takes_too_long_is_interrupted_and_says_so(tmp_path, in_the_background):
    """A shell's background jobs begin with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if in_the_background else signal.default_int_handler)
    try:
        check_that_it_is_interrupted(tmp_path)
        assert (signal.getsignal(signal.SIGINT) is signal.SIG_IGN) == in_the_background
    finally:
        signal.signal(signal.SIGINT, before)


def check_that_it_is_interrupted(tmp_path):
    common.write_json(tmp_path / "tests.json", result_of_tests())  # an earlier result, which must not survive
    result = run_tests(tmp_path, "import time\ndef test_a(): pass\ndef test_b(): time.sleep(50)\n", seconds=3)
    assert result["run"]["timed_out"]
    assert result["run"]["seconds"] < 40
    assert result["tests"]["passed"] == 1  # what was done before is known
    assert gpu_page.outcome(result).startswith("interrupted")
    assert json.loads((tmp_path / "tests.json").read_text())["run"]["timed_out"]


def test_a_benchmark_that_leaves_no_result_is_reported(tmp_path):
    part = tool.Part("imports", "Imports", 60, ("-c", "raise SystemExit('out of luck')"), "benchmark")
    result = tool.run_part(part, tmp_path, 60)
    assert gpu_page.outcome(result) == "did not finish"
    assert "out of luck" in render({"imports": result})


def test_the_sanitizer_that_is_missing_is_reported(tmp_path, monkeypatch):
    def missing():
        raise common.BenchmarkError("compute-sanitizer is not here")

    monkeypatch.setattr(tool, "_compute_sanitizer", missing)
    result = tool.run_part(tool._BY_NAME["sanitizer"], tmp_path, 60)
    assert gpu_page.outcome(result) == "did not run"
    assert "compute-sanitizer is not here" in render({"sanitizer": result})


def test_the_sanitizer_sees_each_tensor_by_itself(monkeypatch):
    monkeypatch.setattr(tool, "_compute_sanitizer", lambda: "compute-sanitizer")
    part = tool._BY_NAME["sanitizer"]
    command = tool._command(part, Path("out"), ["-k", "gemm"])
    assert command.words[:3] == ["compute-sanitizer", "--tool", "memcheck"]
    assert command.words[-2:] == ["-k", "gemm"]
    assert command.variables == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = tool._command(part, Path("out"), ["--caching-allocator"])
    assert command.variables == {}
    assert "--caching-allocator" not in command.words


def test_the_page_is_what_the_kept_results_say(tmp_path):
    page = tmp_path / tool.PAGE.name
    shutil.copytree(tool.PAGE.with_suffix(""), page.with_suffix(""))
    (tmp_path / "out").mkdir()
    # A page that says what failed is as true as one where nothing did: the exit status tells them apart.
    well = all(gpu_page.outcome(result) == "passed" for result in tool.read_results(page.with_suffix("")).values())
    assert tool.main(["--out", str(tmp_path / "out"), "--render", "--page", str(page)]) == (0 if well else 1)
    assert page.read_text() == tool.PAGE.read_text()
