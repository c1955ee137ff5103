"""The models that are measured, small and on the host: what they compute, and that ours computes the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the benchmarks are not installed with the package

import pycutlass.pytorch  # noqa: F401
from benchmarks import models

CASES = [case.name for case in models.cases(64, "cpu")]


@pytest.mark.parametrize("number", range(len(CASES)), ids=CASES)
def test_models_compute_what_float64_says(number: int) -> None:
    torch.manual_seed(number)
    case = list(models.cases(64, "cpu"))[number]
    theirs, ours = case.make()
    x = case.input()
    with torch.no_grad():
        exact = models._in_doubles(theirs, x)
        made = theirs(x)
        assert models._error(made, exact) < 0.2
        assert models._error(ours(x), exact) < 0.2
        assert made.dtype == x.dtype


def test_the_parts_are_those_of_the_cases() -> None:
    assert {case.part for case in models.cases(64, "cpu")} == set(models.PARTS)
