"""What the guide does with torch, on a GPU: pages whose blocks autograd, torch.compile, graphs and streams run."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    MathInstruction,
    TensorDescription,
    TileDescription,
    compiler,
    cutlass,
)
from pycutlass.epilogue import fusions

ROOT = Path(__file__).resolve().parents[2]
M, N, K = 136, 264, 64


@pytest.mark.slow
@pytest.mark.parametrize("page", ["torch", "fusion"])
def test_the_page_runs(page: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "tests/unit/pages.py"), str(ROOT / f"docs/guide/{page}.md")]
    done = subprocess.run([*command, "gpu"], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_function_with_a_workspace_may_be_captured_and_drop_its_arguments() -> None:
    """The workspace is of the graph's pool: reductions are right at each replay, whatever others do with ours."""
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    rows, columns = TensorDescription(f16, cutlass.RowMajor, 8), TensorDescription(f16, cutlass.ColumnMajor, 8)
    operation = GemmOperationUniversal(80, tile, rows, columns, rows, fusions.rms_norm_statistics(f16, 8))
    compiler.add_module([operation])
    options = {"device": "cuda", "dtype": torch.float16}
    x, w, residual = (torch.randn(*shape, **options) for shape in ((M, K), (N, K), (M, N)))
    D, squares = torch.empty(M, N, **options), torch.empty(M, device="cuda")

    def run() -> None:
        given = {"residual": residual, "squares": squares}
        operation.run(GemmArguments(operation, (M, N, K), x, w.T, None, D, epilogue=given))

    run()  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pycutlass.allocating_with("torch"), torch.cuda.graph(graph):
        run()
    gc.collect()
    for _ in range(3):
        x.copy_(torch.randn(M, K, **options))
        for each in (D, squares):
            each.fill_(float("nan"))
        run()  # takes memory of our own pool meanwhile
        for each in (D, squares):
            each.fill_(float("nan"))
        graph.replay()
        exact = x.double() @ w.double().T + residual.double()
        np.testing.assert_allclose(D.double().cpu(), exact.cpu(), rtol=2e-3, atol=2e-2)
        np.testing.assert_allclose(squares.double().cpu(), (exact**2).sum(1).cpu(), rtol=1e-3)
