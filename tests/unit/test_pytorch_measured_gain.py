"""Regions whose times are in a database: these decide, and not what is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pycutlass.pytorch  # noqa: E402
from pycutlass.errors import CacheError  # noqa: E402
from pycutlass.plan import ranking  # noqa: E402
from pycutlass.pytorch import InductorPass, Options  # noqa: E402
from pycutlass.pytorch.regions import gain  # noqa: E402
from pycutlass.pytorch.regions.plans import plan_of  # noqa: E402
from pycutlass.trials import Database, Machine, Trial  # noqa: E402
from pycutlass.tuning.problems import problems_of  # noqa: E402

H200 = Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0", 700)
H100 = Machine("NVIDIA H100", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0")
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


def measured(partition: Any, microseconds: float, **other: Any) -> Trial:
    """Return a trial of the problem of the only region, or of one that differs, by the kernel that is planned."""
    [region] = partition.regions
    choice = plan_of(region, {}).candidate.choice()
    times = dict.fromkeys(("time", "low", "high"), microseconds)
    return Trial({**record_of(partition), **other}, choice, H200, rounds=9, **times)


def partition(database: Any) -> Any:
    return pycutlass.pytorch.partition(MODEL, ROWS, options={"database": database})


def test_what_was_measured_decides(tmp_path: Path) -> None:
    """Calls alone are measured, and launches in a queue are predicted: what counts is how far off predictions are."""
    database = Database(tmp_path / "trials.db")
    before = partition(database)
    [predicted] = before.regions
    alone = ranking(plan_of(predicted, {}).kind, 512, 4096, 4096, gpu=gain.planned_for(90))[0].microseconds
    assert "by prediction" in str(predicted)

    for times_as_long in (1.0, 0.9):
        database.add(measured(before, alone * times_as_long))
        [region] = partition(database).regions
        assert region.is_measured and "as measured" in str(region)
        assert 1 - region.gain == pytest.approx((1 - predicted.gain) * times_as_long)

    database.add(measured(before, alone * 3))
    slow = partition(database)
    assert slow.regions == ()
    assert "us as a region as measured" in slow.left["linear"]

    database.add(measured(before, 1.0, m=1024))  # another problem
    assert partition(database).regions == ()
    assert partition_of_all(database).regions != ()


def partition_of_all(database: Database) -> Any:
    return pycutlass.pytorch.partition(MODEL, ROWS, options={"database": database, "min_gain": 0})


def test_a_batch_of_one_is_known_as_the_tuner_calls_it(tmp_path: Path) -> None:
    class Product(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return torch.relu(torch.bmm(a, b))

    given = torch.ones(1, 512, 1024).half(), torch.ones(1, 1024, 512).half()
    database = Database(tmp_path / "trials.db")
    made = pycutlass.pytorch.partition(Product(), given, options={"database": database})
    database.add(measured(made, 500.0))
    assert pycutlass.pytorch.partition(Product(), given, options={"database": database}).regions == ()


def test_what_no_plan_would_take_does_not_count(tmp_path: Path) -> None:
    database = Database(tmp_path / "trials.db")
    record = record_of(partition(database))
    database.add(Trial(record, {"of": "a later version"}, H200, time=999.0, low=999.0, high=999.0, rounds=9))
    [region] = partition(database).regions
    assert not region.is_measured


def test_every_region_needs_no_database(tmp_path: Path) -> None:
    damaged = tmp_path / "trials.db"
    damaged.write_bytes(b"no database" * 100)
    assert len(partition_of_all(damaged).regions) == 1
    with pytest.raises(CacheError):
        partition(damaged)


def test_a_path_is_that_of_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Options(database="trials.db").database == tmp_path / "trials.db"


def test_what_the_product_takes_alone_counts_as_well(tmp_path: Path) -> None:
    """A plain product that is measured to be fast leaves the region less to gain."""
    database = Database(tmp_path / "trials.db")
    before = partition(database)
    database.add(measured(before, 10.0, epilogue=alone()))
    after = partition(database)
    assert after.regions == () or after.regions[0].gain < before.regions[0].gain


def alone() -> str:
    """Return what a record calls the function that stores the sums as they are."""
    stored = pycutlass.epilogue_function(lambda accum: accum)
    plan = pycutlass.Gemm(ROWS[:8, :64].clone(), ROWS[:64, :64].clone(), epilogue=stored)
    return str(problems_of(plan)[0].record()["epilogue"])


def test_other_machines_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "trials.db")
    database.add(measured(partition(database), 200.0))
    assert partition(database).regions == ()
    for name, value in (
        ("machine_of", lambda ordinal: H100),
        ("is_here", lambda sm: False),
    ):
        monkeypatch.setattr(gain, name, value)
        assert len(partition(database).regions) == 1


def test_caches_of_graphs_tell_databases_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that was compiled before something was measured is not taken for one that is compiled after it."""
    database = Database(tmp_path / "trials.db")
    graphs, all_regions = (InductorPass(Options(database=database, min_gain=least)) for least in (0.02, 0))
    without = all_regions.uuid()
    seen = [graphs.uuid(), graphs.uuid()]
    assert seen[0] == seen[1]
    made = partition(database)
    for microseconds in (20.0, 21.0):
        database.add(measured(made, microseconds))
        seen.append(graphs.uuid())
    database.remove(database.trials()[:1])
    seen.append(graphs.uuid())
    monkeypatch.setattr(gain, "machine_of", lambda ordinal: H100)
    seen.append(graphs.uuid())
    assert len(set(seen)) == len(seen) - 1
    assert all_regions.uuid() == without
