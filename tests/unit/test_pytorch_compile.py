"""The backend of torch.compile, and the pass of Inductor: the same results, in training too."""

from __future__ import annotations

import copy
import operator
import re
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from descriptions import run_python
from partition_models import BasicBlock, Bottleneck, Counting, Function, GatedMlp, Tied, TransformerBlock
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import pycutlass.pytorch
from pycutlass import errors
from pycutlass.pytorch import InductorPass, Options, compiling
from pycutlass.pytorch.regions.capture import with_own_statistics
from pycutlass.pytorch.regions.region import Region
from pycutlass.trials import Database

Tensor = torch.Tensor
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles for a CPU by g++")
RESTS = ["eager", pytest.param("inductor", marks=needs_compiler)]
#: Of models whose backward pass takes Inductor a minute or more, where smaller ones go the same way each time.
RESTS_OF_LARGE = ["eager", pytest.param("inductor", marks=[needs_compiler, pytest.mark.thorough])]
pytestmark = [
    pytest.mark.usefixtures("compiles_anew"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of torch about torch
]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[Region]]:
    """Return the regions of each graph that is compiled, in a list that grows."""
    found: list[list[Region]] = []
    made = compiling._with_regions

    def noted(graph: Any, options: Any) -> Any:
        result = made(graph, options)
        found.append(result.regions)
        return result

    monkeypatch.setattr(compiling, "_with_regions", noted)
    return found


def some(*shape: int) -> Tensor:
    return torch.randn(*shape)


def compiled(model: Any, rest: str, **how: Any) -> Any:
    return torch.compile(model, backend="pycutlass", options={"min_gain": 0, "rest": rest}, **how)


def gradients(model: Any, own: nn.Module, *inputs: Tensor) -> list[Tensor]:
    given = [each.clone().requires_grad_() for each in inputs]
    made = model(*given)
    return [made, *torch.autograd.grad(made.square().sum(), (*own.parameters(), *given))]


