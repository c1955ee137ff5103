"""What Hopper-native GEMMs plan that combine pairs of columns: TMA does not move such a D, and yet it has a map."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from descriptions import native_parts
from records import Result, describe, set_epilogue
from test_gemm_sm90 import MULTIPROCESSORS, SUCCESS, Driver, Record, attribute, device, get_entry_point

from pycutlass import GemmOperationUniversal, cutlass
from pycutlass.epilogue import fusions
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile

_Numbers = ctypes.POINTER(ctypes.c_uint64)
#: Addresses of A, B and D.
A, B, D = 0x10000, 0x20000, 0x30000
maps: dict[int, tuple[list[int], list[int]]] = {}


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, _Numbers, _Numbers)
def encode(made: int, kind: int, rank: int, address: int, extents: Any, strides: Any) -> int:
    """Stand in for cuTensorMapEncodeTiled, whose further arguments the caller takes away."""
    maps[address] = extents[:rank], strides[: rank - 1]
    return 0


@get_entry_point
def entry_point(symbol: bytes, function: Any, version: int) -> int:
    if symbol != b"cuTensorMapEncodeTiled":
        return 1
    function[0] = ctypes.cast(encode, ctypes.c_void_p)
    return 0


DRIVER = Driver(device, attribute, entry_point)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, host_compiler: HostCompiler) -> Any:
    described = native_parts((128, 128, 64), (1, 1)) | {"epilogue_functor": fusions.swiglu(cutlass.float16, 8)}
    operation = GemmOperationUniversal(**described)
    path = tmp_path_factory.mktemp("host") / "kernel.so"
    path.write_bytes(host_compiler.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary)
    library = ctypes.CDLL(str(path))
    library.pycutlass_bind(ctypes.byref(DRIVER))
    return library


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(136, 272, 64, 1), (1, 16, 8, 3), (300, 1040, 136, 2)])
def test_tensor_maps_are_possible_ones(host: Any, m: int, n: int, k: int, batch: int) -> None:
    maps.clear()
    record = Record(mode=2, m=m, n=n, k=k, batch_count=batch, max_swizzle=1, raster_order=2)
    record.common.struct_size, record.common.sm_count = ctypes.sizeof(Record), MULTIPROCESSORS
    operands = ((A, k, m * k), (B, k, n * k), (0, 0, 0), (D, n // 2, m * n // 2))
    for operand, (address, ld, apart) in zip(record.common.operands, operands, strict=False):
        operand.data, operand.strides[0], operand.strides[1] = address, ld, apart
    set_epilogue(host, record, {}, {})
    result, info = Result(), describe(host)
    params = ctypes.create_string_buffer(info.params_bytes + 128)
    aligned = (ctypes.addressof(params) + 127) // 128 * 128
    assert host.pycutlass_plan(ctypes.byref(record), ctypes.c_void_p(aligned), ctypes.byref(result)) == SUCCESS
    assert result.supports_pdl == 1 and result.workspace_bytes == 0
    assert maps.keys() == {A, B, D}
    for extents, strides in maps.values():
        line = 2 * extents[0]
        for extent, stride in zip(extents[1:], strides, strict=True):
            # The greatest that an instruction takes, multiples of 16 bytes, and no line within another.
            assert stride % 16 == 0 and stride < 2**40 and (stride >= line or extent == 1), (extents, strides)
            line = stride * extent
    assert maps[D][0][:2] == [n, m]
