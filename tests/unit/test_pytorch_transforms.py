"""What torch makes of operators: autocast, vmap, torch.compile, and determinism."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch_operators import SHAPES, numbers, ops

from pycutlass.errors import ArgumentError
from pycutlass.pytorch import GroupedLinear, Linear, SwiGLU
from pycutlass.toolkit import find_cutlass, own_include

OFFS = torch.tensor([3, 8], dtype=torch.int32)
BATCH = 3
X, W, BIAS = (numbers(*shape, dtype=torch.float32) for shape in ((8, 16), (8, 16), (8,)))
IMAGES, FILTERS = (numbers(*shape, dtype=torch.float32) for shape in ((1, 8, 4, 4), (8, 8, 3, 3)))
CAST: dict[str, Callable[[], Any]] = {
    "matmul": lambda: ops.matmul(X, W.T),
    "linear": lambda: ops.linear(X, W, BIAS, "gelu"),
    "addmm": lambda: ops.addmm(BIAS, X, W.T),
    "swiglu": lambda: ops.swiglu(X, W, W),
    "grouped_mm": lambda: ops.grouped_mm(X, W.T.expand(2, 16, 8), offs=OFFS),
    "conv2d": lambda: ops.conv2d(IMAGES, FILTERS),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CAST)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    plain = CAST[name]()
    with torch.autocast("cpu", dtype):
        made = CAST[name]()
    assert (plain.dtype, made.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(made.float(), plain, rtol=0.1, atol=0.1)


def test_autocast_of_batches() -> None:
    x, half = torch.ones(2, 8, 16), W.detach().bfloat16()
    calls: tuple[Callable[[Any], Any], ...] = (
        lambda each: ops.linear(each, half, BIAS, "gelu"),
        lambda each: ops.addmm(BIAS, each, half.T),
        lambda each: ops.matmul(each, half.T),
        lambda each: ops.swiglu(each, W, half),
    )
    with torch.autocast("cpu", torch.bfloat16):
        for call in calls:
            made = torch.vmap(call)(x)
            assert made.dtype == torch.bfloat16
            torch.testing.assert_close(made[0], call(x[0]), rtol=0.02, atol=0.02)


def test_gradients_go_through_casts() -> None:
    given = [each.detach().clone().requires_grad_() for each in (X, W, BIAS)]
    with torch.autocast("cpu", torch.bfloat16):
        made = ops.linear(*given, "silu")
    found = torch.autograd.grad(made.float().sum(), given)
    wanted = torch.autograd.grad(functional.silu(functional.linear(*given)).sum(), given)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.2)


def test_autocast_leaves_what_torch_leaves() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.matmul(X.double(), W.T.double()).dtype == torch.float64
        assert ops.matmul(X, W.T, out_dtype=torch.float32).dtype == torch.float32
        out = torch.empty(8, 8)
        with torch.no_grad():
            ops.matmul.out(X, W.T, out=out)
    assert torch.equal(out, ops.matmul(X, W.T))


def agrees(ours: Any, theirs: Any, *shapes: tuple[int, ...]) -> None:
    """Compare batches along the first and the last axis of any of the tensors with torch's own."""
    for places in itertools.product((None, 0, -1), repeat=len(shapes)):
        if not any(place is not None for place in places):
            continue
        axes = tuple(None if at is None else at % (len(shape) + 1) for at, shape in zip(places, shapes, strict=True))
        tensors = []
        for axis, shape in zip(axes, shapes, strict=True):
            full = shape if axis is None else (*shape[:axis], BATCH, *shape[axis:])
            tensors.append(numbers(*full).detach())
        torch.testing.assert_close(torch.vmap(ours, axes)(*tensors), torch.vmap(theirs, axes)(*tensors))


