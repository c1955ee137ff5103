"""The benchmarks of twenty models and of compiling, as far as they go without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import compiling, models, zoo
from benchmarks.common import BenchmarkError

CASES = list(zoo.cases("cpu"))


def test_there_are_twenty_models() -> None:
    assert len(CASES) == 20 == len({case.name for case in CASES})
    assert {case.part for case in CASES} == set(zoo.PARTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_compute_what_float64_says(case: models.Case) -> None:
    torch.manual_seed(0)
    model, ours = case.make()
    x = case.input()
    x = x if case.name == "graph convolution" else x[: max(1, len(x) // 16)]  # whose rows are those of its neighbours
    with torch.no_grad():
        exact = models._in_doubles(model, x)
        assert models._error(ours(x), exact) < 0.2
        assert not exact.isnan().any() and exact.std() > 0


def test_the_first_call_is_timed_in_a_process_of_its_own(tmp_path: Path) -> None:
    seconds = compiling.first_call("eager", 16, tmp_path, place="cpu", scale=64)
    assert 0 < seconds < 60


def test_a_process_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="no_backend"):
        compiling.first_call("no_backend", 16, tmp_path, place="cpu", scale=64)
