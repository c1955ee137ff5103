"""GPU tests in several processes at once: what each of them runs, how, and how their results become one."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

from pycutlass import device  # noqa: E402
from tools import gpu_page, gpu_reports, gpu_runs  # noqa: E402
from tools import gpu_results as tool  # noqa: E402

GPU_TESTS = ROOT / "tests" / "gpu"

COUNTS = {"passed": 2, "failed": 1, "errors": 0, "skipped": 1, "failures": [["a", "bad"]], "skips": [["b", "no GPU"]]}
CLEAN = {"errors": 0, "summaries": ["ERROR SUMMARY: 0 errors"], "found": []}

#: As tests/gpu/conftest.py does it, but without a GPU in view.
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--shard")

def pytest_collection_modifyitems(config, items):
    alone = [item for item in items if "alone" in item.name]
    others = [item for item in items if item not in alone]
    shard = config.getoption("--shard")
    number, _, count = shard.partition("/")
    chosen = alone if shard == "alone" else others[int(number) - 1 :: int(count)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
"""


@pytest.fixture(scope="module")
def conftest():
    spec = importlib.util.spec_from_file_location("gpu_conftest", GPU_TESTS / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


# What a shard runs


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("tests", [0, 1, 4, 23])
def test_every_test_is_in_one_shard(conftest, count, tests):
    names = [*(f"test_{number}" for number in range(tests)), *sorted(conftest._ALONE)]
    items = [SimpleNamespace(originalname=name) for name in names]
    shards = [conftest._share(items, conftest._shard(f"{number}/{count}")) for number in range(1, count + 1)]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    everything = [item.originalname for shard in shards for item in shard]
    everything += [item.originalname for item in conftest._share(items, conftest._shard("alone"))]
    assert sorted(everything) == sorted(names)


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "\N{SUPERSCRIPT TWO}/3"])
def test_other_shards_are_refused(conftest, text):
    with pytest.raises(pytest.UsageError, match="I/N with I from 1 to N"):
        conftest._shard(text)


def test_who_watches_the_memory_of_the_device_is_alone(conftest):
    """And slow, or else the sanitizer's parts would leave it out in several processes, and run it in one."""
    watches = re.compile("mem_get_info|assert_grows_nothing")
    functions = [
        node
        for file in GPU_TESTS.glob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and watches.search(ast.unparse(node))
    ]
    assert {function.name for function in functions} == conftest._ALONE
    assert all("pytest.mark.slow" in map(ast.unparse, function.decorator_list) for function in functions)


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_the_gpu_tests_are_collected_without_a_gpu(tmp_path, shards):
    if device.available():
        pytest.skip("there is a GPU, on which these tests are run for their own sake")
    result = tool.run_part(tool._BY_NAME["tests"], tmp_path, 120, shards=shards)
    assert result["run"]["returncode"] == 0
    assert gpu_page.outcome(result) == "no test ran"
    # Each process has collected all, and said how many it leaves to others.
    collected = re.findall(r"^collected (\d+) items", (tmp_path / "tests.log").read_text(), re.MULTILINE)
    assert collected == [str(result["tests"]["skipped"])] * (3 if shards == 2 else 1)
    names = [name for name, _ in result["tests"]["skips"]]
    assert len(set(names)) == len(names) == result["tests"]["skipped"]


# How shards are run


def run_tests(tmp_path, code, shards, seconds=60.0, kind="tests"):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_trial.py").write_text(code)
    part = tool.Part("tests", "GPU tests", 60, ("-m", "pytest", str(tmp_path), "-p", "no:cacheprovider"), kind, True)
    with pytest.MonkeyPatch.context() as patch:
        # Of the plugins that are installed, no trial wants any, and to import them takes longer than the trial.
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return tool.run_part(part, tmp_path, seconds, shards=shards)


