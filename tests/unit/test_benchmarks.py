"""The benchmarks and tools/gpu_results.py, as far as they need no GPU: statistics, pages, command lines, processes."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks and the tools are not installed with the package

from benchmarks import (  # noqa: E402
    builds,
    common,
    gemm,
    gemm_cases,
    imports,
    kernels,
    launch,
    native_gemms,
    problems,
    timing,
)
from benchmarks import compile as compiling  # noqa: E402
from pycutlass import GemmOperationGrouped, KernelSchedule, RasterOrder, device  # noqa: E402
from pycutlass.errors import ToolkitError  # noqa: E402
from tools import gpu_page  # noqa: E402
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


# Statistics


def test_summary_is_median_and_percentiles():
    summary = timing.summarize([float(value) for value in range(101)])
    assert (summary.median, summary.low, summary.high, summary.count) == (50, 10, 90, 101)
    assert summary.spread(0) == "10 - 90"


def test_summary_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing"):
        timing.summarize([])


def test_ratio_is_that_of_the_medians_and_its_spread_that_of_the_rounds():
    ratio, rounds = timing.median_ratio([1.0, 2.0, 4.0], [2.0, 3.0, 4.0])
    assert ratio == pytest.approx(1.5)
    assert rounds.median == pytest.approx(1.5)
    assert (rounds.low, rounds.high) == (pytest.approx(1.1), pytest.approx(1.9))


def test_nobody_is_always_first():
    assert [timing.rotated("abc", start)[0] for start in range(4)] == ["a", "b", "c", "a"]
    assert sorted(timing.rotated("abc", 2)) == ["a", "b", "c"]


def test_cycling_goes_on_where_it_stopped():
    seen: list[int] = []
    loop = timing.cycling([lambda number=number: seen.append(number) for number in range(3)])
    loop(2)
    loop(3)
    assert seen == [0, 1, 2, 0, 1]


def test_host_times_are_per_call_and_begin_with_an_empty_queue():
    events: list[str] = []

    def slow(calls: int) -> None:
        events.append("slow")
        time.sleep(0.001 * calls)

    times = timing.host_times(
        {"slow": slow, "fast": lambda calls: None}, lambda: events.append("wait"), calls=4, rounds=3
    )
    assert {name: len(series) for name, series in times.items()} == {"slow": 3, "fast": 3}
    assert min(times["slow"]) >= 1000 > min(times["fast"])
    position = [index for index, event in enumerate(events) if event == "slow"][1:]  # the first is the warm-up
    assert all(events[index - 1] == "wait" for index in position)


@pytest.mark.parametrize(
    ("set_bytes", "cache", "count"), [(10, 60, 12), (7, 60, 18), (400, 60, 1), (1, 60, 32)], ids=str
)
def test_input_sets_are_twice_the_cache(set_bytes, cache, count):
    assert problems.input_sets(set_bytes, cache) == count


# Results


@pytest.fixture
def report(tmp_path):
    return common.Report("trial", "A trial", "What it is about.", tmp_path)


def read(tmp_path):
    return json.loads((tmp_path / "trial.json").read_text())


def test_limits_from_above_and_below(report, tmp_path):
    report.check("time", 2.0, 3.0, "us")
    report.check("speed", 0.9, 0.96, "x", at_least=True)
    assert report.finish() == 1
    assert [check["passed"] for check in read(tmp_path)["checks"]] == [True, False]
    page = (tmp_path / "trial.md").read_text()
    assert "| time | 2 us | at most 3 us | reached |" in page
    assert "| speed | 0.900 x | at least 0.960 x | **missed** |" in page


def test_all_limits_kept_is_success(report):
    report.check("exactly the limit", 3.0, 3.0, "us")
    assert report.finish() == 0


def test_a_failing_part_is_reported_and_the_others_go_on(report, tmp_path, capsys):
    with report.part("breaks"):
        raise common.BenchmarkError(f"wrong result in {common.ROOT}/benchmarks")
    with report.part("works"):
        report.table("Numbers", ("a", "b"), [("1", "x | y")], "A note.")
    assert report.finish() == 1
    page = capsys.readouterr().out
    assert "### Failed: breaks" in page
    assert "wrong result in" in page
    assert f"{common.ROOT}/" not in page
    assert "| 1 | x \\| y |" in page
    assert read(tmp_path)["failures"][0]["part"] == "breaks"


def test_what_was_measured_before_an_interruption_is_kept(report, tmp_path):
    with report.part("first"):
        report.check("time", 2.0, 3.0, "us")
    with pytest.raises(KeyboardInterrupt), report.part("second"):
        raise KeyboardInterrupt
    assert len(read(tmp_path)["checks"]) == 1
    assert not read(tmp_path)["complete"]
    assert "Interrupted" in (tmp_path / "trial.md").read_text()


def test_a_quick_run_says_so(tmp_path):
    assert common.Report("trial", "A trial", "About.", tmp_path, quick=True).finish() == 0
    assert "not to be quoted" in (tmp_path / "trial.md").read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.0, "1"), (0.0312, "0.031"), (12.345, "12.35"), (123.45, "123.5"), (12345.6, "12,346")],
)
def test_numbers_have_about_four_digits(value, text):
    assert common.number(value) == text


def test_environment_is_all_text_and_has_the_versions():
    found = common.environment()
    assert all(isinstance(value, str) and value for value in found.values())
    assert {"date", "commit", "GPU", "driver", "torch", "CuPy", "PyCUTLASS", "CUTLASS"} <= set(found)


def test_a_child_imports_this_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("REMOVED", "1")
    variables = common.child_environment(ADDED="2", REMOVED=None)
    assert variables["ADDED"] == "2"
    assert "REMOVED" not in variables
    assert variables["PYTHONPATH"].split(":")[-1] == "/elsewhere"
    assert str(ROOT) in variables["PYTHONPATH"].split(":")


# Command lines


@pytest.mark.parametrize("main", [imports.main, compiling.main, launch.main, gemm.main, native_gemms.main])
def test_unknown_parts_are_refused(main, capsys):
    with pytest.raises(SystemExit):
        main(["--only", "nonsense"])
    assert "nonsense is none of" in capsys.readouterr().err


def test_dry_runs_name_the_kernels(capsys):
    assert gemm.main(["--dry", "--only", "cooperative"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 2  # one kernel in three raster orders, and the number of choices
    assert "_2x1_cooperative_" in listed[0]
    assert launch.main(["--dry"]) == 0  # compiles the loop in C
    assert "_2x1_pingpong_" in capsys.readouterr().out
    assert native_gemms.main(["--dry", "--only", "int8,grouped"]) == 0
    clamped, group = capsys.readouterr().out.splitlines()
    assert "_i16832gemm_s8_s8_128x256_64x3_" in clamped
    assert "gemm_grouped_" in group


def test_the_choices_of_a_shape_are_described_once():
    choices = gemm.shape_choices()
    assert len({choice.name for choice in choices}) == len(choices) == len(gemm.TILES) * len(gemm.SWIZZLES) * 2
    # The compiler leaves the kernel with the object that it was given.
    assert choices[0].operation is choices[1].operation
    same = gemm.Choice(KernelSchedule.Pingpong, (64, 128, 64), (1, 1), 8, RasterOrder.AlongM)
    assert any(choice.operation is same.operation for choice in choices)


def test_the_kernels_in_cpp_are_the_described_ones():
    """Tile, warps, stages and cluster in native/ are those of the operations that they are compared with."""
    ampere, hopper = kernels.COMPILED["ampere"](), kernels.COMPILED["hopper"]()
    text = (ROOT / "benchmarks" / "native" / "gemm_sm80.cu").read_text()
    for shape in (ampere.tile_description.threadblock_shape, ampere.tile_description.warp_shape):
        assert f"GemmShape<{', '.join(map(str, shape))}>" in text
    assert f"<{ampere.swizzle_size}>, {ampere.tile_description.stages}, 8, 8" in text
    text = (ROOT / "benchmarks" / "native" / "gemm_sm90.cu").read_text()
    for shape in (hopper.tile_description.threadblock_shape, hopper.tile_description.cluster_shape):
        assert f"cute::Shape<{', '.join(f'cute::_{extent}' for extent in shape)}>" in text
    assert hopper.tile_description.kernel_schedule is KernelSchedule.Cooperative


def test_the_command_of_the_comparison_makes_both_sides(tmp_path):
    try:
        command = builds.native_command("hopper", tmp_path / "out.so")
    except ToolkitError:
        pytest.skip("there is no nvcc")
    assert {"-shared", "-DNDEBUG", "-gencode=arch=compute_90a,code=sm_90a"} <= set(command)


# The same GEMMs in C++


@pytest.mark.parametrize("name", gemm_cases.CASES)
def test_a_kernel_in_cpp_is_told_what_the_operation_emits(name):
    operation = gemm_cases.CASES[name].operation
    macros, text = builds.definitions(operation), operation.emit()
    family = "grouped" if isinstance(operation, GemmOperationGrouped) else "universal"
    source = (ROOT / "benchmarks" / "native" / f"gemm_{family}_sm80.cu").read_text()
    assert all(re.search(rf"\b{macro}\b", source) for macro in macros)
    for operand in "AB":
        described = [macros[f"{field}_{operand}"] for field in ("ELEMENT", "LAYOUT", "ALIGNMENT")]
        assert f"Tensor<{', '.join(described)}>" in text
    assert f"Tensor<{macros['ELEMENT_C']}, {macros['LAYOUT_C']}, " in text
    assert f"{macros['ACCUMULATOR']}, {macros['OP_CLASS']}, cutlass::arch::Sm80," in text
    assert f"{macros['TILE']}, {macros['WARP']},\n    {macros['INSTRUCTION']},\n    {macros['EPILOGUE']},\n" in text
    assert f"{macros['SWIZZLE']}, {macros['STAGES']}, {macros['MATH']}>;" in text


def test_the_command_of_a_kernel_in_cpp(tmp_path):
    try:
        command = builds.same_command(gemm_cases.CASES["f16"].operation, tmp_path / "out.so", "90")
    except ToolkitError:
        pytest.skip("there is no nvcc")
    assert r"-DTILE=cutlass::gemm::GemmShape<128\, 128\, 32>" in command
    assert {"-shared", "-gencode=arch=compute_90,code=sm_90"} <= set(command)


def test_both_languages_agree_about_a_problem():
    source = (ROOT / "benchmarks" / "native" / "gemm_universal_sm80.cu").read_text()
    fields = re.search(r"struct Problem \{(.*?)\};", source, re.DOTALL)[1]
    assert re.findall(r"(\w+)(?:\[4\])?[,;]", fields) == [name for name, _ in builds.NativeProblem._fields_]
    assert builds.NativeProblem.lds.offset == 24 + 2 * 8 + 2 * 32


def small_operands(name):
    import torch

    case = gemm_cases.CASES[name]
    small = dataclasses.replace(case, size=(96, 64, 128), count=min(case.count, 3))
    return gemm_cases.Operands(small, torch.Generator().manual_seed(1))


UNIVERSAL = [name for name, case in gemm_cases.CASES.items() if isinstance(case, gemm_cases.Case)]


@pytest.mark.parametrize("name", UNIVERSAL)
def test_operands_and_reference_of_a_case(name):
    if device.available():
        pytest.skip("there is a GPU, for which the kernels would be compiled")
    operands = small_operands(name)
    operands.check({"on the host": [operands.pycutlass()]})
    with pytest.raises(common.BenchmarkError, match=r"nothing, .* is wrong"):
        operands.check({"nothing": [lambda: None]})


def test_the_problem_that_the_kernel_in_cpp_gets():
    batched, biased = small_operands("batched").native(), small_operands("bias-gelu").native()
    assert (batched.mode, batched.m, batched.n, batched.k, batched.count) == (2, 96, 64, 128, 3)
    assert list(batched.lds) == [96, 128, 0, 96]  # all column-major, without C
    assert list(batched.batch_strides) == [96 * 128, 128 * 64, 0, 96 * 64]
    assert batched.pointers[2] is None
    assert list(biased.lds) == [128, 128, 0, 64]
    assert (biased.alpha, biased.beta) == (1, 1)
    assert all(biased.pointers)


@pytest.mark.parametrize(("ours", "passed"), [([2.0, 2.04, 2.08], True), ([2.2, 2.2, 2.2], False)], ids=str)
def test_ours_may_take_so_much_longer(ours, passed, report, monkeypatch):
    case = gemm_cases.CASES["f16"]
    monkeypatch.setattr(gemm_cases.Case, "loops", lambda self, library: {})
    times = {gemm_cases.NATIVE: [2.0, 2.0, 2.0], gemm_cases.OURS: ours}
    monkeypatch.setattr(native_gemms, "device_times", lambda loops, seconds: times)
    built: Future[Path] = Future()
    built.set_result(Path("built.so"))
    row = native_gemms.compare(report, case, {case.operation: built}, 1.0)
    (check,) = report.result["checks"]
    assert check["value"] == pytest.approx(ours[1] / 2)
    assert check["passed"] is passed
    assert row[1:5] == ("4096x4096x4096", common.number(ours[1]), "2", f"{ours[1] / 2:.3f}")


def test_the_loop_in_c_says_why_it_cannot_launch(tmp_path):
    if device.available():
        pytest.skip("there is a GPU, on which this would launch nonsense")
    floor = builds.LaunchFloor(tmp_path)
    with pytest.raises(common.BenchmarkError, match=r"libcuda|CUresult"):
        floor.launch(0, (1,) * 9, 0, 0, 0, 1)


# The import benchmark, for real


def test_import_benchmark(tmp_path, capsys):
    imports.main(["--quick", "--only", "pycutlass", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "imports.json").read_text())
    assert result["failures"] == []
    taken, *effects = result["checks"]
    assert 0 < taken["value"] < 2000
    assert [check["value"] for check in effects] == [0, 0, 0]
    assert "pycutlass, after numpy" in capsys.readouterr().out


# tools/gpu_results.py


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


def test_junit_counts_and_reasons():
    found = tool.read_junit(JUNIT)
    assert (found["passed"], found["failed"], found["errors"], found["skipped"]) == (1, 1, 1, 1)
    assert found["failures"] == [
        ["tests.gpu.test_gemm::test_bad", "assert 1 == 2"],
        ["tests.gpu.test_gemm::test_broken", "no kernel"],
    ]
    assert found["skips"] == [["tests.gpu.test_two::test_two", "needs two GPUs"]]


def test_pytest_counts_win():
    """Where pytest is interrupted, the junit file has the test that was running as if it had passed."""
    log = "collected 9 items\n=== 1 failed, 5 passed, 2 skipped, 1 error in 7.67s ===\n"
    assert tool.read_counts(log) == {"passed": 5, "failed": 1, "errors": 1, "skipped": 2}
    assert tool.read_counts("========= ERROR SUMMARY: 3 errors\n") == {}
    assert tool.read_counts("=== 182 skipped in 123.71s (0:02:03) ===")["skipped"] == 182


def test_sanitizer_summary():
    found = tool.read_sanitizer(MEMCHECK)
    assert found["errors"] == 1
    assert found["summaries"] == ["ERROR SUMMARY: 1 error"]
    assert found["found"] == ["========= Invalid __global__ read of size 16 bytes", "=========     at gemm+0x10"]
    hazards = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert tool.read_sanitizer(hazards)["errors"] == 0
    assert tool.read_sanitizer("killed")["errors"] is None


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
    common.write_json(tmp_path / "imports.json", result_of_benchmark())
    common.write_json(tmp_path / "tests.json", result_of_tests())
    merged = tool.read_results(tmp_path, commit="abc")
    assert list(merged) == ["tests", "imports"]
    assert merged["tests"]["environment"]["commit"] == "abc"
    page = tmp_path / "page.md"
    assert tool.main(["--out", str(tmp_path), "--render", "--page", str(page)]) == 0
    assert "| GPU tests | passed |" in page.read_text()
    common.write_json(tmp_path / "tests.json", result_of_tests(tests=None))
    assert tool.main(["--out", str(tmp_path), "--render", "--page", str(page)]) == 1


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
    return tool.run_part(part, tmp_path, seconds)


def test_tests_are_run_and_counted(tmp_path):
    result = run_tests(tmp_path, "def test_a(): pass\ndef test_b(): assert 1 == 2\n")
    assert (result["tests"]["passed"], result["tests"]["failed"]) == (1, 1)
    assert gpu_page.outcome(result) == "tests failed: 1"
    assert any("1 failed, 1 passed" in line for line in result["output"])
    assert json.loads((tmp_path / "tests.json").read_text()) == result
    assert str(tmp_path) not in result["run"]["command"]


def test_a_part_that_takes_too_long_is_interrupted_and_says_so(tmp_path):
    common.write_json(tmp_path / "tests.json", result_of_tests())  # an earlier result, which must not survive
    result = run_tests(tmp_path, "import time\ndef test_a(): pass\ndef test_b(): time.sleep(50)\n", seconds=5)
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
