"""Plans of groups: one for any groups of a kind, threads, copies, captured choices, and what is refused."""

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
from pycutlass import TensorSpec
from pycutlass.epilogue import Tensor
from pycutlass.errors import AlignmentError, ArgumentError, PyCutlassError

RNG = np.random.default_rng(13)


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


XS, WS = [random(4, 8), random(2, 8)], [random(8, 6), random(8, 6)]
X, W, OFFS = np.concatenate(XS), np.stack(WS), [4, 6]
EXACT = [x.astype(np.float64) @ w for x, w in zip(XS, WS, strict=True)]


@pytest.fixture
def plan() -> pycutlass.GroupedGemm:
    return pycutlass.GroupedGemm(XS, WS)


def check(got: Any, exact: Any) -> None:
    for one, other in zip(got, exact, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_other_tensors_are_really_taken(plan: pycutlass.GroupedGemm) -> None:
    for _ in range(3):
        xs, ws = [random(4, 8), random(2, 8)], [random(8, 6), random(8, 6)]
        out = [np.full((m, 6), np.nan, np.float32) for m in (4, 2)]
        assert plan.run(xs, ws, out=out) is out
        check(out, [x @ w for x, w in zip(xs, ws, strict=True)])
    first, second = plan(XS, WS), plan(XS, WS)
    assert first[0] is not second[0]
    check(first, EXACT)


def test_lists_of_the_same_extents_are_looked_at_as_well(plan: pycutlass.GroupedGemm) -> None:
    plan(XS, WS)
    assert plan._runs._local.last is not None
    torch = pytest.importorskip("torch")
    there = [[torch.from_numpy(each) for each in tensors] for tensors in (XS, WS)]
    assert all(isinstance(each, torch.Tensor) for each in plan(*there))
    assert all(isinstance(each, np.ndarray) for each in plan(XS, WS))
    shared = np.empty((6, 6), np.float32)
    for wrong in ([shared[:4], shared[3:5]], [shared[:4]], shared, [shared[:4, ::2], shared[4:]], [XS, WS]):
        with pytest.raises(PyCutlassError):
            plan(XS, WS, out=wrong)
    for others in ([XS[0], XS[1].astype(np.float64)], [XS[0], np.asfortranarray(XS[1])]):
        with pytest.raises(PyCutlassError, match="xs"):
            plan(others, WS)
    with pytest.raises(ArgumentError, match="made without cs and bias, and cs is given"):
        plan(XS, WS, [random(4, 6), random(2, 6)])
    check(plan(XS, WS), EXACT)


def test_one_plan_serves_any_groups_in_any_form(plan: pycutlass.GroupedGemm) -> None:
    for sizes in ([(3, 5, 7)], [(0, 4, 4), (1, 1, 1)], [(9, 2, 3)] * 40, [(4, 6, 8), (2, 6, 8)], [(5, 5, 0)], []):
        xs, ws = [random(m, k) for m, _, k in sizes], [random(k, n) for _, n, k in sizes]
        got = plan(xs, ws)
        assert [each.shape for each in got] == [(m, n) for m, n, _ in sizes]
        check(got, [x @ w for x, w in zip(xs, ws, strict=True)])
    got = plan(X, W, offs=OFFS)
    check([got[:4], got[4:]], EXACT)
    stacked = plan(random(2, 3, 8), W)
    assert stacked.shape == (2, 3, 6)
    assert plan(random(3, 9), random(9, 4), offs=[2, 9]).shape == (2, 3, 4)


def test_a_plan_is_made_without_memory() -> None:
    made = pycutlass.GroupedGemm([TensorSpec((4, 8), "float32")] * 3, [TensorSpec((8, 6), "float32")] * 3)
    check(made(XS, WS), EXACT)
    unknown = pycutlass.GroupedGemm(
        TensorSpec((6, 8), "float32"), TensorSpec((2, 8, 6), "float32"), offs=TensorSpec((2,), "int32")
    )
    assert unknown.sizes.tolist() == [[3, 6, 8], [3, 6, 8]]
    got = unknown(X, W, offs=OFFS)
    check([got[:4], got[4:]], EXACT)
    biased = pycutlass.GroupedGemm(
        TensorSpec((6, 8), "float32"), TensorSpec((2, 8, 6), "float32"), offs=OFFS, bias=TensorSpec((2, 6), "float32")
    )
    got = biased(X, W, offs=OFFS, bias=W[:, 0])
    check([got[:4], got[4:]], [d + w[0] for d, w in zip(EXACT, WS, strict=True)])
    with pytest.raises(PyCutlassError, match="no memory"):
        biased(X, W, offs=OFFS, bias=TensorSpec((2, 6), "float32"))
    with pytest.raises(PyCutlassError, match="no memory"):
        unknown(X, W, offs=TensorSpec((2,), "int32"))
    with pytest.raises(PyCutlassError, match="no memory"):
        unknown(TensorSpec((6, 8), "float32"), W, offs=OFFS)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_copies_have_the_same_choice(plan: pycutlass.GroupedGemm, again: Any) -> None:
    plan([random(300, 8)], WS[:1])
    other = again(plan)
    assert other.kind == plan.kind
    assert other.candidate == plan.candidate
    assert other._choices.state() == plan._choices.state()
    assert np.array_equal(other(XS, WS)[0], plan(XS, WS)[0])


def test_threads_have_tensors_of_their_own(plan: pycutlass.GroupedGemm) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for rows in range(1, 12):
            xs = [np.full((rows, 8), number, np.float32), np.full((2, 8), -number, np.float32)]
            got = plan(xs, [np.ones((8, 4), np.float32)] * 2)
            if not (np.all(got[0] == 8 * number) and np.all(got[1] == -8 * number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_operands_that_are_kept_for_runs_without_any(plan: pycutlass.GroupedGemm) -> None:
    out = np.empty((6, 6), np.float32)
    plan.reset_operands(X, W, out=out, offs=OFFS)
    assert plan.run() is out
    check([out[:4], out[4:]], EXACT)
    plan.reset_operands()
    with pytest.raises(ArgumentError, match="xs and ws are missing"):
        plan.run()


def test_no_candidate_is_left_unsaid(plan: pycutlass.GroupedGemm) -> None:
    assert plan.candidate in [each.candidate for each in plan.candidates()]
    text = plan.explain()
    assert plan.candidate.name in text
    assert "2 problems of at most 4x6x8" in text
    assert "2 tiles of all problems" in text
    manifest = json.loads(json.dumps(plan.manifest()))
    assert [each["name"] for each in manifest["kernels"]] == [plan.operation.procedural_name()]
    assert "2 problems up to 4x6x8" in repr(plan)


def test_compile_and_the_manifest_are_of_its_kernels(
    plan: pycutlass.GroupedGemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr("pycutlass.compiler.add_module", lambda kernels, **options: compiled.extend(kernels))
    plan.compile()
    assert compiled == [plan.operation]
    plan([random(5000, 8)] * 30, [random(8, 600)] * 30)
    names = {each["name"] for each in plan.manifest()["kernels"]}
    assert names == {each.operation.procedural_name() for each in plan._choices.made()}
    assert len(names) == 2


def test_check_finds_what_is_wrong(plan: pycutlass.GroupedGemm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 <= plan.check() <= 1
    assert 0 <= pycutlass.GroupedGemm(X, W, offs=OFFS, bias=W[:, 0]).check(seed=3) <= 1

    def wrong(xs: Any, ws: Any, cs: Any, out: Any, bias: Any) -> None:
        for x, w, d in zip(xs, ws, out, strict=True):
            d[...] = x @ w
        out[1][1, 2] += 1

    monkeypatch.setattr(plan, "run_once", wrong)
    with pytest.raises(ArgumentError, match="is wrong for 2x6x8, problem 1"):
        plan.check()

    def beside(xs: Any, ws: Any, cs: Any, out: Any, bias: Any) -> None:
        for x, w, d in zip(xs, ws, out, strict=True):
            d[...] = x @ w
        out[0].base[0, 0] = 0

    monkeypatch.setattr(plan, "run_once", beside)
    with pytest.raises(ArgumentError, match="wrote beside D of problem 0"):
        plan.check()


def test_a_plan_adds_what_it_was_made_to_add() -> None:
    cs = [random(4, 6), random(2, 6)]
    adding = pycutlass.GroupedGemm(XS, WS, cs, alpha=2, beta=3)
    check(adding(XS, WS, cs), [2 * d + 3 * c for d, c in zip(EXACT, cs, strict=True)])
    bias = random(2, 6)
    biased = pycutlass.GroupedGemm(X, W, offs=OFFS, bias=bias, epilogue=pycutlass.relu)
    got = biased(X, W, offs=OFFS, bias=bias)
    check([got[:4], got[4:]], [np.maximum(d + b, 0) for d, b in zip(EXACT, bias, strict=True)])
    for call in (lambda: adding(XS, WS), lambda: biased(X, W, offs=OFFS)):
        with pytest.raises(ArgumentError, match="neither is given"):
            call()


def test_results_lie_as_the_plan_was_made_for() -> None:
    out = [np.empty((6, 4), np.float32).T, np.empty((6, 2), np.float32).T]
    plan = pycutlass.GroupedGemm(XS, WS, out=out)
    got = plan(XS, WS)
    check(got, EXACT)
    assert all(each.flags.f_contiguous for each in got)
    whole = plan(X, W, offs=OFFS)
    assert whole.flags.f_contiguous
    check([whole[:4], whole[4:]], EXACT)


READ_ONLY = np.empty((6, 6), np.float32)
READ_ONLY.flags.writeable = False
REFUSED: list[tuple[str, Any]] = [
    ("xs of float32, got float16", lambda plan: plan([x.astype(np.float16) for x in XS], WS)),
    ("made without cs and bias, and bias is given", lambda plan: plan(XS, WS, bias=W[:, 0])),
    ("xs and ws are missing", lambda plan: plan(XS, None)),
    ("epilogue_inputs has row", lambda plan: plan(XS, WS, epilogue_inputs={"row": XS})),
    ("xs with adjacent elements along rows", lambda plan: plan([np.asfortranarray(x) for x in XS], WS)),
    (r"out must have shape \(4, 6\) in problem 0", lambda plan: plan(XS, WS, out=XS)),
    ("out with adjacent elements along rows", lambda plan: plan(X, W, offs=OFFS, out=np.empty((6, 6), np.float32).T)),
    (r"out must have shape \(6, 6\)", lambda plan: plan(X, W, offs=OFFS, out=X.copy())),
    ("operand D", lambda plan: plan(X, W, offs=OFFS, out=READ_ONLY)),
]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_what_a_plan_is_not_for(plan: pycutlass.GroupedGemm, message: str, call: Any, is_first: bool) -> None:
    out = plan(XS, WS)
    before = [each.copy() for each in out]
    if is_first:
        plan.reset_operands()
    with pytest.raises(PyCutlassError, match=message):
        call(plan)
    assert all(np.array_equal(*pair) for pair in zip(out, before, strict=True))
    assert all(np.array_equal(*pair) for pair in zip(plan(XS, WS), before, strict=True))


@pycutlass.epilogue_function
def with_more(accum: Any, aux: Tensor) -> Any:
    return {"D": accum + aux, "inner": accum}


def ones(*rows: int) -> list[Any]:
    return [np.ones((m, 8), np.float32) for m in rows]


MEMORY = np.zeros((32, 8), np.float32)
OUT, BIASES = [MEMORY[:2], MEMORY[:0], MEMORY[2:6]], [np.ones(8, np.float32), np.ones(8, np.float32), MEMORY[1]]
BY_COLUMNS = [MEMORY[:2].reshape(8, 2).T, MEMORY[:0].reshape(8, 0).T, MEMORY[2:6].reshape(8, 4).T]
MORE, PORTS = [*ones(2, 0), MEMORY[5:9]], {"aux": ones(2, 0, 4), "inner": ones(2, 0, 4)}
#: Of three problems, of which the second has no result: kernels have the others.
OVERLAPPING: list[tuple[str, str, dict[str, Any]]] = [
    ("out[2]", "xs[2]", {"xs": MORE}),
    ("out[2]", "ws[2]", {"ws": [*ones(8, 8), MEMORY[5:13]]}),
    ("out[2]", "cs[2]", {"cs": MORE}),
    ("out[0]", "cs[2]", {"cs": BIASES}),
    ("out[0]", "cs[2]", {"cs": BIASES, "out": BY_COLUMNS}),
    ("out[0]", "bias[2]", {"bias": BIASES}),
    ("out[0]", "bias", {"bias": MEMORY[1]}),
    ("out[0]", "bias[2]", {"bias": BIASES, "cs": ones(2, 0, 4)}),
    ("out[0]", "bias", {"bias": MEMORY[1], "cs": ones(2, 0, 4)}),
    ("out[2]", "out[0]", {"out": [MEMORY[:2], MEMORY[:0], MEMORY[1:5]]}),
    ("out[2]", "aux[2]", {"epilogue_inputs": PORTS | {"aux": MORE}}),
    ("out[2]", "inner[2]", {"epilogue_inputs": PORTS | {"inner": MORE}}),
    ("out[1]", "xs[2]", {"xs": MEMORY[8:14].reshape(3, 2, 8), "out": [*ones(2), MEMORY[13:15], *ones(2)]}),
    ("out", "xs", {"xs": MEMORY[5:11], "out": MEMORY[:6], "offs": [2, 2, 6]}),
    ("out", "aux", {
        "xs": np.ones((6, 8), np.float32), "out": MEMORY[:6], "offs": [2, 2, 6],
        "epilogue_inputs": {"aux": MEMORY[5:11], "inner": np.ones((6, 8), np.float32)},
    }),
]  # fmt: skip


@pytest.mark.parametrize(("out", "other", "changes"), OVERLAPPING)
def test_what_out_overlaps_is_called_as_run_calls_it(out: str, other: str, changes: dict[str, Any]) -> None:
    given = {"xs": ones(2, 0, 4), "ws": ones(8, 8, 8), "out": OUT, **changes}
    epilogue = with_more if "epilogue_inputs" in changes else None
    plan = pycutlass.GroupedGemm(**given, epilogue=epilogue, beta=1 if "cs" in changes else None)
    one, two = re.escape(out), re.escape(other)
    message = rf"^{one} overlaps {two} in memory \({one} at .*, {two} at .* Give {one} mem"
    if out[:3] == other[:3]:  # either may be named first
        message = rf"^({one} overlaps {two}|{two} overlaps {one}) in memory"
    with pytest.raises(ArgumentError, match=message):
        plan.run(**given)
    plan.run(**copy.deepcopy(given))
    with pytest.raises(ArgumentError, match=message):  # also where arguments are kept
        plan.run(**given)


def test_less_aligned_tensors_need_another_plan() -> None:
    half = [x.astype(np.float16) for x in XS]
    plan = pycutlass.GroupedGemm(half, [np.ones((8, 8), np.float16)] * 2)
    assert plan.kind.A.alignment == 8
    with pytest.raises(AlignmentError, match="xs whose addresses, lines and steps are multiples of 8 elements"):
        plan([np.ones((4, 7), np.float16)], [np.ones((7, 8), np.float16)])
    with pytest.raises(AlignmentError, match=r"out whose .* multiples of 8 elements, and they are multiples of 2"):
        plan(half, [np.ones((8, 8), np.float16)] * 2, out=[np.ones((4, 10), np.float16)[:, :8], half[1].copy()])


def test_groups_that_are_alike_have_one_kernel() -> None:
    plan = pycutlass.GroupedGemm(XS, WS)
    for lengths in ([1, 2, 3, 4], [4, 3, 2, 1], [2, 1, 4, 3]):
        offs = np.cumsum(lengths)
        plan(random(10, 8), random(4, 8, 6), offs=offs)
    assert len(plan._choices._picked) == 2, "of two problems and of four"


def test_what_was_launched_is_kept_for_a_few_kernels_alone(plan: pycutlass.GroupedGemm) -> None:
    for rows in (1, 40, 300, 3000):
        for count in (1, 50):
            plan([random(rows, 8)] * count, [random(8, 6)] * count)
    assert 1 <= len(plan._runs._local.launches) <= 4
    before = len(plan._runs._local.launches)
    plan.run_once([random(3, 8)], WS[:1])
    assert len(plan._runs._local.launches) == before
    plan.reset_operands()
    assert not hasattr(plan._runs._local, "launches")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_without_a_gpu_a_target_may_be_named(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_TARGET", target)
    x, w = np.ones((128, 64), np.float16), np.ones((2, 256, 64), np.float16).swapaxes(1, 2)
    plan = pycutlass.GroupedGemm(x, w, offs=[100, 128])
    assert plan.operation.is_sm90 == (target == "sm_90a")
    assert "compute capability" in plan.explain()
    np.testing.assert_array_equal(plan(x, w, offs=[0, 128]), np.full((128, 256), 64, np.float16))
    by_rows = pycutlass.GroupedGemm(x, np.ones((2, 64, 256), np.float16), offs=[100, 128])
    assert not by_rows.operation.is_sm90, "Hopper-native groups take ws by columns alone"


def test_tensors_without_xs_are_refused(plan: pycutlass.GroupedGemm) -> None:
    plan.reset_operands(XS, WS)
    for given in ({"ws": WS}, {"cs": WS}, {"offs": OFFS}, {"bias": W[0]}):
        with pytest.raises(ArgumentError, match="without xs"):
            plan.run(**given)
    check(plan.run(), EXACT)
