"""Partitions and the backend of torch.compile on a GPU: against torch itself, in training, in CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from partition_models import BasicBlock, Bottleneck, Experts, Function, GatedMlp, TransformerBlock  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from pycutlass.pytorch import InductorPass, compiling, partition, register_autotuning  # noqa: E402

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float32: 1e-3}
pytestmark = [
    pytest.mark.usefixtures("compiles_anew"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the regions of each graph that is compiled, in a list that grows."""
    found: list[Any] = []
    made = compiling._with_regions

    def noted(graph: Any, options: Any) -> Any:
        result = made(graph, options)
        found.append(result.regions)
        return result

    monkeypatch.setattr(compiling, "_with_regions", noted)
    return found


def some(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def on_gpu(model: nn.Module, dtype: Any) -> Any:
    return copy.deepcopy(model).to("cuda", dtype).eval()


def assert_near(got: Any, model: nn.Module, *inputs: Any) -> None:
    """Compare a result with what the model makes in float64."""
    exact = copy.deepcopy(model).double()(*(each.double() for each in inputs))
    tolerance = TOLERANCE[got.dtype]
    scale = max(1.0, float(exact.detach().abs().max()))
    torch.testing.assert_close(got.double(), exact.to(got.device), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("model", [GatedMlp(64, 192), TransformerBlock(64, 2)], ids=["mlp", "block"])
def test_partition(model: nn.Module, dtype: Any) -> None:
    model, x = on_gpu(model, dtype), some(4, 32, 64, dtype=dtype)
    made = partition(model, x, options={"min_gain": 0})
    assert sum(made.counts.values()) >= 3
    with torch.no_grad():
        assert_near(made(x), model, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", [BasicBlock(64), Bottleneck(64, 32)], ids=["basic", "bottleneck"])
def test_convolutions(model: nn.Module, dtype: Any) -> None:
    model = on_gpu(model, dtype).to(memory_format=torch.channels_last)
    x = some(2, 64, 14, 14, dtype=dtype).to(memory_format=torch.channels_last)
    made = partition(model, x, options={"min_gain": 0})
    assert set(made.counts) == {"conv2d"} and not made.left
    with torch.no_grad():
        assert_near(made(x), model, x)
        model.get_parameter(next(name for name, _ in model.named_parameters() if "norm" in name)).data.mul_(2)
        assert_near(made(x), model, x)


def test_every_form_beside_a_product() -> None:
    def function(x: Any, w: Any, row: Any, column: Any, whole: Any, number: Any, mask: Any) -> Any:
        y = functional.gelu(x @ w * column + row) * number + whole
        return torch.where(mask, y, -1.0), y.float()

    inputs = some(40, 64), some(64, 48), some(48), some(40, 1), some(40, 48), some(1)[0], some(40, 48) > 0
    model = Function(function)
    made = partition(model, inputs, options={"min_gain": 0})
    (region,) = made.regions
    assert not made.left and len(region.outputs) == 2
    got, expected = made(*inputs), function(*(each.double() if each.is_floating_point() else each for each in inputs))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-2, atol=0.2)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_inference(mode: str | None, dtype: Any, seen: list[Any]) -> None:
    model = on_gpu(TransformerBlock(64, 2), dtype)
    made = torch.compile(model, backend="pycutlass", options={"min_gain": 0, "mode": mode})
    with torch.no_grad():
        for _ in range(4):  # the second is recorded, and others are replayed
            x = some(4, 32, 64, dtype=dtype)
            assert_near(made(x).clone(), model, x)
    assert len(seen) == 1 and any(region.fused for region in seen[0])


def test_any_number_of_rows_in_one_graph(seen: list[Any]) -> None:
    model = on_gpu(GatedMlp(64, 192), torch.bfloat16)
    made = torch.compile(model, backend="pycutlass", options={"min_gain": 0}, dynamic=True)
    with torch.no_grad():
        for rows in (2, 17, 64, 200, 1000, 3):
            x = some(rows, 64, dtype=torch.bfloat16)
            assert_near(made(x), model, x)
    assert len(seen) == 1


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_experts(mode: str | None, seen: list[Any]) -> None:
    model = on_gpu(Experts(functional.grouped_mm, 128, 256, 8), torch.bfloat16)
    made = torch.compile(model, backend="pycutlass", options={"min_gain": 0, "mode": mode})
    exact = copy.deepcopy(model).float()
    exact.product = torch.ops.pycutlass.grouped_mm
    with torch.no_grad():
        for _ in range(4):  # the second is recorded, and others are replayed, with other tokens for each expert
            x = some(300, 128, dtype=torch.bfloat16)
            expected = exact(x.float())
            got = made(x).float()
            # A near tie of the router is decided otherwise for a few tokens.
            apart = ((got - expected).abs().amax(-1) > 0.1 * expected.abs().max()).float().mean()
            assert float(apart) < 0.03
    assert [region.kind for region in seen[0]].count("grouped") == 3


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_training(mode: str | None, seen: list[Any]) -> None:
    model = on_gpu(TransformerBlock(64, 2), torch.bfloat16).train()
    other = copy.deepcopy(model).double()
    made = torch.compile(model, backend="pycutlass", options={"min_gain": 0, "mode": mode})
    for _ in range(3):
        x = some(4, 32, 64, dtype=torch.bfloat16)
        loss, exact = made(x).float().square().mean(), other(x.double()).square().mean()
        loss.backward()
        exact.backward()
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert one.grad is not None and two.grad is not None
            scale = max(1e-3, float(two.grad.abs().max()))
            torch.testing.assert_close(one.grad.double(), two.grad, rtol=0.1, atol=0.1 * scale)
            one.grad = two.grad = None
    forward, backward = seen
    assert any("silu" in region.fused for region in forward) and backward


def test_by_default_what_is_predicted_to_gain_is_taken(seen: list[Any]) -> None:
    model = on_gpu(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)), torch.float16)
    made, x = torch.compile(model, backend="pycutlass"), some(2048, 1024)
    with torch.no_grad():
        assert_near(made(x), model, x)
    assert [region.fused for region in seen[0]] == [("gelu",)] and seen[0][0].gain > 0


