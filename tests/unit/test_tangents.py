"""Tangents of torch's forward mode are lost by no call: what has no derivative refuses them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import fake_gpu
import pytest
import torch
from prepared_arguments import THERE, TORCH
from torch.autograd import forward_ad
from torch_launches import FAMILIES

import pycutlass
from pycutlass._core import TensorGuard
from pycutlass.epilogue import Scalar
from pycutlass.errors import ArgumentError, ArgumentTypeError

# torch's decompositions for dual tensors are scripted.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

A, B, C = torch.randn(8, 16), torch.randn(16, 8), torch.randn(8, 8)
X = torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)
W = torch.randn(4, 3, 3, 8).permute(0, 3, 1, 2)
PLAN = pycutlass.Gemm(A, B)
GROUP = pycutlass.GroupedGemm([A, A], [B, B])

CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "matmul": (pycutlass.matmul, (A, B)),
    "matmul with c": (lambda a, b, c: pycutlass.matmul(a, b, c, beta=1), (A, B, C)),
    "matmul into out": (lambda a, b, out: pycutlass.matmul(a, b, out=out), (A, B, C)),
    "linear": (pycutlass.linear, (A, B.T, torch.randn(8))),
    "conv2d": (lambda x, w: pycutlass.conv2d(x, w, padding=1), (X, W)),
    "grouped_matmul": (lambda x, w: pycutlass.grouped_matmul([A, x], [w, B]), (A, B)),
    "a plan": (PLAN.run, (A, B)),
    "a plan of a group": (lambda x, w: GROUP.run([A, x], [B, w]), (A, B)),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_call_loses_a_tangent(name: str) -> None:
    call, given = CALLS[name]
    for _ in range(3):  # the first calls make what the later ones find
        expected = call(*given)
    for index in range(len(given)):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given[index], torch.ones_like(given[index]))
            tensors = [*given[:index], dual, *given[index + 1 :]]
            for context in (torch.enable_grad(), torch.no_grad()):  # which leaves forward mode on
                with context, pytest.raises(ArgumentError, match=r"has a tangent.*unpack_dual\((.*)\)\.primal"):
                    call(*tensors)
            tensors[index] = forward_ad.unpack_dual(dual).primal
            found = call(*tensors)
            with torch.inference_mode():  # in which torch computes no tangents either
                call(*given[:index], dual, *given[index + 1 :])
        for one, other in zip(*(each if isinstance(each, list) else [each] for each in (found, expected)), strict=True):
            assert torch.equal(one, other)
        call(*given)


@pycutlass.epilogue_function
def scaled(accum: Any, factor: Scalar) -> Any:
    return accum * factor


#: Calls with scalars, which kernels take as numbers, by how messages call the scalar.
SCALARS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "matmul": ("alpha", lambda s: pycutlass.matmul(A, B, alpha=s)),
    "beta of matmul": ("beta", lambda s: pycutlass.matmul(A, B, C, beta=s)),
    "a function": ("factor", lambda s: pycutlass.matmul(A, B, epilogue=scaled, epilogue_inputs={"factor": s})),
    "linear": ("alpha", lambda s: pycutlass.linear(A, B.T, alpha=s)),
    "conv2d": ("alpha", lambda s: pycutlass.conv2d(X, W, padding=1, alpha=s)),
    "grouped_matmul": ("alpha", lambda s: pycutlass.grouped_matmul([A, A], [B, B], alpha=s)),
    "a function of groups": (
        "factor",
        lambda s: pycutlass.grouped_matmul([A], [B], epilogue=scaled, epilogue_inputs={"factor": s}),
    ),
    "a plan": ("alpha", lambda s: pycutlass.Gemm(A, B, alpha=s)),
    "a plan of a convolution": ("alpha", lambda s: pycutlass.Conv2d(X, W, padding=1, alpha=s)),
    "a plan of a group": ("alpha", lambda s: pycutlass.GroupedGemm([A], [B], alpha=s)),
}


@pytest.mark.parametrize("which", SCALARS)
def test_no_call_loses_the_derivative_of_a_scalar(which: str) -> None:
    name, call = SCALARS[which]
    scalar = torch.tensor(2.0)
    call(scalar)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(scalar, torch.tensor(1.0))
        for context in (torch.enable_grad(), torch.no_grad()):
            with context, pytest.raises(ArgumentError, match=rf"{name} has a tangent.*unpack_dual\({name}\)\.primal"):
                call(dual)
    asking = torch.nn.Parameter(scalar)
    with pytest.raises(ArgumentError, match=rf"{name} requires a gradient.*pass {name}\.detach\(\)"):
        call(asking)
    call(asking.detach())
    with torch.no_grad():
        call(asking)


def test_a_view_of_what_has_a_tangent_has_one() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(A.clone(), torch.ones_like(A))
        for a in (dual[:4], dual * 2, dual.mT.mT):
            with pytest.raises(ArgumentError, match="a has a tangent"):
                pycutlass.matmul(a, B)
        base = A.clone()
        view = base[:4]
        base.copy_(dual)  # which gives the view a tangent as well
        with pytest.raises(ArgumentError, match="a has a tangent"):
            pycutlass.matmul(view, B)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_launch_into_what_has_a_tangent_is_refused(family: str) -> None:
    launch = FAMILIES[family]()
    D = launch.tensors["D"]
    with forward_ad.dual_level():
        last = D[-1] if isinstance(D, list) else D
        dual = forward_ad.make_dual(last, torch.ones_like(last))
        target = [*D[:-1], dual] if isinstance(D, list) else dual
        with pytest.raises(ArgumentError, match=r"(D|destination).* has a tangent.*unpack_dual"):
            launch.make(**{**launch.tensors, "D": target})
        with pytest.raises(ArgumentError, match=r"(D|destination).* has a tangent.*unpack_dual"):
            launch.arguments.update(D=target)
        launch.run()


def test_what_is_read_with_a_tangent_is_said(caplog: pytest.LogCaptureFixture) -> None:
    launch = FAMILIES["gemm"]()
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(launch.tensors["A"], torch.ones(6, 4))
        launch.make(**{**launch.tensors, "A": dual})
    assert "operand A has a tangent, of torch's forward mode, and D has none" in caplog.text


def test_a_guard_knows_tangents() -> None:
    guard = TensorGuard(torch.ones(4, 4), True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(4, 4), torch.ones(4, 4))
        assert not guard.allows(dual) and guard.allows(torch.ones(5, 4)[1:])
    assert guard.allows(dual)  # torch has cleared it


def test_launches_that_wait_are_not_taken() -> None:
    program = f"""{TORCH}
