"""The compilers themselves, and real CUTLASS kernels through both of them. Slow: 4 to 40 s per kernel."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from convolutions import OPERATIONS
from descriptions import ampere, hopper

from pycutlass import cubin, nvrtc_main, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import Tools, find_tools
from pycutlass.errors import CompileError
from pycutlass.report import BuildReport
from pycutlass.source import KernelSource
from pycutlass.toolchain import HostCompiler, Nvcc, Nvrtc, Processes

pytestmark = pytest.mark.compile

AMPERE = """#include "pycutlass/gemm_universal.h"
using Half = cutlass::half_t;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Half, 8, float, float>;
using Operation = pycutlass::GemmUniversal<
    pycutlass::Tensor<Half, cutlass::layout::RowMajor, 8>, pycutlass::Tensor<Half, cutlass::layout::ColumnMajor, 8>,
    pycutlass::Tensor<Half, cutlass::layout::RowMajor, 8>, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<128, 128, 32>, cutlass::gemm::GemmShape<64, 64, 32>, cutlass::gemm::GemmShape<16, 8, 16>,
    Epilogue, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>, 3, cutlass::arch::OpMultiplyAdd>;
PYCUTLASS_KERNEL(ampere_gemm, Operation)
"""
TRIVIAL = """
struct Params { float *out; };
#ifdef __CUDACC__
extern "C" __global__ void trivial(Params const params) { params.out[0] = 1; }
#else
extern "C" __attribute__((visibility("default"))) int pycutlass_describe(unsigned *info) {
  info[0] = 1;
  info[1] = sizeof(Params);
  return 0;
}
#endif
"""


def processes() -> Processes:
    return Processes(2, 8 << 30)


@pytest.fixture(params=["nvcc", "nvrtc"])
def found(request) -> Tools:
    """The tools of one backend; nvcc comes with the test requirements."""
    return find_tools(request.param, toolkit.without_memo)


def text_section(image: bytes, kernel: str) -> bytes:
    table, count, names = struct.unpack_from("<Q", image, 40)[0], *struct.unpack_from("<2H", image, 60)
    raw = [struct.unpack_from("<IIQQQQIIQQ", image, table + 64 * index) for index in range(count)]
    for name, _, _, _, offset, size, *_ in raw:
        begin = raw[names][4] + name
        if image[begin : image.index(0, begin)] == f".text.{kernel}".encode():
            return image[offset : offset + size]
    raise AssertionError(f"no code of {kernel}")


@pytest.mark.parametrize(("backend", "target"), [("nvcc", "sm_80"), ("nvrtc", "sm_90")])
def test_a_real_kernel_by_both_backends(backend, target, add_module):
    """By NVRTC for a newer GPU than it was written for; the next test compiles one by NVRTC for its own."""
    operation = ampere("f16")
    name = operation.procedural_name()
    artifact = add_module(operation, target, backend)
    assert artifact.fields["device_compiler"].startswith(backend)
    assert artifact.fields["target"] == artifact.target == target
    report = BuildReport.from_json(artifact.report)
    assert report.problems() == []
    assert 128 <= report.registers <= 255
    assert report.constant_bytes >= cubin.kernel_parameter_bytes(artifact.cubin, name) > 300
    assert cubin.kernel_names(artifact.cubin) == (name,)
    # NVRTC's has 350 kB before the symbols of unused constants are dropped.
    assert len(artifact.cubin) < 70_000
    assert len(artifact.host) < 100_000


def test_dropping_symbols_leaves_a_real_kernel_alone(tmp_path):
    tools = find_tools("nvrtc", toolkit.without_memo)
    (tmp_path / "kernel.cu").write_text(AMPERE)
    command = tools.device.command(tmp_path / "kernel.cu", tmp_path / "kernel.cubin", "sm_80")
    subprocess.run(command, check=True, capture_output=True)
    whole = (tmp_path / "kernel.cubin").read_bytes()
    unused = cubin.unused_variables((tmp_path / "kernel.ptx").read_text())
    smaller = cubin.drop_symbols(whole, unused)
    assert len(unused) > 1000 and len(smaller) < len(whole) / 5
    assert text_section(smaller, "ampere_gemm") == text_section(whole, "ampere_gemm")
    assert cubin.kernel_parameter_bytes(smaller, "ampere_gemm") == cubin.kernel_parameter_bytes(whole, "ampere_gemm")


def test_signatures_name_the_release(found):
    device, host = found.device.signature()["device_compiler"], found.host.signature()["host_compiler"]
    assert device.startswith(f"{found.device.name} 1") and device.split()[1].count(".") == 2
    assert any(character.isdigit() for character in host)


def test_signatures_are_remembered_by_the_program(found):
    asked: list[tuple[str, str, str]] = []

    def memo(kind, subject, fingerprint, compute):
        asked.append((kind, subject, fingerprint))
        return "remembered"

    again = find_tools(found.device.name, memo)
    assert again.fields["device_compiler"] == again.fields["host_compiler"] == "remembered"
    assert all(fingerprint for _, _, fingerprint in asked)


def test_ndebug_is_always_defined(found):
    text = TRIVIAL + "#ifndef NDEBUG\n#error NDEBUG\n#endif\n"
    build(KernelSource("trivial", text, 80, native=False), "sm_80", found, processes())


def test_flags_from_the_environment_do_not_count(found, monkeypatch):
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.setenv(name, "-DSURPRISE")
    text = TRIVIAL + "#ifdef SURPRISE\n#error SURPRISE\n#endif\n"
    build(KernelSource("trivial", text, 80, native=False), "sm_80", found, processes())


def test_paths_with_spaces(found, monkeypatch, tmp_path):
    place = tmp_path / "a place with spaces & more"
    (place / "tmp").mkdir(parents=True)
    (place / "cutlass").symlink_to(toolkit.find_cutlass().root)
    root = (toolkit.find_nvcc() if found.device.name == "nvcc" else toolkit.find_nvrtc()).root
    (place / "cuda").symlink_to(root)
    monkeypatch.setenv("CUTLASS_PATH", str(place / "cutlass"))
    monkeypatch.setenv("CUDA_HOME", str(place / "cuda"))
    monkeypatch.setattr("tempfile.tempdir", str(place / "tmp"))
    tools = find_tools(found.device.name, toolkit.without_memo)
    assert all(str(place) in str(path) for path in tools.device.includes[1:])
    text = (
        "#include <cutlass/detail/helper_macros.hpp>\n#include <cuda/std/version>\n#include <builtin_types.h>\n"
        + TRIVIAL
    )
    artifact = build(KernelSource("trivial", text, 80, native=False), "sm_80", tools, processes())
    assert cubin.kernel_parameter_bytes(artifact.cubin, "trivial") == 8
    assert list((place / "tmp").iterdir()) == []


@pytest.mark.parametrize("kind", [Nvcc, Nvrtc, HostCompiler])
def test_a_refusal_has_the_compilers_own_words(kind):
    backend = "nvcc" if kind is Nvcc else "nvrtc"
    tools = find_tools(backend, toolkit.without_memo)
    tool = tools.host if kind is HostCompiler else tools.device
    assert isinstance(tool, kind)
    source = KernelSource("broken", "int broken = undefined_name;\n", 80, native=False)
    with pytest.raises(CompileError, match=f"{tool.name} failed with exit status 1 on kernel broken") as caught:
        tool.compile(source, "sm_80", processes())
    assert "undefined_name" in caught.value.log
    done = subprocess.run(["sh", "-c", caught.value.command], capture_output=True, text=True)
    assert done.returncode == 1 and "undefined_name" in done.stdout + done.stderr


def test_tensor_maps_have_one_alignment_on_both_sides(found):
    """Without the mended header NVRTC aligns them to 64 bytes, and Hopper kernels read the wrong parameters."""
    text = '#include "pycutlass/prelude.h"\n#include <cute/arch/copy_sm90_desc.hpp>\n' + TRIVIAL.replace(
        "float *out;", "float *out; cute::TmaDescriptor map;"
    )
    artifact = build(KernelSource("trivial", text, 90, native=True), "sm_90a", found, processes())
    assert cubin.kernel_parameter_bytes(artifact.cubin, "trivial") == 256


def test_nvrtc_has_what_newer_cutlass_takes_for_granted():
    """A header that 4.7 includes for the GPUs after Hopper calls std::max, and NVRTC has no standard library."""
    text = '#include "pycutlass/prelude.h"\nstatic_assert(std::max(2u, 3u) == 3u && std::max(5, 4) == 5);\n' + TRIVIAL
    build(
        KernelSource("trivial", text, 90, native=True), "sm_90a", find_tools("nvrtc", toolkit.without_memo), processes()
    )


def make_headers(folder: Path, own: int, driver: int | None) -> tuple[str, ...]:
    (folder / "cutlass" / "cute" / "arch").mkdir(parents=True)
    (folder / "cuda").mkdir()
    declared = f"  using TmaDescriptor = struct alignas({own}) {{ char bytes[128]; }};\n"
    (folder / "cutlass" / "cute" / "arch" / "copy_sm90_desc.hpp").write_text("// before\n" + declared + declared)
    alignment = "" if driver is None else f"#if 1\n    alignas({driver})\n#endif\n"
    (folder / "cuda" / "cuda.h").write_text(
        f"typedef struct CUtensorMap_st {{\n{alignment}    cuuint64_t opaque[16];\n}} CUtensorMap;\n"
    )
    return ("-DX", f"-I{folder / 'none'}", f"-I{folder / 'cutlass'}", f"-I{folder / 'cuda'}")


@pytest.mark.parametrize(("own", "driver"), [(64, 128), (128, 64)])
def test_the_mended_header_has_the_alignment_of_cuda(tmp_path, own, driver):
    flags = make_headers(tmp_path, own, driver)
    ((name, text),) = nvrtc_main.mended_headers(flags).items()
    assert name == "cute/arch/copy_sm90_desc.hpp"
    original = (tmp_path / "cutlass" / name).read_bytes()
    assert text == original.replace(f"alignas({own})".encode(), f"alignas({driver})".encode())


@pytest.mark.parametrize(("own", "driver"), [(64, 64), (128, 128), (64, None)])
def test_a_header_that_fits_is_left_alone(tmp_path, own, driver):
    assert nvrtc_main.mended_headers(make_headers(tmp_path, own, driver)) == {}


def test_without_cutlass_nothing_is_mended(tmp_path):
    assert nvrtc_main.mended_headers((f"-I{tmp_path}",)) == {}


HOPPER = hopper().source().text
CONVOLUTION = OPERATIONS["f16_dgrad_strided_optimized"].source().text


@pytest.mark.parametrize("text", [AMPERE, HOPPER, CONVOLUTION], ids=["ampere", "hopper", "convolution"])
def test_all_that_kernels_include_of_cuda_is_in_their_key(tmp_path: Path, text: str) -> None:
    found = find_tools("nvcc", toolkit.without_memo)
    cuda = toolkit.find_nvcc()
    covered = {os.path.realpath(place) for place in cuda.headers}
    (tmp_path / "kernel.cu").write_text(text)
    for compiler, name in ((found.device, "kernel.cubin"), (found.host, "kernel.so")):
        command = compiler.command(tmp_path / "kernel.cu", tmp_path / name, "sm_90a")
        kept = [word for word in command if word not in ("-cubin", "-shared", "-o", str(tmp_path / name))]
        listed = subprocess.run([*kept, "-M"], check=True, capture_output=True, text=True).stdout
        included = {os.path.realpath(word) for word in listed.replace("\\\n", " ").split()}
        of_cuda = {path for path in included if path.startswith(os.path.realpath(cuda.include) + "/")}
        assert len(of_cuda) > 200
        assert not [path for path in of_cuda if not any(f"{path}/".startswith(f"{one}/") for one in covered)]
