"""Grouped GEMM: every kernel against the reference, groups of all shapes, and everything around the launch."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import pytest
from cases import poisoned, random_matrix
from grouped_cases import GROUPED, Group, any_of, bias_of, resident, step_of

import pycutlass
from pycutlass import GemmGroupedArguments, GemmOperationGrouped
from pycutlass.errors import ArgumentError, ArgumentTypeError, PoolError

SCALARS = [(1.0, 0.0), (0.0, 1.0), (-1.25, 1.0), (1.0, -1.25), (0.0, 0.0)]
BOTH = pytest.mark.parametrize("name", ["f16_tnt_device", "f16_tnt_host", "hopper_cooperative_device"])
SIZES = [(64, 136, 72), (8, 8, 8), (200, 64, 512), (0, 64, 8), (136, 40, 0), (264, 128, 40)]


def some_sizes(operation: GemmOperationGrouped, count: int, largest: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Return random sizes, a tenth of them empty or without K."""
    step, rng = step_of(operation), random.Random(seed)
    sizes = [tuple(step * rng.randint(1, max(1, largest // step)) for _ in range(3)) for _ in range(count)]
    return [
        tuple(0 if axis == hole else extent for axis, extent in enumerate(size))
        for size, hole in zip(sizes, (rng.randint(0, 29) for _ in sizes), strict=True)
    ]


# What the kernels compute


@pytest.mark.parametrize("name", GROUPED)
def test_against_reference(name: str) -> None:
    operation = GROUPED[name]
    step = step_of(operation)
    fixed = [
        (128, 128, 64),
        (256 + step, 128 + 3 * step, 40 + step - 40 % step),
        (step, 264 // step * step, 520 // step * step),
        (33 * step, step, step),
        (step, step, 1024 + step),
        (step, step, step),
        (0, step, step),
        (step, 0, step),
        (3 * step, 5 * step, 0),
        (0, 0, 0),
    ]
    extra = (0.1,) if "leaky" in name else ()
    for number, scalars in enumerate(SCALARS):
        group = Group(operation, fixed + some_sizes(operation, 20, 300, number))
        if not scalars[1]:
            for source in group.C:
                source.fill_(100 if operation.C.type.is_integer else float("nan"))
        group.run(*scalars, *extra)
        group.check(*scalars, *extra)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 65, 96, 300])
@pytest.mark.parametrize(
    "name",
    ["f16_tnt_device", "f16_tnt_host", "f32_simt_ntn_device", "f32_simt_ntn_host", "hopper_pingpong_device"],
)
def test_groups_of_every_length(name: str, count: int) -> None:
    """The device's scheduler looks at 32 problems at a time."""
    operation = GROUPED[name]
    group = Group(operation, some_sizes(operation, count, 160, count))
    arguments = group.run(1.0, 0.5)
    group.check(1.0, 0.5)
    assert arguments.problem_count == count


@pytest.mark.parametrize(
    "name", [name for name in GROUPED if name.startswith(("f16_tnt_", "f32_simt_tnt_", "hopper_"))]
)
@pytest.mark.parametrize("empty", [(0, 8, 8), (8, 0, 8), (0, 0, 0)])
def test_empty_problems_in_every_place(name: str, empty: tuple[int, int, int]) -> None:
    operation = GROUPED[name]
    full = [(136, 72, 40), (8, 264, 8)]
    for sizes in (
        [empty],
        [empty] * 70,
        [*[empty] * 40, *full],
        [*full, *[empty] * 40],
        [full[0], *[empty] * 63, full[1]],
        [size for pair in zip([empty] * 50, full * 25, strict=True) for size in pair],
    ):
        group = Group(operation, sizes)
        group.run()
        group.check()


@BOTH
def test_no_k_means_beta_times_c(name: str) -> None:
    import torch

    group = Group(GROUPED[name], [(136, 264, 0), (8, 8, 8), (128, 128, 0)])
    group.run(3.0, 0.5)
    for number in (0, 2):
        assert torch.equal(group.D[number], 0.5 * group.C[number])
    group.run(3.0, 0.0)
    assert not any(group.D[number].any() for number in (0, 2))
    group.check(3.0)


@pytest.mark.parametrize(
    "name", [name for name in GROUPED if name.startswith(("f16_tnt_", "f16_large_", "bf16_tnt_", "hopper_coop"))]
)
def test_threadblocks_take_tile_after_tile(name: str) -> None:
    group = Group(GROUPED[name], [(1024, 1024, 64 + 8 * number) for number in range(40)])
    arguments = group.run()
    assert arguments.launch_config.grid[0] < arguments.total_tiles
    group.check_on_gpu()


@pytest.mark.parametrize("name", ["f16_tnt_device", "f16_tnt_host", "f16_ttn_device", "f16_swizzle8_host"])
def test_the_grid_is_sized_by_occupancy(name: str) -> None:
    operation = GROUPED[name]
    small = Group(operation, [(136, 72, 8), (0, 8, 8)]).arguments()
    assert small.launch_config.grid == (small.total_tiles, 1, 1)
    assert Group(operation, [(0, 8, 8)]).arguments().launch_config.grid == (1, 1, 1)
    large = Group(operation, [(2048, 2048, 8)] * 10).arguments()
    assert large.launch_config.grid == (resident(operation), 1, 1)
    assert large.total_tiles > resident(operation)


@pytest.mark.parametrize("name", [name for name in GROUPED if name.startswith("hopper_")])
def test_hopper_native_groups_take_any_m(name: str) -> None:
    """Rows need no alignment: TMA steps over them."""
    rng = random.Random()
    group = Group(
        GROUPED[name], [(rng.randint(1, 700), 8 * rng.randint(1, 90), 8 * rng.randint(0, 70)) for _ in range(70)]
    )
    group.run(1.5, -0.5)
    group.check(1.5, -0.5)
    group.poison()
    group.run(2.0, 0.0, C=None)
    group.check(2.0)


def test_a_bias_of_a_hopper_native_group_is_refused() -> None:
    group = Group(GROUPED["hopper_cooperative_device"], [(64, 128, 64), (8, 8, 8)])
    with pytest.raises(ArgumentError, match=r"C\[1\] is a bias, and a Hopper-native group"):
        group.arguments(1.0, 1.0, C=[group.C[0], bias_of(group.operation, 8, 8)])


@pytest.mark.parametrize("prefix", ["f16_tnt_host", "f16_tnn_host", "f32_simt_ntn_device", "f64_tnt", "bf16_ntn", "s8"])
def test_bias(prefix: str) -> None:
    operation = any_of(prefix)
    group = Group(operation, some_sizes(operation, 24, 200))
    bias = [bias_of(operation, m, n) for m, n, _ in group.sizes]
    whole = [
        (each if operation.C.is_row_major else each[:, None]).expand(m, n)
        for each, (m, n, _) in zip(bias, group.sizes, strict=True)
    ]
    for flag in (None, True):
        group.poison()
        group.run(1.0, 2.0, C=bias, bias=flag)
        group.check(1.0, 2.0, C=whole)


@BOTH
def test_nothing_is_written_outside_of_d(name: str) -> None:
    import torch

    operation = GROUPED[name]
    sizes = some_sizes(operation, 20, 200, 3)
    group = Group(operation, sizes)
    wide = [torch.full((m + 2, n + 16), 7.0, device="cuda").half() for m, n, _ in sizes]
    group.D = [each[1 : 1 + m, 8 : 8 + n] for each, (m, n, _) in zip(wide, sizes, strict=True)]
    group.poison()
    group.run()
    group.check()
    for each, (m, n, _) in zip(wide, sizes, strict=True):
        each[1 : 1 + m, 8 : 8 + n] = 7.0
        assert (each == 7.0).all()


@BOTH
def test_slices_of_shared_allocations(name: str) -> None:
    """One weight for all, activations and results as rows of one tensor: an expert layer before its experts differ."""
    import torch

    rows = [8, 0, 136, 64, 24]
    X, Y = torch.randn(sum(rows), 72, device="cuda").half(), torch.full((sum(rows), 136), float("nan")).half().cuda()
    W = torch.randn(136, 72, device="cuda").half().T
    group = Group(GROUPED[name], [(m, 136, 72) for m in rows])
    group.A, group.D, group.B = list(X.split(rows)), list(Y.split(rows)), [W] * len(rows)
    group.run()
    group.check()
    assert torch.isfinite(Y).all()


@BOTH
def test_scalars_in_device_memory(name: str) -> None:
    import torch

    alpha, beta = torch.tensor([1.0], device="cuda"), torch.tensor(0.5, device="cuda")
    group = Group(GROUPED[name], SIZES)
    arguments = group.run(alpha, beta)
    group.check(1.0, 0.5)
    alpha.fill_(-2.0)
    beta.fill_(0.0)
    group.operation.run(arguments)
    arguments.sync()
    group.check(-2.0, 0.0)


# Libraries


def test_groups_of_every_library_and_of_several() -> None:
    import cupy
    import torch

    operation = GROUPED["f16_tnt_device"]
    wrappers = [
        lambda t: t,
        lambda t: cupy.from_dlpack(t),
        lambda t: np.asarray(t.cpu().numpy(), order="F" if t.stride(0) == 1 and t.shape[0] > 1 else "C"),
    ]
    for choose in (lambda i: 0, lambda i: 1, lambda i: 2, lambda i: i % 3, lambda i: (i // 2) % 3):
        group = Group(operation, SIZES)
        torch.cuda.synchronize()
        wrapped = {
            name: [wrappers[choose(i + ord(name))](t) for i, t in enumerate(getattr(group, name))] for name in "ABCD"
        }
        arguments = group.run(1.0, 0.5, **wrapped)
        group.D = [torch.as_tensor(np.asarray(d) if isinstance(d, np.ndarray) else d).cuda() for d in wrapped["D"]]
        group.check(1.0, 0.5)
        del arguments, wrapped


def test_numpy_results_come_back_into_strided_arrays() -> None:
    operation = any_of("f32_simt_ttt")
    rng = np.random.default_rng()
    sizes = [(5, 7, 3), (0, 4, 4), (130, 65, 9)]
    A = [rng.standard_normal((m, k), np.float32) for m, _, k in sizes]
    B = [rng.standard_normal((k, n), np.float32) for _, n, k in sizes]
    wide = [np.zeros((m, n + 5), np.float32) for m, n, _ in sizes]
    D = [each[:, 2:-3] for each in wide]
    arguments = GemmGroupedArguments(operation, sizes, A, B, None, D)
    for _ in range(3):
        for each in D:
            each[...] = np.nan
        operation.run(arguments)
        arguments.sync()
        for a, b, d, all_of_it in zip(A, B, D, wide, strict=True):
            np.testing.assert_allclose(d, a.astype(float) @ b, rtol=1e-5, atol=1e-4)
            assert not all_of_it[:, :2].any() and not all_of_it[:, -3:].any()
        larger = [(9, 7, 3), (1, 4, 4), (130, 65, 9), (3, 3, 3)]
        A = [rng.standard_normal((m, k), np.float32) for m, _, k in larger]
        B = [rng.standard_normal((k, n), np.float32) for _, n, k in larger]
        wide = [np.zeros((m, n + 5), np.float32) for m, n, _ in larger]
        D = [each[:, 2:-3] for each in wide]
        arguments.update(problem_sizes=larger, A=A, B=B, D=D)


# Streams


@BOTH
def test_current_stream_of_torch(name: str) -> None:
    import torch

    group = Group(GROUPED[name], SIZES)
    arguments = group.arguments()
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
    groups = [Group(operation, some_sizes(operation, 1500, 32, seed)) for seed in range(4)]
    arguments = groups[0].arguments()
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    for group in groups:
        arguments.update(problem_sizes=group.sizes, A=group.A, B=group.B, D=group.D)
        operation.run(arguments)
    arguments.sync()
    for group in groups:
        for a, b, d in zip(group.A, group.B, group.D, strict=True):
            torch.testing.assert_close(d.float(), a.float() @ b.float(), rtol=2e-3, atol=2e-3)


# Graphs


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
    held = GemmGroupedArguments(small.operation, small.sizes, small.A, small.B, small.C, small.D)  # of the same pool
    small.poison()
    small.operation.run(arguments)
    graph.replay()
    torch.cuda.synchronize()
    small.check()
    large.check()
    assert all(bool((other == 7).all()) for other in others) and held.problem_count == len(small.sizes)


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


# Groups that the device knows alone


def tables(group: Group) -> dict[str, Any]:
    import torch

    def column(values: Any) -> Any:
        return torch.tensor(list(values), dtype=torch.int64, device="cuda")

    def stride(description: Any, tensor: Any) -> int:
        return max(1, tensor.stride(0 if description.is_row_major else 1))

    operation = group.operation
    described = {"A": operation.A, "B": operation.B, "C": operation.C, "D": operation.C}
    return {
        "problem_count": len(group.sizes),
        "problem_sizes": torch.tensor(group.sizes, dtype=torch.int32, device="cuda"),
        **{f"ptr_{name}": column(t.data_ptr() for t in getattr(group, name)) for name in "ABCD"},
        **{f"ld{name.lower()}": column(stride(described[name], t) for t in getattr(group, name)) for name in "ABCD"},
    }


@pytest.mark.parametrize("name", [name for name in GROUPED if name.endswith("_device")])
def test_problems_from_the_device(name: str) -> None:
    operation = GROUPED[name]
    group = Group(operation, some_sizes(operation, 40, 200))
    extra = (0.1,) if "leaky" in name else ()
    given = tables(group)
    output_op = operation.epilogue_type(1.0, 2.0, *extra)
    arguments = GemmGroupedArguments.from_device(operation, **given, output_op=output_op)
    operation.run(arguments)
    arguments.sync()
    group.check(1.0, 2.0, *extra)


def test_the_device_may_change_its_mind() -> None:
    import torch

    operation = GROUPED["f16_tnt_device"]
    group = Group(operation, [(136, 72, 40)] * 40)
    given = tables(group)
    given["ptr_C"] = given["ldc"] = None
    arguments = GemmGroupedArguments.from_device(operation, **given, most_tiles=200)
    assert arguments.launch_config.grid == (min(200, resident(operation)), 1, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    for rows in ([8 * (number % 18) for number in range(40)], [0] * 39 + [136], [136] * 40):
        given["problem_sizes"][:, 0] = torch.tensor(rows, dtype=torch.int32, device="cuda")
        group.poison()
        graph.replay()
        torch.cuda.synchronize()
        for m, a, b, d in zip(rows, group.A, group.B, group.D, strict=True):
            torch.testing.assert_close(d[:m].double(), a[:m].double() @ b.double(), rtol=2e-3, atol=2e-3)
            assert d[m:].isnan().all()


def test_other_tables() -> None:
    operation = GROUPED["f32_simt_ntn_device"]
    groups = [Group(operation, some_sizes(operation, 12, 90, seed)) for seed in range(3)]
    arguments = GemmGroupedArguments.from_device(operation, **tables(groups[0]))
    for group in groups[1:]:
        given = tables(group)
        fresh = GemmGroupedArguments.from_device(operation, **given)
        assert fresh.launch_config == arguments.launch_config
        operation.run(fresh)
        fresh.sync()
        group.check()
    # The leading dimensions stay, so the sizes do.
    same = Group(operation, groups[0].sizes)
    given = tables(same)
    arguments.update(A=given["ptr_A"], B=given["ptr_B"], D=given["ptr_D"])
    operation.run(arguments)
    arguments.sync()
    same.check()


def test_tables_in_host_memory_are_refused() -> None:
    group = Group(GROUPED["f16_tnt_device"], SIZES)
    given = {name: each.cpu().numpy() if name != "problem_count" else each for name, each in tables(group).items()}
    with pytest.raises(ArgumentError, match="is in host memory"):
        GemmGroupedArguments.from_device(group.operation, **given)
    with pytest.raises(ArgumentError, match=r"SchedulerMode\.Device"):
        GemmGroupedArguments.from_device(GROUPED["f16_tnt_host"], **tables(group))


# Memory


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
    import resource

    import torch

    group = Group(GROUPED["f16_tnt_device"], [(8, 64, 64)] * 16)
    arguments = group.arguments()
    other = [random_matrix(group.operation.A, 8, 64) for _ in range(16)]

    def launches(count: int) -> tuple[int, int]:
        for number in range(count):
            arguments.update(A=other if number % 2 else group.A)
            group.operation.run(arguments)
        torch.cuda.synchronize()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.cuda.mem_get_info()[0]

    host, free = launches(5_000)
    host_after, free_after = launches(100_000)
    assert host_after - host < 1024  # KiB
    assert free_after == free
