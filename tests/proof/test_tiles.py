"""Accepted tiles are loaded, read and written by CUTLASS's own iterators: each element, and from its own place."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from descriptions import COLUMN, ROW
from emulator import Emulator
from host import WHOLE
from proofs import (
    COLUMNS32,
    EPILOGUES,
    MAINLOOPS,
    ROWS32,
    TOGETHER,
    Epilogue,
    Mainloop,
    Simt,
    epilogues,
    mainloops,
    simt_kernels,
    wrong,
)

pytestmark = pytest.mark.compile

_, F16_OF_8, TF32, *_ = MAINLOOPS
#: Tiles that were accepted once.
LOST_LINES = [
    (Mainloop(TF32, (ROW, COLUMN), (192, 96, 32), (1, 4, 1), 3), "0 "),  # warps of 24 columns
    (Mainloop(F16_OF_8, (ROW, ROW), (96, 64, 64), (2, 2, 1), 4), " 0"),  # warps of 48 rows
    (Mainloop(MAINLOOPS[4], (COLUMNS32, ROWS32), (16, 128, 256), (2, 4, 1), 2), " 0"),  # warps of 8 rows
    (Mainloop(MAINLOOPS[5], (COLUMN, ROW), (96, 96, 8), (3, 2, 1), 3), ""),  # six warps of f64
]
MIXED_UP = [
    Epilogue(EPILOGUES[1], 8, (32, 128), (2, 1, 1)),
    Epilogue(EPILOGUES[7], 16, (32, 128), (2, 1, 1)),
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("proof"))


def test_what_is_wrong_is_found(emulator: Emulator) -> None:
    cases: list[Any] = [*(case for case, _ in LOST_LINES), *MIXED_UP]
    assert not any(case.is_accepted() for case in cases)
    found = dict(wrong(emulator, cases))
    assert list(found) == cases
    for case, right in LOST_LINES:
        assert found[case].startswith(right) or found[case].endswith(right)


def test_a_sample_of_all(emulator: Emulator, drawn: random.Random) -> None:
    cases: list[Any] = [
        Simt("f32", (ROW, COLUMN), (192, 64, 8), (4, 2, 1), 4),  # tall warps of more than two stages
        *mainloops(drawn, 12),
        *itertools.islice(epilogues(drawn), 12),
        *itertools.islice(simt_kernels(drawn), 4),
    ]
    assert all(case.is_accepted() for case in cases)
    assert wrong(emulator, cases) == []


@pytest.mark.skipif(not WHOLE, reason="takes hours: make thorough")
def test_every_mainloop(emulator: Emulator, drawn: random.Random) -> None:
    prove(emulator, list(mainloops(drawn)))


@pytest.mark.skipif(not WHOLE, reason="takes hours: make thorough")
def test_every_epilogue(emulator: Emulator, drawn: random.Random) -> None:
    prove(emulator, list(epilogues(drawn)))


@pytest.mark.skipif(not WHOLE, reason="takes hours: make thorough")
def test_every_simt_kernel(emulator: Emulator, drawn: random.Random) -> None:
    prove(emulator, list(simt_kernels(drawn)))


def prove(emulator: Emulator, cases: list[Any]) -> None:
    """Prove all, and say how far it has come."""
    for begin in range(0, len(cases), TOGETHER):
        assert wrong(emulator, cases[begin : begin + TOGETHER]) == []
        print(f"{min(begin + TOGETHER, len(cases))} of {len(cases)}", flush=True)
