"""Variants of operators that write into `out`: the same results, and nothing that would be lost without a word."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch_operators import numbers, ops, passes_opcheck

from pycutlass.errors import ArgumentError, ArgumentTypeError

X, W = (numbers(*shape, dtype=torch.float32).detach() for shape in ((2, 4, 6, 6), (8, 4, 3, 3)))
DY = numbers(2, 8, 3, 3, dtype=torch.float32).detach()
A, B, C, BIAS = (numbers(*shape, dtype=torch.float32).detach() for shape in ((4, 3), (3, 5), (4, 5), (8,)))
GROUPS, HALF = numbers(3, 3, 5, dtype=torch.float32).detach(), numbers(4, 8).detach().half()
INTEGERS = torch.randint(-9, 9, (8, 16), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
GEOMETRY = ([2, 2], [1, 1])
SCALES = torch.linspace(0.5, 1.5, 8), torch.linspace(0.5, 2.0, 16)
#: Operators, with what they are given.
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "addmm": (ops.addmm, (C, A, B), {"beta": 0.5, "alpha": 2, "activation": "relu"}),
    "conv2d": (ops.conv2d, (X, W, BIAS, *GEOMETRY, [1, 1], 1, "silu"), {}),
    "conv2d_input": (ops.conv2d_input, (list(X.shape), W, DY, *GEOMETRY), {}),
    "conv2d_weight": (ops.conv2d_weight, (X, list(W.shape), DY, *GEOMETRY), {}),
    "grouped_mm": (ops.grouped_mm, (A, GROUPS), {"offs": torch.tensor([1, 1, 4], dtype=torch.int32)}),
    "mixed_mm": (ops.mixed_mm, (HALF, INTEGERS, SCALES[1]), {}),
    "scaled_mm": (ops.scaled_mm, (INTEGERS[:, :8].contiguous(), INTEGERS, *SCALES), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_results(name: str) -> None:
    operator, args, named = CALLS[name]
    expected = operator(*args, **named)
    out = torch.zeros_like(expected)
    assert operator.out(*args, **named, out=out) is None and torch.equal(out, expected)
    assert passes_opcheck(operator.out, *args, **named, out=out)
    with torch.inference_mode():
        operator.out(*args, **named, out=torch.zeros_like(expected))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch about torch
def test_what_is_refused(name: str) -> None:
    operator, args, named = CALLS[name]
    expected = operator(*args, **named)
    out = torch.zeros_like(expected)
    with pytest.raises(ArgumentTypeError, match="out must be a tensor, got None"):
        operator.out(*args, **named, out=None)
    with pytest.raises(ArgumentError, match=r"out must have the shape of the result"):
        operator.out(*args, **named, out=out[1:])
    with pytest.raises(ArgumentError, match=r"out of shape .* has several elements at one address, as an expanded"):
        operator.out(*args, **named, out=out[:1].expand(out.shape))
    with pytest.raises(ArgumentError, match=rf"out requires a gradient, and {name}\.out has none"):
        operator.out(*args, **named, out=out.clone().requires_grad_())
    with pytest.raises(ArgumentError, match=r"variants with out cannot be called in a transform of torch\.func"):
        torch.vmap(lambda _: operator.out(*args, **named, out=out))(torch.ones(2))
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(out, torch.ones_like(out))
        with pytest.raises(ArgumentError, match=rf"{name}\.out has no derivative in forward mode"):
            operator.out(*args, **named, out=dual)
    product = (out * numbers(*out.shape, dtype=out.dtype)).sum()
    assert torch.equal(out, torch.zeros_like(out))
    operator.out(*args, **named, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_the_type_of_out() -> None:
    """It is that of the result: the one that the operator has, or the one that ``out_dtype`` would ask for."""
    out = torch.empty(8, 16, dtype=torch.float16)
    operator, args, _ = CALLS["scaled_mm"]
    operator.out(*args, out=out)
    assert torch.equal(out, operator(*args, out_dtype=torch.float16))
    for name, message in (("addmm", "result of torch.float32"), ("conv2d_weight", "result of torch.float32")):
        operator, args, named = CALLS[name]
        for device in ("cpu", "meta"):
            given = [each.to(device) if isinstance(each, torch.Tensor) else each for each in args]
            wrong = operator(*given, **named).half()
            with pytest.raises(ArgumentError, match=message):
                operator.out(*given, **named, out=wrong)


def test_out_may_be_what_is_added_and_lie_as_it_likes() -> None:
    out = C.clone()
    ops.addmm.out(out, A, B, out=out)
    torch.testing.assert_close(out, torch.addmm(C, A, B))
    images = torch.zeros(2, 8, 4, 4)  # no kernel writes images that are not channels_last
    ops.conv2d.out(X, W, out=images)
    torch.testing.assert_close(images, torch.conv2d(X, W), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    def block(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty(a.shape[0], b.shape[1])
        ops.addmm.out(c, a, b, out=out)
        return out.relu() + 1

    made = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    torch.testing.assert_close(made(C, A, B), block(C, A, B))
