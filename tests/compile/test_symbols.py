"""What the host side of a kernel shows to the loader: its own functions, and nothing of a static libstdc++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from descriptions import ampere

import pycutlass
from pycutlass import _core, cutlass
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile


def test_a_host_side_with_a_cxx_library_of_its_own_leaves_nothing_behind(
    tmp_path: Path, host_compiler: HostCompiler
) -> None:
    """What a kernel needs of one is less than a tenth of it: nothing of its streams."""
    source, library = tmp_path / "kernel.cu", tmp_path / "kernel.so"
    source.write_text(ampere("f32_simt").source().text)
    command = host_compiler.command(source, library, "sm_80")
    subprocess.run([command[0], "-static-libstdc++", *command[1:]], check=True, timeout=200)
    image = library.read_bytes()
    assert 60_000 < len(image) < 200_000  # or the library is not in it, or all of it is

    def resident_after(loads: int) -> int:
        for _ in range(loads):
            _core.HostLibrary(image)
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = resident_after(20)
    assert resident_after(300) - before < 100  # pages


def test_a_host_side_exports_its_functions_alone(tmp_path: Path, host_compiler: HostCompiler) -> None:
    f32 = cutlass.float32
    instruction = pycutlass.MathInstruction([1, 1, 1], f32, f32, f32)
    tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
    row = pycutlass.TensorDescription(f32, cutlass.RowMajor)
    operation = pycutlass.GemmOperationUniversal(80, tile, row, row, row, pycutlass.LinearCombination(f32, 1))
    library = tmp_path / "host.so"
    library.write_bytes(host_compiler.compile(operation.source(), "sm_80", Processes(1, 8 << 30)).binary)
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert names == {"pycutlass_bind", "pycutlass_describe", "pycutlass_describe_epilogue", "pycutlass_plan"}
