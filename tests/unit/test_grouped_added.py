"""What groups add, matrices and a bias in one kernel, against NumPy in float64."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass.errors import ArgumentError, PyCutlassError

RNG = np.random.default_rng(5)
TOLERANCE = {"float16": 8e-3, "float32": 2e-5, "float64": 1e-12}
SIZES = [(3, 8, 16), (0, 8, 16), (70, 24, 8), (5, 4, 16)]
ROWS, OFFS = (4, 0, 9), [4, 4, 13]


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def close(got: Any, exact: Any) -> None:
    for each, right in zip(got, exact, strict=True):
        tolerance = TOLERANCE[str(each.dtype)]
        np.testing.assert_allclose(each.astype(np.float64), right, rtol=tolerance, atol=16 * tolerance)


def products(xs: Any, ws: Any, cs: Any, biases: Any, beta: float = 1, activation: Any = None) -> list[Any]:
    found = []
    for x, w, c, bias in zip(xs, ws, cs, biases, strict=True):
        sums = x.astype(np.float64) @ w + beta * c.astype(np.float64) + bias
        found.append(sums if activation is None else activation.numpy(sums))
    return found


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("activation", [None, pycutlass.gelu])
def test_lists_add_both_in_one_kernel(dtype: Any, by_columns: bool, activation: Any) -> None:
    def laid(matrix: Any) -> Any:
        return np.asfortranarray(matrix) if by_columns else matrix

    xs, ws = [random(m, k, dtype=dtype) for m, _, k in SIZES], [random(k, n, dtype=dtype) for _, n, k in SIZES]
    cs, biases = [laid(random(m, n, dtype=dtype)) for m, n, _ in SIZES], [random(n, dtype=dtype) for _, n, _ in SIZES]
    out = [laid(np.full((m, n), 99, dtype)) for m, n, _ in SIZES]
    exact = products(xs, ws, cs, biases, -2, activation)
    how = {"beta": -2, "epilogue": activation}
    assert pycutlass.grouped_matmul(xs, ws, cs, bias=biases, out=out, **how) is out
    close(out, exact)
    plan = pycutlass.GroupedGemm(xs, ws, cs, bias=biases, out=out, **how)
    assert len(plan.candidate.kernels) == 1
    for each in (plan, copy.copy(plan), pickle.loads(pickle.dumps(plan))):
        for _ in range(2):
            out[0][...] = 99
            close(each.run(xs, ws, cs, out, bias=biases), exact)
    plan.reset_operands(xs, ws, cs, out, bias=biases)
    close(plan.run(), exact)


@pytest.mark.parametrize("form", ["one vector", "a matrix", "a list"])
def test_offs_divide_what_is_added(form: str) -> None:
    xs, ws, cs = random(sum(ROWS), 8), random(3, 8, 12), random(sum(ROWS), 12)
    bias = random(3, 12)
    given = {"one vector": bias[0], "a matrix": bias, "a list": list(bias)}[form]
    each = np.repeat(bias[:1] if form == "one vector" else bias, 3 if form == "one vector" else 1, axis=0)
    parts = [np.split(tensor, OFFS[:-1]) for tensor in (xs, cs)]
    exact = np.concatenate(products(parts[0], ws, parts[1], each))
    close([pycutlass.grouped_matmul(xs, ws, cs, offs=OFFS, beta=1, bias=given)], [exact])
    plan = pycutlass.GroupedGemm(xs, ws, cs, offs=OFFS, beta=1, bias=given)
    close([plan.run(xs, ws, cs, offs=OFFS, bias=given)], [exact])
    columns = random(8, 12), random(4, 12), random(12)
    got = pycutlass.grouped_matmul(
        random(3, 4, 8) * 0, columns[0], columns[1], offs=[3, 3, 12], beta=1, bias=columns[2]
    )
    close([got], [columns[1] + columns[2]])


@pytest.mark.parametrize("shared", [False, True])
def test_stacks_are_a_batch_where_the_bias_is_one(shared: bool) -> None:
    xs, ws, cs, bias = random(3, 5, 8), random(3, 8, 12), random(3, 5, 12), random(3, 12)
    given = bias[0] if shared else bias
    exact = products(xs, ws, cs, [bias[0]] * 3 if shared else bias, 3)
    for out in (None, np.full((3, 5, 12), 99, np.float32), np.full((3, 12, 5), 99, np.float32).swapaxes(1, 2)):
        got = pycutlass.grouped_matmul(xs, ws, cs, beta=3, bias=given, out=out, allow_copy=True)
        assert out is None or got is out
        close(got, exact)


def test_a_bias_is_added_to_results_by_columns() -> None:
    xs, ws, bias = [random(6, 8)], [random(8, 12)], random(12)
    out = [np.full((12, 6), 99, np.float32).T]
    pycutlass.grouped_matmul(xs, ws, bias=bias, out=out)
    close(out, [xs[0].astype(np.float64) @ ws[0] + bias])
    pycutlass.grouped_matmul(xs, ws, bias=bias, beta=3, out=out)
    close(out, [xs[0].astype(np.float64) @ ws[0] + 3.0 * bias])


def test_what_kernels_do_not_take_is_copied_where_that_is_allowed() -> None:
    xs, ws, c, bias = [random(6, 8)], [random(8, 12)], random(6, 12), random(24)[::2]
    exact = products(xs, ws, [c], [bias])
    for out in ([np.full((6, 12), 99, np.float32)], [np.full((12, 6), 99, np.float32).T]):
        for laid in (c, np.asfortranarray(c), random(6, 24)[:, ::2]):
            laid[...] = c
            close(pycutlass.grouped_matmul(xs, ws, [laid], beta=1, bias=bias, out=out, allow_copy=True), exact)
        with pytest.raises(ArgumentError, match=r"not adjacent.*allow_copy=True"):
            pycutlass.grouped_matmul(xs, ws, bias=bias, out=out)


XS, WS, CS = [random(4, 8), random(2, 8)], [random(8, 6), random(8, 6)], [random(4, 6), random(2, 6)]
BIAS = random(6)
BOTH = pycutlass.GroupedGemm(XS, WS, CS, beta=1, bias=BIAS)
REFUSED: list[tuple[str, Any]] = [
    ("cs is given and beta is 0", lambda: pycutlass.grouped_matmul(XS, WS, CS, bias=BIAS)),
    ("cs are vectors, and so a bias, and bias", lambda: pycutlass.grouped_matmul(XS, WS, [BIAS, BIAS], bias=BIAS)),
    ("cs and bias and the epilogue", lambda: pycutlass.grouped_matmul(XS, WS, CS, beta=1, bias=BIAS, epilogue=adds)),
    ("bias must have 6 elements", lambda: pycutlass.grouped_matmul(XS, WS, CS, beta=1, bias=BIAS[:5])),
    ("made with cs and bias, and cs is given", lambda: BOTH.run(XS, WS, CS)),
    ("made with cs and bias, and bias is given", lambda: BOTH.run(XS, WS, bias=BIAS)),
    ("made with cs and bias, and neither is given", lambda: BOTH.run(XS, WS)),
    ("without cs and bias, and cs and bias is given", lambda: pycutlass.GroupedGemm(XS, WS).run(XS, WS, CS, bias=BIAS)),
    ("bias", lambda: BOTH.run(XS, WS, CS, bias=BIAS.astype(np.float16))),
    ("xs is an empty list", lambda: pycutlass.GroupedGemm([], [], [], bias=[], beta=1, out=[])),
    ("does not read it", lambda: pycutlass.grouped_matmul(XS, WS, bias=BIAS, epilogue=times)),
]


@pycutlass.epilogue_function
def times(accum: Any) -> Any:
    return accum * 2


@pycutlass.epilogue_function
def adds(accum: Any, c: pycutlass.epilogue.Source) -> Any:
    return accum + c


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


@pytest.mark.parametrize("operand", ["xs[0]", "ws[1]", "cs[0]", "bias", "scale[1]"])
def test_a_plan_refuses_what_requires_a_gradient_each_time(operand: str) -> None:
    """As plans of all families do: the first time, when tensors of these extents were run before, and for all names."""
    torch = pytest.importorskip("torch")

    @pycutlass.epilogue_function
    def scaled(accum: Any, scale: pycutlass.epilogue.Row) -> Any:
        return accum * scale

    given = {
        name: [torch.from_numpy(each) for each in tensors] for name, tensors in (("xs", XS), ("ws", WS), ("cs", CS))
    }
    bias, scale = torch.from_numpy(BIAS), [torch.from_numpy(BIAS), torch.from_numpy(BIAS).clone()]
    xs, ws, cs = given.values()
    if operand.startswith("scale"):
        plan = pycutlass.GroupedGemm(xs, ws, epilogue=scaled, epilogue_inputs={"scale": scale})
        run = lambda: plan.run(xs, ws, epilogue_inputs={"scale": scale})  # noqa: E731
        followed = scale[1]
    elif operand == "bias":
        plan = pycutlass.GroupedGemm(xs, ws, cs, beta=1, bias=bias)
        run, followed = lambda: plan.run(xs, ws, cs, bias=bias), bias
    elif operand.startswith("cs"):
        plan = pycutlass.GroupedGemm(xs, ws, cs, beta=1)
        run, followed = lambda: plan.run(xs, ws, cs), cs[0]
    else:
        plan = pycutlass.GroupedGemm(xs, ws)
        run, followed = lambda: plan.run(xs, ws), given[operand[:2]][int(operand[3])]
    for _ in range(2):
        run()
    followed.requires_grad_()
    label = operand.replace("bias", "bias[0]")
    with pytest.raises(ArgumentError, match=rf"{label.replace('[', '.').replace(']', '.')} requires a gradient"):
        run()
    with torch.no_grad():
        run()


def test_a_plan_of_one_product_looks_at_its_epilogue_as_well() -> None:
    torch = pytest.importorskip("torch")
    a, b, c, bias = (torch.from_numpy(each) for each in (XS[0], WS[0], CS[0], BIAS.copy()))
    plan = pycutlass.Gemm(a, b, c, beta=1, bias=bias)
    for _ in range(2):
        plan.run(a, b, c, bias=bias)
    bias.requires_grad_()
    with pytest.raises(ArgumentError, match="bias requires a gradient"):
        plan.run(a, b, c, bias=bias)
