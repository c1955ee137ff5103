"""What regions write: values that are used outside, their types and memory, and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from partition_models import (
    Function,
    compared,
    fused,
    some,
    taken,
)
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# Outputs


def test_values_that_are_used_outside_are_outputs() -> None:
    made = taken(lambda x, w: (lambda y: (y, y * 2, torch.softmax(y, 0)))(x @ w), some(4, 8), some(8, 6))
    assert [each.node for each in made.regions[0].outputs] == ["mul", "matmul"]
    assert [name for name, _ in made.regions[0].function.graph.outputs] == ["D", "output1"]


def test_outputs_have_types_of_their_own() -> None:
    def model(x: Tensor, w: Tensor) -> Any:
        y = (x @ w).float()
        return y, y.to(torch.float16), (y * 2).to(torch.bfloat16)

    made = taken(model, some(4, 8, dtype=torch.bfloat16), some(8, 6, dtype=torch.bfloat16))
    assert sorted(each.dtype for each in made.regions[0].outputs) == ["bfloat16", "float16", "float32"]


def test_casts_that_were_written_are_kept() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).to(torch.float16).float() - 2048

    x, w = torch.full((4, 8), 1.0), torch.full((8, 6), 256.3)
    made = taken(model, x, w)
    assert len(fused(made)[0]) == 4 and made(x, w)[0, 0] == torch.tensor(2050.4).half().float() - 2048


def test_a_view_of_a_value_is_the_same_output() -> None:
    made = taken(lambda x, w: (lambda y: (y, y.view(8, 6), y.unsqueeze(0)))(x @ w), some(2, 4, 8), some(8, 6))
    (region,) = made.regions
    assert len(region.function.graph.outputs) == 1 and len(region.outputs) == 3


def test_a_copy_of_a_value_is_another_output() -> None:
    made = taken(lambda x, w: (lambda y: (y, y.clone(), y**1))(x @ w), some(4, 8), some(8, 6))
    first, second, third = made(some(4, 8), some(8, 6))
    assert len({each.data_ptr() for each in (first, second, third)}) == 3
    first.add_(1)
    assert torch.equal(second, third) and not torch.equal(first, second)


def test_there_are_at_most_four_outputs() -> None:
    made = taken(lambda x, w: tuple((x @ w) * number for number in range(2, 9)), some(4, 8), some(8, 6))
    shared = taken(lambda x, w: (lambda y: tuple(y * each for each in range(2, 9)))(x @ w), some(4, 8), some(8, 6))
    assert len(made.regions) == 7 and len(shared.regions[0].function.graph.outputs) == 4
    assert "4 are the most" in shared.left["mul_6"]


def test_conditions_stay_inside() -> None:
    made = taken(lambda x, w: (lambda y: torch.where((y > 0) & (y < 1), y, -y))(x @ w), some(4, 8), some(8, 6))
    assert not made.left
    made = taken(lambda x, w: x @ w > 0, some(4, 8), some(8, 6))
    assert "is a condition that is used outside" in made.left["gt"]


def test_results_lie_in_memory_as_they_did() -> None:
    model = Function(lambda x, w, z: z.t() + x @ w)
    inputs = some(4, 8), some(8, 6), some(6, 4)
    made = taken(model, *inputs)
    assert made(*inputs).stride() == model(*inputs).stride() == (1, 4)
    conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)).eval()
    assert taken(conv, some(2, 3, 6, 6)).counts == {"conv2d": 1, "mm": 1}


def test_strides_of_single_pixels_are_those_of_the_model() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        return functional.interpolate(torch.relu(functional.conv2d(x, w)), scale_factor=2) * 2

    x, w = some(2, 4, 3, 3), some(8, 4, 3, 3)
    made = taken(model, x, w)
    assert fused(made) == [("conv2d", "relu")]
    assert made(x, w).stride() == model(x, w).stride()  # by which torch chooses how larger images lie


REDUCED: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "of rows": (lambda y: y.sum(-1), (4, 8), (8, 6)),
    "of columns": (lambda y: y.sum(0, keepdim=True), (4, 8), (8, 6)),
    "of all": (lambda y: y.sum(), (4, 8), (8, 6)),
    "means of a stack": (lambda y: y.mean((0, 1)), (2, 4, 8), (8, 6)),
    "greatest of a stack": (lambda y: y.amax(-1, keepdim=True), (2, 4, 8), (8, 6)),
    "least of all": (lambda y: y.min(), (4, 8), (8, 6)),
    "means of a batch": (lambda y: y.mean(-1), (2, 4, 8), (2, 8, 6)),
    "columns of a batch": (lambda y: y.amin(1), (2, 4, 8), (2, 8, 6)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_are_left_beside_the_result(name: str, dtype: torch.dtype) -> None:
    function, x, w = REDUCED[name]
    made = taken(
        lambda x, w: (lambda y: (y, function(y)))((x @ w).relu()), some(*x, dtype=dtype), some(*w, dtype=dtype)
    )
    (region,) = made.regions
    assert len(region.outputs) == 2 and len(region.function.graph.reductions) == 1 and not made.left


def test_reductions_of_channels_and_extents_that_change() -> None:
    def model(x: Tensor, w: Tensor) -> Any:
        y = functional.conv2d(x, w)
        return y, y.mean((0, 2, 3)), y.sum(1, keepdim=True)

    made = taken(model, some(2, 3, 5, 5), some(4, 3, 3, 3))
    assert len(made.regions[0].function.graph.reductions) == 2
    rows = Function(lambda x, w: (lambda y: (y, y.mean(0), y.mean()))(x @ w))
    made = taken(rows, some(4, 8), some(8, 6), dynamic=True)
    for count in (3, 9):
        compared(rows, made, some(count, 8), some(8, 6))


def test_reductions_that_are_left() -> None:
    made = taken(lambda x, w: (x @ w).sum(), some(4, 8), some(8, 6))
    assert "writes all of its result" in made.left["sum_1"]
    made = taken(lambda x, w: (lambda y: (y, y.sum((0, 1))))(x @ w), some(2, 4, 8), some(2, 8, 6))
    assert "reduces other axes" in made.left["sum_1"]
    made = taken(lambda x, w: (lambda y: (y, y / y.sum(-1, keepdim=True)))(x @ w), some(4, 8), some(8, 8))
    assert fused(made) == [("matmul", "sum_1")]
    assert "reads sum_1" in made.left["div"] or "reads a reduction" in made.left["div"]
    made = taken(lambda x, w: (lambda y: (y, y.sum(-1, dtype=torch.float64)))(x @ w), torch.ones(4, 8), torch.eye(8))
    assert "in float64" in made.left["sum_1"]
