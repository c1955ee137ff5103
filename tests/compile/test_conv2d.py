"""What the host sides of convolution kernels plan, one of each direction, and such kernels through the compilers."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import pytest
from convolutions import GEOMETRIES, OPERATIONS, problem
from records import Common, Result, describe, set_epilogue

from pycutlass import _core, cubin, cutlass, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.report import BuildReport
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

KERNELS = ("f16_fprop_optimized", "f16_dgrad_strided_swizzle4", "f16_wgrad_swizzle2")
FIELDS = (*"NHWCKRSPQ", "pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w")


class Call(ctypes.Structure):
    """``pycutlass_conv2d_call``."""

    _fields_ = [
        ("common", Common),
        *[(name, ctypes.c_int32) for name in (*FIELDS, "mode", "split_k_slices", "groups", "split_k_mode")],
    ]


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request, tmp_path_factory, host_compiler) -> tuple[Any, Any]:
    """An operation and its host library."""
    operation = OPERATIONS[request.param]
    path = tmp_path_factory.mktemp("host") / "host.so"
    path.write_bytes(host_compiler.compile(operation.source(), "sm_80", Processes(1, 8 << 30)).binary)
    return operation, ctypes.CDLL(str(path))


def plan(operation: Any, host: Any, size: Any, slices: int, mode: Any) -> tuple[int, Result]:
    call = Call(split_k_slices=slices, split_k_mode=mode.value, groups=1)
    call.common.struct_size = ctypes.sizeof(Call)
    for name in FIELDS:
        setattr(call, name, getattr(size, name))
    for operand, channels in zip(call.common.operands, (size.C, size.C, size.K, size.K), strict=False):
        operand.strides[0] = channels
    set_epilogue(host, call, {"alpha": 1.0, "beta": 0.0})
    info, result = describe(host), Result()
    assert info.call_bytes == ctypes.sizeof(Call)
    params = ctypes.create_string_buffer(info.params_bytes + 128)
    return host.pycutlass_plan(ctypes.byref(call), params, ctypes.byref(result)), result


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("f16_fprop_optimized", "nvrtc"),
        # nvcc compiles kernels of both directions for examples, which say what is wrong with a build.
        pytest.param("f16_dgrad_strided_swizzle4", "nvcc", marks=pytest.mark.thorough),
        pytest.param("f16_wgrad_swizzle2", "nvcc", marks=pytest.mark.thorough),
    ],
)
def test_the_build_has_no_problems(name, backend, host_compiler):
    operation = OPERATIONS[name]
    tools = dataclasses.replace(find_tools(backend, toolkit.without_memo), host=host_compiler)
    artifact = build(operation.source(), "sm_80", tools, Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []
    assert cubin.kernel_names(artifact.cubin) == (operation.procedural_name(),)
    made = _core.HostLibrary(artifact.host).params_bytes
    assert cubin.kernel_parameter_bytes(artifact.cubin, operation.procedural_name()) == made


def test_the_host_side_has_the_threads_and_the_shared_memory_of_the_tile(kernel):
    operation, host = kernel
    info = describe(host)
    assert tuple(info.threads) == (operation.tile_description.num_threads, 1)
    tile = operation.tile_description
    assert info.shared_bytes >= tile.stage_bytes() * tile.stages


@pytest.mark.parametrize("slices", [1, 3])
def test_the_grid_visits_every_tile(kernel, slices):
    operation, host = kernel
    swizzle = operation.swizzling_functor
    serial = cutlass.conv.SplitKMode.Serial
    for geometry in GEOMETRIES:
        size = problem(geometry, 264, 136).reset_split_k_slices(slices)
        if not operation.supports(size):
            continue
        tile = cutlass.gemm.GemmCoord(*operation.tile_description.threadblock_shape)
        tiles = swizzle.get_tiled_shape(operation.conv_kind, size, tile, slices)
        status, result = plan(operation, host, size, slices, serial)
        assert status == 0
        grid = swizzle.get_grid_shape(tiles)
        assert tuple(result.grid) == (grid.x, grid.y, grid.z)
        assert result.workspace_bytes == (4 * tiles.m() * tiles.n() if slices > 1 else 0)
        # GemmIdentityThreadblockSwizzle::get_tile_offset, as the kernel calls it
        log = swizzle.get_log_tile(tiles)
        blocks = {
            (x >> log, (y << log) + (x & ((1 << log) - 1)), z)
            for x in range(grid.x)
            for y in range(grid.y)
            for z in range(grid.z)
        }
        wanted = {(m, n, k) for m in range(tiles.m()) for n in range(tiles.n()) for k in range(slices)}
        assert wanted <= blocks


def test_parallel_split_k_needs_no_semaphores(kernel):
    operation, host = kernel
    size = problem(GEOMETRIES[2], 64, 64).reset_split_k_slices(4)
    if not operation.supports(size):
        assert operation.is_strided_dgrad
        return
    status, result = plan(operation, host, size, 4, cutlass.conv.SplitKMode.Parallel)
    assert (status, result.grid[2], result.workspace_bytes) == (0, 4, 0)


def test_the_host_side_refuses_what_the_iterators_cannot_do(kernel):
    operation, host = kernel
    status, _ = plan(operation, host, problem(GEOMETRIES[2], 12, 12), 1, cutlass.conv.SplitKMode.Serial)
    assert status != 0
