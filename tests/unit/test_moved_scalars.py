"""Scalars in device memory that go over to other memory between launches, on a stand-in for the driver.

Every launch reads them where they are then: never where they were, and none is refused for it.
"""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import THERE, TORCH

_START = f"""{TORCH}
import gc
from fake_gpu.inside import log as asked
from pycutlass.epilogue import given_scalars
from pycutlass.plan import Candidate
from pycutlass.plan.shortcut import products

on_device = given_scalars._is_on_device
given_scalars._is_on_device = lambda value: on_device(value) or isinstance(value, torch.Tensor)
{THERE}

def scalar(value, *shape):
    return there(np.full(shape, value, np.float32))

class Foreign(Array):
    # A scalar of a library that is like cupy, whose array may go over to other memory.
    size, __cuda_array_interface__ = 1, {{}}

    def __init__(self, value):
        super().__init__(0, np.full((), value, np.float32))

def move(scalar, value):
    # goes over to other memory, and what was there is overwritten
    other = Foreign(value) if isinstance(scalar, Foreign) else there(np.full(tuple(scalar.shape), value, np.float32))
    old = (scalar if isinstance(scalar, Foreign) else scalar.array)
    memory_at(old.data.ptr, (1,))[...] = np.nan
    if isinstance(scalar, Foreign):
        scalar.data, other.data = other.data, scalar.data
        kept.append(other)
    else:
        kept.append(old)
        scalar.data, scalar.array = other, other.array

kept = []

def launches():
    return sum(line.startswith("cuLaunchKernel") for line in asked())
"""

_GEMM = f"""{_START}
import pycutlass.plan.choices

M, N, K = 5, 6, 7
operation = gemm()
pycutlass.plan.choices.Choices.of = lambda self, m: Candidate(operation)

def drawn():
    a, b = of(M, K), of(N, K)
    view = b.t()
    view.array = b.array
    return a, view, there(np.full((M, N), np.nan, np.float32))

def check(compute, alpha, beta=None):
    # `compute` makes D of A, B and D; the scalars move before some of the calls
    values = {{"alpha": 2.0, "beta": 0.0}}
    for number in range(9):
        if number % 3:
            for name, each in (("alpha", alpha), ("beta", beta)):
                if each is not None:
                    values[name] += 1
                    move(each, values[name])
        a, b, d = drawn()
        c = of(M, N)
        asked()
        compute(a, b, c, d)
        assert launches() == 1
        driver.fake_run()
        assert torch.equal(d, values["alpha"] * (a @ b) + values["beta"] * c), number
"""


@pytest.mark.parametrize("made", ["scalar(2)", "scalar(2, 1)", "scalar(2, 1, 1)", "Foreign(2)"])
def test_plans_and_products_of_matrices(made: str) -> None:
    program = f"""{_GEMM}
alpha = {made}
plan = pycutlass.Gemm(*drawn()[:2], alpha=alpha)
check(lambda a, b, c, d: plan.run(a, b, out=d), alpha)
check(lambda a, b, c, d: plan.run_once(a, b, None, d), (move(alpha, 2), alpha)[1])
check(lambda a, b, c, d: pycutlass.matmul(a, b, alpha=alpha, out=d), (move(alpha, 2), alpha)[1])
check(lambda a, b, c, d: pycutlass.matmul(a, b, plan=plan, out=d), (move(alpha, 2), alpha)[1])

alpha, beta = {made}, scalar(0)
adding = pycutlass.Gemm(*drawn()[:2], of(M, N), alpha=alpha, beta=beta)
check(lambda a, b, c, d: adding.run(a, b, c, d), alpha, beta)
move(alpha, 2), move(beta, 0)
check(lambda a, b, c, d: pycutlass.matmul(a, b, c, alpha=alpha, beta=beta, out=d), alpha, beta)
"""
    fake_gpu.run(program)


