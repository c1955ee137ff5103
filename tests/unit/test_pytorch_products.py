"""Operators of torch for products: what they compute, their gradients, and what torch's own checks say of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch_operators import ACTIVATIONS, SHAPES, numbers, ops, passes_opcheck

from pycutlass.errors import ArgumentError


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (numbers(*shape) for shape in shapes)
    torch.testing.assert_close(ops.matmul(a, b), torch.matmul(a, b))
    assert gradcheck(ops.matmul, (a, b)) and gradgradcheck(ops.matmul, (a, b))
    assert passes_opcheck(ops.matmul.default, a, b)


def test_matmul_in_another_type() -> None:
    a, b = numbers(16, 32, dtype=torch.bfloat16), numbers(32, 8, dtype=torch.bfloat16)
    made = ops.matmul(a, b, out_dtype=torch.float32)
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, a.float() @ b.float())
    assert passes_opcheck(ops.matmul.default, a, b, out_dtype=torch.float32)
    made.sum().backward()
    assert a.grad is not None and a.grad.dtype == torch.bfloat16
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(16, 32), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (3,)], ids=str)
def test_linear(activation: str | None, shape: tuple[int, ...]) -> None:
    x, weight, bias = numbers(*shape), numbers(5, 3), numbers(5)
    for given in (bias, None):
        exact = ACTIVATIONS[activation](functional.linear(x, weight, given))
        torch.testing.assert_close(ops.linear(x, weight, given, activation), exact)
        with torch.no_grad():
            torch.testing.assert_close(ops.linear(x, weight, given, activation), exact)
        assert gradcheck(ops.linear, (x, weight, given, activation))
        assert gradgradcheck(ops.linear, (x, weight, given, activation), fast_mode=True)
    assert passes_opcheck(ops.linear.default, x, weight, bias, activation)


@pytest.mark.parametrize("activation", [None, "gelu", "relu"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (1, 5), (4, 1), (1,), ()], ids=str)
def test_addmm(activation: str | None, shape: tuple[int, ...]) -> None:
    added, a, b = numbers(*shape), numbers(4, 3), numbers(3, 5)
    for scalars in ({}, {"beta": 0.5, "alpha": 2}):
        options: dict[str, Any] = {**scalars, "activation": activation}

        def computed(*tensors: Any, options: dict[str, Any] = options) -> Any:
            return ops.addmm(*tensors, **options)

        exact = ACTIVATIONS[activation](torch.addmm(added, a, b, **scalars))
        torch.testing.assert_close(computed(added, a, b), exact)
        assert gradcheck(computed, (added, a, b)) and gradgradcheck(computed, (added, a, b), fast_mode=True)
        assert passes_opcheck(ops.addmm.default, added, a, b, **options)


def test_addmm_reads_nothing_of_what_is_multiplied_by_zero() -> None:
    added, a, b = torch.full((5,), float("nan")), numbers(4, 3).float().detach(), numbers(3, 5).float().detach()
    torch.testing.assert_close(ops.addmm(added, a, b, beta=0), a @ b)
    output, slope = ops.addmm_with_slope(added, a, b, "gelu", beta=0)
    torch.testing.assert_close(output, functional.gelu(a @ b))
    assert slope.isfinite().all()


def test_what_backward_needs_is_an_operator_of_its_own() -> None:
    a, b = (each.detach() for each in (numbers(4, 3), numbers(3, 5)))
    t = (a @ b).requires_grad_()
    output, slope = ops.addmm_with_slope(None, a, b, "silu")
    exact = functional.silu(t)
    torch.testing.assert_close(output, exact)
    torch.testing.assert_close(slope, torch.autograd.grad(exact.sum(), t)[0])
    assert passes_opcheck(ops.addmm_with_slope.default, None, a, b, "silu")
    with pytest.raises(ArgumentError, match=r"addmm_with_slope is for 'gelu', .* derivative of 'relu' is made of its"):
        ops.addmm_with_slope(None, a, b, "relu")


def test_out_variants() -> None:
    a, b, bias = (each.detach().float() for each in (numbers(4, 3), numbers(3, 5), numbers(5)))
    out = torch.empty(4, 5)
    assert ops.matmul.out(a, b, out=out) is None
    torch.testing.assert_close(out, a @ b)
    ops.linear.out(a, b.T, bias, "relu", out=out)
    torch.testing.assert_close(out, functional.relu(a @ b + bias))
    assert passes_opcheck(ops.matmul.out, a, b, out=out)
    assert passes_opcheck(ops.linear.out, a, b.T, bias, "relu", out=out)
    with pytest.raises(ArgumentError, match=r"out of shape \(4, 5\) with strides \(0, 1\) has several elements at one"):
        ops.matmul.out(a, b, out=torch.empty(1, 5).expand(4, 5))
    with pytest.raises(ArgumentError, match=r"input requires a gradient, and matmul.out has none"):
        ops.matmul.out(a.requires_grad_(), b, out=out)


def test_backward_refuses_what_was_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels write past torch, which learns of it by its counter of versions."""
    monkeypatch.setattr("pycutlass.pytorch.products.product", lambda *_, **__: None)
    a, b, out = (numbers(3, 3).detach() for _ in range(3))
    for call in (lambda: ops.matmul.out(a, b, out=out), lambda: ops.linear.out(a, b, out=out)):
        product = out * numbers(3, 3)
        call()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_tensors_without_memory_are_refused_among_others() -> None:
    """torch sends such calls to what computes shapes, whose result would be memory that nobody wrote."""
    a, absent = torch.ones(4, 4), torch.ones(4, 4, device="meta")
    refused = {
        "weight is on the meta device, where it has no memory, and input on cpu": lambda: ops.linear(a, absent),
        "bias is on the meta device": lambda: ops.linear(a, a, absent[0]),
        "mat2 is on the meta device": lambda: ops.addmm(a, a, absent),
        "out is on the meta device": lambda: ops.matmul.out(a, a, out=absent),
        "input is on the meta device, where it has no memory, and out on cpu": lambda: ops.matmul.out(
            absent, absent, out=a
        ),
    }
    for message, call in refused.items():
        with pytest.raises(ArgumentError, match=message):
            call()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_that_do_not_fit_are_called_as_torch_calls_them(device: str) -> None:
    def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    refused = {
        r"input of shape \(4, 3\) and other of shape \(4, 5\) have different K": lambda: ops.matmul(
            made(4, 3), made(4, 5)
        ),
        r"the batches \(2,\) of input and \(3,\) of other do not broadcast": lambda: ops.matmul(
            made(2, 4, 3), made(3, 3, 5)
        ),
        r"input must have one dimension or more": lambda: ops.matmul(made(), made(3, 5)),
        r"input is float32 and other is float16": lambda: ops.matmul(made(4, 3), made(3, 5, dtype=torch.float16)),
        r"input is of int64, which kernels do not take": lambda: ops.matmul(
            made(4, 3, dtype=torch.int64), made(3, 5, dtype=torch.int64)
        ),
        r"weight must be a matrix, got shape \(3,\)": lambda: ops.linear(made(4, 3), made(3)),
        r"input of shape \(4, 3\) and weight.T of shape \(4, 5\)": lambda: ops.linear(made(4, 3), made(5, 4)),
        r"bias must be of \(5,\), a number for each column of the result; got shape \(1,\)": lambda: ops.linear(
            made(4, 3), made(5, 3), made(1)
        ),
        r"bias is of torch.float64 and the result of torch.float32: pass bias.to\(torch.float32\)": lambda: ops.linear(
            made(4, 3), made(5, 3), made(5, dtype=torch.float64)
        ),
        r"input is of torch.float16 and the result of torch.float32": lambda: ops.addmm(
            made(5, dtype=torch.float16), made(4, 3), made(3, 5)
        ),
        r"activation must be one of 'gelu', .* got 'gelu_tan'. Did you mean gelu_tanh": lambda: ops.linear(
            made(4, 3), made(5, 3), None, "gelu_tan"
        ),
        r"mat2 must be a matrix, got shape \(2, 3, 5\)": lambda: ops.addmm(made(5), made(4, 3), made(2, 3, 5)),
        r"input of shape \(3, 5\) does not broadcast": lambda: ops.addmm(made(3, 5), made(4, 3), made(3, 5)),
        r"out must have the shape of the result, \(4, 5\); got \(5, 4\)": lambda: ops.matmul.out(
            made(4, 3), made(3, 5), out=made(5, 4)
        ),
    }
    for message, call in refused.items():
        with pytest.raises(ArgumentError, match=message):
            call()


