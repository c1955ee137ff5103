"""tools/gpu_function_fuzz.py: runs of the fuzz of epilogue functions are summed on the page, by seed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

from tools import gpu_function_fuzz as tool  # noqa: E402
from tools import gpu_fuzz, gpu_page  # noqa: E402


def run(seed=1, date="2026-01-02 10:00 UTC", functions=("f1", "f2"), digest="abc", failures=(), GPU="H200, 700 W"):
    return {
        "environment": {"date": date, "commit": f"c{seed}", "GPU": GPU},
        "seed": seed,
        "digest": digest,
        "seconds": 60.0,
        "tally": {"kernels": len(functions), "cases": 4 * len(functions)},
        "nodes": {"add": 3, "reduce": 1},
        "functions": list(functions),
        "failures": list(failures),
    }


def keep(tmp_path, *runs):
    out, kept = tmp_path / "out", tmp_path / "kept" / "fuzz_functions.json"
    out.mkdir(exist_ok=True)
    for file in out.glob("*"):
        file.unlink()
    for each in runs:
        (out / f"fuzz-functions-{each['seed']}.json").write_text(json.dumps(each), encoding="utf-8")
    return tool.keep_function_runs(out, kept)


def test_runs_are_summed_and_a_function_counts_once(tmp_path):
    keep(tmp_path, run(1))
    runs = keep(tmp_path, run(2, "2026-01-03 10:00 UTC", ("f2", "f3"), "def"))
    page = "\n".join(tool.function_fuzz_section(runs))
    assert "3 different functions, 2 of them with the newest code" in page
    assert "| 1 | 2 | 8 | 0 | 0 | H200 | 2026-01-02 10:00 UTC | c1 | abc |" in page
    assert "Nodes: add 6, reduce 2." in page
    assert tool.function_fuzz_outcome(runs) == "few so far: 3 of 1,000 functions"
    enough = keep(tmp_path, run(3, functions=[f"g{i}" for i in range(998)]))
    assert tool.function_fuzz_outcome(enough) == "passed"


def test_a_seed_counts_once_and_runs_without_a_gpu_never(tmp_path):
    keep(tmp_path, run(1))
    runs = keep(tmp_path, run(1, "2026-01-03 10:00 UTC", ("f9",)), run(2, GPU="none"))
    assert [(each["seed"], each["functions"]) for each in runs] == [(1, ["f9"])]


def test_failures_are_shown(tmp_path):
    runs = keep(tmp_path, run(failures=["1:2:3: (8, 8, 8) x (): D is wrong\nmore"]))
    assert tool.function_fuzz_outcome(runs) == "failures: 1"
    assert "- `1:2:3: (8, 8, 8) x (): D is wrong`" in tool.function_fuzz_section(runs)
    page = gpu_page.render({}, {}, functions=runs)
    assert page.startswith("# GPU results")


def test_the_other_fuzz_does_not_take_them(tmp_path):
    keep(tmp_path, run())
    gpu_fuzz.keep_runs(tmp_path / "out", tmp_path / "fuzz.json")
    assert gpu_fuzz.read_runs(tmp_path / "fuzz.json") == []
