"""Plans: one for any M, other tensors each time, threads, copies, and what is refused before a launch."""

from __future__ import annotations

import copy
import json
import pickle
import re
import threading
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import TensorSpec, epilogue_function
from pycutlass.device import Device
from pycutlass.epilogue import Row, Scalar
from pycutlass.errors import ArgumentError, ArgumentTypeError, DeviceError, PyCutlassError
from pycutlass.plan import pick, ranking
from pycutlass.plan.picture import explained
from pycutlass.plan.readings import range_of

RNG = np.random.default_rng(7)


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


A, B = random(16, 8), random(8, 4)


@pytest.fixture
def plan() -> pycutlass.Gemm:
    return pycutlass.Gemm(A, B)


def test_other_tensors_are_really_taken(plan: pycutlass.Gemm) -> None:
    for _ in range(3):
        a, b, out = random(16, 8), random(8, 4), np.full((16, 4), np.nan, np.float32)
        assert plan.run(a, b, out=out) is out
        np.testing.assert_allclose(out, a @ b, atol=1e-5)
    first, second = plan(A, B), plan(A, B)
    assert first is not second
    assert np.array_equal(first, second)


def test_one_plan_serves_any_m(plan: pycutlass.Gemm) -> None:
    for m in (1, 2, 3, 100, 16, 1, 5, 7):
        a = random(m, 8)
        np.testing.assert_allclose(plan(a, B), a @ B, atol=1e-5)


def test_ranges_hold_the_m_that_they_are_of() -> None:
    ends = [range_of(m) for m in range(1, 3000)]
    assert all(m <= end < m * 1.25 for m, end in enumerate(ends, 1))
    assert ends == sorted(ends)
    assert all(range_of(end) == end for end in ends)


def test_a_plan_is_made_without_memory() -> None:
    made = pycutlass.Gemm(pycutlass.TensorSpec((16, 8), "float32"), pycutlass.TensorSpec((8, 4), "float32"))
    np.testing.assert_allclose(made(A, B), A @ B, atol=1e-5)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_copies_have_the_same_choice(plan: pycutlass.Gemm, again: Any) -> None:
    plan(A, B)
    other = again(plan)
    assert other.kind == plan.kind
    assert other.candidate == plan.candidate
    assert np.array_equal(other(A, B), plan(A, B))


