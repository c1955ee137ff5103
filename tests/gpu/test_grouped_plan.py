"""`grouped_matmul` and plans of groups on a GPU, against float64, with guards around what is written."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import pycutlass
from pycutlass.errors import ArgumentError

torch = pytest.importorskip("torch")

TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}
LENGTHS = [[40, 0, 200, 17, 0, 1, 300, 8], [0, 0, 0, 0, 0, 0, 0, 566], [71, 71, 71, 71, 71, 71, 71, 69]]
TOTAL = 566


def random(*shape: int, dtype: Any = torch.float16, turned: bool = False) -> Any:
    """Return random numbers; `turned`, the last dimension but one is contiguous."""
    if turned:
        return random(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT
    return torch.randn(shape, device="cuda").to(dtype)


def check(got: Any, a: Any, b: Any) -> None:
    exact = a.double() @ b.double()
    tolerance = TOLERANCE[a.dtype]
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance * max(1, a.shape[-1]) ** 0.5)


def check_rows(got: Any, xs: Any, ws: Any, lengths: Any) -> None:
    for each, x, w in zip(got.split(lengths), xs.split(lengths), ws, strict=True):
        check(each, x, w)


def ends(lengths: Any, device: str = "cuda") -> Any:
    return torch.tensor(lengths, device=device).cumsum(0).int()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_rows_are_divided(dtype: Any, turned: bool, on_device: bool) -> None:
    """`ws` by columns is what Hopper-native kernels multiply, by rows what Ampere-style ones do."""
    xs, ws = random(TOTAL, 128, dtype=dtype), random(8, 128, 96, dtype=dtype, turned=turned)
    plan = pycutlass.GroupedGemm(xs, ws, offs=ends(LENGTHS[0]))
    if torch.cuda.get_device_capability() == (9, 0):
        assert plan.operation.is_sm90 == (turned and dtype is not torch.float32)
    for lengths in LENGTHS:
        offs = ends(lengths) if on_device else ends(lengths).tolist()
        memory = torch.full((TOTAL + 32, 96 + 16), torch.nan, device="cuda", dtype=dtype)
        out = memory[16:-16, 8:-8]
        assert pycutlass.grouped_matmul(xs, ws, offs=offs, out=out) is out
        check_rows(out, xs, ws, lengths)
        check_rows(plan(xs, ws, offs=offs), xs, ws, lengths)
        out.fill_(torch.nan)
        assert memory.isnan().all()


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("turned_x", "turned_w"), [(True, False), (False, True)])
def test_k_is_divided(turned_x: bool, turned_w: bool, on_device: bool) -> None:
    """The gradient of weights: xs.T of tokens and ws of gradients, both with whole lines of a group."""
    xs, ws = random(64, TOTAL, turned=turned_x), random(TOTAL, 48, turned=turned_w)
    for lengths in LENGTHS:
        offs = ends(lengths)
        got = pycutlass.grouped_matmul(xs, ws, offs=offs if on_device else offs.tolist())
        for each, x, w in zip(got, xs.split(lengths, 1), ws.split(lengths), strict=True):
            check(each, x, w)


@pytest.mark.parametrize("on_device", [False, True])
def test_columns_are_divided(on_device: bool) -> None:
    xs, ws = random(8, 40, 64), random(64, TOTAL, turned=True)
    for lengths in LENGTHS:
        offs = ends(lengths)
        got = pycutlass.grouped_matmul(xs, ws, offs=offs if on_device else offs.tolist())
        for each, x, w in zip(got.split(lengths, 1), xs, ws.split(lengths, 1), strict=True):
            check(each, x, w)


@pytest.mark.parametrize("turned", [False, True])
def test_lists_have_extents_of_their_own(turned: bool) -> None:
    sizes = [(64, 48, 128), (1, 8, 16), (0, 32, 64), (300, 264, 40), (16, 24, 0)] * 5
    xs, ws = [random(m, k) for m, _, k in sizes], [random(k, n, turned=turned) for _, n, k in sizes]
    bias = [random(n) for _, n, _ in sizes]
    plan = pycutlass.GroupedGemm(xs, ws)
    assert plan.check() <= 1
    for got, x, w in zip(plan(xs, ws), xs, ws, strict=True):
        check(got, x, w)
    for got, x, w, b in zip(pycutlass.grouped_matmul(xs, ws, bias=bias), xs, ws, bias, strict=True):
        check(got - b, x, w)
    few = plan(xs[:3], ws[:3])
    assert len(few) == 3
    check(few[0], xs[0], ws[0])


def test_an_epilogue_function_has_tensors_of_each_problem() -> None:
    @pycutlass.epilogue_function
    def scaled(accum: Any, row: pycutlass.epilogue.Row, column: pycutlass.epilogue.Column) -> Any:
        return pycutlass.relu(accum * column + row)

    xs, ws, lengths = random(TOTAL, 64), random(8, 64, 96, turned=True), LENGTHS[0]
    row, column = random(8, 96), random(TOTAL)
    inputs = {"row": row, "column": column}
    got = pycutlass.grouped_matmul(xs, ws, offs=ends(lengths).tolist(), epilogue=scaled, epilogue_inputs=inputs)
    products = [x.double() @ w.double() for x, w in zip(xs.split(lengths), ws, strict=True)]
    exact = torch.cat([d * c[:, None] + r for d, c, r in zip(products, column.split(lengths), row, strict=True)]).relu()
    torch.testing.assert_close(got.double(), exact, rtol=1e-2, atol=0.2)


@pytest.mark.parametrize("turned", [False, True])
def test_an_epilogue_function_has_tensors_where_offs_are_on_the_gpu(turned: bool) -> None:
    """Rows of `ws` by columns are what Hopper-native kernels multiply, by rows what Ampere-style ones do."""

    @pycutlass.epilogue_function
    def everything(
        accum: Any,
        row: pycutlass.epilogue.Row,
        column: pycutlass.epilogue.Column,
        whole: pycutlass.epilogue.Tensor,
        number: pycutlass.epilogue.PerBatch,
    ) -> Any:
        y = pycutlass.silu(accum) * whole
        return {"D": (y + row) * column * number, "inner": y}

    xs, ws = random(TOTAL, 64), random(8, 64, 96, turned=turned)
    row, column, whole, number = random(8, 96), random(TOTAL), random(TOTAL, 96), random(8)
    plan = None
    for lengths in LENGTHS:
        inner = torch.full((TOTAL, 96), float("nan"), device="cuda", dtype=torch.float16)
        tensors = {"row": row, "column": column, "whole": whole, "number": number, "inner": inner}
        if plan is None:
            plan = pycutlass.GroupedGemm(xs, ws, offs=ends(lengths), epilogue=everything, epilogue_inputs=tensors)
        groups = torch.arange(8, device="cuda").repeat_interleave(torch.tensor(lengths, device="cuda"))
        sums = torch.cat([x.double() @ w.double() for x, w in zip(xs.split(lengths), ws, strict=True)])
        exact_inner = torch.nn.functional.silu(sums) * whole
        exact = (exact_inner + row[groups]) * column[:, None] * number[groups, None]
        given: Any = {"offs": ends(lengths), "epilogue_inputs": tensors}
        for way in ("alone", "plan"):  # of a plan, tables are exchanged
            inner.fill_(float("nan"))
            how = {"epilogue": everything} if way == "alone" else {}
            got = (pycutlass.grouped_matmul if way == "alone" else plan)(xs, ws, **given, **how)
            torch.testing.assert_close(got.double(), exact, rtol=2e-2, atol=0.5)
            torch.testing.assert_close(inner.double(), exact_inner, rtol=2e-2, atol=0.3)


def test_it_is_torchs_grouped_mm() -> None:
    xs, ws = random(TOTAL, 128, dtype=torch.bfloat16), random(8, 96, 128, dtype=torch.bfloat16).mT
    offs = ends(LENGTHS[0])
    expected = torch._grouped_mm(xs, ws, offs)
    torch.testing.assert_close(pycutlass.grouped_matmul(xs, ws, offs=offs), expected, rtol=2e-2, atol=0.2)


@pytest.mark.parametrize("turned", [False, True])
def test_nothing_waits_for_offs_on_the_gpu(turned: bool) -> None:
    xs, ws = random(TOTAL, 128), random(8, 128, 96, turned=turned)
    plan = pycutlass.GroupedGemm(xs, ws, offs=ends(LENGTHS[0]))
    out = plan(xs, ws, offs=ends(LENGTHS[0]))  # what is compiled and made at first may wait
    fresh = ends(LENGTHS[2])
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    slept = torch.cuda.Event()
    slept.record()
    try:
        with warnings.catch_warnings(action="ignore"):  # that it does not see all that waits, so the event is asked too
            torch.cuda.set_sync_debug_mode("error")
        plan(xs, ws, out=out, offs=fresh)
        assert not slept.query(), "the host was ahead of the GPU"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check_rows(out, xs, ws, LENGTHS[2])


@pytest.mark.parametrize("values", [[-5, 3, 2, 700], [9000] * 4, [-(2**31)] * 4, [566, 1, 2, 3]])
def test_whatever_offs_holds_nothing_is_written_beside_the_result(values: list[int]) -> None:
    xs, ws = random(TOTAL, 64), random(4, 64, 96)
    memory = torch.full((TOTAL + 64, 96), torch.nan, device="cuda", dtype=torch.float16)
    out = memory[32:-32]
    offs = torch.tensor(values, device="cuda", dtype=torch.int32)
    pycutlass.grouped_matmul(xs, ws, offs=offs, out=out)
    torch.cuda.synchronize()
    out.fill_(torch.nan)
    assert memory.isnan().all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("last", [0, 100, 299, TOTAL])
def test_what_is_behind_the_last_group_is_zero(last: int, turned: bool) -> None:
    """Of offs on the GPU it is one more problem, with a K of 0."""
    xs, ws = random(TOTAL, 64), random(2, 64, 96, turned=turned)
    stack, wide = random(2, 40, 64), random(64, TOTAL, turned=True)
    begin = min(100, last)
    for offs in ([begin, last], torch.tensor([begin, last], device="cuda", dtype=torch.int32)):
        _dirty()
        got = pycutlass.grouped_matmul(xs, ws, offs=offs)
        check_rows(got[:last], xs[:last], ws, [begin, last - begin])
        assert not got[last:].any()
        out = torch.full((TOTAL, 96), 7.0, device="cuda", dtype=torch.float16)
        pycutlass.grouped_matmul(xs, ws, offs=offs, out=out)
        assert bool((out[last:] == 7).all())
        _dirty()
        got = pycutlass.grouped_matmul(stack, wide, offs=offs)
        assert not got[:, last:].any()
        check(got[:, :begin], stack[0], wide[:, :begin])
        check(got[:, begin:last], stack[1], wide[:, begin:last])


def test_it_is_zero_whatever_the_epilogue_makes_of_zeros() -> None:
    xs, ws, offs = random(TOTAL, 64), random(2, 64, 96, turned=True), ends([100, 200])
    products = torch.cat((xs[:100].double() @ ws[0].double(), xs[100:300].double() @ ws[1].double()))
    bias = random(96)
    for further, exact in (
        ({"epilogue": pycutlass.relu}, products.relu()),
        ({"epilogue": pycutlass.sigmoid}, products.sigmoid()),
        ({"bias": bias}, products + bias.double()),
    ):
        _dirty()
        got = pycutlass.grouped_matmul(xs, ws, offs=offs, **further)
        torch.testing.assert_close(got[:300].double(), exact, rtol=5e-3, atol=5e-2)
        assert not got[300:].any()


def _dirty() -> None:
    """Leave memory behind that holds no zeros, which the next result is made of."""
    for size in (TOTAL * 96, TOTAL * 40):
        torch.full((size,), torch.nan, device="cuda", dtype=torch.float16)


@pytest.mark.parametrize("turned", [False, True])
def test_a_graph_follows_offs_on_the_gpu(turned: bool) -> None:
    xs, ws, offs = random(TOTAL, 128), random(8, 128, 96, turned=turned), ends(LENGTHS[0])
    plan = pycutlass.GroupedGemm(xs, ws, offs=offs)
    out = plan(xs, ws, offs=offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(xs, ws, out=out, offs=offs)
    plan.reset_operands()
    for lengths in LENGTHS:
        offs.copy_(ends(lengths))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check_rows(out, xs, ws, lengths)


def test_a_graph_has_the_sizes_that_the_host_knew() -> None:
    xs, ws = random(TOTAL, 128), random(8, 128, 96)
    offs = ends(LENGTHS[0]).tolist()
    plan = pycutlass.GroupedGemm(xs, ws, offs=offs)
    out = torch.empty(TOTAL, 96, device="cuda", dtype=torch.float16)
    plan(xs, ws, out=out, offs=offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(xs, ws, out=out, offs=offs)
    plan.reset_operands()
    plan(xs, ws, offs=ends(LENGTHS[2]).tolist())
    xs.normal_()
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    check_rows(out, xs, ws, LENGTHS[0])


def test_plans_follow_the_current_stream() -> None:
    ws = random(8, 128, 96)
    plan = pycutlass.GroupedGemm(random(TOTAL, 128), ws, offs=ends(LENGTHS[0]))
    stream = torch.cuda.Stream()
    for offs in (ends(LENGTHS[0]), ends(LENGTHS[0]).tolist()):
        for _ in range(3):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                xs = random(TOTAL, 128)
                got = plan(xs, ws, offs=offs)
            stream.synchronize()
            check_rows(got, xs, ws, LENGTHS[0])
    with pytest.raises(ArgumentError, match="make that stream the current one"):
        plan(xs, ws, offs=ends(LENGTHS[0]), stream=stream)
    with pytest.raises(ArgumentError, match=r"torch\.cuda\.stream\(stream\)"):
        plan(xs, ws, out=got, offs=ends(LENGTHS[0]), stream=stream)


def test_offs_are_where_the_tensors_are() -> None:
    offs = ends(LENGTHS[0])
    with pytest.raises(ArgumentError, match="offs is on GPU 0, and xs is on the host"):
        pycutlass.grouped_matmul(random(TOTAL, 64).cpu(), random(8, 64, 96).cpu(), offs=offs)
    with pytest.raises(ArgumentError, match=r"\.cuda\(\)"):  # as of a product in one line
        pycutlass.grouped_matmul(random(TOTAL, 64).cpu(), random(8, 64, 96).cpu(), offs=offs.cpu())
