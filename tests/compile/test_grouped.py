"""Grouped GEMM through both compilers, and what its host side plans: grid, schedule and parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, ROW, native_parts, parts
from hypothesis import given, settings
from hypothesis import strategies as st
from records import Common, Result, describe, set_epilogue

from pycutlass import SchedulerMode, _core, cutlass, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.operation.group_support import count_tiles
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.report import BuildReport
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile

MULTIPROCESSORS, OCCUPANCY = 132, 2
SUCCESS, INVALID_PROBLEM, NOT_SUPPORTED = 0, 4, 5  # cutlass::Status


class Record(ctypes.Structure):
    """``pycutlass_grouped_call``."""

    _fields_ = [
        ("common", Common),
        ("problem_count", ctypes.c_int32),
        ("most_tiles", ctypes.c_int32),
        ("sizes", ctypes.c_void_p),
        ("schedule", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("table_sizes", ctypes.c_void_p),
        ("table_pointers", ctypes.c_void_p * 4),
        ("table_lds", ctypes.c_void_p * 4),
    ]


class Plan:
    """One call of a host side's planner."""

    def __init__(self, host: Any, sizes: Any, *, schedule: Any = None, most_tiles: int = 0, count: int = 0) -> None:
        self.record = Record(problem_count=count or len(sizes), most_tiles=most_tiles)
        self.record.common.struct_size = ctypes.sizeof(Record)
        self.record.common.sm_count, self.record.common.sm_occupancy = MULTIPROCESSORS, OCCUPANCY
        self.record.common.workspace = 0x7000
        set_epilogue(host, self.record, {"alpha": 1.5, "beta": 0.0})
        self.record.sizes = None if sizes is None else sizes.ctypes.data
        self.record.schedule = None if schedule is None else schedule.ctypes.data
        self.record.table_sizes = 0x1000
        for index in range(4):
            self.record.table_pointers[index] = 0x2000 + 0x100 * index
            self.record.table_lds[index] = 0x3000 + 0x100 * index
        self.result = Result()
        self.params = (ctypes.c_uint8 * 4096)()
        self.status = host.pycutlass_plan(ctypes.byref(self.record), self.params, ctypes.byref(self.result))

    @property
    def blocks(self) -> int:
        assert list(self.result.grid)[1:] == [1, 1]
        return self.result.grid[0]


def grouped(layouts: Any, mode: SchedulerMode, kind: str = "f16") -> GemmOperationGrouped:
    return GemmOperationGrouped(**parts(kind, layouts), precompute_mode=mode)


@pytest.fixture(scope="module")
def planner(
    tmp_path_factory: pytest.TempPathFactory, host_compiler: HostCompiler
) -> Callable[[GemmOperationGrouped], Any]:
    """Compile the host side of an operation and return it."""
    plain = find_tools("nvcc", toolkit.without_memo).host
    made: dict[GemmOperationGrouped, Any] = {}

    def plan(operation: GemmOperationGrouped) -> Any:
        if operation not in made:
            # No other test compiles a Hopper-native group with its headers as they are.
            target, compiler = ("sm_90a", plain) if operation.is_sm90 else ("sm_80", host_compiler)
            product = compiler.compile(operation.source(), target, Processes(1, 8 << 30))
            path = tmp_path_factory.mktemp("host") / "kernel.so"
            path.write_bytes(product.binary)
            host = ctypes.CDLL(str(path))
            assert describe(host).call_bytes == ctypes.sizeof(Record)
            made[operation] = host
        return made[operation]

    return plan


