"""Kernels of all kinds, stages and layouts compute what they mean, by their own C++ on the host.

A GPU says more of the kernels that it runs (tests/gpu). These tests run everywhere, and include those of Turing.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiles
from descriptions import COLUMN, ROW, ampere
from emulator import Emulator
from tiles import int8

from pycutlass import MathOperation
from pycutlass.families.ampere import tensor_op

pytestmark = pytest.mark.compile

SATURATE: dict[str, Any] = {"math": MathOperation.multiply_add_saturate, "tile": (64, 64, 64)}
DP4A: dict[str, Any] = {"instruction": (1, 1, 4), "tile": (64, 64, 32), "warps": (2, 2, 1), "stages": 2}
SMALL: dict[str, Any] = {"tile": (64, 64, 16)}
KERNELS = {
    "f16": ampere("f16", tile=(64, 64, 32)),
    "f16 of 2 stages, single elements": ampere("f16", (COLUMN, ROW, ROW), tile=(64, 64, 32), stages=2, alignment=1),
    "bf16 with warps that share K": ampere("bf16", (COLUMN, COLUMN, COLUMN), tile=(64, 64, 64), warps=(2, 1, 2)),
    "tf32 of 2 stages": ampere("tf32", (COLUMN, ROW, COLUMN), stages=2, **SMALL),
    "f32 as three of tf32": ampere("f32", math=MathOperation.multiply_add_fast_f32, **SMALL),
    "f64": ampere("f64", (ROW, ROW, COLUMN), tile=(32, 64, 16), stages=3),
    "int8 of 2 stages, single elements": int8(1, instruction=(16, 8, 32), stages=2, **SATURATE),
    "f32 on CUDA cores": ampere("f32_simt", (ROW, ROW, COLUMN), tile=(64, 64, 8), warps=(2, 2, 1)),
    "int8 on CUDA cores": int8(4, (COLUMN, ROW, ROW), "f32_simt", **DP4A),
    "Turing f16": ampere("f16", capability=75, instruction=(16, 8, 8), stages=2, tile=(64, 64, 32)),
    "Turing int8": int8(16, capability=75, instruction=(8, 8, 16), stages=2, **SATURATE),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_it_means(name: str, emulator: Emulator) -> None:
    right, said = emulator.run(KERNELS[name])
    assert right, said


def test_any_kernel_that_is_accepted_computes_what_it_means(emulator: Emulator) -> None:
    """One of those that ``tiles.py`` draws for as long as it may."""
    operation = tiles.draw(random.Random(0))
    right, said = emulator.run(operation)
    assert right, f"{operation}\n{said}"


@pytest.mark.parametrize(
    ("rule", "options", "first"),
    [
        ("_check_warp_tile", {"layouts": (COLUMN, COLUMN, ROW), "tile": (192, 64, 32)}, "D[96, "),
        ("_check_matrices", {"layouts": (ROW, ROW, ROW), "tile": (96, 64, 64), "instruction": (16, 8, 8)}, "D[32, "),
    ],
)
def test_a_wrong_kernel_is_found(
    rule: str, options: dict[str, Any], first: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile that is refused for its result, not for the compiler."""
    monkeypatch.setattr(tensor_op, rule, lambda *arguments: None)
    right, said = emulator.run(ampere("f16", **options))
    assert not right
    assert first in said
