"""What ``torch.vmap`` makes of operators with tensors by name: groups, and operands with scales."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch_operators import numbers, ops

from pycutlass.errors import ArgumentError

Tensor = torch.Tensor
BATCH = 3
OFFS = torch.tensor([2, 2, 5], dtype=torch.int32)  # the last row or column belongs to no group


class Counting(TorchDispatchMode):
    """Counts what operators of ours are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += function.namespace == "pycutlass"
        return function(*args, **(kwargs or {}))


def places(*shapes: tuple[int, ...]) -> Any:
    """Return tensors with a batch along the first or the last axis, or none, in all ways but without any."""
    for axes in itertools.product((None, 0, -1), repeat=len(shapes)):
        if any(axis is not None for axis in axes):
            made = [axis if axis is None else axis % (len(shape) + 1) for axis, shape in zip(axes, shapes, strict=True)]
            full = [
                shape if axis is None else (*shape[:axis], BATCH, *shape[axis:])
                for axis, shape in zip(made, shapes, strict=True)
            ]
            yield tuple(made), [numbers(*shape).detach() for shape in full]


def one_by_one(function: Callable[..., Any], axes: tuple[int | None, ...], tensors: list[Tensor]) -> Tensor:
    each = [tensor if axis is None else tensor.movedim(axis, 0) for axis, tensor in zip(axes, tensors, strict=True)]
    chosen = ([x if axis is None else x[at] for x, axis in zip(each, axes, strict=True)] for at in range(BATCH))
    return torch.stack([function(*given) for given in chosen])


FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    "rows": ((6, 4), (3, 4, 5), True),
    "sums": ((2, 6), (6, 4), True),
    "columns": ((3, 2, 4), (4, 6), True),
    "stacks": ((3, 2, 4), (3, 4, 5), False),
}


@pytest.mark.parametrize("form", FORMS)
def test_groups(form: str) -> None:
    of_a, of_b, is_divided = FORMS[form]

    def product(a: Tensor, b: Tensor) -> Any:
        return ops.grouped_mm(a, b, offs=OFFS if is_divided else None)

    for axes, given in places(of_a, of_b):
        with Counting() as counting:
            made = torch.vmap(product, axes)(*given)
        torch.testing.assert_close(made, one_by_one(product, axes, given))
        of_both = is_divided and None not in axes
        assert counting.calls - 1 == (BATCH if of_both else 1), axes  # the first says what does not fit


