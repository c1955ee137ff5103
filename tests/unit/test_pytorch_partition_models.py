"""Models of twenty architectures and more: all are partitioned, compute what they did, and nothing is left silently."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import image_models as images
import pytest
import token_models as tokens
import torch
from partition_models import ALL, fused, taken
from torch import nn
from torch.fx import Interpreter, Node
from torch.utils.flop_counter import FlopCounterMode

from pycutlass.pytorch import Linear, Partition, SwiGLU, convert, partition
from pycutlass.pytorch.partitions import RegionModule

Tensor = torch.Tensor
_FLOAT, _HALF, _BFLOAT, _DOUBLE = torch.float32, torch.float16, torch.bfloat16, torch.float64


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape)


def choices(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape)


#: Of each model what it is called with, in which type it computes, and how many regions it has.
MODELS: list[tuple[type[nn.Module], Callable[[], tuple[Tensor, ...]], torch.dtype, int]] = [
    (tokens.Mlp, lambda: (numbers(4, 16),), _FLOAT, 3),
    (tokens.Autoencoder, lambda: (numbers(4, 24), numbers(4, 4)), _DOUBLE, 6),
    (tokens.EncoderDecoder, lambda: (numbers(2, 5, 16), numbers(2, 4, 16)), _FLOAT, 11),
    (tokens.Gpt, lambda: (choices(32, 2, 6),), _BFLOAT, 7),
    (tokens.Bert, lambda: (choices(32, 2, 6), choices(2, 2, 6), choices(2, 2, 6) == 0), _HALF, 8),
    (tokens.RelativeAttention, lambda: (numbers(2, 6, 16),), _BFLOAT, 9),
    (tokens.Llama, lambda: (numbers(2, 6, 16),), _BFLOAT, 9),
    (tokens.MixtureOfExperts, lambda: (numbers(6, 16),), _FLOAT, 4),
    (tokens.Recurrent, lambda: (numbers(2, 3, 8),), _FLOAT, 6),
    (tokens.Recommender, lambda: (numbers(4, 6), choices(10, 3, 4, 2)), _FLOAT, 5),
    (tokens.TwoTowers, lambda: (numbers(4, 3, 4, 4), choices(20, 4, 5)), _FLOAT, 4),
    (tokens.GraphConvolution, lambda: (numbers(6, 8), (numbers(6, 6) > 0).float()), _FLOAT, 5),
    (images.ResNet, lambda: (numbers(2, 3, 8, 8),), _HALF, 8),
    (images.MobileNet, lambda: (numbers(2, 3, 8, 8),), _FLOAT, 5),
    (images.EfficientNet, lambda: (numbers(2, 8, 8, 8),), _FLOAT, 4),
    (images.DenseNet, lambda: (numbers(2, 8, 8, 8),), _FLOAT, 7),
    (images.UNet, lambda: (numbers(2, 3, 8, 8),), _BFLOAT, 4),
    (images.Inception, lambda: (numbers(2, 8, 8, 8),), _FLOAT, 6),
    (images.ConvNeXt, lambda: (numbers(2, 3, 8, 8),), _FLOAT, 3),
    (images.VisionTransformer, lambda: (numbers(2, 3, 8, 8),), _FLOAT, 6),
    (images.Mixer, lambda: (numbers(2, 4, 16),), _DOUBLE, 4),
    (images.DiffusionBlock, lambda: (numbers(2, 8, 6, 6), numbers(2)), _FLOAT, 6),
]


@pytest.mark.parametrize(("kind", "inputs", "dtype", "count"), MODELS, ids=[each[0].__name__ for each in MODELS])
def test_partition(kind: type[nn.Module], inputs: Callable[[], Any], dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(0)
    model = _lively(kind()).eval().requires_grad_(False).to(dtype)
    given = tuple(each.to(dtype) if each.is_floating_point() else each for each in inputs())
    made = partition(model, given, options=ALL)
    assert len(made.regions) == count, made
    compared = _compare_regions(made)
    with FlopCounterMode(display=False) as counter:
        products = _Products(made, counter)
        got, expected = products.run(*given), model(*given)
    assert len(compared) == count, compared
    _close(got, expected, sum(compared.values()))  # errors of regions add up
    assert not products.outside.difference(made.left), made
    assert not _readers(made).difference(made.left), made
    assert all(len(reason.split()) > 3 for reason in made.left.values()), made


def _lively(model: nn.Module) -> nn.Module:
    """Return a model whose batch norms have seen something."""
    for each in model.modules():
        if isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d):
            assert each.running_mean is not None and each.running_var is not None
            each.running_mean.normal_(std=0.3)
            each.running_var.uniform_(0.5, 2)
            nn.init.normal_(each.bias, std=0.3)
    return model


def _compare_regions(made: Partition) -> dict[str, float]:
    """Compare each region, when it runs, with what it was in the model; return tolerances of those that have run."""
    compared: dict[str, float] = {}

    def compare(module: RegionModule, inputs: Any, outputs: Any) -> None:
        compared[module.region.name] = tolerance = _tolerance(module)
        _close(outputs, module.plain(*inputs), tolerance)

    for each in made.modules():
        if isinstance(each, RegionModule):
            each.register_forward_hook(compare)
    return compared


def _tolerance(module: RegionModule) -> float:
    """Return how far results may lie apart: torch rounds to their type after each step, and sums in float32."""
    region = module.region
    problem, dtype = region.problem, getattr(torch, region.outputs[0].dtype)
    summed: Any = problem.b.shape[1:] if problem.kind == "conv2d" else problem.a.shape[-1:]
    sums = torch.finfo(_DOUBLE if dtype is _DOUBLE else _FLOAT).eps * math.prod(summed)
    return torch.finfo(dtype).eps * (1 + len(region.fused)) + sums


def _close(got: Any, expected: Any, tolerance: float) -> None:
    found, wanted = (torch.utils._pytree.tree_leaves(each) for each in (got, expected))
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype is y.dtype and x.shape == y.shape
        scale = max(1.0, float(y.abs().max()))
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance * scale)


class _Products(Interpreter):
    """Runs a partition, and notes which nodes beside its regions torch counts products of."""

    def __init__(self, made: Partition, counter: FlopCounterMode) -> None:
        super().__init__(made)
        self.counter, self.outside = counter, set[str]()

    def run_node(self, n: Node) -> Any:
        before = self.counter.get_total_flops()
        made = super().run_node(n)
        if n.op == "call_function" and self.counter.get_total_flops() != before:
            self.outside.add(n.name)
        return made


def _readers(made: Partition) -> set[str]:
    """Return the names of nodes that read results of regions, and are none."""
    names = {region.name for region in made.regions}
    calls = {node for node in made.graph.nodes if node.op == "call_module" and node.target in names}
    results = {user for call in calls for user in call.users}
    readers = {user for result in results for user in result.users if user.op == "call_function"}
    return {node.name for node in readers - results}


def test_converted_models_have_the_regions_of_their_originals() -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.Sequential(nn.Conv2d(8, 16, 3, groups=1), nn.ReLU())
    for model, x in zip(layers, (numbers(4, 8), numbers(2, 8, 4, 4)), strict=True):
        original = fused(partition(model, x, options=ALL))
        convert(model)
        made = taken(model, x, train=True)
        assert len(made.regions) == 1 and fused(made) == original and not made.left
    half, wide = numbers(4, 8).half(), {"out_dtype": torch.float32}
    made = taken(lambda a, b: torch.ops.pycutlass.matmul(a, b, **wide) * 2, half, half.mT.contiguous())
    assert fused(made) == [("matmul", "mul")]


def test_operators_of_ours_that_are_no_region_are_left_with_a_reason() -> None:
    model, x = nn.Sequential(Linear(8, 8, activation="gelu"), SwiGLU(8, 8)), numbers(4, 8)
    made = taken(model, x)
    assert fused(made) == [("linear_1",)]
    assert "computes its activation in the same kernel" in made.left["linear"]
    assert "is an operator of PyCUTLASS already" in made.left["swiglu"]
    with torch.no_grad():
        program = torch.export.export(made, (x,))
    assert "is an operator of PyCUTLASS already" in partition(program, options=ALL).left["fused_mm"]
