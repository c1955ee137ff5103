"""Reductions in groups of which some problems have no elements: nothing is left unwritten, since that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fake_gpu
import numpy as np
import pytest
from descriptions import native_parts, parts

import pycutlass
from pycutlass import GemmGroupedArguments, GemmOperationGrouped, GroupedGemm, SchedulerMode, cutlass, epilogue
from pycutlass.epilogue.nodes import REDUCTIONS
from pycutlass.errors import ArgumentError

KERNELS: dict[str, dict[str, Any]] = {
    "ampere": parts("f16", tile=(64, 64, 32)),
    "ampere, host": parts("f16", tile=(64, 64, 32)) | {"precompute_mode": SchedulerMode.Host},
    "hopper": native_parts(),
}
AXES = (None, 0, 1)
#: One that has elements, and one that lacks rows, columns, or both.
GROUPS = [[(16, 8, 8), empty] for empty in ((0, 8, 8), (16, 0, 8), (0, 0, 8), (0, 0, 0))]
UNTOUCHED = 77.0


def reduced(kind: str, axis: int | None) -> Any:
    reduce: Callable[..., Any] = getattr(epilogue, kind)

    @pycutlass.epilogue_function
    def f(accum: Any) -> Any:
        return {"D": accum, "result": reduce(accum, axis=axis)}

    return f


def results_of(m: int, n: int, axis: int | None) -> int:
    return {None: 1, 0: n, 1: m}[axis]


def drawn(sizes: Any, axis: int | None) -> dict[str, list[Any]]:
    random = np.random.default_rng(7)
    A = [random.integers(-3, 4, (m, k)).astype(np.float16) for m, _, k in sizes]
    B = [np.asfortranarray(random.integers(-3, 4, (k, n)).astype(np.float16)) for _, n, k in sizes]
    D = [np.full((m, n), UNTOUCHED, np.float16) for m, n, _ in sizes]
    results = [np.full(results_of(m, n, axis), UNTOUCHED, np.float32) for m, n, _ in sizes]
    return {"A": A, "B": B, "D": D, "result": results}


def is_taken(sizes: Any, axis: int | None) -> bool:
    """Whether no result is one of no elements."""
    return all((m and n) or not results_of(m, n, axis) for m, n, _ in sizes)


def check(kind: str, axis: int | None, given: dict[str, list[Any]]) -> None:
    for A, B, result in zip(given["A"], given["B"], given["result"], strict=True):
        product = A.astype(np.float64) @ B.astype(np.float64)
        if result.size:
            axes = (0, 1) if axis is None else axis
            wanted = REDUCTIONS[kind].numpy(product, axes)
            np.testing.assert_allclose(result, np.reshape(wanted, -1), rtol=1e-5)


def make(operation: Any, sizes: Any, given: dict[str, list[Any]]) -> GemmGroupedArguments:
    operands = given["A"], given["B"], None, given["D"]
    return GemmGroupedArguments(operation, sizes, *operands, epilogue={"result": given["result"]})


@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_arguments(kernel: str, kind: str, axis: int | None, sizes: Any, without_gpu: None) -> None:
    functor = reduced(kind, axis)(cutlass.float16, 8, cutlass.float32)
    operation = GemmOperationGrouped(**KERNELS[kernel] | {"epilogue_functor": functor})
    given = drawn(sizes, axis)
    assert bool(operation.supports(sizes)) is is_taken(sizes, axis)
    if is_taken(sizes, axis):
        arguments = make(operation, sizes, given)
    else:
        with pytest.raises(ArgumentError, match=r"result, and D of problem_sizes\[1\], .* leave such problems"):
            make(operation, sizes, given)
        with pytest.raises(ArgumentError, match=r"result, and D of problem_sizes\[1\], .* leave such problems"):
            operation.epilogue_outputs(sizes)
        # Nor do arguments go over to them, which are as they were.
        given = {name: each[:1] for name, each in given.items()}
        arguments, others = make(operation, sizes[:1], given), drawn(sizes, axis)
        results = others.pop("result")
        with pytest.raises(ArgumentError, match=r"problem_sizes\[1\], .* leave such problems out"):
            arguments.update(problem_sizes=sizes, **others, epilogue={"result": results})
        assert all((each == UNTOUCHED).all() for each in results)
    operation.run(arguments)
    arguments.sync()
    check(kind, axis, given)


@pytest.mark.parametrize("how", ["lists", "rows", "plan"])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_in_one_line(kind: str, axis: int | None, how: str, without_gpu: None) -> None:
    """Of lists, of rows that offs divides, and where a plan that was made of others meets an empty one."""
    f, sizes = reduced(kind, axis), GROUPS[0]
    given = drawn(sizes, axis)
    inputs: dict[str, Any] = {"result": given["result"]}
    whole = drawn([(16, 8, 8), (8, 8, 8)], axis)
    plan = GroupedGemm(whole["A"], whole["B"], epilogue=f, epilogue_inputs={"result": whole["result"]})

    def call() -> None:
        if how == "plan":
            plan.run(given["A"], given["B"], epilogue_inputs=inputs)
        elif how == "lists":
            pycutlass.grouped_matmul(given["A"], given["B"], epilogue=f, epilogue_inputs=inputs)
        else:
            inputs["result"] = np.concatenate(given["result"]) if axis == 1 else np.stack(given["result"])
            pycutlass.grouped_matmul(
                given["A"][0], np.stack(given["B"]), offs=[16, 16], epilogue=f, epilogue_inputs=inputs
            )
            if axis == 1:
                given["result"][0][:] = inputs["result"]

    if is_taken(sizes, axis):
        call()
        check(kind, axis, given)
        return
    with pytest.raises(ArgumentError, match=r"no elements: leave such problems out"):
        call()
    assert all((each == UNTOUCHED).all() for each in inputs["result"])


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_sizes_on_the_device_alone(kernel: str, axis: int | None) -> None:
    """There nobody could know in time: tables are taken of no function with reductions."""
    functor = reduced("sum", axis)(cutlass.float16, 8, cutlass.float32)
    operation = GemmOperationGrouped(**KERNELS[kernel] | {"epilogue_functor": functor})
    said = "cannot make a schedule" if kernel == "ampere, host" else "reduces D to result, for which the host"
    with pytest.raises(ArgumentError, match=said):
        GemmGroupedArguments.from_device(operation, 2, *[None] * 9)


def test_on_a_gpu_it_is_refused_before_anything_is_done() -> None:
    """Before the kernel is asked for, which was never compiled here, and before memory is taken."""
    program = """
from descriptions import parts

@pycutlass.epilogue_function
def total(accum):
    return {"D": accum, "total": pycutlass.epilogue.sum(accum)}

described = parts("f32") | {"epilogue_functor": total(pycutlass.cutlass.float32, 4)}
operation = pycutlass.GemmOperationGrouped(**described)
sizes = [(8, 12, 16), (0, 12, 16)]
A = [Array(0, on_host(m, k, 1)) for m, n, k in sizes]
B = [Array(0, on_host(k, n, 2, "F")) for m, n, k in sizes]
D = [Array(0, on_host(m, n, 3)) for m, n, k in sizes]
totals = [Array(0, np.full(1, np.nan, np.float32)) for each in sizes]
log()
refused(
    lambda: pycutlass.GemmGroupedArguments(operation, sizes, A, B, None, D, epilogue={"total": totals}),
    "reduces D to total, and D of problem_sizes[1], 0 x 12, has no elements: leave such problems out",
)
assert log() == []
"""
    fake_gpu.run(program, gpus=1)
