"""Reading cubins, and dropping the symbols of variables that nothing refers to."""

from __future__ import annotations

import logging
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pycutlass import cubin, nvrtc_main
from pycutlass.errors import CompileError
from pycutlass.toolkit import bindings_directory, find_nvrtc

TEXT = """
struct Big { float values[3000]; };
constexpr int unused[5] = {1, 2, 3, 4, 5};
constexpr int used[5] = {1, 2, 3, 4, 5};
__constant__ float coefficients[8];
__device__ int counter = 3;
__device__ int *pointer = &counter;
static __device__ int hidden = 5;
extern "C" __device__ __noinline__ int helper(int i) { return used[i] + hidden; }
extern "C" __global__ void first(Big const big, float *out, int i) {
  __shared__ float shared[64];
  shared[threadIdx.x] = coefficients[i];
  __syncthreads();
  out[i] = big.values[i] + shared[i] + helper(i) + *pointer;
  if (i == 77) printf("hello %d\\n", i);
}
extern "C" __global__ void second(float *out) { out[0] = unused[2]; }
"""


def compile_text(folder: Path, target: str) -> tuple[bytes, str]:
    (folder / "kernel.cu").write_text(TEXT)
    places = [str(bindings_directory()), str(find_nvrtc().nvrtc)]
    files = [*places, str(folder / "kernel.cu"), str(folder / "kernel.cubin")]
    command = [sys.executable, "-I", nvrtc_main.__file__, *files, f"-arch={target}", "-default-device", "--no-cache"]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "kernel.cubin").read_bytes(), (folder / "kernel.ptx").read_text()


@pytest.fixture(scope="module", params=["sm_75", "sm_80", "sm_90a"])
def compiled(request, tmp_path_factory) -> tuple[bytes, str]:
    return compile_text(tmp_path_factory.mktemp("cubin"), request.param)


def sections(image: bytes) -> dict[str, bytes]:
    """Sections by name, read without the code under test."""
    table, count, names = struct.unpack_from("<Q", image, 40)[0], *struct.unpack_from("<2H", image, 60)
    raw = [struct.unpack_from("<IIQQQQIIQQ", image, table + 64 * index) for index in range(count)]
    strings = raw[names][4]
    found = {}
    for name, kind, _, _, offset, size, *_ in raw:
        begin = strings + name
        found[image[begin : image.index(0, begin)].decode()] = image[offset : offset + size] if kind != 8 else b""
    return found


def symbols(image: bytes) -> list[str]:
    parts = sections(image)
    begins = [symbol[0] for symbol in struct.iter_unpack("<IBBHQQ", parts[".symtab"])]
    return [parts[".strtab"][begin : parts[".strtab"].index(0, begin)].decode() for begin in begins]


def relocations(image: bytes) -> dict[str, list[tuple[object, ...]]]:
    """Relocations with the names of the symbols that they refer to."""
    names = symbols(image)
    found = {}
    for section, data in sections(image).items():
        if section.startswith((".rel.", ".rela.")):
            layout = "<QIIq" if section.startswith(".rela.") else "<QII"
            found[section] = [
                (at, kind, names[symbol], *rest) for at, kind, symbol, *rest in struct.iter_unpack(layout, data)
            ]
    return found


def test_kernels_and_their_parameters(compiled):
    image, _ = compiled
    assert cubin.kernel_names(image) == ("first", "second")
    assert cubin.kernel_parameter_bytes(image, "first") == 12000 + 8 + 4
    assert cubin.kernel_parameter_bytes(image, "second") == 8
    assert cubin.constant_bytes(image, "first") >= 12012 > cubin.constant_bytes(image, "second") >= 8


def test_unused_variables_of_ptx(compiled):
    _, ptx = compiled
    assert cubin.unused_variables(ptx) == {"unused"}


