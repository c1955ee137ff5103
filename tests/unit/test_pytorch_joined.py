"""What regions leave to a compiler that joins the rest, and kernels that are compiled together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import pycutlass.pytorch
from pycutlass.pytorch import Options, compiling
from pycutlass.pytorch.regions import plans
from pycutlass.pytorch.regions.partitioner import Found

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of torch about torch
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles for a CPU by g++"),
]


class Normed(nn.Module):
    """A sum that is the residual of later, and that is normalised in float32 meanwhile."""

    def __init__(self, reads_sum_again: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.RMSNorm(64)
        self.reads_sum_again = reads_sum_again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.inner(x)
        y = self.outer(self.norm(x))
        return x + y if self.reads_sum_again else y


class Summed(nn.Module):
    """Sums of rows, of a value that nothing else reads, or that pointwise operators read as well."""

    def __init__(self, is_read: bool) -> None:
        super().__init__()
        self.inner, self.is_read = nn.Linear(64, 64), is_read

    def forward(self, x: torch.Tensor) -> Any:
        y = functional.relu(self.inner(x))
        total = y.float().sum(-1)
        return (y.cos() * 2 if self.is_read else y), total


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Found]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    torch._dynamo.reset()
    seen: list[Found] = []
    made = compiling._with_regions

    def noted(graph: Any, options: Any) -> Found:
        seen.append(made(graph, options))
        return seen[-1]

    monkeypatch.setattr(compiling, "_with_regions", noted)
    return seen


def run(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        made = torch.compile(model, backend="pycutlass", options={"min_gain": 0})(x)
        wanted = model.double()(x.double())
    for got, exact in zip(
        made if isinstance(made, tuple) else (made,), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        torch.testing.assert_close(got.double(), exact.double(), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("reads_sum_again", [False, True])
def test_a_value_is_written_once_and_as_it_is_in_the_model(found: list[Found], reads_sum_again: bool) -> None:
    run(Normed(reads_sum_again).bfloat16(), torch.randn(48, 64).bfloat16())
    regions = [each for graph in found for each in graph.regions]
    assert [output.dtype for each in regions for output in each.outputs] == ["bfloat16"] * 2
    assert any(len(each.fused) == 1 for each in regions)  # the residual, and neither casts nor squares nor a mean


@pytest.mark.parametrize("is_read", [False, True])
def test_sums_of_what_is_read_anyway_are_left(found: list[Found], is_read: bool) -> None:
    run(Summed(is_read).bfloat16(), torch.randn(48, 64).bfloat16())
    (region,) = (each for graph in found for each in graph.regions)
    assert [each.dtype for each in region.outputs] == (["bfloat16"] if is_read else ["bfloat16", "float32"])
    left = [reason for graph in found for reason in graph.left.values()]
    assert any(each.endswith("which a compiler reads with what else needs it") for each in left) is is_read


def test_kernels_of_all_regions_are_compiled_together(found: list[Found], monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Sequence[Any]] = []
    graph = pycutlass.pytorch.partition(Normed(True).half(), torch.randn(48, 64).half(), options={"min_gain": 0})
    here = SimpleNamespace(target="sm_80", compute_capability=80)
    gpu = SimpleNamespace(available=lambda: True, current=lambda: 0, describe=lambda _: here)
    monkeypatch.setattr(plans, "device", gpu)
    monkeypatch.setattr(plans, "build_for", lambda kernels, ordinal: built.append(kernels))
    taken = []
    made = plans.plan_of
    monkeypatch.setattr(plans, "plan_of", lambda *given: taken.append(made(*given)) or taken[-1])
    plans.compile_together(graph.regions, {}, Options())
    assert len(graph.regions) == 2 and len(taken) == 1  # both are alike
    assert [set(kernels) for kernels in built] == [{each for plan in taken for each in plan.candidate.kernels}]
    asked = []
    monkeypatch.setattr(
        plans, "LocalCompiling", lambda *given: asked.append(given) or SimpleNamespace(is_done=True, close=list)
    )
    plans.compile_together(graph.regions, {}, Options(threads=3))
    plans.compile_together(graph.regions, {}, Options(use_multiprocessing=False))
    assert [(len(candidates), *how) for candidates, *how in asked] == [(1, "sm_80", 3, None), (1, "sm_80", 1, None)]
    assert len(built) == 3
