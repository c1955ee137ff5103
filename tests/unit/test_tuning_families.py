"""Convolutions and groups in the tuner: problems of plans and files, what is right, races and reports."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest
from tuned import GPU, MACHINE, Instantly, Noisy

import pycutlass
from pycutlass import cutlass, reference
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.trials import Database
from pycutlass.tuning import Conv2dProblem, GroupProblem, TuningOptions, TuningReport
from pycutlass.tuning.files import read_problems
from pycutlass.tuning.known import Known
from pycutlass.tuning.problems import considered, problems_of, with_options
from pycutlass.tuning.race import Contestant
from pycutlass.tuning.tuner import tune_problem

SPEC = pycutlass.TensorSpec
A100 = Device(0, "NVIDIA A100", 80, 108)
DIRECTIONS: dict[str, tuple[Any, Any, Any]] = {  # a, b and the size of a gradient, of a 3x2 filter with stride 2
    "fprop": ((3, 9, 8, 8), (16, 3, 2, 8), None),
    "dgrad": ((3, 5, 5, 16), (16, 3, 2, 8), (3, 9, 8, 8)),
    "wgrad": ((3, 5, 5, 16), (3, 9, 8, 8), (16, 3, 2, 8)),
}


def conv(kind: str = "fprop", dtype: str = "float16", groups: int = 1, **options: Any) -> pycutlass.Conv2d:
    a, b, result = DIRECTIONS[kind]
    c = 8 // groups
    b, result = ((*b[:3], c), result) if kind != "wgrad" else (b, (*result[:3], c))
    specs = SPEC(a, dtype), SPEC(b, dtype)
    return pycutlass.Conv2d(*specs, kind=kind, result_size=result, padding=1, stride=2, groups=groups, **options)


def group(*rows: int, dtype: str = "float16") -> pycutlass.GroupedGemm:
    return pycutlass.GroupedGemm([SPEC((each, 64), dtype) for each in rows], [SPEC((64, 128), dtype)] * len(rows))


def test_plans_of_all_families_are_problems() -> None:
    plans = [conv(), conv("dgrad"), conv("wgrad", groups=2), group(5, 0, 30)]
    problems = problems_of(plans)
    assert [type(each) for each in problems] == [Conv2dProblem] * 3 + [GroupProblem]
    assert pickle.loads(pickle.dumps(problems)) == problems
    assert len({*problems, *problems_of(plans)}) == 4
    for problem in problems:
        assert considered(problem, TuningOptions(most_candidates=3), A100)
        assert problems_of(problem) == [problem]


def test_what_a_ranking_has_last_is_considered_last() -> None:
    """However fast the analytic algorithm is predicted to be, it is for what no other takes."""
    problem, ranked = problems_of(conv())[0], conv().candidates()
    analytic = [each.candidate.operation.iterator_algorithm.name == "analytic" for each in ranked]
    assert any(analytic) and sorted(analytic) == analytic
    every = considered(problem, TuningOptions(most_candidates=10_000), A100)
    assert [each[0] for each in every] == [each.candidate for each in problem.ranked(A100)]
    lesser = TuningOptions(most_candidates=10_000, profile_all_alignments=True)
    assert {each[0] for each in considered(problem, lesser, A100)} > {each[0] for each in every}


def test_what_a_convolution_computes_and_moves() -> None:
    problem = problems_of(conv(groups=2))[0]
    assert problem.operations == 2 * (3 * 5 * 5) * 16 * (3 * 2 * 4)
    assert problem.bytes == 2 * (3 * 9 * 8 * 8 + 16 * 3 * 2 * 4 + 3 * 5 * 5 * 16)
    assert problem.name == "fprop 3x9x8x8 by 16 of 3x2, stride 2, padding 1, 2 groups, f16 x f16 -> f16"


def test_what_a_group_computes_and_moves_is_what_is_measured() -> None:
    problem = problems_of(group(*[64] * 5))[0]
    assert isinstance(problem, GroupProblem) and problem.measured_sizes == ((64, 128, 64),) * 5
    assert problem.operations == 5 * 2 * 64 * 128 * 64
    assert problem.bytes == 5 * 2 * (64 * 64 + 64 * 128 + 64 * 128)
    spread = problems_of(group(*range(1, 64)))[0]
    assert isinstance(spread, GroupProblem)
    rows = [m for m, _, _ in spread.measured_sizes]
    assert len(rows) == 64 and len(set(rows)) == 8 and sum(rows) / 64 == pytest.approx(32, rel=0.1)


def test_measured_sizes_are_as_aligned_as_the_kind() -> None:
    xs = [SPEC((rows, 64), "float16", (1, rows)) for rows in (8, 48, 24)]
    plan = pycutlass.GroupedGemm(xs, [SPEC((64, 128), "float16")] * 3)
    assert plan.kind.A.layout is cutlass.ColumnMajor and plan.kind.A.alignment == 8
    problem = problems_of(plan)[0]
    assert isinstance(problem, GroupProblem)
    assert all(m % 8 == 0 for m, _, _ in problem.measured_sizes)
    assert considered(problem, TuningOptions(), A100)


def test_where_the_device_knows_the_sizes_it_makes_the_schedule() -> None:
    plan = group(*[64] * 5)
    sizes = plan.sizes
    on_host, on_device = (GroupProblem(plan.kind, sizes, on_device=where) for where in (False, True))
    modes = [
        {
            each[0].operation.precompute_mode.name
            for each in considered(problem, TuningOptions(most_candidates=999), A100)
        }
        for problem in (on_host, on_device)
    ]
    assert modes == [{"Host", "Device"}, {"Device"}]
    assert on_host.record() == on_device.record() and problems_of(plan) == [on_host]
    plan._on_device = True
    assert problems_of(plan) == [on_device]
    with pytest.raises(ArgumentTypeError, match="on_device must be True or False, got 1"):
        GroupProblem(plan.kind, sizes, 0, 1)


def test_problems_that_are_none() -> None:
    kind, size = conv().kind, conv().problem_size
    size.N = 0
    with pytest.raises(ArgumentError, match="operand without elements: there is nothing to measure"):
        Conv2dProblem(kind, size)
    with pytest.raises(ArgumentTypeError, match=r"problem_size must be a cutlass\.conv\.Conv2dProblemSize, got \(1"):
        Conv2dProblem(kind, (1, 2))
    with pytest.raises(ArgumentTypeError, match=r"kind must be a pycutlass\.plan\.Conv2dKind"):
        Conv2dProblem(group(3).kind, conv().problem_size)
    kind = group(3).kind
    for sizes, error, said in (
        ([], ArgumentError, "no product of the group has elements"),
        ([(0, 8, 8)], ArgumentError, "no product of the group has elements"),
        ([(8, 8, 0)], ArgumentError, "no product of the group has elements and something to sum"),
        ("abc", ArgumentTypeError, "sizes must be a list"),
        (3, ArgumentTypeError, "sizes must be a list"),
        ([(1, 2)], ArgumentTypeError, r"sizes\[0\] must be three integers"),
        ([(1, 2, 3), (1, 2, -3)], ArgumentError, r"sizes\[1\] must have M, N and K from 0"),
    ):
        with pytest.raises(error, match=said):
            GroupProblem(kind, sizes)
    with pytest.raises(ArgumentError, match="axis must be 0 for M, 1 for N or 2 for K, got 3"):
        GroupProblem(kind, [(8, 8, 8)], 3)


def test_the_problem_of_a_plan_does_not_change_with_what_the_user_has() -> None:
    size = conv().problem_size
    problem = Conv2dProblem(conv().kind, size)
    size.N = 77
    assert problem.problem_size.N == 3


@pytest.mark.parametrize("plan", [conv(dtype="float32", precision="3xtf32"), conv("wgrad", "float32")])
def test_one_tf32_product_is_what_plans_of_tf32_have(plan: pycutlass.Conv2d) -> None:
    problem = problems_of(plan)[0]
    once = with_options(problem, TuningOptions(use_3xtf32=False))
    if plan.kind.is_full_f32:
        assert once is problem
        return
    assert once.record() == problems_of(conv(dtype="float32", precision="tf32"))[0].record()
    assert considered(once, TuningOptions(), A100)


@pytest.mark.parametrize("plan", [conv(), conv("wgrad"), group(9, 64, 300)], ids=["fprop", "wgrad", "group"])
def test_a_race_is_reported_and_kept(plan: Any, tmp_path: Any) -> None:
    database, options, problem = (
        Database(tmp_path / "trials.db"),
        TuningOptions(most_candidates=3),
        problems_of(plan)[0],
    )
    measurer = Noisy([30.0, 10.0, 20.0])

    def tuned(times: Noisy) -> Any:
        contestants = [Contestant(*each) for each in considered(problem, options, GPU)]
        known, until = Known(database, MACHINE, options), time.monotonic() + 20
        return tune_problem(
            problem, contestants, GPU, options, until, known, measurer=lambda *_: times, compiling=Instantly
        )

    report = tuned(measurer)
    best = considered(problem, options, GPU)[1][0]
    assert report.best == best and measurer.asked
    kept = database.best(problem.record(), MACHINE)
    assert kept is not None and kept.time == pytest.approx(report.measured[0].median)
    assert report.title.startswith(f"{problem.name} on NVIDIA H200")
    assert report.gflops(report.measured[0]) == pytest.approx(problem.operations / report.measured[0].median / 1e3)
    assert 0 < report.roofline(report.measured[0]) < 1
    assert best.name in str(TuningReport((report,)))
    again = Noisy([1.0, 1.0, 1.0])
    assert tuned(again).best == best and not again.asked
    database.close()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("share", [1.0, 0.0])
def test_the_reference_of_a_convolution_is_its_reference(direction: str, groups: int, share: float) -> None:
    """The part that is checked is that of the whole, which another function computes."""
    plan = conv(direction, "float32", groups)
    work, random = problems_of(plan)[0].work(), np.random.default_rng(0)
    ((of_a, of_b, of_c, of_d),) = work.shapes
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in (of_a, of_b))
    part = work.part(plan.candidate, 0, a, b, share)
    whole = reference.conv2d(plan.operation, plan.problem_size, a, b, None, exact=True)
    assert whole.shape == of_c == of_d
    np.testing.assert_allclose(part.sums, work.matrix(whole)[part.rows], rtol=1e-12, atol=1e-12)
    pixels = 1 if direction == "wgrad" else of_d[1] * of_d[2]
    assert len(part.sums) == pixels * (of_d[0] if share else 8 if direction == "wgrad" else 1)
    assert part.is_whole == bool(share)


def test_convolutions_are_read_from_a_file(tmp_path: Any) -> None:
    """As plans of the same tensors are."""
    file, spec = tmp_path / "problems.csv", pycutlass.TensorSpec
    lines = ["2,8,8,16,24,3,3,1,,", "2,8,8,16,24,3,3,1,dgrad,tf32", "2,8,8,16,24,3,3,1,wgrad,bfloat16"]
    file.write_text("\n".join(["n,h,w,c,k,r,s,padding,kind,dtype", *lines]))
    x, w, y = (2, 8, 8, 16), (24, 3, 3, 16), (2, 8, 8, 24)
    plans = [
        pycutlass.Conv2d(spec(x, "float16"), spec(w, "float16"), padding=1),
        pycutlass.Conv2d(
            spec(y, "float32"), spec(w, "float32"), kind="dgrad", result_size=x, padding=1, precision="tf32"
        ),
        pycutlass.Conv2d(spec(y, "bfloat16"), spec(x, "bfloat16"), kind="wgrad", result_size=w, padding=1),
    ]
    assert read_problems(file) == problems_of(plans)
    assert considered(read_problems(file)[1], TuningOptions(), GPU)
