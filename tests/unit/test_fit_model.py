"""tools/fit_model.py: times that a model made up are explained by the constants that made them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

from benchmarks import pick_cases  # noqa: E402
from benchmarks.pick_shapes import HELD_OUT  # noqa: E402
from pycutlass.plan import candidates  # noqa: E402
from pycutlass.plan.constants import Constants, shipped  # noqa: E402
from pycutlass.plan.model import Model  # noqa: E402
from tools import fit_model  # noqa: E402

H200 = next(each for each in shipped() if "H200" in each.matches)
SEEN = [each for each in pick_cases.PARTS["bf16-tnt"] if each not in set(HELD_OUT)][:6]


def kept(folder: Path, constants: Constants, gpu: str = "NVIDIA H200") -> Path:
    """Write times as they would be measured, did the constants say all."""
    folder = folder / "kept"
    folder.mkdir()
    kind = pick_cases.kind(SEEN[0])
    problems = []
    for shape in SEEN:
        listed = candidates(kind, 90, shape.batch is not None)
        times = Model(kind, listed, constants).predict(shape.m, shape.n, shape.k, shape.batch or 1).microseconds
        taken = {each.name: float(time) for each, time in zip(listed, times, strict=True) if time < 2 * times.min()}
        problems.append({"shape": shape.name, "peer": None, "times": taken})
    record = {"part": "bf16-tnt", "environment": {"GPU": gpu}, "not_built": [], "problems": problems}
    (folder / "bf16-tnt.json").write_text(json.dumps(record))
    return folder


def changed(constants: Constants, **of_native: float) -> Constants:
    return dataclasses.replace(constants, native=MappingProxyType({**constants.native, **of_native}))


def test_what_made_the_times_has_no_loss_but_for_ties(tmp_path: Path) -> None:
    problems = fit_model.observed(kept(tmp_path, H200), H200)
    assert [each.shape for each in problems] == SEEN
    assert fit_model.quality(problems, H200) == pytest.approx([1.0] * len(SEEN))
    far = changed(H200, start_us=9.0, cooperative_turn_us=3.5, pingpong_depth_cycles=250.0)
    assert fit_model.loss(problems, H200) < 0.5 * fit_model.loss(problems, far)


def test_constants_come_nearer_to_those_that_made_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_model, "_STEPS", (0.5, 0.1))
    names = ("start_us", "cooperative_turn_us")
    monkeypatch.setattr(fit_model, "FREE", tuple(each for each in fit_model.FREE if each[1] in names))
    made_with = changed(H200, start_us=8.0, cooperative_turn_us=3.0)
    problems = fit_model.observed(kept(tmp_path, made_with), H200)
    found = fit_model.fitted(problems, H200, lambda _: None)
    assert fit_model.loss(problems, found) < 0.7 * fit_model.loss(problems, H200)
    assert abs(np.log(found.native["start_us"] / 8.0)) < abs(np.log(H200.native["start_us"] / 8.0))


def test_other_gpus_and_what_was_not_measured_are_left_out(tmp_path: Path) -> None:
    assert fit_model.observed(kept(tmp_path, H200, "NVIDIA A100"), H200) == []
    assert fit_model.observed(tmp_path / "none", H200) == []


def test_a_file_is_written_that_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(fit_model, "_STEPS", (0.3,))
    monkeypatch.setattr(fit_model, "FREE", fit_model.FREE[:1])
    monkeypatch.setattr(fit_model, "_tiles", lambda problems: iter(()))
    times = kept(tmp_path, dataclasses.replace(H200, l2_bytes_per_cycle=H200.l2_bytes_per_cycle / 1.5))
    assert fit_model.main(["--kept", str(times), "--gpus", str(tmp_path)]) == 0
    made = Constants.of(json.loads((tmp_path / "h200.json").read_text()))
    assert made.l2_bytes_per_cycle < H200.l2_bytes_per_cycle
    assert made.native == dict(H200.native)
    assert made.queued == dict(H200.queued), "which are fitted to other times"
    assert "after       all:    6 problems" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    assert fit_model.main(["--kept", str(kept(tmp_path, H200)), "--gpus", str(tmp_path), "--dry"]) == 0
    assert not (tmp_path / "h200.json").exists()


@pytest.mark.parametrize(("name", "entry", "low", "high"), fit_model.FREE, ids=lambda each: str(each))
def test_what_is_free_is_there_and_within_its_bounds(name: str, entry: str, low: float, high: float) -> None:
    value = getattr(H200, name)
    if entry.endswith("*"):
        values = (value if entry == "*" else value[entry.split()[0]]).values()
    else:
        values = [value if not entry else value[entry]]
    assert all(low <= each <= high for each in values)
