"""The tuner on a GPU: kernels are compiled, checked and measured, and what is known is what comes back."""

from __future__ import annotations

import time

import pytest

import pycutlass
from pycutlass import device, get_allocated_size
from pycutlass.plan.measured import generation, machine_of
from pycutlass.trials import Database
from pycutlass.tuning import TuningOptions, conv2d_problem_of, group_problem_of, problem_of, tune
from pycutlass.tuning.compiling import compiled
from pycutlass.tuning.measuring import ChildMeasurer, FailedError
from pycutlass.tuning.problems import considered, problems_of

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


SPEC = pycutlass.TensorSpec
CONVOLUTIONS = {
    "fprop": lambda: pycutlass.Conv2d(SPEC((4, 28, 28, 64), "float16"), SPEC((128, 3, 3, 64), "float16"), padding=1),
    "fprop with stride": lambda: pycutlass.Conv2d(
        SPEC((4, 28, 28, 64), "bfloat16"), SPEC((64, 3, 3, 64), "bfloat16"), padding=1, stride=2
    ),
    "dgrad": lambda: pycutlass.Conv2d(
        *(SPEC((4, 28, 28, 128), "float16"), SPEC((128, 3, 3, 64), "float16")),
        **{"kind": "dgrad", "result_size": (4, 28, 28, 64), "padding": 1},
    ),
    "wgrad": lambda: pycutlass.Conv2d(
        *(SPEC((4, 28, 28, 128), "float16"), SPEC((4, 28, 28, 64), "float16")),
        **{"kind": "wgrad", "result_size": (128, 3, 3, 64), "padding": 1},
    ),
    "fprop of 4 groups": lambda: pycutlass.Conv2d(
        SPEC((4, 28, 28, 64), "float16"), SPEC((128, 3, 3, 16), "float16"), padding=1, groups=4
    ),
    "wgrad of 2 groups": lambda: pycutlass.Conv2d(
        *(SPEC((4, 28, 28, 128), "float16"), SPEC((4, 28, 28, 64), "float16")),
        **{"kind": "wgrad", "result_size": (128, 3, 3, 32), "padding": 1, "groups": 2},
    ),
    "tf32": lambda: pycutlass.Conv2d(
        SPEC((2, 14, 14, 32), "float32"), SPEC((64, 3, 3, 32), "float32"), padding=1, precision="tf32"
    ),
}
GROUPS = {
    "of one size": ([256] * 4, "bfloat16"),
    "with weights by columns": ([200, 512, 0, 64], "bfloat16", (1, 256)),
    "of many sizes": ([1, 70, 300, 0, 128, 5], "float16"),
    "of tf32": ([64, 100], "float32"),
}


def group_of(rows, dtype, strides=None):
    options = {"precision": "tf32"} if dtype == "float32" else {}
    return pycutlass.GroupedGemm(
        [SPEC((m, 256), dtype) for m in rows], [SPEC((256, 512), dtype, strides)] * len(rows), **options
    )


def check_tuned(database, plan):
    """Tune a plan, and compare what is reported, what is kept, and what is known then."""
    (problem,) = problems_of(plan)
    before = get_allocated_size()
    report = tune(plan, "150s", database=database, most_candidates=4)[0]
    assert report.best is not None, str(report)
    assert not [each for each in report.contestants if each.status == "wrong"], str(report)
    assert all(0 < report.roofline(each) < 1.05 for each in report.measured), str(report)
    best = database.best(problem.record(), machine_of(device.current()))
    assert best is not None and best.time == pytest.approx(report.measured[0].median)
    assert get_allocated_size() == before
    again = tune(plan, "150s", database=database, most_candidates=4)[0]
    assert all(each.is_known for each in again.measured) and again.best == report.best


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_best_convolution_is_found_and_kept(database, name):
    check_tuned(database, CONVOLUTIONS[name]())


@pytest.mark.parametrize("name", GROUPS)
def test_the_best_kernel_of_a_group_is_found_and_kept(database, name):
    check_tuned(database, group_of(*GROUPS[name]))