def test_launches_with_such_scalars_wait_for_tensors() -> None:
    """They are found in C++, as those with numbers are."""
    program = f"""{_GEMM}
alpha = scalar(2)
plan = pycutlass.Gemm(*drawn()[:2], alpha=alpha)
entered = []
for owner, name in ((pycutlass.Gemm, "_first"), (pycutlass.plan.shortcut.Shortcut, "run")):
    def counted(*given, called=name, before=getattr(owner, name), **named):
        entered.append(called)
        return before(*given, **named)
    setattr(owner, name, counted)
for compute in (lambda a, b, c, d: plan.run(a, b, out=d),
                lambda a, b, c, d: pycutlass.matmul(a, b, alpha=alpha, out=d)):
    check(compute, alpha)
    move(alpha, 2)
assert entered == ["_first", "_first", "run"], entered
assert len(plan._waiting) == len(products) == 1
del compute
"""
    fake_gpu.run(program)


def test_other_scalars_of_the_same_kind_need_no_other_plan() -> None:
    """Programs compute such scalars: the tensor is another one for each product."""
    program = f"""{_GEMM}
made = []
start = pycutlass.Gemm._start
pycutlass.Gemm._start = lambda plan: (made.append(plan), start(plan))[1]
for value in (2, 3, 3, 5):
    a, b, d = drawn()
    alpha = scalar(value)
    pycutlass.matmul(a, b, alpha=alpha, out=d)
    driver.fake_run()
    assert torch.equal(d, value * (a @ b)), value
assert len(made) == 1 and not len(products)
for _ in range(3):
    pycutlass.matmul(a, b, alpha=alpha, out=d)
    driver.fake_run()
    assert torch.equal(d, 5 * (a @ b))
assert len(made) == 1 and len(products) == 1

for other, words in ((torch.ones((), dtype=torch.float64), "float64"), (scalar(1, 2), "2 elements")):
    refused(lambda: pycutlass.matmul(a, b, alpha=other, out=d), "alpha", words)
c, beta = of(M, N), scalar(1)
for value in (2, 3, 4):
    alpha, beta = scalar(value), scalar(-value)
    pycutlass.matmul(a, b, c, alpha=alpha, beta=beta, out=d)
    driver.fake_run()
    assert torch.equal(d, value * (a @ b) - value * c), value
"""
    fake_gpu.run(program)


@pytest.mark.parametrize("of_torch", [True, False])
def test_split_k_groups_and_convolutions(of_torch: bool) -> None:
    made = "scalar(2)" if of_torch else "Foreign(2)"
    program = f"""{_START}
from pycutlass.plan import Conv2dCandidate, Conv2dKind, GemmKind, GroupCandidate
import pycutlass.plan.choices

def kind_of(kind, operation, *first):
    math = operation.tile_description.math_instruction
    return kind(*first, operation.A, operation.B, operation.C, *([operation.C] if kind is GemmKind else []),
                math.element_a, math.element_b, math.element_accumulator, math.math_operation,
                operation.epilogue_functor)

def small(*shape):
    return np.random.randint(-4, 5, shape).astype(np.float32)

alpha = {made}
x, w = small(2, 5, 6, 4), small(6, 1, 1, 4)
convolution = fprop()
images = pycutlass.Conv2d(x, w, alpha=alpha)
images.kind = kind_of(Conv2dKind, convolution, convolution.conv_kind)
images._choices._picked = {{2: Conv2dCandidate(convolution, 1, False, False)}}

grouped = group("device")
xs, ws = [small(5, 7), small(3, 7)], [small(6, 7).T] * 2
groups = pycutlass.GroupedGemm(xs, ws, alpha=alpha)
groups.kind = groups._choices._kind = kind_of(GemmKind, grouped)
groups._choices.of = lambda sizes, axis, on_device: GroupCandidate(grouped)
other = [small(2, 7), small(4, 7)]  # of other extents

operation = gemm()
whole = reduction(operation, 5, 6)
pycutlass.plan.choices.Choices.of = lambda self, m: Candidate(operation, 2, whole)
split = pycutlass.Gemm(xs[0], ws[0], alpha=alpha)

for number in range(12):
    value = 2 + (number + 1) // 2
    if number % 2:
        move(alpha, value)
    assert np.array_equal(images.run(x, w), value * (x @ w[:, 0, 0].T)), number
    given = other if number % 4 == 3 else xs
    assert all(np.array_equal(d, value * (x @ w)) for d, x, w in zip(groups.run(given, ws), given, ws)), number
    assert np.array_equal(split.run(xs[0], ws[0]), value * (xs[0] @ ws[0])), number
"""
    fake_gpu.run(program)


