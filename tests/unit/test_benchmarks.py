"""The benchmarks, as far as they need no GPU: statistics, results, command lines, processes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks and the tools are not installed with the package

from benchmarks import (  # noqa: E402
    builds,
    common,
    duels,
    gemm,
    gemm_choices,
    gemm_classes,
    imports,
    kernels,
    launch,
    native_gemms,
    problems,
    timing,
    tuning,
)
from benchmarks import compile as compiling  # noqa: E402
from pycutlass import KernelSchedule, RasterOrder  # noqa: E402
from pycutlass.errors import ToolkitError  # noqa: E402

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


@pytest.mark.parametrize(
    "main", [imports.main, compiling.main, launch.main, gemm.main, gemm_classes.main, native_gemms.main, tuning.main]
)
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
    choices = gemm_choices.shape_choices((8192, 8192, 8192))
    assert (
        len({choice.name for choice in choices})
        == len(choices)
        == len(gemm_choices.TILES) * len(gemm_choices.SWIZZLES) * 2
    )
    # The compiler leaves the kernel with the object that it was given.
    assert choices[0].operation is choices[1].operation
    same = gemm_choices.Choice(KernelSchedule.Pingpong, (64, 128, 64), (1, 1), 8, RasterOrder.AlongM)
    assert any(choice.operation is same.operation for choice in choices)


def test_the_kinds_of_types_and_layouts_have_different_names_and_kernels_for_each_problem(capsys):
    assert len({(kind.words, kind.limits) for kind in gemm_classes.KINDS}) == len(gemm_classes.KINDS)
    for kind in gemm_classes.KINDS:
        for size, choices in kind.choices.items():
            assert len(choices) >= 4, (kind.words, size)
            assert all(operation.swap_ab is (size[0] <= 128) for operation, _ in choices.values())
    assert gemm_classes.main(["--dry", "--only", "int8"]) == 0
    assert all("_s8_s32_" in name for name in capsys.readouterr().out.splitlines())


def test_the_fastest_choice_is_measured_anew(monkeypatch):
    took = {"slow": 3.0, "fast": 2.0, "PyCUTLASS": 2.1, "theirs": 4.2}
    asked = []

    def times(loops, **options):
        asked.append(sorted(loops))
        return {name: [took[name]] * 3 for name in loops}

    monkeypatch.setattr(duels, "device_times", times)
    duel = duels.queued_duel({"slow": print, "fast": print}, print, 1.0)
    assert asked == [["fast", "slow"], ["PyCUTLASS", "theirs"]]
    assert (duel.best, duel.ratio, duel.screened["slow"]) == ("fast", pytest.approx(2.0), 3.0)
    assert duels.Duel.of(duel.samples) == duel
    assert duels.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)


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


# The import benchmark, for real


def test_import_benchmark(tmp_path, capsys):
    imports.main(["--quick", "--only", "pycutlass", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "imports.json").read_text())
    assert result["failures"] == []
    taken, *effects = result["checks"]
    assert 0 < taken["value"] < 2000
    assert [check["value"] for check in effects] == [0, 0, 0]
    assert "pycutlass, after numpy" in capsys.readouterr().out
