"""Launches of plans on a stand-in for the driver: other tensors and other streams are really taken."""

from __future__ import annotations

import fake_gpu

_PLAN = """
from pycutlass.plan import Candidate, GemmKind

operation = gemm()
math = operation.tile_description.math_instruction
kind = GemmKind(operation.A, operation.B, operation.C, operation.D, math.element_a, math.element_b,
                math.element_accumulator, math.math_operation, operation.epilogue_functor)
M, N, K = 5, 6, 7

def plan_of():
    plan = pycutlass.Gemm(pycutlass.TensorSpec((M, K), "float32"),
                          pycutlass.TensorSpec((K, N), "float32", (1, K)))
    plan.kind = kind
    plan._choices._picked[M] = Candidate(operation)
    return plan

def drawn():
    a, b = (np.random.randint(-4, 5, shape).astype(np.float32) for shape in ((M, K), (N, K)))
    return a, b

def on_gpu(a, b):
    there = Array(0, a), Array(0, b), Array(0, np.zeros((M, N), np.float32))
    return there

plan = plan_of()
"""


def test_new_tensors_are_exchanged_and_go_to_their_stream() -> None:
    program = f"""{_PLAN}
stream = Stream(0)
for number in range(4):
    a, b = drawn()
    out = np.full((M, N), np.nan, np.float32)
    log()
    plan.run(a, b.T, out=out, stream=stream.ptr if number % 2 else None)
    launches = [line for line in log() if line.startswith("cuLaunchKernel")]
    assert len(launches) == 1, launches
    assert np.array_equal(out, a @ b.T), (out, a @ b.T)
assert len(plan._launches._of_thread) == 1
in_a_thread(lambda: plan.run(a, b.T, out=out))
stream.destroy()
"""
    fake_gpu.run(program)


def test_what_is_refused_launches_nothing() -> None:
    program = f"""{_PLAN}
a, b = drawn()
out = np.full((M, N), np.nan, np.float32)
plan.run(a, b.T, out=out)
log()
refused(lambda: plan.run(a, b[:4].T, out=out), "N=4")
refused(lambda: plan.run(a.astype(np.float16), b.T, out=out), "float16")
refused(lambda: plan.run(a, b.T, out=out[:, :5]), "out must have shape")
assert not [line for line in log() if line.startswith("cuLaunchKernel")]
"""
    fake_gpu.run(program)
