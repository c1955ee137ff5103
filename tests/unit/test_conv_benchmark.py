"""benchmarks/conv.py and its figure, as far as they need no GPU: timing, choices, verdicts and the drawing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks and the tools are not installed with the package

from benchmarks import common, conv, conv_choices  # noqa: E402
from pycutlass import cutlass  # noqa: E402
from tools import gpu_plot  # noqa: E402
from tools import gpu_results as tool  # noqa: E402

fprop, dgrad, wgrad = conv_choices.DIRECTIONS
SMALL, STRIDED = conv_choices.LAYERS[11], conv_choices.LAYERS[4]


@pytest.fixture
def report(tmp_path):
    return common.Report("conv", "Convolutions", "About.", tmp_path)


# What is tried


@pytest.mark.parametrize("batch", conv.BATCHES)
@pytest.mark.parametrize("kind", conv_choices.DIRECTIONS, ids=lambda kind: kind.name)
def test_every_choice_has_a_name_of_its_own(kind, batch):
    """What is measured is found by its name."""
    for layer in conv_choices.LAYERS:
        found = conv_choices.choices(layer, batch, kind)
        assert len({choice.name for choice in found}) == len(set(found)) == len(found) > 2 * len(conv_choices.TILES) - 1


def test_more_is_tried_for_dgrad():
    def tiles(layer, kind):
        return {operation.tile_description.threadblock_shape for operation in conv_choices.operations(layer, kind)}

    assert {(192, 128, 64), (96, 128, 64)} <= tiles(SMALL, dgrad) - tiles(SMALL, fprop)
    assert tiles(STRIDED, dgrad) - tiles(STRIDED, wgrad) == {(192, 64, 32), (192, 64, 64)}


def test_slices_leave_something_to_each():
    split = {choice.slices for choice in conv_choices.choices(SMALL, 32, dgrad)}
    assert {2, 4} < split
    assert max(split) <= SMALL.k // 32
    assert {choice.slices for choice in conv_choices.choices(STRIDED, 32, dgrad)} == {1}


def test_sums_are_short_enough_to_be_accurate():
    layer = conv_choices.LAYERS[-1]
    terms = cutlass.conv.implicit_gemm_problem_size(wgrad, layer.problem(256)).k()
    assert terms > 3 * conv_choices.LONGEST_SUM
    chosen = conv_choices.choices(layer, 256, wgrad)
    assert chosen and all(choice.slices * conv_choices.LONGEST_SUM >= terms for choice in chosen)
    assert all(choice.mode is conv_choices.Parallel for choice in chosen)


def test_command_line(capsys):
    with pytest.raises(SystemExit):
        conv.main(["--only", "nonsense"])
    assert "nonsense is none of" in capsys.readouterr().err
    assert conv.main(["--dry", "--only", "dgrad", "--batch", "32"]) == 0
    *kernels, count = capsys.readouterr().out.splitlines()
    assert any("dgrad_optimized_f16_f16_192x128_64x3_nhwc_unity" in kernel for kernel in kernels)
    assert count.endswith("choices for 14 problems")


# The comparison


#: Microseconds alone and queued.
TIMES = {"cuDNN": (12.0, 8.0), "quick": (20.0, 10.0), "steady": (15.0, 11.0), "slow": (99.0, 99.0)}


class Work:
    """A layer of which it is known how long everything takes."""

    def __init__(self, layer, batch, kind):
        self.layer, self.kind, self.size = layer, kind, SimpleNamespace(N=batch)
        self.name = f"{kind.name}, N={batch}, {layer.name}"

    def rate(self, microseconds):
        return 100 / microseconds

    def cudnn(self):
        return self._loop("cuDNN")

    def pycutlass(self, choice):
        if choice.name == "wrong":
            raise common.BenchmarkError(f"{choice.name} is wrong")
        return self._loop(choice.name)

    def _loop(self, name):
        def loop(calls):
            return TIMES[name]

        return loop


@pytest.fixture
def measured(monkeypatch):
    """Have known times instead of a GPU; returns what was compared with what, in order."""
    asked = []

    def alone(calls, *, seconds):
        asked.append(("alone", list(calls), seconds))
        return {name: [call()[0]] * 3 for name, call in calls.items()}

    def queued(loops, *, seconds, **other):
        asked.append(("queued", list(loops), seconds))
        return {name: [loop(2)[1]] * 3 for name, loop in loops.items()}

    compiled, missing = SimpleNamespace(artifacts={90: "kernel"}), SimpleNamespace(artifacts={})
    tried = [SimpleNamespace(name=name, operation=compiled) for name in ("quick", "steady", "slow", "wrong")]
    tried.append(SimpleNamespace(name="not compiled", operation=missing))
    monkeypatch.setattr(conv, "choices", lambda *problem: tried)
    monkeypatch.setattr(conv, "alone_times", alone)
    monkeypatch.setattr(conv, "device_times", queued)
    monkeypatch.setattr(conv, "Work", Work)
    monkeypatch.setattr(conv, "FINALISTS", 2)
    return asked


def test_each_way_of_timing_has_its_own_best_choice(report, measured):
    compared = conv.compare(report, Work(SMALL, 32, dgrad), 1.0)
    assert [(way, names) for way, names, _ in measured] == [
        ("queued", ["quick", "steady", "slow"]),
        ("alone", ["quick", "steady"]),
        ("alone", ["cuDNN", "PyCUTLASS"]),
        ("queued", ["cuDNN", "PyCUTLASS"]),
    ]
    assert [seconds for _, _, seconds in measured[2:]] == [1.0, 1.0]
    assert {way: comparison.best for way, comparison in compared.items()} == {"alone": "steady", "queued": "quick"}
    assert compared["alone"].speed == pytest.approx(12 / 15)
    assert compared["queued"].speed == pytest.approx(8 / 10)
    raw = report.result["raw"]["dgrad, N=32, 7x7x512 -> 512, 3x3"]
    assert raw["screened us"] == {
        "alone": {"quick": 20.0, "steady": 15.0},
        "queued": {"quick": 10.0, "steady": 11.0, "slow": 99.0},
    }
    assert raw["alone"]["us"]["PyCUTLASS"] == {"median": 15.0, "low": 15.0, "high": 15.0, "count": 3}


def test_a_choice_that_is_wrong_is_reported_and_the_others_are_measured(report, measured):
    conv.compare(report, Work(SMALL, 32, dgrad), 1.0)
    (failure,) = report.result["failures"]
    assert failure["part"] == "dgrad, N=32, 7x7x512 -> 512, 3x3: wrong"
    assert failure["error"] == "BenchmarkError: wrong is wrong"


def test_the_limit_is_for_calls_alone_and_the_queued_mean_is_told(report, measured, monkeypatch):
    layers = conv_choices.LAYERS[:2]
    monkeypatch.setattr(conv, "LAYERS", layers)
    monkeypatch.setitem(TIMES, "quick", (20.0, 16.0))
    monkeypatch.setitem(TIMES, "steady", (15.0, 17.0))
    for batch in (32, 256):
        conv.direction(report, dgrad, batch, 1.0)
    (check,) = report.result["checks"]
    assert check["value"] == pytest.approx(0.8)
    assert check["limit"] == conv.LIMITS["dgrad"]
    assert check["passed"]
    assert check["what"].startswith("dgrad of ResNet-50's layers, N=32, each call alone, cold cache: ")
    alone, queued, *_ = report.result["tables"]
    assert alone["title"] == "dgrad, N=32, each call alone, cold cache"
    assert queued["title"] == "dgrad, N=32, queued back to back"
    for table in (alone, queued):
        assert "over 2 layers, each call alone, cold cache: 0.800." in table["note"]
        assert "The same, queued back to back: 0.500; it has no limit." in table["note"]
    assert alone["rows"][0] == [layers[0].name, "12", "15", "0.800", "0.800 - 0.800", "8.3", "6.7", "steady"]
    assert queued["rows"][0] == [layers[0].name, "8", "16", "0.500", "0.500 - 0.500", "12.5", "6.2", "quick"]
    assert len(alone["columns"]) == len(alone["rows"][0])
    speeds = report.result["raw"][conv.SPEEDS]
    assert [(entry["batch"], entry["layer"]) for entry in speeds] == [
        (batch, layer.name) for batch in (32, 256) for layer in layers
    ]
    assert speeds[0] == {"direction": "dgrad", "batch": 32, "layer": layers[0].name, "alone": 0.8, "queued": 0.5}


def test_without_a_layer_there_is_no_mean_and_no_verdict(report, measured, monkeypatch):
    monkeypatch.setattr(conv, "compare", lambda *given: 1 / 0)
    conv.direction(report, wgrad, 32, 1.0)
    assert len(report.result["failures"]) == len(conv_choices.LAYERS)
    assert report.result["checks"] == []
    assert "over 0 layers, each call alone, cold cache: nan" in report.result["tables"][0]["note"]
    assert math.isnan(conv._geometric_mean([]))


# The figure


def results(folder, batches):
    speeds = [
        {"direction": kind.name, "batch": batch, "layer": layer.name, "alone": 0.7 + 0.01 * number, "queued": 0.6}
        for kind in conv_choices.DIRECTIONS
        for batch in batches
        for number, layer in enumerate(conv_choices.LAYERS)
    ]
    report = common.Report("conv", "Convolutions", "About.", folder)
    report.raw(conv.SPEEDS, speeds)
    report.finish()
    return folder


def rendered(folder, page):
    assert tool.main(["--out", str(folder), "--render", "--page", str(page)]) == 0
    return page.read_text()


def test_the_benchmark_and_the_figure_agree_about_where_the_numbers_are():
    assert gpu_plot.SPEEDS == conv.SPEEDS


@pytest.mark.parametrize("batches", [(32,), (32, 256)], ids=str)
def test_the_figure_is_drawn_and_linked(batches, tmp_path):
    pytest.importorskip("matplotlib")
    text = rendered(results(tmp_path, batches), tmp_path / "docs" / "page.md")
    link = "![Speed of convolutions relative to cuDNN's, by layer](images/conv.svg)"
    assert f"## Convolutions\n\nAbout.\n\n{link}\n" in text
    drawn = (tmp_path / "docs" / "images" / "conv.svg").read_text()
    names = [layer.name.replace(">", "&gt;") for layer in conv_choices.LAYERS]
    assert all(f">{name}</text>" in drawn for name in [*names, *(f"N={batch}" for batch in batches)])
    assert ("N=256" in drawn) is (256 in batches)
    assert all(f">{kind.name}, each call alone</text>" in drawn for kind in conv_choices.DIRECTIONS)
    for color in gpu_plot._COLORS:  # a bar for every layer, and one in the legend
        assert drawn.count(f"fill: {color}") == len(batches) * len(conv_choices.LAYERS) + 1


def test_the_same_numbers_make_the_same_file(tmp_path):
    pytest.importorskip("matplotlib")
    rendered(results(tmp_path, (32,)), tmp_path / "one" / "page.md")
    rendered(tmp_path, tmp_path / "two" / "page.md")
    one, two = ((tmp_path / page / "images" / "conv.svg").read_bytes() for page in ("one", "two"))
    assert one == two
    assert b"dc:date" not in one


def test_an_interrupted_run_is_drawn_as_far_as_it_came(tmp_path):
    pytest.importorskip("matplotlib")
    folder = results(tmp_path, (32,))
    result = json.loads((folder / "conv.json").read_text())
    result["raw"][conv.SPEEDS] = result["raw"][conv.SPEEDS][:20]  # all of fprop, and a part of dgrad
    figures = gpu_plot.draw({"conv": result}, tmp_path / "page.md")
    assert figures["conv"].path == "images/conv.svg"
    drawn = (tmp_path / "images" / "conv.svg").read_text()
    assert drawn.count(f"fill: {gpu_plot._COLORS[1]}") == 20 - 14 + 1


def test_without_matplotlib_there_is_a_page_without_the_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = rendered(results(tmp_path, (32,)), tmp_path / "docs" / "page.md")
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert "## Convolutions\n\nAbout.\n" in text
    assert "![" not in text
    assert not (tmp_path / "docs" / "images").exists()


def test_without_numbers_there_is_no_figure(tmp_path):
    empty = common.Report("conv", "Convolutions", "About.", tmp_path).result
    assert gpu_plot.draw({"conv": empty, "tests": {"name": "tests"}}, tmp_path / "page.md") == {}
    assert gpu_plot.draw({}, tmp_path / "page.md") == {}
