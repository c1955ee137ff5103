"""Scalars of functions in one line and of plans: those of the call, whatever came before and whoever changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass import Conv2d, Gemm, GroupedGemm, cutlass
from pycutlass.epilogue import Scalar, Source
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.plan import shortcut

A, B = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)


@pytest.mark.parametrize("kind", [float, int, np.float32, np.int64, np.asarray], ids=lambda kind: kind.__name__)
def test_scalars_of_an_epilogue_are_those_of_the_call(kind: Any) -> None:
    for factor in (2, 3):
        try:
            got = pycutlass.matmul(A, B, epilogue=times, epilogue_inputs={"factor": kind(factor)})
        except PyCutlassError:  # what is no number to an epilogue is refused each time
            continue
        np.testing.assert_allclose(got, factor * (A @ B), rtol=1e-5)


@pycutlass.epilogue_function
def times(accum: Any, factor: Scalar = 1.0) -> Any:
    return accum * factor


@dataclass(frozen=True)
class OnDevice:
    """A float32 in device memory, as a tensor of one element or of no dimensions."""

    address: int
    shape: tuple[int, ...]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": "<f4", "data": (self.address, False), "version": 3, "strides": None}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_scalars_in_device_memory_are_those_of_the_call(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that is kept for such tensors would go on with the first one."""
    read: list[Any] = []

    def note(plan: Any, *_tensors: Any, **_options: Any) -> None:
        read.append(plan._scalars["factor"].address)

    x, w = np.ones((1, 4, 4, 8), np.float16), np.ones((8, 3, 3, 8), np.float16)
    calls: list[tuple[type, Any]] = [
        (Gemm, lambda **given: pycutlass.matmul(A, B, **given)),
        (Conv2d, lambda **given: pycutlass.conv2d(x, w, **given)),
        (GroupedGemm, lambda **given: pycutlass.grouped_matmul([A], [B], **given)),
    ]
    for kind, call in calls:
        read.clear()
        with monkeypatch.context() as patch:
            patch.setattr(kind, "_compute" if kind is GroupedGemm else "run_once", note)
            for address in (0x1000, 0x2000, 0x1000):
                call(epilogue=times, epilogue_inputs={"factor": OnDevice(address, shape)})
        assert read == [0x1000, 0x2000, 0x1000], kind


IMAGES, WEIGHTS = np.ones((1, 4, 4, 8), np.float32), np.ones((8, 1, 1, 8), np.float32)
#: Products in one line that are 8 everywhere, by every function; the convolution has strides, so it is no GEMM.
EIGHTS: dict[str, Any] = {
    "matmul": lambda **given: pycutlass.matmul(IMAGES[0, 0], WEIGHTS[:, 0, 0].T, **given)[0, 0],
    "batch": lambda **given: pycutlass.matmul(IMAGES[0], WEIGHTS[:, 0, 0].T, **given)[0, 0, 0],
    "conv2d": lambda **given: pycutlass.conv2d(IMAGES, WEIGHTS, stride=2, **given)[0, 0, 0, 0],
    "grouped_matmul": lambda **given: pycutlass.grouped_matmul([IMAGES[0, 0]], [WEIGHTS[:, 0, 0].T], **given)[0][0, 0],
}


@pytest.mark.parametrize("name", EIGHTS)
def test_scalars_of_an_activation_are_those_of_the_call(name: str) -> None:
    for slope in (0.5, 0.25):
        for leaky_alpha in (torch.tensor([slope]), np.float32(slope), slope):
            inputs = {"leaky_alpha": leaky_alpha}
            assert EIGHTS[name](alpha=-1, epilogue=pycutlass.leaky_relu, epilogue_inputs=inputs) == -8 * slope


@pytest.mark.parametrize("name", EIGHTS)
def test_a_number_that_changes_is_read_at_each_call(name: str) -> None:
    alpha, factor = torch.tensor(2.0), np.array(2.0)
    for value in (2.0, 3.0):
        alpha.fill_(value)
        factor.fill(value)
        assert EIGHTS[name](alpha=alpha) == 8 * value
        assert EIGHTS[name](epilogue=times, epilogue_inputs={"factor": factor}) == 8 * value


def test_a_plan_keeps_the_number_that_it_was_made_with() -> None:
    alpha = torch.tensor(2.0)
    matrices, groups = Gemm(A, B, alpha=alpha), GroupedGemm([A], [B], alpha=alpha)
    images = Conv2d(IMAGES, WEIGHTS, alpha=alpha)
    runs: list[tuple[Any, Callable[[int], Any]]] = [
        (matrices, lambda rows: matrices.run(A[:rows], B)[0]),
        (groups, lambda rows: groups.run([A[:rows]], [B])[0][0]),
        (images, lambda count: images.run(np.concatenate([IMAGES] * count), WEIGHTS)[0]),
    ]
    for plan, run in runs:
        alpha.fill_(2.0)
        before = run(2)
        alpha.fill_(5.0)
        np.testing.assert_allclose(run(2), before, rtol=1e-5)
        plan.reset_operands()
        np.testing.assert_allclose(run(2), before, rtol=1e-5)
        np.testing.assert_allclose(run(1), before, rtol=1e-5)


@pycutlass.epilogue_function
def divided(accum: Any, alpha: Scalar = 1.0) -> Any:
    return accum / alpha


