"""Launches of plans of convolutions on a stand-in for the driver: how many there are, of what, and on which stream."""

from __future__ import annotations

import fake_gpu

_PLAN = """
from pycutlass.plan import Conv2dCandidate, Conv2dKind

operation = fprop()
math = operation.tile_description.math_instruction

def kind_of(groups):
    return Conv2dKind(operation.conv_kind, operation.A, operation.B, operation.C, math.element_a, math.element_b,
                      math.element_accumulator, math.math_operation, operation.epilogue_functor, groups > 1)

def plan_of(groups=1, slices=1):
    plan = pycutlass.Conv2d(pycutlass.TensorSpec((2, 5, 6, 4), "float32"),
                            pycutlass.TensorSpec((6, 3, 2, 4 // groups), "float32"), groups=groups)
    plan.kind = kind_of(groups)
    candidate = Conv2dCandidate(operation, slices, slices > 1, groups > 1)
    plan._choices._picked = {2: candidate, 3: candidate}
    return plan

def drawn(images=2, groups=1):
    shapes = (images, 5, 6, 4), (6, 3, 2, 4 // groups)
    return tuple(np.random.randint(-4, 5, shape).astype(np.float32) for shape in shapes)

def convolved(x, w, groups=1):
    c, k = x.shape[3] // groups, w.shape[0] // groups
    return np.concatenate([
        sum(x[:, i : i + 3, j : j + 5, g * c : (g + 1) * c] @ w[g * k : (g + 1) * k, i, j].T
            for i in range(3) for j in range(2))
        for g in range(groups)
    ], axis=-1)

def launches():
    return [line for line in log() if line.startswith("cuLaunchKernel")]
"""


def test_new_tensors_are_exchanged_and_go_to_their_stream() -> None:
    program = f"""{_PLAN}
plan, stream = plan_of(), Stream(0)
for number in range(6):
    x, w = drawn(2 + number % 2)
    out = np.full((len(x), 3, 5, 6), np.nan, np.float32)
    log()
    plan.run(x, w, out=out, stream=stream.ptr if number % 3 else None)
    assert len(launches()) == 1
    assert np.array_equal(out, convolved(x, w))
assert len(plan._launches._of_thread) == 2
in_a_thread(lambda: plan.run(x, w, out=out))
stream.destroy()
"""
    fake_gpu.run(program)


def test_groups_are_launched_one_after_the_other() -> None:
    program = f"""{_PLAN}
plan = plan_of(groups=2)
for number in range(3):
    x, w = drawn(groups=2)
    wide = np.full((2, 3, 5, 8), 77, np.float32)
    log()
    plan.run(x, w, out=wide[..., 1:7])
    assert len(launches()) == 2
    assert np.array_equal(wide[..., 1:7], convolved(x, w, 2))
    assert (wide[..., [0, 7]] == 77).all()
"""
    fake_gpu.run(program)


def test_what_is_refused_launches_nothing() -> None:
    program = f"""{_PLAN}
plan = plan_of()
x, w = drawn()
out = np.full((2, 3, 5, 6), np.nan, np.float32)
plan.run(x, w, out=out)
log()
refused(lambda: plan.run(x[:, :4], w, out=out), "any number of images")
refused(lambda: plan.run(x.astype(np.float16), w, out=out), "float16")
refused(lambda: plan.run(x, w, out=out[..., :5]), "out must have shape")
refused(lambda: plan.run(np.asfortranarray(x), w, out=out), "adjacent channels")
assert not launches()
"""
    fake_gpu.run(program)
