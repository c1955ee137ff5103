"""benchmarks/pick.py, as far as it needs no GPU: its problems, what is measured of them, checks and the report."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks are not installed with the package

from benchmarks import common, gemm, pick, pick_cases, pick_recorded, pick_report  # noqa: E402
from benchmarks.pick_shapes import FITTED, HELD_OUT, MORE_FITTED, RECORDED, Shape  # noqa: E402
from pycutlass.errors import NotCompiledError  # noqa: E402
from pycutlass.operation import ReductionOperation  # noqa: E402
from pycutlass.plan import candidates  # noqa: E402

ENVIRONMENT = {"date": "2026-01-02 03:04 UTC", "commit": "0123456789ab", "GPU": "NVIDIA H200"}


def kept(folder: Path, times: Callable[[Shape], dict[str, float]], shapes: list[Shape], **more: Any) -> Path:
    """Write a file of times as a run leaves it."""
    problems = [{"shape": each.name, "peer": 20.0, "times": times(each), **more} for each in shapes]
    record = {"part": "bf16-tnt", "environment": ENVIRONMENT, "not_built": [], "problems": problems}
    (folder / "bf16-tnt.json").write_text(json.dumps(record))
    return folder


def test_there_are_as_many_problems_as_the_limits_ask_for() -> None:
    assert len(HELD_OUT) >= 300
    assert not set(HELD_OUT) & {*FITTED, *MORE_FITTED}
    assert not set(FITTED) & set(MORE_FITTED)
    assert sorted(map(str, pick_cases.shapes_of(pick_cases.PARTS))) == sorted(map(str, (*HELD_OUT, *FITTED)))


@pytest.mark.parametrize("part", pick_cases.PARTS)
def test_what_is_measured_begins_with_the_pick(part: str) -> None:
    for shape in pick_cases.PARTS[part][:3]:
        ranked = pick_cases.considered(shape)
        assert ranked[0].candidate.name == pick_report.Measured(shape, {"any": 1.0}, None, {}).pick
        assert ranked[-1].microseconds <= pick_cases.FACTOR * ranked[0].microseconds
        assert len({each.candidate.name for each in ranked}) == len(ranked)


@pytest.mark.parametrize("part", pick_cases.PARTS)
def test_some_of_more_problems_are_measured_and_the_same_every_time(part: str) -> None:
    for shape in pick_cases.MORE[part][:3]:
        chosen, every = pick_cases.sampled(shape), pick_cases.considered(shape)
        assert chosen == pick_cases.sampled(shape)
        assert chosen[:8] == every[:8]
        assert set(chosen) <= set(every)
        assert len(set(chosen)) == len(chosen) <= 32


def test_kernels_of_one_text_are_compiled_once() -> None:
    shapes = pick_cases.PARTS["bf16-tnt"][:6]
    texts = [kernel.source().text for kernel in pick_cases.kernels(shapes)]
    assert len(set(texts)) == len(texts)
    needed = {
        kernel.source().text
        for shape in shapes
        for each in pick_cases.considered(shape)
        for kernel in each.candidate.kernels
    }
    assert needed == set(texts)


def test_the_report_judges_todays_pick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held_out, fitted = set(HELD_OUT), set(FITTED)
    shapes = [each for each in pick_cases.PARTS["bf16-tnt"] if each in held_out]
    others = [each for each in pick_cases.PARTS["bf16-tnt"] if each in fitted]

    def times(shape: Shape) -> dict[str, float]:
        chosen = pick_cases.considered(shape)[0].candidate.name
        return {chosen: 10.0 if shape != shapes[0] else 12.5, "another": 10.0}

    folder = kept(tmp_path, times, shapes + others[:2])
    assert pick_report.report(folder, tmp_path / "out") == 0
    result = json.loads((tmp_path / "out" / "pick.json").read_text())
    checks = {check["what"]: check for check in result["checks"]}
    mean = next(check for what, check in checks.items() if "geometric mean" in what and "best" in what)
    assert mean["value"] == pytest.approx(0.8 ** (1 / len(shapes)))
    assert mean["passed"]
    assert checks["pick against torch, the slowest"]["value"] == pytest.approx(1.6)
    judged, adjusted, worst = result["tables"][:3]
    of_all = [["bf16 tnt", str(len(shapes))], ["all", str(len(shapes))]]
    assert [row[:2] for row in judged["rows"]] == of_all
    assert [row[1] for row in adjusted["rows"]] == ["2", "2"]
    assert worst["rows"][0][0] == shapes[0].name
    assert worst["rows"][0][3] == "another"
    assert "2026-01-02" in capsys.readouterr().out


def test_a_pick_that_was_not_measured_is_counted_and_never_guessed(tmp_path: Path) -> None:
    shapes = [each for each in pick_cases.PARTS["bf16-tnt"] if each in set(HELD_OUT)][:3]
    first = shapes[0]

    def times(shape: Shape) -> dict[str, float]:
        return {"another": 5.0} if shape == first else {pick_cases.considered(shape)[0].candidate.name: 10.0}

    pick_report.report(kept(tmp_path, times, shapes), tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "pick.json").read_text())["tables"][0]["rows"]
    assert [row[-1] for row in rows] == ["1", "1"]


def test_wrong_results_miss_a_limit(tmp_path: Path) -> None:
    shapes = [each for each in pick_cases.PARTS["bf16-tnt"] if each in set(HELD_OUT)][:1]

    def times(shape: Shape) -> dict[str, float]:
        return {pick_cases.considered(shape)[0].candidate.name: 10.0}

    folder = kept(tmp_path, times, shapes, wrong={"another": "3 of 48 elements"})
    assert pick_report.report(folder, tmp_path / "out") == 1
    checks = json.loads((tmp_path / "out" / "pick.json").read_text())["checks"]
    assert [check["passed"] for check in checks if "wrong" in check["what"]] == [False]


@pytest.mark.parametrize("hidden", [{"error": "BenchmarkError: no candidate ran"}, {"failed": {"another": "why"}}])
def test_what_gave_no_time_misses_a_limit(tmp_path: Path, hidden: dict[str, Any]) -> None:
    shapes = [each for each in pick_cases.PARTS["bf16-tnt"] if each in set(HELD_OUT)][:2]

    def times(shape: Shape) -> dict[str, float]:
        return {pick_cases.considered(shape)[0].candidate.name: 10.0}

    assert pick_report.report(kept(tmp_path, times, shapes), tmp_path / "out") == 0
    assert pick_report.report(kept(tmp_path, times, shapes, **hidden), tmp_path / "out") == 1


def test_reductions_are_compiled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one, `compile_many` makes a kernel of partial sums of each GEMM: twice the work."""
    asked: list[tuple[str, list[Any]]] = []
    monkeypatch.setattr(pick_cases, "compile_many", lambda chosen, *, target: asked.append((target, chosen)) or ())
    made = pick_cases.kernels(pick_cases.PARTS["bf16-tnt"])
    assert pick_cases.compiled(made) == []
    assert sum(len(chosen) for _, chosen in asked) == len(made)
    assert all(len(part) == 1 for _, chosen in asked for each in chosen for part in [each.parts(chosen)])
    assert any(isinstance(each, ReductionOperation) for each in made)


