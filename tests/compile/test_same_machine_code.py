"""Headers that spare a compiler CUTLASS's algebra of layouts leave the machine code of a kernel as it is."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest
from hopper_classes import CLASSES, PINGPONG, described, of_tma
from marks import thorough_but

from pycutlass import toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.cubin import _Elf
from pycutlass.source import KernelSource
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

KERNELS = {
    "plain": described(C=of_tma("f16"), stages=4),
    "cluster of 2 x 1": described(C=of_tma("f16"), shape=(128, 256, 64), cluster=(2, 1)),
    "cluster of 2 x 2, two instructions along M": described(C=of_tma("f16"), shape=(256, 128, 64), cluster=(2, 2)),
    "pingpong": described(C=of_tma("f16"), shape=(64, 256, 64), cluster=(2, 1), schedule=PINGPONG),
    "few rows of B for each of a cluster": described(C=of_tma("f16"), shape=(128, 16, 64), cluster=(4, 1)),
    "half of a swizzle": described(C=of_tma("f16"), shape=(128, 128, 32)),
    "f32 to f16": described("tf32", C=of_tma("f16"), shape=(128, 128, 32)),
    **{name: CLASSES[name] for name in ("swapped, 8 columns", "swapped, e4m3", "swapped, a function", "int8")},
}
USUAL = ("plain",)

#: Has a kernel be CUTLASS's as well, which begins in another way than ours, and has other registers then.
IN_CUTLASS = """
template <bool kTakesSlices, typename... Each>
struct pycutlass::PersistentKernel<cutlass::gemm::kernel::GemmUniversal<Each...>, kTakesSlices>
    : cutlass::gemm::kernel::GemmUniversal<Each...> {};
"""
#: Has a kernel be built from CUTLASS's own mainloop and its own loads of C.
OF_CUTLASS = """
template <int kStages, typename Cluster, typename Schedule, typename... Rest>
struct pycutlass::IsKMajor<cutlass::gemm::collective::CollectiveMma<
    cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<kStages, Cluster, Schedule>, Rest...>, true>
    : cute::false_type {};
template <typename... Each>
struct pycutlass::LoadsBoxes<cutlass::epilogue::collective::CollectiveEpilogue<Each...>> : cute::false_type {};
"""
#: Compares the sums of a tile with those that CuTe derives.
SAME_SUMS = """
#if PYCUTLASS_DEVICE_SIDE
using Mma = typename Operation::CollectiveMainloop::TiledMma;
using Tile = decltype(cute::take<0, 2>(typename Operation::CollectiveMainloop::TileShape{}));
static_assert(cute::is_same_v<decltype(partition_fragment_C(Mma{}, Tile{})),
    decltype(cute::make_tensor<typename Mma::FrgTypeC>(cute::partition_shape_C(Mma{}, Tile{})))>);
#endif
"""


def machine_code(source: KernelSource) -> bytes:
    """Return the instructions alone: names of the headers' constants have a digest of the text."""
    compiler = find_tools("nvcc", toolkit.without_memo).device
    built = compiler.compile(source, "sm_90a", Processes(1, 8 << 30))
    section = _Elf.read(built.binary).section(f".text.{source.name}")
    assert section is not None
    return section.data


@pytest.mark.parametrize("name", thorough_but(USUAL, KERNELS))
def test_the_machine_code_is_that_of_cutlass(name: str) -> None:
    source = KERNELS[name].source()
    include, operation = '#include "pycutlass/gemm_sm90.h"\n', "\nPYCUTLASS_BOUNDED_KERNEL("
    assert source.text.count(include) == source.text.count(operation) == 1
    ours = source.text.replace(include, include + IN_CUTLASS)
    text = source.text.replace(include, include + IN_CUTLASS + OF_CUTLASS).replace(operation, SAME_SUMS + operation)
    same, other = (machine_code(dataclasses.replace(source, text=each)) for each in (ours, text))
    assert same == other


def test_a_plain_kernel_has_few_functions(tmp_path: Path) -> None:
    """Each takes its time in every phase of a compiler: there were 26,000 before loads and products were our own."""
    source = tmp_path / "kernel.cu"
    source.write_text(KERNELS["plain"].source().text)
    command = find_tools("nvcc", toolkit.without_memo).device.command(source, tmp_path / "kernel.cubin", "sm_90a")
    subprocess.run([*command, "--keep", "--keep-dir", str(tmp_path)], check=True, capture_output=True)
    assert 1_000 < (tmp_path / "kernel.cudafe1.gpu").read_text().count("___device__(static") < 13_000
