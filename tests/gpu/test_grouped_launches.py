"""Launches of groups: streams, updates, and the memory that they use."""

from __future__ import annotations

import gc

import pytest
from cases import assert_grows_nothing, poisoned, random_matrix
from grouped_cases import BOTH, GROUPED, SIZES, Group, Stack, some_sizes

import pycutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError, PoolError

# Streams


@BOTH
def test_current_stream_of_torch(name: str) -> None:
    import torch

    group = Group(GROUPED[name], SIZES)
    arguments = group.run()
    group.A[0].mul_(1)  # what is loaded or made at first use, here and by torch, may wait for the device
    group.poison()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        group.A[0].mul_(2)  # only a launch on the same stream sees this
        group.operation.run(arguments)
        assert not stream.query()
    arguments.sync()
    group.check()


@BOTH
def test_explicit_streams(name: str) -> None:
    import cupy
    import torch

    group = Group(GROUPED[name], SIZES)
    arguments = group.arguments()
    torch.cuda.synchronize()
    mine, other = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    for stream in (mine, mine.cuda_stream, other, other.ptr, None, mine):
        group.poison()
        torch.cuda.synchronize()
        group.operation.run(arguments, stream)
        arguments.sync()
        group.check()
    with pytest.raises(ArgumentTypeError, match="stream must be"):
        group.operation.run(arguments, "main")


@BOTH
@pytest.mark.parametrize("named", [False, True])
def test_a_launch_on_another_stream_leaves_the_table_to_the_one_before(name: str, named: bool) -> None:
    import torch

    first, second = (Group(GROUPED[name], SIZES) for _ in range(2))
    arguments = first.arguments()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for group, stream in zip((first, second), streams, strict=True):
        with torch.cuda.stream(stream):
            if group is first:
                torch.cuda._sleep(100_000_000)
            else:
                arguments.update(A=group.A, B=group.B, C=group.C, D=group.D)
            group.operation.run(arguments, *([stream] if named else []))
    torch.cuda.synchronize()
    first.check()
    second.check()


@BOTH
def test_a_stream_that_has_not_seen_the_table_waits_for_it(name: str) -> None:
    import torch

    group = Group(GROUPED[name], SIZES)
    arguments = group.arguments()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(100_000_000)
        group.operation.run(arguments)  # brings the table
    with torch.cuda.stream(streams[1]):
        group.operation.run(arguments)
    arguments.sync()
    group.check()


@BOTH
def test_memory_outlives_its_names_on_a_stream_of_the_callers(name: str) -> None:
    import torch

    group = Group(GROUPED[name], SIZES)
    kept = [tensor.clone() for tensor in group.A]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    arguments = group.arguments()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    group.operation.run(arguments, side)
    group.A = kept
    del arguments
    gc.collect()
    others = [Group(GROUPED[name], SIZES) for _ in range(4)]  # torch would hand the freed memory out here
    noise = [other.arguments() for other in others]  # and the pool that of the table
    side.synchronize()
    group.check()
    del noise


# Updates


@BOTH
def test_update_exchanges_tensors(name: str) -> None:
    group = Group(GROUPED[name], SIZES)
    arguments = group.run(1.0, 1.0)
    for kept in ("", "B", "AC", "BC"):
        other = Group(GROUPED[name], SIZES)
        for letter in kept:
            setattr(other, letter, getattr(group, letter))
        arguments.update(**{letter: getattr(other, letter) for letter in "ABCD" if letter not in kept})
        assert arguments.ptr_A == [tensor.data_ptr() for tensor in other.A]
        assert arguments.ptr_D == [tensor.data_ptr() for tensor in other.D]
        group.operation.run(arguments)
        arguments.sync()
        other.check(1.0, 1.0)
        group = other
    arguments.update(output_op=group.operation.epilogue_type(-0.5, 0.25))
    group.operation.run(arguments)
    arguments.sync()
    group.check(-0.5, 0.25)


@BOTH
def test_update_takes_other_sizes(name: str) -> None:
    operation = GROUPED[name]
    arguments = Group(operation, SIZES).run(1.0, 1.0)
    for count in (3, 1, 40, 300, 12):
        group = Group(operation, some_sizes(operation, count, 400, count))
        arguments.update(problem_sizes=group.sizes, A=group.A, B=group.B, C=group.C, D=group.D)
        operation.run(arguments)
        arguments.sync()
        group.check(1.0, 1.0)
        assert (arguments.problem_count, len(arguments.ptr_B)) == (count, count)


