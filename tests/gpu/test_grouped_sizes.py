"""Groups that go over to other sizes without a closer look at their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from grouped_cases import BOTH, GROUPED, SIZES, Group, bias_of, some_sizes

from pycutlass import GemmGroupedArguments
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError


def without_a_closer_look(arguments: GemmGroupedArguments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the arguments check every tensor anew."""

    def unexpected(*_: Any) -> None:
        raise AssertionError("these tensors need no closer look")

    monkeypatch.setattr(arguments, "_replace", unexpected)


def go_over(arguments: GemmGroupedArguments, group: Group, letters: str = "ABCD") -> None:
    arguments.update(problem_sizes=group.sizes, **{letter: getattr(group, letter) for letter in letters})
    group.operation.run(arguments)
    arguments.sync()


@pytest.mark.parametrize("name", [name for name in GROUPED if "interleaved" not in name])
def test_other_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = GROUPED[name]
    arguments = Group(operation, some_sizes(operation, 40, 320)).run(1.0, 1.0)
    without_a_closer_look(arguments, monkeypatch)
    for count, largest in ((40, 200), (17, 320), (1, 100), (30, 250)):
        group = Group(operation, some_sizes(operation, count, largest, largest))
        go_over(arguments, group)
        group.check(1.0, 1.0)
        assert arguments.problem_sizes.tolist() == [list(size) for size in group.sizes]
        assert arguments.ptr_A == [tensor.data_ptr() for tensor in group.A]
        assert (arguments.problem_count, len(arguments.ldd)) == (count, count)


@BOTH
def test_operands_that_the_sizes_leave_alone_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = GROUPED[name]
    arguments = (experts := Group(operation, [(8 * i, 128, 72) for i in range(1, 30)])).run()
    without_a_closer_look(arguments, monkeypatch)
    for step in (1, 3, 2):
        tokens = Group(operation, [(8 * (step * i % 29 + 1), 128, 72) for i in range(1, 30)])
        tokens.B = experts.B
        go_over(arguments, tokens, "AD")
        tokens.check()
        tokens = Group(operation, tokens.sizes)  # and then tensors of the same form
        arguments.update(A=tokens.A, B=tokens.B, D=tokens.D)
        operation.run(arguments)
        arguments.sync()
        tokens.check()
        experts.B = tokens.B


@BOTH
def test_biases_and_matrices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = GROUPED[name]
    arguments = Group(operation, [(80, 64, 32)] * 9).run(1.0, 1.0)
    without_a_closer_look(arguments, monkeypatch)
    for seed in range(3):
        group = Group(operation, [(8 * m, 64, 32) for m in range(2 + seed, 8)])
        biases = [bias_of(operation, m, n) for m, n, _ in group.sizes]
        mixed = [
            bias if number % 2 else matrix for number, (bias, matrix) in enumerate(zip(biases, group.C, strict=True))
        ]
        group.C = mixed
        go_over(arguments, group)
        group.check(1.0, 1.0, C=[each.expand(d.shape) for each, d in zip(mixed, group.D, strict=True)])


@BOTH
def test_a_table_that_was_outgrown_has_room_the_next_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = GROUPED[name]
    arguments = Group(operation, [(64, 64, 32)] * 2).run()
    first = Group(operation, [(64, 64, 32)] * 100)
    go_over(arguments, first)
    first.check()
    without_a_closer_look(arguments, monkeypatch)
    second = Group(operation, [(64, 64, 32)] * 130)
    go_over(arguments, second)
    second.check()


@BOTH
@pytest.mark.parametrize(
    ("letter", "change", "error"),
    [
        ("A", lambda tensors: tensors[:-1], ArgumentError),
        ("A", lambda tensors: [tensor.T for tensor in tensors], ArgumentError),
        ("B", lambda tensors: [tensor.float() for tensor in tensors], ArgumentTypeError),
        ("A", lambda tensors: [tensor.cpu() for tensor in tensors], ArgumentError),
        ("A", lambda tensors: [tensor[:, :-8] for tensor in tensors], ArgumentError),
        ("D", lambda tensors: [tensors[0]] * len(tensors), ArgumentError),
        (
            "A",
            lambda tensors: [tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape) for tensor in tensors],
            AlignmentError,
        ),
    ],
    ids=["fewer", "transposed", "dtype", "host", "shape", "one place", "alignment"],
)
def test_what_does_not_fit_changes_nothing(
    name: str, letter: str, change: Callable[[Any], Any], error: type[Exception]
) -> None:
    operation = GROUPED[name]
    group = Group(operation, [(72, 64, 40)] * 5)
    arguments = group.run(1.0, 1.0)
    other = Group(operation, [(64, 64, 40)] * 4)
    given = {each: getattr(other, each) for each in "ABCD"}
    before = [getattr(arguments, f"ptr_{each}") for each in "ABCD"]
    with pytest.raises(error):
        arguments.update(problem_sizes=other.sizes, **{**given, letter: change(given[letter])})
    with pytest.raises(ArgumentError):
        arguments.update(problem_sizes=other.sizes, A=other.A, D=other.D)  # without B and C of as many
    assert [getattr(arguments, f"ptr_{each}") for each in "ABCD"] == before
    assert (arguments.problem_count, arguments.problem_sizes.tolist()) == (5, [[72, 64, 40]] * 5)
    group.poison()
    operation.run(arguments)
    arguments.sync()
    group.check(1.0, 1.0)


@BOTH
def test_a_graph_keeps_its_sizes_when_the_arguments_go_on(name: str) -> None:
    import torch

    captured, later = Group(GROUPED[name], SIZES), Group(GROUPED[name], SIZES[:-2])
    arguments = captured.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.operation.run(arguments)
    for _ in range(2):
        go_over(arguments, later)
        captured.poison()
        later.poison()
        graph.replay()
        captured.operation.run(arguments)
        torch.cuda.synchronize()
        captured.check()
        later.check()


def test_old_tensors_are_let_go_and_those_in_flight_are_not() -> None:
    import gc
    import weakref

    import torch

    operation = GROUPED["f16_tnt_device"]
    group, side = Group(operation, [(64, 64, 64)] * 3), torch.cuda.Stream()
    arguments = group.arguments()
    watched = [weakref.ref(tensor) for tensor in group.A]
    other = Group(operation, [(72, 64, 64)] * 3)
    arguments.update(problem_sizes=other.sizes, A=other.A, B=other.B, C=other.C, D=other.D)
    group.A = []
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3

    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    operation.run(arguments, side)
    kept = [tensor.clone() for tensor in other.A]
    last = Group(operation, [(80, 64, 64)] * 3)
    arguments.update(problem_sizes=last.sizes, A=last.A, B=last.B, C=last.C, D=last.D)
    other.A = kept
    gc.collect()
    noise = [torch.full_like(tensor, 7) for tensor in kept * 8]  # torch would hand the freed memory out here
    side.synchronize()
    other.check()
    del noise
