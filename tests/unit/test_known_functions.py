"""`matmul`, `linear` and `conv2d` of tensors like those of an earlier call, on a stand-in for the driver."""

from __future__ import annotations

import fake_gpu
import pytest
from test_known_operators import _MATRICES
from test_pytorch_known_calls import _CALLS

pytest.importorskip("torch")

_FUNCTIONS = f"""{_MATRICES}
from pycutlass.plan import convolutions, known_calls
from torch.nn import functional

class Noted:
    # Calls that reach a function's Python.
    def __init__(self, name, module):
        self.calls, self.served = 0, getattr(module, name)
        recorded = self.served.__wrapped__
        kept = recorded.__closure__[recorded.__code__.co_freevars.index("call")]
        self.function, kept.cell_contents = kept.cell_contents, self

    def __call__(self, *args, **named):
        self.calls += 1
        return self.function(*args, **named)

def images(n, channels, p, q):
    return drawn(n, p, q, channels).permute(0, 3, 1, 2)
"""


def test_layers_with_leading_dimensions() -> None:
    fake_gpu.run(f"""{_FUNCTIONS}
from pycutlass.plan import matmul as module
seen = Noted("linear", sys.modules["pycutlass.plan.matmul"])
for lead in ((M,), (2, 3), (2, 1, 3)):
    for turn in range(4):
        x, w, bias = drawn(*lead, K), drawn(N, K), drawn(N)
        seen.calls = 0
        found = pycutlass.linear(x, w, bias)
        assert bool(seen.calls) is (turn == 0)
        driver.fake_run()
        assert torch.equal(found, (x.flatten(0, -2) @ w.t() + bias).view(*lead, N)) and type(found) is torch.Tensor
        out = drawn(*lead, N)
        seen.calls = 0
        assert pycutlass.linear(w=w, x=x, out=out) is out
        assert bool(seen.calls) is (turn == 0)
        driver.fake_run()
        assert torch.equal(out, (x.flatten(0, -2) @ w.t()).view(*lead, N))
refused(lambda: pycutlass.linear(x, w, bais=bias), "bais")
refused(lambda: pycutlass.linear(x, w.requires_grad_(), out=out), "gradient")
refused(lambda: pycutlass.linear(x), "w")
""")


def test_convolutions() -> None:
    fake_gpu.run(f"""{_FUNCTIONS}
seen = Noted("conv2d", convolutions)
def right(found, x, w, *more):
    driver.fake_run()
    return torch.equal(found, functional.conv2d(x, w, *more))

for turn in range(4):
    x, w, out = images(2, 4, 5, 6), images(6, 4, 3, 2), images(2, 6, 3, 5)
    for call in (lambda: pycutlass.conv2d(x, w), lambda: pycutlass.conv2d(x, w, out=out)):
        seen.calls = 0
        found = call()
        assert bool(seen.calls) is (turn == 0) and found.stride() == out.stride()
        assert right(found, x, w)
    for padding in (1, [1, 0], (0, 1)):
        seen.calls = 0
        assert right(pycutlass.conv2d(x, w, padding=padding), x, w, None, 1, padding)
        assert bool(seen.calls) is (turn == 0)
assert right(pycutlass.conv2d(x, w, allow_copy=True), x, w)
""")


