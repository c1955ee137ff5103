"""What was measured of convolutions and of groups is what their plans choose, and the functions of one line as well."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import device
from pycutlass.enums import SchedulerMode
from pycutlass.epilogue import fusions, gelu
from pycutlass.plan import group_choices
from pycutlass.plan.choices import Choices
from pycutlass.plan.conv_choices import Conv2dChoices
from pycutlass.plan.conv_pick import conv2d_pick
from pycutlass.plan.conv_problem import with_images
from pycutlass.plan.group_choices import GroupChoices
from pycutlass.plan.measured import generation, machine_of
from pycutlass.plan.records import conv2d_record, group_record, name_of
from pycutlass.trials import Database, Trial
from pycutlass.tuning import GroupProblem
from pycutlass.tuning.problems import problems_of

A100 = device.Device(0, "NVIDIA A100", 80, 108)
SPEC = pycutlass.TensorSpec
CONV = pycutlass.Conv2d(SPEC((4, 16, 16, 64), "float16"), SPEC((32, 3, 3, 64), "float16"), padding=1)
ROWS = (24, 100, 7)
GROUP = pycutlass.GroupedGemm(
    [SPEC((rows, 64), "float16") for rows in ROWS], [SPEC((64, 128), "float16") for _ in ROWS]
)
SIZES = np.array([(rows, 128, 64) for rows in ROWS], np.int32)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Let there be an A100, of which nobody has measured anything."""
    monkeypatch.setattr(device, "describe", lambda ordinal=0: A100)
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "trials.db"))
    machine_of.cache_clear()
    generation.begin()


def measure(record: Any, candidate: Any, time: float = 1.0, condition: str = "cold") -> None:
    times = {"time": time, "low": time, "high": time, "rounds": 3}
    Database().add(Trial(record, candidate.choice(), machine_of(0), condition=condition, **times))


def conv_choices() -> Conv2dChoices:
    return Conv2dChoices(CONV.kind, CONV.problem_size, 0)


def slowest_conv() -> Any:
    return CONV.candidates()[-1].candidate


def slowest_group(mode: SchedulerMode) -> Any:
    ranked = GroupChoices(GROUP.kind, 0).ranked(SIZES, 0)
    return [each.candidate for each in ranked if each.candidate.operation.precompute_mode is mode][-1]


def test_a_convolution_is_measured_for_its_number_of_images() -> None:
    measure(problems_of(CONV)[0].record(), slowest_conv())
    chosen = conv_choices()
    assert chosen.of(4) == slowest_conv()
    assert chosen.of(3) == conv2d_pick(CONV.kind, with_images(CONV.problem_size, 3), A100)


def test_other_convolutions_have_other_keys() -> None:
    plans = [
        CONV,
        pycutlass.Conv2d(SPEC((4, 16, 16, 64), "float16"), SPEC((32, 3, 3, 64), "float16"), padding=2),
        pycutlass.Conv2d(SPEC((4, 16, 16, 64), "float16"), SPEC((32, 3, 3, 64), "float16"), padding=1, stride=2),
        pycutlass.Conv2d(SPEC((4, 16, 16, 64), "float16"), SPEC((32, 1, 1, 64), "float16")),
        pycutlass.Conv2d(SPEC((4, 16, 16, 64), "float16"), SPEC((32, 3, 3, 16), "float16"), padding=1, groups=4),
        pycutlass.Conv2d(SPEC((4, 16, 16, 64), "bfloat16"), SPEC((32, 3, 3, 64), "bfloat16"), padding=1),
        pycutlass.Conv2d(
            SPEC((4, 16, 16, 32), "float16"), SPEC((32, 3, 3, 64), "float16"), kind="dgrad",
            result_size=(4, 16, 16, 64), padding=1,
        ),
        pycutlass.Conv2d(
            SPEC((4, 16, 16, 32), "float16"), SPEC((4, 16, 16, 64), "float16"), kind="wgrad",
            result_size=(32, 3, 3, 64), padding=1,
        ),
    ]  # fmt: skip
    records = [conv2d_record(plan.kind, plan.problem_size) for plan in plans]
    assert len({json.dumps(record) for record in records}) == len(plans)
    assert {record["product"] for record in records} == {"conv2d"}
    names = [name_of(record) for record in records]
    assert names[0] == "fprop 4x16x16x64 by 32 of 3x3, padding 1, f16 x f16 -> f16"
    assert names[2] == "fprop 4x16x16x64 by 32 of 3x3, stride 2, padding 1, f16 x f16 -> f16"
    assert names[4] == "fprop 4x16x16x64 by 32 of 3x3, padding 1, 4 groups, f16 x f16 -> f16"
    assert names[6].startswith("dgrad") and names[7].startswith("wgrad")


