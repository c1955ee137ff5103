"""What the host side of a Hopper-native GEMM plans, with a stand-in for the driver's tensor maps."""

from __future__ import annotations

import ctypes
import subprocess
from typing import Any

import pytest
from descriptions import native_parts
from records import Common, Result, describe, set_epilogue

from pycutlass import GemmOperationUniversal
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile

SUCCESS, INVALID_PROBLEM = 0, 4  # cutlass::Status
MULTIPROCESSORS = 132

get_device = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
get_attribute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int)
get_entry_point = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)
encode_tiled = ctypes.CFUNCTYPE(ctypes.c_int)  # the caller takes its arguments away


class Record(ctypes.Structure):
    """``pycutlass_gemm_call``."""

    _fields_ = [
        ("common", Common),
        *[(name, ctypes.c_int32) for name in ("mode", "m", "n", "k", "batch_count", "max_swizzle", "raster_order")],
    ]


class Driver(ctypes.Structure):
    """``pycutlass_driver``."""

    _fields_ = [("get_device", get_device), ("get_attribute", get_attribute), ("get_entry_point", get_entry_point)]


@encode_tiled
def encode() -> int:
    return 0


@get_entry_point
def entry_point(symbol: bytes, function: Any, version: int) -> int:
    if symbol != b"cuTensorMapEncodeTiled":
        return 1
    function[0] = ctypes.cast(encode, ctypes.c_void_p)
    return 0


@get_device
def device(ordinal: Any) -> int:
    ordinal[0] = 0
    return 0


@get_attribute
def attribute(value: Any, which: int, ordinal: int) -> int:
    value[0] = MULTIPROCESSORS
    return 0


DRIVER = Driver(device, attribute, entry_point)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, host_compiler: HostCompiler) -> Any:
    """The host library of a kernel with tiles of 128x128."""
    operation = GemmOperationUniversal(**native_parts((128, 128, 64), (1, 1)))
    product = host_compiler.compile(operation.source(), "sm_90a", Processes(1, 8 << 30))
    path = tmp_path_factory.mktemp("host") / "kernel.so"
    path.write_bytes(product.binary)
    # Streams of the C++ library, which CUTLASS includes, are nowhere used: linked statically, they are 450 KB.
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(path)], capture_output=True, text=True, check=True)
    assert "stream" not in listed.stdout and "St4cerr" not in listed.stdout
    library = ctypes.CDLL(str(path))
    library.pycutlass_bind(ctypes.byref(DRIVER))
    return library


def plan(host: Any, m: int, n: int, k: int, pointers: tuple[int, ...] = ()) -> tuple[int, Result]:
    """Return the status and what is planned; `pointers` are addresses of scalars."""
    return planned(host, m, n, k, pointers)[:2]


def planned(host: Any, m: int, n: int, k: int, pointers: tuple[int, ...] = ()) -> tuple[int, Result, Any]:
    """Return the same, and the parameters of the kernel."""
    record = Record(mode=0, m=m, n=n, k=k, batch_count=1, max_swizzle=1, raster_order=2)
    record.common.struct_size, record.common.sm_count = ctypes.sizeof(Record), MULTIPROCESSORS
    for operand, ld in zip(record.common.operands, (k, k, n, n), strict=False):
        operand.data, operand.strides[0] = 0x10000, ld
    set_epilogue(host, record, {"alpha": 1.0, "beta": 0.0}, dict(zip(("alpha", "beta"), pointers, strict=False)))
    info, result = describe(host), Result()
    assert info.call_bytes == ctypes.sizeof(Record)
    params = ctypes.create_string_buffer(info.params_bytes + 128)
    aligned = (ctypes.addressof(params) + 127) // 128 * 128
    return host.pycutlass_plan(ctypes.byref(record), ctypes.c_void_p(aligned), ctypes.byref(result)), result, params


