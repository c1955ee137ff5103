"""The tool that runs the original's scripts, on scripts of our own in its places."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "tools" / "original_scripts.py"
SPEC = importlib.util.spec_from_file_location("original_scripts", PATH)
assert SPEC is not None and SPEC.loader is not None
tool = importlib.util.module_from_spec(SPEC)
sys.modules["original_scripts"] = tool  # where dataclasses look for it
SPEC.loader.exec_module(tool)

SCRIPT = """import sys
import cutlass
from bfloat16 import bfloat16
import pycutlass
from pycutlass import *
from pycutlass.utils.device import device_cc
assert cutlass.__name__ == "pycutlass.cutlass" and device_cc() == 80
if "-fail" in sys.argv:
    raise ValueError("as was asked")
print("Passed." if "-silent" not in sys.argv else "Done.")
"""
TEST = """import unittest
import xmlrunner
from pycutlass.test import *

class TestOne(unittest.TestCase):
    def test_right(self):
        self.assertTrue(DataTypeSize[cutlass.int8] == 8)

    def test_wrong(self):
        self.assertTrue(False)

    @unittest.skip("for a reason")
    def test_skipped(self):
        pass
"""


@pytest.fixture
def checkout(tmp_path):
    for folder in (tool.EXAMPLES / "customizable", tool.TESTS / "gemm", tool.TESTS / "example"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / tool.EXAMPLES / "basic.py").write_text(SCRIPT)
    (tmp_path / tool.EXAMPLES / "on_gpu.py").write_text('tensor = torch.ones(1, device="cuda")\n')
    (tmp_path / tool.EXAMPLES / "customizable" / "gemm.py").write_text(SCRIPT)
    commands = [
        "pushd examples",
        *(f"python gemm.py -cc 80 {flag}" for flag in ("-k 1", "-fail", "-silent", "-epv Tree")),
    ]
    (tmp_path / tool.TESTS / "example" / "run_all_example.sh").write_text("\n".join(commands))
    (tmp_path / tool.TESTS / "gemm" / "gemm_one.py").write_text(TEST)
    return tmp_path


def test_each_script_command_and_test_has_a_row(checkout, capsys):
    before = {path: path.read_text() for path in checkout.rglob("*.*") if path.is_file()}
    assert tool.main([str(checkout), "--host", "--uncompiled", "--jobs", "2"]) == 1
    assert {path: path.read_text() for path in checkout.rglob("*.*") if path.is_file()} == before, "a copy is edited"
    rows = capsys.readouterr().out
    outcomes = [line.split()[0] for line in rows.splitlines() if " s  " in line and "not run" not in line]
    assert outcomes == ["passed", "passed", "failed", "failed", "passed", "passed", "failed", "failed"]
    assert "ValueError: as was asked" in rows and "Done." in rows and "AssertionError: False is not true" in rows
    assert "-epv Tree" in rows and "makes its tensors on a GPU" in rows
    assert rows.splitlines()[-1] == "4 passed, 4 failed, 1 not run"


def test_what_is_no_checkout_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path)])
    assert "has no examples/40_cutlass_py" in capsys.readouterr().err
