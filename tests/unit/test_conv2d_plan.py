"""Plans of convolutions: any number of images, other tensors each time, threads, copies, and what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import cutlass
from pycutlass.errors import ArgumentError, PyCutlassError

RNG = np.random.default_rng(11)


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


X, W, Y = random(2, 6, 5, 4), random(8, 3, 2, 4), random(2, 4, 4, 8)


@pytest.fixture
def plan() -> pycutlass.Conv2d:
    return pycutlass.Conv2d(X, W)


def exact(x: Any, w: Any) -> Any:
    """Return the convolution of stride 1 without padding in float64."""
    (_, h, width, _), (_, r, s, _) = x.shape, w.shape
    p, q = h - r + 1, width - s + 1
    windows = [x[:, i : i + p, j : j + q].astype(np.float64) for i in range(r) for j in range(s)]
    taps = [w[:, i, j] for i in range(r) for j in range(s)]
    return sum(window @ tap.T for window, tap in zip(windows, taps, strict=True))


def test_other_tensors_and_any_number_of_images(plan: pycutlass.Conv2d) -> None:
    for images in (2, 2, 1, 7, 2, 0, 3, 5):
        x, w = random(images, 6, 5, 4), random(8, 3, 2, 4)
        out = np.full((images, 4, 4, 8), np.nan, np.float32)
        assert plan.run(x, w, out=out) is out
        np.testing.assert_allclose(out, exact(x, w), atol=1e-4)
        np.testing.assert_allclose(plan(x, w), out, atol=1e-6)
    assert len(plan._launches._of_thread) <= 4


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("options", [
    {}, {"stride": 2, "padding": 1}, {"dilation": (1, 2), "padding": (0, 1)}, {"groups": 2},
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_it_checks_is_right(kind: str, options: dict[str, Any], dtype: str) -> None:
    """Of specs, in all directions; `check` compares with float64 and looks around D."""
    x = pycutlass.TensorSpec((2, 9, 10, 8), dtype)
    w = pycutlass.TensorSpec((16, 3, 2, 8 // options.get("groups", 1)), dtype)
    size = pycutlass.conv2d_problem_size(x, w, **options)
    y = pycutlass.TensorSpec((2, size.P, size.Q, 16), dtype)
    a, b, result = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (y, x, w)}[kind]
    made = pycutlass.Conv2d(a, b, kind=kind, result_size=None if kind == "fprop" else result.shape, **options)
    assert 0 <= made.check() <= 1
    assert made.problem_size == size
    adding = pycutlass.Conv2d(a, b, result, kind=kind, out=result, alpha=-0.5, beta=2, **options)
    assert 0 <= adding.check(3) <= 1


def test_check_finds_what_is_wrong(plan: pycutlass.Conv2d, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: Any, b: Any, c: Any, out: Any, bias: Any) -> None:
        out[...] = exact(a, b)
        out[1, 2, 3, 4] += 1

    monkeypatch.setattr(plan, "run_once", wrong)
    with pytest.raises(ArgumentError, match="is wrong for Conv2dProblemSize"):
        plan.check()

    def beside(a: Any, b: Any, c: Any, out: Any, bias: Any) -> None:
        out[...] = exact(a, b)
        out.base[-1, 0] = 0

    monkeypatch.setattr(plan, "run_once", beside)
    with pytest.raises(ArgumentError, match="wrote beside D"):
        plan.check()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_copies_have_the_same_choice(plan: pycutlass.Conv2d, again: Any) -> None:
    plan(X, W)
    other = again(plan)
    assert (other.kind, other.candidate, other.problem_size) == (plan.kind, plan.candidate, plan.problem_size)
    assert np.array_equal(other(X, W), plan(X, W))
    assert repr(other) == repr(plan)


def test_a_problem_that_is_changed_is_not_the_plans(plan: pycutlass.Conv2d) -> None:
    size = plan.problem_size
    size.N = 99
    assert plan.problem_size.N == 2


def test_threads_have_tensors_of_their_own(plan: pycutlass.Conv2d) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        x, w = np.full((2, 6, 5, 4), number, np.float32), np.ones((8, 3, 2, 4), np.float32)
        for _ in range(20):
            if not np.array_equal(plan(x, w), np.full((2, 4, 4, 8), 24 * number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_operands_that_are_kept_for_runs_without_any(plan: pycutlass.Conv2d) -> None:
    out = np.empty((2, 4, 4, 8), np.float32)
    plan.reset_operands(X, W, out=out)
    assert plan.run() is out
    plan.reset_operands()
    with pytest.raises(ArgumentError, match="a and b are missing"):
        plan.run()


def test_no_candidate_is_left_unsaid(plan: pycutlass.Conv2d) -> None:
    assert plan.candidate in [each.candidate for each in plan.candidates()]
    text = plan.explain()
    assert plan.candidate.name in text
    assert "a product of 32x8x24 (M x N x K)" in text
    manifest = json.loads(json.dumps(plan.manifest()))
    assert [each["name"] for each in manifest["kernels"]] == [each.procedural_name() for each in plan.candidate.kernels]


def test_parallel_split_k_is_right_with_all_that_a_reduction_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of few images are divided where they are told to: with C, activation, groups and gaps in D."""
    grad, x, w = random(2, 7, 6, 8).astype(np.float16), random(2, 7, 6, 8).astype(np.float16), (8, 1, 1, 4)
    options: dict[str, Any] = {"kind": "wgrad", "groups": 2, "epilogue": pycutlass.relu, "beta": 1.0}
    c = random(*w).astype(np.float16)
    plan = pycutlass.Conv2d(grad, x, c, result_size=w, **options)
    divided = next(each.candidate for each in plan.candidates() if each.candidate.is_parallel)
    monkeypatch.setattr(plan._choices, "of", lambda extent: divided)
    pixels = grad.reshape(-1, 2, 4).astype(np.float64), x.reshape(-1, 2, 4).astype(np.float64)
    product = np.einsum("ngk,ngc->gkc", *pixels).reshape(8, 1, 1, 4)
    for _ in range(2):
        np.testing.assert_allclose(plan(grad, x, c), np.maximum(product + c, 0), atol=2e-2)
    wide = np.full((2, 7, 6, 24), 77, np.float16)
    y = wide[..., 8:16]
    w = random(8, 3, 3, 8).astype(np.float16)
    forward = pycutlass.Conv2d(x, w, random(8).astype(np.float16), out=y, beta=1.0, padding=1, epilogue=pycutlass.relu)
    divided = next(each.candidate for each in forward.candidates() if each.candidate.is_parallel)
    monkeypatch.setattr(forward._choices, "of", lambda extent: divided)
    bias = random(8).astype(np.float16)
    for _ in range(2):
        forward(x, w, bias, out=y)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    np.testing.assert_allclose(y, np.maximum(exact(padded, w) + bias, 0), atol=5e-2)
    assert (wide[..., :8] == 77).all()
    assert (wide[..., 16:] == 77).all()


