"""`tune` of a partitioned model: one run for all regions, and times where plans find them; measured by stand-ins."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from tuned import GPU, MACHINE, Instantly, Noisy

import pycutlass.pytorch
from pycutlass.errors import ArgumentError, ArgumentTypeError, DeviceError
from pycutlass.plan.measured import fastest_measured
from pycutlass.pytorch import tuned as module
from pycutlass.pytorch.regions.plans import inputs_of, plan_of
from pycutlass.trials import Database
from pycutlass.tuning import tuner
from pycutlass.tuning.problems import problems_of


class Layers(nn.Module):
    """Two equal layers and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return numbers of 16 columns."""
        y: torch.Tensor = self.last(self.second(self.first(x).relu()).relu())
        return y


@functools.cache  # to capture it takes seconds
def partitioned(dynamic: bool = False, **options: Any) -> Any:
    torch.manual_seed(0)
    x = torch.randn(32, 64, dtype=torch.float16)
    return pycutlass.pytorch.partition(Layers().half().eval(), x, dynamic or None, options={"min_gain": 0, **options})


class Run:
    """What the tuner was given."""

    def __init__(self) -> None:
        self.options: list[Any] = []
        self.problems: list[Any] = []
        self.deadlines: list[float] = []


@pytest.fixture
def run(monkeypatch, tmp_path) -> Run:
    """A machine with a GPU, of which all that would be measured is made up."""
    made = Run()
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("pycutlass.device.require", lambda: None)
    monkeypatch.setattr(tuner, "_first_gpu", lambda: GPU)
    monkeypatch.setattr(tuner, "machine_of", lambda ordinal: MACHINE)
    monkeypatch.setattr(module, "gpu_of", lambda sm: GPU)
    measures = functools.partial(tuner.tune_problem, compiling=Instantly)

    def tuned(problem: Any, contestants: Any, gpu: Any, options: Any, deadline: float, *rest: Any, **named: Any) -> Any:
        made.problems.append(problem)
        made.options.append(options)
        made.deadlines.append(deadline)
        times = [20.0 - number for number in range(len(contestants))]  # the last is the fastest
        return measures(problem, contestants, gpu, options, deadline, *rest, measurer=lambda *_: Noisy(times), **named)

    monkeypatch.setattr(tuner, "tune_problem", tuned)
    monkeypatch.setattr(module, "times_of", lambda region, inputs: (30.0, 10.0))
    monkeypatch.setattr(module, "inputs_of", lambda graph, sizes, device: inputs_of(graph, sizes, "cpu"))
    return made


def test_equal_problems_are_tuned_once_and_reported_each(run):
    made = pycutlass.pytorch.tune(partitioned(), {"find_first_valid": False})
    assert [each.region.name for each in made.regions] == ["pycutlass_0", "pycutlass_1", "pycutlass_2"]
    assert len(run.problems) == len(made.report) == 2
    assert made[0].report is made[1].report is not made[2].report
    assert all(each.kernel and each.microseconds and each.speedup == 3.0 for each in made.regions)
    first = made[0].report.measured[0]
    assert made[0].kernel == first.candidate.name and made[0].microseconds == first.median
    assert made[0].gflops == pytest.approx(2 * 32 * 64 * 64 / first.median / 1e3)


def test_the_report_prints_as_a_table(run):
    lines = str(pycutlass.pytorch.tune(partitioned())).splitlines()
    assert lines[0] == "3 regions, 2 problems on NVIDIA H200"
    assert lines[1].split() == ["region", "computes", "size", "kernel", "us", "GFLOP/s", "torch", "us", "speedup"]
    assert re.match(r"pycutlass_0  linear \+ relu +32x64x64 float16 .* 30.00 +3.00$", lines[2])
    assert len(lines) == 5


def test_plans_of_regions_find_what_was_measured(run, monkeypatch):
    model = partitioned()
    made = pycutlass.pytorch.tune(model, {"find_first_valid": False})
    plans = operators_plans(model, monkeypatch)
    database = Database(make=False)
    for region, plan in zip(made.regions, plans, strict=True):
        recorded = plan._choices._recorded(plan.size[0], plan.source)
        found = fastest_measured(database, MACHINE, recorded)
        assert found is not None and found[0] == region.report.best
        assert found[1].time == pytest.approx(region.microseconds)


def operators_plans(model: Any, monkeypatch: Any) -> list[Any]:
    """Return the plans that the operators of regions make when the model runs."""
    from pycutlass.plan import matmul

    plans: list[Any] = []
    make = matmul._plan_of

    def kept(*given: Any) -> Any:
        plans.append(make(*given))
        return plans[-1]

    monkeypatch.setattr(matmul, "_plan_of", kept)
    with torch.no_grad():
        model(torch.randn(32, 64, dtype=torch.float16))
    return plans


def test_options_reach_the_tuner(run, tmp_path):
    options = {
        "use_3xtf32": False,
        "split_k_slices": (1, 2),
        "profile_all_alignments": True,
        "find_first_valid": False,
        "use_multiprocessing": False,
        "threads": 3,
        "tmp_dir": tmp_path,
        "budget": "40s",
    }
    pycutlass.pytorch.tune(partitioned(), options)
    for given in run.options:
        assert (given.use_3xtf32, given.split_k_slices, given.profile_all_alignments) == (False, (1, 2), True)
        assert (given.find_first_valid, given.use_multiprocessing, given.threads) == (False, False, 3)
        assert given.tmp_dir == tmp_path
    assert run.deadlines[-1] - run.deadlines[0] < 40


def test_options_are_those_of_the_partition_by_default(run):
    pycutlass.pytorch.tune(partitioned(threads=2))
    assert {given.threads for given in run.options} == {2}
    assert {given.find_first_valid for given in run.options} == {True}


def test_slices_that_are_left_out_are_not_measured(run):
    made = pycutlass.pytorch.tune(partitioned(), {"split_k_slices": (1,), "find_first_valid": False})
    assert {each.candidate.split_k_slices for each in made.report[0].contestants} == {1}
    made = pycutlass.pytorch.tune(partitioned(), {"split_k_slices": (2,), "find_first_valid": False})
    assert {each.candidate.split_k_slices for each in made.report[0].contestants} == {2}


def test_the_first_valid_one_ends_it(run):
    made = pycutlass.pytorch.tune(partitioned(), {"find_first_valid": True})
    assert [len(each.measured) for each in made.report.problems] == [1, 1]


def test_a_database_can_be_named(run, tmp_path):
    pycutlass.pytorch.tune(partitioned(), {"database": tmp_path / "mine.db"})
    assert Database(tmp_path / "mine.db", make=False).trials() and not Database(make=False).trials()
    with pytest.raises(ArgumentTypeError, match="database must be a path"):
        pycutlass.pytorch.Options(database=3)


def test_sizes_of_symbols(run):
    model = partitioned(dynamic=True)
    made = pycutlass.pytorch.tune(model)
    [(symbol, number)] = made.sizes.items()
    assert number == 32 and made[0].problem == "32x64x64 float16"
    made = pycutlass.pytorch.tune(model, sizes={symbol: 512})
    assert made[0].problem == "512x64x64 float16" and run.problems[-1].m == 512
    assert f"{symbol} = 512" in str(made)
    with pytest.raises(ArgumentError, match="sizes has 'rows', which is no symbol"):
        pycutlass.pytorch.tune(model, sizes={"rows": 512})


def test_what_a_partition_has_decided_is_refused_otherwise(run):
    with pytest.raises(ArgumentError, match="partitioned with use_fast_math=False: partition it again"):
        pycutlass.pytorch.tune(partitioned(), {"use_fast_math": True})
    pycutlass.pytorch.tune(partitioned(use_fast_math=True), {"use_fast_math": True})
    assert run.problems


def test_another_gpu_is_refused(run, monkeypatch):
    monkeypatch.setattr(module, "is_here", lambda sm: sm in (None, 90))
    with pytest.raises(ArgumentError, match="sm=80 is not the compute capability of NVIDIA H200, 90"):
        pycutlass.pytorch.tune(partitioned(), {"sm": 80})
    assert not run.problems


def test_a_region_that_compiles_to_nothing_says_why(run, monkeypatch):
    def broken(candidates: Any, *rest: Any) -> Any:
        return Instantly(candidates, *rest, broken=range(len(candidates)))

    monkeypatch.setattr(tuner, "tune_problem", functools.partial(tuner_of_before, compiling=broken))
    made = pycutlass.pytorch.tune(partitioned())
    assert made[0].microseconds is None and made[0].speedup is None and made[0].gflops is None
    assert "none: error: it does not compile" in str(made)


def tuner_of_before(problem: Any, contestants: Any, gpu: Any, *rest: Any, **named: Any) -> Any:
    return ORIGINAL(problem, contestants, gpu, *rest, measurer=lambda *_: Noisy([]), **named)


ORIGINAL = tuner.tune_problem


def test_a_model_without_regions(run):
    made = pycutlass.pytorch.tune(pycutlass.pytorch.partition(nn.ReLU(), torch.ones(4)))
    assert len(made) == 0 and str(made) == "0 regions, 0 problems on NVIDIA H200"


def test_a_model_has_to_be_partitioned_first():
    with pytest.raises(ArgumentTypeError, match="partition the model first"):
        pycutlass.pytorch.tune(Layers())


def test_without_a_gpu_it_says_so_first():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="Measuring needs one"):
        pycutlass.pytorch.tune(partitioned())


def test_inputs_are_those_of_the_region():
    model = partitioned(dynamic=True)
    [symbol] = model.regions[0].problem.symbols
    region = model.get_submodule("pycutlass_0")
    inputs = inputs_of(region.fused.graph, {symbol: 48}, "cpu")
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    assert {(48, 64), (64, 64), (64,)} == {tuple(each.shape) for each in tensors}
    assert {each.dtype for each in tensors} == {torch.float16}
    with torch.no_grad():
        [plain], [fused] = region.plain(*inputs), region.fused(*inputs)
    assert plain.shape == (48, 64)
    torch.testing.assert_close(fused, plain, atol=1e-2, rtol=1e-2)


def test_problems_are_those_of_the_regions_plans():
    model = partitioned()
    problems = [problems_of(plan_of(region, {}))[0] for region in model.regions]
    assert problems[0] == problems[1] != problems[2] and hash(problems[0]) == hash(problems[1])
