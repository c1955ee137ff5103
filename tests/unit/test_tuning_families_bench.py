"""Convolutions and groups in the process that measures, and tuned whole, on a stand-in for the driver."""

from __future__ import annotations

import fake_gpu
import pytest

_CONV = """
from pycutlass import cutlass, timing
from pycutlass.plan import Conv2dCandidate, Conv2dKind
from pycutlass.tuning import Conv2dProblem, GroupProblem, TuningOptions
from pycutlass.tuning.bench import GpuBench
from pycutlass.tuning.measuring import WrongResultError
timing._LEAST_FLUSHED_BYTES = 3000
operation = fprop()
math = operation.tile_description.math_instruction

def bench(groups=1, **options):
    kind = Conv2dKind(operation.conv_kind, operation.A, operation.B, operation.C, math.element_a, math.element_b,
                      math.element_accumulator, math.math_operation, operation.epilogue_functor, groups > 1)
    size = cutlass.conv.Conv2dProblemSize(N=2, H=5, W=6, C=4, K=6, R=3, S=2, groups=groups)
    return GpuBench(Conv2dProblem(kind, size), TuningOptions(**options))

def artifacts_of(candidate):
    return [dict(each.artifacts) for each in candidate.kernels]

def wrong(made, candidate, *words):
    try:
        made.prepare(0, candidate, artifacts_of(candidate), True)
    except WrongResultError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("not seen")
"""

_GROUP = """
from pycutlass import timing
from pycutlass.plan import GemmKind, GroupCandidate
from pycutlass.tuning import GroupProblem, TuningOptions
from pycutlass.tuning.bench import GpuBench
from pycutlass.tuning.measuring import WrongResultError
timing._LEAST_FLUSHED_BYTES = 3000

def bench(sizes, mode="device", **options):
    operation = group(mode)
    math = operation.tile_description.math_instruction
    kind = GemmKind(operation.A, operation.B, operation.C, operation.C, math.element_a, math.element_b,
                    math.element_accumulator, math.math_operation, operation.epilogue_functor)
    return GpuBench(GroupProblem(kind, sizes), TuningOptions(**options)), GroupCandidate(operation)
"""


@pytest.mark.parametrize("groups", [1, 2])
def test_a_right_convolution_is_measured(groups: int) -> None:
    """Of channels in groups there is a launch for each, on parts of the same memory."""
    fake_gpu.run(f"""{_CONV}
made = bench({groups})
candidate = Conv2dCandidate(operation, is_by_group={groups > 1})
made.prepare(0, candidate, artifacts_of(candidate), True)
times = made.measure(0)
assert len(times) == 3 and all(abs(time - 5 * {groups}) < 0.2 for time in times), times
""")


@pytest.mark.parametrize("groups", [1, 2])
def test_split_k_of_a_convolution_is_measured_with_its_reduction(groups: int) -> None:
    fake_gpu.run(f"""{_CONV}
made = bench({groups})
split = Conv2dCandidate(operation, 2, True, {groups > 1})
split.__dict__["reduction"] = reduction(operation, 30, 6 // {groups})
made.prepare(0, split, artifacts_of(split), True)
times = made.measure(0)
assert all(abs(time - 10 * {groups}) < 0.2 for time in times), times
""")


def test_a_wrong_convolution_is_seen() -> None:
    fake_gpu.run(f"""{_CONV}
made, candidate = bench(), Conv2dCandidate(operation)
made._b._drawn = {{shape: values + np.float32(0.01) for shape, values in made._b._drawn.items()}}
wrong(made, candidate, "elements that were checked are wrong, the first at (")
made = bench()
made._launch = lambda candidate: lambda: None
wrong(made, candidate, "180 of 180 elements", "nan instead of")
""")


@pytest.mark.parametrize("mode", ["device", "host"])
def test_a_right_group_is_measured(mode: str) -> None:
    fake_gpu.run(f"""{_GROUP}
made, candidate = bench([(5, 6, 7), (9, 6, 7), (0, 6, 7), (3, 2, 4)], "{mode}")
assert len(made._work.shapes) == 3
made.prepare(0, candidate, [dict(candidate.operation.artifacts)], True)
times = made.measure(0)
assert len(times) == 3 and all(abs(time - 5) < 0.2 for time in times), times
""")


def test_a_wrong_product_of_a_group_is_seen() -> None:
    """Operands of one shape differ, so that one product in the place of another is wrong."""
    fake_gpu.run(f"""{_GROUP}
made, candidate = bench([(8, 6, 7)] * 3)
artifacts = [dict(candidate.operation.artifacts)]
made.prepare(0, candidate, artifacts, True)
made._B[1], made._B[2] = made._B[2], made._B[1]
try:
    made.prepare(0, candidate, artifacts, True)
except WrongResultError as error:
    assert "elements of problem 1 that were checked are wrong" in str(error), error
else:
    raise AssertionError("not seen")
""")


