"""Hopper-native kernels for ``Mode.Array``, through both compilers, and what their host side plans."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from descriptions import COLUMN
from epilogue_functions import gated, reduced
from hopper_classes import ARRAYS, F16, described, of_tma
from marks import thorough_but
from records import Result, describe, set_epilogue
from test_gemm_sm90 import INVALID_PROBLEM, MULTIPROCESSORS, SUCCESS, Driver, Record, attribute, device, get_entry_point

from pycutlass import _core, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import Tools, find_tools
from pycutlass.families import SM90, sm90_memory
from pycutlass.report import BuildReport
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile

FUNCTIONS = {
    "a function that reduces": described(C=of_tma("f16"), functor=reduced(F16, 8)),
    "a function of pairs": described(C=of_tma("f16"), functor=gated(F16, 8)),
}
KERNELS = ARRAYS | FUNCTIONS
#: Those whose host sides are compiled each time.
USUAL = ("e4m3 to e5m2 by columns", "swapped, a function")
#: It is compiled for the device each time, and others where tests run on a GPU. Its host side is compiled from headers
#: as they are: no other test does so for arrays, and for functions.
WITH_PLAIN_HEADERS = "swapped, a function"


@pytest.mark.parametrize("name", thorough_but(USUAL, KERNELS))
def test_the_host_side_has_the_types_and_the_shared_memory_of_the_description(
    name: str, host_compiler: HostCompiler
) -> None:
    operation = KERNELS[name]
    product = host_compiler.compile(operation.array.source(), "sm_90a", Processes(1, 8 << 30))
    host = _core.HostLibrary(product.binary)
    assert host.elements == {letter: getattr(operation, letter).type.short for letter in "ABCD"}
    tile, parts = operation.tile_description, operation.family.parts_of(operation)
    _, stages = SM90._array_stages(operation)
    counted = sm90_memory.kernel_bytes(tile, parts.C, stages, grouped=False, D=parts.D, listed=True)
    beside = parts.epilogue.shared_bytes(SM90.gemm, tile)
    assert counted <= host.shared_bytes + beside and host.shared_bytes <= counted + beside
    if not beside:
        assert host.shared_bytes == counted


@pytest.mark.parametrize("name", thorough_but((WITH_PLAIN_HEADERS,), KERNELS))
def test_it_compiles_for_the_device(name: str, tools: Tools) -> None:
    if name == WITH_PLAIN_HEADERS:
        tools = find_tools("nvcc", toolkit.without_memo)
    artifact = build(KERNELS[name].array.source(), "sm_90a", tools, Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []


_Numbers = ctypes.POINTER(ctypes.c_uint64)
_Box = ctypes.POINTER(ctypes.c_uint32)
TABLES = (0x7F0000010000, 0x7F0000020008, 0x7F0000030010, 0x7F0000040018)  # of A, B, C and D: aligned to 8 bytes
maps: dict[int, tuple[list[int], list[int], list[int]]] = {}


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, _Numbers, _Numbers, _Box)
def encode(made: int, kind: int, rank: int, address: int, extents: Any, strides: Any, box: Any) -> int:
    """Stand in for cuTensorMapEncodeTiled, whose further arguments the caller takes away."""
    assert address % 16 == 0
    maps[address] = extents[:rank], strides[: rank - 1], box[:rank]
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
    """The host library of a kernel with tiles of 128x128 and a column-major D."""
    operation = described(C=of_tma("f16", COLUMN))
    path = tmp_path_factory.mktemp("host") / "kernel.so"
    product = host_compiler.compile(operation.array.source(), "sm_90a", Processes(1, 8 << 30))
    path.write_bytes(product.binary)
    library = ctypes.CDLL(str(path))
    library.pycutlass_bind(ctypes.byref(DRIVER))
    return library


def planned(host: Any, batch: int, mode: int = 3, form: int = 3, tables: Any = TABLES) -> tuple[int, Result, bytes]:
    """Return the status, what is planned, and the parameters of M=136, N=264, K=72 with room behind each line."""
    record = Record(mode=mode, m=136, n=264, k=72, batch_count=batch, max_swizzle=1, raster_order=2)
    record.common.struct_size, record.common.sm_count = ctypes.sizeof(Record), MULTIPROCESSORS
    record.common.workspace = 0x7000000
    for operand, address, ld in zip(record.common.operands, tables, (80, 88, 144, 152), strict=False):
        operand.data, operand.strides[0], operand.form = address, ld, form
    set_epilogue(host, record, {"alpha": 1.5, "beta": 0.0}, {"beta": 0x5000})
    result, info = Result(), describe(host)
    params = ctypes.create_string_buffer(info.params_bytes + 128)
    aligned = (ctypes.addressof(params) + 127) // 128 * 128
    status = host.pycutlass_plan(ctypes.byref(record), ctypes.c_void_p(aligned), ctypes.byref(result))
    return status, result, ctypes.string_at(aligned, info.params_bytes)


@pytest.mark.parametrize(("batch", "blocks"), [(1, 6), (5, 30), (1000, MULTIPROCESSORS)])
def test_tiles_of_all_problems_are_shared(host: Any, batch: int, blocks: int) -> None:
    status, result, params = planned(host, batch)
    x, y, z = result.grid
    assert (status, x * y, z) == (SUCCESS, blocks, 1)
    # Tensor maps on every multiprocessor: of A, B and C, and of D for each of two warp groups.
    assert (result.workspace_bytes, result.clear_bytes, result.scratch_bytes) == (128 * 5 * MULTIPROCESSORS, 0, 0)
    assert result.supports_pdl == 0  # CUTLASS's kernels for arrays wait for none
    assert [params.count(table.to_bytes(8, "little")) for table in TABLES] == [1] * 4


def test_tensor_maps_are_those_of_each_problem(host: Any) -> None:
    maps.clear()
    assert planned(host, 3)[0] == SUCCESS
    a, b, c, d = (table & ~15 for table in TABLES)
    assert {address: (extents, strides[0]) for address, (extents, strides, _) in maps.items()} == {
        a: ([72, 136, 1], 160),
        b: ([72, 264, 1], 176),
        c: ([136, 264, 1], 288),
        d: ([136, 264, 1], 304),
    }
    assert maps[d][2] == [64, 32, 1]  # rows that lie side by side in shared memory


def test_without_c_d_stands_for_it(host: Any) -> None:
    maps.clear()
    assert planned(host, 3, tables=(*TABLES[:2], None, TABLES[3]))[0] == SUCCESS
    assert maps.keys() == {table & ~15 for table in (*TABLES[:2], TABLES[3])}


def test_other_modes_and_tensors_are_refused(host: Any) -> None:
    assert planned(host, 3, mode=2)[0] == INVALID_PROBLEM
    assert planned(host, 3, form=0)[0] == INVALID_PROBLEM
