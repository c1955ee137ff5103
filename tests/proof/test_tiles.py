"""Accepted tiles are loaded, read and written by CUTLASS's own iterators: each element, and from its own place."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from descriptions import COLUMN, ROW
from emulator import Emulator
from host import WHOLE
from proofs import EPILOGUES, MAINLOOPS, TOGETHER, Epilogue, Mainloop, epilogues, mainloops, wrong

pytestmark = pytest.mark.compile

F16, F16_OF_8, TF32, S8, _, F64 = MAINLOOPS
#: Tiles that were accepted once, and that a GPU computed something else for.
LOST_LINES = [
    (Mainloop(TF32, (ROW, COLUMN), (192, 96, 32), (1, 4, 1), 3), "0 "),  # warps of 24 columns
    (Mainloop(F16_OF_8, (ROW, ROW), (96, 64, 64), (2, 2, 1), 4), " 0"),  # warps of 48 rows
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


def test_a_sample_of_mainloops_and_epilogues(emulator: Emulator, drawn: random.Random) -> None:
    cases: list[Any] = [*mainloops(drawn, 16), *itertools.islice(epilogues(drawn), 16)]
    assert wrong(emulator, cases) == []


@pytest.mark.skipif(not WHOLE, reason="takes hours: make thorough")
def test_every_mainloop(emulator: Emulator, drawn: random.Random) -> None:
    prove(emulator, list(mainloops(drawn)))


@pytest.mark.skipif(not WHOLE, reason="takes hours: make thorough")
def test_every_epilogue(emulator: Emulator, drawn: random.Random) -> None:
    prove(emulator, list(epilogues(drawn)))


def prove(emulator: Emulator, cases: list[Any]) -> None:
    """Prove all, and say how far it has come."""
    for begin in range(0, len(cases), TOGETHER):
        assert wrong(emulator, cases[begin : begin + TOGETHER]) == []
        print(f"{min(begin + TOGETHER, len(cases))} of {len(cases)}", flush=True)