@pytest.mark.parametrize(("m", "n", "blocks"), [(128, 128, 1), (136, 264, 6), (1, 8, 1), (8192, 8192, MULTIPROCESSORS)])
def test_there_are_as_many_threadblocks_as_tiles_or_multiprocessors(host, m, n, blocks):
    status, result = plan(host, m, n, 64)
    assert (status, result.workspace_bytes, result.clear_bytes, result.scratch_bytes) == (SUCCESS, 0, 0, 0)
    x, y, z = result.grid
    assert (x * y, z) == (blocks, 1)


def test_a_kernel_whose_scalars_are_numbers_supports_pdl(host):
    assert plan(host, 256, 256, 64)[1].supports_pdl == 1
    assert plan(host, 256, 256, 64, (0x2000,))[1].supports_pdl == 0
    assert plan(host, 256, 256, 64, (0, 0x2000))[1].supports_pdl == 0


def test_what_tma_cannot_reach_is_refused(host):
    assert plan(host, 256, 256, 60)[0] == INVALID_PROBLEM


_Box = ctypes.POINTER(ctypes.c_uint32)
_Any = ctypes.c_void_p


@ctypes.CFUNCTYPE(ctypes.c_int, _Any, ctypes.c_int, ctypes.c_uint, _Any, _Any, _Any, _Box)
def encode_box(made: int, kind: int, rank: int, address: int, extents: int, strides: int, box: Any) -> int:
    """Leave the box in the tensor map; the caller takes further arguments away."""
    ctypes.memset(made, 0, 128)
    ctypes.memmove(made, bytes(f"box {list(box[:rank])}", "ascii"), 16)
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
def get_version(version: Any) -> int:
    version[0] = DRIVER_VERSION[0]
    return 0


DRIVER_VERSION = [13020]


@get_entry_point
def boxes(symbol: bytes, function: Any, version: int) -> int:
    function[0] = ctypes.cast(encode_box if symbol == b"cuTensorMapEncodeTiled" else get_version, ctypes.c_void_p)
    return 0


def test_a_warp_sends_its_own_rows_of_d(host):
    driver = Driver(device, attribute, boxes)
    host.pycutlass_bind(ctypes.byref(driver))
    try:
        params = bytes(planned(host, 256, 256, 64)[2])
    finally:
        host.pycutlass_bind(ctypes.byref(DRIVER))
    # A and B by tiles, C by subtiles of 128 rows (the kernel is cooperative) and D by 16.
    assert [params.count(b"box [%d, %d" % box) for box in ((64, 128), (32, 128), (32, 16))] == [2, 1, 1]


@ctypes.CFUNCTYPE(ctypes.c_int, _Any)
def encode_ones(made: int) -> int:
    """Set every bit of the tensor map; the caller takes further arguments away."""
    ctypes.memset(made, 0xFF, 128)
    return 0


@get_entry_point
def ones(symbol: bytes, function: Any, version: int) -> int:
    function[0] = ctypes.cast(encode_ones if symbol == b"cuTensorMapEncodeTiled" else get_version, ctypes.c_void_p)
    return 0


@pytest.mark.parametrize(
    ("version", "size", "mended"),
    [(13010, (256, 248, 64), 4), (13020, (256, 248, 64), 0), (13000, (256, 256, 64), 2), (13000, (1024, 1024, 64), 0)],
)
def test_tensor_maps_of_small_tensors_lack_a_bit_of_old_drivers(host, version, size, mended):
    """Of f16: A and B of 64 columns have 128 KiB from 1024 rows on, C and D of 256 columns from 256 rows on."""
    driver = Driver(device, attribute, ones)
    DRIVER_VERSION[0] = version
    host.pycutlass_bind(ctypes.byref(driver))
    try:
        params = bytes(planned(host, *size)[2])
    finally:
        host.pycutlass_bind(ctypes.byref(DRIVER))
        DRIVER_VERSION[0] = 13020
    whole = b"\xff" * 128
    without = whole[:10] + b"\xdf" + whole[11:]
    assert (params.count(without), params.count(whole)) == (mended, 4 - mended)
