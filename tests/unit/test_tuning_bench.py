"""What measures on a GPU, on a stand-in for the driver: its kernel of f32 runs on the host."""

from __future__ import annotations

import fake_gpu
import pytest

_SETUP = """
import numpy as np
from pycutlass import timing
from pycutlass.errors import PyCutlassError
from pycutlass.plan import Candidate, GemmKind
from pycutlass.tuning import Problem, TuningOptions
from pycutlass.tuning.bench import GpuBench
from pycutlass.tuning.measuring import WrongResultError
timing._LEAST_FLUSHED_BYTES = 3000
operation = gemm()
math = operation.tile_description.math_instruction
kind = GemmKind(operation.A, operation.B, operation.C, operation.D, math.element_a, math.element_b,
                math.element_accumulator, math.math_operation, operation.epilogue_functor)
def bench(m=20, n=12, k=16, **options):
    return GpuBench(Problem(kind, m, n, k), TuningOptions(**options))
candidate = Candidate(operation)
artifacts = [dict(each.artifacts) for each in candidate.kernels]
"""


def run(program: str) -> str:
    return fake_gpu.run(f"{_SETUP}\n{program}")


@pytest.mark.parametrize("distribution", ["normal", "uniform", "integers"])
def test_a_right_kernel_is_measured(distribution):
    run(f"""
made = bench(distribution="{distribution}")
made.prepare(0, candidate, artifacts, True)
times = made.measure(0)
assert len(times) == 3 and all(abs(time - 5) < 0.1 for time in times), times
""")


def test_a_wrong_result_is_seen():
    """The reference is one of other operands: what the kernel computes is wrong then."""
    run("""
made = bench()
made._a._drawn = {shape: values + np.float32(0.01) for shape, values in made._a._drawn.items()}
try:
    made.prepare(0, candidate, artifacts, True)
except WrongResultError as error:
    assert "elements that were checked are wrong, the first at (" in str(error), error
else:
    raise AssertionError("not seen")
made.prepare(0, candidate, artifacts, False)
""")


def test_equal_results_are_compared_once():
    """They are right where those that they equal are; others are looked at, and so is what is written beside them."""
    run("""
made = bench()
looked, check = [], made._check_memory
made._check_memory = lambda raw, candidate: (looked.append(len(raw)), check(raw, candidate))
for number in range(3):
    made.prepare(number, candidate, artifacts, True)
assert len(looked) == 1
known = next(iter(made._found_right.values()))
known[4096] ^= 1  # as if another kernel had rounded otherwise
made.prepare(3, candidate, artifacts, True)
assert len(looked) == 2
launch = made._launch
def stray(candidate):
    right = launch(candidate)
    def both():
        right()
        pycutlass._core.fill(made._buffer.pointer + 4095, 0, 1, made._stream)
    return both
made._launch = stray
try:
    made.prepare(4, candidate, artifacts, True)
except WrongResultError as error:
    assert str(error) == "it wrote beside D", error
else:
    raise AssertionError("not seen")
""")


@pytest.mark.parametrize("place", ["made._buffer.pointer + 4095", "made._buffer.pointer + 4096 + 4 * 20 * 12"])
def test_what_is_written_beside_d_is_seen(place):
    run(f"""
made = bench()
launch = made._launch
def stray(candidate):
    right = launch(candidate)
    def both():
        right()
        pycutlass._core.fill({place}, 0, 1, made._stream)
    return both
made._launch = stray
try:
    made.prepare(0, candidate, artifacts, True)
except WrongResultError as error:
    assert str(error) == "it wrote beside D", error
else:
    raise AssertionError("not seen")
""")


def test_elements_that_are_not_written_are_seen():
    run("""
made = bench()
made._launch = lambda candidate: lambda: None
try:
    made.prepare(0, candidate, artifacts, True)
except WrongResultError as error:
    assert "240 of 240 elements" in str(error) and "nan instead of" in str(error), error
else:
    raise AssertionError("not seen")
""")


def test_a_large_problem_is_checked_in_rows_from_the_first_to_the_last():
    run("""
from pycutlass.tuning import bench as module, gemm_work
module._MOST_PRODUCTS, gemm_work.ROWS = 1000.0, 7
made = bench(m=100)
made.prepare(0, candidate, artifacts, True)
((rows, exact),) = made._parts
assert len(rows) == 7 and rows[0] == 0 and rows[-1] == 99 and exact.shape == (7, 12)
""")


def test_split_k_is_measured_with_its_reduction():
    run("""
made = bench(k=64)
split = Candidate(operation, 2, True)
sums = reduction(operation, 20, 12)
split.__dict__["reduction"] = sums
made.prepare(0, split, [dict(operation.partial.artifacts), dict(sums.artifacts)], True)
times = made.measure(0)
assert all(abs(time - 10) < 0.1 for time in times), times
""")
