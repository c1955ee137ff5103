"""Products and groups of drawn operands, with all that may be added: right, or refused in words of ours."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass.epilogue import fusions
from pycutlass.errors import PyCutlassError

TOLERANCE = {np.float16: 2e-2, np.float32: 1e-4, np.float64: 1e-10}
ACTIVATIONS = [None, pycutlass.relu, pycutlass.gelu, pycutlass.silu]
GATED = {fusions.swiglu: pycutlass.silu, fusions.geglu: pycutlass.gelu}
DRAWN, CALLS = range(12), 16


class Draw:
    """What one call is made of."""

    def __init__(self, seed: int) -> None:
        self.choose, self._numbers = random.Random(seed), np.random.default_rng(seed)
        self.dtype = self.choose.choice(list(TOLERANCE))
        self.copies, self.precision = self.one_of(True, False), None
        self.epilogue: Any = self.choose.choice(ACTIVATIONS)
        self.is_gated = self.one_of(True, False, False, False, False)
        if self.is_gated:
            self.epilogue = self.choose.choice(list(GATED))
        if self.dtype is np.float32:
            self.precision = "3xtf32" if self.is_gated else self.one_of(None, "3xtf32")
        self.alpha = 1 if self.is_gated else self.one_of(1, 0.5, -2)
        self.has_c, self.has_bias = (not self.is_gated and self.one_of(True, False) for _ in range(2))
        self.beta = self.one_of(1, -1.5) if self.has_c else 1

    def one_of(self, *choices: Any) -> Any:
        return self.choose.choice(choices)

    def tensor(self, *shape: int) -> Any:
        return self._numbers.standard_normal(shape).astype(self.dtype)

    def laid(self, array: Any, *ways: str) -> Any:
        """Return the same numbers in other strides."""
        way = self.one_of(*ways)
        if way == "columns" and array.ndim > 1:
            return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
        step, pad = (2, 0) if way == "steps" else (1, 3 if way == "padded" else 0)
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * step + pad), array.dtype)
        found = wide[..., : array.shape[-1] * step : step]
        found[...] = array
        return found

    def added(self, sums: Any, c: Any, bias: Any) -> Any:
        """Return what the epilogue makes of sums in float64."""
        x = self.alpha * sums + (self.beta * c.astype(np.float64) if self.has_c else 0)
        x = x + (bias.astype(np.float64) if self.has_bias else 0)
        if self.is_gated:
            return GATED[self.epilogue].numpy(x[..., 0::2]) * x[..., 1::2]
        return x if self.epilogue is None else self.epilogue.numpy(x)

    @property
    def how(self) -> dict[str, Any]:
        beta = {"beta": self.beta} if self.has_c else {}
        return {"alpha": self.alpha, "epilogue": self.epilogue, "precision": self.precision, **beta}

    def given(self, c: Any, bias: Any) -> tuple[Any, Any]:
        return c if self.has_c else None, bias if self.has_bias else None


def products(draw: Draw) -> tuple[Any, Any, Any]:
    m, k = draw.one_of(1, 5, 33, 100), draw.one_of(3, 8, 16)
    n = draw.one_of(4, 8, 12, 24, 72, 136) if draw.is_gated else draw.one_of(1, 4, 7, 24, 72, 100)
    batch = draw.one_of((), (), (2,), (3, 2))
    a, b = draw.tensor(*batch, m, k), draw.tensor(*draw.one_of((), batch), k, n)
    c, bias = draw.tensor(*batch, m, n), draw.tensor(n)
    exact = draw.added(np.matmul(a.astype(np.float64), b.astype(np.float64)), c, bias)
    ways = ("rows", "rows", "columns", "padded", "steps")
    a, b, c, bias = (draw.laid(each, *ways) for each in (a, b, c, bias))
    c, bias = draw.given(c, bias)
    out = draw.one_of(None, draw.laid(np.full(exact.shape, 99, draw.dtype), *ways))
    if batch or draw.one_of(True, False):
        return out, exact, pycutlass.matmul(a, b, c, bias=bias, out=out, allow_copy=draw.copies, **draw.how)
    plan = pycutlass.Gemm(a, b, c, bias=bias, out=out, **draw.how)
    plan.run(a, b, c, bias=bias, out=out)
    return out, exact, plan.run(a, b, c, bias=bias, out=out)


def groups(draw: Draw) -> tuple[Any, Any, Any]:
    sizes = [(draw.one_of(0, 1, 5, 70), draw.one_of(4, 8, 24), draw.one_of(8, 16)) for _ in range(draw.one_of(1, 3))]
    xs, ws = [draw.tensor(m, k) for m, _, k in sizes], [draw.tensor(k, n) for _, n, k in sizes]
    cs, biases = [draw.tensor(m, n) for m, n, _ in sizes], [draw.tensor(n) for _, n, _ in sizes]
    exact = [draw.added(x.astype(np.float64) @ w, c, bias) for x, w, c, bias in zip(xs, ws, cs, biases, strict=True)]
    of_x, of_w, of_d, of_c = (draw.one_of("rows", "columns") for _ in range(4))
    xs, ws = [draw.laid(each, of_x) for each in xs], [draw.laid(each, of_w) for each in ws]
    biases = [draw.laid(each, draw.one_of("rows", "rows", "steps")) for each in biases]
    cs, biases = draw.given([draw.laid(each, of_c) for each in cs], biases)
    out = draw.one_of(None, [draw.laid(np.full(each.shape, 99, draw.dtype), of_d) for each in exact])
    how = {"bias": biases, "out": out}
    got = pycutlass.grouped_matmul(xs, ws, cs, **how, allow_copy=draw.copies, **draw.how)
    if not draw.copies:
        got = pycutlass.GroupedGemm(xs, ws, cs, **how, **draw.how).run(xs, ws, cs, **how)
    flat = np.concatenate([each.ravel() for each in got])
    assert out is None or all(one is other for one, other in zip(got, out, strict=True))
    return None, np.concatenate([each.ravel() for each in exact]), flat


def outcomes(seed: int, call: Any) -> Iterator[tuple[Draw, Any]]:
    """Yield what was drawn with what came of it: True where it is right, or the exception."""
    for number in range(CALLS):
        draw = Draw(seed * CALLS + number)
        try:
            out, exact, got = call(draw)
        except PyCutlassError as error:
            yield draw, error
            continue
        assert out is None or np.shares_memory(got, out)
        tolerance = TOLERANCE[draw.dtype] * max(1.0, float(np.abs(exact).max(initial=0)))
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=tolerance, err_msg=str(vars(draw)))
        yield draw, True


@pytest.mark.parametrize("seed", DRAWN)
@pytest.mark.parametrize("call", [products, groups], ids=["products", "groups"])
def test_what_is_drawn_is_right_or_refused_for_its_strides(call: Any, seed: int) -> None:
    found = list(outcomes(seed, call))
    refused = [str(outcome) for _, outcome in found if outcome is not True]
    reasons = ("stride", "contiguous", "lie", "adjacent", "copied", "aligned")
    assert [each for each in refused if not any(reason in each for reason in reasons)] == []
    assert not any(
        outcome is not True and draw.copies and call is groups for draw, outcome in found if not draw.is_gated
    )
    assert len(refused) < len(found), "nothing was computed"
