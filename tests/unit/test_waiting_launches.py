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

recorded = pycutlass.matmul.__wrapped__.__wrapped__
known_calls = recorded.__closure__[recorded.__code__.co_freevars.index("self")].cell_contents.calls

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
assert len(known_calls) == 1
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
# By options: without alpha, with six, and with what is added. In Python 2 and 2.0 are one, and C may be D.
assert (len(known_calls), len(products)) == (1 + 6 + 4, 3), (len(known_calls), len(products))

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
torch.empty, torch.empty_strided = empty, lambda shape, stride, **how: empty(shape)
"""


def test_a_bias_has_its_place() -> None:
    """From the second run on C++ finds it, by its name or as what is added; all else goes where it is explained."""
    fake_gpu.run(f"""{_PLAN}
from pycutlass.plan.base import Plan
checked, looked = Plan._checked, []
Plan._checked = lambda *given: (looked.append(given), checked(*given))[1]
a, b, d = drawn()
plan = pycutlass.Gemm(a, b, bias=of(N))
for turn in range(3):
    for way in ("by name", "as c", "by place"):
        a, b, d = drawn()
        bias = of(N)
        looked.clear()
        if way == "by name":
            assert plan.run(a, b, out=d, bias=bias) is d
        elif way == "as c":
            assert plan.run(a, b, bias, d) is d
        else:
            assert plan(a, b, None, d, None, {{}}, bias) is d
        assert right(a, b, d, bias) and bool(looked) is (turn == 0 and way == "by name"), (turn, way)
is_refused(lambda: plan.run(a, b, out=d), "bias")
is_refused(lambda: plan.run(a, b, bias, out=d, bias=bias), "c")
is_refused(lambda: plan.run(a, b, out=d, bias=bias, epilogue_inputs={{"bias": bias}}), "bias")
is_refused(lambda: plan.run(a, b, out=d, bias=of(N + 1)), "bias")
is_refused(lambda: plan.run(a, b, out=d, bias=bias, epilogue_inputs=[]), "epilogue_inputs")
looked.clear()
plain = pycutlass.Gemm(a, b)
for _ in range(3):
    plain.run(a, b, out=d)
    assert right(a, b, d)
assert len(looked) == 1
is_refused(lambda: plain.run(a, b, out=d, bias=bias), "bias")
""")


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
