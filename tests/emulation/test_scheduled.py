"""Threadblocks of Hopper-native kernels come to the tiles that CUTLASS's scheduler gives them."""

from __future__ import annotations

import subprocess

import pytest
from emulator import HERE, Emulator

pytestmark = pytest.mark.compile

CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4), (4, 4))
PROBLEMS = 150


def test_tiles_are_those_of_cutlass(emulator: Emulator) -> None:
    calls = [
        f'std::printf("= {m}x{n}: %ld\\n", emulation::misplaced_of_problems<{m}, {n}>({PROBLEMS}, {10 * m + n}));\n'
        for m, n in CLUSTERS
    ]
    program = emulator.build(f'#include "{HERE / "scheduled.h"}"\nint main() {{\n{"".join(calls)}}}\n')
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in said if line.startswith("= ")] == [f"= {m}x{n}: 0" for m, n in CLUSTERS]


def test_slices_follow_each_other(emulator: Emulator) -> None:
    program = emulator.build(
        f'#include "{HERE / "scheduled.h"}"\nint main() {{ return emulation::slices_are_whole(700, 200) ? 0 : 1; }}\n'
    )
    assert subprocess.run([str(program)], check=False).returncode == 0
