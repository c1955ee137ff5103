"""Accepted tiles are loaded, read and written by CUTLASS's own iterators: each element, and from its own place."""

from __future__ import annotations

import random
from typing import Any

import pytest
import table
from descriptions import COLUMN, ROW
from prover import RIGHT, Prover
from tile_cases import (
    COLUMNS32,
    DP4A,
    F16,
    F16_OF_8,
    F32_SIMT,
    F64,
    INT8,
    ROWS32,
    TF32,
    TURING_INT8,
    Epilogue,
    Interleaved,
    Mainloop,
    Simt,
)

pytestmark = pytest.mark.compile

#: Tiles that were accepted once, and what is right of them.
LOST_LINES = [
    (Mainloop(TF32, (ROW, COLUMN), (192, 96, 32), (1, 4, 1), 3), "0 "),  # warps of 24 columns
    (Mainloop(F16_OF_8, (ROW, ROW), (96, 64, 64), (2, 2, 1), 4), " 0"),  # warps of 48 rows
    (Mainloop(TURING_INT8, (COLUMNS32, ROWS32), (16, 128, 256), (2, 4, 1), 2), " 0"),  # warps of 8 rows
    (Mainloop(F64, (COLUMN, ROW), (96, 96, 8), (3, 2, 1), 3), ""),  # six warps of f64
]
MIXED_UP = [Epilogue(F16, "f16", 8, (32, 128), (2, 1, 1)), Epilogue(INT8, "s8", 16, (32, 128), (2, 1, 1))]
#: Tiles that do not compile.
UNEVEN = [
    Simt(F32_SIMT, "f32", (ROW, COLUMN), (64, 48, 8), (2, 1, 1), 2),  # 48 columns for lanes of 32
    Simt(DP4A, "s32", (ROW, COLUMN), (96, 64, 32), (3, 2, 1), 2),
]


@pytest.fixture(scope="module")
def prover(tmp_path_factory: pytest.TempPathFactory) -> Prover:
    return Prover(tmp_path_factory.mktemp("proof"))


def test_what_is_wrong_is_found(prover: Prover) -> None:
    right = Mainloop(TF32, (ROW, COLUMN), (64, 64, 32), (2, 2, 1), 3)
    cases: list[Any] = [*(case for case, _ in LOST_LINES), *MIXED_UP, *UNEVEN]
    assert not any(case.is_accepted() for case in cases)
    found = prover.prove([*cases, right])
    assert [case for case, said in found.items() if said == RIGHT] == [right]
    for case, of_it in LOST_LINES:
        assert found[case].startswith(of_it) or found[case].endswith(of_it)
    assert all("compile" in found[case] for case in UNEVEN)


def test_a_sample_of_all(prover: Prover, drawn: random.Random) -> None:
    cases = [
        Simt(F32_SIMT, "f32", (ROW, COLUMN), (192, 64, 8), (4, 2, 1), 4),  # tall warps of more than two stages
        Simt(DP4A, "s8", (COLUMN, ROW), (64, 64, 64), (2, 1, 2), 2),  # warps that share K
        Interleaved(INT8, (64, 64, 64), (2, 2, 1), 3, False),
        Interleaved(TURING_INT8, (64, 64, 64), (2, 2, 1), 2, True),
    ]
    for enumerate_, count in (
        (table.mainloops, 8),
        (table.epilogues, 8),
        (table.simt_kernels, 4),
        (table.interleaved_kernels, 2),
    ):
        cases += (table.draw(drawn, enumerate_) for _ in range(count))
    assert all(case.is_accepted() for case in cases)
    assert prover.wrong(cases) == {}
