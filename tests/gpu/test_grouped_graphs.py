"""Launches of groups in CUDA graphs: tables and tensors that a graph keeps."""

from __future__ import annotations

from typing import Any

import pytest
from grouped_cases import BOTH, GROUPED, SIZES, Group

import pycutlass
from pycutlass import GemmGroupedArguments
from pycutlass.errors import ArgumentError


@BOTH
def test_torch_graph(name: str) -> None:
    import torch

    group = Group(GROUPED[name], SIZES)
    arguments = group.arguments()  # never launched before: the graph brings the table
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group.operation.run(arguments)
    for _ in range(3):
        for tensor in group.A:
            tensor.copy_(torch.randn_like(tensor))
        group.poison()
        graph.replay()
        torch.cuda.synchronize()
        group.check()


@BOTH
def test_a_graph_keeps_its_tensors_when_the_arguments_go_on(name: str) -> None:
    import torch

    captured, later = (Group(GROUPED[name], SIZES) for _ in range(2))
    arguments = captured.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.operation.run(arguments)
    for _ in range(2):
        arguments.update(A=later.A, B=later.B, C=later.C, D=later.D)
        captured.poison()
        later.poison()
        graph.replay()
        captured.operation.run(arguments)
        torch.cuda.synchronize()
        captured.check()
        later.check()
        later.poison()
        captured.operation.run(arguments)  # without an update, right behind a replay that brought another table
        arguments.sync()
        later.check()


@BOTH
def test_several_launches_of_one_graph(name: str) -> None:
    import torch

    groups = [Group(GROUPED[name], SIZES) for _ in range(3)]
    arguments = groups[0].run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for group in groups:
            arguments.update(A=group.A, B=group.B, C=group.C, D=group.D)
            group.operation.run(arguments)
    for _ in range(2):
        for group in groups:
            group.poison()
        graph.replay()
        torch.cuda.synchronize()
        for group in groups:
            group.check()


@BOTH
def test_a_graph_keeps_its_table_when_the_arguments_outgrow_it(name: str) -> None:
    import torch

    small, large = Group(GROUPED[name], SIZES), Group(GROUPED[name], SIZES * 40)
    arguments = small.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        small.operation.run(arguments)
    arguments.update(problem_sizes=large.sizes, A=large.A, B=large.B, C=large.C, D=large.D)
    others = [torch.full((2**16,), 7, dtype=torch.uint8, device="cuda") for _ in range(8)]
    held = GemmGroupedArguments(small.operation, small.sizes, small.A, small.B, None, small.D)  # of the same pool
    small.poison()
    small.operation.run(arguments)
    graph.replay()
    torch.cuda.synchronize()
    small.check()
    large.check()
    assert all(bool((other == 7).all()) for other in others) and held.problem_count == len(small.sizes)


def test_arguments_cannot_be_made_under_capture() -> None:
    import torch

    group = Group(GROUPED["f16_tnt_device"], SIZES)
    arguments = group.arguments()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group.operation.run(arguments)
        with pytest.raises(ArgumentError, match="before the capture begins"):
            group.arguments()
    graph.replay()
    torch.cuda.synchronize()
    group.check()


#: Ends of four groups of 200 rows, also empty ones, and those that are taken as the nearest that do not decrease.
ENDS = [[50, 50, 120, 200], [0, 0, 0, 0], [200, 200, 200, 200], [1, 17, 90, 130], [60, 20, 500, 70], [-3, 8, 7, 8]]


def ends(values: list[int]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int32, device="cuda")


def wanted(xs: Any, ws: Any, values: list[int]) -> Any:
    """Return the products in float64, with zeros behind the last group."""
    import torch

    result = torch.zeros(len(xs), ws.shape[-1], dtype=torch.float64, device="cuda")
    begin = 0
    for number, end in enumerate(values):
        end = max(begin, min(end, len(xs)))
        result[begin:end] = xs[begin:end].double() @ ws[number].double()
        begin = end
    return result


def random(*shape: int, turned: bool = False) -> Any:
    import torch

    made = torch.randn(*shape[:-2], *(shape[:-3:-1] if turned else shape[-2:]), device="cuda").half()
    return made.mT if turned else made


def close(got: Any, exact: Any) -> None:
    import torch

    torch.testing.assert_close(got.double(), exact, rtol=5e-3, atol=0.1)


def by_function(xs: Any, ws: Any, offs: Any) -> Any:
    return pycutlass.grouped_matmul(xs, ws, offs=offs)


def by_operator(xs: Any, ws: Any, offs: Any) -> Any:
    import torch

    import pycutlass.pytorch  # noqa: F401 (has the operator)

    return torch.ops.pycutlass.grouped_mm(xs, ws, offs=offs)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("compute", [by_function, by_operator])
def test_products_are_captured_and_follow_offs(compute: Any, turned: bool) -> None:
    """Two in one graph, so that the second takes memory that the first has given back."""
    import torch

    xs, first, second = random(200, 128), random(4, 128, 64, turned=turned), random(4, 64, 96, turned=turned)
    offs = ends(ENDS[0])
    compute(compute(xs, first, offs), second, offs)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = compute(xs, first, offs)
        got = compute(hidden, second, offs)
    others = [torch.full((2**20,), 7, dtype=torch.uint8, device="cuda") for _ in range(8)]  # where memory is free
    for values in ENDS:
        xs.copy_(random(200, 128) / 8)
        offs.copy_(ends(values))
        hidden.fill_(torch.nan)
        got.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        close(hidden, wanted(xs, first, values))
        close(got, wanted(hidden, second, values))
    assert all(bool((other == 7).all()) for other in others)


@pytest.mark.parametrize("turned", [False, True])
def test_a_plan_is_captured_whether_it_has_run_or_not(turned: bool) -> None:
    import torch

    xs, ws, offs = random(200, 128), random(4, 128, 64, turned=turned), ends(ENDS[0])
    plan = pycutlass.GroupedGemm(xs, ws, offs=offs)
    other = pycutlass.GroupedGemm(xs, ws, offs=offs)
    other.run(xs, ws, offs=offs)  # which loads the kernel
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = plan(xs, ws, offs=offs)
        for values in ENDS:
            offs.copy_(ends(values))
            close(plan(xs, ws, offs=offs), wanted(xs, ws, values))
            got.fill_(torch.nan)
            graph.replay()
            close(got, wanted(xs, ws, values))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # the first that torch itself captures
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_compiled_into_a_graph(turned: bool) -> None:
    """Torch checks that what is alive in the graph's memory is what it knows of: nothing here may be kept."""
    import torch

    first, second = random(4, 128, 64, turned=turned), random(4, 64, 96, turned=turned)
    by_operator(random(200, 128), first, ends(ENDS[0]))
    operator = torch.ops.pycutlass.grouped_mm

    def experts(xs: Any, offs: Any) -> Any:
        return operator(operator(xs, first, offs=offs).relu(), second, offs=offs) * 2

    compiled = torch.compile(experts, mode="reduce-overhead")
    for values in ENDS:  # the second captures a graph, those behind it are replays
        xs, offs = random(200, 128) / 8, ends(values)
        close(compiled(xs, offs), 2 * wanted(wanted(xs, first, values).relu().half(), second, values))