def tiles_of(sizes: Any, rows: int = 128, columns: int = 128) -> Any:
    return -(-sizes[:, 0] // rows) * -(-sizes[:, 1] // columns)


groups = st.lists(st.tuples(*[st.integers(0, 700)] * 3), min_size=1, max_size=80).map(
    lambda sizes: np.array(sizes, np.int32)
)


@pytest.mark.parametrize("backend", ["nvcc", pytest.param("nvrtc", marks=pytest.mark.thorough)])
def test_a_kernel_by_both_compilers(backend, add_module):
    operation = grouped((ROW, COLUMN, ROW), SchedulerMode.Device)
    if backend == "nvcc":
        artifact = add_module(operation, "sm_80", backend)
    else:  # with its headers as they are
        artifact = build(operation.source(), "sm_80", find_tools(backend, toolkit.without_memo), Processes(1, 8 << 30))
    report = BuildReport.from_json(artifact.report)
    assert report.problems() == []
    host, tile = _core.HostLibrary(artifact.host), operation.tile_description
    assert (host.threads, host.shared_bytes // 1024) == (tile.num_threads, tile.stage_bytes() * 3 // 1024)


def test_the_grid_is_what_the_gpu_holds_and_never_more_than_there_are_tiles(planner):
    plan = planner(grouped((ROW, COLUMN, ROW), SchedulerMode.Device))
    for sizes, blocks in (
        ([(1, 1, 1)], 1),
        ([(0, 8, 8), (8, 0, 8)], 1),
        ([(129, 128, 8), (1, 1, 0)], 3),
        ([(128 * 16, 128 * 16, 8)], 256),
        ([(128, 128 * 132, 8), (128, 128 * 132, 8)], 264),
        ([(128 * 100, 128 * 100, 8)] * 3, MULTIPROCESSORS * OCCUPANCY),
    ):
        done = Plan(plan, np.array(sizes, np.int32))
        assert (done.status, done.blocks, done.result.workspace_bytes) == (SUCCESS, blocks, 0)


def test_the_parameters_hold_every_table_and_the_number_of_problems(planner):
    sizes = np.array([(8, 8, 8)] * 37, np.int32)
    for mode in SchedulerMode:
        done = Plan(planner(grouped((ROW, COLUMN, COLUMN), mode)), sizes)
        words = np.frombuffer(bytes(done.params), np.uint64)
        tables = [0x1000, *(0x2000 + 0x100 * i for i in range(4)), *(0x3000 + 0x100 * i for i in range(4)), 0x7000]
        assert all((words == table).sum() == 1 for table in tables)
        assert 37 in np.frombuffer(bytes(done.params), np.int32)
        assert 1.5 in np.frombuffer(bytes(done.params), np.float32)


@settings(max_examples=150, deadline=None)
@given(sizes=groups, column_major=st.booleans(), swizzle=st.sampled_from([1, 8]))
def test_the_schedule_of_the_host_visits_every_tile_once(planner, sizes, column_major, swizzle):
    described = parts("f16", (ROW, COLUMN, COLUMN if column_major else ROW), tile=(128, 64, 32))
    described["swizzling_functor"] = getattr(cutlass, f"IdentitySwizzle{swizzle}")
    plan = planner(GemmOperationGrouped(**described, precompute_mode=SchedulerMode.Host))
    first = Plan(plan, sizes)
    entries = np.full(first.result.workspace_bytes // 8 * 2 + 2, -77, np.int32)
    done = Plan(plan, sizes, schedule=entries)
    assert (done.status, done.blocks) == (first.status, first.blocks) == (SUCCESS, first.blocks)
    assert (entries[-2:] == -77).all(), "nothing is written behind the end"

    # A column-major C is computed as its transpose: the rows of a tile run along N.
    tiles = tiles_of(sizes, *((64, 128) if column_major else (128, 64)))
    total, blocks = int(tiles.sum()), done.blocks
    assert blocks == max(1, min(total, MULTIPROCESSORS * OCCUPANCY))
    each = -(-total // blocks)
    visited: list[list[int]] = [[] for _ in sizes]
    for block in range(blocks):
        for step, tile in enumerate(range(block, total, blocks)):
            problem, start = entries[2 * (each * block + step) :][:2]
            visited[problem].append(tile - start)
    assert [sorted(numbers) for numbers in visited] == [list(range(count)) for count in tiles]
    assert count_tiles(GemmOperationGrouped(**described), sizes) == total


def test_what_cannot_be_planned_is_refused(planner):
    device, host = (planner(grouped((ROW, COLUMN, ROW), mode)) for mode in (SchedulerMode.Device, SchedulerMode.Host))
    huge = np.array([(2**31 - 1, 1, 1)], np.int32)
    many = np.array([(2**30, 2**12, 1)] * 9, np.int32)  # 2**28 tiles each
    for plan in (device, host):
        assert Plan(plan, huge).status == INVALID_PROBLEM
        assert Plan(plan, many).status == INVALID_PROBLEM
    assert Plan(device, np.array([(2**30, 2**12, 1)] * 7, np.int32)).status == SUCCESS
    assert Plan(host, None, count=4).status == NOT_SUPPORTED


def test_without_sizes_the_grid_is_what_the_gpu_holds_or_the_given_bound(planner):
    plan = planner(grouped((ROW, COLUMN, ROW), SchedulerMode.Device))
    for most_tiles, blocks in ((0, 264), (7, 7), (264, 264), (100_000, 264)):
        done = Plan(plan, None, count=5, most_tiles=most_tiles)
        assert (done.status, done.blocks) == (SUCCESS, blocks)


def test_a_hopper_native_group_asks_for_scratch_memory_before_it_makes_tensor_maps(planner):
    plan = planner(GemmOperationGrouped(**native_parts()))
    for sizes in ([(8, 8, 8)], [(0, 8, 8), (8, 0, 8)], [(300, 512, 64)] * 70):
        done = Plan(plan, np.array(sizes, np.int32))
        assert (done.status, done.result.workspace_bytes, done.result.clear_bytes) == (SUCCESS, 0, 0)
        # Tensor maps of 128 bytes on every multiprocessor: of A, B and C, and of D for each of two warp groups.
        assert done.result.scratch_bytes == 128 * 5 * MULTIPROCESSORS
    # CUTLASS counts tiles in 32 bits.
    for sizes in ([(2**31 - 8, 256, 64)], [(2**24, 2**24, 64)]):
        assert Plan(plan, np.array(sizes, np.int32)).status == INVALID_PROBLEM
