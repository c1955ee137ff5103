"""Grouped GEMM: every kernel against the reference, groups of all shapes, and everything around the launch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from grouped_cases import BOTH, GROUPED, SIZES, Group, any_of, bias_of, resident, some_sizes, step_of

from pycutlass import GemmGroupedArguments
from pycutlass.errors import ArgumentError

SCALARS = [(1.0, 0.0), (0.0, 1.0), (-1.25, 1.0), (1.0, -1.25), (0.0, 0.0)]


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


def test_a_hopper_native_group_takes_matrices_and_vectors() -> None:
    group = Group(GROUPED["hopper_cooperative_device"], [(64 + n, 8 * n, 64) for n in range(1, 40)])
    bias = [bias_of(group.operation, m, n) for m, n, _ in group.sizes]
    mixed = [each if n % 16 else matrix for each, matrix, (_, n, _) in zip(bias, group.C, group.sizes, strict=True)]
    whole = [each.expand(m, n) for each, (m, n, _) in zip(mixed, group.sizes, strict=True)]
    group.poison()
    group.run(1.0, -1.0, C=mixed)
    group.check(1.0, -1.0, C=whole)


@pytest.mark.parametrize(
    "prefix", ["f16_tnt_host", "f16_tnn_host", "f32_simt_ntn_device", "f64_tnt", "bf16_ntn", "s8", "hopper_"]
)
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


@pytest.mark.parametrize("name", ["interleaved_device", "interleaved_host"])
def test_interleaved_int8(name: str) -> None:
    """Operands are flat, in groups of 32 rows or columns; M may be any number."""
    operation = GROUPED[name]
    group = Group(operation, [(1, 544, 224), (130, 32, 64), (0, 64, 32), (33, 96, 0), (264, 256, 512), (64, 0, 32)])
    arguments = group.run(1.0, 2.0)
    group.check(1.0, 2.0)
    for sizes in (group.sizes, [(7, 32, 96), (200, 160, 32)]):
        other = Group(operation, sizes)
        arguments.update(problem_sizes=sizes, A=other.A, B=other.B, C=other.C, D=other.D)
        operation.run(arguments)
        arguments.sync()
        other.check(1.0, 2.0)
    other.poison()
    exchanged = Group(operation, other.sizes)
    other.A, other.B = exchanged.A, exchanged.B
    arguments.update(A=other.A, B=other.B, output_op=operation.epilogue_type(-0.25, 0.0))
    operation.run(arguments)
    arguments.sync()
    other.check(-0.25)


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


# Groups that the device knows alone


def tables(group: Group) -> dict[str, Any]:
    import torch

    def column(values: Any) -> Any:
        return torch.tensor(list(values), dtype=torch.int64, device="cuda")

    def stride(description: Any, tensor: Any, extents: tuple[int, int]) -> int:
        if tensor.dim() == 1:  # interleaved, packed: 32 of its rows or columns together
            return max(1, extents[1 if description.is_row_major else 0] * description.order.interleave)
        return max(1, tensor.stride(0 if description.is_row_major else 1))

    def strides(name: str) -> Any:
        description = getattr(group.operation, "C" if name == "D" else name)
        rows, columns = {"A": (0, 2), "B": (2, 1)}.get(name, (0, 1))
        extents = [(size[rows], size[columns]) for size in group.sizes]
        return column(stride(description, *each) for each in zip(getattr(group, name), extents, strict=True))

    return {
        "problem_count": len(group.sizes),
        "problem_sizes": torch.tensor(group.sizes, dtype=torch.int32, device="cuda"),
        **{f"ptr_{name}": column(t.data_ptr() for t in getattr(group, name)) for name in "ABCD"},
        **{f"ld{name.lower()}": strides(name) for name in "ABCD"},
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
    without_source = {"ptr_C": None, "ldc": None}
    arguments = GemmGroupedArguments.from_device(operation, **{**tables(groups[0]), **without_source})
    for group in groups[1:]:
        given = {**tables(group), **without_source}
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
    # Problems without rows are skipped: a table of sizes alone tells which.
    fewer = given["problem_sizes"].clone()
    fewer[::2, 0] = 0
    same.poison()
    arguments.update(problem_sizes=fewer)
    operation.run(arguments)
    arguments.sync()
    assert all(each.isnan().all() for each in same.D[::2])
    same.D[::2] = [each[:0] for each in same.D[::2]]  # of which nothing is to be checked
    same.check()


def test_tables_in_host_memory_are_refused() -> None:
    group = Group(GROUPED["f16_tnt_device"], SIZES)
    given = {name: each.cpu().numpy() if name != "problem_count" else each for name, each in tables(group).items()}
    given["output_op"] = group.operation.epilogue_type(1.0, 1.0)
    with pytest.raises(ArgumentError, match="is in host memory"):
        GemmGroupedArguments.from_device(group.operation, **given)
    with pytest.raises(ArgumentError, match=r"SchedulerMode\.Device"):
        GemmGroupedArguments.from_device(GROUPED["f16_tnt_host"], **given)
