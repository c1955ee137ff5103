"""Partitions of models: what is taken, what stands beside it, and that the same is computed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from partition_models import (
    ALL,
    BasicBlock,
    Bottleneck,
    Function,
    GatedMlp,
    TransformerBlock,
    compared,
    fused,
    some,
    taken,
)
from torch import nn
from torch.nn import functional

from pycutlass import errors
from pycutlass.pytorch import partition

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# Models


def test_mlp() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    made = taken(model, some(2, 5, 16))
    assert fused(made) == [("linear", "gelu"), ("linear_1",)] and made.counts == {"mm": 2} and not made.left
    first = made.regions[0]
    assert first.problem.size == (10, 32, 16) and first.problem.b.order == (1, 0)
    assert [(each.name, each.form, each.shape) for each in first.inputs] == [("row0", "row", (32,))]
    assert "self.weight, self.bias" in first.source or "forward" in first.source
    assert isinstance(made.pycutlass_0, nn.Module) and "linear + gelu" in str(made)


def test_gated_pair_takes_one_product_into_the_other() -> None:
    made = taken(GatedMlp(), some(4, 16))
    assert sorted(map(len, fused(made))) == [1, 1, 3] and not made.left
    gated = max(made.regions, key=lambda region: len(region.fused))
    assert [each.form for each in gated.inputs] == ["matrix"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_transformer_block(dtype: torch.dtype) -> None:
    made = taken(TransformerBlock().to(dtype), some(2, 6, 16, dtype=dtype))
    assert made.counts == {"mm": 7, "bmm": 2}
    assert ("linear_3", "add") in fused(made) and ("matmul", "mul") in fused(made)
    assert "complete only when the kernel is" in made.left["softmax"]


def test_extents_may_change_from_call_to_call() -> None:
    model = TransformerBlock().eval()
    auto = torch.export.Dim.AUTO
    made = taken(model, some(2, 6, 16), dynamic=({0: auto, 1: auto},))
    for batch, length in ((3, 9), (5, 4), (2, 7)):
        compared(model, made, some(batch, length, 16))
    problem = made.regions[0].problem
    symbols = problem.symbols
    assert len(symbols) == 2 and isinstance(problem.size[0], str)
    bound = problem.bound(**dict.fromkeys(symbols, 8))
    assert (
        bound.size == (64, 16, 16)
        and bound.symbols == ()
        and problem.a.spec(**dict.fromkeys(symbols, 3)).shape == (9, 16)
    )
    with pytest.raises(errors.ArgumentError, match="needs a number for"):
        problem.bound(**{symbols[0]: 4})


def test_true_is_for_the_first_axis_of_each_tensor() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    made = partition(model, {"input": some(4, 8)}, dynamic=True, options=ALL)
    assert torch.equal(made(input=some(9, 8) * 0), model(some(9, 8) * 0))
    assert made.regions[0].problem.ranges[0][1] >= 0


@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("model", [BasicBlock(), Bottleneck()], ids=["basic", "bottleneck"])
def test_residual_blocks(model: nn.Module, is_last: bool) -> None:
    x, model = some(2, 8, 6, 6), copy.deepcopy(model)
    if is_last:
        x, model = x.to(memory_format=torch.channels_last), model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    made = taken(model, x)
    assert not made.left and set(made.counts) == {"conv2d"}
    norms = [name for each in fused(made) for name in each if name.startswith("_native_batch_norm")]
    assert len(norms) == made.counts["conv2d"]
    residual = max(made.regions, key=lambda region: len(region.fused))
    assert {each.form for each in residual.inputs} == {"row", "matrix"}


def test_batch_norm_follows_its_weights_however_they_change() -> None:
    model, x = BasicBlock().eval(), some(2, 8, 6, 6)
    made = taken(model, x)
    before = made(x)
    with torch.no_grad():
        model.first_norm.weight.mul_(2)
        compared(model, made, x)
        model.second_norm.bias.data.add_(3)  # which no version counter sees
        model.first.weight.data.mul_(0.5)
        assert model.first_norm.running_var is not None
        model.first_norm.running_var.data.mul_(4)
        compared(model, made, x)
        assert not torch.allclose(made(x), before)


def test_batch_norm_in_training_is_left() -> None:
    made = taken(BasicBlock(), some(2, 8, 6, 6), train=True)
    assert any("normalises by the batch itself" in reason for reason in made.left.values())
    assert all(not region.fused for region in made.regions)


def test_batch_norm_of_rows() -> None:
    made = taken(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()), some(4, 8))
    assert len(fused(made)[0]) == 4
    conv = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5))
    made = taken(conv, some(4, 5, 8))
    assert "which is not that of the product's columns" in next(iter(made.left.values()))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 4, 3, padding="same"),
        nn.Conv2d(8, 4, 3, stride=2, padding=(1, 0)),
        nn.Conv2d(8, 4, 3, dilation=2, padding="valid"),
        nn.Conv2d(8, 4, 1),
    ],
    ids=str,
)
def test_convolutions(layer: nn.Module) -> None:
    made = taken(nn.Sequential(layer, nn.Hardswish(), nn.Flatten()), some(2, 8, 7, 6))
    assert made.counts == {"conv2d": 1} and "hardswish" in fused(made)[0]


@pytest.mark.parametrize(
    "activation",
    [
        *(nn.ELU(0.7), nn.SELU(), nn.CELU(0.7), nn.Mish(), nn.Softplus(2.0, 3.0), nn.Hardsigmoid(), nn.LogSigmoid()),
        *(nn.GELU(), nn.GELU("tanh"), nn.LeakyReLU(0.2), nn.Hardtanh(-0.5, 2.0), nn.ReLU6(), nn.Threshold(0.1, 20.0)),
        *(nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.Hardswish(), nn.PReLU(), nn.Softsign(), nn.Tanhshrink()),
    ],
    ids=str,
)
def test_activations(activation: nn.Module) -> None:
    made = taken(nn.Sequential(nn.Linear(8, 8), activation).double(), 3 * some(16, 8, dtype=torch.float64))
    assert not made.left, made


def test_slopes_of_prelu_go_along_axis_1() -> None:
    slopes = some(8, dtype=torch.float64)
    for shape, is_taken in (((4, 8), True), ((2, 8, 8), False)):  # where axis 1 is not the last one, and is as long
        made = taken(lambda x, w: functional.prelu(x @ w, slopes), some(*shape).double(), some(8, 8).double())
        assert bool(made.regions[0].fused) is is_taken, made
    made = taken(nn.Sequential(nn.Conv2d(4, 8, 3), nn.PReLU(8)), some(2, 4, 10, 10))
    assert not made.left and made.regions[0].inputs[-1].form == "row"


def test_celu_that_grows_exponentially_is_left() -> None:
    made = taken(lambda x, w: functional.celu(x @ w, -0.7), some(4, 8), some(8, 8))
    assert "negative alpha" in made.left["celu"]


# What stands beside the product

BESIDE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "row": (lambda x, w, b: (x @ w) * b, (some(4, 8), some(8, 6), some(6)), "row"),
    "row of two axes": (lambda x, w, b: (x @ w) * b, (some(4, 8), some(8, 6), some(1, 6)), "row"),
    "column": (lambda x, w, b: (x @ w) * b, (some(4, 8), some(8, 6), some(4, 1)), "column"),
    "column of a stack": (lambda x, w, b: (x @ w) * b, (some(2, 4, 8), some(8, 6), some(2, 4, 1)), "column"),
    "matrix": (lambda x, w, b: b - x @ w, (some(4, 8), some(8, 6), some(4, 6)), "matrix"),
    "transposed matrix": (lambda x, w, b: b.t() - x @ w, (some(4, 8), some(8, 6), some(6, 4)), "matrix"),
    "number": (lambda x, w, b: (x @ w) * b, (some(4, 8), some(8, 6), torch.tensor(2.0)), "number"),
    "number of two axes": (lambda x, w, b: (x @ w) * b, (some(4, 8), some(8, 6), some(1, 1)), "number"),
    "mask": (lambda x, w, b: torch.where(b, x @ w, 0.5), (some(4, 8), some(8, 6), some(4, 6) > 0), "matrix"),
    "row of truth": (lambda x, w, b: (x @ w).masked_fill(b, -1e9), (some(4, 8), some(8, 6), some(6) > 0), "row"),
    "row of a batch": (lambda x, w, b: (x @ w) * b, (some(3, 4, 8), some(3, 8, 6), some(3, 1, 6)), "row"),
    "column of a batch": (lambda x, w, b: (x @ w) * b, (some(3, 4, 8), some(3, 8, 6), some(4, 1)), "column"),
    "number of each": (lambda x, w, b: (x @ w) * b, (some(3, 4, 8), some(3, 8, 6), some(3, 1, 1)), "number"),
    "matrix for all": (lambda x, w, b: (x @ w) + b, (some(3, 4, 8), some(3, 8, 6), some(4, 6)), "matrix"),
    "matrix of a batch": (lambda x, w, b: (x @ w) + b, (some(3, 4, 8), some(3, 8, 6), some(3, 4, 6)), "matrix"),
    "int8": (lambda x, w, b: (x @ w) + b, (some(4, 8), some(8, 6), torch.arange(6, dtype=torch.int8)), "row"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_tensors_beside_the_product(name: str) -> None:
    function, inputs, form = BESIDE[name]
    made = taken(function, *inputs)
    assert not made.left and [each.form for each in made.regions[0].inputs] == [form]


def test_channels_and_pixels_of_a_convolution() -> None:
    def model(x: Tensor, w: Tensor, channel: Tensor, pixel: Tensor, whole: Tensor) -> Tensor:
        return functional.conv2d(x, w, padding=1) * channel * pixel + whole

    beside = some(4, 1, 1), some(2, 1, 5, 5), some(2, 4, 5, 5)
    made = taken(model, some(2, 3, 5, 5), some(4, 3, 3, 3), *beside)
    assert [each.form for each in made.regions[0].inputs] == ["row", "column", "matrix"] and not made.left


def test_what_is_repeated_otherwise_is_left() -> None:
    made = taken(lambda x, w, b: (x @ w) * b, some(2, 4, 8), some(8, 6), some(2, 1, 6))
    assert fused(made) == [("matmul",)] and "do not repeat" in made.left["mul"]
    made = taken(lambda x, w, b: (x @ w) * b, some(4, 8), some(8, 6), some(3, 4, 6))
    assert "no longer has the rows and columns" in made.left["mul"]


def test_numbers_that_are_known_when_it_runs_are_scalars() -> None:
    model = Function(lambda x, w: (x @ w) * x.shape[0] + x.shape[0] ** 0.5)
    made = taken(model, some(4, 8), some(8, 6), dynamic=True)
    assert made.regions[0].inputs[0].form == "scalar"
    compared(model, made, some(7, 8), some(8, 6))


def test_tensors_of_one_number_are_constants() -> None:
    def model(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
        y = torch.where(mask, x @ w, torch.full((), -0.3, dtype=x.dtype))
        return torch.maximum(y, torch.full((4, 6), 0.1, dtype=x.dtype)) * torch.scalar_tensor(2.0)

    made = taken(model, some(4, 8, dtype=torch.bfloat16), some(8, 6, dtype=torch.bfloat16), some(4, 6) > 0)
    assert [each.node for each in made.regions[0].inputs] == ["inputs_2"] and not made.left
    constants = {value.data for value in made.regions[0].function.graph.values if value.node == "constant"}
    assert (float(torch.tensor(0.1, dtype=torch.bfloat16)).hex(),) in constants


def test_addmm_and_its_scalars() -> None:
    made = taken(lambda c, x, w: torch.addmm(c, x, w, alpha=0.5, beta=2).tanh(), some(4, 6), some(4, 8), some(8, 6))
    assert fused(made) == [("addmm", "tanh")] and made.regions[0].inputs[0].form == "matrix"
    made = taken(lambda c, x, w: torch.baddbmm(c, x, w, beta=0), some(2, 4, 6), some(2, 4, 8), some(2, 8, 6))
    assert made.regions[0].inputs == ()


def test_integers_with_scales() -> None:
    a, b = (torch.randint(-5, 5, shape, dtype=torch.int8) for shape in ((32, 16), (16, 8)))
    made = taken(lambda a, b, s, t: torch._int_mm(a, b).float() * s * t, a, b, some(32, 1), some(8))
    assert len(fused(made)[0]) == 4 and made.regions[0].outputs[0].dtype == "float32"
    made = taken(lambda a, b: torch._int_mm(a, b), a, b)
    assert not made.regions and "used as integers" in made.left["_int_mm"]