@pytest.mark.parametrize("name", EIGHTS)
def test_zeros_of_two_signs_are_two_scalars(name: str) -> None:
    for alpha in (0.0, -0.0, 0.0):
        assert np.signbit(EIGHTS[name](alpha=alpha)) == np.signbit(alpha)
        assert EIGHTS[name](alpha=alpha, epilogue=divided) == np.copysign(np.inf, alpha)


@pytest.mark.parametrize("name", EIGHTS)
def test_what_is_no_real_number_is_refused_after_an_equal_one(name: str) -> None:
    assert EIGHTS[name](alpha=2) == 16
    with pytest.raises(ArgumentTypeError, match="alpha must be a number"):
        EIGHTS[name](alpha=2 + 0j)


def test_a_plan_has_its_own_scalars() -> None:
    plan = pycutlass.Gemm(A, B, epilogue=times, epilogue_inputs={"factor": 3.0})
    np.testing.assert_allclose(pycutlass.matmul(A, B, plan=plan), 3 * (A @ B), rtol=1e-5)
    with pytest.raises(ArgumentError, match="factor in epilogue_inputs and a plan are given"):
        pycutlass.matmul(A, B, plan=plan, epilogue_inputs={"factor": 2.0})
    bias = np.ones(B.shape[1], np.float32)
    adding = pycutlass.Gemm(A, B, bias, beta=0.5)
    np.testing.assert_allclose(pycutlass.matmul(A, B, bias=bias, plan=adding), A @ B + 0.5, rtol=1e-5)
    for wrong in (np.ones(3), "2"):
        with pytest.raises(PyCutlassError):
            pycutlass.matmul(A, B, plan=plan, alpha=wrong)
    with pytest.raises(ArgumentTypeError, match="epilogue_inputs must be a mapping"):
        pycutlass.matmul(A, B, epilogue=times, epilogue_inputs=[2.0])
    with pytest.raises(ArgumentTypeError, match=r"plan must be a pycutlass\.Gemm"):
        pycutlass.matmul(A, B, plan=3)


@pycutlass.epilogue_function
def twice(accum: Any, c: Source, alpha: Scalar = 2.0, beta: Scalar = 1.0) -> Any:
    return alpha * accum + beta * c


@pycutlass.epilogue_function
def without_default(accum: Any, alpha: Scalar) -> Any:
    return alpha * accum


def test_scalars_that_are_left_out_are_those_of_the_function() -> None:
    """Of a call, of one like it, and of one that says 1 and 0, in whatever order they come."""
    c, product = np.ones((A.shape[0], B.shape[1]), np.float32), A @ B
    typed = twice(cutlass.float32, 1, cutlass.float32)
    for _ in range(2):
        for function in (twice, typed):
            for source in (c, c[0]):
                made = pycutlass.matmul(A, B, source, epilogue=function)
                np.testing.assert_allclose(made, 2 * product + 1, rtol=1e-5)
            said = pycutlass.matmul(A, B, c, alpha=1, beta=0, epilogue=function)
            np.testing.assert_allclose(said, product, rtol=1e-5)
        with pytest.raises(ArgumentError, match="takes the scalars alpha; alpha is missing"):
            pycutlass.matmul(A, B, epilogue=without_default)
        np.testing.assert_allclose(pycutlass.matmul(A, B, alpha=3, epilogue=without_default), 3 * product, rtol=1e-5)
    plan = pycutlass.Gemm(A, B, c, epilogue=twice)
    np.testing.assert_allclose(plan(A, B, c), 2 * product + 1, rtol=1e-5)
    assert plan.check() <= 1


@pytest.mark.parametrize("kind", [float, np.float32, np.float16, np.int64], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", EIGHTS)
def test_plans_of_equal_numbers_are_kept(name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make a plan takes some milliseconds, and numbers of NumPy cannot change."""

    def run(factor: float) -> None:
        assert EIGHTS[name](epilogue=times, epilogue_inputs={"factor": kind(factor)}) == 8 * factor

    run(6)
    run(7)
    made: list[Any] = []
    for of in (Gemm, GroupedGemm, Conv2d):
        monkeypatch.setattr(of, "_start", made.append)
    run(6)
    run(7)
    assert not made


class Moving:
    """A float32 in device memory, as a tensor of torch that goes over to other memory."""

    is_cuda, dtype, shape = True, "torch.float32", ()
    address = 0x1000

    def numel(self) -> int:
        return 1

    def data_ptr(self) -> int:
        return self.address


def test_a_scalar_that_has_other_memory_is_read_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product like the last one must not go on with the address that the scalar had then, which may be freed."""
    read: list[Any] = []

    class Noted:
        def __init__(self, _candidate: Any, _size: Any, _tensors: Any, scalars: Any, _ports: Any) -> None:
            read.append(scalars.pointers[0])

        def run(self, _stream: Any) -> None:
            """Launch nothing."""

        def finish(self) -> None:
            """Wait for nothing."""

        def waitable(self, _tensors: Any) -> None:
            """Have nothing wait."""

    monkeypatch.setattr(shortcut, "Launch", Noted)
    monkeypatch.setattr(Gemm, "run_once", lambda *_tensors, **_options: None)
    a, b, alpha = torch.ones(4, 8), torch.ones(8, 12), Moving()
    for address in (0x1000, 0x1000, 0x2000, 0x3000):
        alpha.address = address
        pycutlass.matmul(a, b, alpha=alpha)
    assert read == [0x1000, 0x2000, 0x3000]
