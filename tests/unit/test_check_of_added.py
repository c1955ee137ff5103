"""Checks of plans that add a C, a bias or both, or combine pairs: right kernels pass, and wrong ones do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass.epilogue import Row
from pycutlass.epilogue.fusions import swiglu
from pycutlass.errors import ArgumentError


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float16)


@pycutlass.epilogue_function
def scaled(accum: Any, scale: Row) -> Any:
    return accum * scale


A, B, C, V = ones(20, 16), ones(16, 24), ones(20, 24), ones(24)
X, W, Y, U = ones(2, 6, 6, 8), ones(8, 3, 3, 4), ones(2, 4, 4, 8), ones(8)
PLANS: dict[str, Any] = {
    "a bias": lambda: pycutlass.Gemm(A, B, bias=V, beta=2, epilogue=pycutlass.relu),
    "both": lambda: pycutlass.Gemm(A, B, C, beta=-2, bias=V, alpha=0.5, epilogue=pycutlass.gelu),
    "both of a batch": lambda: pycutlass.Gemm(ones(3, 20, 16), ones(3, 16, 24), ones(3, 20, 24), beta=1, bias=V),
    "pairs": lambda: pycutlass.Gemm(A, B, epilogue=swiglu),
    "a convolution with a bias": lambda: pycutlass.Conv2d(X, W, bias=U, groups=2),
    "a convolution with both": lambda: pycutlass.Conv2d(X, W, Y, beta=2, bias=U, groups=2, epilogue=pycutlass.silu),
    "a gradient with both": lambda: pycutlass.Conv2d(
        Y, W, X, kind="dgrad", result_size=X.shape, beta=2, bias=U, groups=2
    ),
    "a group with a bias": lambda: pycutlass.GroupedGemm([A, A[:3]], [B, B], bias=V),
    "a group with both": lambda: pycutlass.GroupedGemm([A, A[:3]], [B, B], [C, C[:3]], beta=2, bias=V),
    "a group of pairs": lambda: pycutlass.GroupedGemm([A], [B], epilogue=swiglu),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_is_right_passes(plan: Any) -> None:
    assert all(0 < plan().check(seed) <= 1 for seed in range(3))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_is_wrong_is_seen(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element is a little larger."""
    made = plan()
    run = made.run_once

    def wrong(a: Any, b: Any, c: Any, out: Any, *rest: Any, **further: Any) -> None:
        run(a, b, c, out, *rest, **further)
        for each in out if isinstance(out, list) else [out]:
            each[...] += np.float16(0.5)

    monkeypatch.setattr(made, "run_once", wrong)
    with pytest.raises(ArgumentError, match="is wrong for"):
        made.check()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (lambda: pycutlass.Gemm(A, B, epilogue=scaled, epilogue_inputs={"scale": V}), "tensors of their own"),
        (lambda: pycutlass.Gemm(A, B, bias=V, out=np.empty((24, 20), np.float16).T), "a D by rows"),
    ],
)
def test_what_is_not_checked_says_so(plan: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        plan().check()