def test_results_of_shards_become_one(tmp_path, capsys):
    code = "import time\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pass\ndef test_alone(): pass\n"
    result = run_tests(tmp_path, code, shards=2)
    assert (result["tests"]["passed"], result["tests"]["failed"]) == (3, 1)
    assert [reason for _, reason in result["tests"]["failures"]] == ["assert 1 == 2"]
    assert result["run"]["returncode"] == 1
    assert result["run"]["shards"] == 2
    assert gpu_page.outcome(result) == "tests failed: 1"
    log = (tmp_path / "tests.log").read_text()
    assert [
        log.count(f"== tests-{name}: ended with {code}\n") for name, code in [("1", 0), ("2", 1), ("alone", 0)]
    ] == [1] * 3
    assert any("1 failed" in line for line in result["output"])  # of the process that failed, which is not the last
    shown = capsys.readouterr().out
    assert shown.count("--shard 1/2") == 1
    assert "[2] FAILED" in shown
    assert "the first of 2 processes" in gpu_page.render({"tests": result}, {"tests": "GPU tests"})


def test_shards_run_at_the_same_time(tmp_path):
    """Each waits until the other has come as far."""
    code = f"""
import time
from pathlib import Path
import pytest

@pytest.mark.parametrize("name, other", ["ab", "ba"])
def test(name, other):
    Path({str(tmp_path)!r}, name).touch()
    while not Path({str(tmp_path)!r}, other).exists():
        time.sleep(0.01)
"""
    assert run_tests(tmp_path, code, shards=2)["tests"]["passed"] == 2


def test_a_shard_without_tests_is_not_missed(tmp_path):
    result = run_tests(tmp_path, "def test_a(): pass\n", shards=3)
    assert gpu_page.outcome(result) == "passed"
    assert result["tests"]["passed"] == 1


def test_shards_without_any_tests_are(tmp_path):
    result = run_tests(tmp_path, "", shards=2)
    assert gpu_page.outcome(result) == "no test ran"
    assert result["run"]["returncode"] == 5


def test_a_shard_that_is_lost_is_an_error(tmp_path):
    (tmp_path / "tests-9.xml").write_text("from an earlier run, in more processes")
    result = run_tests(tmp_path, "import os\ndef test_a(): pass\ndef test_b(): os._exit(3)\n", shards=2)
    assert result["run"]["returncode"] == 3
    assert result["tests"]["passed"] == 1
    assert result["tests"]["failures"] == [["tests-2", "left no results"]]
    assert gpu_page.outcome(result) == "tests failed: 1"
    assert not (tmp_path / "tests-9.xml").exists()


def test_all_shards_are_interrupted_together(tmp_path):
    sleepers = "def test_b(): time.sleep(50)\ndef test_c(): time.sleep(50)\n"
    code = f"import time\ndef test_a(): pass\n{sleepers}def test_alone(): 1 / 0\n"
    result = run_tests(tmp_path, code, shards=2, seconds=10)  # two Pythons start, on a busy machine
    assert result["run"]["timed_out"]
    assert result["run"]["seconds"] < 40
    assert (result["tests"]["passed"], result["tests"]["failed"]) == (1, 0)  # test_alone had no time
    assert gpu_page.outcome(result).startswith("interrupted")


def test_a_program_that_cannot_be_started_ends_the_others(tmp_path):
    sleeper = gpu_runs.Command([sys.executable, "-c", "import time; time.sleep(100)"], tmp_path / "a.log")
    missing = gpu_runs.Command([str(tmp_path / "missing")], tmp_path / "b.log")
    started = time.monotonic()
    with pytest.raises(FileNotFoundError):
        gpu_runs.run_together([sleeper, missing], 60)
    assert time.monotonic() - started < 30


def test_what_ignores_an_interruption_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_runs, "_PATIENCE", 0.5)
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('here'); time.sleep(100)"
    commands = [gpu_runs.Command([sys.executable, "-c", stubborn], tmp_path / f"{name}.log") for name in "ab"]
    ended = gpu_runs.run_together(commands, 3)
    assert [(item.returncode, item.timed_out, item.printed) for item in ended] == [
        (-signal.SIGKILL, True, "here\n")
    ] * 2


