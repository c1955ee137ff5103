"""Hopper-native GEMMs of operands that TMA cannot copy, through both compilers."""

from __future__ import annotations

import pytest
from marks import thorough_but
from unaligned import FUNCTIONS, UNALIGNED

import pycutlass
from pycutlass import _core
from pycutlass.compiler.build import build
from pycutlass.report import BuildReport
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

EVERY = UNALIGNED | FUNCTIONS
#: Those whose host sides are compiled each time: of either, with both schedules, with and without reductions.
DIFFERENT = (
    "int8 to int8",
    "three warp groups",
    "neither along K",
    "reduced by cp.async",
)
#: What reduces columns keeps more than the registers of a kernel of cp.async hold.
SPILLS = ("reduced by cp.async",)


@pytest.mark.parametrize("name", thorough_but(DIFFERENT, EVERY))
def test_the_host_side_has_the_types_and_the_shared_memory_of_the_description(name, host_compiler):
    operation = EVERY[name]
    host = _core.HostLibrary(host_compiler.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary)
    assert {letter: host.elements[letter] for letter in "ABD"} == {
        letter: getattr(operation, letter).type.short for letter in "ABD"
    }
    tile, parts = operation.tile_description, operation.family.parts_of(operation)
    counted = operation.family.shared_bytes(tile, parts.A, parts.B, parts.C, parts.D, epilogue=parts.epilogue)
    assert host.shared_bytes == counted


@pytest.mark.thorough  # examples/13_hopper_gemms.py has one of cp.async; where tests run on a GPU, all are compiled
@pytest.mark.parametrize("name", EVERY)
def test_it_compiles_for_the_device(name, tools):
    artifact = built(EVERY[name], tools)
    if name not in SPILLS:
        assert BuildReport.from_json(artifact.report).problems() == []
    assert not artifact.report["wgmma_serialized"]
    _, n, _ = EVERY[name].tile_description.threadblock_shape
    assert all(f"x{n}x" in shape for shape in artifact.report["wgmma_shapes"])


@pytest.mark.thorough
@pytest.mark.parametrize("place", [0, 0.2, 0.4, 0.6])
@pytest.mark.parametrize("name", UNALIGNED)
def test_a_tile_that_is_listed_compiles_without_spills(name, place, tools):
    like = UNALIGNED[name]
    tiles = pycutlass.tile_descriptions(like)
    parts = (like.A, like.B, like.C, like.epilogue_functor, like.swizzling_functor, like.D, like.swap_ab)
    operation = pycutlass.GemmOperationUniversal(90, tiles[int(place * len(tiles))], *parts)
    assert BuildReport.from_json(built(operation, tools).report).problems() == []


def built(operation, tools):
    return build(operation.source(), "sm_90a", tools, Processes(2, 8 << 30))