@contextmanager
def without_loops() -> Iterator[None]:
    """Raise where torch would call an operator once for each of a batch."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_vmap_of_products(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with without_loops():
        agrees(ops.matmul, torch.matmul, *shapes)


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (3,)], ids=str)
def test_vmap_of_layers(shape: tuple[int, ...]) -> None:
    def gated(x: Any, gate: Any, up: Any) -> Any:
        return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)

    with without_loops():
        agrees(ops.linear, functional.linear, shape, (5, 3))
        agrees(
            lambda *tensors: ops.linear(*tensors, "gelu"),
            lambda *tensors: functional.gelu(functional.linear(*tensors)),
            *(shape, (5, 3), (5,)),
        )
        agrees(ops.swiglu, gated, shape, (5, 3), (5, 3))


@pytest.mark.parametrize("shape", [(5,), (4, 5), (1, 5), (4, 1), ()], ids=str)
@pytest.mark.parametrize("scalars", [{}, {"beta": 0.5, "alpha": 2}, {"beta": 0}], ids=str)
def test_vmap_of_sums(shape: tuple[int, ...], scalars: dict[str, float]) -> None:
    with without_loops():
        agrees(
            lambda *tensors: ops.addmm(*tensors, activation="relu", **scalars),
            lambda *tensors: functional.relu(torch.addmm(*tensors, **scalars)),
            *(shape, (4, 3), (3, 5)),
        )


@pytest.mark.parametrize(
    ("operator", "shapes", "message"),
    [
        (ops.linear, ((4, 3), (2, 5, 3), (1,)), r"bias must be of \(5,\)"),
        (ops.linear, ((4, 3), (2, 6, 5, 3), (5,)), r"weight must be a matrix, got shape \(6, 5, 3\)"),
        (ops.matmul, ((), (2, 5, 3)), r"input must have one dimension or more"),
        (ops.addmm, ((5,), (2, 3), (3, 5)), r"mat1 must be a matrix, got shape \(3,\)"),
        (ops.addmm, ((7, 4, 5), (2, 4, 3), (3, 5)), r"input of shape \(7, 4, 5\) does not broadcast"),
        (ops.swiglu, ((4, 3), (2, 1, 3), (5, 3)), r"gate_weight of shape \(1, 3\) and up_weight of shape \(5, 3\)"),
    ],
)
def test_batches_are_refused_as_each_of_them_is(operator: Any, shapes: tuple[Any, ...], message: str) -> None:
    axes = (None, 0, None)[: len(shapes)]
    with pytest.raises(ArgumentError, match=message):
        torch.vmap(operator, axes)(*(torch.ones(shape) for shape in shapes))


def test_gradients_of_a_batch() -> None:
    x, weight = numbers(BATCH, 4, 3), numbers(5, 3)
    made = torch.vmap(lambda each: ops.linear(each, weight, None, "gelu"))(x)
    found = torch.autograd.grad(made.sum(), (x, weight))
    wanted = torch.autograd.grad(functional.gelu(functional.linear(x, weight)).sum(), (x, weight))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("groups", [1, 2])
def test_vmap_of_convolutions(groups: int) -> None:
    shapes = ((2, 4, 6, 6), (8, 4 // groups, 3, 3), (8,))
    with without_loops():
        for how in (([1, 1], [0, 0], [1, 1], groups), ([2, 2], [1, 1], [1, 1], groups)):
            agrees(
                lambda *tensors, how=how: ops.conv2d(*tensors, *how, "silu"),
                lambda *tensors, how=how: functional.silu(functional.conv2d(*tensors, *how)),
                *shapes,
            )
            agrees(
                lambda *tensors, how=how: ops.conv2d(*tensors, None, *how),
                lambda *tensors, how=how: functional.conv2d(*tensors, None, *how),
                *shapes[:2],
            )
    with pytest.raises(ArgumentError, match=r"bias must be of \(8,\)"):
        torch.vmap(lambda bias: ops.conv2d(IMAGES, FILTERS, bias))(torch.ones(BATCH, 1))


@pytest.mark.parametrize("groups", [1, 2])
def test_vmap_of_gradients_of_images(groups: int) -> None:
    weight, how = (8, 4 // groups, 3, 3), ([2, 2], [1, 1], [1, 1], groups)
    with without_loops():
        agrees(
            lambda *tensors: ops.conv2d_input([2, 4, 6, 6], *tensors, *how),
            lambda *tensors: torch.nn.grad.conv2d_input([2, 4, 6, 6], *tensors, *how),
            *(weight, (2, 8, 3, 3)),
        )


@pytest.mark.parametrize(
    "axes", [(0, None, None), (2, None, None), (None, 0, 0), (0, 1, None), (None, None, 1)], ids=str
)
@pytest.mark.parametrize("is_cast", [False, True])
def test_vmap_of_mixed_products(axes: tuple[int | None, ...], is_cast: bool) -> None:
    weight = torch.randint(-9, 9, (BATCH, 8, 16), dtype=torch.int8)
    given = [torch.randn(BATCH, 4, 8), weight, torch.rand(BATCH, 16) + 0.5]
    given[0] = given[0] if is_cast else given[0].bfloat16()
    given = [each[0] if axis is None else each.movedim(0, axis) for each, axis in zip(given, axes, strict=True)]
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        with without_loops():
            made = torch.vmap(ops.mixed_mm, axes)(*given)
        for number in range(BATCH):
            one = (e if axis is None else e.select(axis, number) for e, axis in zip(given, axes, strict=True))
            assert torch.equal(made[number], ops.mixed_mm(*one))


def test_transforms_of_torch_func_are_refused() -> None:
    weight = numbers(5, 3).detach()
    with pytest.raises(ArgumentError, match=r"pycutlass.linear.default is differentiated by a transform of torch.func"):
        torch.func.grad(lambda x: ops.linear(x, weight).sum())(numbers(4, 3).detach())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    def layers(x: Any, weight: Any, bias: Any, images: Any, filters: Any) -> Any:
        y = ops.linear(x, weight, bias, "gelu") * 2
        return (
            y.sum()
            + ops.swiglu(x, weight, weight).sum()
            + ops.conv2d(images, filters, None, (1, 1), (1, 1)).square().sum()
        )

    compiled = torch.compile(layers, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (4, 7):
        shapes = ((rows, 3), (5, 3), (5,), (rows, 2, 6, 6), (4, 2, 3, 3))
        given = [numbers(*shape) for shape in shapes]
        made, wanted = compiled(*given), layers(*given)
        torch.testing.assert_close(made, wanted)
        found = torch.autograd.grad(made, given)
        torch.testing.assert_close(found, torch.autograd.grad(wanted, given))


def test_compiled_out_variants() -> None:
    def written(x: Any, weight: Any) -> Any:
        out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
        ops.linear.out(x, weight, out=out)
        return out + 1

    x, weight = numbers(4, 3).detach(), numbers(5, 3).detach()
    compiled = torch.compile(written, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), x @ weight.T + 1)


def test_no_kernel_adds_in_an_order_that_may_change() -> None:
    """What torch calls deterministic: neither our headers do, nor CUTLASS's stream-K as it is used."""
    ours = "\n".join(each.read_text() for each in own_include().rglob("*.h"))
    assert "PYCUTLASS_KERNEL" in ours
    assert not re.search(r"atomicAdd|atomic_add|red\.global|kAtomic|Nondeterministic", ours)
    gemm = find_cutlass().root / "include" / "cutlass" / "gemm"
    ampere = (gemm / "threadblock" / "threadblock_swizzle_streamk.h").read_text()
    assert re.search(r"kReductionStrategy = kMixed;", ampere)
    hopper = (gemm / "kernel" / "sm90_tile_scheduler_stream_k.hpp").read_text()
    assert re.search(r"reduction_mode = ReductionMode::Deterministic;", hopper)


