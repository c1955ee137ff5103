"""Which candidate a plan has for each M: what was measured, else what is picked."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import pycutlass
from pycutlass import device
from pycutlass.plan import choices, measured
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.choices import Choices
from pycutlass.plan.measured import generation, machine_of, tuned
from pycutlass.plan.pick import pick, ranking
from pycutlass.plan.records import problem_record
from pycutlass.trials import Database, Trial

H200 = device.Device(0, "NVIDIA H200", 90, 132)
PLAN = pycutlass.Gemm(pycutlass.TensorSpec((100, 512), "float16"), pycutlass.TensorSpec((512, 256), "float16"))
KIND, EXTENTS = PLAN.kind, (256, 512)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Let there be an H200, of which nobody has measured anything."""
    monkeypatch.setattr(device, "describe", lambda ordinal=0: H200)
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "trials.db"))
    machine_of.cache_clear()
    generation.begin()


def slower(m: int) -> Candidate:
    """Return a candidate that nobody would pick."""
    return ranking(KIND, m, *EXTENTS, gpu=H200)[-1].candidate


def measure(m: int, candidate: Candidate, condition: str = "cold") -> None:
    times = {"time": 1.0, "low": 1.0, "high": 1.0, "rounds": 3}
    record = problem_record(KIND, m, *EXTENTS)
    Database().add(Trial(record, candidate.choice(), machine_of(0), condition=condition, **times))


def made() -> Choices:
    return Choices(KIND, EXTENTS, None, 0)


def test_ranges_of_m_are_picked_for_their_ends() -> None:
    chosen = made()
    assert chosen.of(100) == chosen.of(104) == pick(KIND, 104, *EXTENTS, gpu=H200)
    assert made().of(104) == chosen.of(100), "it does not matter which M came first"


@pytest.mark.parametrize("condition", ["cold", "warm"])
def test_what_was_measured_comes_first(condition: str) -> None:
    measure(100, slower(100), condition)
    chosen = made()
    assert chosen.of(100) == slower(100)
    assert chosen.of(99) == pick(KIND, 104, *EXTENTS, gpu=H200), "it was measured for that M alone"


def test_a_cold_cache_comes_before_a_warm_one() -> None:
    other = ranking(KIND, 100, *EXTENTS, gpu=H200)[3].candidate
    measure(100, slower(100), "warm")
    measure(100, other, "cold")
    assert made().of(100) == other


def test_the_database_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(choices, "tuned", lambda of, *rest: asked.append(of(None).record["m"]))
    chosen = made()
    for m in (1, 100, 100, 1):
        chosen.of(m)
    assert asked == [1, 100]
    monkeypatch.setattr(choices, "_MOST", 2)
    chosen.of(7)
    assert len(chosen._looked_up) <= 2
    generation.begin()
    chosen.of(7)
    assert asked == [1, 100, 7, 7]


def test_what_is_measured_meanwhile_is_taken_after_a_tuner() -> None:
    chosen = made()
    before = chosen.of(100)
    measure(100, slower(100))
    assert chosen.of(100) == before
    generation.begin()
    assert chosen.of(100) == slower(100)


def test_a_pickled_plan_keeps_its_choice() -> None:
    measure(64, slower(64))
    plan = copy.copy(PLAN)
    plan._device, plan._choices = 0, (chosen := made())
    before = chosen.of(100), chosen.of(64)
    measure(100, slower(100))
    again = pickle.loads(pickle.dumps(plan))
    assert (again._choices.of(100), again._choices.of(64)) == before
    assert again._choices.of(1000) == pick(KIND, 1024, *EXTENTS, gpu=H200)
    assert set(again._choices.made()) >= set(before)


def test_without_a_compiler_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(memo: Any) -> str:
        raise pycutlass.errors.ToolkitError("there is no compiler")

    measure(100, slower(100))
    machine_of.cache_clear()
    monkeypatch.setattr(measured, "device_compiler_release", missing)
    assert tuned(lambda source: made()._recorded(100, source), None, 0) is None


def test_a_named_database_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "other.db").write_text("no database")
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "other.db"))
    with pytest.raises(pycutlass.errors.CacheError):
        made().of(100)
