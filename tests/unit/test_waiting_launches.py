"""Launches that wait for tensors, of plans and of products in one line, on a stand-in for the driver."""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import ODD, THERE, TORCH

_PLAN = f"""{TORCH}
import gc, weakref
from fake_gpu.inside import log as asked
import pycutlass.plan.choices
from pycutlass.plan import Candidate
from pycutlass.plan.measured import generation
from pycutlass.plan.shortcut import products

M, N, K = 5, 6, 7
operation = gemm()
pycutlass.plan.choices.Choices.of = lambda self, m: Candidate(operation)

{THERE}
def drawn(m=M):
    a, b = of(m, K), of(N, K)
    view = b.t()
    view.array = b.array
    return a, view, there(np.full((m, N), np.nan, np.float32))

def launches():
    return sum(line.startswith("cuLaunchKernel") for line in asked())

def right(a, b, d, c=0):
    driver.fake_run()
    return torch.equal(d, a @ b + c)

def is_refused(call, *words):
    asked()
    refused(call, *words)
    assert not launches()

def once_more(compute, count=4):
    # the first calls make what the later ones find
    for _ in range(count):
        a, b, d = drawn()
        asked()
        assert compute(a, b, d) is d
        assert launches() == 1 and right(a, b, d)
"""


def test_a_plan_keeps_one_launch_and_no_tensor() -> None:
    program = f"""{_PLAN}
plan = pycutlass.Gemm(*drawn()[:2])
once_more(lambda a, b, d: plan.run(a, b, out=d))
once_more(lambda a, b, d: plan(a=a, b=b, out=d))
assert len(plan._waiting) == 1 and not plan._launches._of_thread
for m in (1, 2, 9):
    a, b, d = drawn(m)
    plan.run(a, b, out=d)
    assert right(a, b, d)
assert len(plan._waiting) == 4
tensors = [weakref.ref(tensor) for tensor in (a, b, d)]
del a, b, d
gc.collect()
assert not any(tensor() for tensor in tensors)

a, b, d = drawn()
plan.reset_operands(a, b, None, d)
assert plan.run() is d and right(a, b, d)
generation.begin()
plan.run(a, b, out=d)
assert len(plan._waiting) == 1 and right(a, b, d)
"""
    fake_gpu.run(program)


def test_products_keep_one_launch_for_equal_options() -> None:
    program = f"""{_PLAN}
once_more(lambda a, b, d: pycutlass.matmul(a, b, out=d))
assert len(products) == 1
a, b, d = drawn()
tensors = [weakref.ref(tensor) for tensor in (a, b, d)]
pycutlass.matmul(a, b, out=d)
driver.fake_run()
del a, b, d
gc.collect()
assert not any(tensor() for tensor in tensors)

a, b, d = drawn()
for _ in range(3):
    for alpha in (1, 1.0, 2, 2.0, -1, float("0.0")):  # which is another object each time
        pycutlass.matmul(a, b, out=d, alpha=alpha)
        driver.fake_run()
        assert torch.equal(d, alpha * (a @ b)), alpha
    bias, c = of(N), of(M, N)
    for source in ({{"bias": bias}}, {{"c": bias}}, {{"c": c, "beta": 1}}):
        assert pycutlass.matmul(a, b, out=d, **source) is d
        assert right(a, b, d, next(iter(source.values())))
    pycutlass.matmul(a, b, c, beta=-2, out=d)
    assert right(a, b, d, -2 * c)
    pycutlass.matmul(a, b, d, beta=1, out=d)  # in place
    assert right(a, b, d, a @ b - 2 * c)
assert len(products) == 1 + 6 + 4, len(products)  # by options: without alpha, with six, and with what is added

w = b.t()
once_more(lambda a, b, d: pycutlass.linear(a, b.t(), out=d))
is_refused(lambda: pycutlass.matmul(a, b, out=d, alpah=2), "alpah")
is_refused(lambda: pycutlass.matmul(a, b, out=d, bias=bias, c=c, beta=2, scales=3))
generation.begin()
pycutlass.matmul(a, b, out=d)
assert right(a, b, d)
"""
    fake_gpu.run(program)


def test_what_is_written_counts_as_written_to_torch() -> None:
    """However a launch is found: backward refuses then what was saved before."""
    program = f"""{_PLAN}
plan = pycutlass.Gemm(*drawn()[:2])
for compute in (lambda a, b, d: plan.run(a, b, out=d), lambda a, b, d: pycutlass.matmul(a, b, out=d)):
    for _ in range(4):
        a, b, d = drawn()
        saved = d.clone().requires_grad_() * d
        versions = a._version, b._version, d._version
        compute(a, b, d)
        assert (a._version, b._version, d._version) == (*versions[:2], versions[2] + 1)
        try:
            saved.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            raise AssertionError("not refused")
        driver.fake_run()
del a, b, d, saved
gc.collect()
"""
    fake_gpu.run(program)


