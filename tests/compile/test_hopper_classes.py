"""Every class of Hopper-native GEMMs, through both compilers."""

from __future__ import annotations

import pytest
from hopper_classes import CLASSES
from marks import thorough_but

import pycutlass
from pycutlass import _core, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.families import sm90_memory
from pycutlass.families.sm90_register_a import swizzle_bytes
from pycutlass.report import BuildReport
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

#: Those that are compiled for the device each time: all others are so where tests run on a GPU. Of 8-bit floats, of
#: stream-K and of few rows, examples/13_hopper_gemms.py compiles a kernel, and would not pass with a problem.
USUAL = ("neither along K, cluster of 8",)
#: Its host side is compiled from headers as they are, as those of examples are in `make thorough` alone.
WITH_PLAIN_HEADERS = "neither along K, cluster of 8"

#: Those whose host sides are compiled each time, since they lay out shared memory in the ways that differ most.
DIFFERENT = (
    "stream-K",
    "144 columns",  # in subtiles of 16, with the barriers of pingpong
    "swapped, 8 columns",
    "int8 to int8 by columns",  # C and D have buffers of their own
    "bytes, neither along K",
    "three warp groups, e5m2, fast, to e4m3 by columns",
)


@pytest.mark.parametrize("name", thorough_but(DIFFERENT, CLASSES))
def test_the_host_side_has_the_types_and_the_shared_memory_of_the_description(name, host_compiler):
    operation = CLASSES[name]
    host = _core.HostLibrary(host_compiler.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary)
    assert host.elements == {letter: getattr(operation, letter).type.short for letter in "ABCD"}
    tile, parts = operation.tile_description, operation.family.parts_of(operation)
    options = {"grouped": False, "D": parts.D, "swizzles": swizzle_bytes(tile, parts.A, parts.B)}
    stages = sm90_memory.stages_of(tile, parts.C, **options)
    assert host.shared_bytes == sm90_memory.kernel_bytes(tile, parts.C, stages, **options)


@pytest.mark.parametrize("name", thorough_but(USUAL, CLASSES))
def test_it_compiles_for_the_device(name, tools):
    if name == WITH_PLAIN_HEADERS:
        tools = find_tools("nvcc", toolkit.without_memo)
    operation = CLASSES[name]
    artifact = build(operation.source(), "sm_90a", tools, Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []
    _, n, _ = operation.tile_description.threadblock_shape
    assert all(f"x{n}x" in shape for shape in artifact.report["wgmma_shapes"])


@pytest.mark.parametrize("name", thorough_but(["e4m3 x e5m2"], CLASSES))  # which has a mainloop of our own
def test_nvrtc_compiles_it_as_well(name):
    device = find_tools("nvrtc", toolkit.without_memo).device
    assert device.compile(CLASSES[name].source(), "sm_90a", Processes(1, 8 << 30)).binary


@pytest.mark.thorough
@pytest.mark.parametrize("place", [0, 0.25, 0.5, 0.75, 0.999])
@pytest.mark.parametrize("name", CLASSES)
def test_a_tile_that_is_listed_compiles_without_spills(name, place, tools):
    like = CLASSES[name]
    tiles = pycutlass.tile_descriptions(like)
    parts = (like.A, like.B, like.C, like.epilogue_functor, like.swizzling_functor, like.D, like.swap_ab)
    operation = pycutlass.GemmOperationUniversal(90, tiles[int(place * len(tiles))], *parts)
    artifact = build(operation.source(), "sm_90a", tools, Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []
