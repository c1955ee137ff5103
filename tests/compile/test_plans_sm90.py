"""What host sides of Hopper-native GEMMs plan: slices of tiles that a cluster shares, and grids under a limit."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from descriptions import COLUMN, ROW
from hopper_classes import STREAM_K, described, of_tma
from marks import thorough
from records import Result, describe, set_epilogue
from test_gemm_sm90 import MULTIPROCESSORS, SUCCESS, Driver, Record, attribute, device, get_entry_point

from pycutlass import GemmOperationUniversal, cutlass
from pycutlass.epilogue import epilogue_function
from pycutlass.epilogue.functions import sum as sum_of
from pycutlass.families.sm90_multicast import slice_bytes
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile

_POINTER, _COUNTS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)
encode_tiled = ctypes.CFUNCTYPE(
    *(ctypes.c_int, _POINTER, ctypes.c_int, ctypes.c_uint32, _POINTER, _POINTER, _POINTER, _COUNTS, _POINTER),
    *[ctypes.c_int] * 4,
)
boxes: list[tuple[int, ...]] = []


@encode_tiled
def encode(_map: Any, _type: int, rank: int, _at: Any, _extents: Any, _strides: Any, box: Any, *_: Any) -> int:
    boxes.append(tuple(box[axis] for axis in range(rank)))
    return 0


@get_entry_point
def entry_point(symbol: bytes, function: Any, version: int) -> int:
    if symbol != b"cuTensorMapEncodeTiled":
        return 1
    function[0] = ctypes.cast(encode, ctypes.c_void_p)
    return 0


DRIVER = Driver(device, attribute, entry_point)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    boxes.clear()
    yield tmp_path


def built(operation: GemmOperationUniversal, host_compiler: HostCompiler, folder: Path) -> Any:
    path = folder / "kernel.so"
    path.write_bytes(host_compiler.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary)
    library = ctypes.CDLL(str(path))
    library.pycutlass_bind(ctypes.byref(DRIVER))
    return library


def planned(
    host: Any,
    size: tuple[int, int, int],
    lds: tuple[int, ...],
    sm_count: int,
    slices: int = 1,
    addresses: dict[str, int] | None = None,
) -> Result:
    record = Record(mode=0, m=size[0], n=size[1], k=size[2], batch_count=slices, max_swizzle=1, raster_order=2)
    record.common.struct_size, record.common.sm_count = ctypes.sizeof(Record), sm_count
    for operand, ld in zip(record.common.operands, lds, strict=False):
        operand.data, operand.strides[0] = 0x10000, ld
    set_epilogue(host, record, {} if addresses else {"alpha": 1.0, "beta": 0.0}, addresses)
    result = Result()
    params = ctypes.create_string_buffer(describe(host).params_bytes + 128)
    aligned = (ctypes.addressof(params) + 127) // 128 * 128
    assert host.pycutlass_plan(ctypes.byref(record), ctypes.c_void_p(aligned), ctypes.byref(result)) == SUCCESS
    return result


@pytest.mark.parametrize(
    ("layouts", "shape", "cluster"),
    [
        thorough((ROW, COLUMN), (64, 8, 64), (8, 1)),
        thorough((ROW, COLUMN), (128, 80, 192), (16, 1)),
        ((COLUMN, ROW), (128, 128, 48), (1, 16)),
    ],
)
def test_threadblocks_bring_the_slices_that_are_counted(layouts, shape, cluster, host_compiler, folder):
    operation = described(layouts=layouts, C=of_tma("f16"), shape=shape, cluster=cluster)
    planned(built(operation, host_compiler, folder), (2048, 2048, 2048), (2048,) * 4, MULTIPROCESSORS)
    tile, (m, n) = operation.tile_description, cluster
    counted = slice_bytes(tile, operation.A, "A", n), slice_bytes(tile, operation.B, "B", m)
    assert tuple(2 * math.prod(box) for box in boxes[:2]) == counted


@pytest.mark.parametrize("cluster", [thorough((1, 1)), thorough((1, 2)), (4, 4)])
def test_stream_k_keeps_to_a_limit(cluster, host_compiler, folder):
    operation = described(C=of_tma("f16"), swizzle=STREAM_K, cluster=cluster)
    host, together = built(operation, host_compiler, folder), cluster[0] * cluster[1]
    for size in ((1032, 520, 264), (264, 272, 4104), (128, 128, 64)):
        m, n, k = size
        for limit in (together, 7 * together, MULTIPROCESSORS // together * together):
            for slices in (1, 2, 5):
                x, y, z = planned(host, size, (k, k, n, n), limit, slices).grid
                assert 0 < x * y <= limit and z == 1
                assert x % cluster[0] == y % cluster[1] == 0
                if cluster == (4, 4) and min(m, n) > 512:
                    assert x * y == limit  # the extension has counted how many fit: all are used


def reduced(axis: int) -> Any:
    @epilogue_function
    def function(accum):
        return {"D": accum, "sum": sum_of(accum, axis=axis)}

    return function(cutlass.float16, 8)


@pytest.mark.parametrize("axis", [thorough(0), 1])
def test_kernels_of_ours_join_lines_in_any_order_of_tiles(axis, host_compiler, folder):
    grids = []
    for name, functor, addresses in (("reduced", {"functor": reduced(axis)}, {"sum": 0x10000}), ("plain", {}, None)):
        (folder / name).mkdir()
        host = built(described(C=of_tma("f16"), **functor), host_compiler, folder / name)
        grids.append(
            [
                planned(host, (m, n, 1024), (1024, 1024, n, n), MULTIPROCESSORS, addresses=addresses).grid[:]
                for m, n in ((8192, 2048), (2048, 8192))
            ]
        )
    assert grids[0] == grids[1]
