"""Which products are regions, of those that torch has several of; all others are listed with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pycutlass.pytorch import partition
from pycutlass.pytorch.regions.products import product_of

Tensor = torch.Tensor
F8 = torch.float8_e4m3fn
GENERATOR = torch.Generator().manual_seed(0)
SQUARE = torch.randn(16, 16, generator=GENERATOR)
X = torch.randn(8, 16, generator=GENERATOR)
TENSOR, ROWS = 0, 1  # of torch's ScalingType
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


class Module(nn.Module):
    """A function of inputs and weights."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(SQUARE.clone())

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.weight, *inputs)


def parted(function: Callable[..., Tensor], *inputs: Tensor) -> Any:
    return partition(Module(function).eval(), inputs, options={"min_gain": 0})


def scaled(weight: Tensor, x: Tensor, of_x: Tensor, of_weight: Tensor, recipe: int = TENSOR) -> Tensor:
    how = [recipe], []
    made = torch._scaled_mm_v2(
        x.to(F8), weight.to(F8).t(), [of_x], *how, [of_weight], *how, bias=None, out_dtype=torch.bfloat16
    )
    return functional.relu(made)


@pytest.mark.skipif(not hasattr(torch, "_scaled_mm_v2"), reason="torch has had it since 2.10")
@pytest.mark.parametrize("shapes", [((), ()), ((1, 1), (1,)), ((8, 1), (1, 16))])
def test_scaled_products(shapes: Any) -> None:
    scales = [torch.rand(shape, generator=GENERATOR) + 0.5 for shape in shapes]
    recipe = ROWS if shapes[0] == (8, 1) else TENSOR

    def function(*given: Tensor) -> Tensor:
        return scaled(*given, recipe=recipe)

    made = parted(function, X, *scales)
    assert [region.fused for region in made.regions] == [("relu",)] and not made.left
    with torch.no_grad():
        torch.testing.assert_close(made(X, *scales), function(SQUARE, X, *scales), rtol=2e-2, atol=2e-2)


def node_of(name: str, **given: Any) -> torch.fx.Node:
    """Return a node of a graph that was not traced, since torch computes what it calls on GPUs alone."""
    graph, operator = torch.fx.Graph(), getattr(torch.ops.aten, name).default
    shapes = {"self": (8, 2048), "mat2": (2048, 16)}
    dtypes = {"self": F8, "mat2": F8}

    def placed(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [placed(key, each) for each in value]
        if not isinstance(value, tuple):
            return value
        node = graph.placeholder(f"{key}_{len(graph.nodes)}")
        node.meta["val"] = torch.empty(value, dtype=dtypes.get(key, torch.float32), device="meta")
        return node

    node = graph.call_function(operator, (), {key: placed(key, value) for key, value in {**shapes, **given}.items()})
    node.meta["val"] = torch.empty(8, 16, dtype=torch.bfloat16, device="meta")
    return node


def second(scale_a: Any, scale_b: Any, recipe: int, **more: Any) -> torch.fx.Node:
    lists = {"recipe_a": [recipe], "swizzle_a": [], "recipe_b": [recipe], "swizzle_b": [], "bias": None}
    return node_of("_scaled_mm_v2", scale_a=scale_a, scale_b=scale_b, **lists, out_dtype=torch.bfloat16, **more)


@pytest.mark.skipif(not hasattr(torch, "_scaled_mm_v2"), reason="torch has had it since 2.10")
def test_scales_of_blocks_are_none_of_an_epilogue() -> None:
    """Though theirs may be the shape of the result, as here of 16 columns and 16 blocks of 128."""
    assert not isinstance(product_of(second([(8, 1)], [(1, 16)], ROWS)), str)
    blocks = (8, 16), (16, 16)
    refused = (
        node_of("_scaled_mm", scale_a=blocks[0], scale_b=blocks[1]),
        second([blocks[0]], [blocks[1]], 4),
        second([(8, 1)], [(1, 16)], 4),
        second([(8, 1), ()], [(1, 16), ()], ROWS),
        second([(16,)], [(8,)], ROWS),
    )
    assert [product_of(each) for each in refused] == [
        "its scales are those of blocks, which no epilogue multiplies by"
    ] * len(refused)
    assert product_of(second([(8, 1)], [(1, 16)], ROWS, contraction_dim=[1, 0])) == (
        "it says along which axes it sums up"
    )


@pytest.mark.skipif("dtype" not in torch.ops.aten.addmm.overloads(), reason="torch has no such addmm")
def test_a_sum_that_names_its_type() -> None:
    def function(weight: Tensor, c: Tensor, a: Tensor) -> Tensor:
        return functional.relu(torch.addmm(c, a, weight.half(), out_dtype=torch.float32))

    (region,) = parted(function, X, X.half()).regions
    assert region.kind == "mm" and region.fused == ("relu",) and region.problem.d.dtype == "float32"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda w, x: torch.sparse.mm(torch.eye(8).to_sparse(), x @ w), "multiplies a sparse tensor"),
        (lambda w, x: torch._addmm_activation(w[0], x, w), "applies its activation itself"),
        (lambda w, x: torch.addbmm(w[:8], x[None], w[None]), "adds up a batch of products"),
        (lambda w, x: torch.tensordot(x, w, 1), "is taken apart into products"),
        (lambda w, x: torch.inner(x, w), "is taken apart into products"),
        (lambda w, x: torch.linalg.multi_dot([x, w, w]), "is taken apart into products"),
        (lambda w, x: torch.outer(x[0], w[0]), "multiplies two vectors"),
        (lambda w, x: torch.cdist(x, w), "is no product of two matrices"),
        (lambda w, x: functional.conv1d(x[None], w[:, :8, None], padding="same"), "convolves along one axis"),
        (lambda w, x: torch.rnn_tanh_cell(x, x, w, w), "is a recurrent layer"),
    ],
)
def test_products_that_are_left_have_a_reason(function: Callable[..., Tensor], reason: str) -> None:
    made = parted(function, X)
    assert any(reason in each for each in made.left.values()), made
    with torch.no_grad():
        torch.testing.assert_close(made(X), function(SQUARE, X))


def test_graphs_in_a_graph_have_a_reason() -> None:
    """Regions are not looked for there, whether they have products or none."""

    def function(weight: Tensor, x: Tensor) -> Any:
        made = functional.relu(x @ weight)
        return torch.cond(made.sum() > 0, lambda y: functional.gelu(y @ weight), lambda y: y - 1, (made,))

    made = parted(function, X)
    assert len(made.regions) == 1
    assert "cond runs graphs of its own, in which no regions are looked for" in made.left.values()
    with torch.no_grad():
        torch.testing.assert_close(made(X), function(SQUARE, X), rtol=1e-4, atol=1e-4)


def test_attention_that_is_written_as_a_function_has_a_reason() -> None:
    attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention

    def function(weight: Tensor, x: Tensor) -> Any:
        given = (x @ weight.detach())[None, None]
        return attention(given, given, given)

    assert any(
        each.endswith("is attention, which torch computes in one kernel") for each in parted(function, X).left.values()
    )
