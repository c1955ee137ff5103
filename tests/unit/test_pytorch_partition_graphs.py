"""Partitions of graphs that are none of layers in a row, which regions are taken, and partitions as modules."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from partition_models import (
    ALL,
    Counting,
    Function,
    GatedMlp,
    Tied,
    compared,
    fused,
    some,
    taken,
)
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from pycutlass import errors
from pycutlass.device import Device
from pycutlass.pytorch import Options, compiling, partition
from pycutlass.pytorch.regions import gain
from pycutlass.pytorch.regions.partitioner import found_in

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


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


def test_random_numbers_are_drawn_in_the_same_order() -> None:
    def model(x: Tensor, w: Tensor) -> Any:
        y = x @ w
        first = functional.dropout(y, 0.5)  # which would have to move behind the second, where the region is whole
        second = functional.dropout(x, 0.5)
        return first, torch.relu(y) + second

    made = taken(model, some(8, 8), some(8, 8), train=True)
    assert made.regions and not any("add" in region.fused for region in made.regions)


def test_no_region_grows_behind_a_change_of_memory() -> None:
    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = torch.relu(x @ w)
        torch.ops.aten.copy_.default(b, b * 2)
        return y + b

    inputs = some(4, 8), some(8, 6), some(6)
    module = make_fx(model, tracing_mode="fake")(*inputs)
    found = found_in(module.graph, ALL, compiling._inlined)
    module.recompile()
    assert found.regions[0].fused == ("relu",) and "changes memory" in found.left["add"]
    assert_alike = torch.testing.assert_close
    assert_alike(module(*copy.deepcopy(inputs)), model(*copy.deepcopy(inputs)))


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


@pytest.mark.parametrize(
    ("rows", "dtype", "turned", "count"),
    [
        (16, "bfloat16", True, 1),  # few rows: begins while the kernel ahead of it ends
        (2, "float16", True, 1),  # by CUDA cores
        (16, "float16", False, 0),  # of which cuBLAS is faster
        (256, "bfloat16", True, 0),  # the same time as cuBLAS's
        (16, "float32", True, 0),  # of which cuBLAS has faster kernels
    ],
)
def test_products_alone_are_taken_where_cublas_is_slower(rows: int, dtype: str, turned: bool, count: int) -> None:
    kind = getattr(torch, dtype)
    x, w = some(rows, 2048, dtype=kind), some(2048, 2048, dtype=kind)
    made = partition(Function(lambda x, w: x @ (w.t() if turned else w)), (x, w), options={"sm": 90})
    assert len(made.regions) == count, made


def test_cublas_is_not_compared_with_tiles_that_functions_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        gpu = Device(0, name, 90, 132)
        monkeypatch.setattr(gain, "planned_for", lambda _, gpu=gpu: gpu)
        graph = make_fx(torch.mm, tracing_mode="fake")(
            some(16, 2048, dtype=torch.bfloat16), some(2048, 2048, dtype=torch.bfloat16).t()
        ).graph
        shares.append(found_in(graph, Options(), compiling._inlined, is_compiled=True).regions[0].gain)
    assert all(0.02 < share < 0.25 for share in shares), shares


def test_a_slower_kernel_than_cublas_needs_more_of_an_epilogue() -> None:
    shares = []
    for dtype in (torch.float32, torch.bfloat16):
        graph = make_fx(lambda x, w: torch.relu(x @ w), tracing_mode="fake")(
            some(2048, 2048, dtype=dtype), some(2048, 2048, dtype=dtype)
        ).graph
        found = found_in(graph, Options(sm=90, min_gain=1e-9), compiling._inlined, is_compiled=True)
        shares.append(found.regions[0].gain if found.regions else 0.0)
    assert shares[0] == 0.0 < shares[1]


def test_a_compiler_that_joins_the_rest_leaves_less_to_gain() -> None:
    program = make_fx(lambda x, w: torch.tanh(torch.relu(x @ w) * 2 + 1), tracing_mode="fake")
    gains = []
    for is_compiled in (False, True):
        graph = program(some(1024, 512, dtype=torch.float16), some(512, 512, dtype=torch.float16)).graph
        found = found_in(graph, Options(sm=90), compiling._inlined, is_compiled=is_compiled)
        gains.append(found.regions[0].gain)
    assert gains[0] > gains[1] > 0


@pytest.mark.parametrize(
    ("sm", "dtype", "least", "most"), [(80, "float16", 0.1, 1), (90, "float16", 0, 0), (90, "float32", 1e-3, 1)]
)
def test_convolutions_on_hopper_are_taken_where_they_gain(sm: int, dtype: str, least: float, most: float) -> None:
    """cuDNN's kernels are Hopper-native there, and ours are not."""
    kind = getattr(torch, dtype)
    graph = make_fx(lambda x, w: torch.relu(torch.conv2d(x, w, padding=1)), tracing_mode="fake")(
        some(32, 128, 28, 28, dtype=kind).to(memory_format=torch.channels_last), some(128, 128, 3, 3, dtype=kind)
    ).graph
    found = found_in(graph, Options(sm=sm, min_gain=1e-9), compiling._inlined, is_compiled=True)
    shares = [region.gain for region in found.regions] or [0.0]
    assert least <= shares[0] <= most, found.left


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
    with pytest.raises(errors.ArgumentError, match="an ExportedProgram says itself which extents"):
        partition(program, dynamic=True)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch about torch
def test_partitions_are_exported(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).eval(), some(4, 8)
    made = partition(model, x, options=ALL)
    with torch.no_grad():
        torch.export.save(torch.export.export(made, (x,)), tmp_path / "model.pt2")
        program = torch.export.load(tmp_path / "model.pt2")
    assert sum(node.target is torch.ops.pycutlass.fused_mm.default for node in program.graph.nodes) == 2
    compared(model, program.module(), x)


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
        ({"mode": "reduce_overhead"}, "mode must be .* Did you mean reduce-overhead"),
        ({"mode": ["max-autotune"]}, "mode must be"),
        ({"mode": "max-autotune", "rest": "eager"}, "which rest='eager' leaves out"),
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


def test_casts_of_autocast_are_part_of_a_partition() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).eval(), some(4, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made, expected = partition(model, x, options=ALL), model(x)
    with torch.no_grad():
        got = made(x)
    assert got.dtype is torch.bfloat16 and {region.problem.a.dtype for region in made.regions} == {"bfloat16"}
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=1e-2)