@BOTH
def test_update_on_error_changes_nothing(name: str) -> None:
    group = Group(GROUPED[name], SIZES)
    arguments = group.arguments(1.0, 1.0)
    before = (arguments.ptr_A, arguments.ptr_B, arguments.ptr_C, arguments.ptr_D)
    other = Group(GROUPED[name], SIZES)
    wrong_A = [*other.A[:-1], other.A[-1][:, :-8]]
    for wrong in (
        {"A": wrong_A, "B": other.B},
        {"A": other.A[:-1]},
        {"B": [tensor.float() for tensor in other.B]},
        {"B": [tensor.cpu() for tensor in other.B]},
        {"D": [*other.D[:-1], group.A[2].reshape(-1)[: 264 * 128].view(264, 128)]},
        {"D": [group.D[1], *other.D[1:]], "C": other.C, "A": [other.D[1], *other.A[1:]]},
        {"problem_sizes": SIZES[:-1]},
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            arguments.update(**wrong)
        assert before == (arguments.ptr_A, arguments.ptr_B, arguments.ptr_C, arguments.ptr_D)
    group.operation.run(arguments)
    arguments.sync()
    group.check(1.0, 1.0)


def test_one_d_for_two_problems_is_refused_by_update_as_well() -> None:
    group = Group(GROUPED["f16_tnt_device"], [(64, 64, 64)] * 3)
    arguments = group.arguments()
    with pytest.raises(ArgumentError, match=r"D\[\d\] overlaps D\[\d\]"):
        arguments.update(D=[group.D[0], group.D[1], group.D[0]])
    with pytest.raises(ArgumentError, match=r"D\[2\] overlaps B\[1\]"):
        arguments.update(D=[*group.D[:2], group.B[1].T])


def test_update_lets_go_of_the_old_tensors() -> None:
    import weakref

    group = Group(GROUPED["f16_tnt_device"], SIZES)
    arguments = group.arguments()
    watched = [weakref.ref(tensor) for tensor in group.A]
    arguments.update(A=[tensor.clone() for tensor in group.A])
    group.A = []
    gc.collect()
    assert [reference() for reference in watched] == [None] * len(watched)


@BOTH
def test_many_updates_in_flight_keep_their_tables(name: str) -> None:
    """The host is far ahead of the GPU: what it packs next must not reach a launch that is still waiting."""
    import torch

    operation = GROUPED[name]
    group = Group(operation, SIZES)
    targets = [[torch.full_like(target, float("nan")) for target in group.D] for _ in range(150)]
    factors = [[tensor * (1 + number % 3) for tensor in group.A] for number in range(3)]
    arguments = group.arguments()
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    for number, target in enumerate(targets):
        arguments.update(A=factors[number % 3], D=target)
        operation.run(arguments)
    arguments.sync()
    for number in (0, 1, 2):
        group.A, group.D = factors[number], targets[number]
        group.check()
    for number, target in enumerate(targets):
        for there, expected in zip(target, targets[number % 3], strict=True):
            assert torch.equal(there, expected)


@BOTH
def test_tables_too_large_for_one_command(name: str) -> None:
    """More than the driver takes at once goes through page-locked memory, for new sizes again and again."""
    import torch

    operation = GROUPED[name]
    stacks = [Stack(operation, 1500, m, 24, 40) for m in (8, 16, 24, 32)]
    arguments = stacks[0].arguments()
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    for stack in stacks:
        arguments.update(problem_sizes=stack.sizes, A=stack.A, B=stack.B, D=stack.D)
        operation.run(arguments)
    arguments.sync()
    for stack in stacks:
        stack.check_on_gpu()


@BOTH
@pytest.mark.parametrize("named", [False, True])
def test_updates_run_ahead_of_the_device(name: str, named: bool) -> None:
    """Every launch finds its own addresses, though the device begins when all have been made, and others follow."""
    import torch

    operation = GROUPED[name]
    stacks = [Stack(operation, 300, 8, 24, 40) for _ in range(60)]  # 9.6 kB of addresses each
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.cuda._sleep(200_000_000)
            for some in (stacks[:40], stacks[40:]):  # the arguments go before the device has begun
                arguments = some[0].arguments()
                for stack in some:
                    arguments.update(A=stack.A, B=stack.B, D=stack.D)
                    operation.run(arguments, *([stream] if named else []))
            torch.cuda.synchronize()
            for stack in stacks:
                stack.check_on_gpu()
                stack.poison()


# Memory


@BOTH
def test_an_update_for_which_there_is_no_memory_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = Group(GROUPED[name], SIZES), Group(GROUPED[name], SIZES * 40)
    arguments = small.run()

    def full(*_: object) -> None:
        raise PoolError(1, 1, 1)

    with monkeypatch.context() as patch:
        patch.setattr("pycutlass.memory.MemoryPool.allocate", full)
        with pytest.raises(PoolError):
            arguments.update(problem_sizes=large.sizes, A=large.A, B=large.B, C=large.C, D=large.D)
    small.poison()
    small.operation.run(arguments)
    arguments.sync()
    small.check()


@pytest.mark.parametrize(("name", "most"), [("f16_tnt_device", 4096), ("hopper_cooperative_device", 200_000)])
def test_the_table_comes_from_the_pool_and_goes_back(name: str, most: int) -> None:
    group = Group(GROUPED[name], SIZES)
    arguments = group.run()
    assert 0 < pycutlass.get_allocated_size() <= most
    del arguments
    assert pycutlass.get_allocated_size() == 0
    arguments = group.arguments(D=[poisoned(group.operation.C, m, n) for m, n, _ in SIZES])
    del arguments
    assert pycutlass.get_allocated_size() == 0


@pytest.mark.slow
def test_a_hundred_thousand_updates_grow_nothing() -> None:
    group = Group(GROUPED["f16_tnt_device"], [(8, 64, 64)] * 16)
    arguments = group.arguments()
    other = [random_matrix(group.operation.A, 8, 64) for _ in range(16)]

    def launch(number: int) -> None:
        arguments.update(A=other if number % 2 else group.A)
        group.operation.run(arguments)

    assert_grows_nothing(launch)
