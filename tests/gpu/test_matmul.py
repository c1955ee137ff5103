"""`matmul`, `linear` and plans on a GPU, against float64, with guards around what is written."""

from __future__ import annotations

from typing import Any

import pytest

import pycutlass

torch = pytest.importorskip("torch")

SHAPES = [((64, 128), (128, 96)), ((1, 512), (512, 256)), ((3, 40, 64), (64, 48)), ((3, 40, 64), (3, 64, 48))]
TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}


def check(got: Any, a: Any, b: Any) -> None:
    exact = a.double() @ b.double()
    scale = a.shape[-1] ** 0.5
    torch.testing.assert_close(got.double(), exact, rtol=TOLERANCE[a.dtype], atol=TOLERANCE[a.dtype] * scale)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_it_is_torchs_product(a: tuple[int, ...], b: tuple[int, ...], dtype: Any, is_transposed: bool) -> None:
    left = torch.randn(a, device="cuda", dtype=dtype)
    right = torch.randn(b, device="cuda", dtype=dtype)
    if is_transposed:
        right = right.mT.contiguous().mT
    check(pycutlass.matmul(left, right), left, right)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_nothing_is_written_beside_the_result(dtype: Any) -> None:
    a, b = torch.randn(37, 64, device="cuda", dtype=dtype), torch.randn(64, 48, device="cuda", dtype=dtype)
    memory = torch.full((37 + 32, 48 + 16), torch.nan, device="cuda", dtype=dtype)
    out = memory[16:-16, 8:-8]
    assert pycutlass.matmul(a, b, out=out) is out
    check(out, a, b)
    out.fill_(torch.nan)
    assert memory.isnan().all()


def test_plans_take_new_tensors_on_the_current_stream() -> None:
    b = torch.randn(64, 48, device="cuda", dtype=torch.float16)
    plan = pycutlass.Gemm(torch.randn(32, 64, device="cuda", dtype=torch.float16), b)
    assert plan.check() <= 1
    stream = torch.cuda.Stream()
    for rows in (32, 32, 1, 100):
        with torch.cuda.stream(stream):
            a = torch.randn(rows, 64, device="cuda", dtype=torch.float16)
            got = plan(a, b)
        stream.synchronize()
        check(got, a, b)


def test_products_are_captured_in_graphs() -> None:
    a = torch.randn(32, 64, device="cuda", dtype=torch.float16)
    b = torch.randn(64, 48, device="cuda", dtype=torch.float16)
    out = torch.empty(32, 48, device="cuda", dtype=torch.float16)
    pycutlass.matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pycutlass.matmul(a, b, out=out)
    a.normal_()
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    check(out, a, b)
