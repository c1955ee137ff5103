"""Launches of groups in CUDA graphs: tables and tensors that a graph keeps."""

from __future__ import annotations

import pytest
from grouped_cases import BOTH, GROUPED, SIZES, Group

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