def test_what_a_group_writes_between_results_is_seen() -> None:
    fake_gpu.run(f"""{_GROUP}
made, candidate = bench([(8, 6, 7)] * 3)
launch = made._launch
between = made._places[0].stop
assert between < made._places[1].start - 4096 + 256
def stray(candidate):
    right = launch(candidate)
    def both():
        right()
        pycutlass._core.fill(made._buffer.pointer + between, 0, 1, made._stream)
    return both
made._launch = stray
try:
    made.prepare(0, candidate, [dict(candidate.operation.artifacts)], True)
except WrongResultError as error:
    assert str(error) == "it wrote beside D", error
else:
    raise AssertionError("not seen")
""")


_TUNED = """
import functools
import os
import tempfile
from pathlib import Path
from pycutlass.plan import Conv2dCandidate, Conv2dKind, GemmKind, GroupCandidate
from pycutlass.tuning import tuner
from pycutlass.tuning.measuring import ChildMeasurer
from pycutlass.plan.group_pick import typical
from tuned import Instantly

os.environ["PYCUTLASS_DATABASE"] = str(Path(tempfile.mkdtemp()) / "trials.db")

class Compiled(Instantly):
    def __init__(self, candidates, *rest):
        super().__init__(candidates)
        self.made = [[dict(kernel.artifacts) for kernel in each.kernels] for each in candidates]

    def ready(self, seconds):
        return [(number, self.made[number]) for number, _ in super().ready(seconds)]

def tuned(plan, candidates):
    # Kernels of the stand-in take the place of those that the model considers; all else is as for users.
    tuner.considered = lambda problem, options, gpu, fastest: [(each, problem.kind, 1.0) for each in candidates]
    measurer = functools.partial(ChildMeasurer, function="fake_bench:serve_on_stand_in")
    tune = functools.partial(tune_problem, measurer=measurer, compiling=Compiled)
    tuner.tune_problem = tune
    assert plan.candidate not in candidates
    report = plan.tune("30s")
    assert not [each for each in report.contestants if each.status != "ok"], str(report)
    assert plan.candidate == report.best and report.best in candidates, str(report)
    return report

tune_problem = tuner.tune_problem
f32 = functools.partial(pycutlass.TensorSpec, dtype="float32")

def parts_of(operation):
    math = operation.tile_description.math_instruction
    return (math.element_a, math.element_b, math.element_accumulator, math.math_operation, operation.epilogue_functor)
"""


def test_a_plan_of_convolutions_is_tuned_from_the_first_step_to_the_last() -> None:
    """In the process that measures, into the database, and from there by the plan and by a new one."""
    fake_gpu.run(f"""{_TUNED}
operation = fprop()

def plan_of():
    plan = pycutlass.Conv2d(f32((2, 5, 6, 4)), f32((6, 3, 2, 4)))
    plan.kind = Conv2dKind(operation.conv_kind, operation.A, operation.B, operation.C, *parts_of(operation))
    plan._choices._kind = plan.kind
    return plan

plan = plan_of()
best = Conv2dCandidate(operation)
report = tuned(plan, [best])
assert report.problem.name == "fprop 2x5x6x4 by 6 of 3x2, f32 x f32 -> f32"
assert plan_of().candidate == best
again = plan_of().tune("30s")
assert again.measured[0].is_known and again.best == best
""")


def test_a_plan_of_groups_is_tuned_from_the_first_step_to_the_last() -> None:
    """Also where its thread keeps the launch of its last tensors: the next run takes the kernel that was measured."""
    fake_gpu.run(f"""{_TUNED}
operation = group("device")

def plan_of():
    plan = pycutlass.GroupedGemm([f32((m, 7)) for m in (5, 9)], [f32((7, 6), strides=(1, 7))] * 2)
    plan.kind = GemmKind(operation.A, operation.B, operation.C, operation.C, *parts_of(operation))
    plan._choices._kind = plan.kind
    plan._runs._kind = plan.kind
    return plan

plan = plan_of()
best = GroupCandidate(operation)
xs, ws = [on_host(m, 7, m) for m in (5, 9)], [on_host(7, 6, 1, "F")] * 2
other = group("host")
plan._choices._picked = {{(typical(plan.sizes), False): GroupCandidate(other)}}

def run():
    return all(np.array_equal(d, x @ w) for d, x, w in zip(plan.run(xs, ws), xs, ws))

assert run() and run() and plan.candidate.operation == other
report = tuned(plan, [best])
assert report.problem.name.startswith("group of 2 up to ")
assert run() and list(plan._runs._kept)[-1] == best
assert plan_of().candidate == best
""")
