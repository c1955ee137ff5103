"""Kernels whose epilogue has a tensor, a vector and a second output of its own, through the compilers."""

from __future__ import annotations

from typing import Any

import pytest
from extra_epilogue import SCALARS
from extra_operations import CONVOLUTIONS, EXTRA

from pycutlass import _core, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.epilogue import Family
from pycutlass.epilogue.scalars import EpilogueLayout
from pycutlass.families import AMPERE, sm90_memory
from pycutlass.report import BuildReport
from pycutlass.toolchain import HostCompiler, Processes

pytestmark = pytest.mark.compile

OPERATIONS: dict[str, Any] = EXTRA | CONVOLUTIONS


def target(operation: Any) -> str:
    return "sm_90a" if operation.is_sm90 else "sm_80"


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_host_side_knows_its_tensors_and_scalars(name: str, host_compiler: HostCompiler) -> None:
    operation = OPERATIONS[name]
    functor = operation.epilogue_functor
    host = _core.HostLibrary(host_compiler.compile(operation.source(), target(operation), Processes(1, 8 << 30)).binary)
    layout = EpilogueLayout(host.epilogue_bytes, host.epilogue_fields)
    assert layout.scalars == {*SCALARS}
    assert layout.tensors.keys() == {"extra", "bias", "second"}
    for port in functor.ports:
        layout.check(port.name, port.type.short, port in functor.outputs)
    addresses = {"extra": 16, "bias": 32, "second": 48}
    packed = functor.epilogue_type(**SCALARS).packed(layout, addresses, {"extra": (8, 64), "second": (16, 0)})
    assert len(packed) == layout.size
    if operation.is_sm90:
        tile, C = operation.tile_description, operation.C
        beside = functor.shared_bytes(Family.SM90_GEMM, tile)
        if tile.stages is not None:
            most = sm90_memory.kernel_bytes(tile, C, tile.stages, grouped=False) + beside
            assert most - 4096 <= host.shared_bytes <= most
    if name in CONVOLUTIONS:
        assert host.shared_bytes == AMPERE.shared_bytes(
            operation.tile_description, *operation.product, epilogue=functor
        )
    assert host.shared_bytes <= 227 << 10


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param("hopper cooperative", "nvrtc", marks=pytest.mark.thorough),  # a minute of a core
        *(pytest.param("ampere f16", backend, marks=pytest.mark.thorough) for backend in ("nvrtc", "nvcc")),
        *(pytest.param(name, "nvcc", marks=pytest.mark.thorough) for name in CONVOLUTIONS),
        pytest.param("fprop", "nvrtc", marks=pytest.mark.thorough),
    ],
)
def test_a_kernel_compiles_for_the_device(name: str, backend: str) -> None:
    operation = OPERATIONS[name]
    tools = find_tools(backend, toolkit.without_memo)
    artifact = build(operation.source(), target(operation), tools, Processes(2, 8 << 30))
    assert BuildReport.from_json(artifact.report).problems() == []
