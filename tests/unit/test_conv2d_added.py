"""What convolutions add, c and a bias in one kernel, against torch in float64."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import cutlass
from pycutlass.epilogue import Column, Row, Tensor
from pycutlass.epilogue.fusions import swiglu
from pycutlass.errors import ArgumentError, PyCutlassError

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(3)
TOLERANCE = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-11}
FPROP, DGRAD, WGRAD = "fprop", "dgrad", "wgrad"


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def convolved(kind: str, x: Any, w: Any, y: Any, stride: int, padding: int, groups: int) -> Any:
    """Return a convolution, or its gradients at `y`, in float64."""
    images, weights, grad = (torch.from_numpy(each.astype(np.float64)).permute(0, 3, 1, 2) for each in (x, w, y))
    images.requires_grad_(), weights.requires_grad_()
    result = torch.nn.functional.conv2d(images, weights, None, stride, padding, 1, groups)
    of_x, of_w = torch.autograd.grad(result, (images, weights), grad)
    return {FPROP: result, DGRAD: of_x, WGRAD: of_w}[kind].detach().permute(0, 2, 3, 1).numpy()


class Problem:
    """A convolution with operands, and what it is in float64."""

    def __init__(
        self, kind: str, dtype: Any, groups: int = 1, stride: int = 1, taps: int = 3, channels: int = 8
    ) -> None:
        self.kind, self.padding = kind, taps // 2
        self.how = {"stride": stride, "padding": self.padding, "groups": groups}
        x, w = (
            random(2, 6, 6, 2 * channels, dtype=dtype),
            random(channels, taps, taps, 2 * channels // groups, dtype=dtype),
        )
        side = (6 + 2 * self.padding - taps) // stride + 1
        y = random(2, side, side, channels, dtype=dtype)
        self.a, self.b = {FPROP: (x, w), DGRAD: (y, w), WGRAD: (y, x)}[kind]
        self.exact = convolved(kind, x, w, y, stride, self.padding, groups)
        self.size = {FPROP: None, DGRAD: x.shape, WGRAD: w.shape}[kind]
        self.c, self.bias = random(*self.exact.shape, dtype=dtype), random(self.exact.shape[-1], dtype=dtype)

    def call(self, *tensors: Any, **how: Any) -> Any:
        function = {FPROP: pycutlass.conv2d, DGRAD: pycutlass.conv2d_input, WGRAD: pycutlass.conv2d_weight}[self.kind]
        size = () if self.size is None else (self.size,)
        return function(self.a, self.b, *size, *tensors, **self.how, **how)

    def plan(self, *tensors: Any, **how: Any) -> pycutlass.Conv2d:
        how |= self.how
        return pycutlass.Conv2d(self.a, self.b, *tensors, kind=self.kind, result_size=self.size, **how)


def close(got: Any, exact: Any) -> None:
    tolerance = TOLERANCE[str(got.dtype)]
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=tolerance, atol=16 * tolerance)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("kind", "groups", "stride", "taps"),
    [(FPROP, 1, 1, 3), (FPROP, 4, 2, 3), (FPROP, 1, 1, 1), (FPROP, 8, 1, 3), (DGRAD, 1, 1, 3), (DGRAD, 2, 1, 3)],
)
@pytest.mark.parametrize("activation", [None, pycutlass.relu, pycutlass.silu])
def test_c_and_a_bias_are_added_in_one_kernel(
    dtype: Any, kind: str, groups: int, stride: int, taps: int, activation: Any
) -> None:
    p = Problem(kind, dtype, groups, stride, taps)
    x = 0.5 * p.exact - 2.0 * p.c.astype(np.float64) + p.bias
    exact = x if activation is None else activation.numpy(x)
    how = {"alpha": 0.5, "beta": -2, "epilogue": activation}
    out = np.full(p.exact.shape, 99, dtype)
    assert p.call(p.c, bias=p.bias, out=out, **how) is out
    close(out, exact)
    plan = p.plan(p.c, bias=p.bias, **how)
    assert len(plan.candidate.kernels) == 1
    for each in (plan, pickle.loads(pickle.dumps(plan))):
        for _ in range(2):
            close(each.run(p.a, p.b, p.c, bias=p.bias), exact)
    one = slice(1, 2)
    close(plan.run(p.a[one], p.b, p.c[one], bias=p.bias), exact[one])


@pytest.mark.parametrize("kind", [FPROP, DGRAD])
def test_a_bias_alone_is_read_as_c(kind: str) -> None:
    p = Problem(kind, np.float16)
    plan = p.plan(bias=p.bias, beta=2)
    assert plan.kind.epilogue.ports == ()
    close(plan.run(p.a, p.b, bias=p.bias), p.exact + 2.0 * p.bias)
    close(p.call(bias=p.bias), p.exact + p.bias)
    close(p.call(p.bias), p.exact + p.bias)


def test_tensors_of_torch_are_images_in_its_order() -> None:
    p = Problem(FPROP, np.float32, groups=2)
    x, w, c = (torch.from_numpy(each).permute(0, 3, 1, 2) for each in (p.a, p.b, p.c))
    got = pycutlass.conv2d(x, w, c, beta=1, bias=torch.from_numpy(p.bias), **p.how)
    assert got.is_contiguous(memory_format=torch.channels_last)
    close(got.permute(0, 2, 3, 1).numpy(), p.exact + p.c + p.bias)


@pytest.mark.parametrize("beside_c", [False, True])
def test_a_strided_bias_is_copied_where_that_is_allowed(beside_c: bool) -> None:
    p = Problem(FPROP, np.float32)
    every_second = random(2 * len(p.bias))[::2]
    c, beta = (p.c, 1) if beside_c else (None, 0)
    exact = p.exact + every_second + (p.c if beside_c else 0)
    close(p.call(c, beta=beta, bias=every_second, allow_copy=True), exact)
    with pytest.raises(ArgumentError, match=r"must be contiguous.*allow_copy=True"):
        p.call(c, beta=beta, bias=every_second)


@pytest.mark.parametrize("kind", [FPROP, DGRAD, WGRAD])
def test_functions_have_the_channels_of_their_group(kind: str) -> None:
    """Vectors along channels and matrices are divided among launches of one group each, and nothing else is."""
    p = Problem(kind, np.float16, groups=2)

    @pycutlass.epilogue_function
    def function(accum: Any, z: Tensor, of_row: Row, of_column: Column) -> Any:
        t = accum + z
        return {"D": t * of_row + of_column, "kept": t}

    wide = p.exact.reshape(-1, p.exact.shape[-1]) if kind != WGRAD else p.exact.reshape(p.exact.shape[0], -1)
    z, kept = random(*p.exact.shape, dtype=np.float16), np.full(p.exact.shape, 99, np.float16)
    ports = {
        "z": z,
        "of_row": random(wide.shape[1], dtype=np.float16),
        "of_column": random(len(wide), dtype=np.float16),
    }
    t = wide + z.reshape(wide.shape)
    exact = t * ports["of_row"].astype(np.float64) + ports["of_column"].astype(np.float64)[:, None]
    plan = p.plan(epilogue=function, epilogue_inputs=ports | {"kept": kept})
    assert plan.candidate.is_by_group
    for _ in range(2):
        close(plan.run(p.a, p.b, epilogue_inputs=ports | {"kept": kept}), exact.reshape(p.exact.shape))
        close(kept, t.reshape(p.exact.shape))


P, W = Problem(FPROP, np.float32), Problem(WGRAD, np.float32)
STRIDED, SINGLE = Problem(DGRAD, np.float16, stride=2), Problem(FPROP, np.float16, taps=1)
BOTH = P.plan(P.c, beta=1, bias=P.bias)
REFUSED: list[tuple[str, Any]] = [
    ("c is given and beta is 0", lambda: P.call(P.c, bias=P.bias)),
    ("bias is another one", lambda: P.call(P.bias, bias=P.bias)),
    ("one number for each of 8 channels", lambda: P.call(P.c, beta=1, bias=P.bias[:3])),
    ("bias must be a vector of one number for each channel", lambda: P.plan(P.c, beta=1, bias=P.c)),
    ("bias is float16 and the result float32", lambda: P.plan(P.c, beta=1, bias=P.bias.astype(np.float16))),
    ("gradients of weights take no bias", lambda: W.plan(bias=W.bias)),
    ("conv2d_weight has no keyword bias", lambda: W.call(bias=W.bias)),
    ("which says itself what it computes", lambda: P.call(P.c, beta=1, bias=P.bias, epilogue=bias_of_own)),
    (r"stride=\(2, 2\) takes no epilogue function.*Add the bias to c beforehand", lambda: both_of(STRIDED)),
    ("reads bias, and none is given", lambda: BOTH.run(P.a, P.b, P.c)),
    ("reads c, and none is given", lambda: BOTH.run(P.a, P.b, bias=P.bias)),
    ("made without c", lambda: P.plan(bias=P.bias).run(P.a, P.b, P.c, bias=P.bias)),
    ("bias", lambda: BOTH.run(P.a, P.b, P.c, bias=P.bias[:3])),
    ("kernels of convolutions write all channels", lambda: P.call(epilogue=swiglu, precision="tf32")),
    ("kernels of convolutions write all channels", lambda: SINGLE.call(epilogue=swiglu)),
]


@pycutlass.epilogue_function
def bias_of_own(accum: Any, c: pycutlass.epilogue.Source) -> Any:
    return accum + c


def both_of(p: Problem) -> Any:
    return p.call(p.c, beta=1, bias=p.bias)


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


def test_a_strided_gradient_takes_the_sum_as_c() -> None:
    c = (STRIDED.c + STRIDED.bias).astype(np.float16)
    close(STRIDED.call(c, beta=1), STRIDED.exact + c.astype(np.float64))


@pytest.mark.parametrize("function", [pycutlass.conv2d, pycutlass.conv2d_input, pycutlass.conv2d_weight])
def test_options_are_named_and_others_refused(function: Any) -> None:
    import inspect

    plan = set(inspect.signature(pycutlass.Conv2d).parameters)
    own = {"a", "b", "c", "kind", "result_size", "bias"}
    called = inspect.signature(function).parameters
    assert plan - own <= set(called), "one list for the plan and for all functions"
    assert called["stride"].default == 1 and called["out"].default is None
    size = () if function is pycutlass.conv2d else ((1, 1, 1, 1),)
    with pytest.raises(PyCutlassError, match=r"has no keyword strides; .*Did you mean stride\?"):
        function(P.a, P.b, *size, strides=2)
    with pytest.raises(PyCutlassError, match="has no keyword allow_copy"):
        pycutlass.Conv2d(P.a, P.b, allow_copy=True)


def test_every_combination_is_right_or_says_why() -> None:
    for kind, has_c, has_bias, groups in itertools.product((FPROP, DGRAD), (False, True), (False, True), (1, 2)):
        p = Problem(kind, np.float16, groups=groups)
        c, bias = p.c if has_c else None, p.bias if has_bias else None
        exact = p.exact + (p.c.astype(np.float64) if has_c else 0) + (p.bias if has_bias else 0)
        close(p.call(c, beta=1 if has_c else 0, bias=bias, out_dtype=cutlass.float16), exact)