@pytest.mark.parametrize("activation", [None, "gelu", "relu"])
@pytest.mark.parametrize(
    "shapes", [((0, 3), (5, 3)), ((4, 0), (5, 0)), ((4, 3), (0, 3)), ((2, 0, 3), (5, 3)), ((0, 0), (0, 0))], ids=str
)
def test_extents_may_be_zero(shapes: tuple[tuple[int, ...], tuple[int, ...]], activation: str | None) -> None:
    given = numbers(*shapes[0]), numbers(*shapes[1]), numbers(shapes[1][0])
    made, wanted = ops.linear(*given, activation), ACTIVATIONS[activation](functional.linear(*given))
    torch.testing.assert_close(made, wanted)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), given), torch.autograd.grad(wanted.sum(), given))
    if len(shapes[0]) == 2:
        made = ops.addmm(given[2], given[0], given[1].T, activation=activation)
        torch.testing.assert_close(made, wanted)
        found = torch.autograd.grad(made.sum(), given)
        wanted = ACTIVATIONS[activation](functional.linear(*given))
        torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), given))


def test_wrong_layers_are_refused_with_gradients_as_well() -> None:
    for bias in (numbers(1), numbers(5, dtype=torch.float32)):
        with pytest.raises(ArgumentError, match=r"bias must be of \(5,\)|bias is of torch.float32 and the result"):
            ops.linear(numbers(4, 3), numbers(5, 3), bias, "gelu")
    with pytest.raises(ArgumentError, match=r"input of shape \(4, 3\) and weight.T of shape \(4, 5\)"):
        ops.linear(numbers(4, 3), numbers(5, 4), None, "gelu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layers_of_some_size(activation: str | None, dtype: torch.dtype) -> None:
    """Kernels of CUDA cores, which multiply float32, take no epilogue function."""
    given = numbers(200, 64, dtype=dtype), numbers(96, 64, dtype=dtype), numbers(96, dtype=dtype)
    exact = [each.detach().double().requires_grad_() for each in given]
    dy, rounding = numbers(200, 96, dtype=dtype).detach() / 8, 16 * torch.finfo(dtype).eps
    wanted = ACTIVATIONS[activation](functional.linear(*exact))
    theirs = torch.autograd.grad(wanted, exact, dy.double(), retain_graph=True)
    x, weight, bias = given
    for made in (ops.linear(*given, activation), ops.addmm(bias, x, weight.T, activation=activation)):
        torch.testing.assert_close(made.double(), wanted, rtol=rounding, atol=8 * rounding)
        for ours, other in zip(torch.autograd.grad(made, given, dy), theirs, strict=True):
            torch.testing.assert_close(ours.double(), other, rtol=rounding, atol=rounding * float(other.abs().max()))


def test_scalars_of_a_sum_in_slices() -> None:
    """Of a single row of float64, K is divided among slices."""
    x, weight, bias = numbers(1, 128), numbers(96, 128), numbers(96)

    def computed(*tensors: Any) -> Any:
        return ops.addmm(*tensors, beta=0.5, alpha=2, activation="hardswish")

    wanted = functional.hardswish(torch.addmm(bias, x, weight.T, beta=0.5, alpha=2))
    made = computed(bias, x, weight.T)
    torch.testing.assert_close(made, wanted)
    given = x, weight, bias
    torch.testing.assert_close(torch.autograd.grad(made.sum(), given), torch.autograd.grad(wanted.sum(), given))


@pytest.mark.parametrize("activation", [each for each in ACTIVATIONS if each is not None])
@pytest.mark.parametrize("create_graph", [False, True])
def test_derivatives_where_pieces_meet_are_those_of_torch(activation: str, create_graph: bool) -> None:
    x = torch.tensor([[-3.0], [0.0], [3.0]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    made = torch.autograd.grad(ops.linear(x, one, None, activation).sum(), x, create_graph=create_graph)
    torch.testing.assert_close(made, torch.autograd.grad(ACTIVATIONS[activation](x).sum(), x))


@pytest.fixture
def in_tf32() -> Iterator[None]:
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "tf32"
    yield
    setting.fp32_precision = before


@pytest.mark.usefixtures("in_tf32")
def test_float32_in_tf32_takes_epilogue_functions() -> None:
    x, weight = numbers(200, 64, dtype=torch.float32).detach(), numbers(96, 64, dtype=torch.float32).detach()
    output, slope = ops.addmm_with_slope(None, x, weight.T, "gelu")
    t = x.double() @ weight.double().T
    torch.testing.assert_close(output.double(), functional.gelu(t), rtol=1e-2, atol=2e-2)
    assert not torch.allclose(output, functional.gelu(t).float(), rtol=1e-5, atol=1e-5)  # it is tf32 indeed
    assert slope.shape == output.shape and bool(slope.abs().le(1.2).all())


def test_modes_of_torch_see_calls_of_operators() -> None:
    """Calls without a gradient go past the dispatcher, but not past who listens to it."""
    seen: list[Any] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    a, b = torch.ones(4, 8), torch.ones(8, 2)
    with Listening():
        made = torch.ops.pycutlass.matmul(a, b)
    assert torch.ops.pycutlass.matmul.default in seen and torch.equal(made, a @ b)
    with FakeTensorMode() as mode:
        fake = torch.ops.pycutlass.matmul(mode.from_tensor(a), mode.from_tensor(b))
    assert isinstance(fake, FakeTensor) and fake.shape == (4, 2)
