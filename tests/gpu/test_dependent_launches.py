"""Programmatic dependent launch: a kernel that starts early still sees what the one ahead of it wrote, and spares what
that one reads."""

from __future__ import annotations

from typing import Any

import pytest
from cases import OPERATIONS, assert_matches, poisoned, random_matrix

import pycutlass

KERNELS = ["hopper_cooperative_2x1", "hopper_pingpong"]
LENGTH = 24


def launched_with_pdl(arguments: pycutlass.GemmArguments) -> bool:
    """Return whether the launch lets its kernel start early."""
    return bool(arguments._execution.call.launches_with_pdl)


class Chain:
    """GEMMs of which each reads what the one before it wrote, and writes what that one read."""

    def __init__(self, names: list[str], extent: int, **options: Any) -> None:
        import torch

        generator = torch.Generator("cuda").manual_seed(extent)

        def matrix() -> Any:
            return torch.randn(extent, extent, device="cuda", generator=generator)

        self.first = matrix().half()
        self.states = [self.first.clone(), torch.full_like(self.first, float("nan"))]
        self.steps = []
        for step in range(LENGTH):
            operation, weight = OPERATIONS[names[step % len(names)]], (matrix() / extent**0.5).half()
            before, after = self.states[step % 2], self.states[(step + 1) % 2]
            size = (extent, extent, extent)
            arguments = pycutlass.GemmArguments(operation, size, before, weight.t(), None, after, **options)
            self.steps.append(arguments)

    def run(self) -> None:
        """Launch them all."""
        for step in self.steps:
            step.operation.run(step)

    def result(self) -> Any:
        """Return what the last one writes."""
        self.run()
        return self.states[LENGTH % 2].clone()


@pytest.mark.parametrize("extent", [64, 520, 2048])
@pytest.mark.parametrize("names", [*[[name] for name in KERNELS], KERNELS, ["f16_tnt", *KERNELS]], ids="+".join)
def test_a_chain_gives_the_same_result(names: list[str], extent: int) -> None:
    expected = Chain(names, extent, launch_with_pdl=False).result()
    assert bool(expected.isfinite().all()) and float(expected.abs().max()) > 0.1
    for _ in range(5):
        assert Chain(names, extent).result().equal(expected)


def test_it_can_be_forbidden() -> None:
    assert all(map(launched_with_pdl, Chain(KERNELS, 64).steps))
    assert not any(map(launched_with_pdl, Chain(KERNELS, 64, launch_with_pdl=False).steps))


def test_a_captured_chain_gives_the_same_result() -> None:
    import torch

    expected = Chain(KERNELS, 520, launch_with_pdl=False).result()
    chain, graph = Chain(KERNELS, 520), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.run()
    for _ in range(5):
        chain.states[0].copy_(chain.first)
        graph.replay()
        torch.cuda.synchronize()
        assert chain.states[LENGTH % 2].equal(expected)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_others_around(name: str) -> None:
    """A slow kernel makes A just before the launch, and another takes D right after it."""
    import torch

    operation, (m, n, k) = OPERATIONS[name], (264, 520, 1032)
    for _ in range(10):
        source, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
        A, D = poisoned(operation.A, m, k), poisoned(operation.C, m, n)
        arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, None, D)
        torch.cuda._sleep(1_000_000)
        A.copy_(source)
        operation.run(arguments)
        copy = D.clone()
        D.fill_(float("nan"))
        A.fill_(float("nan"))
        assert_matches(operation, source, B, None, copy)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("between", ["copy", "event"])
def test_what_lies_between_two_kernels_is_waited_for(name: str, between: str) -> None:
    """The first kernel lets the second one start early, whose A comes by a copy, or from another stream, in between."""
    import torch

    operation, (m, n, k) = OPERATIONS[name], (1032, 520, 1032)
    side = torch.cuda.Stream()
    for _ in range(10):
        first, second = random_matrix(operation.A, m, k), random_matrix(operation.A, m, k)
        B, A = random_matrix(operation.B, k, n), poisoned(operation.A, m, k)
        results = [poisoned(operation.C, m, n) for _ in range(2)]
        steps = [
            pycutlass.GemmArguments(operation, (m, n, k), operand, B, None, result)
            for operand, result in zip((first, A), results, strict=True)
        ]
        side.wait_stream(torch.cuda.current_stream())
        operation.run(steps[0])
        if between == "copy":
            A.copy_(second)
        else:
            with torch.cuda.stream(side):
                torch.cuda._sleep(1_000_000)
                A.copy_(second)
            torch.cuda.current_stream().wait_stream(side)
        operation.run(steps[1])
        assert_matches(operation, first, B, None, results[0])
        assert_matches(operation, second, B, None, results[1])


def test_scalars_in_device_memory_rule_it_out() -> None:
    """The kernel reads them before it waits, so that it has to start after the one that writes them."""
    import torch

    operation, (m, n, k) = OPERATIONS["hopper_pingpong"], (128, 256, 64)
    A, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
    D, alpha = poisoned(operation.C, m, n), torch.tensor(0.0, device="cuda")
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, None, D)
    assert launched_with_pdl(arguments)
    arguments.update(output_op=operation.epilogue_type(alpha))
    assert not launched_with_pdl(arguments)
    torch.cuda._sleep(1_000_000)
    alpha.fill_(3.0)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, None, D, 3.0)
    arguments.update(output_op=operation.epilogue_type(-0.5))
    assert launched_with_pdl(arguments)


def test_ampere_style_kernels_have_none() -> None:
    operation, (m, n, k) = OPERATIONS["f16_tnt"], (128, 128, 64)
    A, B, D = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n), poisoned(operation.C, m, n)
    assert not launched_with_pdl(pycutlass.GemmArguments(operation, (m, n, k), A, B, None, D, launch_with_pdl=True))
