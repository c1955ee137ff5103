"""Every example runs, says that it passed, and warns of nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = [*((path.name,) for path in sorted(EXAMPLES.glob("[0-9]*.py"))), ("03_inspect_kernel.py", "--hopper")]
# What PyCUTLASS may say of the machine in its log, which is no word about the example.
ABOUT_THE_MACHINE = ("no GPU (", "the CUDA toolkit in ")


def test_the_examples_are_found():
    assert {"00_gemm_torch.py", "01_gemm_numpy.py", "02_gemm_cupy.py", "03_inspect_kernel.py"} <= {
        run[0] for run in RUNS
    }


@pytest.mark.compile
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_example(run, tmp_path):
    script, *options = run
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / script, *options],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("Passed."), done.stdout
    said = [line for line in done.stderr.splitlines() if not line.startswith(ABOUT_THE_MACHINE)]
    assert said == []
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"
