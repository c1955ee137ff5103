"""Tiles of B that do not lie along K are turned around in shared memory, whoever does it."""

from __future__ import annotations

import subprocess

import pytest
from emulator import HERE, Emulator

pytestmark = pytest.mark.compile

#: Groups of warps that share a tile, with the first warp of theirs: two that share one, and two that take turns.
GROUPS = ((2, 4), (1, 4), (1, 8))
KINDS = [
    *(("uint8_t", kind, columns) for kind in ("int8_t", "uint8_t", "cutlass::float_e4m3_t") for columns in (128, 256)),
    *(("cutlass::tfloat32_t", "cutlass::tfloat32_t", columns) for columns in (32, 64, 96, 160, 256)),
]


def test_every_element_is_where_it_is_multiplied(emulator: Emulator) -> None:
    """In either stage, which consumers that take turns have both."""
    calls = [
        f'report("{multiplied} {columns} {groups} {first}", emulation::misplaced<{loaded}, {multiplied}, {columns}, '
        f"{groups}>({first}, {stage}));\n"
        for loaded, multiplied, columns in KINDS
        for groups, first in GROUPS
        for stage in (0, 1)
    ]
    program = emulator.build(
        f'#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED\n#include "{HERE / "transposed_b.h"}"\n'
        'void report(char const* name, int wrong) { std::printf("= %s: %d\\n", name, wrong); }\n'
        f"int main() {{\n{''.join(calls)}}}\n"
    )
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line for line in said if line.startswith("= ")]  # CuTe says of shared addresses that a host has none
    assert len(found) == len(calls)
    assert [line for line in found if not line.endswith(": 0")] == []
