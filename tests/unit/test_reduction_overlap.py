"""Where the destination of a reduction may lie: apart from the partial sums, or where one of them is."""

from __future__ import annotations

import fake_gpu
import pytest

_PROGRAM = """
import sys
ends = reduction(gemm(), 4, 8)
base = Array(0, np.ones((4, 4, 8), np.float32))
# three planes of 4 x 8, 128 bytes each, and room behind them

class Part:
    # an array of cupy in the memory of another one
    __cuda_array_interface__ = {}

    def __init__(self, offset, shape, strides=None):
        self.base, self.shape, self.dtype = base, shape, np.dtype(np.float32)
        self.strides = strides or np.zeros(shape, np.float32).strides
        self.data = SimpleNamespace(ptr=base.data.ptr + offset, device_id=0)

sys.modules["cupy"].ndarray = Part
planes = Part(0, (3, 4, 8))
apart = Array(0, np.zeros((4, 8), np.float32))

def make(offset, workspace=planes, strides=None, **how):
    return pycutlass.ReductionArguments(ends, [4, 8], 3, workspace, Part(offset, (4, 8), strides), **how)

def is_refused(*given, **how):
    words = ("destination overlaps workspace", "memory of its own")
    return refused(lambda: make(*given, **how), *words) == "ArgumentError"
"""


def test_a_destination_that_is_a_plane_is_taken() -> None:
    program = """
for plane in range(3):
    base.set(np.arange(128, dtype=np.float32).reshape(4, 4, 8))
    wanted = base.now()[:3].sum(0)
    arguments = make(128 * plane)
    ends.run(arguments)
    arguments.sync()
    driver.fake_run()
    assert (base.now()[plane] == wanted).all()
assert make(3 * 128)
"""
    fake_gpu.run(_PROGRAM + program)


@pytest.mark.parametrize("workspace", ["planes", "planes.data.ptr", "Part(0, (96,))"])
def test_one_that_lies_across_planes_is_refused(workspace: str) -> None:
    """Threads would add up what others have written."""
    program = f"""
for offset in (4, 32, 64, 128 + 32, 2 * 128 + 96, 3 * 128 - 4):
    assert is_refused(offset, {workspace}), offset
assert is_refused(0, {workspace}, (64, 4))  # every second of its lines is another's
assert make(3 * 128, {workspace})
"""
    fake_gpu.run(_PROGRAM + program)


def test_an_update_cannot_move_it_there() -> None:
    program = """
arguments = make(3 * 128)
for offset in (32, 128 + 64):
    refused(lambda: arguments.update(D=Part(offset, (4, 8))), "destination overlaps workspace")
arguments.update(D=Part(128, (4, 8)))
assert arguments.ptr_D == base.data.ptr + 128
"""
    fake_gpu.run(_PROGRAM + program)


def test_the_sums_of_a_gemm_are_looked_at_as_well() -> None:
    program = """
operation = gemm()
A, B = Array(0, np.ones((4, 6), np.float32)), Array(0, np.ones((6, 8), np.float32, order="F"))
sys.modules["cupy"].ndarray = Array
sums = pycutlass.GemmArguments(operation, [4, 8, 6], A, B, gemm_mode=pycutlass.cutlass.gemm.Mode.GemmSplitKParallel,
                               split_k_slices=2)
for offset in (32, 64, 160):
    refused(lambda: pycutlass.ReductionArguments(ends, [4, 8], 2, sums.ptr_D, sums.ptr_D + offset),
            "destination overlaps workspace")
pycutlass.ReductionArguments(ends, [4, 8], 2, sums.ptr_D, sums.ptr_D + 128)
"""
    fake_gpu.run(_PROGRAM + program)


def test_a_source_may_be_the_destination_and_nothing_near_it() -> None:
    program = """
how = {"output_op": ends.epilogue_type(1.0, 1.0)}
workspace = Part(0, (2, 4, 8))

def with_source(offset):
    source = Part(offset, (4, 8))
    return pycutlass.ReductionArguments(ends, [4, 8], 2, workspace, Part(256, (4, 8)), source, **how)

for offset in (256, 384, 0):
    assert with_source(offset)
for offset in (256 + 32, 256 - 64):
    refused(lambda: with_source(offset), "destination overlaps source")
"""
    fake_gpu.run(_PROGRAM + program)
