"""tools/compare_cutlass.py: what it builds, from where, and the table that it makes of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the tools are not installed with the package

from pycutlass.errors import CompileError  # noqa: E402
from tools import compare_cutlass as tool  # noqa: E402

REPORT = {
    **{"registers": 168, "spill_store_bytes": 0, "spill_load_bytes": 0, "cubin_bytes": 40_000},
    **{"seconds_device": 9.0, "seconds_host": 2.0, "wgmma_shapes": ["8 of 64x128x16"]},
}


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """Have nothing be built, with more registers from the second checkout; return where kernels would come from."""
    asked: list[str | None] = []

    class Built:
        def __init__(self, operation: Any) -> None:
            self.operation = operation
            asked.append(os.environ.get("CUTLASS_PATH"))
            self.report = {**REPORT, "registers": 168 if asked[-1] is None else 170}

    header = tmp_path / "include" / "cutlass" / "cutlass.h"
    header.parent.mkdir(parents=True)
    header.write_text("")
    (tmp_path / "include" / "cute").mkdir()
    version = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 7\n#define CUTLASS_PATCH 1\n"
    header.with_name("version.h").write_text(version)
    monkeypatch.setattr(tool, "Built", Built)
    monkeypatch.setattr(tool.device, "available", lambda: False)
    monkeypatch.setenv("CUTLASS_PATH", "/what/the/caller/has")
    return asked


def test_there_is_a_kernel_of_each_kind() -> None:
    names = {make().procedural_name() for make in tool.KERNELS.values()}
    assert len(names) == len(tool.KERNELS)
    for part in ("sm80", "sm90", "grouped", "fprop", "streamk", "pingpong", "cooperative"):
        assert any(part in name for name in names), part


def test_both_checkouts_are_used_and_the_variable_comes_back(
    roots: list[str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([str(tmp_path), "--only", "cooperative", "conv"]) == 0
    assert roots == [None, str(tmp_path)] * 2
    assert os.environ["CUTLASS_PATH"] == "/what/the/caller/has"
    printed = capsys.readouterr().out
    assert "/ 4.7.1:" in printed
    assert "| Hopper, cooperative | 168 / 170 | 0 / 0 | same | 40,000 / 40,000 | 9.0 / 9.0 |" in printed


def test_a_kernel_that_one_of_them_cannot_build_is_said_and_counts(
    roots: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    working = tool.Built

    def fails(operation: Any) -> Any:
        if os.environ.get("CUTLASS_PATH"):
            raise CompileError("a compiler says no")
        return working(operation)

    monkeypatch.setattr(tool, "Built", fails)
    assert tool.main([str(tmp_path), "--only", "cooperative"]) == 1
    assert "| Hopper, cooperative | **not built from 4.7.1** |" in capsys.readouterr().out


def test_results_that_differ_count(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    class Launched(tool.Built):
        def __init__(self, result: float) -> None:
            self.operation, self.report, self.result = None, REPORT, result

        def launch(self) -> Any:
            return [np.array([self.result])], lambda: None

    class Timer:
        def __init__(self, **_: Any) -> None: ...

        def compare(self, works: Any) -> Any:
            return {name: tool.pycutlass.timing.Timing((2.0,)) for name in works}

    monkeypatch.setattr(tool, "_can_run", lambda operation: True)
    monkeypatch.setattr(tool.pycutlass, "DeviceTimer", Timer, raising=False)
    cells, agree = tool.row("one", [Launched(1.0), Launched(1.0)])
    assert agree and cells[-2:] == ["same bits", "2.00 / 2.00"]
    cells, agree = tool.row("one", [Launched(1.0), Launched(1.5)])
    assert not agree and cells[-2] == "**differ**"


def test_no_such_kernel(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path), "--only", "nothing"])
