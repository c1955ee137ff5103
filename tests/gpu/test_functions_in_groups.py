"""Epilogue functions in grouped GEMMs on a GPU: every element of every output of every problem."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from descriptions import native_parts, parts
from epilogue_functions import FUNCTIONS
from function_cases import check
from function_cases import drawn as drawn_alone

import pycutlass
from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    SchedulerMode,
    TensorDescription,
    cutlass,
    epilogue,
)

KERNELS = {
    "ampere, device": lambda: parts("f16"),
    "ampere, host": lambda: parts("f16") | {"precompute_mode": SchedulerMode.Host},
    "ampere f32": lambda: parts("f32"),
    "hopper cooperative": lambda: native_parts(tile=(128, 128, 64), cluster=(2, 1)),
    "hopper pingpong": lambda: native_parts(tile=(64, 128, 64), cluster=(1, 1), schedule=KernelSchedule.Pingpong),
}
SIZES = [(264, 136, 72), (0, 128, 64), (8, 520, 0), (1000, 8, 136), (128, 256, 64), (16, 0, 8), (72, 264, 200)]


def make(kernel: str, name: str) -> Any:
    described = KERNELS[kernel]()
    functor = FUNCTIONS[name](described["C"].element, described["C"].alignment, cutlass.float32)
    operation = GemmOperationGrouped(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    return operation


def drawn(operation: Any, sizes: Any) -> list[dict[str, Any]]:
    return [drawn_alone(operation.single, *size) for size in sizes]


def listed(operation: Any, given: list[dict[str, Any]]) -> tuple[list[Any], dict[str, Any]]:
    operands = [[each[name] for each in given] for name in "ABCD"]
    if not operation.epilogue_functor.reads_source:
        operands[2] = None
    return operands, {port.name: [each[port.name] for each in given] for port in operation.epilogue_functor.ports}


def launch(operation: Any, sizes: Any, given: list[dict[str, Any]]) -> Any:
    operands, ports = listed(operation, given)
    arguments = GemmGroupedArguments(operation, sizes, *operands, epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    return arguments


def check_all(operation: Any, sizes: Any, given: list[dict[str, Any]]) -> None:
    for (m, n, _), each in zip(sizes, given, strict=True):
        if m and n:
            check(operation.single, each)


#: Nothing is reduced of no elements.
WHOLE = [size for size in SIZES if size[0] and size[1]]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_output_of_every_problem_is_right(kernel: str, name: str) -> None:
    operation, sizes = make(kernel, name), WHOLE if name == "reduced" else SIZES
    given = drawn(operation, sizes)
    launch(operation, sizes, given)
    check_all(operation, sizes, given)


@pytest.mark.parametrize("kernel", KERNELS)
def test_reductions_of_many_problems(kernel: str) -> None:
    """Again and again, by graphs and after other sizes as well: every launch begins with counters of 0."""
    operation = make(kernel, "reduced")
    outputs = ("D", *(port.name for port in operation.epilogue_functor.outputs))
    sizes = [(8 * (i % 70) + 1, 8 * (i % 53 + 1), 8 * (i % 9)) for i in range(200)]
    given = drawn(operation, sizes)
    arguments = launch(operation, sizes, given)
    check_all(operation, sizes, given)
    first = [{name: each[name].clone() for name in outputs} for each in given]

    def poison() -> None:
        for each in given:
            for name in outputs:
                each[name].fill_(float("nan"))

    def again() -> None:
        torch.cuda.synchronize()
        for one, other in zip(first, given, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in outputs)
        poison()

    poison()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    for _ in range(3):
        graph.replay()
        again()
        operation.run(arguments)
        again()
    fewer, rest = sizes[::3], given[::3]
    operands, ports = listed(operation, rest)
    arguments.update(problem_sizes=fewer, A=operands[0], B=operands[1], D=operands[3], epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    check_all(operation, fewer, rest)


@pytest.mark.parametrize("kernel", ["ampere, device", "hopper cooperative"])
def test_matrices_by_columns(kernel: str) -> None:
    described = KERNELS[kernel]()
    types = dict.fromkeys(("x", "second"), TensorDescription(cutlass.float16, cutlass.ColumnMajor))
    functor = FUNCTIONS["several"](described["C"].element, 8, cutlass.float32, **types)
    operation = GemmOperationGrouped(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    given = drawn(operation, SIZES)
    launch(operation, SIZES, given)
    check_all(operation, SIZES, given)


def test_results_of_rows_where_a_problem_has_none() -> None:
    @pycutlass.epilogue_function
    def squares(accum: Any) -> Any:
        return {"D": accum, "squares": epilogue.sum_of_squares(accum, axis=1)}

    for kernel in KERNELS:
        described = KERNELS[kernel]()
        functor = squares(described["C"].element, described["C"].alignment)
        operation = GemmOperationGrouped(**described | {"epilogue_functor": functor})
        pycutlass.compiler.add_module([operation])
        sizes = [(0, 128, 64), (300, 264, 72), (0, 0, 0), (64, 8, 0)]
        given = drawn(operation, sizes)
        launch(operation, sizes, given)
        check_all(operation, sizes, given)


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_result_is_left_unwritten_where_problems_have_no_elements(kernel: str, axis: int | None) -> None:
    @pycutlass.epilogue_function
    def largest(accum: Any) -> Any:
        return {"D": accum, "largest": epilogue.max(accum, axis=axis)}

    described = KERNELS[kernel]()
    functor = largest(described["C"].element, described["C"].alignment)
    operation = GemmOperationGrouped(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    sizes = [(300, 264, 72), (64, 8, 0)]
    without = {0: (40, 0, 16), 1: (0, 128, 64)}.get(axis)
    if without:  # of which results have no elements either
        sizes.insert(1, without)
    given = drawn(operation, sizes)
    arguments = launch(operation, sizes, given)
    check_all(operation, sizes, given)
    for empty in ((40, 0, 16), (0, 128, 64)):
        if empty == without:
            continue
        others = drawn(operation, [*sizes, empty])
        operands, ports = listed(operation, others)
        ports["largest"][-1].fill_(77.0)
        with pytest.raises(pycutlass.errors.ArgumentError, match="has no elements: leave such problems out"):
            launch(operation, [*sizes, empty], others)
        with pytest.raises(pycutlass.errors.ArgumentError, match="has no elements: leave such problems out"):
            A, B, _, D = operands
            arguments.update(problem_sizes=[*sizes, empty], A=A, B=B, D=D, epilogue=ports)
        assert (ports["largest"][-1] == 77.0).all()
    for each in given:
        each["largest"].fill_(float("nan"))
    operation.run(arguments)  # still of the problems of before
    arguments.sync()
    check_all(operation, sizes, given)


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_problems(kernel: str) -> None:
    operation = make(kernel, "residual")
    sizes = [(8 * (i % 40), 8 * (i % 17 + 1), 8 * (i % 9)) for i in range(300)]
    given = drawn(operation, sizes)
    launch(operation, sizes, given)
    check_all(operation, sizes, given)


@pytest.mark.parametrize("kernel", ["ampere, device", "ampere, host", "hopper pingpong"])
def test_other_tensors_and_sizes(kernel: str) -> None:
    operation = make(kernel, "residual")
    given = drawn(operation, SIZES)
    arguments = launch(operation, SIZES, given)
    others = drawn(operation, SIZES)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    arguments.update(epilogue={name: [each[name] for each in others] for name in ("bias", "addend", "T")})
    operation.run(arguments)
    arguments.sync()
    exchanged = ("bias", "addend", "T")
    mixed = [given[i] | {name: others[i][name] for name in exchanged} for i in range(len(SIZES))]
    check_all(operation, SIZES, mixed)
    for each in given:  # the graph has the tensors that it was captured with
        each["D"].fill_(float("nan"))
        each["T"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    check_all(operation, SIZES, given)
    more = [*SIZES[::-1], (520, 136, 8)]
    given = drawn(operation, more)
    operands, ports = listed(operation, given)
    arguments.update(problem_sizes=more, A=operands[0], B=operands[1], D=operands[3], epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    check_all(operation, more, given)


@pytest.mark.parametrize("kernel", ["ampere, device", "hopper cooperative", "hopper pingpong"])
@pytest.mark.parametrize("in_one_line", [True, False])
def test_numbers_of_problems_that_are_on_the_device(kernel: str, in_one_line: bool) -> None:
    operation = make(kernel, "of_batch")
    given = drawn(operation, SIZES)

    def table(values: Any, dtype: Any = torch.int64) -> Any:
        return torch.tensor(list(values), dtype=dtype, device="cuda")

    def addresses(name: str) -> Any:
        return table(each[name].data_ptr() for each in given)

    n, k = ([size[axis] for size in SIZES] for axis in (1, 2))
    numbers = {name: torch.cat([each[name] for each in given]) for name in ("scale", "shift")}
    if not in_one_line:
        numbers["scale"] = addresses("scale")
    arguments = GemmGroupedArguments.from_device(
        operation,
        len(SIZES),
        table(SIZES, torch.int32),
        *(addresses("A"), addresses("B"), None, addresses("D")),
        *(table(k), table(k), None, table(n)),
        epilogue={"bias": addresses("bias"), "T": (addresses("T"), table(n)), **numbers},
    )
    operation.run(arguments)
    arguments.sync()
    check_all(operation, SIZES, given)


@pytest.mark.parametrize("kernel", ["ampere, device", "hopper cooperative", "hopper pingpong"])
def test_tables_that_are_on_the_device(kernel: str) -> None:
    operation = make(kernel, "residual")
    given = drawn(operation, SIZES)

    def table(values: Any, dtype: Any = torch.int64) -> Any:
        return torch.tensor(list(values), dtype=dtype, device="cuda")

    def addresses(name: str) -> Any:
        return table(each[name].data_ptr() for each in given)

    n, k = ([size[axis] for size in SIZES] for axis in (1, 2))
    pointers = [addresses("A"), addresses("B"), None, addresses("D")]
    strides = [table(k), table(k), None, table(n)]
    arguments = GemmGroupedArguments.from_device(
        operation,
        len(SIZES),
        table(SIZES, torch.int32),
        *pointers,
        *strides,
        epilogue={
            "bias": addresses("bias"),
            "addend": (addresses("addend"), table(n)),
            "T": (addresses("T"), table(n)),
        },
    )
    operation.run(arguments)
    arguments.sync()
    check_all(operation, SIZES, given)


@pytest.mark.parametrize("kernel", ["ampere, device", "hopper cooperative"])
def test_host_memory(kernel: str) -> None:
    operation = make(kernel, "residual")
    given = drawn(operation, SIZES)
    on_host = [{name: None if a is None else a.cpu().numpy() for name, a in one.items()} for one in given]
    launch(operation, SIZES, on_host)
    tensors = [{name: None if a is None else torch.from_numpy(a) for name, a in one.items()} for one in on_host]
    check_all(operation, SIZES, tensors)


def test_single_problem_is_alike() -> None:
    """A group of one is bit by bit what the GEMM alone is."""
    operation = make("ampere, device", "several")
    given = drawn(operation, SIZES[:1])
    launch(operation, SIZES[:1], given)
    alone = GemmOperationUniversal(**parts("f16") | {"epilogue_functor": operation.epilogue_functor})
    pycutlass.compiler.add_module([alone])
    one = {name: None if each is None else each.clone() for name, each in given[0].items()}
    one["B"] = given[0]["B"]
    ports = {port.name: one[port.name] for port in operation.epilogue_functor.ports}
    arguments = pycutlass.GemmArguments(alone, SIZES[0], *(one[name] for name in "ABCD"), epilogue=ports)
    alone.run(arguments)
    arguments.sync()
    for name in ("D", "first", "second"):
        assert torch.equal(one[name], given[0][name])
