"""Threads of Hopper-native kernels wait for each other where columns are reduced: each has a part of them.

The emulation of epilogue functions goes through a tile by a loop of its own. What is seen here is that of kernels.
"""

# mypy: disable-error-code="valid-type,operator"
# Annotations of epilogue functions say what a parameter stands for, which is no type of Python's.

from __future__ import annotations

import re
from typing import Any

import pytest
from hopper_classes import PINGPONG, described, of_tma
from marks import thorough, thorough_but

import pycutlass
from pycutlass import GemmOperationUniversal, TensorDescription, cutlass, epilogue, toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.epilogue import Source
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

AXES = {"columns": 0, "rows": 1}


def reducing(axis: int | None) -> Any:
    @pycutlass.epilogue_function
    def reduced(accum: Any) -> Any:
        return {"D": accum, "total": epilogue.sum(accum, axis=axis)}

    return reduced


def reading(axis: int) -> Any:
    @pycutlass.epilogue_function
    def reduced(accum: Any, c: Source) -> Any:
        return {"D": accum + c, "total": epilogue.sum(accum + c, axis=axis)}

    return reduced


def gated(axis: int) -> Any:
    @pycutlass.epilogue_function
    def reduced(accum: Any) -> Any:
        even, odd = epilogue.pairs(accum)
        return {"D": even * odd, "total": epilogue.sum(even - odd, axis=axis)}

    return reduced


ROWS = TensorDescription(cutlass.float16, cutlass.RowMajor, 2)
KERNELS = {
    "by TMA": (reducing, {}),
    "by TMA, pingpong": (reducing, {"schedule": PINGPONG, "shape": (64, 128, 64)}),
    "reads C": (reading, {}),
    "pairs": (gated, {}),
    "without TMA": (reducing, {"C": ROWS}),
}
#: What is compiled each time. Kernels that read C, and those of pairs, share columns in tests/emulation/test_stores.py
#: as well.
USUAL = ("by TMA",)


def barriers(kind: str, axis: int) -> int:
    """Return how often threads of a kernel wait for others by a named barrier, in its machine code."""
    function, how = KERNELS[kind]
    C = how.get("C", of_tma("f16"))
    functor = function(axis)(C.element, C.alignment, cutlass.float32)
    operation: GemmOperationUniversal = described(**{"C": C, **how}, functor=functor)
    # The device side alone: nothing is launched.
    device = find_tools("nvcc", toolkit.without_memo).device
    cubin = device.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary
    return len(re.findall(r"\bBAR\.SYNC", toolkit.disassembled(cubin)))


@pytest.mark.parametrize("kind", thorough_but(USUAL, KERNELS))
def test_threads_wait_for_each_other_once_more_for_each_subtile(kind: str) -> None:
    across, before_and_after = 4, 2  # subtiles of 32 columns side by side in 128, and what they wait for
    assert barriers(kind, AXES["columns"]) >= barriers(kind, AXES["rows"]) + across * before_and_after


def shared_by_warps(functor: Any) -> int:
    """Return how often a kernel moves what a thread has into registers that its warp shares."""
    how = {"schedule": PINGPONG, "shape": (128, 128, 64), "cluster": (2, 1), "C": of_tma("f16")}
    operation: GemmOperationUniversal = described(**how, functor=functor)
    device = find_tools("nvcc", toolkit.without_memo).device
    cubin = device.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary
    return len(re.findall(r"\bR2UR\b", toolkit.disassembled(cubin)))


@pytest.mark.parametrize("axis", [thorough(0), thorough(1), None])
def test_what_a_warp_shares_stays_in_registers_that_it_shares(axis: int | None) -> None:
    """Where a compiler cannot see that a warp stays together, each wgmma takes its descriptor from others: 5 % more."""
    plain, few = shared_by_warps(None), 8
    assert shared_by_warps(reducing(axis)(cutlass.float16, 8, cutlass.float32)) <= plain + few
