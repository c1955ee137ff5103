"""Kernels multiply by the instruction of their description: CUTLASS has mainloops that choose another, silently."""

from __future__ import annotations

import collections
import re
import subprocess
from typing import Any

import pytest
from convolutions import OPERATIONS as CONVOLUTIONS
from convolutions import conv, f32, fprop
from descriptions import COLUMN, ROW, ampere, mixed_parts

from pycutlass import GemmOperationUniversal, MathOperation, toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.source import KernelSource
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile


def mixed(*types: Any, **options: Any) -> GemmOperationUniversal:
    """Return a kernel that converts one operand in registers."""
    return GemmOperationUniversal(**mixed_parts(*types, **options))


#: Mnemonics of nvdisasm for sm_80, by what is multiplied.
TF32, F16, BF16 = "HMMA.1688.F32.TF32", "HMMA.1688.F32", "HMMA.1688.F32.BF16"
FAST = {
    MathOperation.multiply_add: TF32,
    MathOperation.multiply_add_fast_f16: F16,
    MathOperation.multiply_add_fast_bf16: BF16,
    MathOperation.multiply_add_fast_f32: TF32,
}
CASES: list[tuple[Any, str]] = [
    *[(ampere("f32", math=math, tile=(64, 64, 16)), mnemonic) for math, mnemonic in FAST.items()],
    (conv(fprop, "optimized", (f32, f32, f32), math=MathOperation.multiply_add, shape=(64, 64, 16)), TF32),
    (ampere("tf32", stages=2, tile=(64, 64, 16)), TF32),
    (ampere("f16_acc16", stages=2, tile=(64, 64, 32)), "HMMA.16816.F16"),
    (ampere("bf16", stages=2, tile=(64, 64, 32)), "HMMA.16816.F32.BF16"),
    (CONVOLUTIONS["f16_fprop_align1"], "HMMA.16816.F32"),
    (mixed("f16", "s8", tile=(64, 64, 32)), "HMMA.16816.F32"),
    (mixed("u8", "bf16", (ROW, ROW, COLUMN), tile=(64, 64, 32)), "HMMA.16816.F32.BF16"),
    (mixed("f16", "u8", (COLUMN, COLUMN, ROW), types=("f16", "f16", "f16"), tile=(64, 64, 32)), "HMMA.16816.F16"),
]


@pytest.fixture(scope="module")
def listings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The machine code of each kernel by its name; all are one program, whose headers are most of the work."""
    text = "".join(re.sub(r"\bOperation\b", f"Operation{i}", each.emit()) for i, (each, _) in enumerate(CASES))
    source = KernelSource(CASES[0][0].procedural_name(), text, 80, native=False)
    path = tmp_path_factory.mktemp("instructions") / "kernels.cubin"
    path.write_bytes(
        find_tools("nvrtc", toolkit.without_memo).device.compile(source, "sm_80", Processes(1, 8 << 30)).binary
    )
    command = [str(toolkit.find_tool("nvdisasm")), str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sections = re.split(r"^\s*\.section\s+\.text\.", listing, flags=re.MULTILINE)[1:]
    return {section.partition(",")[0]: section for section in sections}


@pytest.mark.parametrize(("operation", "mnemonic"), CASES, ids=[case[0].procedural_name() for case in CASES])
def test_a_kernel_multiplies_by_its_instruction(operation: Any, mnemonic: str, listings: dict[str, str]) -> None:
    mix = collections.Counter(re.findall(r"\b[HDI]MMA\.[\w.]+", listings[operation.procedural_name()]))
    tile = operation.tile_description
    m, n, k = (
        extent // step for extent, step in zip(tile.warp_shape, tile.math_instruction.instruction_shape, strict=True)
    )
    products = 3 if tile.math_instruction.math_operation is MathOperation.multiply_add_fast_f32 else 1
    assert set(mix) == {mnemonic}
    assert mix[mnemonic] % (m * n * k * products) == 0
