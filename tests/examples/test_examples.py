"""Every example runs, says that it passed, and warns of nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = [*((path.name,) for path in sorted(EXAMPLES.glob("[0-9]*.py"))), ("03_inspect_kernel.py", "--hopper")]
# Command lines of the original's customizable example, as its documentation has them.
GEMM_COMMANDS = {
    "simt f32": "-i 1 1 1 -op Simt -b 128 128 8 -s 4 -w 4 2 1 -p 512 256 128 -alpha 1.0 -beta 0.5 -gm Gemm -k 1",
    "f16, serial split-K": "-i 16 8 16 -ta float16 -tb float16 -tc float16 -tacc float32 -m multiply_add -op TensorOp "
    "-b 128 128 64 -s 3 -w 2 2 1 -cc 80 -la ColumnMajor -aa 8 -lb ColumnMajor -ab 8 -lc RowMajor -ac 8 -te float32 "
    "-ep LinearCombination -sw IdentitySwizzle2 -p 512 256 128 -alpha 1.0 -beta 0.5 -gm Gemm -k 2",
    "f16, parallel split-K": "-i 16 8 16 -ta float16 -tb float16 -tc float32 -tacc float32 -m multiply_add "
    "-op TensorOp -b 256 128 64 -s 3 -w 4 2 1 -cc 80 -la ColumnMajor -aa 8 -lb ColumnMajor -ab 8 -lc RowMajor -ac 4 "
    "-te float32 -ep LinearCombination -sw IdentitySwizzle1 -p 512 256 128 -alpha 1.0 -beta 0.5 "
    "-gm GemmSplitKParallel -k 3",
    "a batch": "-i 16 8 8 -ta float32 -tb float32 -tc float32 -tacc float32 -m multiply_add_fast_bf16 -op TensorOp "
    "-b 128 128 32 -s 3 -w 2 2 1 -cc 80 -la RowMajor -aa 4 -lb ColumnMajor -ab 4 -lc RowMajor -ac 4 -te float32 "
    "-ep LinearCombination -sw BatchedIdentitySwizzle -p 512 256 128 -alpha 1.0 -beta 0.5 -gm Batched -k 1 -batch 3",
    "bf16, more slices than have work, bias and gelu": "-i 16 8 16 -ta bfloat16 -tb bfloat16 -tc float32 -tacc float32 "
    "-m multiply_add -op TensorOp -b 64 128 64 -s 3 -w 2 2 1 -cc 80 -la ColumnMajor -aa 8 -lb ColumnMajor -ab 8 "
    "-lc RowMajor -ac 4 -te float32 -ep LinearCombination -sw IdentitySwizzle2 -p 512 256 128 -alpha 0.0 -beta 0.5 "
    "-gm GemmSplitKParallel -k 5 -bias -activ gelu",
    "int8, K too large for the fast clamp": "-i 16 8 32 -ta int8 -tb int8 -tc int8 -tacc int32 -m multiply_add "
    "-op TensorOp -b 128 128 128 -s 3 -w 2 2 1 -cc 80 -la RowMajor -aa 16 -lb ColumnMajor -ab 16 -lc RowMajor -ac 16 "
    "-te float32 -ep FastLinearCombinationClamp -sw IdentitySwizzle2 -p 512 512 512 -alpha 1.0 -beta 0.0 -gm Gemm",
}
# What PyCUTLASS may say of the machine in its log, which is no word about the example.
ABOUT_THE_MACHINE = ("no GPU (", "the CUDA toolkit in ")


def test_the_examples_are_found():
    assert {"00_gemm_torch.py", "01_gemm_numpy.py", "02_gemm_cupy.py", "03_inspect_kernel.py"} <= {
        run[0] for run in RUNS
    }


@pytest.mark.compile
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_example(run, tmp_path):
    passes(run, tmp_path)


@pytest.mark.compile
@pytest.mark.parametrize("command", GEMM_COMMANDS.values(), ids=GEMM_COMMANDS)
def test_commands_of_the_original(command, tmp_path):
    passes(("gemm.py", *shlex.split(command), "--print_cuda"), tmp_path)


def passes(run, tmp_path):
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
