"""docs/guide/fusion-support.md says what the code accepts of epilogue functions: tools/fusion_table.py writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

from pycutlass.epilogue import Family, lowering  # noqa: E402
from pycutlass.epilogue.nodes import NODES, REDUCTIONS  # noqa: E402
from pycutlass.epilogue.parameters import _MARKERS  # noqa: E402
from tools import fusion_table as tool  # noqa: E402

ROWS = {each.title: each for each in tool.asked()}
GEMM = tool.WAYS["Ampere-style GEMM"]


def test_the_page_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--check"]) == 0, f"run python tools/fusion_table.py:\n{capsys.readouterr().out}"


def test_another_page_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(tool.PAGE.read_text().replace("| yes |", "| no |", 1))
    monkeypatch.setattr(tool, "PAGE", page)
    assert tool.main(["--check"]) == 1
    assert "run python tools/fusion_table.py" in capsys.readouterr().out
    assert tool.main([]) == 0
    assert page.read_text() == (ROOT / "docs" / "guide" / "fusion-support.md").read_text()


def test_everything_that_there_is_is_asked() -> None:
    assert {f"`{name}`" for name in (*NODES, *REDUCTIONS)} <= ROWS.keys()
    assert set(tool.MARKERS.values()) == set(_MARKERS.values())


def test_every_family_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[Family] = set()
    why_not = lowering.why_not

    def told(functor: Any, family: Family) -> str:
        asked.add(family)
        return why_not(functor, family)

    monkeypatch.setattr("pycutlass.epilogue.lowering.why_not", told)
    for ways in tool.WAYS.values():
        for way in ways:
            tool.answer(way, ROWS["`Row`"])
    assert asked == set(Family)


def test_a_refusal_is_in_the_codes_own_words() -> None:
    assert tool.answer(GEMM[0], ROWS["`Row`"]) == ""
    assert "cutlass.float64" in tool.answer(tool.WAYS["Hopper-native GEMM"][0], ROWS["`float64`"])