# torch's decompositions for dual tensors are scripted.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_derivatives_in_forward_mode_are_refused() -> None:
    """They would be lost, and not missing but zero."""
    x, weight, tangent = numbers(4, 3).detach(), numbers(5, 3).detach(), numbers(4, 3).detach()
    with pytest.raises(ArgumentError, match=r"pycutlass.linear.default is differentiated by a transform of torch.func"):
        torch.func.jvp(lambda x: ops.linear(x, weight), (x,), (tangent,))
    with forward_ad.dual_level():
        with pytest.raises(ArgumentError, match=r"pycutlass.linear.default has no derivative in forward mode"):
            ops.linear(forward_ad.make_dual(x, tangent), weight)
        with pytest.raises(ArgumentError, match=r"addmm_with_slope.default has no derivative in forward mode"):
            ops.addmm_with_slope(None, forward_ad.make_dual(x, tangent), weight.T, "gelu")
        torch.testing.assert_close(ops.linear(x, weight), x @ weight.T)  # without a tangent


def test_what_backward_calls_refuses_a_gradient() -> None:
    x, weight = numbers(4, 3), numbers(5, 3)
    with pytest.raises(ArgumentError, match=r"mat1 requires a gradient, and pycutlass.addmm_with_slope.default"):
        ops.addmm_with_slope(None, x, weight.detach().T, "gelu")
    with pytest.raises(ArgumentError, match=r"up_weight requires a gradient, and pycutlass.swiglu_with_slopes.default"):
        ops.swiglu_with_slopes(x.detach(), weight.detach(), weight)
    with pytest.raises(ArgumentError, match=r"weight requires a gradient, and pycutlass.conv2d_with_slope.default has"):
        ops.conv2d_with_slope(IMAGES.detach(), FILTERS, None, [1, 1], [0, 0], [1, 1], 1, "gelu")


