"""`matmul`, `linear` and plans on a GPU, against float64, with guards around what is written."""

from __future__ import annotations

from typing import Any

import pytest

import pycutlass
from pycutlass.errors import ArgumentError

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


@pytest.mark.parametrize("activation", [None, pycutlass.relu, pycutlass.gelu])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_c_and_a_bias_are_added_in_one_kernel(dtype: Any, activation: Any) -> None:
    a, b, c = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((64, 128), (128, 96), (64, 96)))
    bias = torch.randn(96, device="cuda", dtype=dtype)
    for _ in range(3):
        got = pycutlass.matmul(a, b, c, alpha=0.5, beta=2, bias=bias, epilogue=activation)
        x = 0.5 * (a.double() @ b.double()) + 2 * c.double() + bias.double()
        exact = {None: x, pycutlass.relu: x.relu(), pycutlass.gelu: torch.nn.functional.gelu(x)}[activation]
        torch.testing.assert_close(got.double(), exact, rtol=TOLERANCE[dtype], atol=12 * TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["one", "vectors", "numbers"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float16])
def test_products_are_scaled(dtype: Any, kind: str) -> None:
    a = (4 * torch.randn(64, 128, device="cuda")).to(dtype)
    b = (4 * torch.randn(96, 128, device="cuda")).to(dtype).T
    bias = torch.randn(96, device="cuda", dtype=torch.float16)
    for _ in range(3):
        one = torch.rand(2, 1, device="cuda")
        vectors = torch.rand(64, 1, device="cuda"), torch.rand(1, 96, device="cuda")
        left, right = {"one": (one[0], one[1].reshape(())), "vectors": vectors, "numbers": (0.5, 0.25)}[kind]
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            got = pycutlass.matmul(a, b, scales=(left, right), bias=bias, out_dtype=torch.float16)
            torch.cuda.current_stream().synchronize()
        exact = left * (a.double() @ b.double()) * right + bias.double()
        # Tensor cores add up products of 8-bit floats with 13 bits behind those of the largest one.
        least = 2.0**-13 * left * (a.double().abs() @ b.double().abs()) * right if dtype.itemsize == 1 else 0.0
        assert bool(((got.double() - exact).abs() <= 5e-3 * exact.abs() + 2e-3 + least).all())


def test_new_tensors_are_taken_without_being_kept_alive() -> None:
    b = torch.randn(64, 48, device="cuda", dtype=torch.float16)
    plan = pycutlass.Gemm(torch.randn(32, 64, device="cuda", dtype=torch.float16), b)
    out = torch.empty(32, 48, device="cuda", dtype=torch.float16)
    for compute in (plan.run, pycutlass.matmul):
        before = None
        for _ in range(20):
            a = torch.randn(32, 64, device="cuda", dtype=torch.float16)
            compute(a, b, out=out)
            check(out, a, b)
            del a
            torch.cuda.synchronize()
            held = torch.cuda.memory_allocated()
            assert before is None or held <= before
            before = held


def test_a_plan_is_replayed_after_it_has_gone() -> None:
    """Also one whose kernel needs memory beside its tensors, which belongs to the graph."""
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.float16) for shape in ((16, 8192), (8192, 16)))
    out = torch.empty(16, 16, device="cuda", dtype=torch.float16)
    plan = pycutlass.Gemm(a, b)
    for _ in range(3):
        plan.run(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(a, b, out=out)
    plan.run(a, b, out=out)
    del plan
    torch.cuda.empty_cache()
    for _ in range(3):
        a.normal_()
        graph.replay()
        torch.cuda.synchronize()
        exact = a.double() @ b.double()
        torch.testing.assert_close(out.double(), exact, rtol=5e-3, atol=5e-3 * 8192**0.5)


# torch's decompositions for dual tensors are scripted.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_no_kept_launch_loses_a_tangent() -> None:
    """Of views as well, of which autograd has noted something anyway."""
    from torch.autograd import forward_ad

    a, w, d = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    plan = pycutlass.Gemm(a, w.T)
    for compute in (lambda a: pycutlass.matmul(a, w.T, out=d), lambda a: plan.run(a, w.T, out=d)):
        for _ in range(4):
            compute(a)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(a, torch.ones_like(a))
            for each in (dual, dual.T.T):
                d.fill_(float("nan"))
                with pytest.raises(ArgumentError, match="a has a tangent"):
                    compute(each)
                assert bool(d.isnan().all())
            compute(forward_ad.unpack_dual(dual).primal)
        compute(a)
        torch.testing.assert_close(d, a @ w.T, rtol=2e-2, atol=2e-2)
