"""Kernels whose D is described apart from C, through both compilers."""

from __future__ import annotations

import pytest
from apart import APART
from marks import thorough_but

from pycutlass import _core, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.families import sm90_memory
from pycutlass.report import BuildReport
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("name", thorough_but(("narrower", "wider, transposed"), APART))
def test_the_host_side_has_the_types_and_the_shared_memory_of_the_description(name, host_compiler):
    operation = APART[name]
    host = _core.HostLibrary(host_compiler.compile(operation.source(), "sm_90a", Processes(1, 8 << 30)).binary)
    assert host.elements == {letter: getattr(operation, letter).type.short for letter in "ABCD"}
    tile = operation.tile_description
    stages = sm90_memory.stages_of(tile, operation.C, grouped=False, D=operation.D)
    assert host.shared_bytes == sm90_memory.kernel_bytes(tile, operation.C, stages, grouped=False, D=operation.D)


@pytest.mark.thorough  # a minute of a core; that it compiles and is right is seen on a GPU as well
def test_a_kernel_compiles_for_the_device():
    operation = APART["wider, transposed"]
    artifact = build(operation.source(), "sm_90a", find_tools("nvrtc", toolkit.without_memo), Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []
