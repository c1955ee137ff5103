"""What the host side of a kernel shows to the loader: its own functions, and nothing of a static libstdc++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from descriptions import ampere

import pycutlass
from pycutlass import _core, cutlass, toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile


def test_a_host_side_with_a_cxx_library_of_its_own_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each static libstdc++ takes 72 KB when it is loaded, of which it writes to one page."""
    monkeypatch.setenv("CXX", "g++ -static-libstdc++")
    source, library = tmp_path / "kernel.cu", tmp_path / "kernel.so"
    source.write_text(ampere("f32_simt").source().text)
    host = find_tools(None, toolkit.without_memo).host
    subprocess.run(host.command(source, library, "sm_80"), check=True, timeout=200)
    image = library.read_bytes()
    assert len(image) > 500_000  # or the library is not in it

    def resident_after(loads: int) -> int:
        for _ in range(loads):
            _core.HostLibrary(image)
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = resident_after(20)
    assert resident_after(300) - before < 100  # pages


def test_a_host_side_exports_its_functions_alone(tmp_path: Path) -> None:
    f32 = cutlass.float32
    instruction = pycutlass.MathInstruction([1, 1, 1], f32, f32, f32)
    tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
    row = pycutlass.TensorDescription(f32, cutlass.RowMajor)
    operation = pycutlass.GemmOperationUniversal(80, tile, row, row, row, pycutlass.LinearCombination(f32, 1))
    library = tmp_path / "host.so"
    host = find_tools(None, toolkit.without_memo).host
    library.write_bytes(host.compile(operation.source(), "sm_80", Processes(1, 8 << 30)).binary)
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert names == {"pycutlass_bind", "pycutlass_describe", "pycutlass_describe_epilogue", "pycutlass_plan"}