EPILOGUES = {
    **{name: lambda name=name: problem_of(520, 272, 384, epilogue=name)
       for name in ("bias_gelu", "bias_residual_silu", "layer_norm_statistics", "bias_swiglu", "softmax_statistics")},
    "dequantize": lambda: problem_of(512, 256, 384, dtype="int8", out_dtype="float16", epilogue="dequantize"),
    "gelu of a bias": lambda: problem_of(512, 256, 384, epilogue="gelu", source="bias"),
    "C in a batch": lambda: problem_of(128, 256, 384, 3, source="matrix"),
    "few rows": lambda: problem_of(4, 1024, 2048, epilogue="bias_silu"),
    "a convolution": lambda: conv2d_problem_of(4, 28, 28, 64, 128, 3, 3, padding=1,
                                               epilogue="scale_shift_residual_relu"),
    "a gradient with C": lambda: conv2d_problem_of(4, 28, 28, 64, 128, 3, 3, "dgrad", padding=1, source="matrix"),
    "a group": lambda: group_problem_of([100, 0, 64, 8], 512, 256, epilogue="bias_swiglu"),
    "a group with biases": lambda: group_problem_of([100, 64], 512, 256, dtype="bfloat16", source="bias"),
}  # fmt: skip


@pytest.mark.parametrize("name", EPILOGUES)
def test_the_best_with_an_epilogue_is_found_and_kept(database, name):
    check_tuned(database, EPILOGUES[name]())


@pytest.mark.parametrize("name", ["float16", "tf32", "float_e4m3", "int8", "dgrad", "group"])
def test_the_vendors_library_is_measured_in_the_same_rounds(database, name):
    pytest.importorskip("torch")
    made = {
        "dgrad": lambda: conv2d_problem_of(4, 28, 28, 64, 128, 3, 3, "dgrad", padding=1),
        "group": lambda: group_problem_of([512, 256], 512, 256),
    }
    problem = made[name]() if name in made else problem_of(512, 512, 512, dtype=name)
    report = tune(problem, "120s", database=database, most_candidates=2, vendor=True)[0]
    assert report.vendor_time is not None and report.best is not None, str(report)
    assert 0.05 < report.vendor_speed(report.measured[0]) < 20, str(report)


def test_plans_and_functions_take_what_was_measured(tmp_path, monkeypatch):
    """With real tensors, of which the plan's choices are looked up; and results stay right."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("PYCUTLASS_DATABASE", str(tmp_path / "trials.db"))
    generation.begin()
    x = torch.randn(2, 64, 14, 14, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.randn(32, 64, 3, 3, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    tokens = torch.randn(300, 256, device="cuda", dtype=torch.bfloat16)
    experts = torch.randn(4, 256, 512, device="cuda", dtype=torch.bfloat16)
    offs = [10, 100, 100, 300]
    on_device = torch.tensor(offs, dtype=torch.int32, device="cuda")
    conv = pycutlass.Conv2d(x, w, padding=1)
    group = pycutlass.GroupedGemm(tokens, experts, offs=offs)
    unread = pycutlass.GroupedGemm(tokens, experts, offs=on_device)
    before = conv.run(x, w), group.run(tokens, experts, offs=offs)
    for plan in (conv, group, unread):
        report = plan.tune("150s", most_candidates=4)
        assert report.best is not None, str(report)
        assert plan.candidate == report.best
        plan.check()
    after = conv.run(x, w), group.run(tokens, experts, offs=offs)
    torch.testing.assert_close(unread.run(tokens, experts, offs=on_device), after[1], rtol=1e-2, atol=5e-2)
    lines = pycutlass.conv2d(x, w, padding=1), pycutlass.grouped_matmul(tokens, experts, offs=offs)
    for one, two, three in zip(before, after, lines, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=5e-2)
        assert torch.equal(two, three)
    assert pycutlass.Conv2d(x, w, padding=1).candidate == conv.candidate
    generation.begin()


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
