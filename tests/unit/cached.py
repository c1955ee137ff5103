"""Kernels for the tests of the cache."""

from __future__ import annotations

import logging
import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import strategies as st

from pycutlass.cache import Artifact, make_key
from pycutlass.report import BuildReport

FIELDS = {"kernel": "0" * 64, "headers": "1" * 64, "target": "sm_90a", "flags": '-O3 -DX="a b"'}
REPORT = BuildReport(168, 0, 0, 0, 0, 1024, False, ("a warning",), 9.5, 4.5, 40_000, "nvcc 13.0.88", 98_304).as_json()
TEXT = st.text(st.characters(), max_size=8)  # lone surrogates included: paths may hold them


def kernel(number: int = 0, size: int = 3000, **fields: str) -> Artifact:
    """Return a kernel that differs from those of other numbers in everything."""
    noise = random.Random(number)
    labelled = FIELDS | {"kernel": f"{number:064d}"} | fields
    return Artifact(
        key=make_key(labelled),
        name=labelled.get("name", f"cutlass_gemm_{number}"),  # a column of its own, of which this is the text
        target=labelled["target"],
        fields=labelled,
        cubin=noise.randbytes(size),
        host=noise.randbytes(size // 2),
        report={**REPORT, "registers": 100 + number},
    )


def edit(directory: Path, statement: str, *values: object) -> None:
    """Change the database behind the cache's back."""
    connection = sqlite3.connect(directory / "kernels.db", isolation_level=None)
    connection.execute(statement, values)
    connection.close()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