def assert_alike(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rest", RESTS)
def test_inference_with_extents_that_change(rest: str, seen: list[list[Region]]) -> None:
    model = TransformerBlock().eval()
    made = compiled(model, rest, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 7):
            x = some(batch, 6, 16)
            assert_alike(made(x), model(x))
    assert len(seen) == 1  # for all of them
    fused = {region.product: region.fused for region in seen[0]}
    assert any("silu" in nodes for nodes in fused.values()) and len(fused) >= 7
    assert any(isinstance(extent, str) for region in seen[0] for extent in region.problem.size)


@pytest.mark.parametrize("rest", RESTS)
def test_training(rest: str, seen: list[list[Region]]) -> None:
    assert_gradients_are_alike(GatedMlp(), rest, seen)


@pytest.mark.parametrize("rest", RESTS_OF_LARGE)
def test_training_of_a_block(rest: str, seen: list[list[Region]]) -> None:
    assert_gradients_are_alike(TransformerBlock(), rest, seen)


def assert_gradients_are_alike(model: nn.Module, rest: str, seen: list[list[Region]]) -> None:
    x = some(2, 6, 16)
    model = copy.deepcopy(model).train()
    assert_alike(gradients(compiled(model, rest), model, x), gradients(model, model, x))
    forward, backward = seen
    assert forward and any("silu_backward" in region.fused for region in backward)


@pytest.mark.parametrize("rest", RESTS)
def test_training_steps(rest: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 8)).train()
    other = copy.deepcopy(model)
    x, wanted = some(4, 8), some(4, 8)
    for each, called in ((model, compiled(model, rest)), (other, other)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (called(x) - wanted).square().mean().backward()
            optimizer.step()
    for x, y in zip(model.parameters(), other.parameters(), strict=True):
        assert_alike(x, y)


@pytest.mark.parametrize("rest", RESTS)
def test_convolutions_with_batch_norms(rest: str, seen: list[list[Region]]) -> None:
    model, x = BasicBlock().eval(), some(2, 8, 6, 6)
    made = compiled(model, rest)
    with torch.no_grad():
        assert_alike(made(x), model(x))
        model.first_norm.weight.data.mul_(2)  # what a batch norm multiplies by follows its weights
        assert_alike(made(x), model(x))
    assert sorted(len(region.fused) for region in seen[0]) == [3, 4]


@pytest.mark.parametrize("rest", RESTS)
def test_batch_norms_in_training(rest: str) -> None:
    model, x = BasicBlock().train(), some(2, 8, 6, 6)
    other = copy.deepcopy(model)
    assert_alike(gradients(compiled(model, rest), model, x), gradients(other, other, x))
    assert_alike(dict(model.named_buffers()), dict(other.named_buffers()))


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("model", [Tied(), Counting()], ids=["tied", "counting"])
def test_weights_and_buffers_that_change(model: Any, rest: str) -> None:
    model = copy.deepcopy(model).eval()
    other = copy.deepcopy(model)
    made, x = compiled(model, rest), some(4, 8)
    with torch.no_grad():
        for _ in range(3):
            assert_alike(made(x), other(x))
            for each in (model, other):
                for parameter in each.parameters():
                    parameter.mul_(1.5)


@pytest.mark.parametrize("rest", RESTS)
def test_graphs_that_break_and_depend_on_data(rest: str) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(x @ w)
        if y.sum() > 0:
            y = y[y.sum(-1) > 0] @ w.T
        return torch.tanh(y.add_(1))

    model = Function(function)
    made = compiled(model, rest)
    for x in (some(4, 8), -some(4, 8).abs()):
        w = some(8, 8)
        assert_alike(made(x, w), model(x, w))


@pytest.mark.parametrize("rest", RESTS)
def test_autocast(rest: str, seen: list[list[Region]]) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)).eval()
    made, x = compiled(model, rest), some(4, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, expected = made(x), model(x)
    assert got.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=1e-2)
    assert {region.problem.a.dtype for region in seen[0]} == {"bfloat16"}


@needs_compiler
@pytest.mark.parametrize("is_training", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_images_whose_extents_change_in_strided_convolutions(is_training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.ELU(), nn.Conv2d(8, 4, 3, 2, 1), nn.Tanh())
    made = compiled(model, "inductor", dynamic=True)
    for x in (some(2, 4, 16, 16), some(3, 4, 18, 22)):
        if is_training:
            assert_alike(gradients(made, model, x), gradients(model, model, x))
        else:
            with torch.no_grad():
                assert_alike(made(x), model(x))


@needs_compiler
def test_what_has_no_region_is_compiled_as_inductor_compiles_it() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Sigmoid(), nn.Linear(16, 8))
    x = some(4, 8)

    def code(**how: Any) -> list[str]:
        torch._dynamo.reset()
        call = torch.compile(model, **how)
        with torch.no_grad():
            _, written = run_and_get_code(lambda: call(x))
        return [re.sub(r"# AOT ID: .*|[0-9a-z]{40,}", "", each) for each in written]

    assert code(backend="pycutlass", options={"min_gain": 0.99}) == code()


@needs_compiler
def test_regions_of_backward_are_found_where_forward_has_none(seen: list[list[Region]]) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(1024, 1024)).bfloat16()
    made = torch.compile(model, backend="pycutlass", options={"sm": 90})
    made(some(2048, 1024).bfloat16().requires_grad_()).sum().backward()
    assert [len(regions) for regions in seen] == [0, 1]


def test_passes_of_a_user_change_a_model_without_a_region_once() -> None:
    def with_one_more(graph: torch.fx.Graph) -> None:
        node = next(each for each in graph.nodes if each.op == "call_method" and each.target == "sin")
        with graph.inserting_after(node):
            more = graph.call_function(operator.add, (node, 1.0))
        node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)

    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos().sin(), (x.sin(),))

    x = torch.ones(4)
    with torch._inductor.config.patch(pre_grad_custom_pass=with_one_more), torch.no_grad():
        made = torch.compile(function, backend="pycutlass")(x)
    assert_alike(made, (x.sin() + 1).sin() + 1)


