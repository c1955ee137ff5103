"""Kernels of plans are built for the GPU of the tensors, and once."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from descriptions import ampere, hopper

import pycutlass
from pycutlass import device
from pycutlass.errors import ArgumentError
from pycutlass.plan import building
from pycutlass.plan.added import Added
from pycutlass.plan.gemm import gemm_of_kind

GPUS = [device.Device(0, "NVIDIA H200", 90, 132), device.Device(1, "NVIDIA A100", 80, 108)]


class Kernel:
    """An operation of which artifacts are given by target."""

    def __init__(self, like: Any, *targets: str) -> None:
        self.artifacts = dict.fromkeys(targets, "artifact")
        self.source, self.procedural_name = like.source, like.procedural_name


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(device, "describe", lambda ordinal=0: GPUS[ordinal])
    monkeypatch.setattr(device, "current", lambda: 0)
    monkeypatch.setattr(building.compiler, "add_module", lambda kernels, target=None: calls.append((kernels, target)))
    return calls


@pytest.mark.parametrize(
    ("kernel", "ordinal"), [(Kernel(hopper(), "sm_90a"), 0), (Kernel(ampere("f16"), "sm_90"), 0),
                            (Kernel(ampere("f16"), "sm_80"), 1), (Kernel(ampere("f16"), "sm_80", "sm_90"), 1)]
)  # fmt: skip
def test_what_runs_there_is_not_built_again(kernel: Any, ordinal: int, asked: list[Any]) -> None:
    building.build_for([kernel], ordinal)
    assert asked == []


def test_what_is_missing_is_built_together(asked: list[Any]) -> None:
    kernels: list[Any] = [Kernel(hopper(), "sm_90a"), Kernel(ampere("f16"), "sm_80")]  # which no H200 runs
    building.build_for(kernels, 0)
    assert asked == [(kernels, None)]


def test_another_gpu_than_the_current_one(asked: list[Any]) -> None:
    kernels: list[Any] = [Kernel(ampere("f16"), "sm_90"), Kernel(ampere("f16"))]
    building.build_for(kernels, 1)
    assert asked == [([each], "sm_80") for each in kernels]


def test_a_plan_compiles_for_the_gpu_that_it_is_for(asked: list[Any]) -> None:
    a, b = (pycutlass.TensorSpec(shape, "float16") for shape in ((64, 64), (64, 64)))
    kind = pycutlass.Gemm(a, b).kind
    plan = gemm_of_kind(kind, (64, 64, 64), None, 1, {}, Added(False, False, ""))
    plan.compile()
    ((kernels, target),) = asked
    assert target == "sm_80" and tuple(kernels) == plan.candidate.kernels


def test_a_plan_that_was_made_for_another_gpu_says_so(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pycutlass.TensorSpec((4096, 4096), "float16")
    plan = gemm_of_kind(pycutlass.Gemm(spec, spec).kind, (4096, 4096, 4096), None, 0, {}, Added(False, False, ""))
    assert plan.operation.is_sm90
    carried = pickle.loads(pickle.dumps(plan))
    monkeypatch.setattr(device, "describe", lambda ordinal=0: GPUS[1])
    said = "kernel for compute capability 9.0, and GPU 0, NVIDIA A100, has 8.0: .* Make another plan$"
    for use in (carried.compile, lambda: carried._compiled(4096)):
        with pytest.raises(ArgumentError, match=said):
            use()
    assert asked == []
