"""A build report counts Hopper's matrix instructions by shape as the disassembler shows them."""

from __future__ import annotations

import collections
import re
import subprocess
from pathlib import Path

import pytest

from pycutlass import toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.cubin import wgmma_shapes
from pycutlass.source import KernelSource
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

#: Shape, types, and what follows the operands: scales and, of types of 16 bits, which operand is transposed.
INSTRUCTIONS = [
    *[(f"m64n{n}k16", "f32.bf16.bf16", "1, 1, 0, 0") for n in range(8, 257, 8)],
    *[(f"m64n{n}k8", "f32.tf32.tf32", "1, 1") for n in (8, 64, 256)],
    *[(f"m64n{n}k32", "s32.s8.s8", "") for n in (8, 16, 24, *range(32, 257, 16))],
    *[(f"m64n{n}k32", "f32.e4m3.e5m2", "1, 1") for n in (8, 24, 128, 256)],
    ("m64n32k16", "f32.f16.f16", "1, 1, 0, 1"),
    ("m64n16k32", "s32.u8.s8", ""),
]


def kernel(number: int, shape: str, types: str, scales: str, *, from_registers: bool = False) -> str:
    """Return a kernel with one instruction, A of which comes from shared memory or from registers."""
    count = int(shape[4:].split("k")[0]) // 2
    kind, letter = ("int", "r") if types.startswith("s32") else ("float", "f")
    sums = ", ".join(f"%{i}" for i in range(count))
    a = "{%{0}, %{0}, %{0}, %{0}}".replace("{0}", str(count)) if from_registers else f"%{count}"
    scales = scales[: len("1, 1, 0")] if from_registers else scales
    given = ", ".join(f'"+{letter}"(c[{i}])' for i in range(count))
    behind = scales and f", {scales}"
    operands = f'"{"r" if from_registers else "l"}"({"unsigned(a)" if from_registers else "a"}), "l"(b)'
    return f"""
extern "C" __global__ void kernel{number}(unsigned long long a, unsigned long long b, {kind}* out) {{
  {kind} c[{count}];
  for (int i = 0; i < {count}; ++i) c[i] = out[i];
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.{shape}.{types} {{{sums}}}, {a}, %{count + 1}, 1{behind};"
               : {given} : {operands});
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
  for (int i = 0; i < {count}; ++i) out[i] = c[i];
}}
"""


def test_every_shape_and_type_is_counted(tmp_path: Path) -> None:
    text = "".join(kernel(i, *each) for i, each in enumerate(INSTRUCTIONS))
    text += kernel(len(INSTRUCTIONS), *INSTRUCTIONS[0], from_registers=True)
    compiler = find_tools("nvrtc", toolkit.without_memo).device
    image = compiler.compile(KernelSource("kernel0", text, 90, native=True), "sm_90a", Processes(1, 8 << 30)).binary
    path = tmp_path / "kernels.cubin"
    path.write_bytes(image)
    command = [str(toolkit.find_tool("nvdisasm")), "-c", str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shown = collections.Counter(re.findall(r"[HIQ]GMMA\.(64x\d+x\d+)\b", listing))
    assert shown.total() == len(INSTRUCTIONS) + 1
    assert wgmma_shapes(image) == shown
    assert list(wgmma_shapes(image)) == sorted(shown, key=lambda shape: [-int(n) for n in shape.split("x")])
