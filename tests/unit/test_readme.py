"""The README's programs are complete and right, and its table of environment variables is the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pages
import pytest

from pycutlass import config

README = pages.ROOT / "README.md"
PRODUCT, PROGRAM = [block.text for block in pages.blocks(README) if block.kind == "python"][:2]
# Checked with the program's own names; f16 rounds by 2**-11 of a value, and the products are summed in f32.
CHECK = """
exact = A.astype(np.longdouble) @ B.astype(np.longdouble)
assert (abs(D - exact) <= 2.0**-11 * abs(exact) + K * 2.0**-23 * (abs(A.astype(float)) @ abs(B.astype(float)))).all()
"""


def test_it_opens_with_a_product_two_commands_and_the_program():
    assert [block.kind for block in pages.blocks(README)][:3] == ["python", "sh", "python"]
    assert pages.blocks(README)[1].text == "make demo\nmake test\n"


def test_the_product_is_right(tmp_path):
    check = """
from math import erf
exact = x.astype(float) @ w.T
sums = 256 * 2.0**-23 * (abs(x.astype(float)) @ abs(w.T.astype(float)))
assert (abs(d - exact) <= 2.0**-11 * abs(exact) + sums).all()
t = exact + bias
gelu = t * 0.5 * (1 + np.vectorize(erf)(t / np.sqrt(2)))
assert y.shape == (512, 128) and (abs(y - gelu) <= 2.0**-10 * abs(gelu) + 1e-2).all()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRODUCT + check],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout.removeprefix("largest error:")) < 0.1


@pytest.mark.compile
def test_the_program_computes_a_gemm(tmp_path, quick_host_compiler):
    poisoned = PROGRAM.replace("D = np.empty((M, N), np.float16)", "D = np.full((M, N), np.nan, np.float16)")
    assert poisoned != PROGRAM
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", poisoned + CHECK],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **quick_host_compiler},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout.removeprefix("largest error:")) < 0.1


def test_environment_variables_are_those_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", README.read_text(), re.MULTILINE)
    assert rows == [(variable.name, variable.default, variable.meaning) for variable in config.VARIABLES]
