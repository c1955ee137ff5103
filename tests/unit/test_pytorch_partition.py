"""Partitions of models: what is taken, what is left and why, and that the same is computed."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from partition_models import BasicBlock, Bottleneck, Counting, Function, GatedMlp, Tied, TransformerBlock
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from pycutlass import errors
from pycutlass.pytorch import Options, Partition, compiling, partition
from pycutlass.pytorch.regions import gain
from pycutlass.pytorch.regions.partitioner import found_in

Tensor = torch.Tensor
ALL = Options(min_gain=0)
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def compared(model: nn.Module, made: nn.Module, *inputs: Any) -> None:
    """Check that two models make the same of inputs, which they may change; of 16 bits torch rounds on the way."""
    tensors = (*inputs, *model.parameters())
    is_coarse = any(isinstance(each, Tensor) and each.dtype in HALVES for each in tensors)
    with torch.no_grad():
        results = []
        for each in (model, made):
            torch.manual_seed(1)
            results.append(each(*copy.deepcopy(inputs)))
    expected, got = (torch.utils._pytree.tree_leaves(each) for each in results)
    assert len(expected) == len(got)
    for x, y in zip(expected, got, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        tolerance = 2e-2 if is_coarse or x.dtype in HALVES else 1e-9 if x.dtype is torch.float64 else 1e-4
        torch.testing.assert_close(y, x, rtol=tolerance, atol=tolerance / 10)


def taken(model: Any, *inputs: Any, train: bool = False, **how: Any) -> Partition:
    """Return the partition of a model, in which all regions are taken, and which computes the same."""
    model = model if isinstance(model, nn.Module) else Function(model)
    model.train(train)
    made = partition(model, inputs, options=ALL, **how)
    compared(copy.deepcopy(model), made, *inputs)
    return made


def fused(made: Partition) -> list[tuple[str, ...]]:
    return [(region.product, *region.fused) for region in made.regions]


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


# Graphs that are none of layers in a row


def test_a_residual_that_depends_on_the_region_is_none() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return y + torch.softmax(y, -1)

    made = taken(model, some(4, 8), some(8, 8))
    assert fused(made) == [("matmul",)] and "computed from the region's own result" in made.left["add"]


def test_regions_that_need_each_other_do_not_become_a_cycle() -> None:
    def model(x: Tensor, v: Tensor, w: Tensor) -> Any:
        first, second = x @ v, x @ w
        return (first * 2 + second).relu(), (second * 3 + first).tanh()

    made = taken(model, some(4, 8), some(8, 8), some(8, 8))
    assert len(made.regions) == 2


def test_a_long_chain_of_products() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        for number in range(6):
            y = x @ w
            x = x + torch.tanh(y) * 0.1 + (0 if number % 2 else y.sigmoid())
        return x

    made = taken(model, some(4, 8), some(8, 8))
    assert len(made.regions) == 6 and not made.left


def test_a_product_used_twice_and_with_itself() -> None:
    made = taken(lambda x, w: (lambda y: (y * y + y).relu() * y)(x @ w), some(4, 8), some(8, 8))
    assert fused(made) == [("matmul", "mul", "add", "relu", "mul_1")]


def test_two_products_of_which_one_adds_the_other() -> None:
    made = taken(lambda x, v, w: x @ v + x @ w, some(4, 8), some(8, 8), some(8, 8))
    assert sorted(map(len, fused(made))) == [1, 2]


def test_tied_weights() -> None:
    model = Tied().eval()
    made = taken(model, some(4, 8))
    with torch.no_grad():
        model.first.weight.mul_(-1)
    compared(model, made, some(4, 8))
    assert any(each is model.first.weight for each in made.parameters())


def test_changes_in_place_and_through_views() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).add_(1).mul_(2)
        y[0] = 0
        y[1].add_(3)
        return y.relu_()

    made = taken(model, some(4, 8), some(8, 8))
    assert fused(made)[0][:3] == ("matmul", "add", "mul")


def test_changed_inputs_and_buffers() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        x.add_(1)
        return y + x

    taken(model, some(4, 8), some(8, 8))
    counting = Counting().eval()
    made = partition(counting, some(4, 8), options=ALL)
    first, second = made(some(4, 8)), made(some(4, 8))
    assert first.shape == second.shape and counting.calls == 2


def test_dropout() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5))
    made = taken(model, some(16, 8), train=True)
    assert "is random in training" in made.left["native_dropout"] and len(made.regions) == 2
    made = taken(model, some(16, 8))
    assert not made.left


def test_data_dependent_shapes() -> None:
    made = taken(lambda x, w: (x @ w)[(x @ w).sum(-1) > 0] * 2, some(4, 8), some(8, 8))
    assert all(not each.fused for each in made.regions)
    with pytest.raises(errors.ArgumentError, match=r"torch\.compile"):
        partition(Function(lambda x, w: x @ w if x.sum() > 0 else x), (some(4, 8), some(8, 8)))


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "no alpha": (
        lambda x, w, c: torch.addmm(c, x, w, alpha=0),
        (some(4, 8) * math.inf, some(8, 8), some(4, 8)),
        "leaves the product out",
    ),
    "complex": (lambda x, w: (x @ w).abs(), (some(4, 8) + 0j, some(8, 8) + 0j), "complex64"),
    "int64": (
        lambda x, w: x @ w,
        (torch.ones(4, 8, dtype=torch.int64),) * 1 + (torch.ones(8, 4, dtype=torch.int64),),
        "int64",
    ),
    "vector": (lambda x, w: x @ w, (some(8), some(8, 8)), "by a vector"),
    "empty": (lambda x, w: x @ w + 1, (some(0, 8), some(8, 8)), "has no elements"),
    "attention": (functional.scaled_dot_product_attention, (some(1, 2, 4, 8),) * 3, "is attention"),
    "conv1d": (functional.conv1d, (some(1, 4, 8), some(4, 4, 3)), "along one axis"),
    "transposed": (functional.conv_transpose2d, (some(1, 4, 8, 8), some(4, 4, 3, 3)), "transposed convolution"),
    "groups": (lambda x, w: functional.conv2d(x, w, groups=4), (some(1, 4, 8, 8), some(4, 1, 3, 3)), "4 groups"),
    "uneven": (
        lambda x, w: functional.conv2d(x, w, padding="same"),
        (some(1, 4, 8, 8), some(4, 4, 2, 2)),
        "behind than before",
    ),
    "repeated batches": (lambda x, w: x @ w, (some(3, 1, 4, 8), some(2, 8, 8)), "repeated for each other"),
}


@pytest.mark.parametrize("name", LEFT)
def test_products_that_are_left(name: str) -> None:
    function, inputs, reason = LEFT[name]
    made = taken(function, *inputs)
    assert not made.regions and reason in "; ".join(made.left.values())


def test_roundings_that_torch_does_otherwise_are_left() -> None:
    made = taken(lambda x, w: (x @ w).to(torch.int32), some(4, 8), some(8, 8))
    assert "int32" in made.left["_to_copy"]
    made = taken(lambda x, w: (x @ w * 300).to(torch.float8_e4m3fn).float(), some(4, 8), some(8, 8))
    assert "float8" in "".join(made.left.values())
    made = taken(lambda x, w: torch.div(x @ w, 0.3, rounding_mode="floor"), some(4, 8), some(8, 8))
    assert "rounding_mode" in made.left["div"]


# What is taken


def test_by_default_what_is_predicted_to_gain_is_taken() -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).bfloat16().eval()
    made = partition(model, some(2048, 512, dtype=torch.bfloat16), options={"sm": 90})
    assert fused(made) == [("linear", "gelu")]
    share = made.regions[0].gain
    assert share is not None and 0.02 < share < 1 and f"{share:.0%} faster by prediction" in str(made)
    assert "less is gained than min_gain=0.02" in made.left["linear_1"]
    made = partition(model, some(2048, 512, dtype=torch.bfloat16), options={"sm": 90, "min_gain": 0.99})
    assert not made.regions and set(made.left) == {"linear", "linear_1"}


def test_a_compiler_that_joins_the_rest_leaves_less_to_gain() -> None:
    program = make_fx(lambda x, w: torch.tanh(torch.relu(x @ w) * 2 + 1), tracing_mode="fake")
    gains = []
    for is_compiled in (False, True):
        graph = program(some(1024, 512, dtype=torch.float16), some(512, 512, dtype=torch.float16)).graph
        found = found_in(graph, Options(sm=90), compiling._inlined, is_compiled=is_compiled)
        gains.append(found.regions[0].gain)
    assert gains[0] > gains[1] > 0


def test_what_no_kernel_takes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = Function(lambda x, w: torch.relu(x @ w)), (some(4, 8), some(8, 8))

    def none(plan: Any, gpu: Any) -> float:
        raise errors.ArgumentError(f"no kernel takes {plan!r}")

    monkeypatch.setattr(gain._Matrices, "chosen", lambda self, plan, gpu: none(plan, gpu))
    gain._predicted.cache_clear()
    made = partition(model, inputs, options=ALL)
    gain._predicted.cache_clear()
    assert not made.regions and "no kernel takes <Gemm of 4x8x8" in made.left["matmul"]
    compared(model, made, *inputs)


# What it is as a module


def test_gradients_come_from_the_model_itself() -> None:
    model, x = GatedMlp(), some(4, 16)
    made = partition(model, x, options=ALL)
    expected = torch.autograd.grad(model(x).sum(), tuple(model.parameters()))
    got = torch.autograd.grad(made(x).sum(), tuple(model.parameters()))
    assert all(map(torch.equal, expected, got))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch about torch
def test_copies_and_state() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    made = partition(model, some(4, 8), options=ALL)
    copied = copy.deepcopy(made)
    assert copied.regions == made.regions and copied.counts == {"mm": 1} and dict(copied.left) == dict(made.left)
    assert torch.equal(copied(torch.ones(4, 8)), made(torch.ones(4, 8)))
    made.load_state_dict({name: value * 0 for name, value in model.state_dict().items()})
    assert not made(some(4, 8)).any() and not model(some(4, 8)).any()
    assert pickle.loads(pickle.dumps(made.regions)) == made.regions


def test_the_other_mode_is_another_graph() -> None:
    made = partition(nn.Sequential(nn.Linear(8, 8), nn.Dropout()).eval(), some(4, 8), options=ALL)
    assert made.eval() is made
    with pytest.raises(errors.ArgumentError, match="partition it again"):
        made.train()


def test_exported_programs() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    program = torch.export.export(model, (some(4, 8),))
    made = partition(program, options=ALL)
    compared(model, made, some(4, 8))
    assert made.counts == {"mm": 1}


def test_equal_regions_have_equal_functions() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)))
    made = taken(model, some(4, 8))
    assert len({region.function for region in made.regions}) == 1 and len(made.regions) == 3


def test_fast_math() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval()
    made = partition(model, some(4, 8), options={"min_gain": 0, "use_fast_math": True})
    nodes = {value.node for value in made.regions[0].function.graph.values}
    assert "gelu_tanh" in nodes and "gelu" not in nodes
    torch.testing.assert_close(made(torch.ones(4, 8)), model(torch.ones(4, 8)), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_gian": 0}, "no option of a partition"),
        ({"min_gain": 2}, "from 0 .every region. to below 1"),
        ({"min_gain": "much"}, "must be a share"),
        ({"rest": "triton"}, "rest must be"),
        ({"rest": np.array(["inductor", "eager"])}, "rest must be"),
        ({"budget": "5 parsecs"}, "budget must be seconds"),
        ({3: 1}, "which are text"),
        ({"use_fast_math": 1}, "True or False"),
        ({"threads": 0}, "at least 1"),
        ({"threads": "all"}, "must be an integer"),
        ({"split_k_slices": []}, "one or several integers"),
        ({"tmp_dir": "/nowhere/at/all"}, "must be a directory"),
        ({"tmp_dir": 3}, "must be a path"),
        ({"budget": -1}, "budget"),
        ({"sm": 60}, "sm"),
        (3, "options must be"),
    ],
)
def test_options_that_are_none(given: Any, message: str) -> None:
    with pytest.raises(errors.PyCutlassError, match=message):
        partition(nn.Linear(8, 8), some(4, 8), options=given)


def test_models_and_inputs_that_are_none() -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"must be a torch\.nn\.Module"):
        partition(torch.relu, some(4, 8))
    with pytest.raises(errors.ArgumentTypeError, match="example_inputs must be"):
        partition(nn.Linear(8, 8), None)
    with pytest.raises(errors.ArgumentError, match="cannot capture"):
        partition(nn.Linear(8, 8), some(4, 9))
