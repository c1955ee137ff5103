"""The tuner on a GPU: kernels are compiled, checked and measured, and what is known is what comes back."""

from __future__ import annotations

import time

import pytest

from pycutlass import device, get_allocated_size
from pycutlass.plan.measured import machine_of
from pycutlass.trials import Database
from pycutlass.tuning import TuningOptions, problem_of, tune
from pycutlass.tuning.compiling import compiled
from pycutlass.tuning.measuring import ChildMeasurer, FailedError
from pycutlass.tuning.problems import considered

pytestmark = pytest.mark.slow


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "trials.db")
    yield made
    made.close()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tf32", "int8"])
def test_the_best_is_found_and_kept(database, dtype):
    problem = problem_of(512, 256, 384, dtype=dtype)
    before, begun = get_allocated_size(), time.monotonic()
    report = tune(problem, "120s", database=database, most_candidates=4)[0]
    assert time.monotonic() - begun < 135
    assert report.best is not None, str(report)
    assert not [each for each in report.contestants if each.status == "wrong"], str(report)
    assert all(0 < report.roofline(each) < 1.05 for each in report.measured), str(report)
    best = database.best(problem.record(), machine_of(device.current()))
    assert best is not None and best.time == pytest.approx(report.measured[0].median)
    assert get_allocated_size() == before  # everything was in the child
    again = tune(problem, "120s", database=database, most_candidates=4)[0]
    assert all(each.is_known for each in again.measured) and again.best == report.best


@pytest.mark.parametrize("options", [{"cold_l2": False}, {"distribution": "integers"}, {"split_k_slices": [2, 4]}])
def test_options(database, options):
    report = tune(problem_of(256, 256, 2048), "120s", database=database, most_candidates=2, **options)[0]
    assert report.best is not None, str(report)


def test_batches(database):
    report = tune(problem_of(64, 128, 256, 5), "120s", database=database, most_candidates=2)[0]
    assert report.best is not None, str(report)


def test_a_process_that_is_killed_is_replaced():
    """Also while its GPU is busy: the next one has memory and operands of its own."""
    problem, options = problem_of(512, 512, 512), TuningOptions(most_candidates=1)
    ((candidate, _, _),) = considered(problem, options, device.describe(device.current()))
    artifacts = compiled(candidate, device.describe(device.current()).target)
    assert not isinstance(artifacts, str), artifacts
    measurer = ChildMeasurer(problem, options)
    try:
        measurer.check(0, candidate, artifacts)
        first = measurer.measure(0, 10.0)
        measurer._child.end()
        with pytest.raises(FailedError):
            measurer.measure(0, 10.0)
        second = measurer.measure(0, 10.0)
        assert 0.3 < min(first) / min(second) < 3
    finally:
        measurer.close()