@pytest.mark.parametrize("form", ["rows", "sums", "stacks"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["one bias", "a bias of each group"])
def test_groups_with_a_bias(form: str, is_shared: bool) -> None:
    of_a, of_b, is_divided = FORMS[form]
    bias = (of_b[-1],) if is_shared else (3, of_b[-1])

    def product(a: Tensor, b: Tensor, bias: Tensor) -> Any:
        return ops.grouped_mm(a, b, offs=OFFS if is_divided else None, bias=bias)

    for axes, given in places(of_a, of_b, bias):
        made = torch.vmap(product, axes)(*given)
        torch.testing.assert_close(made, one_by_one(product, axes, given))


def test_other_ends_for_each_of_a_batch() -> None:
    ends = torch.tensor([[1, 3, 6], [0, 0, 2], [2, 2, 2]], dtype=torch.int32)
    for axes, (a, b) in places((6, 4), (3, 4, 5)):
        made = torch.vmap(lambda a, b, offs: ops.grouped_mm(a, b, offs=offs), (*axes, 0))(a, b, ends)
        wanted = torch.stack(
            [
                ops.grouped_mm(
                    *(x if axis is None else x.movedim(axis, 0)[at] for x, axis in zip((a, b), axes, strict=True)),
                    offs=ends[at],
                )
                for at in range(BATCH)
            ]
        )
        torch.testing.assert_close(made, wanted)


def test_groups_of_a_batch_have_gradients_and_casts() -> None:
    a, b = numbers(BATCH, 6, 4), numbers(3, 4, 5)
    made = torch.vmap(lambda each: ops.grouped_mm(each, b, offs=OFFS))(a)
    wanted = torch.stack([ops.grouped_mm(each, b, offs=OFFS) for each in a])
    torch.testing.assert_close(
        torch.autograd.grad(made.square().sum(), (a, b)), torch.autograd.grad(wanted.square().sum(), (a, b))
    )
    narrow = [each.detach().float() for each in (a, b)]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.vmap(lambda each: ops.grouped_mm(each, narrow[1], offs=OFFS))(narrow[0]).dtype is torch.bfloat16
    with pytest.raises(ArgumentError, match=r"different K: 4 columns of mat_a and 3 rows of mat_b"):
        torch.vmap(lambda each: ops.grouped_mm(each, b[:, :3], offs=OFFS))(a)


def scaled(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None) -> Any:
    narrow, scales = [each.to(torch.float8_e4m3fn) for each in (a, b)], (scale_a.float(), scale_b.float())
    return ops.scaled_mm(*narrow, *scales, bias=None if bias is None else bias.float(), out_dtype=torch.float32)


@pytest.mark.parametrize(
    "scales", [((), ()), ((1,), (1, 1)), ((4,), (5,)), ((4, 1), (1, 5)), ((), (1, 5)), ((4, 1), ())], ids=str
)
def test_scales(scales: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for axes, given in places((4, 6), (6, 5), *scales):
        with Counting() as counting:
            made = torch.vmap(scaled, axes)(*given)
        assert counting.calls == 2
        torch.testing.assert_close(made, one_by_one(scaled, axes, given))


def test_scales_with_a_bias() -> None:
    for axes, given in places((4, 6), (6, 5), (4, 1), (), (5,)):
        torch.testing.assert_close(torch.vmap(scaled, axes)(*given), one_by_one(scaled, axes, given))


@pytest.mark.parametrize("scales", [((), (5,)), ((4,), (2, 1, 5)), ((2, 4), ()), ((2, 4, 1), (1, 5))], ids=str)
def test_stacks_with_scales(scales: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Scales of all matrices of a stack, and of each, which extents alone do not tell from those of a batch."""
    for axes, given in places((2, 4, 6), (2, 6, 5), *scales):
        torch.testing.assert_close(torch.vmap(scaled, axes)(*given), one_by_one(scaled, axes, given))
    added = [numbers(*shape).detach() for shape in ((BATCH, 2, 4, 6), (2, 6, 5), *scales, (5,))]
    made = torch.vmap(scaled, (0, None, None, None, None))(*added)
    torch.testing.assert_close(made, one_by_one(scaled, (0, None, None, None, None), added))


def test_scales_of_one_line() -> None:
    """Their strides are those of a batch that is the last axis."""
    for axes, given in places((1, 6), (6, 1), (1, 1), (1,)):
        torch.testing.assert_close(torch.vmap(scaled, axes)(*given), one_by_one(scaled, axes, given))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_operands_of_8_bits(dtype: torch.dtype) -> None:
    a, b = (4 * numbers(BATCH, *shape).detach() for shape in ((16, 32), (24, 32)))
    a, b = a.to(dtype), b.to(dtype)
    scale_a, scale_b = numbers(BATCH, 16, 1).detach().float(), numbers(BATCH).detach().float()
    bias = numbers(BATCH, 24).detach().to(torch.bfloat16 if dtype.is_floating_point else torch.float32)
    given = [a, b.mT, scale_a, scale_b, bias]
    made, wanted = torch.vmap(scaled)(*given), one_by_one(scaled, (0,) * 5, given)
    assert made.dtype is wanted.dtype
    torch.testing.assert_close(made, wanted, rtol=torch.finfo(made.dtype).eps, atol=1e-5)


def test_scales_are_refused_as_those_of_each() -> None:
    a, b, one = torch.ones(BATCH, 4, 6), torch.ones(6, 5), torch.ones(())
    with pytest.raises(ArgumentError, match=r"scale_a must be one number, .* of shape \(4,\) or \(4, 1\); got \(3,\)"):
        torch.vmap(scaled, (0, None, None, None))(a, b, torch.ones(3), one)
