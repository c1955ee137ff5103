"""Grouped GEMMs whose epilogue combines pairs of columns: D of each problem has half as many."""

from __future__ import annotations

from typing import Any

import fake_gpu
import numpy as np
import pytest
from descriptions import native_parts, parts
from epilogue_functions import gated

from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    SchedulerMode,
    TensorSpec,
    cutlass,
)
from pycutlass.epilogue import fusions
from pycutlass.errors import AlignmentError, ArgumentError

f16, f32 = cutlass.float16, cutlass.float32
SIZES = [(40, 48, 32), (0, 16, 16), (16, 80, 0), (8, 16, 8), (24, 0, 8), (72, 32, 24)]
KERNELS: dict[str, dict[str, Any]] = {
    "ampere, device": parts("f16", tile=(64, 64, 32)),
    "ampere, host": parts("f16", tile=(64, 64, 32)) | {"precompute_mode": SchedulerMode.Host},
    "hopper": native_parts(),
}


def make(kernel: str = "ampere, device", function: Any = gated) -> GemmOperationGrouped:
    return GemmOperationGrouped(**KERNELS[kernel] | {"epilogue_functor": function(f16, 8)})


def drawn(sizes: Any = SIZES, seed: int = 3) -> dict[str, Any]:
    """Return tensors of small integers, with a D that has room behind its lines, where 99 is."""
    random = np.random.default_rng(seed)

    def each(*shapes: tuple[int, ...]) -> list[Any]:
        return [random.integers(-2, 3, shape).astype(np.float16) for shape in shapes]

    return {
        "A": each(*((m, k) for m, _, k in sizes)),
        "B": [B.T for B in each(*((n, k) for _, n, k in sizes))],
        "memory": [np.full((m, n // 2 + 8), 99, np.float16) for m, n, _ in sizes],
        "bias": each(*((n,) for _, n, _ in sizes)),
        "left": each(*((m,) for m, _, _ in sizes)),
    }


def placed(given: dict[str, Any]) -> list[Any]:
    return [each[:, :-8] for each in given["memory"]]


def ports(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("bias", "left")}


def check(given: dict[str, Any]) -> None:
    problems = (given[name] for name in ("A", "B", "memory", "bias", "left"))
    for A, B, memory, bias, left in zip(*problems, strict=True):
        wanted = gated.numpy(A.astype(float) @ B.astype(float), bias=bias, left=left)
        np.testing.assert_array_equal(memory[:, :-8], wanted)
        assert (memory[:, -8:] == 99).all()


def run(arguments: GemmGroupedArguments) -> None:
    arguments.operation.run(arguments)
    arguments.sync()


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_problem_is_right(kernel: str, without_gpu: None) -> None:
    operation, given = make(kernel), drawn()
    run(GemmGroupedArguments(operation, SIZES, given["A"], given["B"], None, placed(given), epilogue=ports(given)))
    check(given)


def test_other_tensors_and_sizes(without_gpu: None) -> None:
    operation, given, other = make(), drawn(), drawn(seed=4)
    arguments = GemmGroupedArguments(
        operation, SIZES, given["A"], given["B"], None, placed(given), epilogue=ports(given)
    )
    arguments.update(A=other["A"], B=other["B"], D=placed(other), epilogue=ports(other))
    run(arguments)
    check(other)
    fewer = [(16, 32, 8), (8, 64, 16)]
    given = drawn(fewer)
    arguments.update(problem_sizes=fewer, A=given["A"], B=given["B"], D=placed(given), epilogue=ports(given))
    run(arguments)
    check(given)


def test_one_tensor_holds_all_problems(without_gpu: None) -> None:
    sizes = [(24, 32, 16)] * 3
    operation, given = make(), drawn(sizes)
    stacked = {name: np.stack(given[name]) for name in ("A", "memory", "bias", "left")}
    D = stacked["memory"][:, :, :-8]
    run(GemmGroupedArguments(operation, sizes, stacked["A"], given["B"], None, D, epilogue=ports(stacked)))
    check(given | {"memory": stacked["memory"]})


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_supported(kernel: str) -> None:
    operation = make(kernel)
    assert [each.shape for each in operation.outputs(SIZES)] == [(m, n // 2) for m, n, _ in SIZES]
    assert operation.outputs(SIZES)[0].strides == (24, 1)
    assert not operation.epilogue_outputs(SIZES)
    odd = operation.supports([(8, 16, 8), (8, 33, 8)]).reason
    assert "so that N must be even; got N=33 in problem_sizes[1]" in odd
    assert "alignment 8" in operation.supports([(8, 24, 8)]).reason  # D has 12 columns
    halves = [TensorSpec((m, n // 2), "float16") for m, n, _ in SIZES]
    assert operation.supports(SIZES, {"D": halves})
    whole = operation.supports(SIZES, {"D": [TensorSpec((m, n), "float16") for m, n, _ in SIZES]}).reason
    assert "D[0]" in whole
    assert "(40, 24)" in whole


def test_d_of_another_shape_is_refused(without_gpu: None) -> None:
    operation, given = make(), drawn()
    operands = given["A"], given["B"], None
    whole = [np.empty((m, n), np.float16) for m, n, _ in SIZES]
    with pytest.raises(ArgumentError, match=r"operand D\[0\] .*\(40, 24\)"):
        GemmGroupedArguments(operation, SIZES, *operands, whole, epilogue=ports(given))
    narrow = [memory[:, 1:-7] for memory in given["memory"]]
    with pytest.raises(AlignmentError, match=r"operand D\[0\]"):
        GemmGroupedArguments(operation, SIZES, *operands, narrow, epilogue=ports(given))
    with pytest.raises(ArgumentError, match=r"N must be even; got N=15 in problem_sizes\[1\]"):
        GemmGroupedArguments(operation, [(8, 16, 8), (8, 15, 8)], *operands, whole, epilogue=ports(given))


_ON_A_GPU = """
from descriptions import parts
from fake_gpu.inside import _load
from pycutlass.epilogue import Scalar, pairs

@pycutlass.epilogue_function
def product(accum, alpha: Scalar = 1.0):
    even, odd = pairs(accum)
    return alpha * even * odd

described = parts("f32") | {"epilogue_functor": product(pycutlass.cutlass.float32, 4)}
operation = _load(pycutlass.GemmOperationGrouped(**described), "grouped_gated")
SIZES = [(8, 16, 16), (0, 8, 4), (4, 8, 4), (12, 24, 8)]

def drawn(seed, sizes=SIZES):
    made = {name: [] for name in "ABD"}
    for number, (m, n, k) in enumerate(sizes):
        made["A"].append(on_host(m, k, seed + number))
        made["B"].append(on_host(k, n, seed + 10 + number, "F"))
        made["D"].append(np.full((m, n // 2), np.nan, np.float32))
    return made

def there(host):
    return {name: [Array(0, each) for each in arrays] for name, arrays in host.items()}

def run(arguments):
    operation.run(arguments)
    arguments.sync()

def check(host, D, alpha=1):
    for a, b, d in zip(host["A"], host["B"], D, strict=True):
        x = a @ b
        np.testing.assert_array_equal(d, alpha * x[:, 0::2] * x[:, 1::2])

def now(arrays):
    return [each.now() for each in arrays]
"""


def test_tensors_on_a_gpu() -> None:
    """Other tensors, and other sizes without other tensors of the epilogue: D keeps half of the columns."""
    fake_gpu.run(
        _ON_A_GPU
        + """
host = drawn(1)
here = there(host)
arguments = pycutlass.GemmGroupedArguments(operation, SIZES, here["A"], here["B"], None, here["D"])
run(arguments)
check(host, now(here["D"]))
other = drawn(2)
elsewhere = there(other)
arguments.update(**elsewhere)
run(arguments)
check(other, now(elsewhere["D"]))
more = SIZES[2:] + [(16, 32, 8), (4, 8, 0)]
host = drawn(3, more)
here = there(host)
arguments.update(problem_sizes=more, **here)
run(arguments)
check(host, now(here["D"]))
whole = [Array(0, np.zeros((m, n), np.float32)) for m, n, _ in more]
refused(lambda: arguments.update(problem_sizes=more, A=here["A"], B=here["B"], D=whole), "operand D[0]")
"""
    )


def test_tables_that_the_user_keeps() -> None:
    fake_gpu.run(
        _ON_A_GPU
        + """
def table(values, dtype=np.int64):
    return Array(0, np.array(list(values), dtype))

host = drawn(5)
here = there(host)
m, n, k = ([size[axis] for size in SIZES] for axis in range(3))
pointers = {name: table(each.data.ptr for each in here[name]) for name in "ABD"}
arguments = pycutlass.GemmGroupedArguments.from_device(
    operation, len(SIZES), table(SIZES, np.int32), pointers["A"], pointers["B"], None, pointers["D"],
    table(k), table(k), None, table(each // 2 for each in n),
    output_op=operation.epilogue_type(alpha=2.0),
)
run(arguments)
check(host, now(here["D"]), 2)
"""
    )


def test_ready_made_ones_have_groups() -> None:
    for function in (fusions.swiglu, fusions.geglu, fusions.bias_swiglu, fusions.bias_geglu):
        for kernel in KERNELS:
            assert make(kernel, function).supports(SIZES)