def test_the_pass_of_inductor() -> None:
    model, passing = on_gpu(GatedMlp(64, 192), torch.float16), InductorPass({"min_gain": 0})
    made, x = torch.compile(model, options={"post_grad_custom_pre_pass": passing}), some(40, 64)
    with torch.no_grad():
        assert_near(made(x), model, x)
    assert len(passing.regions) == 3


def test_scaled_products_of_8_bits() -> None:
    a, b = (some(*shape).to(torch.float8_e4m3fn) for shape in ((64, 128), (96, 128)))
    scales = torch.rand(64, 1, device="cuda"), torch.rand(1, 96, device="cuda")
    bias = some(96, dtype=torch.bfloat16)

    def function(a: Any, b: Any, of_rows: Any, of_columns: Any, bias: Any) -> Any:
        made = torch._scaled_mm(a, b.t(), of_rows, of_columns, bias, out_dtype=torch.bfloat16)
        return functional.silu(made)

    model = Function(function)
    made = partition(model, (a, b, *scales, bias), options={"min_gain": 0})
    assert [region.fused for region in made.regions] == [("silu",)]
    exact = functional.silu(a.double() @ b.double().t() * scales[0].double() * scales[1].double() + bias.double())
    torch.testing.assert_close(made(a, b, *scales, bias).double(), exact, rtol=2e-2, atol=2e-2)


@pytest.fixture
def _without_choices_afterwards() -> Iterator[None]:
    from torch._inductor import lowering

    with torch.compiler.config.patch(cache_key_tag=""):
        yield
    for name in ("mm", "bmm", "addmm"):
        getattr(lowering, "user_lowerings", {}).pop(getattr(torch.ops.aten, name).default, None)


@pytest.mark.usefixtures("_without_choices_afterwards")
@pytest.mark.parametrize("is_ours", [True, False, None])
def test_inductor_chooses_between_products_of_ours_and_of_aten(is_ours: bool | None) -> None:
    def products(x: Any, weight: Any, bias: Any) -> Any:
        return torch.relu(x @ weight), torch.addmm(bias, x, weight)

    from torch._inductor.virtualized import V

    # torch 2.11 lacks what lets a choice call the operator that it stands for: its own products stay.
    assert register_autotuning([64]) is hasattr(V, "active_user_lowering_ops")
    weight, bias = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((128, 96), (96,)))
    compiled = torch.compile(products, dynamic=True)
    forced = "test_configs.force_custom_op_decomposition"
    is_known = hasattr(torch._inductor.config.test_configs, forced.partition(".")[2])
    with torch._inductor.config.patch({forced: is_ours} if is_known else {}):
        for rows in (256, 16):
            x = torch.randn(rows, 128, device="cuda", dtype=torch.float16)
            for made, wanted in zip(compiled(x, weight, bias), products(x, weight, bias), strict=True):
                torch.testing.assert_close(made, wanted, rtol=TOLERANCE[x.dtype], atol=6e-2)
