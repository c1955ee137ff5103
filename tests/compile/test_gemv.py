"""GEMV kernels of every class, through both compilers, for both architectures."""

from __future__ import annotations

import pytest
from gemv_classes import CLASSES, HEAVY, gemv
from marks import thorough, thorough_but

import pycutlass
from pycutlass import _core, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.report import BuildReport
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

#: Those that are compiled for the device each time. Tests below compile some of f16, bf16 and 8-bit floats.
USUAL = ("int8 by rows", "a function of few columns")


def described_for_hopper(operation):
    fields = {name: getattr(operation, name) for name in operation._FIELDS if name != "D"}
    return pycutlass.GemmOperationUniversal(**fields | {"compute_capability": 90})


def built_without_spills(operation, target, tools):
    artifact = build(operation.source(), target, tools, Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []
    assert not artifact.report["spill_store_bytes"] and not artifact.report["spill_load_bytes"]
    return artifact


@pytest.mark.parametrize("name", CLASSES)
def test_the_host_side_has_the_types_and_the_shared_memory_of_the_description(name, host_compiler):
    operation = CLASSES[name]
    host = _core.HostLibrary(host_compiler.compile(operation.source(), "sm_80", Processes(1, 8 << 30)).binary)
    assert host.elements == {letter: getattr(operation, letter).type.short for letter in "ABCD"}
    tile, parts = operation.tile_description, operation.family.parts_of(operation)
    assert host.shared_bytes == operation.family.shared_bytes(tile, parts.A, parts.B, parts.C)
    assert host.threads == tile.num_threads


@pytest.mark.parametrize("name", thorough_but(USUAL, CLASSES))
def test_it_compiles_for_the_device(name, tools):
    built_without_spills(CLASSES[name], f"sm_{CLASSES[name].compute_capability}", tools)
    built_without_spills(described_for_hopper(CLASSES[name]), "sm_90a", tools)


@pytest.mark.parametrize("name", thorough_but([each for each in HEAVY if "e4m3 by rows, 8" in each], HEAVY))
def test_registers_suffice(name, tools):
    built_without_spills(HEAVY[name], "sm_80", tools)
    built_without_spills(described_for_hopper(HEAVY[name]), "sm_90a", tools)


def test_nvrtc_compiles_it_as_well():
    """And g++ the headers of GEMV as they are."""
    plain = find_tools("nvrtc", toolkit.without_memo)
    built_without_spills(gemv("bf16", d="bf16", shape=(2, 16, 512), capability=90), "sm_90a", plain)


@pytest.mark.parametrize("place", [0, thorough(0.5), 0.999])
@pytest.mark.parametrize("name", [thorough("f16"), "e4m3 by rows, 8 rows"])
def test_a_tile_that_is_listed_compiles_without_spills(name, place, tools):
    like = CLASSES[name]
    tiles = pycutlass.tile_descriptions(like)
    tile = tiles[int(place * len(tiles))]
    fields = {name: getattr(like, name) for name in like._FIELDS if name != "D"}
    built_without_spills(pycutlass.GemmOperationUniversal(**fields | {"tile_description": tile}), "sm_90a", tools)
