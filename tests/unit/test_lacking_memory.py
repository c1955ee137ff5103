"""Memory for results, copies and the reference that there is not: what libraries raise becomes ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass.errors import AllocationError
from pycutlass.launch.gemm import GemmProblem
from pycutlass.plan.forms import copied
from pycutlass.tensor import wrap


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_of_64_terabytes(library: str) -> None:
    columns, rows = np.ones((2**22, 1), np.float32), np.ones((1, 2**22), np.float32)
    if library == "torch":
        torch = pytest.importorskip("torch")
        columns, rows = torch.from_numpy(columns), torch.from_numpy(rows)
    for call in (
        lambda: pycutlass.matmul(columns, rows),
        lambda: pycutlass.Gemm(columns, rows).run(columns, rows),
        lambda: pycutlass.grouped_matmul([columns], [rows]),
    ):
        with pytest.raises(AllocationError, match=r"there is no memory for 17,592,186,044,416 elements") as caught:
            call()
        assert isinstance(caught.value, MemoryError) and caught.value.__cause__ is not None


def test_images_and_copies() -> None:
    x, w = np.ones((1, 2**11, 2**11, 1), np.float32), np.ones((2**22, 1, 1, 1), np.float32)
    with pytest.raises(AllocationError):
        pycutlass.conv2d(x, w)
    row = np.broadcast_to(np.ones(2, np.int8)[::2], (2**46, 1))
    with pytest.raises(AllocationError, match=r"shape \(70368744177664, 1\)"):
        copied("a", row, wrap("a", row), row.shape)


def test_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(problem: Any) -> None:
        raise MemoryError("Unable to allocate 1 TiB")

    a, b = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
    plan = pycutlass.Gemm(a, b)
    monkeypatch.setattr(GemmProblem, "compute", lacking)
    with pytest.raises(AllocationError, match=r"the host lacks the memory to compute .*Unable to allocate 1 TiB"):
        plan.run(a, b)
