"""What the database knows of candidates when a tuner begins, and what plans take of what it measures."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from test_measured_choices import CONV, GROUP, SIZES
from tuned import GPU, MACHINE, PROBLEM, Instantly, Noisy

from pycutlass import device, tuning
from pycutlass.errors import ArgumentError, DescriptionError, DeviceError
from pycutlass.plan import Candidate, Conv2dCandidate, GroupCandidate
from pycutlass.plan.added import Added
from pycutlass.plan.alignments import choice_in
from pycutlass.plan.choices import Choices
from pycutlass.plan.conv_choices import Conv2dChoices
from pycutlass.plan.gemm import gemm_of_kind
from pycutlass.plan.group_choices import GroupChoices
from pycutlass.plan.measured import generation, machine_of
from pycutlass.trials import Database, Trial
from pycutlass.trials.texts import compact
from pycutlass.tuning import TuningOptions
from pycutlass.tuning.known import Known
from pycutlass.tuning.problems import considered, problems_of
from pycutlass.tuning.race import Contestant
from pycutlass.tuning.tuner import tune_problem

EVERY = 10_000


@pytest.fixture
def database(tmp_path: Any) -> Any:
    made = Database(tmp_path / "trials.db")
    yield made
    made.close()


def tuned(database: Database, problem: Any = PROBLEM, fastest: int = 0, machine: Any = MACHINE, **options: Any) -> Any:
    """Tune by dice, as `tune` does, of which the candidate in this place is the fastest; return the report as well."""
    chosen = TuningOptions(**options)
    known = Known(database, machine, chosen)
    contestants = [Contestant(*each) for each in considered(problem, chosen, GPU, known.fastest(problem))]
    measurer = Noisy([10.0 if place == fastest else 20.0 + place for place in range(len(contestants))])
    how: dict[str, Any] = {"measurer": lambda *_: measurer, "compiling": Instantly}
    return tune_problem(problem, contestants, GPU, chosen, time.monotonic() + 60, known, **how), measurer


def is_lesser(contestant: Contestant, problem: Any) -> bool:
    return contestant.kind.A.alignment < problem.kind.A.alignment


@pytest.mark.parametrize("family", ["gemm", "conv2d", "group"])
def test_plans_take_a_kernel_for_lesser_alignments_that_was_the_fastest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, family: str
) -> None:
    monkeypatch.setattr(device, "describe", lambda ordinal=0: GPU)
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "trials.db"))
    machine_of.cache_clear()
    generation.begin()
    problem = PROBLEM if family == "gemm" else problems_of(CONV if family == "conv2d" else GROUP)[0]
    options: dict[str, Any] = {"profile_all_alignments": True, "most_candidates": EVERY, "least_rounds": 3}
    every = considered(problem, TuningOptions(**options), GPU)
    place = next(number for number, each in enumerate(every) if each[1].A.alignment < problem.kind.A.alignment)
    report, _ = tuned(Database(), problem, place, machine_of(0), most_rounds=3, **options)
    assert is_lesser(report.measured[0], problem) and report.best.operation.A.alignment < problem.kind.A.alignment
    assert report.name_of(report.measured[0]) != report.best.name
    generation.begin()

    def chosen() -> Any:
        if family == "gemm":
            return Choices(PROBLEM.kind, PROBLEM.extents[1:], None, 0)
        return Conv2dChoices(CONV.kind, CONV.problem_size, 0) if family == "conv2d" else GroupChoices(GROUP.kind, 0)

    def of(choices: Any) -> Any:
        return choices.of(SIZES, 0, False) if family == "group" else choices.of(1024 if family == "gemm" else 4)

    first = chosen()
    assert of(first) == report.best
    check_explained(family, report.best, first)
    state = pickle.loads(pickle.dumps(first.state()))
    if family == "group":
        assert of(GroupChoices(GROUP.kind, 0, None, state)) == report.best
    elif family == "gemm":
        assert of(Choices(PROBLEM.kind, PROBLEM.extents[1:], None, 0, None, *state)) == report.best
    else:
        assert of(Conv2dChoices(CONV.kind, CONV.problem_size, 0, None, *state)) == report.best


def check_explained(family: str, best: Any, choices: Any) -> None:
    """Another kernel may have the name of one for lesser alignments, which is told apart from it."""
    if family == "gemm":
        plan: Any = gemm_of_kind(PROBLEM.kind, PROBLEM.extents, None, 0, {}, Added(False, False, ""))
    else:
        plan = copy.copy(CONV if family == "conv2d" else GROUP)
        plan._choices = choices
    usual = next((each.candidate for each in plan.candidates() if each.candidate.name == best.name), None)
    text, (a, b) = plan.explain(), (best.operation.A.alignment, best.operation.B.alignment)
    built = f"chosen: {best.name}, built for the lesser alignments {a} of A and {b} of B; it is the fastest"
    assert built in text, text
    assert "not among the kernels that are considered, which are for the alignments that the operands have" in text
    assert text.count("lesser") == 1 and (usual is None or usual != best)


def test_a_choice_of_larger_alignments_than_the_kind_has_is_none() -> None:
    for kind, candidate, family in (
        (PROBLEM.kind, considered(PROBLEM, TuningOptions(), GPU)[0][0], Candidate),
        (CONV.kind, CONV.candidates()[0].candidate, Conv2dCandidate),
        (GROUP.kind, GROUP.candidate, GroupCandidate),
    ):
        choice = json.loads(json.dumps(choice_in(kind, candidate)))
        assert family.of(kind, choice) == candidate
        for wrong in ([16, 8], [8], [8.0, 8], [3, 8], "88", None):
            with pytest.raises((ArgumentError, DescriptionError)):
                family.of(kind, {**choice, "alignments": wrong})


def test_the_best_that_is_known_is_in_the_report_whatever_is_predicted(database: Database) -> None:
    last = considered(PROBLEM, TuningOptions(most_candidates=EVERY), GPU)[-1][0]
    database.add(Trial(PROBLEM.record(), last.choice(), MACHINE, time=1.0, low=1.0, high=1.0, rounds=5))
    report, measurer = tuned(database, most_candidates=3)
    assert report.best == last and report.measured[0].is_known
    assert len(set(measurer.asked)) == 3 and len(report.contestants) == 4
    assert report.measured[0].predicted > report.measured[-1].predicted
    report, measurer = tuned(database, most_candidates=3, split_k_slices=[1, 2])
    assert all(each.candidate.split_k_slices < 3 for each in report.contestants)


def test_the_fastest_that_are_known_are_soon_measured_again(database: Database) -> None:
    every = [each[0] for each in considered(PROBLEM, TuningOptions(most_candidates=EVERY), GPU)]
    for number, each in enumerate(every[-5:]):
        times = {"time": 1.0 + number, "low": 1.0, "high": 9.0}
        database.add(Trial(PROBLEM.record(), each.choice(), MACHINE, **times, rounds=5))
    report, measurer = tuned(database, most_candidates=2, again=True)
    assert {each.candidate for each in report.contestants} == {*every[-5:-3]} and set(measurer.asked) == {0, 1}
    report, _ = tuned(database, most_candidates=7, again=True)
    assert {each.candidate for each in report.contestants} == {*every[-5:], *every[:2]}


def test_what_no_version_describes_does_no_harm(database: Database) -> None:
    for number, choice in enumerate(
        ({"tile": 1}, {"alignments": [3, 3]}, {"alignments": "x"}, {"alignments": [99, 1]})
    ):
        database.add(Trial(PROBLEM.record(), choice, MACHINE, time=1.0 + number, low=1.0, high=9.0, rounds=5))
    report, _ = tuned(database, most_candidates=2)
    assert len(report.measured) == 2


def test_the_first_valid_one_is_found_once(database: Database) -> None:
    report, measurer = tuned(database, find_first_valid=True)
    assert len(set(measurer.asked)) == 1
    again, measurer = tuned(database, find_first_valid=True)
    assert not measurer.asked and again.best == report.best
    again, measurer = tuned(database, find_first_valid=True, again=True)
    assert set(measurer.asked) == {0} and again.best == report.best


def test_names_tell_alignments_apart(database: Database) -> None:
    report, _ = tuned(database, profile_all_alignments=True, most_candidates=EVERY, least_rounds=3, most_rounds=3)
    names = [report.name_of(each) for each in report.contestants]
    assert len(set(names)) == len(names) and any(name.endswith("alignments 2 and 2") for name in names)
    assert np.isfinite(report.measured[0].median)


@pytest.mark.parametrize(("status", "condition"), [("wrong", "cold"), ("wrong", "warm"), ("failed", "warm")])
def test_what_no_plan_would_take_is_not_the_best_of_a_report(database: Database, status: str, condition: str) -> None:
    first, second = (each[0] for each in considered(PROBLEM, TuningOptions(most_candidates=2), GPU))
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    times = {"time": 1.0, "low": 1.0, "high": 1.0, "rounds": 5}
    why = {"status": status, "reason": "it was", "condition": condition}
    ordered = days if status == "failed" else [days[1], days[0], days[2]]  # who was wrong once may be right at times
    database.add(Trial(PROBLEM.record(), first.choice(), MACHINE, **times, date=ordered[0]))
    database.add(Trial(PROBLEM.record(), first.choice(), MACHINE, **why, date=ordered[1]))
    database.add(Trial(PROBLEM.record(), second.choice(), MACHINE, **{**times, "time": 2.0, "high": 2.0}))
    report, measurer = tuned(database, most_candidates=2)
    assert not measurer.asked and report.best == second
    assert database.best(PROBLEM.record(), MACHINE).candidate == compact(second.choice())
    (other,) = (each for each in report.contestants if each.candidate == first)
    assert (other.status, other.reason) == (status, "it was")


def test_a_plan_for_another_gpu_than_the_first_is_not_tuned_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [GPU, GPU, dataclasses.replace(GPU, name="NVIDIA H100 PCIe", sm_count=114)]
    monkeypatch.setattr(device, "describe", gpus.__getitem__)
    monkeypatch.setattr(tuning, "tune", lambda plan, budget: ["tuned"])
    for ordinal, said in ((0, ""), (1, ""), (2, r"for GPU 2, NVIDIA H100 PCIe, .* set CUDA_VISIBLE_DEVICES so that")):
        plan = gemm_of_kind(PROBLEM.kind, PROBLEM.extents, None, ordinal, {}, Added(False, False, ""))
        if said:
            with pytest.raises(DeviceError, match=said):
                plan.tune("1s")
        else:
            assert plan.tune("1s") == "tuned"
