"""Several GPUs of one host measure at once: a process for each, which sees no other, on one database."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tuners import kept
from two_tuners import begin, check_kept, finish, wait_for_trials

from pycutlass import device

pytestmark = pytest.mark.slow


def visible() -> list[str]:
    """Return how the GPUs of this process are named to others."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(device.count())]


def test_gpus_of_one_host_measure_at_once(tmp_path: Path) -> None:
    """They are of one model, so each measures what the others have not."""
    gpus = visible()
    names = [f"gpu{number}" for number in range(len(gpus))]
    tuners = [
        begin("measured", tmp_path, name, {"CUDA_VISIBLE_DEVICES": gpu}) for name, gpu in zip(names, gpus, strict=True)
    ]
    try:
        for name in names:
            wait_for_trials(tmp_path / name, 12)
        finish(tmp_path, tuners)
    finally:
        for each in tuners:
            each.kill()
            each.communicate()
    database = check_kept(tmp_path, names)
    models = {device.describe(number).name for number in range(len(gpus))}
    assert {each.machine.gpu for each in database.trials()} == models
    who = Counter(line for name in names for line in {*kept(tmp_path / name)})
    if len(models) == 1:
        assert set(who.values()) == {1}