def test_what_a_bundle_lacks_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pick_cases.kernels(pick_cases.PARTS["e4m3-tnt"])[:4]

    def compile_many(chosen: list[Any], *, target: str) -> list[Any]:
        if made[1] in chosen:
            raise NotCompiledError("the cache does not have it")
        return [SimpleNamespace(result=None) for _ in chosen]

    monkeypatch.setattr(pick_cases, "compile_many", compile_many)
    assert pick_cases.compiled(made, is_known=True) == ["the cache does not have it"]


def test_nothing_kept_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no times"):
        pick_report.report(tmp_path, tmp_path)


# What a contest computes: kernels run on the host here, and take a made-up time


torch = pytest.importorskip("torch")
from benchmarks import pick_contest  # noqa: E402

CONTESTS = [
    Shape("bf16", "tnt", 5, 32, 48),
    Shape("f16", "nnn", 32, 48, 64),
    Shape("tf32", "ttt", 16, 32, 48, 3),
    Shape("s8", "tnt", 33, 32, 64),
    Shape("e4m3", "tnt", 40, 64, 128),
]


class _Everything(dict[str, Any]):
    """Has every text compiled: on the host nothing is."""

    def __contains__(self, text: object) -> bool:
        return True

    def __missing__(self, text: str) -> dict[str, Any]:
        return {}


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    made: list[pick_contest.Contest] = []
    begin, launch = pick_contest.Contest.__init__, pick_contest.launcher

    def started(contest: Any, *arguments: Any) -> None:
        made.append(contest)
        begin(contest, *arguments)

    def launcher(candidate: Any, size: Any, *_: int) -> Any:  # addresses are of a GPU alone
        contest = made[-1]
        return launch(candidate, size, contest._a, contest._b, contest._d)  # type: ignore[arg-type]

    def times(contest: Any, launches: dict[str, Any], samples: int) -> dict[str, Any]:
        return {name: (float(len(name)),) * samples for name in launches if launches[name] is not None}

    monkeypatch.setattr(pick_contest, "_PLACE", "cpu")
    monkeypatch.setattr(pick_contest.Contest, "__init__", started)
    monkeypatch.setattr(pick_contest.Contest, "_times", times)
    monkeypatch.setattr(pick_contest, "launcher", launcher)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def contest(shape: Shape, compiled: dict[str, Any]) -> pick_contest.Contest:
    return pick_contest.Contest(shape, pick_cases.considered(shape)[:10], compiled)


@pytest.mark.parametrize("shape", CONTESTS, ids=lambda shape: shape.name)
def test_results_are_compared_with_float64(on_the_host: None, shape: Shape) -> None:
    outcome = contest(shape, _Everything()).outcome()
    assert not outcome.wrong
    assert not outcome.failed
    assert len(outcome.times) == 10
    assert (outcome.peer is None) == (shape.batch is not None and shape.operands in ("s8", "e4m3"))
    record = outcome.record()
    assert json.loads(json.dumps(record)) == record
    assert re.match(rf"{shape.name}: 10 measured", outcome.line())


