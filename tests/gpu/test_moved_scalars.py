"""Scalars in device memory that go over to other memory between launches: every launch reads them where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pycutlass

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

M, N, K = 96, 136, 72


def drawn(*shape: int) -> Any:
    return torch.randint(-3, 4, shape, device="cuda").half()


def scalar(value: float) -> Any:
    return torch.tensor(value, device="cuda")


def moved(given: Any, value: float) -> None:
    """Have a scalar go over to other memory, and overwrite what was there."""
    before = given.data
    given.data = scalar(value)
    before.fill_(float("nan"))


def of_plan(a: Any, b: Any, alpha: Any, beta: Any, c: Any) -> Callable[[], Any]:
    plan = pycutlass.Gemm(a, b, c, alpha=alpha, beta=beta)
    return lambda: plan.run(a, b, c)


def of_matmul(a: Any, b: Any, alpha: Any, beta: Any, c: Any) -> Callable[[], Any]:
    return lambda: pycutlass.matmul(a, b, c, alpha=alpha, beta=beta)


@pytest.mark.parametrize("way", [of_plan, of_matmul])
def test_products_read_scalars_where_they_are(way: Callable[..., Callable[[], Any]]) -> None:
    a, b, c = drawn(M, K), drawn(K, N), drawn(M, N)
    alpha, beta = scalar(1.0), scalar(0.5)
    call = way(a, b, alpha, beta, c)
    product = a.double() @ b.double()
    for turn in range(20):
        wanted = (turn % 5 - 2.0, turn % 3 - 1.0)
        if turn % 2:
            moved(alpha, wanted[0])
            moved(beta, wanted[1])
        else:
            alpha.fill_(wanted[0])
            beta.fill_(wanted[1])
        got = call()
        assert torch.equal(got.double(), (wanted[0] * product + wanted[1] * c.double()).half().double())


def test_convolutions_read_scalars_where_they_are() -> None:
    x = drawn(2, 16, 9, 7).to(memory_format=torch.channels_last)
    w = drawn(24, 16, 3, 3).to(memory_format=torch.channels_last)
    alpha = scalar(1.0)
    plan = pycutlass.Conv2d(x, w, padding=1, alpha=alpha)
    exact = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    for value in (1.0, -2.0, 0.5):
        moved(alpha, value)
        assert torch.equal(plan.run(x, w).double(), (value * exact).half().double())


def test_a_scalar_that_autograd_follows_is_refused_before_a_launch() -> None:
    a, b, alpha = drawn(M, K), drawn(K, N), scalar(2.0)
    plan, out = pycutlass.Gemm(a, b, alpha=alpha), torch.zeros(M, N, device="cuda", dtype=torch.float16)
    plan.run(a, b, out=out)
    first = out.clone()
    out.fill_(7)
    alpha.requires_grad_()
    with pytest.raises(pycutlass.PyCutlassError, match="alpha"):
        plan.run(a, b, out=out)
    assert bool((out == 7).all())
    alpha.requires_grad_(False)
    plan.run(a, b, out=out)
    assert torch.equal(out, first)
