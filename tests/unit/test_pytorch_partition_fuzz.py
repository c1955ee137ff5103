"""Partitions of random graphs: products with random operators around them compute what they did."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import pycutlass.pytorch
from pycutlass.pytorch import Options, compiling
from pycutlass.pytorch.regions import partitioner
from pycutlass.pytorch.regions.gain import Gain

Tensor = torch.Tensor
assert pycutlass.pytorch  # which registers the operators
ROWS, WIDTH = 4, 6

UNARY: list[Callable[[Tensor], Tensor]] = [
    *(torch.relu, torch.tanh, torch.sigmoid, torch.neg, torch.abs, torch.erf, torch.square),
    *(torch.nn.functional.silu, torch.nn.functional.gelu, torch.nn.functional.hardswish, torch.nn.functional.softplus),
    *(lambda x: x * 0.5, lambda x: 1.5 - x, lambda x: x / 3 + 0.25, lambda x: x.clamp(-2, 2), lambda x: x.exp() * 0.1),
    *(lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: x.masked_fill(x < -1, 0.5), lambda x: x.float().double()),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    *(torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum),
    *(lambda x, y: x / (y.abs() + 1), lambda x, y: torch.add(x, y, alpha=0.5), lambda x, y: torch.where(x > y, x, y)),
    *(lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: x.addcmul(y, y, value=0.1)),
]
#: What no region takes, so that it ends there.
BREAKING: list[Callable[[Tensor], Tensor]] = [
    *(lambda x: x * x.mean(), lambda x: x + x.amax(0), lambda x: x - x.sum(-2, keepdim=True) * 0.1),
    *(lambda x: torch.softmax(x, -1), lambda x: x - x.mean(-1, keepdim=True), lambda x: x.flip(0)),
    *(lambda x: x.cumsum(0) * 0.2, lambda x: x.mT.contiguous().mT, lambda x: x + x.sum()),
]


def program(seed: int) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Return a random function of tensors, and some of them."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    stack = choose.choice([(ROWS,), (2, ROWS), (3, 2, ROWS)])
    of_all = (1,) * (len(stack) - 1)
    shapes = [(*stack, WIDTH), (*stack, WIDTH), (*stack, 1), (*of_all, 1, WIDTH), (WIDTH,), (), (*stack[:-1], 1, 1)]
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    inputs.append(torch.randn(*stack[:-1], 1, WIDTH, dtype=torch.float64))
    batch = stack[:-1] if choose.random() < 0.5 else ()  # weights of each matrix, or of all
    weights = [torch.randn(*batch, WIDTH, WIDTH, dtype=torch.float64) / WIDTH for _ in range(2)]
    steps: list[tuple[Any, ...]] = []
    for _ in range(choose.randint(4, 18)):
        kind = choose.choices(["product", "unary", "binary", "beside", "breaking"], [3, 5, 5, 3, 1])[0]
        picked = [choose.random() for _ in range(2)]
        table: Any = {"unary": UNARY, "binary": BINARY, "beside": BINARY, "breaking": BREAKING}.get(kind)
        steps.append((kind, picked, choose.choice(table) if table else choose.choice((0, 1)), choose.randint(2, 7)))
    kept = sorted(choose.sample(range(len(steps)), choose.randint(1, 3)))

    def function(*given: Tensor) -> list[Tensor]:
        *tensors, first, second = given
        values = tensors[:2]
        made = []
        for kind, picked, what, beside in steps:
            x, y = values[-1 - int(picked[0] * min(3, len(values)))], values[int(picked[1] * len(values))]
            if kind == "product":
                values.append(x @ (first, second)[what])
            elif kind == "binary":
                values.append(what(x, y))
            elif kind == "beside":
                values.append(what(x, tensors[beside]))
            else:
                values.append(what(x))
            made.append(values[-1])
        return [*(made[each] for each in kept), made[-1]]

    return function, (*inputs, *weights)


@pytest.fixture
def taking_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the search for kernels: the operators themselves refuse what has none."""
    monkeypatch.setattr(partitioner, "gain_of", lambda *_: Gain())


def checked(seed: int, is_compiled: bool) -> tuple[int, int]:
    """Check a random program, and return how many regions it has, and how many nodes these have beside products."""
    function, inputs = program(seed)
    module: GraphModule = make_fx(function, tracing_mode="fake")(*inputs)
    expected = function(*inputs)
    of_matrices = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
    products = [node for node in module.graph.nodes if node.target in of_matrices]
    found = partitioner.found_in(module.graph, Options(min_gain=0), compiling._inlined, is_compiled=is_compiled)
    module.recompile()
    with torch.no_grad():
        got = module(*inputs)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)
        assert x.stride() == y.stride()
    taken = {region.product for region in found.regions}
    assert {node.name for node in products if node.users} <= taken | set(found.left), found
    return len(found.regions), sum(len(region.fused) for region in found.regions)


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_random_programs(start: int, taking_all: None) -> None:
    counts = [checked(seed, is_compiled=bool(seed % 2)) for seed in range(start, start + 20)]
    regions, nodes = map(sum, zip(*counts, strict=True))
    assert regions >= 10 and nodes >= 20


@pytest.mark.thorough
@pytest.mark.parametrize("start", range(1000, 3000, 100))
def test_many_random_programs(start: int, taking_all: None) -> None:
    for seed in range(start, start + 100):
        checked(seed, is_compiled=bool(seed % 2))
