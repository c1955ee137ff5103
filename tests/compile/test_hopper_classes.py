"""Every class of Hopper-native GEMMs, through both compilers."""

from __future__ import annotations

import pytest
from hopper_classes import CLASSES

from pycutlass import _core, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.families import sm90_memory
from pycutlass.report import BuildReport
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

#: Those that are compiled for the device each time: all others are so where tests run on a GPU.
USUAL = ("neither along K, cluster of 8", "int8 to int8 by columns", "e4m3 x e5m2", "stream-K", "swapped, 8 columns")


@pytest.mark.parametrize("name", CLASSES)
def test_the_host_side_has_the_types_and_the_shared_memory_of_the_description(name, host_compiler):
    operation = CLASSES[name]
    host = _core.HostLibrary(host_compiler.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary)
    assert host.elements == {letter: getattr(operation, letter).type.short for letter in "ABCD"}
    tile, parts = operation.tile_description, operation.family.parts_of(operation)
    stages = sm90_memory.stages_of(tile, parts.C, grouped=False, D=parts.D)
    assert host.shared_bytes == sm90_memory.kernel_bytes(tile, parts.C, stages, grouped=False, D=parts.D)


@pytest.mark.parametrize(
    "name", [each if each in USUAL else pytest.param(each, marks=pytest.mark.thorough) for each in CLASSES]
)
def test_it_compiles_for_the_device(name):
    operation = CLASSES[name]
    artifact = build(operation.source(), "sm_90a", find_tools("nvcc", toolkit.without_memo), Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []
    _, n, _ = operation.tile_description.threadblock_shape
    assert all(f"x{n}x" in shape for shape in artifact.report["wgmma_shapes"])