def test_results_are_made_without_a_plan() -> None:
    program = f"""{_PLAN}
plan = pycutlass.Gemm(*drawn()[:2])
{_RETURNING}
for compute in (plan.run, pycutlass.matmul):
    for _ in range(4):
        a, b, _ = drawn()
        asked()
        d = compute(a, b)
        assert d is where[-1]
        assert launches() == 1
        assert right(a, b, d)
"""
    fake_gpu.run(program)


_RETURNING = """
made = torch.empty
where = []
def empty(*shape, **how):
    if not isinstance(shape[0], tuple):
        return made(*shape, **how)
    where.append(there(np.full(shape[0], np.nan, np.float32)))
    return where[-1]
torch.empty = empty
"""

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
assert entered and right(a, b, d)
is_refused(lambda: operator(a.requires_grad_(), b, out=d), "input", "gradient")
"""
    fake_gpu.run(program)


_RETURNED = f"""{_OPERATOR}{_RETURNING}
packet = torch.ops.pycutlass.matmul
"""


def test_an_operator_returns_known_products_without_the_dispatcher() -> None:
    program = f"""{_RETURNED}
for call, warm in ((packet, 2), (packet.default, 0)):
    for turn in range(4):
        a, b, _ = drawn()
        asked()
        entered.clear()
        d = call(a, b)
        assert d is where[-1] and launches() == 1 and right(a, b, d)
        assert not entered or turn < warm, turn  # the first two make what the later ones find
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
    entered.clear()
    d = packet(*arguments, **options)
    assert entered and right(a, b, d), options
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
assert entered and d.requires_grad and right(a.detach(), b, d.detach())
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

entered.clear()
with torch.autocast("cpu"):
    operator(a, b, out=d)
assert entered and right(a, b, d)
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


def test_threads_have_launches_of_their_own() -> None:
    program = f"""{_PLAN}
plan = pycutlass.Gemm(*drawn()[:2])
a, b, d = drawn()
plan.run(a, b, out=d)
assert right(a, b, d)
sys.setswitchinterval(1e-5)

def work(_):
    for number in range(200):
        a, b, d = drawn()
        plan.run(a, b, out=d) if number % 2 else pycutlass.matmul(a, b, out=d)
        assert right(a, b, d)

in_threads(work, *range(4))
assert 1 <= len(plan._waiting) <= 5
"""
    fake_gpu.run(program)


def test_a_launch_that_fails_waits_no_longer() -> None:
    program = f"""{_PLAN}
plan = pycutlass.Gemm(*drawn()[:2])
a, b, d = drawn()
plan.run(a, b, out=d)
driver.fake_fail(b"cuLaunchKernelEx", 700)
refused(lambda: plan.run(a, b, out=d), "700")
driver.fake_fail(b"cuLaunchKernelEx", 0)
assert not len(plan._waiting)
once_more(lambda a, b, d: plan.run(a, b, out=d))
"""
    fake_gpu.run(program)


@pytest.mark.parametrize("way", ["plan", "matmul"])
def test_other_tensors_get_what_they_get_at_first(way: str) -> None:
    """Whatever is odd about a tensor: it is computed, or refused in the same words, as before anything waited."""
    program = f"""{_PLAN}{ODD}
from types import SimpleNamespace
draw = random.Random(3)
plan = pycutlass.Gemm(*drawn()[:2])

def compute(a, b, out):
    return plan.run(a, b, out=out) if {way!r} == "plan" else pycutlass.matmul(a, b, out=out)

def forget():
    plan._waiting.clear()
    products.clear()
    pycutlass.plan.shortcut._known.clear()

def warm():
    for _ in range(3):
        given = drawn()
        compute(*given)
        driver.fake_run()

def memory_of(given):
    # of tensors that are in memory of the host
    for tensor in given:
        if type(tensor) in (torch.Tensor, torch.nn.Parameter, Own) and tensor.device.type == "cpu":
            if tensor.layout is torch.strided and not hasattr(tensor, "array"):
                storage = tensor.untyped_storage()
                if storage.nbytes():
                    yield storage.data_ptr(), storage.nbytes()

def outcome(*given):
    asked()
    lent = [] if "lazy" in odd else list(memory_of(given))  # to look is to copy
    for address, size in lent:
        driver.fake_lend(address, size, 0)
    try:
        compute(*given)
        driver.fake_run()
        return launches(), given[2].detach().clone()
    except PyCutlassError as error:
        assert not launches()
        return type(error), str(error)
    finally:
        for address, _ in lent:
            driver.fake_lend(address, 0, 0)

counts = {{}}
for odd, change in ODD.items():
    if "cupy" in odd or odd in ("numpy", "address", "lazy"):  # which do not wait, or have memory of their own
        continue
    for role in range(2 if odd == "nothing" else 3):
        given = list(drawn())
        try:
            given[role] = change(given[role])
        except Exception:
            continue
        forget()
        first = outcome(*given)
        forget()
        warm()
        later = outcome(*given)
        if isinstance(first[0], int):
            assert first[0] == later[0] and torch.equal(first[1], later[1]), (odd, role)
        else:
            assert first == later, (odd, role, first, later)
        counts[isinstance(first[0], int)] = counts.get(isinstance(first[0], int), 0) + 1
assert min(counts.values()) > 5, counts  # both are met
"""
    fake_gpu.run(program)
