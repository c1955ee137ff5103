"""The operator of torch for products, on a stand-in for the driver: known ones without torch's dispatcher."""

from __future__ import annotations

import fake_gpu
from test_waiting_launches import _PLAN, _RETURNING

_OPERATOR = f"""{_PLAN}
import pycutlass.pytorch
from pycutlass.pytorch import products as operators

entered = []
product = operators.product
def counted(*tensors, **options):
    entered.append(tensors)
    return product(*tensors, **options)
operators.product = counted
operator = torch.ops.pycutlass.matmul.out

def compute(a, b, d):
    # how often the dispatcher was needed
    entered.clear()
    versions = a._version, b._version, d._version
    assert operator(a, b, out=d) is None
    assert a._version == versions[0] and b._version == versions[1] and d._version > versions[2]
    return d

once_more(compute)
assert not entered
"""


def test_an_operator_launches_known_products_without_the_dispatcher() -> None:
    program = f"""{_OPERATOR}
assert operator is torch.ops.pycutlass.matmul.out and {{operator: 1}}[torch.ops.pycutlass.matmul.out] == 1
with torch.inference_mode():
    entered.clear()
    a, b, d = drawn()
    operator(a, b, out=d)
    assert right(a, b, d)
for context in (torch.no_grad(), torch.enable_grad()):
    with context:
        a, b, d = drawn()
        assert right(a, b, compute(a, b, d)) and not entered

a, b, d = drawn(2)  # others come by the dispatcher, once
compute(a, b, d)
assert entered and right(a, b, d)
for more, options in (((d,), {{}}), ((), {{}}), ((), {{"out": d, "alpha": 2}}), ((), {{"out": None}})):
    asked()
    try:
        operator(a, b, *more, **options)
    except (RuntimeError, pycutlass.errors.PyCutlassError):
        assert not launches()
    else:
        raise AssertionError("not refused")
entered.clear()
operator(input=a, other=b, out=d)
assert not entered and right(a, b, d)
is_refused(lambda: operator(a.requires_grad_(), b, out=d), "input", "gradient")
"""
    fake_gpu.run(program)


_RETURNED = f"""{_OPERATOR}{_RETURNING}
packet = torch.ops.pycutlass.matmul
"""


def test_an_operator_returns_known_products_without_the_dispatcher() -> None:
    program = f"""{_RETURNED}
for call, warm in ((packet, 1), (packet.default, 0)):
    for turn in range(4):
        a, b, _ = drawn()
        asked()
        entered.clear()
        d = call(a, b)
        assert d is where[-1] and launches() == 1 and right(a, b, d)
        assert not entered or turn < warm, (turn, call, entered)
assert {{packet: 1}}[torch.ops.pycutlass.matmul] == 1 and torch.ops.pycutlass.matmul is packet
a, b, d = drawn()
assert packet(a, b, out=d) is None and right(a, b, d)  # torch takes the other one

with torch.inference_mode():
    a, b, _ = drawn()
    assert right(a, b, packet(a, b))
for context in (torch.no_grad(), torch.enable_grad()):
    with context:
        entered.clear()
        a, b, _ = drawn()
        assert right(a, b, packet(a, b)) and not entered

for arguments, options in (
    ((a, b), {{"out_dtype": torch.float32}}),
    ((), {{"input": a, "other": b}}),
    ((a,), {{"other": b}}),
):
    for turn in range(2):
        entered.clear()
        d = packet(*arguments, **options)
        assert right(a, b, d) and (not entered or (turn == 0 and "out_dtype" in options)), options
for arguments, options in (
    ((a,), {{}}),
    ((a, b, None), {{}}),
    ((a, b), {{"out": None}}),
    ((a, b), {{"alpha": 2}}),
    ((a, None), {{}}),
):
    asked()
    try:
        packet(*arguments, **options)
    except (RuntimeError, pycutlass.errors.PyCutlassError):
        assert not launches(), (arguments, options)
    else:
        raise AssertionError(options)
asked()
try:
    packet.default(a, b, out=d)
except RuntimeError as error:
    assert "out" in str(error) and not launches()
else:
    raise AssertionError("the default takes no out")
"""
    fake_gpu.run(program)


def test_an_operator_is_asked_what_torch_asks_of_others() -> None:
    program = f"""{_RETURNED}
import inspect
other = torch.ops.pycutlass.linear
assert inspect.signature(packet) == inspect.signature(other) and inspect.unwrap(packet) is packet
assert not hasattr(packet, "__wrapped__") and packet.__name__ == "matmul"
class Layer:
    multiply, product, one, op = packet, packet.default, pycutlass.matmul, packet.op
assert Layer().multiply is packet and Layer().product is packet.default
a, b, d = drawn()
for call in (packet, packet.default, lambda a, b: packet(a, b, out_dtype=torch.float32), pycutlass.matmul):
    assert right(a, b, call(a, b))
"""
    fake_gpu.run(program)


def test_a_product_that_is_returned_has_its_gradient() -> None:
    program = f"""{_RETURNED}
for _ in range(3):
    a, b, _ = drawn()
    right(a, b, packet(a, b))
entered.clear()
a, b, _ = drawn()
d = packet(a.requires_grad_(), b)
assert d.requires_grad and right(a.detach(), b, d.detach())
with torch.no_grad():
    entered.clear()
    d = packet(a, b)
    assert not d.requires_grad and right(a.detach(), b, d)
a, b, _ = drawn()
entered.clear()
d = packet(a, b)
assert not entered and not d.requires_grad and d.is_leaf and right(a, b, d)
"""
    fake_gpu.run(program)


def test_what_would_see_a_call_of_an_operator_does() -> None:
    program = f"""{_OPERATOR}
import os, warnings
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

{_RETURNING}
packet = torch.ops.pycutlass.matmul
for _ in range(3):
    a, b, _ = drawn()
    assert right(a, b, packet(a, b))
seen = []
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(function)
        return function(*args, **(kwargs or {{}}))
class Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(function)
        return function(*args, **(kwargs or {{}}))
for mode in (Dispatch(), Function()):
    a, b, d = drawn()
    seen.clear()
    with mode:
        operator(a, b, out=d)
    assert operator in seen and right(a, b, d), mode
    seen.clear()
    with mode:
        d = packet(a, b)
    assert packet in seen or packet.default in seen, (mode, seen)
    assert right(a, b, d)

a, b, d = drawn()
errors, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 2)  # the profiler says there when it begins
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    operator(a, b, out=d)
    packet(a, b)
os.dup2(errors, 2)
assert right(a, b, d) and right(a, b, where[-1])
assert sum(each.count for each in profile.key_averages() if each.key == "pycutlass::matmul") == 2

with torch.autocast("cpu"):
    operator(a, b, out=d)
assert right(a, b, d)
entered.clear()
with torch.autocast("cpu"):  # which casts to bfloat16, and the kernel takes float32
    is_refused(lambda: packet(a, b), "bfloat16")
assert entered[0][0].dtype is torch.bfloat16
is_refused(lambda: torch.func.vmap(lambda x: (operator(a, b, out=d), x)[1])(torch.zeros(1)), "transform")
with torch.autograd.forward_ad.dual_level(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own use of torch.jit
    dual = torch.autograd.forward_ad.make_dual(a, torch.ones_like(a))
    is_refused(lambda: operator(dual, b, out=d), "forward mode")
    del dual
a, b, d = drawn()
assert right(a, b, compute(a, b, d)) and not entered
"""
    fake_gpu.run(program)
