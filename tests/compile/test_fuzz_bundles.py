"""Kernels of the fuzz that one machine builds are found on another, which has no compiler or others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pycutlass.cache import KernelCache

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]
FOUND = """
import sys
from pathlib import Path
from tools.fuzz import bundles
from tools.fuzz.function_kernels import draw
import pycutlass
bundles.take(Path(sys.argv[1]))
operation = draw(14, 0).operation
(done,) = pycutlass.compiler.compile_many([operation], target="sm_90a" if operation.is_sm90 else "sm_90")
print(done.result.name)
"""


def run(cache: Path, *words: str, **variables: str) -> str:
    environment = os.environ | {"PYCUTLASS_CACHE_DIR": str(cache)} | variables
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


# Terminated, it has more to do: to leave what is being built, and to write what is there.
@pytest.mark.parametrize("ends", [pytest.param("out of kernels", marks=pytest.mark.thorough), "terminated"])
def test_kernels_of_a_seed_are_built_for_another_machine(tmp_path: Path, ends: str) -> None:
    """Two at least before a build is terminated: what it has by then is in the bundle."""
    bundle, drawn = tmp_path / "kernels.zip", ("-m", "tools.fuzz", "--seed", "2", "--family", "gemm gemv")
    count = "2" if ends == "out of kernels" else "50"
    words = (*drawn, "--kernels", count, "--minutes", "5", "--builders", "1", "--build", str(bundle))
    environment = os.environ | {"PYCUTLASS_CACHE_DIR": str(tmp_path / "here"), "CXX": "g++ -DANOTHER_COMPILER"}
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE) as building:
        if ends == "terminated":
            while cached(tmp_path / "here") < 2 and building.poll() is None:
                time.sleep(0.5)
            building.terminate()
        said = building.communicate(timeout=280)[0].decode()
        assert building.returncode == 0, said
    found = ("2",) if ends == "out of kernels" else ("1", "2", "3")  # when the second is in the cache, or later
    dry = (*drawn, "--kernels", count, "--dry", "--bundle", str(bundle), "--minutes", "2", "--runners", "1")
    assert run(tmp_path / "there", *dry).splitlines()[-1].split()[1] in found


def cached(directory: Path) -> int:
    return len(KernelCache(directory, make=False).entries())


def test_what_one_machine_builds_is_found_on_another(tmp_path: Path) -> None:
    bundle = tmp_path / "kernels.zip"
    build = ("--seed", "14", "--kernels", "1", "--build", str(bundle))
    run(tmp_path / "here", "-m", "tools.fuzz_functions", *build, CXX="g++ -DANOTHER_COMPILER")
    assert run(tmp_path / "there", "-c", FOUND, str(bundle)).startswith("cutlass_")
