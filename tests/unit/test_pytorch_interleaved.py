"""The gated layer whose two weights are one: the operator, its gradients, and the module with its state dict."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional
from torch_operators import numbers, ops, passes_opcheck

from pycutlass.errors import ArgumentError
from pycutlass.pytorch import SwiGLU
from pycutlass.pytorch.interleaved import interleave, taken_apart


def gated(input: Any, weight: Any) -> Any:
    gate, up = taken_apart(weight)
    return functional.silu(functional.linear(input, gate)) * functional.linear(input, up)


@pytest.mark.parametrize("hidden", [8, 5])  # of 5, no kernel combines the pairs
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (3,)], ids=str)
def test_the_operator(shape: tuple[int, ...], hidden: int) -> None:
    x, weight = numbers(*shape), numbers(2 * hidden, 3)
    torch.testing.assert_close(ops.interleaved_swiglu(x, weight), gated(x, weight))
    with torch.no_grad():
        torch.testing.assert_close(ops.interleaved_swiglu(x, weight), gated(x, weight))
    assert gradcheck(ops.interleaved_swiglu, (x, weight))
    assert gradgradcheck(ops.interleaved_swiglu, (x, weight), fast_mode=True)
    assert passes_opcheck(ops.interleaved_swiglu.default, x, weight)
    assert passes_opcheck(ops.interleaved_swiglu_with_slopes.default, x.detach(), weight.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_other_types(dtype: torch.dtype) -> None:
    given = [numbers(*shape).detach().to(dtype).requires_grad_() for shape in ((2, 8, 16), (24, 16))]
    exact = [each.detach().double().requires_grad_() for each in given]
    made, wanted, grad = ops.interleaved_swiglu(*given), gated(*exact), numbers(2, 8, 12).detach().to(dtype)
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 2e-1, torch.float32: 1e-4}[dtype]
    torch.testing.assert_close(made.double(), wanted, rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(made, given, grad)
    for ours, theirs in zip(found, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


def test_the_slopes_are_made_by_the_kernel_of_both_products(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycutlass.pytorch import interleaved

    count, multiply = [0], interleaved.matmul

    def counted(*args: Any, **named: Any) -> Any:
        count[0] += 1
        return multiply(*args, **named)

    monkeypatch.setattr(interleaved, "matmul", counted)
    ops.interleaved_swiglu(numbers(4, 8), numbers(16, 8))
    assert count == [1]


def test_autocast_and_vmap() -> None:
    x, weight = numbers(3, 4, 8).detach().float(), numbers(16, 8).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        made = ops.interleaved_swiglu(x, weight)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.float(), gated(x, weight), rtol=0.1, atol=0.2)
    for axes in ((0, None), (1, None), (None, 0), (0, 0)):
        given = [
            each if axis is None else numbers(*each.shape) for each, axis in zip((x[0], weight), axes, strict=True)
        ]
        given = [
            each if axis is None else torch.stack([each, each + 1, each - 1], axis)
            for each, axis in zip((x[0], weight), axes, strict=True)
        ]
        found = torch.vmap(ops.interleaved_swiglu, axes)(*given)
        torch.testing.assert_close(found, torch.vmap(gated, axes)(*given), rtol=1e-4, atol=1e-4)


def test_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"weight has rows of gate and up by turns, an even number; got shape \(5, 3"
    ):
        ops.interleaved_swiglu(torch.ones(4, 3), torch.ones(5, 3))
    with pytest.raises(ArgumentError, match=r"input is of torch.int8, and a gate is computed in fractions"):
        ops.interleaved_swiglu(torch.ones(4, 4).to(torch.int8), torch.ones(4, 4).to(torch.int8))
    with pytest.raises(ArgumentError, match="weight must be a matrix"):
        ops.interleaved_swiglu(torch.ones(4, 3), torch.ones(3))


def test_the_module_computes_the_same() -> None:
    plain = SwiGLU(6, 10, dtype=torch.float64)
    layer = SwiGLU(6, 10, dtype=torch.float64, interleaved=True)
    layer.load_state_dict(plain.state_dict())
    gate, up = plain.gate_proj.weight, plain.up_proj.weight
    assert layer.gate_up_proj.weight.equal(interleave(gate, up))
    x = numbers(2, 4, 6)
    torch.testing.assert_close(layer(x), plain(x))
    layer(x).sum().backward()
    plain(x).sum().backward()
    found = layer.gate_up_proj.weight.grad
    assert found is not None
    torch.testing.assert_close(taken_apart(found), (gate.grad, up.grad))
    layer.gate_up_proj.register_forward_hook(lambda module, given, made: made * 2)
    changed = functional.silu(2 * plain.gate_proj(x)) * (2 * plain.up_proj(x))
    torch.testing.assert_close(layer(x), plain.down_proj(changed))


def test_its_checkpoints_are_those_of_three_layers() -> None:
    plain = nn.Sequential(nn.Linear(4, 6), SwiGLU(6, 10))
    model = nn.Sequential(nn.Linear(4, 6), SwiGLU(6, 10, interleaved=True))
    state = plain.state_dict()
    for assign in (False, True):
        model.load_state_dict(state, assign=assign)
        kept = model.state_dict()
        assert list(kept) == list(state) == list(plain.state_dict())
        for name, each in kept.items():
            assert each.equal(state[name]) and each.is_contiguous()
    plain.load_state_dict(kept)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(each.equal(kept[name]) for name, each in other.state_dict().items())
        other.load_state_dict(state)
    assert [name for name, _ in model.named_parameters()][2:] == ["1.gate_up_proj.weight", "1.down_proj.weight"]
    del state["1.up_proj.weight"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "1.gate_up_proj.weight"'):
        model.load_state_dict(state)
