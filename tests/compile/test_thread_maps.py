"""How CUTLASS divides a tile among warps, by its own headers, against the rule that refuses tiles for it."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from convolutions import conv, fprop
from descriptions import ampere

from pycutlass import toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.errors import CompileError
from pycutlass.families.ampere import tensor_op
from pycutlass.families.ampere.tensor_op import shares_evenly
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile

PROGRAM = """
#include <cuda_runtime.h>
#include <cutlass/layout/pitch_linear.h>
#include <cutlass/transform/pitch_linear_thread_map.h>

#include <cstdio>
#include <vector>

template <typename Map>
void tell(int beside, int lines) {
  std::vector<int> times(beside * lines, 0);
  bool once = true;
  for (int thread = 0; thread < Map::kThreads; ++thread) {
    auto const first = Map::initial_offset(thread);
    for (int s = 0; s < Map::Iterations::kStrided; ++s) {
      for (int c = 0; c < Map::Iterations::kContiguous; ++c) {
        int const x = first.contiguous() + c * Map::Delta::kContiguous, y = first.strided() + s * Map::Delta::kStrided;
        if (x >= beside || y >= lines) once = false;
        else ++times[y * beside + x];
      }
    }
  }
  for (int time : times) once = once && time == 1;
  std::printf("%%d\\n", once);
}

using cutlass::layout::PitchLinearShape;
using namespace cutlass::transform;

int main() {
%s
}
"""


def iterates(beside: int, lines: int, lanes: int, warps: int, striped: bool) -> bool:
    """Return whether CUTLASS's static assertions hold, so that there is a map at all."""
    across, down = beside // lanes, lines // (32 // lanes)
    if not across or not down or beside % lanes or lines % (32 // lanes):
        return False
    if down >= warps:
        return True
    warps_down = warps // down if striped else down
    warps_across = across // warps_down if striped else warps // warps_down
    return bool(warps_across and across // warps_across and down // warps_down)


@pytest.mark.parametrize("operation", ["gemm", "convolution"])
def test_a_kernel_that_would_load_a_part_of_its_tile_does_not_compile(
    operation: str, host_compiler: HostCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the rule miss one, the headers do not."""
    monkeypatch.setattr(tensor_op, "_check_shares", lambda *arguments: None)
    shape, warps = (96, 128, 32), (2, 4, 1)  # a warp takes 8 of 96 lines: 12 steps for 8 warps
    made = (
        ampere("f16", tile=shape, warps=warps)
        if operation == "gemm"
        else conv(fprop, "optimized", shape=shape, warps=warps)
    )
    with pytest.raises(CompileError, match="do not share the tile of an operand evenly"):
        host_compiler.compile(made.source(), "sm_80", Processes(1, 8 << 30))


def test_the_rule_is_what_cutlass_does(tmp_path: Path) -> None:
    extents = ((8, 16, 24, 32, 48, 64), (8, 16, 24, 32, 64, 96), (4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 12, 16))
    cases = [
        (*case, striped)
        for case in itertools.product(*extents)
        for striped in ((False, True) if case[2] == 16 else (False,))
        if iterates(*case, striped)
    ][::4]
    lines = [
        f"  tell<PitchLinearWarp{'Striped' if striped else 'Raked'}ThreadMap<PitchLinearShape<{beside}, {down}>, "
        f"{32 * warps}, PitchLinearShape<{lanes}, {32 // lanes}>, 1>>({beside}, {down});"
        for beside, down, lanes, warps, striped in cases
    ]
    (tmp_path / "maps.cpp").write_text(PROGRAM % "\n".join(lines))
    tools = find_tools("nvcc", toolkit.without_memo)
    includes = [f"-I{path}" for path in tools.host.includes]
    program = tmp_path / "maps"
    command = [
        *toolkit.find_host_compiler(),
        "-std=c++17",
        "-w",
        *includes,
        str(tmp_path / "maps.cpp"),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()
    expected = [shares_evenly(*case[:4], striped=case[4]) for case in cases]
    wrong = [case for case, once, rule in zip(cases, told, expected, strict=True) if rule != (once == "1")]
    assert wrong == []
    assert 50 < sum(expected) < len(expected) - 50  # some of each
