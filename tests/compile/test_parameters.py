"""Kernels with more parameters than the 4096 bytes that CUDA took before version 12.1."""

from __future__ import annotations

import dataclasses

import pytest
from descriptions import native_parts, parts
from marks import thorough
from wide_parameters import BALLAST, WideParameters

from pycutlass import _core, cubin, toolkit
from pycutlass.compiler.build import build
from pycutlass.compiler.tools import find_tools
from pycutlass.errors import CompileError
from pycutlass.report import BuildReport
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile


@pytest.mark.parametrize(
    ("backend", "target", "described"),
    [
        ("nvcc", "sm_80", parts("f32_simt")),
        thorough("nvrtc", "sm_80", parts("f32_simt")),
        thorough("nvrtc", "sm_90a", native_parts((64, 64, 64), (1, 1))),
    ],
)
def test_both_sides_of_a_kernel_with_many_parameters_agree(backend, target, described, host_compiler):
    operation = WideParameters(**described)
    tools = dataclasses.replace(find_tools(backend, toolkit.without_memo), host=host_compiler)
    artifact = build(operation.source(), target, tools, Processes(2, 8 << 30))
    made = _core.HostLibrary(artifact.host).params_bytes
    assert BALLAST < made < 8192
    assert cubin.kernel_parameter_bytes(artifact.cubin, operation.procedural_name()) == made
    assert BuildReport.from_json(artifact.report).problems() == []


def test_more_parameters_than_a_launch_can_pass_do_not_compile(host_compiler):
    operation = WideParameters(**parts("f32_simt"))
    source = operation.source()
    text = source.text.replace(f"ballast[{BALLAST // 4}]", "ballast[9000]")
    assert text != source.text
    with pytest.raises(CompileError, match="the kernel's parameters are too large"):
        host_compiler.compile(type(source)(source.name, text, 80, False), "sm_80", Processes(1, 8 << 30))