@needs_compiler
def test_a_model_without_a_region_whose_parameters_are_discarded() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh()).eval(), some(2, 3, 6, 6)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True, freezing_discard_parameters=True):
        expected = model(x)
        assert_alike(torch.compile(model, backend="pycutlass", options={"min_gain": 0.99})(x), expected)


@needs_compiler
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled:UserWarning")
def test_the_pass_of_inductor() -> None:
    model, seen = GatedMlp().eval(), InductorPass({"min_gain": 0})
    made, x = torch.compile(model, options={"post_grad_custom_pre_pass": seen}), some(4, 16)
    with torch.no_grad():
        assert_alike(made(x), model(x))
    assert len(seen.regions) == 3 and max(len(region.fused) for region in seen.regions) >= 2
    assert seen.graphs == 1
    for kept, graphs in ((False, 1), (True, 0)):  # of what Inductor finds in its cache the pass hears nothing
        torch._dynamo.reset()
        again = InductorPass({"min_gain": 0})
        with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=not kept):
            assert_alike(torch.compile(model, options={"post_grad_custom_pre_pass": again})(x), model(x))
        assert again.graphs == graphs and bool(again.regions) is bool(graphs)


def test_passes_are_told_apart() -> None:
    first, second = InductorPass(), InductorPass({"min_gain": 0.5})
    assert first.uuid() == InductorPass().uuid() != second.uuid()
    copied = copy.deepcopy(second)
    assert copied.options == Options(min_gain=0.5)


def test_passes_for_other_gpus_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for target in ("sm_80", "sm_90a"):
        monkeypatch.setenv("PYCUTLASS_TARGET", target)
        found.add(InductorPass().uuid())
    assert len(found) == 2 and len({InductorPass({"sm": sm}).uuid() for sm in (80, 90)}) == 2


@pytest.mark.parametrize("rest", RESTS)
def test_a_database_among_the_options(rest: str, tmp_path: Path) -> None:
    named, model, x = Database(tmp_path / "times.db"), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), some(4, 8)
    options: Any = {"min_gain": 0, "rest": rest, "database": named, "threads": 2}
    with torch.no_grad():
        assert_alike(torch.compile(model, backend="pycutlass", options=options)(x), model(x))
    seen = InductorPass({"database": named})
    assert seen.uuid() == InductorPass().uuid() and copy.deepcopy(seen).options.database.path == named.path


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that such tensors are a prototype
def test_ragged_axes(rest: str, seen: list[list[Region]]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    made = compiled(model, rest)
    for rows in ((3, 5), (4, 1, 7)):
        x = torch.nested.nested_tensor([some(each, 8) for each in rows], layout=torch.jagged)
        with torch.no_grad():
            assert_alike(made(x).values(), model(x).values())
    assert [region.fused for region in seen[0]] == [("relu",)]


@needs_compiler
def test_a_pass_of_the_users_stays() -> None:
    called: list[Any] = []
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), some(4, 8)
    with torch.no_grad(), torch._inductor.config.patch(post_grad_custom_pre_pass=called.append):
        assert_alike(compiled(model, "inductor")(x), model(x))
    assert len(called) == 1
    own, given = compiling._Marked(Options(), None), compiling._Marked(Options(), InductorPass())
    assert own.uuid() != given.uuid() and compiling._Marked(Options(), print).uuid() is None


@needs_compiler
def test_caches_tell_options_apart(seen: list[list[Region]]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), some(4, 8)
    for number in (0.0, 0.5):
        torch._dynamo.reset()
        options: Any = {"min_gain": number}
        made = torch.compile(model, backend="pycutlass", options=options)
        with torch.no_grad():
            assert_alike(made(x), model(x))
    assert len(seen) == 2


