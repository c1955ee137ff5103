"""Operators of torch for groups, for operands of 8 bits with scales, and for gated layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.nn import functional
from torch_operators import numbers, ops, passes_opcheck

from pycutlass.errors import ArgumentError, ArgumentTypeError

ENDS = [2, 2, 5]  # the second group is empty, and the last row or column belongs to none
OFFS = torch.tensor(ENDS, dtype=torch.int32)
#: Shapes of both operands and of a bias.
FORMS = {
    "rows": ((6, 4), (3, 4, 5), None),
    "rows, bias": ((6, 4), (3, 4, 5), (3, 5)),
    "rows, one bias": ((6, 4), (3, 4, 5), (5,)),
    "sums": ((3, 6), (6, 4), None),
    "columns": ((3, 2, 4), (4, 6), None),
    "stacks": ((3, 2, 4), (3, 4, 5), None),
    "stacks, bias": ((3, 2, 4), (3, 4, 5), (3, 5)),
    "stacks, one bias": ((3, 2, 4), (3, 4, 5), (5,)),
}


def exact(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """One product for each group."""
    parts = [slice(*ends) for ends in zip([0, *ENDS], ENDS, strict=False)]
    if a.dim() == 3 and b.dim() == 3:
        return a @ b if bias is None else a @ b + (bias[:, None] if bias.dim() == 2 else bias)
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, part] @ b[part] for part in parts])
    if b.dim() == 2:
        return torch.cat([*(each @ b[:, part] for each, part in zip(a, parts, strict=True)), b.new_zeros(2, 1)], 1)
    rows = [a[part] @ each for part, each in zip(parts, b, strict=True)]
    if bias is not None:
        rows = [each + one for each, one in zip(rows, bias.expand(3, -1), strict=True)]
    return torch.cat([*rows, a.new_zeros(1, 5)])


@pytest.mark.parametrize("form", FORMS)
def test_grouped_mm(form: str) -> None:
    of_a, of_b, of_bias = FORMS[form]
    a, b, bias = numbers(*of_a), numbers(*of_b), None if of_bias is None else numbers(*of_bias)
    offs = None if form.startswith("stacks") else OFFS

    def computed(a: Any, b: Any, bias: Any) -> Any:
        return ops.grouped_mm(a, b, offs=offs, bias=bias)

    torch.testing.assert_close(computed(a, b, bias), exact(a, b, bias))
    assert gradcheck(computed, (a, b, bias)) and gradgradcheck(computed, (a, b, bias), fast_mode=True)
    assert passes_opcheck(ops.grouped_mm.default, a, b, offs=offs, bias=bias)


def test_grouped_mm_of_layers_in_half_precision() -> None:
    """Weights are (experts, out, in); backward has the other layouts of both operands."""
    tokens, weight = numbers(40, 16, dtype=torch.bfloat16), numbers(3, 24, 16, dtype=torch.bfloat16)
    offs = torch.tensor([9, 9, 40], dtype=torch.int32)
    made = ops.grouped_mm(tokens, weight.mT, offs=offs)
    wanted = torch.cat([tokens[:9].double() @ weight[0].double().T, tokens[9:].double() @ weight[2].double().T])
    torch.testing.assert_close(made.double(), wanted, rtol=1e-2, atol=1e-2)
    dy = numbers(40, 24, dtype=torch.bfloat16).detach()
    found = torch.autograd.grad(made, (tokens, weight), dy)
    for ours, theirs in zip(found, torch.autograd.grad(wanted, (tokens, weight), dy.double()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_the_gradient_of_a_bias_is_summed_in_the_type_of_the_result() -> None:
    a, b = (numbers(*shape, dtype=torch.bfloat16).detach() for shape in ((64, 16), (2, 16, 8)))
    bias, dy = numbers(8, dtype=torch.float32), numbers(64, 8, dtype=torch.float32).detach()
    offs = torch.tensor([30, 64], dtype=torch.int32)
    made = ops.grouped_mm(a, b, offs=offs, bias=bias, out_dtype=torch.float32)
    torch.testing.assert_close(torch.autograd.grad(made, bias, dy)[0], dy.sum(0))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_groups_that_do_not_fit(device: str) -> None:
    def made(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    offs = OFFS.to(device)
    refused: dict[str, tuple[Any, ...]] = {
        "mat_a and mat_b must have two or three dimensions": (made(4), made(3, 4, 5), offs),
        "are divided into groups: pass offs": (made(6, 4), made(3, 4, 5), None),
        "are stacks of groups: leave offs away": (made(3, 6, 4), made(3, 4, 5), offs),
        r"different K: 4 columns of mat_a and 5 rows of mat_b": (made(6, 4), made(3, 5, 5), offs),
        r"different numbers of groups, \[2, 3\]": (made(6, 4), made(2, 4, 5), offs),
        r"bias must be of \(5,\) or \(3, 5\), a number for each column of the result; got shape \(2, 5\)": (
            made(6, 4),
            made(3, 4, 5),
            offs,
            made(2, 5),
        ),
        r"offs must be a vector of int32, .* got shape \(1, 3\)": (made(6, 4), made(3, 4, 5), offs[None]),
        r"offs must be a vector of int32, .* of torch.float32": (made(6, 4), made(3, 4, 5), offs.float()),
        "groups divide the columns here": (made(3, 6, 4), made(4, 6), offs, made(6)),
        "mat_a is float32 and mat_b is float16": (made(6, 4), made(3, 4, 5).half(), offs),
    }
    for message, (a, b, ends, *bias) in refused.items():
        with pytest.raises(ArgumentError, match=message):
            ops.grouped_mm(a, b, offs=ends, bias=bias[0] if bias else None)


@pytest.mark.parametrize("scales", [((), ()), ((16, 1), (1, 24))], ids=["of tensors", "of rows and columns"])
@pytest.mark.parametrize("out_dtype", [None, torch.float16, torch.float32], ids=str)
def test_scaled_mm(scales: tuple[tuple[int, ...], tuple[int, ...]], out_dtype: torch.dtype | None) -> None:
    a, b = (numbers(*shape).detach().to(torch.float8_e4m3fn) for shape in ((16, 32), (24, 32)))
    scale_a, scale_b = (numbers(*shape, dtype=torch.float32).detach().abs() for shape in scales)
    bias = numbers(24, dtype=out_dtype or torch.bfloat16).detach()
    made = ops.scaled_mm(a, b.T, scale_a, scale_b, bias=bias, out_dtype=out_dtype)
    wanted = a.double() @ b.double().T * scale_a * scale_b + bias
    assert made.dtype == (out_dtype or torch.bfloat16)
    torch.testing.assert_close(made.double(), wanted, rtol=8 * torch.finfo(made.dtype).eps, atol=1e-2)
    # torch's test of the schema compares operands, and has no comparison of 8 bits.
    named = {"bias": bias, "out_dtype": out_dtype}
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    found = opcheck(ops.scaled_mm.default, (a, b.T, scale_a, scale_b), named, test_utils=tests)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("shapes", "ends", "message"),
    [
        (((8, 16), (2, 16, 8)), [3, 9], r"offs\[1\] is 9, beyond the 8 rows or columns of mat_a that groups divide"),
        (((2, 8, 16), (16, 8)), [3, 20], r"beyond the 8 rows or columns of mat_b that groups divide"),
        (((8, 16), (2, 16, 8)), [3, 2], r"offs must not decrease: offs\[0\] is 3, and offs\[1\] is 2"),
    ],
)
def test_messages_about_groups_have_the_operators_names(shapes: Any, ends: list[int], message: str) -> None:
    a, b = (torch.ones(shape) for shape in shapes)
    with pytest.raises(ArgumentError, match=message):
        ops.grouped_mm(a, b, offs=torch.tensor(ends, dtype=torch.int32))


def test_scaled_mm_of_integers_is_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-9, 9, (16, 32), generator=generator).to(torch.int8) for _ in "ab")
    scale_a, scale_b = torch.tensor(0.5), torch.tensor(0.25)
    made = ops.scaled_mm(a, b.T, scale_a, scale_b)
    torch.testing.assert_close(made, (a.double() @ b.double().T / 8).float())
    assert passes_opcheck(ops.scaled_mm.default, a, b.T, scale_a, scale_b)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_scaled_mm_is_of_matrices_or_stacks_of_as_many(device: str) -> None:
    a, one = torch.ones(2, 16, 32, device=device).to(torch.float8_e4m3fn), torch.ones((), device=device)
    with pytest.raises(ArgumentError, match=r"stacks of as many matrices, got shapes \(2, 16, 32\) and \(32, 16\)"):
        ops.scaled_mm(a, a[0].T, one, one)
    refused = {
        r"scale_a must be one number, or one for each row of mat_a, of shape \(16,\) or \(16, 1\); got \(8,\)": (
            a[0],
            8,
        ),
        r"scale_a .* of shape \(16,\) or \(16, 1\) or \(2, 16\) or \(2, 16, 1\); got \(2,\)": (a, 2),
    }
    for message, (of_a, extent) in refused.items():
        with pytest.raises(ArgumentError, match=message):
            ops.scaled_mm(of_a, of_a.mT, torch.ones(extent, device=device), one)
    with pytest.raises(ArgumentError, match=r"scale_b must be .* of shape \(16,\) or \(1, 16\); got \(16, 1\)"):
        ops.scaled_mm(a[0], a[0].T, one, torch.ones(16, 1, device=device))
    with pytest.raises(ArgumentError, match=r"scale_b must be of float32, .* got torch.float64"):
        ops.scaled_mm(a[0], a[0].T, one, one.double())


def test_scaled_mm_has_no_gradient() -> None:
    a, scale = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(()).requires_grad_()
    with pytest.raises(ArgumentError, match=r"scale_b requires a gradient, and pycutlass.scaled_mm.default has none"):
        ops.scaled_mm(a, a.T, scale.detach(), scale)
    with torch.no_grad():
        assert ops.scaled_mm(a, a.T, scale, scale).eq(16).all()
    with pytest.raises((ArgumentError, ArgumentTypeError), match="bias"):
        ops.scaled_mm(a, a.T, scale.detach(), scale.detach(), bias=torch.ones(16, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (3,)], ids=str)
def test_swiglu(shape: tuple[int, ...]) -> None:
    given = numbers(*shape), numbers(5, 3), numbers(5, 3)
    with torch.no_grad():
        without = ops.swiglu(*given)
    made = ops.swiglu(*given)
    wanted = functional.silu(functional.linear(*given[:2])) * functional.linear(given[0], given[2])
    torch.testing.assert_close(made, wanted)
    assert torch.equal(made, without)
    assert gradcheck(ops.swiglu, given) and gradgradcheck(ops.swiglu, given, fast_mode=True)
    assert passes_opcheck(ops.swiglu.default, *given)
    assert passes_opcheck(ops.swiglu_with_slopes.default, *(each.detach() for each in given))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_swiglu_of_other_types(dtype: torch.dtype) -> None:
    given = numbers(200, 64, dtype=dtype), *((numbers(96, 64, dtype=dtype) / 8).detach().requires_grad_() for _ in "gu")
    exact = [each.detach().double().requires_grad_() for each in given]
    dy, rounding = numbers(200, 96, dtype=dtype).detach() / 8, 16 * torch.finfo(dtype).eps
    made = ops.swiglu(*given)
    wanted = functional.silu(functional.linear(*exact[:2])) * functional.linear(exact[0], exact[2])
    torch.testing.assert_close(made.double(), wanted, rtol=rounding, atol=rounding)
    found, theirs = torch.autograd.grad(made, given, dy), torch.autograd.grad(wanted, exact, dy.double())
    for ours, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(ours.double(), other, rtol=rounding, atol=rounding * float(other.abs().max()))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_gates_that_do_not_fit(device: str) -> None:
    def made(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    with pytest.raises(ArgumentError, match=r"gate_weight of shape \(5, 3\) and up_weight of shape \(4, 3\) must"):
        ops.swiglu(made(4, 3), made(5, 3), made(4, 3))
    with pytest.raises(ArgumentError, match="a gate is computed in fractions"):
        ops.swiglu(*(made(4, 4).to(torch.int8) for _ in range(3)))
    with pytest.raises(ArgumentError, match=r"different K: 3 columns of input and 4 rows of gate_weight.T"):
        ops.swiglu(made(4, 3), made(5, 4), made(5, 4))


def test_groups_may_be_empty_and_none() -> None:
    for of_a, of_b, ends in (((0, 4), (3, 4, 5), [0, 0, 0]), ((6, 4), (0, 4, 5), []), ((3, 0), (0, 4), [0, 0, 0])):
        a, b, offs = numbers(*of_a), numbers(*of_b), torch.tensor(ends, dtype=torch.int32)
        made = ops.grouped_mm(a, b, offs=offs)
        assert made.eq(0).all()
        assert all(each.eq(0).all() for each in torch.autograd.grad(made.sum(), (a, b)))


@pytest.mark.parametrize("shapes", [((0, 3), (5, 3)), ((4, 0), (5, 0)), ((4, 3), (0, 3))], ids=str)
def test_gates_of_nothing(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    given = numbers(*shapes[0]), numbers(*shapes[1]), numbers(*shapes[1])
    made = ops.swiglu(*given)
    wanted = functional.silu(functional.linear(*given[:2])) * functional.linear(given[0], given[2])
    torch.testing.assert_close(made, wanted)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), given), torch.autograd.grad(wanted.sum(), given))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32], ids=str)
def test_scaled_mm_is_of_8_bits(dtype: torch.dtype, device: str) -> None:
    a, one = torch.ones(16, 16, dtype=dtype, device=device), torch.ones((), device=device)
    with pytest.raises(ArgumentTypeError, match=rf"must be of 8 bits, .* got {dtype} and .* call torch\S+matmul"):
        ops.scaled_mm(a, a, one, one)