import warnings
from fake_gpu.inside import log as asked
import pycutlass.plan.choices
from pycutlass.plan import Candidate
from torch.autograd import forward_ad

operation = gemm()
pycutlass.plan.choices.Choices.of = lambda self, m: Candidate(operation)

{THERE}
a, w, d, tangent = of(5, 7), of(6, 7), of(5, 6), of(5, 7)
plan = pycutlass.Gemm(a, w.t())
for compute in (lambda a: plan.run(a, w.t(), out=d), lambda a: pycutlass.matmul(a, w.t(), out=d)):
    for _ in range(4):
        compute(a)
        driver.fake_run()
    with forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own use of torch.jit
        dual = forward_ad.make_dual(a, tangent)
        asked()
        refused(lambda: compute(dual), "a has a tangent", "unpack_dual(a).primal")
        assert not any(line.startswith("cuLaunchKernel") for line in asked())
        compute(forward_ad.unpack_dual(dual).primal)
        assert any(line.startswith("cuLaunchKernel") for line in asked())
        driver.fake_run()
    compute(a)
    driver.fake_run()
"""
    fake_gpu.run(program)


def test_transforms_are_named_with_what_takes_them() -> None:
    for transform in (torch.func.vmap, torch.func.grad, torch.func.functionalize):
        of_one: Any = transform(lambda a: pycutlass.matmul(a, B).sum())
        with pytest.raises(ArgumentTypeError, match=r"operand a is a tensor inside of a transform of torch\.func"):
            of_one(A.expand(3, 8, 16))
    importlib.import_module("pycutlass.pytorch")  # which defines the operators
    made = torch.func.vmap(lambda a: torch.ops.pycutlass.matmul(a, B))(A.expand(3, 8, 16))
    torch.testing.assert_close(made, (A @ B).expand(3, 8, 8))
