"""tools/gpu_fuzz.py: runs of the fuzz that count together, and what the page says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks and the tools are not installed with the package

from tools import gpu_fuzz, gpu_page  # noqa: E402
from tools import gpu_results as tool  # noqa: E402


def run(seed=1, date="2026-01-02 10:00 UTC", digest="abc", kernels="k1 k2", cases=10, failures=(), commit="c1"):
    families = {"gemm tf32": {"kernels": 2, "cases": cases, "redrawn": 5}, "wgrad": {"kernels": 1, "cases": 5}}
    return {
        "environment": {"date": date, "commit": commit, "GPU": "H200"},
        "seed": seed,
        "digest": digest,
        "seconds": 300.4,
        "gpus": 4,
        "families": families,
        "kernels": kernels,
        "modes": {"gemm": cases, "conv": 5},
        "refusals": {},
        "failures": list(failures),
    }


def keep(tmp_path, *runs, commit=""):
    out, kept = tmp_path / "out", tmp_path / "kept" / "fuzz.json"
    out.mkdir(exist_ok=True)
    for file in out.glob("*"):
        file.unlink()
    for each in runs:
        (out / f"fuzz-{each['seed']}.json").write_text(json.dumps(each), encoding="utf-8")
    gpu_fuzz.keep_runs(out, kept, commit)
    return gpu_fuzz.read_runs(kept)


def test_runs_of_one_state_of_the_code_are_summed(tmp_path):
    keep(tmp_path, run(1))
    runs = keep(tmp_path, run(2, "2026-01-02 11:00 UTC", kernels="k2 k3"))
    assert [each["seed"] for each in runs] == [1, 2]
    page = "\n".join(gpu_fuzz.fuzz_section(runs))
    assert "seeds 1, 2: 30 cases of 3 distinct kernels on H200" in page
    assert "| all | 6 | 30 | 0 | 0 | 0 | 0 |" in page
    assert "| gemm tf32 | 4 | 20 | 0 | 0 | 0 | 0 |" in page
    assert "By mode: conv 10, gemm 20." in page


def test_a_change_of_the_code_begins_anew(tmp_path):
    keep(tmp_path, run(1), run(2))
    assert [each["seed"] for each in keep(tmp_path, run(3, "2026-01-03 10:00 UTC", "def"))] == [3]


def test_results_of_older_code_do_not_replace_newer_ones(tmp_path):
    keep(tmp_path, run(3, "2026-01-03 10:00 UTC", "def"))
    assert [each["seed"] for each in keep(tmp_path, run(1))] == [3]


def test_a_seed_counts_once(tmp_path):
    keep(tmp_path, run(1))
    runs = keep(tmp_path, run(1, "2026-01-02 12:00 UTC", cases=20))
    assert [each["modes"]["gemm"] for each in runs] == [20]


def test_nothing_is_lost_where_nothing_is_new(tmp_path):
    keep(tmp_path, run(1))
    assert len(keep(tmp_path)) == 1


def test_a_copy_of_a_checkout_is_told_its_commit(tmp_path):
    assert keep(tmp_path, run(commit="unknown"), commit="f00")[0]["environment"]["commit"] == "f00"


def test_few_cases_are_no_pass():
    many = " ".join(map(str, range(1000)))
    assert gpu_fuzz.fuzz_outcome([run(kernels=many, cases=4994)]).startswith("few so far: 4,999 of 5,000 cases")
    assert gpu_fuzz.fuzz_outcome([run(kernels="k1", cases=6000)]).startswith("few so far")
    assert gpu_fuzz.fuzz_outcome([run(kernels=many, cases=4995)]) == "passed"


def test_failures_are_on_the_page():
    failure = {"case": "1:2:3", "kind": "wrong", "reason": "Traceback\nD: 4 of 5 elements of D are wrong"}
    runs = [run(kernels=" ".join(map(str, range(1000))), cases=6000, failures=[failure])]
    assert gpu_fuzz.fuzz_outcome(runs) == "failures: 1"
    page = "\n".join(gpu_fuzz.fuzz_section(runs))
    assert "- wrong: `--case 1:2:3`, `D: 4 of 5 elements of D are wrong`" in page
    assert "**failures: 1**" in gpu_fuzz.fuzz_row(runs)


def test_the_page_has_the_fuzz(tmp_path):
    out, page = tmp_path / "out", tmp_path / "page.md"
    out.mkdir()
    (out / "fuzz-1.json").write_text(json.dumps(run()), encoding="utf-8")
    benchmark = {
        **{"name": "imports", "title": "Imports", "about": "About.", "complete": True, "seconds": 3.0, "checks": []},
        **{"tables": [], "failures": [], "raw": {}, "environment": run()["environment"]},
    }
    (out / "imports.json").write_text(json.dumps(benchmark), encoding="utf-8")
    assert tool.main(["--out", str(out), "--render", "--page", str(page)]) == 1  # few cases
    text = page.read_text(encoding="utf-8")
    assert "| Random kernels on random problems | **few so far: 15 of 5,000 cases, 2 of 1,000 kernels** | 300 |" in text
    assert "## Random kernels on random problems" in text
    assert (tmp_path / "page" / "fuzz.json").is_file()


def test_a_page_without_it_says_so():
    assert gpu_fuzz.fuzz_section([]) == []
    result = {"title": "T", "environment": {"date": "d", "commit": "c", "GPU": "g"}, "complete": False, "output": []}
    page = gpu_page.render({"imports": result | {"checks": [], "failures": []}}, {"imports": "Imports"})
    assert "| Random kernels on random problems | not run |  |  |  |" in page