def test_a_wrong_result_is_neither_timed_nor_hidden(on_the_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pick_contest.launcher

    def spoiled(candidate: Any, size: Any, *addresses: int) -> Any:
        begin = launch(candidate, size, *addresses)
        return (lambda: None) if candidate.operation.swap_ab else begin  # which leaves D as it was

    monkeypatch.setattr(pick_contest, "launcher", spoiled)
    outcome = contest(CONTESTS[0], _Everything()).outcome()
    assert outcome.wrong
    assert all(name.startswith("swapped") for name in outcome.wrong)
    assert not set(outcome.wrong) & set(outcome.times)


def test_what_was_not_compiled_is_said(on_the_host: None) -> None:
    with pytest.raises(common.BenchmarkError, match="it is not compiled"):
        contest(CONTESTS[0], {}).outcome()


def test_times_go_to_a_folder_of_results() -> None:
    assert (ROOT / "docs" / "gpu-results") in pick.KEPT.parents


def test_times_of_other_benchmarks_are_kept_by_the_names_of_candidates(tmp_path: Path) -> None:
    """The faster raster order counts, and what no candidate is called is left out, as are other problems and queues."""
    shapes = {
        "Pingpong 128x128x64, 2x1, swizzle 4, AlongM": 21.0,
        "Pingpong 128x128x64, 2x1, swizzle 4, AlongN": 20.0,
        "Pingpong 128x128x64, 2x1, swizzle 2, AlongN": 19.0,
        "Cooperative 128x128x64, 1x1, stream-K, Heuristic": 30.0,
        "Cooperative 128x128x64, 1x1, split-K 8, Heuristic": 31.0,
        "Pingpong 64x128x64, 1x1, parallel split-K 4, AlongM": 32.0,
        "swapped Pingpong 64x16x128, 1x1, swizzle 1, AlongM": 33.0,
    }
    gemvs = {"Gemv 1x2x4096, warps 1x1x4": 14.27}
    raw = {
        "shape 1024x1024x1024": {"screened us": {"never": 1.0}, "alone": {"screened us": shapes}},
        "shape 1x4096x4096": {"alone": {"screened us": gemvs}},
        "shape 64x64x64": {"alone": {"screened us": shapes}},
    }
    of_classes = {
        "bf16 tnt, 8192x8192x8192, alone": {"screened us": {"Pingpong 128x128x64, 2x1, swizzle 4, AlongN": 1600.0}},
        "bf16 tnt, 8192x8192x8192, queued": {"screened us": {"never": 1.0}},
        "int8 to int32 tnt, 8192x8192x8192, alone": {"screened us": {"never": 1.0}},
    }
    results = [tmp_path / "gemm.json", tmp_path / "classes.json"]
    for path, each in zip(results, (raw, of_classes), strict=True):
        path.write_text(json.dumps({"environment": ENVIRONMENT, "raw": each}))
    assert pick_recorded.main([*map(str, results), "--kept", str(tmp_path / "kept")]) == 0
    found = {each.shape.name: each.times for each in pick_report.measured(tmp_path / "kept")}
    assert found.pop("bf16 tnt 8192x8192x8192") == {"Pingpong 128x128x64, cluster 2x1, swizzle 4": 1600.0}
    assert found.pop("f16 tnt 1x4096x4096") == {"Gemv 1x2x4096, 1x1x4 warps": 14.27}
    (times,) = found.values()
    assert times == {
        "Pingpong 128x128x64, cluster 2x1, swizzle 4": 20.0,
        "Cooperative 128x128x64, cluster 1x1, stream-K": 30.0,
        "Cooperative 128x128x64, cluster 1x1, stream-K, 8 slices": 31.0,
        "Pingpong 64x128x64, cluster 1x1, swizzle 1, parallel split-K 4": 32.0,
        "swapped Pingpong 64x16x128, cluster 1x1, swizzle 1": 33.0,
    }
    known = {each.name for each in candidates(pick_cases.kind(RECORDED[0]), 90)}
    assert set(times) <= known, "as candidates are called"


def test_what_is_recorded_is_of_one_gpu_and_of_no_problem_that_is_held_out(tmp_path: Path) -> None:
    assert not set(RECORDED) & set(HELD_OUT)
    sizes = {(each.m, each.n, each.k) for each in RECORDED if (each.operands, each.layouts) == ("f16", "tnt")}
    assert sizes == {*gemm.SHAPES, *gemm.OTHER_SHAPES}
    for number, gpu in enumerate(("NVIDIA H100", "NVIDIA H200")):
        (tmp_path / f"{number}.json").write_text(json.dumps({"environment": {"GPU": gpu}, "raw": {}}))
    with pytest.raises(SystemExit):
        pick_recorded.main([str(tmp_path / "0.json"), str(tmp_path / "1.json"), "--kept", str(tmp_path)])