def test_threads_have_tensors_of_their_own(plan: pycutlass.Gemm) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        a = np.full((16, 8), number, np.float32)
        for _ in range(20):
            if not np.array_equal(plan(a, np.ones((8, 4), np.float32)), np.full((16, 4), 8 * number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_operands_that_are_kept_for_runs_without_any(plan: pycutlass.Gemm) -> None:
    out = np.empty((16, 4), np.float32)
    plan.reset_operands(A, B, out=out)
    assert plan.run() is out
    plan.reset_operands()
    with pytest.raises(ArgumentError, match="a and b are missing"):
        plan.run()


def test_no_candidate_is_left_unsaid(plan: pycutlass.Gemm) -> None:
    assert plan.candidate in [each.candidate for each in plan.candidates()]
    text = plan.explain()
    assert plan.candidate.name in text
    assert "16x4x8" in text
    manifest = json.loads(json.dumps(plan.manifest()))
    assert [each["name"] for each in manifest["kernels"]] == [each.procedural_name() for each in plan.candidate.kernels]


def test_its_manifest_is_one_that_warm_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(
        "pycutlass.compiler.ahead.add_module",
        lambda kernels, **options: compiled.extend(each.source().name for each in kernels),
    )
    plan = pycutlass.Gemm(A, B)
    plan(A[:3], B)
    pycutlass.compiler.warm(json.loads(json.dumps(plan.manifest())))
    used = (*plan.candidate.kernels, *pycutlass.Gemm(A[:3], B).candidate.kernels)
    assert {*compiled} == {each.procedural_name() for each in used}


def test_check_finds_what_is_wrong(plan: pycutlass.Gemm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 <= plan.check() <= 1

    def wrong(a: Any, b: Any, c: Any, out: Any, bias: Any) -> None:
        out[...] = a @ b
        out[3, 1] += 1

    monkeypatch.setattr(plan, "run_once", wrong)
    with pytest.raises(ArgumentError, match="is wrong for 16x4x8"):
        plan.check()

    def beside(a: Any, b: Any, c: Any, out: Any, bias: Any) -> None:
        out[...] = a @ b
        out.base[0, 0] = 0

    monkeypatch.setattr(plan, "run_once", beside)
    with pytest.raises(ArgumentError, match="wrote beside D"):
        plan.check()


def test_integers_are_checked_to_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.ones((16, 32), np.int8), np.ones((8, 32), np.int8).T
    for plan in (pycutlass.Gemm(a, b), pycutlass.GroupedGemm([a], [b])):
        assert plan.check() == 0

    def wrong(a: Any, b: Any, c: Any, out: Any, bias: Any) -> None:
        out[...] = a.astype(np.int32) @ b
        out[3, 1] += 1

    plan = pycutlass.Gemm(a, b)
    monkeypatch.setattr(plan, "run_once", wrong)
    with pytest.raises(ArgumentError, match="is wrong for 16x8x32"):
        plan.check()


REFUSED: list[tuple[str, Any]] = [
    ("N=4, K=8 and no batch; got N=5", lambda plan: plan(A, random(8, 5))),
    ("K=8 and no batch; got N=4, K=3", lambda plan: plan(random(16, 3), random(3, 4))),
    ("a of float32, got float16", lambda plan: plan(A.astype(np.float16), B.astype(np.float16))),
    ("was made without c", lambda plan: plan(A, B, random(16, 4))),
    ("^b is missing: give both", lambda plan: plan(A, None)),
    ("epilogue_inputs has row", lambda plan: plan(A, B, epilogue_inputs={"row": A})),
    ("is for a with adjacent elements along rows, and a of", lambda plan: plan(np.asfortranarray(A), B)),
    (r"^out must have shape \(16, 4\), got", lambda plan: plan(A, B, out=np.empty((16, 5), np.float32))),
]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_what_a_plan_is_not_for(plan: pycutlass.Gemm, message: str, call: Any, is_first: bool) -> None:
    out = plan(A, B)
    before = out.copy()
    if is_first:
        plan.reset_operands()
    with pytest.raises(PyCutlassError, match=message):
        call(plan)
    assert np.array_equal(out, before)
    assert np.array_equal(plan(A, B), before)


@pytest.mark.parametrize("family", ["Gemm", "Conv2d", "GroupedGemm"])
def test_a_plan_is_tuned_as_problems_are(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    a, b = np.ones((16, 32), np.float16), np.ones((32, 8), np.float16)
    plan: Any = {
        "Gemm": lambda: pycutlass.Gemm(a, b),
        "Conv2d": lambda: pycutlass.Conv2d(a.reshape(1, 4, 4, 32), b.reshape(8, 1, 1, 32)),
        "GroupedGemm": lambda: pycutlass.GroupedGemm([a, a], [b, b]),
    }[family]()
    with pytest.raises(DeviceError):
        plan.tune("1s")
    with pytest.raises(ArgumentTypeError, match="candidate_count"):
        plan.tune(candidate_count=3)
    with pytest.raises(PyCutlassError, match="budget"):
        plan.tune(budget=-1)
    asked = []
    monkeypatch.setattr("pycutlass.tuning.tune", lambda *given, **options: [asked.append((given, options)) or 7])
    assert plan.tune(5.0, most_candidates=3) == 7
    assert asked == [((plan, 5.0), {"most_candidates": 3})]


def test_a_run_is_refused_however_many_came_before() -> None:
    """What is kept of earlier runs takes nothing that a first run would refuse."""
    bias = random(4)
    with_bias = pycutlass.Gemm(A, B, bias=bias)
    batched = pycutlass.Gemm(np.stack([A, A]), B)
    for _ in range(2):
        np.testing.assert_allclose(with_bias.run(A, B, bias=bias), A @ B + bias, atol=1e-5)
        for other in (random(16, 4), random(64), random(4, 1), random(1, 4), random(16)):
            with pytest.raises(ArgumentError, match="bias"):
                with_bias.run(A, B, bias=other)
            with pytest.raises(ArgumentError, match="bias"):
                with_bias.run_once(A, B, None, np.empty((16, 4), np.float32), bias=other)
        assert batched.run(A, np.stack([B, B])).shape == (2, 16, 4)
        with pytest.raises(ArgumentError, match="no batch"):
            batched.run(A, B)


def test_a_c_that_no_kernel_reads_beside_d_is_refused_when_the_plan_is_made() -> None:
    c = TensorSpec((16, 4), np.float32)
    by_columns = np.zeros((4, 16), np.float32).T
    for out in (None, np.zeros((16, 4), np.float32)):
        with pytest.raises(ArgumentError, match=r"there is no kernel.*C and D lie differently: pass both by rows or"):
            pycutlass.Gemm(A, B, by_columns, beta=1, out=out)
    with pytest.raises(ArgumentError, match="C and D lie differently"):
        pycutlass.Gemm(A, B, c, beta=1, out=by_columns)
    assert pycutlass.Gemm(A, B, by_columns, beta=1, out=by_columns).candidates()


@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
def test_what_out_overlaps_is_called_as_run_calls_it(name: str) -> None:
    square = np.ones((16, 16), np.float32)
    memory = np.zeros((17, 16), np.float32)
    given = {"a": square, "b": square} | {name: memory[1] if name == "bias" else memory[1:]}
    plan = pycutlass.Gemm(**given, beta=1 if name == "c" else None)
    with pytest.raises(ArgumentError, match=rf"^out overlaps {name} in memory \(out at .*, {name} at .* Give out mem"):
        plan.run(**given, out=memory[:16])


def test_tensors_without_a_are_refused(plan: pycutlass.Gemm) -> None:
    plan.reset_operands(A, B)
    for given in ({"b": B}, {"c": B}):
        with pytest.raises(ArgumentError, match=r"^a is None, and b or c is given"):
            plan.run(**given)
    np.testing.assert_allclose(plan.run(), A @ B, atol=1e-5)


@pytest.mark.parametrize("inputs", [[1], 3, {1: A}])
def test_epilogue_inputs_must_be_a_mapping(plan: pycutlass.Gemm, inputs: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="epilogue_inputs must be a mapping"):
        plan.run(A, B, epilogue_inputs=inputs)
    np.testing.assert_allclose(plan.run(A, B, epilogue_inputs=None), A @ B, atol=1e-5)  # type: ignore[arg-type]


def test_threads_may_run_more_shapes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycutlass.plan.kept._MOST_RESULTS", 2)
    plan, failed = pycutlass.Gemm(A, B), []

    def work(seed: int) -> None:
        try:
            for rows in np.random.default_rng(seed).integers(1, 17, 40):
                np.testing.assert_allclose(plan.run(A[:rows], B), A[:rows] @ B, atol=1e-5)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_launch_that_is_kept_longer_than_the_form_of_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycutlass.plan.kept._MOST_RESULTS", 1)
    plan = pycutlass.Gemm(A, B)
    first = plan.run(A[:3], B)
    plan.run(A[:5], B)
    again = plan.run(2 * A[:3], B)
    np.testing.assert_allclose(first, A[:3] @ B, atol=1e-5)
    np.testing.assert_allclose(again, 2 * A[:3] @ B, atol=1e-5)


def test_tensors_that_require_a_gradient_are_refused() -> None:
    torch = pytest.importorskip("torch")
    a, b, c = torch.from_numpy(A), torch.from_numpy(B), torch.ones(16, 4)
    plan = pycutlass.Gemm(a, b, c, beta=1)
    for _ in range(2):
        torch.testing.assert_close(plan.run(a, b, c), a @ b + c, atol=1e-5, rtol=1e-5)
        for role, name in enumerate("abc"):
            given = [each.clone().requires_grad_(index == role) for index, each in enumerate((a, b, c))]
            with pytest.raises(ArgumentError, match=rf"{name} requires a gradient.*{name}\.detach"):
                plan.run(*given)
            with pytest.raises(ArgumentError, match=rf"{name} requires a gradient"):
                plan.run_once(*given, torch.empty(16, 4))
            with torch.no_grad():
                torch.testing.assert_close(plan.run(*given), a @ b + c, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(8, 300, 520), (4, 520)])
def test_what_is_explained_agrees_with_itself(shape: tuple[int, ...]) -> None:
    plan = pycutlass.Gemm(TensorSpec(shape, "bfloat16"), TensorSpec((520, 264), "bfloat16"))
    text, names = plan.explain(), [each.candidate.name for each in plan.candidates()]
    of_tiles, of_model = re.search(r" in (\d+) waves? of ", text), re.search(r"^\* .* us +(\d+) waves? ", text, re.M)
    assert of_tiles and of_model and of_tiles[1] == of_model[1], text
    assert len(names) == len(set(names))


def test_a_kernel_for_another_gpu_is_explained_as_such() -> None:
    plan = pycutlass.Gemm(TensorSpec((256, 512), "float16"), TensorSpec((512, 256), "float16"))
    a100, h200 = Device(0, "NVIDIA A100", 80, 108), Device(0, "NVIDIA H200", 90, 132)
    chosen = pick(plan.kind, *plan.size, gpu=h200)
    ranked = ranking(plan.kind, *plan.size, gpu=a100)
    text = explained(chosen, ranked, {}, plan.size, None, a100)
    assert "it is not among the kernels that are considered for this GPU" in text
    assert "not among the kernels" not in explained(ranked[0].candidate, ranked, {}, plan.size, None, a100)


def test_a_shape_is_no_tensor() -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"got the shape \(8, 300\): .* for a shape alone TensorSpec\(\(8, 300\)"
    ):
        pycutlass.Gemm((8, 300), TensorSpec((300, 16), "float16"))


def test_inputs_of_an_epilogue_that_it_lacks_are_told_apart() -> None:
    @epilogue_function
    def scaled(accum: Any, bias: Row, scale: Scalar) -> Any:
        return accum * scale + bias

    bias = np.ones(4, np.float32)
    plan = pycutlass.Gemm(A, B, epilogue=scaled, epilogue_inputs={"bias": bias, "scale": 2.0})
    for given, said in (
        ({"bais": bias}, r"pass each by its name\. Did you mean bias\?$"),
        ({"bias": bias, "scale": 1.0}, "A plan takes scalars, scale, where it is made$"),
    ):
        with pytest.raises(ArgumentError, match=said):
            plan.run(A, B, epilogue_inputs=given)