def test_gradients_of_8_bits_are_refused() -> None:
    narrow = torch.ones(8, 16).to(torch.float8_e4m3fn)
    asking, bias = narrow.clone().requires_grad_(), torch.ones(8, dtype=torch.bfloat16, requires_grad=True)
    calls: dict[str, Callable[[], Any]] = {
        "input": lambda: ops.matmul(asking, narrow.T),
        "weight": lambda: ops.linear(narrow, asking, None, "gelu"),
        "mat2": lambda: ops.addmm(bias, narrow, asking.T),
    }
    for name, call in calls.items():
        with pytest.raises(
            ArgumentError, match=f"{name} is of torch.float8_e4m3fn and requires a gradient, which would"
        ):
            call()
        with torch.no_grad():
            call()
    ops.addmm(bias, narrow, narrow.T).sum().backward()
    assert bias.grad is not None and bias.grad.eq(8).all()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_torchscript() -> None:
    """It records and compiles calls of operators, and compiles no layer."""
    layer, x = Linear(16, 8, activation="gelu").requires_grad_(False), X.detach()
    for model in (layer, torch.nn.Sequential(torch.nn.ReLU(), layer), GroupedLinear(2, 16, 8), SwiGLU(16, 8)):
        with pytest.raises(ArgumentError, match=r"cannot be compiled by torch.jit.script: call torch.jit.trace, torch"):
            torch.jit.script(model)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.pycutlass.matmul(a, b)

    script: Any = torch.jit.script
    scripted = script(product)
    assert "pycutlass::matmul" in str(scripted.graph)
    torch.jit.save(scripted, io.BytesIO())  # which calls of Python cannot be
    torch.testing.assert_close(scripted(x, x.T), x @ x.T)
    trace: Any = torch.jit.trace
    torch.testing.assert_close(trace(layer, (x,))(x[:3]), layer(x[:3]))


def test_exported() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Any, weight: Any) -> Any:
            return ops.linear(x, weight, None, "relu")

    x, weight = numbers(4, 3).detach(), numbers(5, 3).detach()
    program = torch.export.export(Layer(), (x, weight))
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [ops.linear.default]
    torch.testing.assert_close(program.module()(x, weight), functional.relu(x @ weight.T))


def test_variants_with_out_are_refused_where_derivatives_or_batches_would_be_lost() -> None:
    x, other = numbers(4, 3).detach(), numbers(3, 5).detach()

    def written(x: torch.Tensor) -> Any:
        out = torch.zeros(4, 5, dtype=torch.float64)
        ops.matmul.out(x, other, out=out)
        return out.sum()

    for transform in (torch.func.grad, torch.vmap):
        with pytest.raises(ArgumentError, match=r"variants with out cannot be called in a transform of torch.func"):
            transform(written)(x)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_variants_with_out_are_refused_in_forward_mode() -> None:
    x, other = numbers(4, 3).detach(), numbers(3, 5).detach()
    out = torch.zeros(4, 5, dtype=torch.float64)
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        for call in (lambda: ops.matmul.out(dual, other, out=out), lambda: ops.linear.out(dual, other.T, out=out)):
            with pytest.raises(ArgumentError, match=r"\.out has no derivative in forward mode"):
                call()
    assert not out.any()


ROWS = X.detach().expand(2, 8, 16)
CHANGED: dict[str, Callable[[], Any]] = {
    **CAST,
    "matmul of a batch": lambda: ops.matmul(ROWS, W.T),
    "linear of a batch": lambda: ops.linear(ROWS, W, BIAS, "gelu"),
    "swiglu of a batch": lambda: ops.swiglu(ROWS, W, W),
    "conv2d, activated": lambda: ops.conv2d(IMAGES, FILTERS, None, (1, 1), (0, 0), (1, 1), 1, "silu"),
    "conv2d_input": lambda: ops.conv2d_input((1, 8, 6, 6), FILTERS, IMAGES),
    "conv2d_weight": lambda: ops.conv2d_weight(IMAGES, (8, 8, 3, 3), IMAGES[:, :, :2, :2]),
}


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("name", CHANGED)
def test_results_may_be_changed_in_place(name: str, records: bool) -> None:
    """As ``torch.nn.ReLU(inplace=True)`` does behind a layer."""
    with torch.set_grad_enabled(records):
        made = CHANGED[name]()
    wanted, two = made.detach() * 2, torch.full((), 2.0, requires_grad=True)
    made.mul_(two)
    torch.testing.assert_close(made, wanted)
    made.sum().backward()
    torch.testing.assert_close(two.grad, wanted.sum() / 2)
