"""Kernels that convert one operand in registers compute what they mean, by their own C++ on the host."""

from __future__ import annotations

from typing import Any

import pytest
from descriptions import COLUMN, ROW, mixed_parts
from emulator import Emulator
from epilogue_functions import EVERY

from pycutlass import GemmOperationUniversal, TensorDescription, cutlass

pytestmark = pytest.mark.compile

SMALL: dict[str, Any] = {"tile": (64, 64, 32)}
BY_COLUMNS = mixed_parts("f16", "s8", (COLUMN, COLUMN, ROW), tile=(64, 64, 64))
KERNELS = {
    "f16 x int8": mixed_parts("f16", "s8", **SMALL),
    "f16 by columns x int8, 4 bytes at a time": BY_COLUMNS | {"B": TensorDescription(cutlass.int8, COLUMN, 4)},
    "uint8 x bf16, to columns": mixed_parts("u8", "bf16", (ROW, ROW, COLUMN), tile=(64, 128, 32)),
    "int8 x f16, summed up in f16": mixed_parts(
        "s8", "f16", (ROW, COLUMN, COLUMN), types=("s8", "f16", "f16"), **SMALL
    ),
    "bf16 x int8, warps that share K": mixed_parts("bf16", "s8", tile=(64, 64, 64), warps=(2, 1, 2), stages=4),
    "f16 x uint8, tall warps": mixed_parts("f16", "u8", tile=(128, 32, 64), warps=(2, 1, 1)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_it_means(name: str, emulator: Emulator) -> None:
    right, said = emulator.run(GemmOperationUniversal(**KERNELS[name]))
    assert right, said


@pytest.mark.parametrize(
    ("name", "types", "layouts", "kernel"),
    [
        ("scaled", ("f16", "s8"), (ROW, COLUMN, ROW), "gemm"),
        ("scaled", ("bf16", "u8"), (ROW, COLUMN, COLUMN), "stream-K"),
        ("several", ("s8", "f16"), (ROW, ROW, ROW), "gemm"),
    ],
)
def test_epilogue_functions(name: str, types: tuple[str, str], layouts: Any, kernel: str, emulator: Emulator) -> None:
    described = mixed_parts(*types, layouts, **SMALL)
    described["epilogue_functor"] = EVERY[name](described["C"].element, described["C"].alignment, cutlass.float32)
    if kernel == "stream-K":
        described["swizzling_functor"] = cutlass.ThreadblockSwizzleStreamK
    right, said = emulator.run_function(GemmOperationUniversal(**described))
    assert right, said
