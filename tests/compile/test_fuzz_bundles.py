"""Kernels of the fuzz that one machine builds are found on another, which has no compiler or others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]
FOUND = """
import sys
from pathlib import Path
from tools.fuzz import bundles
from tools.fuzz.function_kernels import draw
import pycutlass
bundles.take(Path(sys.argv[1]))
operation = draw(7, 0).operation
(done,) = pycutlass.compiler.compile_many([operation], target="sm_90a" if operation.is_sm90 else "sm_90")
print(done.result.name)
"""


def run(cache: Path, *words: str, **variables: str) -> str:
    environment = os.environ | {"PYCUTLASS_CACHE_DIR": str(cache)} | variables
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_what_one_machine_builds_is_found_on_another(tmp_path: Path) -> None:
    bundle = tmp_path / "kernels.zip"
    build = ("--seed", "7", "--kernels", "1", "--build", str(bundle))
    run(tmp_path / "here", "-m", "tools.fuzz_functions", *build, CXX="g++ -DANOTHER_COMPILER")
    assert run(tmp_path / "there", "-c", FOUND, str(bundle)).startswith("cutlass_")