def test_arguments_read_a_scalar_where_it_is() -> None:
    program = f"""{_GEMM}
alpha = scalar(2)
output_op = operation.epilogue_type(alpha)
move(alpha, 3)  # before the arguments are made
a, b, d = drawn()
arguments = pycutlass.GemmArguments(operation, [M, N, K], a, b, None, d, output_op=output_op)
stream = Stream(0)
for value in (3, 4, 4, 5):
    if value > 3:
        move(alpha, value)
    operation.run(arguments, stream.ptr)
    arguments.sync()
    assert torch.equal(d, value * (a @ b)), value
stream.destroy()
"""
    fake_gpu.run(program)


def test_a_scalar_that_is_none_any_more_is_refused_and_launches_nothing() -> None:
    program = f"""{_GEMM}
alpha = scalar(2)
plan = pycutlass.Gemm(*drawn()[:2], alpha=alpha)

def freed():
    tensor = torch.ones(())
    tensor.untyped_storage().resize_(0)
    return tensor

ways = {{
    "plan": lambda: plan.run(a, b, out=d),
    "matmul": lambda: pycutlass.matmul(a, b, alpha=alpha, out=d),
}}
spoilt = {{
    "float64": (lambda: setattr(alpha, "data", torch.ones((), dtype=torch.float64)), ("alpha", "float64")),
    "2 elements": (lambda: setattr(alpha, "data", there(np.ones(2, np.float32))), ("alpha", "2")),
    "no memory": (lambda: setattr(alpha, "data", freed()), ("alpha", "no memory")),
    "gradient": (lambda: alpha.requires_grad_(), ("alpha requires a gradient",)),
}}
for name, compute in ways.items():
    for spoil, words in spoilt.values():
        alpha.requires_grad_(False)
        alpha.data = fresh = scalar(2)
        a, b, d = drawn()
        for _ in range(3):
            compute()
            driver.fake_run()
            assert torch.equal(d, 2 * (a @ b))
        spoil()
        for _ in range(3):
            asked()
            refused(compute, *words)
            assert not launches()
        if "gradient" in words[0]:
            with torch.no_grad():
                compute()
            driver.fake_run()
del ways, compute
"""
    fake_gpu.run(program)


def test_a_scalar_of_another_gpu_is_refused() -> None:
    program = f"""{_GEMM}
alpha = Foreign(2)
plan = pycutlass.Gemm(*drawn()[:2], alpha=alpha)
for ordinal in (0, 1, 0):
    alpha.device = SimpleNamespace(id=ordinal)
    a, b, d = drawn()
    asked()
    if ordinal:
        refused(lambda: plan.run(a, b, out=d), "alpha is on GPU 1", "the operands are on GPU 0")
        assert not launches()
        continue
    plan.run(a, b, out=d)
    driver.fake_run()
    assert torch.equal(d, 2 * (a @ b))
"""
    fake_gpu.run(program)


def test_a_plan_is_checked_with_the_number_that_is_there() -> None:
    program = f"""{_GEMM}
from pycutlass.plan import checking

class CUdeviceptr(int):
    pass

checking.moved = lambda array, ordinal: array  # torch has no GPU here
alpha = scalar(2)
a, b = np.ones((M, K), np.float32), np.ones((N, K), np.float32).T
assert pycutlass.Gemm(a, b, alpha=alpha).check() <= 1
of_address = pycutlass.Gemm(a, b, alpha=CUdeviceptr(alpha.data_ptr()))
refused(of_address.check, "check compares D with one number alpha", "CUdeviceptr", "make a plan with a number")
"""
    fake_gpu.run(program)