def test_a_variable_in_use_keeps_those_that_it_names():
    ptx = """.version 9.0
.global .align 8 .u64 a = b;
.global .align 8 .u64 b = generic(c);
.visible .global .align 4 .u32 c;
.const .align 4 .b8 d[8] = {1, 2};
.global .align 8 .u64 e = f;
.global .align 1 .b8 f[1];
.visible .entry k() { ld.global.u64 %rd1, [a]; }
"""
    assert cubin.unused_variables(ptx) == {"d", "e", "f"}


def test_dropping_a_symbol_changes_nothing_else(compiled):
    image, ptx = compiled
    smaller = cubin.drop_symbols(image, cubin.unused_variables(ptx))
    assert symbols(smaller) == [name for name in symbols(image) if name != "unused"]
    before, after = sections(image), sections(smaller)
    assert list(before) == list(after)
    for name in before:
        if name.startswith((".text.", ".nv.constant", ".nv.global", ".nv.shared", ".note", ".debug")):
            assert after[name] == before[name], name
    dropped = {
        section: [entry for entry in entries if entry[2] != "unused"] for section, entries in relocations(image).items()
    }
    assert relocations(smaller) == dropped
    assert cubin.kernel_names(smaller) == ("first", "second")
    assert cubin.kernel_parameter_bytes(smaller, "first") == 12012


def test_sections_stay_where_the_driver_looks_for_them(compiled):
    image, ptx = compiled
    smaller = cubin.drop_symbols(image, cubin.unused_variables(ptx))
    for part in (image, smaller):
        (begin,) = struct.unpack_from("<Q", part, 32)
        (count,) = struct.unpack_from("<H", part, 56)
        segments = [struct.unpack_from("<IIQQQQQQ", part, begin + 56 * index) for index in range(count)]
        contents = [part[offset : offset + size] for _, _, offset, _, _, size, _, _ in segments[:-1] if offset != begin]
        if part is image:
            expected = contents
    assert contents == expected and len(contents) > 1


def test_no_names_change_nothing_that_matters(compiled):
    image, _ = compiled
    same = cubin.drop_symbols(image, frozenset())
    assert symbols(same) == symbols(image)
    assert relocations(same) == relocations(image)


def test_a_cubin_with_unknown_sections_is_kept_whole(tmp_path, caplog):
    image, ptx = compile_text(tmp_path, "sm_100")
    with caplog.at_level(logging.INFO, "pycutlass"):
        assert cubin.drop_symbols(image, cubin.unused_variables(ptx)) is image
    assert "is not known" in caplog.text


def test_a_symbol_that_data_refers_to_is_kept(compiled, caplog):
    image, _ = compiled
    with caplog.at_level(logging.INFO, "pycutlass"):
        assert cubin.drop_symbols(image, frozenset({"counter"})) is image  # `pointer` begins with its address
    assert "refers to a variable that is to be dropped" in caplog.text


@pytest.mark.parametrize("data", [b"", b"not an ELF file at all", b"\x7fELF\x02\x01" + bytes(200), b"\x7fELF\x02\x01"])
def test_what_is_no_cubin_is_refused(data):
    with pytest.raises(CompileError, match="not a cubin"):
        cubin.kernel_parameter_bytes(data, "first")


def test_a_kernel_that_is_not_there_is_named(compiled):
    with pytest.raises(CompileError, match=r"holds no kernel 'third'; it holds first, second"):
        cubin.kernel_parameter_bytes(compiled[0], "third")


def test_another_library_than_the_one_that_is_named_is_not_called(tmp_path: Path) -> None:
    """What compiles is in the key of a kernel: it is never what cuda.bindings finds by itself."""
    (tmp_path / "kernel.cu").write_text(TEXT)
    other = tmp_path / "libother.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(other)], check=True)
    files = [str(bindings_directory()), str(other), str(tmp_path / "kernel.cu"), str(tmp_path / "kernel.cubin")]
    ended = subprocess.run([sys.executable, "-I", nvrtc_main.__file__, *files], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("cuda.bindings calls ")
    assert f"not {other}" in ended.stderr
    assert not (tmp_path / "kernel.cubin").exists()