def test_a_group_is_measured_for_all_that_are_like_it() -> None:
    found = slowest_group(SchedulerMode.Host)
    measure(problems_of(GROUP)[0].record(), found)
    chosen = GroupChoices(GROUP.kind, 0)
    assert chosen.of(SIZES, 0, False) == found
    assert chosen.of(SIZES[::-1], 0, False) == found, "other rows, as many on the average"
    assert chosen.of(SIZES * np.int32([4, 1, 1]), 0, False) != found
    assert found in chosen.made()


def test_products_without_a_sum_count_in_what_a_group_is_like() -> None:
    """As where K is divided and a group is empty: the plan finds what was measured of it."""
    xs, ws = [SPEC((16, k), "float16") for k in (64, 0, 32)], [SPEC((k, 128), "float16") for k in (64, 0, 32)]
    plan = pycutlass.GroupedGemm(xs, ws)
    (problem,) = problems_of(plan)
    assert isinstance(problem, GroupProblem) and 0 < min(k for _, _, k in problem.measured_sizes)
    found = GroupChoices(plan.kind, 0).ranked(plan.sizes, 0)[-1].candidate
    measure(problem.record(), found)
    chosen = GroupChoices(plan.kind, 0)
    assert chosen.of(plan._working, plan.axis, False) == found


def test_a_schedule_by_the_host_is_for_sizes_that_it_knows() -> None:
    by_host, by_device = slowest_group(SchedulerMode.Host), slowest_group(SchedulerMode.Device)
    record = problems_of(GROUP)[0].record()
    measure(record, by_host, 1.0)
    measure(record, by_device, 2.0)
    chosen = GroupChoices(GROUP.kind, 0)
    assert chosen.of(SIZES, 0, False) == by_host
    assert chosen.of(SIZES, 0, True) == by_device


def test_what_was_measured_with_a_c_comes_before_what_was_measured_without() -> None:
    x, w, bias = SPEC((64, 64), "float16"), SPEC((64, 128), "float16"), SPEC((128,), "float16")
    plans = {
        None: pycutlass.Gemm(x, w, epilogue=gelu),
        "matrix": pycutlass.Gemm(x, w, SPEC((64, 128), "float16"), beta=1, epilogue=gelu),
        "bias": pycutlass.Gemm(x, w, bias=bias, epilogue=gelu),
    }
    ranked = [each.candidate for each in plans[None].candidates()]
    (plain, matrix) = ranked[-1], ranked[-2]
    records = {name: problems_of(plan)[0].record() for name, plan in plans.items()}
    assert [plan.source for plan in plans.values()] == list(plans)
    assert len({json.dumps(record) for record in records.values()}) == 3
    measure(records[None], plain)
    measure(records["matrix"], matrix, 9.0)

    def chosen(name: str | None) -> Any:
        kept = Choices(plans[name].kind, (128, 64), None, 0, name)
        return kept.of(64)

    assert (chosen(None), chosen("matrix"), chosen("bias")) == (plain, matrix, plain)


def test_times_with_other_operands_count_last_and_are_compared_with_none() -> None:
    x, w, bias = SPEC((64, 64), "float16"), SPEC((64, 128), "float16"), SPEC((128,), "float16")
    plain, biased = pycutlass.Gemm(x, w, epilogue=gelu), pycutlass.Gemm(x, w, bias=bias, epilogue=gelu)
    zeros, integers, warm, cold = (each.candidate for each in plain.candidates()[-4:])
    record, of_bias = (problems_of(plan)[0].record() for plan in (plain, biased))

    def chosen(plan: Any) -> Any:
        generation.begin()
        return Choices(plan.kind, (128, 64), None, 0, plan.source).of(64)

    measure(of_bias, zeros, 0.1, "warm, zeros")
    assert chosen(biased) == zeros
    measure(record, integers, 9.0, "cold, integers")
    assert chosen(plain) == integers and chosen(biased) == zeros
    measure(record, warm, 8.0, "warm")
    assert chosen(plain) == warm == chosen(biased)
    measure(record, cold, 9.0)
    assert chosen(plain) == cold == chosen(biased)


@pytest.mark.parametrize("name", ["gemm", "conv2d", "group"])
def test_what_was_measured_with_an_epilogue_function_is_picked_for_it_alone(name: str) -> None:
    x, w = SPEC((2, 8, 8, 64), "float16"), SPEC((32, 1, 1, 64), "float16")
    a, b = SPEC((64, 64), "float16"), SPEC((64, 128), "float16")
    makers: dict[str, Any] = {
        "gemm": lambda epilogue: pycutlass.Gemm(a, b, epilogue=epilogue),
        "conv2d": lambda epilogue: pycutlass.Conv2d(x, w, epilogue=epilogue),
        "group": lambda epilogue: pycutlass.GroupedGemm([a] * 3, [b] * 3, epilogue=epilogue),
    }
    functions = fusions.bias_gelu, fusions.bias_relu
    plans = [makers[name](function) for function in functions]
    slow = plans[0].candidates()[-1].candidate
    measure(problems_of(plans[0])[0].record(), slow)
    choices = []
    for plan in plans:
        match plan:
            case pycutlass.Gemm():
                choices.append(Choices(plan.kind, plan.size[1:], None, 0).of(64))
            case pycutlass.Conv2d():
                choices.append(Conv2dChoices(plan.kind, plan.problem_size, 0).of(2))
            case _:
                choices.append(GroupChoices(plan.kind, 0).of(plan.sizes, 0, False))
    assert choices[0] == slow and choices[1] == plans[1].candidate
    named = name_of(problems_of(plans[0])[0].record())
    assert named is not None and named.endswith(", bias_gelu")


