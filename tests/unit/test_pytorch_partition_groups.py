"""Groups of products in models: regions of experts, and rows that belong to none of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from partition_models import ALL, Experts, Function, fused, some, taken
from torch.nn import functional

import pycutlass.pytorch
from pycutlass.errors import ArgumentError
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.pytorch import GroupedLinear, InductorPass, explain, libraries, partition
from pycutlass.pytorch.regions.plans import inputs_of, plan_of

BF16 = torch.bfloat16
OURS = torch.ops.pycutlass.grouped_mm
OFFS = torch.tensor([3, 3, 8], dtype=torch.int32)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles for a CPU by g++")
RESTS = ["eager", pytest.param("inductor", marks=needs_compiler)]
pytestmark = [
    pytest.mark.usefixtures("compiles_anew"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def assert_near(got: Any, expected: Any) -> None:
    """Compare sums of two experts, of bfloat16 for the products of torch, whose intermediates are rounded as well."""
    tolerance = 3e-2 if got.dtype is BF16 else 1e-4
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


MODELS = {"torch": (functional.grouped_mm, BF16), "ours": (OURS, torch.float32)}


@pytest.mark.parametrize("whose", MODELS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_experts(whose: str, dynamic: bool) -> None:
    product, dtype = MODELS[whose]
    model, x = Experts(product).to(dtype).eval(), some(12, 16, dtype=dtype)
    made = partition(model, x, dynamic=dynamic, options=ALL)
    assert made.counts == {"mm": 1, "grouped": 3}
    of_groups = [region for region in made.regions if region.kind == "grouped"]
    operators = sorted(tuple(name.rstrip("_0123456789") for name in each.fused) for each in of_groups)
    assert operators == [(), ("mul",), ("silu", "mul")]
    down = next(each for each in of_groups if len(each.fused) == 1)
    assert [each.form for each in down.inputs] == ["column"]
    with torch.no_grad():
        for rows in (12, 3, 30) if dynamic else (12,):
            x = some(rows, 16, dtype=dtype)
            assert_near(made(x), model(x))


@pytest.mark.parametrize("rest", RESTS)
def test_experts_that_are_compiled(rest: str) -> None:
    model, x = Experts(functional.grouped_mm).to(BF16).eval(), some(12, 16, dtype=BF16)
    made = torch.compile(model, backend="pycutlass", options={"min_gain": 0, "rest": rest})
    with torch.no_grad():
        assert_near(made(x), model(x))


@needs_compiler
def test_experts_in_the_pass_of_inductor() -> None:
    model, x, seen = Experts(functional.grouped_mm).to(BF16).eval(), some(12, 16, dtype=BF16), InductorPass(ALL)
    with torch.no_grad():
        assert_near(torch.compile(model, options={"post_grad_custom_pre_pass": seen})(x), model(x))
    assert sum(region.kind == "grouped" for region in seen.regions) == 3


def test_gradients_of_experts() -> None:
    model, x = Experts(OURS), some(12, 16)
    made = torch.compile(model, backend="pycutlass", options={"min_gain": 0, "rest": "eager"})
    results = []
    for each in (made, model):
        result = each(x)
        results.append([result, *torch.autograd.grad(result.square().sum(), tuple(model.parameters()))])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


def test_rows_behind_the_last_group_stay_zero() -> None:
    x, w, rows = some(10, 8), some(3, 8, 16), some(10, 16)

    def scaled(x: Any, w: Any, offs: Any, rows: Any) -> Any:
        y = functional.gelu(OURS(x, w, offs=offs)) * rows
        return y, y.view(5, 2, 16) * 2

    made = taken(scaled, x, w, OFFS, rows)
    assert len(fused(made)[0]) == 5 and not made.left
    assert not made(x, w, OFFS, rows)[0][8:].any()

    def shifted(x: Any, w: Any, offs: Any, rows: Any) -> Any:
        return torch.relu(OURS(x, w, offs=offs)) + rows

    made = taken(shifted, x, w, OFFS, rows)
    assert fused(made) == [("grouped_mm", "relu")]
    assert "rows behind the last group" in made.left["add"]
    torch.testing.assert_close(made(x, w, OFFS, rows)[8:], rows[8:])


def test_what_torch_leaves_undefined_may_be_anything() -> None:
    x, w, rows = some(8, 8, dtype=BF16), some(3, 8, 16, dtype=BF16), some(8, 16, dtype=BF16)
    made = taken(lambda x, w, offs, rows: torch._grouped_mm(x, w, offs).sigmoid() + rows, x, w, OFFS, rows)
    assert fused(made) == [("_grouped_mm", "sigmoid", "add")]


@pytest.mark.parametrize("bias", [False, True])
def test_layers_with_a_bias_for_each_group(bias: bool) -> None:
    layer = GroupedLinear(3, 8, 16, bias=bias)
    made = taken(lambda x, w, b, offs: OURS(x, w.mT, offs=offs, bias=b).relu(), some(10, 8), layer.weight.detach(),
                 None if layer.bias is None else layer.bias.detach(), OFFS)  # fmt: skip
    assert [region.fused for region in made.regions] == [("relu",)]
    assert [each.shape for each in made.regions[0].inputs] == ([(3, 16)] if bias else [])


def test_stacks_are_a_batch() -> None:
    made = taken(lambda x, w: OURS(x, w).relu(), some(3, 4, 8), some(3, 8, 16))
    assert made.counts == {"bmm": 1} and fused(made)[0][1:] == ("relu",)


def test_what_is_left() -> None:
    x, y = some(8, 16), some(8, 16)
    made = taken(lambda x, y, offs: OURS(x.T, y, offs=offs).relu(), x, y, OFFS)
    assert not made.regions
    model = taken(lambda x, w, offs: torch._grouped_mm(x, w, offs).float().sum(-1), some(8, 8, dtype=BF16),
                  some(3, 8, 16, dtype=BF16), OFFS)  # fmt: skip
    assert "reduces results of groups" in model.left["sum_1"]


def test_by_default_what_is_predicted_to_gain_is_taken() -> None:
    with torch.device("meta"):
        model, x = Experts(functional.grouped_mm, 2048, 4096, 64).to(BF16), torch.empty(4096, 2048, dtype=BF16)
        few = Experts(functional.grouped_mm, 64, 64, 64).to(BF16)
    made = partition(model, x, options={"sm": 90})
    assert [region.fused for region in made.regions if region.kind == "grouped"] == [(), ("silu", "mul"), ("mul_1",)]
    assert all(region.gain is not None and region.gain > 0.02 for region in made.regions)
    assert not partition(few, torch.empty(64, 64, dtype=BF16, device="meta"), options={"sm": 90}).counts.get("grouped")


def test_plans_and_inputs_for_tuning() -> None:
    made = partition(Experts(OURS), (some(12, 16),), options=ALL)
    region = next(each for each in made.regions if each.kind == "grouped")
    plan = plan_of(region, {})
    assert isinstance(plan, GroupedGemm) and plan.is_on_device
    module: Any = made.get_submodule(region.name)
    given = inputs_of(module.fused.graph, {}, "cpu")
    (offs,) = (each for each in given if each.dtype is torch.int32)
    assert offs.tolist() == [6, 12, 18, 24]
    for got, expected in zip(module.fused(*given), module.plain(*given), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert "in 4 groups" in str(explain(made))


def test_libraries_are_for_other_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = Function(lambda x, w, offs: OURS(x, w, offs=offs).relu()), (some(8, 8), some(3, 8, 16), OFFS)
    made = partition(model, inputs, options=ALL)
    with pytest.raises(ArgumentError, match="groups run as they were in the model"):
        pycutlass.pytorch.build(made, path=tmp_path / "kernels.so")
    monkeypatch.setattr(libraries, "load_library", lambda path: {})
    monkeypatch.setattr(libraries, "embedded", lambda path: None)
    loaded = pycutlass.pytorch.load("kernels.so", made)
    assert torch.equal(loaded(*inputs), model(*inputs))
    module: Any = loaded.get_submodule("pycutlass_0")
    assert OURS.default in [node.target for node in module.fused.graph.nodes]


def test_what_a_library_leaves_out_is_said_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    model = Experts(OURS).eval()
    made = partition(model, some(12, 16), options=ALL)
    groups = [each.name for each in made.regions if each.kind == "grouped"]
    assert len(groups) == 3 and len(made.regions) == 4
    plans: dict[str, Any] = {}
    monkeypatch.setattr(libraries, "export_library", lambda given, *_, **__: plans.update(given))
    for _ in range(2):
        pycutlass.pytorch.build(made, path=tmp_path / "kernels.so")
    monkeypatch.setattr(libraries, "load_library", lambda path: {})
    monkeypatch.setattr(libraries, "embedded", lambda path: None)
    monkeypatch.setattr(libraries, "_kernel_of", lambda *_: None)
    monkeypatch.setattr(libraries, "_with", lambda kernel, given: given)
    loaded, x = pycutlass.pytorch.load("kernels.so", made), some(12, 16)
    with torch.no_grad():
        assert_near(loaded(x), model(x))
        path, _, name = next(iter(dict(model.named_parameters()))).rpartition(".")
        setattr(model.get_submodule(path), name, torch.nn.Parameter(torch.zeros(1)))
        with pytest.raises(ArgumentError, match="of the model was replaced by another tensor"):
            loaded(x)
    lines = [each for each in said() if "kernels.so has no kernel for" in each]
    assert len(plans) == 1 and len(lines) == 3
    for line in lines:
        assert all(f"{name} (" in line for name in groups) and "grouped_mm + silu + mul" in line
        assert "tables of addresses and sizes" in line and "as the model did" in line


def test_nothing_is_said_of_a_library_for_all_regions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    made = partition(torch.nn.Linear(8, 8), some(4, 8), options=ALL)
    monkeypatch.setattr(libraries, "export_library", lambda *_, **__: None)
    pycutlass.pytorch.build(made, path=tmp_path / "kernels.so")
    assert said() == []
