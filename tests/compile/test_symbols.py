"""What the host side of a kernel shows to the loader: its three functions, and nothing of a static libstdc++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import pycutlass
from pycutlass import compiler, cutlass

pytestmark = pytest.mark.compile


def test_a_host_side_exports_three_functions(tmp_path: Path) -> None:
    f32 = cutlass.float32
    instruction = pycutlass.MathInstruction([1, 1, 1], f32, f32, f32)
    tile = pycutlass.TileDescription([128, 128, 8], 4, [4, 2, 1], instruction)
    row = pycutlass.TensorDescription(f32, cutlass.RowMajor)
    operation = pycutlass.GemmOperationUniversal(80, tile, row, row, row, pycutlass.LinearCombination(f32, 1))
    (artifact,) = compiler.add_module([operation], target="sm_80")
    library = tmp_path / "host.so"
    library.write_bytes(artifact.host)
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert names == {"pycutlass_bind", "pycutlass_describe", "pycutlass_plan"}
