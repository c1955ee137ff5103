"""What products, convolutions and groups in one line add on a GPU: C and a bias in one kernel, and pairs of columns."""

from typing import Any

import pytest
import torch
from torch.nn import functional

import pycutlass
from pycutlass.epilogue.fusions import swiglu

TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4, torch.float64: 1e-10}
TYPES = list(TOLERANCE)


def random(*shape: int, dtype: Any) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)


def close(got: Any, exact: Any) -> None:
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=8 * tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("size", [(256, 192, 64), (130, 100, 24), (1, 96, 64)])
def test_products(dtype: Any, by_columns: bool, size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b, bias = random(m, k, dtype=dtype), random(k, n, dtype=dtype), random(n, dtype=dtype)
    c, out = (random(n, m, dtype=dtype).T if by_columns else random(m, n, dtype=dtype) for _ in range(2))
    exact = functional.silu(a.double() @ b.double() + 2 * c.double() + bias.double())
    for _ in range(2):  # the second time by what waits
        out.fill_(99)
        assert pycutlass.matmul(a, b, c, beta=2, bias=bias, epilogue=pycutlass.silu, out=out) is out
        close(out, exact)
    pycutlass.matmul(a, b, bias=bias, out=out)
    close(out, a.double() @ b.double() + bias.double())
    plan = pycutlass.Gemm(a, b, c, beta=2, bias=bias, epilogue=pycutlass.silu, out=out)
    for _ in range(2):
        close(plan.run(a, b, c, out, bias=bias), exact)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("taps", [1, 3])
def test_convolutions(dtype: Any, groups: int, taps: int) -> None:
    x, w = random(2, 32, 9, 9, dtype=dtype), random(48, 32 // groups, taps, taps, dtype=dtype)
    x, w = (each.to(memory_format=torch.channels_last) for each in (x, w))
    how = {"padding": taps // 2, "groups": groups}
    c = random(2, 48, 9, 9, dtype=dtype).to(memory_format=torch.channels_last)
    bias = random(48, dtype=dtype)
    exact = functional.relu(functional.conv2d(x.double(), w.double(), bias.double(), **how) - c.double())
    plan = pycutlass.Conv2d(x, w, c, beta=-1, bias=bias, epilogue=pycutlass.relu, **how)
    for _ in range(2):
        close(pycutlass.conv2d(x, w, c, beta=-1, bias=bias, epilogue=pycutlass.relu, **how), exact)
        close(plan.run(x, w, c, bias=bias), exact)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("by_columns", [False, True])
def test_groups(dtype: Any, by_columns: bool) -> None:
    sizes = [(64, 96, 32), (0, 96, 32), (7, 48, 64)]
    xs, ws = [random(m, k, dtype=dtype) for m, _, k in sizes], [random(k, n, dtype=dtype) for _, n, k in sizes]
    biases = [random(n, dtype=dtype) for _, n, _ in sizes]
    cs, out = (
        [random(n, m, dtype=dtype).T if by_columns else random(m, n, dtype=dtype) for m, n, _ in sizes] for _ in "cd"
    )
    exact = [
        x.double() @ w.double() + 3 * c.double() + bias.double()
        for x, w, c, bias in zip(xs, ws, cs, biases, strict=True)
    ]
    for _ in range(2):
        pycutlass.grouped_matmul(xs, ws, cs, beta=3, bias=biases, out=out)
        for got, right in zip(out, exact, strict=True):
            close(got, right)


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float16, None), (torch.float32, "3xtf32"), (torch.float64, None)]
)
@pytest.mark.parametrize("columns", [12, 24, 256])
def test_pairs(dtype: Any, precision: Any, columns: int) -> None:
    a, b = random(3, 70, 64, dtype=dtype), random(64, columns, dtype=dtype)
    x = a.double() @ b.double()
    exact = functional.silu(x[..., 0::2]) * x[..., 1::2]
    out = torch.full(exact.shape, 99, device="cuda", dtype=dtype)
    for _ in range(2):
        assert pycutlass.matmul(a, b, epilogue=swiglu, precision=precision, out=out) is out
        close(out, exact)
        close(pycutlass.matmul(a, b, epilogue=swiglu, precision=precision), exact)