def test_functions_with_tensors_of_their_own() -> None:
    """What they write counts as written, also by a view, and only what does not change tells calls apart."""
    fake_gpu.run(f"""{_CALLS}
import pycutlass.plan.matmul
recorded = pycutlass.matmul.__wrapped__.__wrapped__
kept = recorded.__closure__[recorded.__code__.co_freevars.index("call")]
function, seen = kept.cell_contents, []
kept.cell_contents = lambda *args, **named: (seen.append(named), function(*args, **named))[1]
a, b, c, extra, bias = drawn()
typed = fused.fused(handle, torch.float32).epilogue({{"c": c, "extra": extra, "bias": bias}})

def call(turn, gamma=-1.0, known=None, epilogue=typed, **more):
    a, b, c, extra, bias = drawn()
    out, second = memory((M, N)), memory((M, N), np.float64)
    alive.extend((out, second))
    versions = [each._version for each in (a, b, c, extra, bias)], out._version, second._version
    inputs = {{"bias": bias, "second": second, "extra": extra, "gamma": gamma}}
    seen.clear()
    assert pycutlass.matmul(a, b, c, out=out, epilogue=epilogue, epilogue_inputs=inputs, **more) is out
    assert bool(seen) is (turn == 0 if known is None else not known), turn
    right((out, second), a, b, c, extra, bias, (0.5, 2.0, gamma))
    assert [each._version for each in (a, b, c, extra, bias)] == versions[0]
    assert out._version > versions[1] and second._version > versions[2]

for turn in range(4):
    call(turn)
    call(turn, gamma=3.0)
call(0, known=False, alpha=None, epilogue=dataclasses.replace(typed))  # another object, which may be anything
call(0, known=False, stream=0)
call(0, known=False, allow_copy=True)
call(0, known=True)
generation.begin()
call(0, known=False)
call(0, known=True)
for inputs in ({{}}, {{"bias": bias}}, None):
    try:
        pycutlass.matmul(a, b, c, epilogue=typed, epilogue_inputs=inputs)
    except PyCutlassError:
        continue
    raise AssertionError("not refused")
""")


def test_results_are_no_views_and_parameters_are_not_written() -> None:
    """The first call of a kind does what later ones do."""
    fake_gpu.run(f"""{_FUNCTIONS}
for turn in range(3):
    with torch.no_grad():
        x, w = images(2, 4, 5, 6), images(6, 4, 3, 2)
        stack, weights, rows = drawn(2, 3, K), drawn(N, K), drawn(3, K)
        for found in (pycutlass.linear(stack, weights), pycutlass.conv2d(x, w), pycutlass.linear(rows, weights)):
            assert not found._is_view() and found._base is None
        for call in (
            lambda out: pycutlass.linear(stack, weights, out=out),
            lambda out: pycutlass.linear(rows, weights, out=out),
            lambda out: pycutlass.conv2d(x, w, out=out),
        ):
            shape = call(None).shape
            out = drawn(*shape) if len(shape) < 4 else images(*shape)
            assert call(out) is out
            refused(lambda: call(torch.nn.Parameter(out)), "grad")
            refused(lambda: call(out.detach().requires_grad_()), "grad")
driver.fake_run()
""")


def test_tensors_of_an_epilogue_are_kept_while_a_result_is_made() -> None:
    """Whoever makes it may run anything, and empty the dictionary that they came in."""
    fake_gpu.run(f"""{_CALLS}
meanwhile, others = [], []
def hooked(*shape, **how):
    for each in meanwhile:
        each()
    return empty(*shape, **how)
torch.empty = hooked

a, b, c, extra, bias = drawn()
function = fused.fused(handle, torch.float32).epilogue({{"c": c, "extra": extra, "bias": bias}})
second = memory((M, N), np.float64)
inputs = {{"extra": extra, "bias": bias, "second": second}}
plan = pycutlass.Gemm(a, b, c, epilogue=function, epilogue_inputs=inputs)
for turn in range(4):
    a, b, c, extra, bias = drawn()
    inputs = {{"extra": extra.detach(), "bias": bias.detach(), "second": second.detach()}}
    def replace():
        inputs.clear()
        others.extend(of(M, N).detach() for _ in range(8))  # where the tensors were
    meanwhile[:] = [replace] if turn else []
    found = plan.run(a, b, c, epilogue_inputs=inputs)
    assert bool(inputs) is (turn == 0)
    meanwhile.clear()
    right((found, second), a, b, c, extra, bias)
""")


def test_a_process_without_torch() -> None:
    fake_gpu.run("""
import sys
sys.modules["torch"] = None
assert pycutlass.matmul(np.ones((0, 3), np.float32), np.ones((3, 2), np.float32)).shape == (0, 2)
""")