REFUSED: list[tuple[str, Any]] = [
    (r"a of \(3, 6, 5, 4\) with any number", lambda plan: plan(random(3, 6, 6, 4), W)),
    (r"b of \(8, 3, 2, 4\)", lambda plan: plan(X, random(8, 3, 3, 4))),
    ("a of float32, got float16", lambda plan: plan(X.astype(np.float16), W.astype(np.float16))),
    ("was made without c", lambda plan: plan(X, W, random(2, 4, 4, 8))),
    ("^b is missing: give both", lambda plan: plan(X, None)),
    ("epilogue_inputs has row", lambda plan: plan(X, W, epilogue_inputs={"row": X})),
    ("takes? adjacent channels", lambda plan: plan(np.asfortranarray(X), W)),
    ("^out must have shape", lambda plan: plan(X, W, out=np.empty((2, 4, 4, 9), np.float32))),
    ("out must have four dimensions", lambda plan: plan(X, W, out=np.empty((2, 4, 32), np.float32))),
    ("a must have four dimensions", lambda plan: plan(X[0], W)),
    ("has no keyword streem", lambda plan: plan(X, W, streem=None)),
]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_what_a_plan_is_not_for(plan: pycutlass.Conv2d, message: str, call: Any, is_first: bool) -> None:
    out = plan(X, W)
    before = out.copy()
    if is_first:
        plan.reset_operands()
    with pytest.raises(PyCutlassError, match=message):
        call(plan)
    assert np.array_equal(out, before)
    assert np.array_equal(plan(X, W), before)