def test_processes_begin_with_another_gpu_each(tmp_path, monkeypatch):
    def of(share):
        return tool._command(tool._BY_NAME["tests"], tmp_path, [], share, 3).variables.get("CUDA_VISIBLE_DEVICES")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [of(share) for share in ("1/3", "2/3", "3/3", "alone", "")] == ["6,4", "4,6", "6,4", None, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert of("1/3") is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(device, "count", lambda: 3)
    assert [of("1/3"), of("3/3")] == ["1,2,0", "0,1,2"]


def test_the_machine_is_divided(monkeypatch):
    monkeypatch.setattr(tool, "_compute_sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    commands = [tool._command(tool._BY_NAME["sanitizer"], Path("out"), [], f"{i}/3", 3) for i in (1, 2, 3)]
    assert len({command.words[command.words.index("--port") + 1] for command in commands}) == 3
    assert commands[0].variables["OMP_NUM_THREADS"] == "5"
    assert [command.log.name for command in commands] == [f"sanitizer-{i}.log" for i in (1, 2, 3)]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert not tool._command(tool._BY_NAME["tests"], Path("out"), [], "1/3", 3).variables  # the user's own
    alone = tool._command(tool._BY_NAME["tests"], Path("out"), [])
    assert not alone.variables
    initcheck = tool._command(tool._BY_NAME["initcheck"], Path("out"), [])
    assert {"initcheck", "--print-limit"} < set(initcheck.words)
    assert "--error-exitcode" not in initcheck.words  # what other libraries read is none of our errors
    assert "--shard" not in alone.words


def test_what_is_shared_out():
    assert tool._turns(tool._BY_NAME["tests"], 2) == [["1/2", "2/2"], ["alone"]]
    assert tool._turns(tool._BY_NAME["sanitizer"], 2) == [["1/2", "2/2"]]
    assert tool._turns(tool._BY_NAME["tests"], 1) == tool._turns(tool._BY_NAME["examples"], 2) == [[""]]
    assert {part.name for part in tool.PARTS if part.divisible} == {"tests", "sanitizer", "racecheck", "initcheck"}
    with pytest.raises(SystemExit):
        tool._options().parse_args(["--out", "x", "--shards", "0"])


# How results become one


def test_counts_are_summed_and_lists_joined():
    merged = gpu_reports.merge_tests({"tests-1": COUNTS, "tests-2": COUNTS})
    assert {key: merged[key] for key in ("passed", "failed", "errors", "skipped")} == {
        "passed": 4,
        "failed": 2,
        "errors": 0,
        "skipped": 2,
    }
    assert (merged["failures"], merged["skips"]) == ([["a", "bad"]] * 2, [["b", "no GPU"]] * 2)
    assert gpu_reports.merge_tests({"tests": COUNTS}) == COUNTS
    assert gpu_reports.merge_tests({"tests-1": None, "tests-2": None}) is None
    assert gpu_reports.merge_tests({}) is None


def test_a_sanitizer_without_a_summary_makes_all_unknown():
    found = {"errors": 2, "summaries": ["ERROR SUMMARY: 2 errors"], "found": ["========= Invalid read"] * 40}
    unknown = {"errors": None, "summaries": [], "found": []}
    assert gpu_reports.merge_sanitizer([CLEAN, found])["errors"] == 2
    assert gpu_reports.merge_sanitizer([CLEAN, unknown, found])["errors"] is None
    assert gpu_reports.merge_sanitizer([])["errors"] is None
    merged = gpu_reports.merge_sanitizer([found, CLEAN, found])
    assert merged["summaries"] == ["ERROR SUMMARY: 2 errors", "ERROR SUMMARY: 0 errors", "ERROR SUMMARY: 2 errors"]
    assert len(merged["found"]) == gpu_page.KEPT_LINES


def test_the_page_tells_equal_summaries_once():
    run = {"command": "c", "returncode": 0, "timed_out": False, "seconds": 3.0, "shards": 2}
    sanitizer = gpu_reports.merge_sanitizer([CLEAN, CLEAN])
    result = {
        "title": "memcheck",
        "tests": COUNTS,
        "sanitizer": sanitizer,
        "run": run,
        "output": [],
        "environment": {"date": "", "commit": ""},
    }
    assert "| 2 x ERROR SUMMARY: 0 errors |" in gpu_page.render({"sanitizer": result}, {"sanitizer": "memcheck"})
