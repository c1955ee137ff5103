"""Conversions to uint8 behind max(x, 0): ptxas makes one instruction of both that an H100 does not execute."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hopper_classes import CLASSES

from pycutlass import toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile


def test_none_is_made_one_instruction_with_a_maximum(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    compiler = find_tools("nvrtc", toolkit.without_memo).device
    path.write_bytes(compiler.compile(CLASSES["a function of uint8"].source(), "sm_90a", Processes(1, 8 << 30)).binary)
    command = [str(toolkit.find_tool("nvdisasm")), str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    converted = re.findall(r"\bF2IP\.U8\.[\w.]+", listing)
    assert converted, "none is converted by this instruction: it has another name today"
    assert not [each for each in converted if "RELU" in each]
