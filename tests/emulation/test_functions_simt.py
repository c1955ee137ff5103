"""Kernels of CUDA cores with epilogue functions, and pairs of float64, by their own C++ on the host."""

from __future__ import annotations

from typing import Any

import pytest
from convolutions import SIMT, STRIDED, UNITY, conv, dgrad, fprop, wgrad
from descriptions import COLUMN, ROW, parts
from emulator import Emulator
from epilogue_functions import EVERY

from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    MathInstruction,
    SchedulerMode,
    TensorDescription,
    TileDescription,
    cutlass,
)

pytestmark = pytest.mark.compile


@pytest.mark.parametrize(
    ("name", "kind", "layouts", "tile", "swizzle"),
    [
        ("several", "f32_simt", (ROW, ROW, ROW), {"tile": (128, 128, 8)}, None),
        ("reduced", "f32_simt", (COLUMN, ROW, COLUMN), {"tile": (64, 256, 16), "warps": (1, 4, 1)}, None),
        ("residual", "f32_simt", (ROW, COLUMN, ROW), {"tile": (64, 64, 8), "warps": (2, 2, 1), "stages": 2}, None),
        ("linear", "f32_simt", (ROW, ROW, COLUMN), {"tile": (128, 256, 16), "warps": (2, 4, 1)}, "stream-K"),
        ("of_batch", "f64_simt", (COLUMN, COLUMN, ROW), {"tile": (128, 32, 8), "warps": (2, 1, 1)}, None),
        ("reduced", "f64_simt", (ROW, COLUMN, COLUMN), {"tile": (64, 64, 8), "warps": (2, 2, 1)}, None),
    ],
)
def test_kernels_of_cuda_cores(
    name: str, kind: str, layouts: tuple[Any, Any, Any], tile: dict[str, Any], swizzle: str | None, emulator: Emulator
) -> None:
    described = parts(kind, layouts, **tile)
    if swizzle == "stream-K":
        described["swizzling_functor"] = cutlass.ThreadblockSwizzleStreamK
    accumulator = described["tile_description"].math_instruction.accumulator.tag
    functor = EVERY[name](described["C"].element, 1, accumulator)
    right, said = emulator.run_function(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said


def test_kernels_of_cuda_cores_for_int8_groups_and_convolutions(emulator: Emulator) -> None:
    int8, row = cutlass.int8, TensorDescription(cutlass.int8, ROW, 4)
    instruction = MathInstruction([1, 1, 4], int8, int8, cutlass.int32, cutlass.OpClass.Simt)
    described = {"tile_description": TileDescription([64, 64, 32], 2, [2, 2, 1], instruction), "A": row, "B": row}
    C = TensorDescription(cutlass.float32, ROW, 1)
    functor = EVERY["several"](cutlass.float32, 1, cutlass.int32, cutlass.float32)
    operation = GemmOperationUniversal(80, **described, C=C, epilogue_functor=functor)
    assert all(emulator.run_function(operation)[:1])
    group = parts("f32_simt", (ROW, ROW, COLUMN)) | {"epilogue_functor": EVERY["reduced"](cutlass.float32, 1)}
    right, said = emulator.run_group(GemmOperationGrouped(**group, precompute_mode=SchedulerMode.Device))
    assert right, said
    types = (cutlass.float32,) * 3
    for kind, stride in ((fprop, STRIDED), (dgrad, UNITY), (wgrad, STRIDED)):
        convolution = conv(kind, "optimized", types, opcode=SIMT, stride=stride, functor=EVERY["several"])
        right, said = emulator.run_convolution(convolution)
        assert right, said


@pytest.mark.parametrize("name", ["gated", "gated_several", "gated_reduced"])
def test_pairs_of_float64(name: str, emulator: Emulator) -> None:
    described = parts("f64") | {"C": TensorDescription(cutlass.float64, ROW, 2)}
    functor = EVERY[name](cutlass.float64, 2, cutlass.float64)
    right, said = emulator.run_function(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said