@pytest.mark.parametrize(("how", "name"), [
    *itertools.product(("alone", "by group"), ("a", "b", "c", "bias")),
    *(("in parallel", name) for name in ("c", "bias")),  # a and b have been read when out is written
])  # fmt: skip
def test_what_out_overlaps_is_called_as_run_calls_it(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = 2 if how == "by group" else 1
    shapes = {"a": (2, 7, 6, 8), "b": (8, 3, 3, 8 // groups), "c": (2, 7, 6, 8), "bias": (8,)}
    memory = np.zeros(2000, np.float16)
    given = {each: np.ones(shapes[each], np.float16) for each in {"a", "b", name}}
    given[name] = memory[664 : 664 + given[name].size].reshape(shapes[name])  # the last pixel of out, or more
    out = memory[:672].reshape(shapes["c"])
    plan = pycutlass.Conv2d(**given, beta=1 if name == "c" else None, padding=1, groups=groups)
    if how == "in parallel":
        divided = next(each.candidate for each in plan.candidates() if each.candidate.is_parallel)
        monkeypatch.setattr(plan._choices, "of", lambda extent: divided)
    message = rf"^out overlaps {name} in memory \(out at .*, {name} at .* Give out mem"
    with pytest.raises(ArgumentError, match=message):
        plan.run(**given, out=out)
    plan.run(**given, out=out.copy())
    with pytest.raises(ArgumentError, match=message):  # also where arguments are kept
        plan.run(**given, out=out)


UNMADE: list[tuple[str, Any]] = [
    ("kind must be 'fprop', 'dgrad' or 'wgrad', got 'forward'", lambda: pycutlass.Conv2d(X, W, kind="forward")),
    ("input_size is missing", lambda: pycutlass.Conv2d(Y, W, kind="dgrad")),
    ("weight_size must be four integers", lambda: pycutlass.Conv2d(Y, X, kind="wgrad", result_size=(8, 3, 2))),
    ("beta is 0", lambda: pycutlass.Conv2d(X, W, Y)),
    ("c is missing", lambda: pycutlass.Conv2d(X, W, beta=1)),
    ("c is float64 and the result float32", lambda: pycutlass.Conv2d(X, W, Y.astype(np.float64), beta=1)),
    (r"c must have the shape of the result, \(2, 4, 4, 8\)", lambda: pycutlass.Conv2d(X, W, X, beta=1)),
    ("one number for each of 8 channels", lambda: pycutlass.Conv2d(X, W, random(5), beta=1)),
    (
        "gradients of weights take no bias",
        lambda: pycutlass.Conv2d(Y, X, random(4), kind="wgrad", result_size=W.shape, beta=1),
    ),
    ("out must have the shape of the result", lambda: pycutlass.Conv2d(X, W, out=X)),
    ("pad C=3 to 4", lambda: pycutlass.Conv2d(
        pycutlass.TensorSpec((1, 2, 2, 4), "float16"), pycutlass.TensorSpec((4, 3, 3, 3), "float16"), kind="dgrad",
        result_size=(1, 6, 6, 3), stride=2)),
    ("pass packed copies", lambda: pycutlass.Conv2d(
        np.ones((1, 2, 2, 5), np.float16)[..., 1:], np.ones((4, 3, 3, 4), np.float16), kind="dgrad",
        result_size=(1, 6, 6, 4), stride=2)),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call"), UNMADE, ids=[message for message, _ in UNMADE])
def test_what_there_is_no_plan_of(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


def test_images_of_torch_have_the_order_of_torch_even_where_strides_alone_tell() -> None:
    """Of 4 channels and 4 x 4 pixels, (N, C, H, W) and (N, H, W, C) are the same numbers."""
    torch = pytest.importorskip("torch")
    x, w = torch.randn(2, 4, 4, 4), torch.randn(8, 4, 1, 1)
    images, weights = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    plan = pycutlass.Conv2d(images, weights)
    expected = torch.nn.functional.conv2d(x, w)
    for _ in range(2):
        torch.testing.assert_close(plan(images, weights), expected, rtol=1e-5, atol=1e-5)
        with pytest.raises(ArgumentError, match="channels_last"):
            plan(x, weights)
        with pytest.raises(ArgumentError, match="adjacent channels"):
            pycutlass.Conv2d(images.numpy(), np.ones((8, 1, 1, 4), np.float32))
    array = pycutlass.Conv2d(np.ones((2, 4, 4, 4), np.float32), np.ones((8, 1, 1, 4), np.float32))
    array(np.ones((2, 4, 4, 4), np.float32), np.ones((8, 1, 1, 4), np.float32))
    with pytest.raises(ArgumentError, match="adjacent channels"):  # which are those of (N, C, H, W)
        array(images.numpy(), np.ones((8, 1, 1, 4), np.float32))


def test_a_plan_of_specs_takes_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    spec = pycutlass.TensorSpec((2, 6, 5, 4), cutlass.float32), pycutlass.TensorSpec((8, 3, 2, 4), cutlass.float32)
    got = pycutlass.Conv2d(*spec)(torch.from_numpy(X).permute(0, 3, 1, 2), torch.from_numpy(W).permute(0, 3, 1, 2))
    assert got.shape == (2, 8, 4, 4)
    assert got.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(got.permute(0, 2, 3, 1).numpy(), exact(X, W), atol=1e-4)


def test_a_plan_is_made_with_a_bias() -> None:
    bias = np.arange(8, dtype=np.float32)
    for plan in (pycutlass.Conv2d(X, W, bias=bias), pycutlass.Conv2d(X, W, bias), pycutlass.Conv2d(X, W, bias, beta=1)):
        for _ in range(2):
            np.testing.assert_allclose(plan.run(X, W, bias=bias), exact(X, W) + bias, atol=1e-4)
            for other in (np.ones((2, 4, 4, 8), np.float32), np.ones(256, np.float32), np.ones(7, np.float32)):
                with pytest.raises(ArgumentError, match=r"bias.* channel"):
                    plan.run(X, W, bias=other)
    with pytest.raises(ArgumentError, match="bias is another one"):
        pycutlass.Conv2d(X, W, bias, bias=bias)
    of_specs = pycutlass.Conv2d(X, W, bias=pycutlass.TensorSpec((8,), "float32"))
    np.testing.assert_allclose(of_specs.run(X, W, bias=bias), exact(X, W) + bias, atol=1e-4)
    every_second = np.arange(16, dtype=np.float32)[::2]
    got = pycutlass.conv2d(X, W, bias=every_second, allow_copy=True)
    np.testing.assert_allclose(got, exact(X, W) + every_second, atol=1e-4)


def test_an_epilogue_that_no_convolution_has_is_refused_with_what_has_it() -> None:
    a, b = pycutlass.TensorSpec((2, 8, 8, 16), "float16"), pycutlass.TensorSpec((16, 3, 3, 16), "float16")
    with pytest.raises(ArgumentError, match=r"pairs of columns, and kernels of conv.* use pycutlass\.matmul where"):
        pycutlass.Conv2d(a, b, epilogue=pycutlass.epilogue.fusions.swiglu)
