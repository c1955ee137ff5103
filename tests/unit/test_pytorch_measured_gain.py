"""Regions whose times are in a database: these decide, and not what is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pycutlass.pytorch  # noqa: E402
from pycutlass.pytorch import InductorPass, Options  # noqa: E402
from pycutlass.pytorch.regions import gain  # noqa: E402
from pycutlass.pytorch.regions.plans import plan_of  # noqa: E402
from pycutlass.trials import Database, Machine, Trial  # noqa: E402
from pycutlass.tuning.problems import problems_of  # noqa: E402

H200 = Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0", 700)
MODEL = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()).bfloat16()
ROWS = torch.ones(512, 4096, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "is_here", lambda sm: True)
    monkeypatch.setattr(gain, "machine_of", lambda ordinal: H200)


def record_of(partition: Any) -> dict[str, Any]:
    """Return what `tune` calls the problem of the only region."""
    [region] = partition.regions
    return problems_of(plan_of(region, {}))[0].record()


def measured(record: dict[str, Any], microseconds: float) -> Trial:
    return Trial(record, {"a": 1}, H200, time=microseconds, low=microseconds, high=microseconds, rounds=9)


def partition(database: Database) -> Any:
    return pycutlass.pytorch.partition(MODEL, ROWS, options={"database": database})


def test_what_was_measured_decides(tmp_path: Path) -> None:
    database = Database(tmp_path / "trials.db")
    predicted = partition(database)
    record = record_of(predicted)
    assert "by prediction" in str(predicted.regions[0])

    database.add(measured(record, 20.0))
    [region] = partition(database).regions
    assert region.is_measured and "as measured" in str(region)
    assert region.gain is not None and region.gain > predicted.regions[0].gain

    database.remove(database.trials())
    database.add(measured(record, 200.0))
    slow = partition(database)
    assert slow.regions == ()
    assert "would take 200.0 us as a region as measured" in slow.left["linear"]

    database.add(measured({**record, "m": 1024}, 1.0))  # another problem
    assert partition(database).regions == ()


def test_what_the_product_takes_alone_counts_as_well(tmp_path: Path) -> None:
    """A plain product that is measured to be fast leaves the region less to gain."""
    database = Database(tmp_path / "trials.db")
    before = partition(database).regions[0].gain
    plain = {**record_of(partition(database)), "called": "f", "epilogue": alone()}
    database.add(measured(plain, 10.0))
    after = partition(database)
    assert after.regions == () or after.regions[0].gain < before


def alone() -> str:
    """Return what a record calls the function that stores the sums as they are."""
    stored = pycutlass.epilogue_function(lambda accum: accum)
    plan = pycutlass.Gemm(ROWS[:8, :64].clone(), ROWS[:64, :64].clone(), epilogue=stored)
    return str(problems_of(plan)[0].record()["epilogue"])


def test_other_machines_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "trials.db")
    database.add(measured(record_of(partition(database)), 200.0))
    assert partition(database).regions == ()
    for name, value in (
        ("machine_of", lambda ordinal: Machine("NVIDIA H100", 132, 90, "4.2.0", "nvcc 13", "0.1.0")),
        ("is_here", lambda sm: False),
    ):
        monkeypatch.setattr(gain, name, value)
        assert len(partition(database).regions) == 1


def test_caches_of_graphs_tell_databases_apart(tmp_path: Path) -> None:
    """A graph that was compiled before something was measured is not taken for one that is compiled after it."""
    database = Database(tmp_path / "trials.db")
    graphs = InductorPass(Options(database=database))
    before = graphs.uuid()
    assert graphs.uuid() == before
    database.add(measured({"m": 1}, 2.0))
    after = graphs.uuid()
    assert after != before
    database.add(measured({"m": 2}, 2.0))
    assert graphs.uuid() not in (before, after)