@pytest.mark.parametrize("rest", RESTS)
def test_numbers_that_follow_from_extents_compile_nothing_again(rest: str, seen: list[list[Region]]) -> None:
    layer = nn.Linear(8, 8)

    def scaled(x: Tensor, count: int) -> Tensor:
        return layer(x).relu() / x.shape[0] + count

    made = compiled(scaled, rest, dynamic=True)
    with torch.no_grad():
        for rows in (5, 9, 17):
            x = some(rows, 8)
            assert_alike(made(x, rows + 30), scaled(x, rows + 30))
    assert [len(region.fused) for (region,) in seen] == [3 if rest == "eager" else 1]


PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import torch, pycutlass.pytorch
from torch._dynamo.utils import counters
torch.manual_seed(0)
model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Softmax(-1)), torch.ones(4, 8)
with torch.no_grad():
    compiled = torch.compile(model, backend="pycutlass", options={"min_gain": 0})
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@needs_compiler
def test_another_process_takes_what_was_compiled() -> None:
    assert run_python(PROGRAM, hash_seed=1).split() == ["0", "1"]
    assert run_python(PROGRAM, hash_seed=2).split() == ["1", "0"]


def test_the_backend_has_a_name() -> None:
    assert "pycutlass" in torch._dynamo.list_backends()
    text = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("pycutlass = ") and "compile_graph" in each)
    point = EntryPoint("pycutlass", line.partition(" = ")[2].strip('"'), "torch_dynamo_backends")
    assert point.load() is pycutlass.pytorch.compile_graph


def test_options_that_are_none() -> None:
    made = torch.compile(nn.Linear(8, 8), backend="pycutlass", options={"min_gian": 0})
    with pytest.raises(Exception, match="is no option of a partition") as caught:
        made(some(4, 8))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), errors.ArgumentTypeError)


@pytest.mark.parametrize("rest", RESTS_OF_LARGE)
@pytest.mark.parametrize("model", [BasicBlock(), Bottleneck()], ids=["basic", "bottleneck"])
def test_gradients_through_batch_norms_in_eval_mode(model: nn.Module, rest: str, seen: list[list[Region]]) -> None:
    model, x = copy.deepcopy(model).eval(), some(2, 8, 6, 6)
    assert_alike(gradients(compiled(model, rest), model, x), gradients(model, model, x))
    forward = [region for region in seen[0] if region.kind == "conv2d"]
    assert forward and all(any("batch_norm" in name for name in region.fused) for region in forward)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.thorough)], ids=str)
def test_batch_norms_that_are_taken_apart(dtype: torch.dtype) -> None:
    model, x, passing = Bottleneck().eval().to(dtype), some(2, 8, 6, 6).to(dtype), InductorPass({"min_gain": 0})
    made = torch.compile(model, options={"post_grad_custom_pre_pass": passing})
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), rtol=tolerance, atol=tolerance)
    assert len(passing.regions) == 4 and not passing.left
    assert all([each.form for each in region.inputs].count("row") == 4 for region in passing.regions)


def test_what_batch_norms_leave_for_backward_on_a_gpu() -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Any:
        return torch.ops.aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, 0.1, 1e-3)

    shapes = (2, 3, 4, 4), (3,), (3,), (3,), (3,)
    with FakeTensorMode():  # in which tensors are on a GPU that is not here
        graph = make_fx(function)(*(torch.empty(shape, device="cuda") for shape in shapes))
    with_own_statistics(graph.graph)
    graph.recompile()
    taken = [node.args[1] for node in graph.graph.nodes if node.target is operator.getitem]
    assert taken == [0]
    given = [some(*shape) for shape in shapes[:4]] + [torch.rand(3) + 0.5]
    made, mean, scale = graph(*given)
    assert_alike(made, function(*given)[0])
    assert_alike((mean, scale), (given[3], (given[4] + 1e-3).rsqrt()))
