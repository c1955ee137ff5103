"""The operator for operands of 16 bits with weights of int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_operators import numbers, ops, passes_opcheck

from pycutlass.errors import ArgumentError, ArgumentTypeError

WEIGHT = torch.randint(-128, 128, (64, 24), dtype=torch.int8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [None, (24,), (1, 24), (1,), ()], ids=str)
@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
def test_it_is_the_product_of_the_integers(
    dtype: torch.dtype, shape: tuple[int, ...] | None, out_dtype: torch.dtype | None
) -> None:
    a = numbers(16, 64).detach().to(dtype)
    scale = None if shape is None else numbers(*shape).detach().to(dtype if shape == (24,) else torch.float32)
    wanted = a.double() @ WEIGHT.double() * (1 if scale is None else scale.double())
    for weight in (WEIGHT, WEIGHT.T.contiguous().T, torch.cat((WEIGHT, WEIGHT), 1)[:, :24]):
        made = ops.mixed_mm(a, weight, scale, out_dtype=out_dtype)
        assert made.dtype == (out_dtype or dtype)
        tolerance = 1e-4 if out_dtype else 1e-2
        torch.testing.assert_close(made.double(), wanted, rtol=tolerance, atol=tolerance)
    assert passes_opcheck(ops.mixed_mm.default, a, WEIGHT, scale, out_dtype=out_dtype)


def test_all_of_int8_is_exact_in_16_bits() -> None:
    weight = torch.arange(-128, 128, dtype=torch.int8)[None].expand(8, 256)
    for dtype in (torch.float16, torch.bfloat16):
        one = torch.eye(8, dtype=dtype)
        assert ops.mixed_mm(one, weight, out_dtype=torch.float32).equal(weight.float())


def test_its_gradient_is_for_the_left_operand() -> None:
    a, scale = numbers(16, 64).detach().half().requires_grad_(), numbers(24).detach().float()
    exact = a.detach().double().requires_grad_()
    grad = numbers(16, 24).detach().half()
    made, wanted = ops.mixed_mm(a, WEIGHT, scale), exact @ WEIGHT.double() * scale.double()
    (ours,), (theirs,) = torch.autograd.grad(made, a, grad), torch.autograd.grad(wanted, exact, grad.double())
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-2, atol=1)
    with pytest.raises(
        ArgumentError, match=r"scale requires a gradient, and pycutlass.mixed_mm.default for it has none"
    ):
        ops.mixed_mm(a, WEIGHT, scale.requires_grad_())
    assert passes_opcheck(ops.mixed_mm.default, a, WEIGHT, scale.detach())


def test_autocast_and_vmap() -> None:
    a, scale = numbers(3, 16, 64).detach().float(), numbers(24).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        made = torch.stack([ops.mixed_mm(each, WEIGHT, scale) for each in a])
        batched = torch.vmap(lambda each: ops.mixed_mm(each, WEIGHT, scale))(a)
    assert made.dtype == torch.bfloat16 and batched.equal(made)
    torch.testing.assert_close(made.float(), a @ WEIGHT.float() * scale, rtol=5e-2, atol=50)


REFUSED: dict[str, tuple[Any, ...]] = {
    r"mat_a must be of torch.float16 .*, got torch.float32 and torch.int8": (torch.ones(2, 64), WEIGHT),
    r"mat_b of torch.int8, got torch.float16 and torch.float16": (torch.ones(2, 64).half(), WEIGHT.half()),
    r"mat_a must be a matrix, got shape \(64,\)": (torch.ones(64).half(), WEIGHT),
    r"have different K": (torch.ones(2, 24).half(), WEIGHT),
    r"scale must be of \(24,\) or \(1, 24\), a number .*; got shape \(64,\)": (
        *(torch.ones(2, 64).half(), WEIGHT),
        torch.ones(64),
    ),
    r"scale must be of float32, float16 or bfloat16, got torch.float64": (
        *(torch.ones(2, 64).half(), WEIGHT),
        torch.ones(24).double(),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ops.mixed_mm(*REFUSED[message])


def test_none_is_no_tensor() -> None:
    """Torch lets it pass."""
    a = torch.ones(2, 64).half()
    for message, call in {
        "mat_a must be a tensor": lambda: ops.mixed_mm(None, WEIGHT),
        "mat_b must be a tensor": lambda: ops.mixed_mm(a, None),
        "offs must be a tensor": lambda: ops.fused_grouped_mm(a, a.T[None], None, "relu", []),
    }.items():
        with pytest.raises(ArgumentTypeError, match=message):
            call()