def test_the_database_is_asked_once_for_groups_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(group_choices, "tuned", lambda of, *rest: asked.append(of(None).record["most"]))
    chosen = GroupChoices(GROUP.kind, 0)
    for _ in range(3):
        chosen.of(SIZES, 0, False)
    assert len(asked) == 1
    generation.begin()
    chosen.of(SIZES, 0, False)
    assert len(asked) == 2


@pytest.mark.parametrize("bad", [-1, "x", None, [], True, [96, 96, 32]])
@pytest.mark.parametrize("plan", [CONV, GROUP], ids=["conv2d", "group"])
def test_choices_that_are_none_here_are_passed_over(plan: Any, bad: Any) -> None:
    """As a database of another version may have them."""
    record, choice = problems_of(plan)[0].record(), plan.candidate.choice()
    fields = [name for name in choice if not (bad is None and name == "group_mode") and choice[name] != bad]
    for field in fields:
        times: dict[str, Any] = {"time": 1.0, "low": 1.0, "high": 1.0, "rounds": 3}
        Database().add(Trial(record, {**choice, field: bad}, machine_of(0), **times))
    found = slowest_conv() if plan is CONV else slowest_group(SchedulerMode.Device)
    measure(record, found, 2.0)
    chosen = conv_choices().of(4) if plan is CONV else GroupChoices(GROUP.kind, 0).of(SIZES, 0, False)
    assert chosen == found or chosen.choice() in [{**choice, field: bad} for field in fields]


@pytest.mark.parametrize("family", ["conv2d", "group"])
def test_what_is_measured_meanwhile_is_taken_after_a_tuner(family: str) -> None:
    if family == "conv2d":
        chosen: Any = conv_choices()
        asked: tuple[Any, ...] = (4,)
        found = slowest_conv()
    else:
        chosen, asked, found = GroupChoices(GROUP.kind, 0), (SIZES, 0, False), slowest_group(SchedulerMode.Device)
    before = chosen.of(*asked)
    assert before != found
    measure(problems_of(CONV if family == "conv2d" else GROUP)[0].record(), found)
    assert chosen.of(*asked) == before
    generation.begin()
    assert chosen.of(*asked) == found


def test_pickled_plans_keep_what_they_had_measured() -> None:
    conv, group = copy.copy(CONV), copy.copy(GROUP)
    measure(problems_of(CONV)[0].record(), slowest_conv())
    measure(problems_of(GROUP)[0].record(), slowest_group(SchedulerMode.Host))
    for plan in (conv, group):
        plan._device = 0
    conv._choices, group._choices = conv_choices(), GroupChoices(GROUP.kind, 0)
    before = conv.candidate, group.candidate
    assert before == (slowest_conv(), slowest_group(SchedulerMode.Host))
    again = [pickle.loads(pickle.dumps(plan)) for plan in (conv, group)]
    measure(problems_of(CONV)[0].record(), slowest_conv(), 100.0)
    generation.begin()
    assert tuple(plan.candidate for plan in again) == before


def test_a_group_of_any_number_of_sizes_has_a_record_that_the_database_takes() -> None:
    sizes = [(8 * number, 8 * number, 64) for number in range(1, 3000)]
    record = GroupProblem(GROUP.kind, sizes).record()
    other = GroupProblem(GROUP.kind, [*sizes[:-1], (8, 16, 64)]).record()
    assert record["sizes"] != other["sizes"] and len(json.dumps(record)) < 2000
    measure(record, slowest_group(SchedulerMode.Device))
    assert name_of(record) == f"group of 2999 up to {record['most'][0]}x23992x64 f16 x f16 -> f16"


def test_what_is_no_record_has_no_name() -> None:
    for record in ({}, {"product": "gemm"}, {"product": "conv3d"}, {"product": []}, {"product": "group", "A": 3}):
        assert name_of(record) is None
    record = group_record(GROUP.kind, ((3.0, 8, 16, 64),))
    assert name_of(record) == "group of 3 up to 8x16x64 f16 x f16 -> f16"
    assert name_of(record | {"A": ""}) is None
    assert name_of(record | {"count": "\x1b[2J"}) is None
